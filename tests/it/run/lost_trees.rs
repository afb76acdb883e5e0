//! The tree of a command whose lock is lost, or whose store is silent.

use crate::support::inherited_lock::InheritedLock;
use crate::support::process;
use crate::support::proxy::{Proxy, Way};
use crate::support::running::{Exit, Running};
use crate::support::store::Store;
use crate::support::wait::{eventually, throughout, until};
use crate::support::{SOON, probe};
use nix::sys::signal::Signal;
use std::time::Duration;

/// A command with an inherited lock, whose dlock reaches the store through a proxy.
struct Fixture {
    store: Store,
    proxy: Proxy,
    inherited_lock: InheritedLock,
    run: Running,
}

impl Fixture {
    /// With a lease that lasts long enough for a dlock and a command that start slowly on a busy machine.
    fn start(hidden: bool, args: &[&str]) -> Self {
        Self::start_with(&["--ttl", "6s"], hidden, args)
    }

    fn start_with(options: &[&str], hidden: bool, args: &[&str]) -> Self {
        let store = Store::redis();
        let proxy = Proxy::to(store.space().port());
        let inherited_lock = store.place.inherited_lock();
        let mut command = vec![probe::path().into_os_string().into_string().unwrap()];
        command.extend(
            ["--inherited-lock", inherited_lock.path()].iter().chain(args).map(|arg| (*arg).to_owned()),
        );
        let run = store.place.run().backend(store.behind(proxy.port()).url()).args(options).command(command);
        let mut run = if hidden { run.without_cgroups().spawn() } else { run.spawn() };
        run.await_ready();
        Self { store, proxy, inherited_lock, run }
    }

    /// The lock was lost: dlock reports it, and no process is left.
    #[track_caller]
    fn assert_lost(mut self) {
        let output = self.run.wait();
        assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
        assert!(output.stderr.starts_with("dlock: "), "{}", output.stderr);
        assert!(!output.stdout.contains("crowded"), "who forks and ends is not reaped");
        assert!(self.inherited_lock.is_free(), "somebody is left");
        assert_eq!(self.store.place.marker().bearers().len(), 0);
    }
}

/// Each tree, with and without cgroups, when the store becomes silent.
fn behind_a_silent_store(args: &[&str]) {
    for hidden in [false, true] {
        let fixture = Fixture::start(hidden, args);
        fixture.proxy.hold_both();
        fixture.store.await_death_under_lock(&fixture.inherited_lock);
        fixture.assert_lost();
    }
}

/// Each tree, with and without cgroups, when another client has taken the lock.
pub fn after_a_theft(args: &[&str]) {
    for hidden in [false, true] {
        let fixture = Fixture::start(hidden, args);
        let key = fixture.store.space().key("x");
        fixture.store.space().command(&["SET", &key, "somebody else"]);
        fixture.inherited_lock.await_free();
        assert_eq!(fixture.store.space().command(&["GET", &key]).text(), "somebody else");
        fixture.assert_lost();
    }
}

macro_rules! each_tree {
    ($($name:ident: $args:expr;)+) => {
        mod behind_a_silent_store {
            $( #[test] fn $name() { super::behind_a_silent_store(&$args); } )+
        }
        mod after_a_theft {
            $( #[test] fn $name() { super::after_a_theft(&$args); } )+
        }
    };
}

// S20, S21, S23, S34: dead before the lease can end.
each_tree! {
    a_command_that_ignores_sigterm_dies_in_time: ["ignore-term"];
    a_stopped_command_dies_in_time: ["stop"];
    processes_that_keep_forking_die_in_time: ["fork-forever", "8"];
    a_command_in_vfork_dies_in_time: ["vfork"];
    a_traced_child_dies_in_time: ["traced"];
}

/// S20
#[test]
fn a_command_gets_sigterm_and_its_grace_when_its_lock_was_deleted() {
    // After a loss it has a second at most.
    let fixture = Fixture::start_with(&["--ttl", "30s"], false, &["signals", "exit:TERM=0"]);
    fixture.store.space().command(&["DEL", &fixture.store.space().key("x")]);
    fixture.inherited_lock.await_free();
    let lines = fixture.run.stdout();
    assert!(
        matches!(lines.lines().collect::<Vec<_>>()[..], ["ready", term] if term.starts_with("TERM ")),
        "{lines}"
    );
    fixture.assert_lost();
}

/// S21
#[test]
fn a_stopped_command_is_continued_to_get_its_sigterm() {
    // On a busy machine the command may be late, and must not be killed before.
    let options = ["--ttl", "9s", "--grace", "3s"];
    let fixture = Fixture::start_with(&options, false, &["signals", "exit:TERM=0"]);
    let command = fixture.run.command();
    process::send(command, Signal::SIGSTOP);
    until(SOON, "a stopped command", || process::stopped(command));
    fixture.proxy.hold(Way::Down);
    fixture.store.await_death_under_lock(&fixture.inherited_lock);
    assert!(fixture.run.stdout().contains("TERM "), "{}", fixture.run.stdout());
    fixture.assert_lost();
}

/// S24
///
/// The first process of a namespace cannot end before every process in it was reaped, and a traced zombie
/// is not: so it survives SIGKILL for as long as this test needs.
#[test]
fn a_command_that_cannot_be_killed_keeps_its_lock_and_is_reported() {
    let store = Store::redis();
    let run = store.run_with_ttl("4s").args(["--max-runtime", "5s", "--grace", "200ms"]);
    let mut run = run.command(["unshare", "-pf", "sh", "-c", "sleep 1000 & echo ready; wait"]).spawn();
    run.await_ready();
    let sleep = eventually(SOON, "the sleep", || {
        run.marker().bearers().into_iter().find(|stat| stat.comm == "sleep")
    });
    seize(sleep.pid);
    let init = sleep.ppid;
    // For longer than the lease after SIGKILL: it must be renewed, and no other client may get it.
    throughout(Duration::from_secs(10), "dlock holds on to the lock", || {
        run.poll().is_none() && store.is_held()
    });
    assert!(process::alive(init));
    assert_eq!(store.run().command(["true"]).output().exit, Exit::Code(75));
    assert!(run.stderr().starts_with("dlock: "), "nothing was reported: {}", run.stderr());
    release(sleep.pid);
    until(SOON, "the end of the namespace", || !process::alive(init));
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(124));
    assert!(!output.stderr.contains("its lease may have ended"), "it was renewed: {}", output.stderr);
    assert!(!store.is_held());
}

/// S39: the same, while the store is silent.
#[test]
fn processes_alive_at_the_end_of_the_lease_are_reported() {
    let redis = crate::support::redis::Redis::start();
    let store = Store::on(&redis);
    let run = store.run_with_ttl("6s");
    let mut run = run.command(["unshare", "-pf", "sh", "-c", "sleep 1000 & echo ready; wait"]).spawn();
    run.await_ready();
    let sleep = eventually(SOON, "the sleep", || {
        run.marker().bearers().into_iter().find(|stat| stat.comm == "sleep")
    });
    seize(sleep.pid);
    redis.stop();
    run.await_stderr("processes of the command are not known to be dead: its lease may have ended");
    assert!(run.poll().is_none(), "dlock has left a process that lives");
    redis.resume();
    release(sleep.pid);
    assert_eq!(run.wait().exit, Exit::Code(76), "{}", run.stderr());
}

fn seize(pid: i32) {
    // SAFETY: PTRACE_SEIZE takes numbers only.
    let result = unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0, 0) };
    assert_eq!(result, 0, "a process can be traced: {}", std::io::Error::last_os_error());
}

/// Lets the parent of a traced zombie reap it.
fn release(pid: i32) {
    let pid = nix::unistd::Pid::from_raw(pid);
    nix::sys::wait::waitpid(pid, Some(nix::sys::wait::WaitPidFlag::__WALL)).unwrap();
}

/// S09
mod stopped_from_the_keyboard {
    use crate::support::SOON;
    use crate::support::process;
    use crate::support::pty::{CTRL_Z, Terminal};
    use crate::support::store::Store;
    use crate::support::wait::{boot_ns, until};

    /// A job that ticks under a lease of 6 s on a terminal, stopped by Ctrl-Z.
    fn stopped_job(store: &Store) -> (Terminal, i32, i32) {
        let mut terminal = Terminal::bash(&store.place);
        let (url, inherited_lock, tick) =
            (store.url(), store.place.arg("inherited_lock"), store.place.arg("tick"));
        terminal.line(&format!(
            "\"$DLOCK\" run -b '{url}' --ttl 6s x -- \"$PROBE\" --inherited-lock '{inherited_lock}' tick '{tick}'"
        ));
        terminal.expect("ready\n");
        let (dlock, command) = (terminal.process("dlock"), terminal.process("probe"));
        terminal.type_keys(CTRL_Z);
        terminal.expect("Stopped");
        until(SOON, "a stopped job", || process::stopped(dlock) && process::stopped(command));
        (terminal, dlock, command)
    }

    #[test]
    fn a_job_that_is_never_resumed_is_dead_before_the_lease_ends() {
        let store = Store::redis();
        let (mut terminal, dlock, command) = stopped_job(&store);
        store.await_death_under_lock(&store.place.inherited_lock());
        assert!(!process::alive(command));
        assert!(process::stopped(dlock));
        terminal.line("fg");
        until(SOON, "the shell in the foreground", || terminal.foreground() == terminal.leader());
        terminal.line("echo status=$?");
        terminal.expect("status=76\n");
    }

    #[test]
    fn a_pipeline_that_is_never_resumed_is_dead_before_the_lease_ends() {
        let store = Store::redis();
        let mut terminal = Terminal::bash(&store.place);
        let (url, inherited_lock, tick) =
            (store.url(), store.place.arg("inherited_lock"), store.place.arg("tick"));
        let dlock = format!(
            "\"$DLOCK\" run -b '{url}' --ttl 6s x -- \"$PROBE\" --inherited-lock '{inherited_lock}' tick '{tick}'"
        );
        terminal.line(&format!("{dlock} | cat"));
        terminal.expect("ready\n");
        let command = terminal.process("probe");
        terminal.type_keys(CTRL_Z);
        terminal.expect("Stopped");
        store.await_death_under_lock(&store.place.inherited_lock());
        assert!(!process::alive(command));
    }

    #[test]
    fn a_job_that_is_resumed_in_time_continues() {
        let store = Store::redis();
        let (mut terminal, _, command) = stopped_job(&store);
        let last = store.place.read("tick");
        terminal.line("fg");
        until(SOON, "a command that goes on", || {
            !process::stopped(command) && store.place.read("tick") != last
        });
        // Past the lease under which it was stopped.
        let until_ns = boot_ns() + 7_000_000_000;
        until(SOON, "seven seconds of work", || {
            store.place.read("tick").trim() > format!("{until_ns:020}").as_str()
        });
        assert!(store.is_held());
    }

    #[test]
    fn a_stopped_job_whose_lock_was_lost_never_runs_again() {
        for theft in [false, true] {
            let store = Store::redis();
            let (mut terminal, _, command) = stopped_job(&store);
            let key = store.space().key("x");
            if theft {
                store.space().command(&["SET", &key, "somebody else"]);
            } else {
                store.space().command(&["DEL", &key]);
            }
            let last = store.place.read("tick");
            terminal.line("fg");
            until(SOON, "the death of the command", || !process::alive(command));
            assert_eq!(store.place.read("tick"), last, "the command ran without its lock");
            until(SOON, "the shell in the foreground", || terminal.foreground() == terminal.leader());
            terminal.line("echo status=$?");
            terminal.expect("status=76\n");
        }
    }
}

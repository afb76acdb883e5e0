//! Hosts that lack something: rights, memory, processes, /proc, a name for the user, a parent.

use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::process;
use crate::support::running::{Exit, Running};
use crate::support::store::Store;
use crate::support::wait::{throughout, until};
use crate::support::{SOON, probe};
use nix::sys::signal::Signal;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

/// A place whose locks and files a user who is not root may use.
fn open_place() -> Place {
    let place = Place::new();
    for directory in [place.path("."), place.locks(), place.home()] {
        std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    place
}

/// The limits of a command that is to be running when it is stopped, however slowly it starts.
const RUNTIME: [&str; 4] = ["--max-runtime", "6s", "--grace", "200ms"];

/// Runs dlock as an otherwise unused user.
fn as_user(run: Dlock, id: u32) -> Dlock {
    run.wrapped_by(["setpriv", &format!("--reuid={id}"), &format!("--regid={id}"), "--clear-groups"])
}

/// S28
#[test]
fn a_dlock_whose_parent_dies_continues_and_releases() {
    let place = Place::new();
    let (dlock, go) = (crate::support::dlock::BINARY, place.arg("go"));
    let line = format!(
        "'{dlock}' run -q -b '{}' x -- sh -c 'echo ready; while ! test -e {go}; do sleep 0.05; done; touch ended' >log & wait",
        place.url()
    );
    let mut shell = Command::new("sh");
    shell.args(["-c", &line]).current_dir(place.path(".")).env("HOME", place.home());
    shell.env(process::Marker::VARIABLE, place.marker().value());
    let mut shell = shell.spawn().unwrap();
    until(SOON, "the command", || place.read("log") == "ready\n");
    shell.kill().unwrap();
    shell.wait().unwrap();
    throughout(Duration::from_millis(500), "the lock is held", || !place.lock_is_free("x"));
    place.write("go", "");
    until(SOON, "a free lock", || place.lock_is_free("x"));
    assert!(place.path("ended").exists());
    until(SOON, "the end of everybody", || place.marker().bearers().is_empty());
}

/// S31
#[test]
fn a_failed_fork_is_70_and_leaves_the_lock_free() {
    let mut outcomes = Vec::new();
    for processes in 1..=6 {
        let place = open_place();
        // A new user for each try: the limit counts all processes of a user.
        let run = place.run().command(["true"]).wrapped_by(["prlimit", &format!("--nproc={processes}")]);
        let output = as_user(run, 2_000_000 + std::process::id() % 1000 * 10 + processes).output();
        outcomes.push(output.exit);
        if output.exit != Exit::Code(0) {
            assert!(output.stderr.starts_with("dlock: "), "{}", output.stderr);
            assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
        }
        assert!(place.lock_is_free("x"), "with {processes} processes");
        assert_eq!(place.marker().bearers().len(), 0, "with {processes} processes");
    }
    outcomes.dedup();
    assert_eq!(outcomes, [Exit::Code(70), Exit::Code(0)]);
}

/// S31
#[test]
fn too_little_memory_is_a_dlock_failure_and_leaves_the_lock_free() {
    let limited = |run: Dlock, kib: u32| run.after_shell(&format!("ulimit -v {kib}")).output();
    // Below some size the system cannot even load the program, or not give it the stack to read its arguments: the
    // test starts where it can.
    let place = Place::new();
    let refused = || place.run().args(["--ttl", "25h"]).command(["true"]);
    // Wherever the system puts it: the address differs each time.
    let loads = |kib: &u32| (0..20).all(|_| limited(refused(), *kib).exit == Exit::Code(64));
    let smallest = (2000..100_000).step_by(250).find(loads).unwrap();
    let mut enough = 0;
    for kib in (smallest..).step_by(250) {
        let output = limited(place.run().command(["true"]), kib);
        assert!(place.lock_is_free("x"), "with {kib} KiB");
        assert_eq!(place.marker().bearers().len(), 0, "with {kib} KiB");
        match output.exit {
            Exit::Code(0) => enough += 1,
            Exit::Code(69 | 70) => {
                assert!(output.stderr.starts_with("dlock: "), "with {kib} KiB: {output:?}")
            }
            // It may be the command itself that cannot be loaded.
            Exit::Code(127) => assert!(output.stderr.starts_with("true: "), "with {kib} KiB: {output:?}"),
            _ => panic!("with {kib} KiB: {output:?}"),
        }
        if enough == 10 {
            return;
        }
    }
}

/// S51: dlock raises the limit for itself where it may, and the command has the limit that it would have without dlock.
#[test]
fn a_small_stack_is_raised_for_dlock_alone_or_refused_with_a_sentence() {
    let place = open_place();
    let run = |limit: &str| as_user(place.run().sh("ulimit -s").wrapped_by(["prlimit", limit]), 60_998);
    assert_eq!(run("--stack=65536:").output().outcome(), (Exit::Code(0), "64\n", ""));
    let why = "dlock: the stack is limited to 64 KiB, and 640 are needed: see ulimit -s\n";
    assert_eq!(run("--stack=65536:65536").output().outcome(), (Exit::Code(70), "", why));
}

/// A run by a plain user whose command has become another user's.
fn beyond_reach(options: &[&str]) -> (Place, Running) {
    let place = open_place();
    let root = place.path("become-root");
    // Not by this process: while another test forks, the copy would be open for writing there (ETXTBSY).
    let copied = std::process::Command::new("cp").arg(probe::path()).arg(&root).status();
    assert!(copied.unwrap().success());
    std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let inherited_lock = place.inherited_lock();
    std::fs::write(inherited_lock.path(), "").unwrap();
    std::fs::set_permissions(inherited_lock.path(), std::fs::Permissions::from_mode(0o666)).unwrap();
    let run = place.run().args(options);
    let run = run.command([root.to_str().unwrap(), "--inherited-lock", inherited_lock.path(), "become-root"]);
    let mut run = as_user(run, 60_999).spawn();
    run.await_ready();
    (place, run)
}

/// S33
#[test]
fn a_command_that_cannot_be_signalled_is_reported_and_not_called_dead() {
    let (place, mut run) = beyond_reach(&RUNTIME);
    let command = run.command();
    let said = run.await_stderr("dlock: ");
    throughout(Duration::from_secs(2), "the lock of a command that lives", || {
        process::alive(command) && run.poll().is_none() && !place.lock_is_free("x")
    });
    assert!(!said.contains("was killed"), "{said}");
    process::send(command, Signal::SIGKILL);
    assert_eq!(run.wait().exit, Exit::Code(124));
    assert!(place.lock_is_free("x"));
}

/// S33: dlock itself takes the place of the guard.
#[test]
fn without_a_guard_a_command_that_cannot_be_signalled_is_reported_and_not_called_dead() {
    let (place, mut run) = beyond_reach(&[]);
    let command = run.command();
    process::send(run.guard(), Signal::SIGKILL);
    run.await_stderr(&format!("process {command} may not be signalled by this user"));
    assert!(process::alive(command) && run.poll().is_none() && !place.lock_is_free("x"));
    process::send(command, Signal::SIGKILL);
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(70));
    assert!(!output.stderr.contains("the command was stopped"), "{}", output.stderr);
    assert!(place.lock_is_free("x"));
}

/// Runs dlock where /proc is empty.
fn without_proc(run: Dlock) -> Dlock {
    run.after_shell("mount -t tmpfs none /proc || exit 99").wrapped_by(["unshare", "-m"])
}

/// S35
#[test]
fn without_dev_null_dlock_reports_it() {
    let close_input = || Ok(nix::unistd::close(0)?);
    for closed in [false, true] {
        let place = Place::new();
        let run = place.run().command(["true"]);
        let run = run.after_shell("mount -t tmpfs none /dev || exit 99").wrapped_by(["unshare", "-m"]);
        let run = if closed { run.before_exec(close_input) } else { run };
        let said = "dlock: cannot open /dev/null: no such file or directory\n";
        assert_eq!(run.output().outcome(), (Exit::Code(70), "", said));
        assert!(place.lock_is_free("x"));
    }
}

/// S35
#[test]
fn without_proc_a_command_runs_and_is_stopped() {
    let place = Place::new();
    let output = without_proc(place.run().sh("echo done; exit 5")).output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(5), "done\n"));
    let weaker = output.stderr;
    assert!(
        weaker.starts_with("dlock: ") && weaker.lines().count() == 1,
        "what is weaker is said once: {weaker:?}"
    );
    let inherited_lock = place.inherited_lock();
    let run = place.run().args(["--max-runtime", "3s", "--grace", "200ms"]);
    let output = without_proc(run.probe(["--inherited-lock", inherited_lock.path(), "ignore-term"])).output();
    assert_eq!(output.exit, Exit::Code(124), "{}", output.stderr);
    assert!(inherited_lock.is_free());
    assert!(place.lock_is_free("x"));
}

/// S35
#[test]
fn without_proc_a_scattered_tree_is_killed() {
    for half in [None, Some(Signal::SIGKILL)] {
        let place = Place::new();
        let inherited_lock = place.inherited_lock();
        // Where the guard is killed, that ends the command.
        let limit = if half.is_some() { "60s" } else { "6s" };
        let run = place.run().args(["--max-runtime", limit, "--grace", "200ms"]);
        let run = run.probe(["--inherited-lock", inherited_lock.path(), "tree", "4", &place.arg("pids")]);
        let mut run = without_proc(run).spawn();
        run.await_ready();
        if let Some(signal) = half {
            process::send(run.guard(), signal);
        }
        let expected = if half.is_some() { 70 } else { 124 };
        assert_eq!(run.wait().exit, Exit::Code(expected), "{}", run.stderr());
        assert!(inherited_lock.is_free(), "somebody is left");
        assert!(place.lock_is_free("x"));
    }
}

/// S35
#[test]
fn without_sys_a_command_runs_and_its_scattered_tree_is_killed() {
    let without_sys =
        |run: Dlock| run.after_shell("mount -t tmpfs none /sys || exit 99").wrapped_by(["unshare", "-m"]);
    for store in Store::each() {
        let output = without_sys(store.run_with_ttl("60s").sh("echo done; exit 5")).output();
        assert_eq!(output.outcome(), (Exit::Code(5), "done\n", ""));
        for (half, expected) in [(None, 124), (Some(Signal::SIGKILL), 70)] {
            let inherited_lock = store.place.inherited_lock();
            let limit = if half.is_some() { "60s" } else { "6s" };
            let run = store.run_with_ttl("60s").args(["--max-runtime", limit, "--grace", "200ms"]);
            let run =
                run.probe(["--inherited-lock", inherited_lock.path(), "tree", "4", &store.place.arg("pids")]);
            let mut run = without_sys(run).spawn();
            run.await_ready();
            if let Some(signal) = half {
                process::send(run.guard(), signal);
            }
            store.await_death_under_lock(&inherited_lock);
            assert_eq!(run.wait().exit, Exit::Code(expected), "{}", run.stderr());
            assert!(!store.is_held());
        }
    }
}

/// S35
#[test]
fn on_a_read_only_file_system_a_command_runs() {
    let place = Place::new();
    let text =
        format!("mount -t tmpfs none '{}' && mount -o remount,ro,bind / || exit 99", place.locks().display());
    let run = place.run().sh("touch /tmp/x 2>/dev/null || echo read-only").after_shell(&text);
    let output = run.wrapped_by(["unshare", "-m"]).output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "read-only\n"), "{}", output.stderr);
    assert!(output.stderr.lines().count() <= 1, "{}", output.stderr);
}

/// S35
#[test]
fn an_unwritable_lock_directory_is_a_failure_and_not_contention() {
    let place = Place::new();
    let text = format!(
        "mount --bind '{0}' '{0}' && mount -o remount,ro,bind '{0}' || exit 99",
        place.locks().display()
    );
    let output = place.run().command(["true"]).after_shell(&text).wrapped_by(["unshare", "-m"]).output();
    assert!(matches!(output.exit, Exit::Code(69 | 77)), "{output:?}");
    assert!(output.stderr.starts_with("dlock: ") && output.stderr.lines().count() == 1, "{}", output.stderr);
}

/// S35
#[test]
fn a_user_without_a_name_runs_commands() {
    let place = open_place();
    let run = as_user(place.run().command(["id", "-u"]), 54_321).env_remove("USER").env_remove("LOGNAME");
    assert_eq!(run.output().outcome(), (Exit::Code(0), "54321\n", ""));
    // Without a home from anywhere there is no default directory.
    let run = as_user(place.run().no_backend().command(["true"]), 54_321);
    let output = run.env_remove("HOME").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(78), ""));
    assert!(output.stderr.starts_with("dlock: ") && output.stderr.lines().count() == 1, "{}", output.stderr);
}

/// S35
#[test]
fn a_user_who_is_not_root_has_a_scattered_tree_stopped() {
    let place = open_place();
    let inherited_lock = place.inherited_lock();
    let run = place.run().args(RUNTIME);
    let run = run.probe(["--inherited-lock", inherited_lock.path(), "tree", "3", &place.arg("pids")]);
    let output = as_user(run, 54_322).output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(124), "ready\n"), "{}", output.stderr);
    std::fs::set_permissions(inherited_lock.path(), std::fs::Permissions::from_mode(0o666)).unwrap();
    assert!(inherited_lock.is_free());
    assert_eq!(place.marker().bearers().len(), 0);
}

/// S35
#[test]
fn a_seccomp_filter_without_new_system_calls_does_no_harm() {
    for errno in [libc::ENOSYS, libc::EPERM] {
        let place = Place::new();
        let run = place.run().sh("exit 5").before_exec(move || refuse_new_calls(errno));
        let output = run.output();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(5), ""), "{}", output.stderr);
        let inherited_lock = place.inherited_lock();
        let run = place.run().args(RUNTIME);
        let run = run.probe(["--inherited-lock", inherited_lock.path(), "tree", "2", &place.arg("pids")]);
        let output = run.before_exec(move || refuse_new_calls(errno)).output();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(124), "ready\n"), "{}", output.stderr);
        assert!(inherited_lock.is_free());
    }
}

/// Makes the system calls that old sandboxes do not know fail.
fn refuse_new_calls(errno: i32) -> std::io::Result<()> {
    const NEW: [i64; 6] = [
        libc::SYS_pidfd_open,
        libc::SYS_pidfd_send_signal,
        libc::SYS_clone3,
        libc::SYS_close_range,
        libc::SYS_openat2,
        libc::SYS_memfd_create,
    ];
    let statement =
        |code: u32, k: u32| libc::sock_filter { code: u16::try_from(code).unwrap_or(0), jt: 0, jf: 0, k };
    let allow = statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW);
    let mut program = [allow; 2 * NEW.len() + 2];
    // The number of the call is the first word of a filter's input.
    program[0] = statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0);
    for (index, call) in NEW.iter().enumerate() {
        let number = u32::try_from(*call).unwrap_or(0);
        program[2 * index + 1] = statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number);
        program[2 * index + 1].jf = 1;
        let refuse = libc::SECCOMP_RET_ERRNO | errno.unsigned_abs();
        program[2 * index + 2] = statement(libc::BPF_RET | libc::BPF_K, refuse);
    }
    let filter =
        libc::sock_fprog { len: u16::try_from(program.len()).unwrap_or(0), filter: program.as_mut_ptr() };
    // SAFETY: prctl(2) is async-signal-safe, and the program exists during the call.
    let result = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            | libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter)
    };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

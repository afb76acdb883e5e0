//! Hosts that hide processes from dlock, and dlock processes that are traced, stopped or hung: namespaces, hidden
//! processes, tracers.

use crate::support::SOON;
use crate::support::inherited_lock::InheritedLock;
use crate::support::place::Place;
use crate::support::process;
use crate::support::proxy::Proxy;
use crate::support::running::{Exit, Running};
use crate::support::store::Store;
use crate::support::wait::{eventually, throughout, until};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A cgroup for one test only, below that of the tests.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new() -> Self {
        let mounted = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
        let mounted = mounted.into_iter().find(|path| Path::new(path).join("cgroup.procs").exists());
        let memberships = std::fs::read_to_string("/proc/self/cgroup").unwrap();
        let ours = memberships.lines().find_map(|line| line.strip_prefix("0::/")).expect("cgroup v2");
        let name = format!("it-{}-{:?}", std::process::id(), std::thread::current().id());
        let path = Path::new(mounted.expect("cgroup v2 is mounted")).join(ours).join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// A shell command that moves the shell into it.
    fn join(&self) -> String {
        format!("echo $$ >'{}' || exit 99", self.0.join("cgroup.procs").display())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = std::fs::write(self.0.join("cgroup.kill"), "1");
        until(SOON, "an empty cgroup", || std::fs::remove_dir(&self.0).is_ok() || !self.0.exists());
    }
}

/// S41: the path in /proc/self/cgroup is relative to our namespace, the mounted file system shows another.
#[test]
fn no_cgroup_outside_the_own_one_is_used() {
    let cgroup = Cgroup::new();
    let place = Place::new();
    let mut run =
        place.run().probe(["ignore-term"]).wrapped_by(["unshare", "-C"]).after_shell(&cgroup.join()).spawn();
    run.await_ready();
    let of = |pid: i32| {
        let all = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        all.lines().find_map(|line| line.strip_prefix("0::")).unwrap().to_owned()
    };
    let name = cgroup.0.file_name().unwrap().to_str().unwrap();
    let (dlock, command) = (of(run.pid()), of(run.command()));
    assert!(command.contains(name), "the command has left our cgroup: {command}");
    assert_eq!(dlock, command);
    run.signal(Signal::SIGKILL);
    assert_eq!(run.wait().exit, Exit::by(Signal::SIGKILL));
}

/// The command runs once, and to its end, wherever the cgroups are those of another namespace.
#[test]
fn a_command_runs_once_in_a_cgroup_or_pid_namespace() {
    for namespace in ["-C", "-pf"] {
        let cgroup = Cgroup::new();
        let place = Place::new();
        let log = place.path("log");
        for _ in 0..20 {
            let run = place.run().sh(&format!("echo begun >>'{0}'; echo ended >>'{0}'", log.display()));
            let output = run.wrapped_by(["unshare", namespace]).after_shell(&cgroup.join()).output();
            assert_eq!(output.exit, Exit::Code(0), "{}", output.stderr);
        }
        assert_eq!(place.read("log"), "begun\nended\n".repeat(20), "unshare {namespace}");
    }
}

/// S43
#[test]
fn proc_of_another_pid_namespace_is_not_used_and_a_warning_is_printed() {
    let place = Place::new();
    let inherited_lock = place.inherited_lock();
    let run = place.run().args(["--max-runtime", "3s", "--grace", "200ms"]);
    let run =
        run.probe(["--inherited-lock", inherited_lock.path(), "ignore-term"]).wrapped_by(["unshare", "-pf"]);
    let output = run.output();
    assert_eq!(output.exit, Exit::Code(124), "{}", output.stderr);
    assert!(
        output.stderr.starts_with("dlock: /proc belongs to another PID namespace: "),
        "{}",
        output.stderr
    );
    assert!(inherited_lock.is_free());
    assert!(place.lock_is_free("x"));
}

/// S44
#[test]
fn a_hidden_process_is_killed() {
    let place = Place::new();
    let inherited_lock = place.inherited_lock();
    inherited_lock.is_free();
    for path in [place.path("."), place.locks(), place.home(), inherited_lock.path().into()] {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    }
    // The probe must be running by then, however slowly it starts.
    let run = place.run().args(["--max-runtime", "6s", "--grace", "200ms"]);
    let run = run.probe(["--inherited-lock", inherited_lock.path(), "hidden"]);
    let run = run.wrapped_by(["setpriv", "--reuid=61998", "--regid=61998", "--clear-groups"]);
    let run = run.after_shell("mount -t proc -o hidepid=2 proc /proc || exit 99");
    let output = run.wrapped_by(["unshare", "-m"]).output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(124), "ready\n"), "{}", output.stderr);
    assert!(inherited_lock.is_free(), "somebody is left");
    assert_eq!(place.marker().bearers().len(), 0);
}

#[track_caller]
fn trace(request: libc::c_uint, pid: i32) {
    // SAFETY: the requests made here take only numbers.
    let result = unsafe { libc::ptrace(request, pid, 0, 0) };
    assert_eq!(result, 0, "a process can be traced: {}", std::io::Error::last_os_error());
}

/// Stops a process as a debugger does, without a notification of its parent.
#[track_caller]
fn stop_by_tracing(pid: i32) {
    trace(libc::PTRACE_SEIZE, pid);
    trace(libc::PTRACE_INTERRUPT, pid);
    waitpid(Pid::from_raw(pid), Some(WaitPidFlag::__WALL)).unwrap();
}

/// S53
#[test]
fn a_killed_command_kept_by_a_tracer_counts_as_dead() {
    let place = Place::new();
    let run = place.run().args(["--max-runtime", "6s", "--grace", "200ms"]);
    let mut run = run.probe(["ignore-term"]).spawn();
    run.await_ready();
    let command = run.command();
    trace(libc::PTRACE_SEIZE, command);
    assert_eq!(run.wait().exit, Exit::Code(124), "{}", run.stderr());
    assert!(place.lock_is_free("x"));
    assert!(!process::alive(command));
    waitpid(Pid::from_raw(command), Some(WaitPidFlag::__WALL)).unwrap();
}

/// S45
#[test]
fn a_guard_stopped_by_a_tracer_is_replaced() {
    let store = Store::file();
    let inherited_lock = store.place.inherited_lock();
    let mut run = store.run().probe(["--inherited-lock", inherited_lock.path(), "ignore-term"]).spawn();
    run.await_ready();
    let guard = run.guard();
    stop_by_tracing(guard);
    store.await_death_under_lock(&inherited_lock);
    assert_eq!(run.wait().exit, Exit::Code(70), "{}", run.stderr());
    assert!(run.stderr().contains("the guard process does not answer"), "{}", run.stderr());
    let _ = waitpid(Pid::from_raw(guard), Some(WaitPidFlag::__WALL));
}

/// S45
#[test]
fn a_debugger_attached_briefly_to_the_guard_ends_nothing() {
    let store = Store::file();
    let inherited_lock = store.place.inherited_lock();
    let go = store.place.arg("go");
    let log = store.place.arg("log");
    let mut run = store
        .run()
        .probe(["--inherited-lock", inherited_lock.path(), "hold", &log, "until", &go, "exit", "5"])
        .spawn();
    run.await_ready();
    let guard = run.guard();
    for _ in 0..3 {
        stop_by_tracing(guard);
        throughout(Duration::from_millis(1200), "the command lives", || !inherited_lock.is_free());
        trace(libc::PTRACE_DETACH, guard);
        throughout(Duration::from_millis(1200), "the command lives", || !inherited_lock.is_free());
    }
    store.place.write("go", "");
    assert_eq!(run.wait().outcome(), (Exit::Code(5), "ready\n", ""));
}

mod on_redis {
    use super::*;

    /// S45: the lock is lost while the guard is stopped.
    #[test]
    fn a_lost_lock_ends_the_command_although_a_tracer_stopped_the_guard() {
        let store = Store::redis();
        let inherited_lock = store.place.inherited_lock();
        let run = store.run_with_ttl("30s").probe(["--inherited-lock", inherited_lock.path(), "ignore-term"]);
        let mut run = run.spawn();
        run.await_ready();
        let guard = run.guard();
        stop_by_tracing(guard);
        store.space().command(&["SET", &store.space().key("x"), "somebody else"]);
        // With the heartbeat alone it would take three seconds; the push of the store is immediate.
        inherited_lock.await_free();
        assert_eq!(run.wait().exit, Exit::Code(76), "{}", run.stderr());
        let _ = waitpid(Pid::from_raw(guard), Some(WaitPidFlag::__WALL));
    }

    /// S45: the lease ends while the guard is stopped.
    #[test]
    fn a_silent_store_ends_the_command_although_a_tracer_stopped_the_guard() {
        let redis = crate::support::redis::Redis::start();
        let store = Store::on(&redis);
        let inherited_lock = store.place.inherited_lock();
        let mut run = store.run().probe(["--inherited-lock", inherited_lock.path(), "ignore-term"]).spawn();
        run.await_ready();
        let guard = run.guard();
        stop_by_tracing(guard);
        redis.stop();
        inherited_lock.await_free();
        redis.resume();
        let exit = run.wait().exit;
        // Whichever is noticed first: the deadline or the heartbeat.
        assert!(matches!(exit, Exit::Code(70 | 76)), "{exit:?} {}", run.stderr());
        let _ = waitpid(Pid::from_raw(guard), Some(WaitPidFlag::__WALL));
    }

    /// Waits until the guard has a spare.
    #[track_caller]
    fn spare_of(guard: i32) -> process::Stat {
        let is_spare = |child: &process::Stat| child.comm == "lock-guard" && child.is_alive();
        eventually(SOON, "a spare", || process::children(guard).into_iter().find(is_spare))
    }

    /// Stops dlock, and sends its guard a signal once that has a spare: the tree is dead before the lock is free, and dlock ends so.
    #[track_caller]
    fn assert_dead_in_time(
        store: &Store,
        inherited_lock: &InheritedLock,
        run: &mut Running,
        signal: Signal,
        exit: Exit,
    ) {
        let guard = run.guard();
        run.signal(Signal::SIGSTOP);
        let spare = spare_of(guard);
        process::send(guard, signal);
        store.await_death_under_lock(inherited_lock);
        if signal == Signal::SIGSTOP {
            until(SOON, "the end of the lease", || !store.is_held());
        }
        run.signal(Signal::SIGCONT);
        assert_eq!(run.wait().exit, exit, "{}", run.stderr());
        until(SOON, "the end of the spare", || !process::alive(spare.pid));
    }

    /// S45, F12: after SIGTERM has been sent, because no renewal succeeds, the guard is stopped: the heartbeat alone would notice it
    /// after the end of the lease.
    #[test]
    fn a_guard_that_is_stopped_between_sigterm_and_sigkill_is_replaced_in_time() {
        let store = Store::redis();
        let proxy = Proxy::to(store.space().port());
        let inherited_lock = store.place.inherited_lock();
        let run = store.behind(proxy.port()).run_with_ttl("8s").args(["--grace", "1500ms"]);
        let mut run = run.probe(["--inherited-lock", inherited_lock.path(), "signals"]).spawn();
        run.await_ready();
        let guard = run.guard();
        proxy.hold_both();
        run.await_stdout("TERM");
        stop_by_tracing(guard);
        store.await_death_under_lock(&inherited_lock);
        assert_eq!(run.wait().exit, Exit::Code(76), "{}", run.stderr());
        let _ = waitpid(Pid::from_raw(guard), Some(WaitPidFlag::__WALL));
    }

    /// S46
    #[test]
    fn with_dlock_stopped_and_its_guard_killed_no_process_outlives_the_lease() {
        for hidden in [false, true] {
            // Once it has ended, its processes are waited for.
            for has_ended in [false, true] {
                let store = Store::redis();
                let inherited_lock = store.place.inherited_lock();
                let pids = store.place.arg("pids");
                let tree = ["--inherited-lock", inherited_lock.path(), "tree", "3", &pids];
                let run = store.run_with_ttl("20s").args(["--orphans", "wait"]);
                let run = match has_ended {
                    false => run.probe(tree),
                    true => run.probe([tree[0], tree[1], tree[2], tree[3], tree[4], "exit", "0"]),
                };
                let mut run = if hidden { run.without_cgroups().spawn() } else { run.spawn() };
                run.await_ready();
                if has_ended {
                    until(SOON, "the end of the command", || {
                        process::children(run.guard()).iter().filter(|child| child.is_alive()).count() > 1
                    });
                }
                assert_dead_in_time(&store, &inherited_lock, &mut run, Signal::SIGKILL, Exit::Code(70));
            }
        }
    }

    /// S46, S38: both halves are stopped, and no renewal comes. A large tree takes longer to die than the lease of 6 s allows after
    /// the moment by which it must be dead.
    #[test]
    fn with_dlock_and_its_guard_stopped_no_process_outlives_the_lease() {
        let store = Store::redis();
        let inherited_lock = store.place.inherited_lock();
        let run = store.run_with_ttl("6s").probe(["--inherited-lock", inherited_lock.path(), "many", "1000"]);
        let mut run = run.spawn();
        run.await_ready();
        assert_dead_in_time(&store, &inherited_lock, &mut run, Signal::SIGSTOP, Exit::Code(76));
    }

    /// S46: SIGTERM has been sent, and the grace lasts.
    #[test]
    fn with_dlock_stopped_in_the_grace_and_its_guard_killed_no_process_outlives_the_lease() {
        let store = Store::redis();
        let inherited_lock = store.place.inherited_lock();
        let probe = crate::support::probe::command(["--inherited-lock", inherited_lock.path(), "signals"]);
        let text = format!("'{}' & wait", probe.join("' '"));
        let run = store.run_with_ttl("60s").args(["--max-runtime", "10s", "--grace", "25s"]);
        let mut run = run.sh(&text).without_cgroups().spawn();
        run.await_stdout("TERM");
        assert_dead_in_time(&store, &inherited_lock, &mut run, Signal::SIGKILL, Exit::Code(124));
    }

    /// S46: dlock is killed while nobody but the spare can notice it.
    #[test]
    fn with_both_halves_stopped_and_dlock_killed_no_process_outlives_the_lease() {
        let store = Store::redis();
        let inherited_lock = store.place.inherited_lock();
        let pids = store.place.arg("pids");
        let run =
            store.run_with_ttl("15s").probe(["--inherited-lock", inherited_lock.path(), "tree", "3", &pids]);
        let mut run = run.without_cgroups().spawn();
        run.await_ready();
        let guard = run.guard();
        run.signal(Signal::SIGSTOP);
        spare_of(guard);
        process::send(guard, Signal::SIGSTOP);
        until(SOON, "a stopped guard", || process::wholly_stopped(guard));
        run.signal(Signal::SIGKILL);
        store.await_death_under_lock(&inherited_lock);
        assert_eq!(run.wait().exit, Exit::by(Signal::SIGKILL));
        store.place.marker().await_end();
    }

    /// S46
    #[test]
    fn a_spare_guard_leaves_when_dlock_continues() {
        let store = Store::redis();
        let go = store.place.arg("go");
        let log = store.place.arg("log");
        let mut run = store.run_with_ttl("20s").probe(["hold", &log, "until", &go, "exit", "5"]).spawn();
        run.await_ready();
        let (guard, command) = (run.guard(), run.command());
        let spares = || {
            process::children(guard).iter().filter(|child| child.is_alive() && child.pid != command).count()
        };
        run.signal(Signal::SIGSTOP);
        until(SOON, "a spare", || spares() == 1);
        run.signal(Signal::SIGCONT);
        until(SOON, "no spare", || spares() == 0);
        store.place.write("go", "");
        assert_eq!(run.wait().outcome(), (Exit::Code(5), "ready\n", ""));
    }
}

/// S51: a limit of real-time processor time ends a process that has a real-time policy. Besides, such a process would
/// stop a host on which the kernel waits in a loop for a process of lower priority.
#[test]
fn no_dlock_process_is_real_time() {
    let place = Place::new();
    let run = place.run().probe(["ignore-term"]).wrapped_by(["prlimit", "--rttime=100000:200000"]);
    let mut run = run.spawn();
    run.await_ready();
    let halves = [run.pid(), run.guard()];
    // Field 41 of proc_pid_stat(5): the policy. A dlock process has raised its priority by now; its niceness shows that.
    let field = |pid: i32, number: usize| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let (_, rest) = stat.rsplit_once(')').unwrap();
        rest.split_ascii_whitespace().nth(number - 3).unwrap().to_owned()
    };
    for half in halves {
        until(SOON, "a half that has raised its priority", || field(half, 19) == "-20");
        assert_eq!(field(half, 41), "0");
    }
    assert_eq!(field(run.command(), 19), "0", "the command keeps its own niceness");
    run.signal(Signal::SIGKILL);
    assert_eq!(run.wait().exit, Exit::by(Signal::SIGKILL));
}

/// S40: where the kernel schedules sessions as groups, a nice value counts within a session only.
#[test]
fn the_session_of_the_guard_is_raised_and_that_of_the_command_is_not() {
    let place = Place::new();
    let mut run = place.run().probe(["ignore-term"]).spawn();
    run.await_ready();
    let group = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/autogroup")).unwrap_or_default();
    if std::fs::exists("/proc/sys/kernel/sched_autogroup_enabled").unwrap() {
        let guard = run.guard();
        until(SOON, "a session that is raised", || group(guard).ends_with(" nice -20\n"));
        // Not `nice 0`: a process whose session the kernel has started, as init, is in no such group.
        let of_this_test = group(std::process::id() as i32);
        for pid in [run.pid(), run.command()] {
            assert_eq!(group(pid), of_this_test);
        }
    }
    run.signal(Signal::SIGKILL);
    assert_eq!(run.wait().exit, Exit::by(Signal::SIGKILL));
}

/// S47
#[test]
fn a_child_that_dlock_had_before_its_start_survives_the_loss_of_the_guard() {
    let store = Store::file();
    let inherited_lock = store.place.inherited_lock();
    let bystander = format!("sleep 2000 & echo $! >'{}'", store.place.arg("bystander"));
    let mut run = store
        .run()
        .probe(["--inherited-lock", inherited_lock.path(), "ignore-term"])
        .after_shell(&bystander)
        .spawn();
    run.await_ready();
    let bystander: i32 = store.place.read("bystander").trim().parse().unwrap();
    let guard = eventually(SOON, "the guard", || {
        process::children(run.pid()).into_iter().find(|child| child.comm == "lock-guard")
    });
    process::send(guard.pid, Signal::SIGKILL);
    store.await_death_under_lock(&inherited_lock);
    assert_eq!(run.wait().exit, Exit::Code(70), "{}", run.stderr());
    assert!(process::alive(bystander), "dlock killed a process that its command did not start");
    process::send(bystander, Signal::SIGKILL);
}

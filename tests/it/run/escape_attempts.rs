//! Unusual parents of dlock, and attempts of its command to escape: the tree is dead before the lease ends
//! nevertheless.

use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::inherited_lock::InheritedLock;
use crate::support::place::Place;
use crate::support::probe;
use crate::support::proxy::Proxy;
use crate::support::running::Exit;
use crate::support::store::Store;
use crate::support::wait::until;
use std::os::unix::fs::PermissionsExt;

/// A lease that lasts long enough for a dlock and a command that start slowly on a busy machine.
const LEASE: &str = "6s";

/// Runs a shell script with an inherited lock, in a dlock prepared in this way. Then the store becomes silent.
#[track_caller]
fn behind_a_silent_store(text: &str, prepare: impl FnOnce(Dlock) -> Dlock) {
    with_lease(LEASE, text, prepare);
}

#[track_caller]
fn with_lease(ttl: &str, text: &str, prepare: impl FnOnce(Dlock) -> Dlock) {
    let store = Store::redis();
    let proxy = Proxy::to(store.space().port());
    open_to_all(&store.place);
    let inherited_lock = store.place.inherited_lock();
    let text = format!(
        "exec 9<>'{}' && '{}' hold-inherited-lock 9 && echo ready\n{text}",
        inherited_lock.path(),
        probe::path().display()
    );
    let mut run =
        prepare(store.behind(proxy.port()).run_with_ttl(ttl).command(["bash", "-c", &text])).spawn();
    run.await_ready();
    proxy.hold_both();
    store.await_death_under_lock(&inherited_lock);
    assert_eq!(run.wait().exit, Exit::Code(76), "{}", run.stderr());
    until(SOON, "the end of every process", || store.place.marker().bearers().is_empty());
}

/// Other users need access.
fn open_to_all(place: &Place) {
    assert!(InheritedLock::at(place.path("inherited_lock")).is_free(), "it exists now");
    for (name, mode) in [(".", 0o777), ("home", 0o777), ("inherited_lock", 0o666)] {
        std::fs::set_permissions(place.path(name), std::fs::Permissions::from_mode(mode)).unwrap();
    }
}

/// A process in a separate session without a parent, one in the background, and the command itself.
const TREE: &str = "(setsid sleep 1000 & ) ; sleep 1000 & exec sleep 1000";

macro_rules! in_time {
    ($($name:ident: $wrapper:expr;)+) => {
        mod a_tree_dies_in_time {
            $( #[test] fn $name() { super::behind_a_silent_store(super::TREE, |run| run.wrapped_by($wrapper)); } )+
        }
    };
}

in_time! {
    in_a_time_namespace: ["unshare", "-T", "--boottime", "100000", "--fork"];
    in_a_time_namespace_that_dlock_itself_enters: ["unshare", "-T", "--boottime", "100000"];
    in_a_user_namespace_without_a_mapping: ["unshare", "--user"];
    in_a_user_and_a_pid_namespace: ["unshare", "-Urpf", "--mount-proc"];
    in_a_cgroup_namespace: ["unshare", "-C"];
    with_a_proc_of_processes_alone:
        ["unshare", "-m", "sh", "-c", "mount -t proc -o subset=pid proc /proc && exec \"$@\"", "sh"];
    without_sys: ["unshare", "-m", "sh", "-c", "mount -t tmpfs none /sys && exec \"$@\"", "sh"];
    of_a_parent_whose_death_kills: ["setpriv", "--pdeathsig", "KILL"];
    without_queued_signals: ["prlimit", "--sigpending=0"];
    without_another_descriptor: ["prlimit", "--nofile=20"];
    of_a_user_without_capabilities:
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"];
}

/// It may get little processor time before the command runs, which has to be in the first half of the lease.
#[test]
fn a_tree_of_a_dlock_that_only_runs_when_nothing_else_does_dies_in_time() {
    with_lease("10s", TREE, |run| run.wrapped_by(["chrt", "--idle", "0"]));
}

mod a_command_does_not_escape {
    use super::behind_a_silent_store;

    #[test]
    fn by_demoting_its_guard() {
        let hogs = "for hog in 1 2 3 4; do (while :; do :; done) & done";
        let text =
            format!("chrt --idle -p 0 $PPID; renice -n 19 -p $PPID >/dev/null\n{hogs}; {}", super::TREE);
        behind_a_silent_store(&text, |run| run);
    }

    /// `clone(2)` with `CLONE_PARENT`: the guard gets a child that the command has made.
    #[test]
    fn by_making_siblings() {
        let siblings = "import ctypes, os, time
clone, CLONE_PARENT, SIGCHLD = 56 if os.uname().machine == 'x86_64' else 220, 0x8000, 17
for _ in range(3):
    if ctypes.CDLL(None).syscall(clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0) == 0:
        os.setsid()
        time.sleep(1000)
time.sleep(1000)";
        behind_a_silent_store(&format!("exec python3 -c \"{siblings}\""), |run| run);
    }

    /// `clone(2)` without a signal for the parent: `wait(2)` does not report such children by default.
    #[test]
    fn by_children_that_send_no_signal() {
        let children = "import ctypes, os, time
clone = 56 if os.uname().machine == 'x86_64' else 220
for _ in range(3):
    if ctypes.CDLL(None).syscall(clone, 0, 0, 0, 0, 0) == 0:
        os.setsid()
        time.sleep(1000)
os.kill(os.getpid(), 9)";
        behind_a_silent_store(&format!("python3 -c \"{children}\"\n{}", super::TREE), |run| run);
    }

    #[test]
    fn by_being_a_subreaper_itself() {
        let subreaper = "import ctypes, os, time
ctypes.CDLL(None).prctl(36, 1)
if os.fork() == 0:
    os.setsid()
    os.fork()
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(0)
time.sleep(1000)";
        behind_a_silent_store(&format!("exec python3 -c \"{subreaper}\""), |run| run);
    }
}

/// The command changes the limits of its guard: it dies or continues, and the tree does not outlive the lease.
#[test]
fn a_command_that_removes_the_limits_of_its_guard_is_dead_in_time() {
    let store = Store::redis();
    let proxy = Proxy::to(store.space().port());
    let inherited_lock = store.place.inherited_lock();
    let text = format!(
        "exec 9<>'{}' && '{}' hold-inherited-lock 9 && prlimit --pid $PPID --cpu=0:0 --nofile=0:0 --as=1:1 --nproc=0:0\necho ready\n{TREE}",
        inherited_lock.path(),
        probe::path().display()
    );
    let mut run = store.behind(proxy.port()).run_with_ttl(LEASE).command(["bash", "-c", &text]).spawn();
    until(SOON, "a changed limit", || run.poll().is_some() || run.stdout().contains("ready"));
    proxy.hold_both();
    store.await_death_under_lock(&inherited_lock);
    let output = run.wait();
    assert!(matches!(output.exit, Exit::Code(70 | 76)), "{output:?}");
}

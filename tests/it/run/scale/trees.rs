//! Large trees of processes that ignore every signal, and a store that falls silent just after a renewal: the last
//! process is dead before the lease ends.

use crate::run::lost_trees::after_a_theft;
use crate::support::SOON;
use crate::support::inherited_lock::store_clock;
use crate::support::probe;
use crate::support::redis::{Redis, await_renewal};
use crate::support::resp::Value;
use crate::support::running::Exit;
use crate::support::store::Store;
use std::os::unix::fs::PermissionsExt;

/// The lease of [`Store::run`], in microseconds.
const TTL: i64 = 3_000_000;

/// How dlock is run.
#[derive(Clone, Copy, Debug)]
enum As {
    /// As root, with a separate cgroup for the command.
    Root,
    /// As root, where no cgroup can be found.
    RootWithoutCgroups,
    /// As a user without any right.
    User,
}

/// Runs the probe in this mode under a lease of 3 s, and asserts that no process is alive when the lease ends by the
/// clock of the store.
#[track_caller]
fn dies_in_time(how: As, mode: &[&str]) {
    let redis = Redis::start();
    let store = Store::on(&redis);
    let inherited_lock = store.place.inherited_lock();
    inherited_lock.is_free();
    let mut command = vec![probe::path().into_os_string().into_string().unwrap()];
    command
        .extend(["--inherited-lock", inherited_lock.path()].iter().chain(mode).map(|arg| (*arg).to_owned()));
    let run = store.run().command(command);
    let run = match how {
        As::Root => run,
        As::RootWithoutCgroups => run.without_cgroups(),
        As::User => {
            open_to_all(store.place.path("."));
            open_to_all(inherited_lock.path());
            run.wrapped_by(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"])
        }
    };
    let mut run = run.spawn();
    run.await_stdout_within(4 * SOON, "ready\n");
    let key = store.space().key("x");
    let ask = |what: &str| match store.space().command(&[what, &key]) {
        Value::Int(number) => number,
        other => panic!("{what}: {other:?}"),
    };
    let end = loop {
        await_renewal(|| ask("PTTL"));
        let end = 1000 * ask("PEXPIRETIME");
        redis.stop();
        // The next renewal is due a third of a lease after the last: it has not moved the end.
        if store_clock() < end - 2 * TTL / 3 {
            break end;
        }
        redis.resume();
    };
    let death = inherited_lock.await_last_death();
    redis.resume();
    println!("{how:?} {mode:?}: {} ms before the end of the lease", (end - death) / 1000);
    assert!(death <= end, "{how:?}: {} us after the end of the lease: {}", death - end, run.stderr());
    assert_eq!(run.wait_within(4 * SOON).exit, Exit::Code(76), "{}", run.stderr());
}

fn open_to_all(path: impl AsRef<std::path::Path>) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).expect("a place that everybody may use");
}

macro_rules! each_tree {
    ($($name:ident: $mode:expr;)+) => { $(
        mod $name {
            #[test]
            fn dies_in_time() {
                super::dies_in_time(super::As::Root, &$mode);
            }

            #[test]
            fn dies_in_time_without_cgroups() {
                super::dies_in_time(super::As::RootWithoutCgroups, &$mode);
            }

            #[test]
            fn dies_in_time_without_any_right() {
                super::dies_in_time(super::As::User, &$mode);
            }
        }
    )+ };
}

// S38, S39, S40
each_tree! {
    two_thousand_sessions: ["sessions", "2000"];
    two_thousand_in_one_group: ["many", "2000"];
    twenty_processes_of_five_hundred_threads: ["threads", "20", "500"];
    sixty_escaping_branches: ["runaway", "60"];
}

/// S23
#[test]
fn two_thousand_processes_die_after_a_theft() {
    after_a_theft(&["many", "2000"]);
}

/// S40: the guard is killed, and dlock does its work.
#[test]
fn sixty_escaping_branches_die_without_a_guard() {
    use crate::support::process;
    use nix::sys::signal::Signal;
    for hidden in [false, true] {
        let store = Store::redis();
        let inherited_lock = store.place.inherited_lock();
        let probe = probe::command(["--inherited-lock", inherited_lock.path(), "runaway", "60"]);
        // Redis has to share the CPUs with the tree as well: the lease is not what ends this run.
        let run = store.run_with_ttl("30s").command(probe);
        let mut run = if hidden { run.without_cgroups().spawn() } else { run.spawn() };
        run.await_ready();
        process::send(run.guard(), Signal::SIGKILL);
        store.await_death_under_lock(&inherited_lock);
        assert_eq!(run.wait().exit, Exit::Code(70), "{}", run.stderr());
        assert!(inherited_lock.is_free());
    }
}

//! dlock and its guard monitor each other: whichever is killed or stopped, the tree dies in time.

use crate::support::SOON;
use crate::support::inherited_lock::InheritedLock;
use crate::support::process;
use crate::support::running::{Exit, Running};
use crate::support::store::Store;
use crate::support::wait::{throughout, until};
use nix::sys::signal::Signal;
use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// The kind of command.
#[derive(Clone, Copy)]
enum Tree {
    /// One process.
    Plain,
    /// Four, three of them in separate sessions and orphaned by double forks.
    Scattered,
    /// Scattered, and some that fork and exit endlessly.
    Forking,
}

/// Whether dlock has a cgroup file system.
#[derive(Clone, Copy)]
enum Cgroups {
    Found,
    Hidden,
}

/// Starts a command that ignores every signal, with an inherited lock, and waits until it is complete.
fn start(store: &Store, inherited_lock: &InheritedLock, tree: Tree, cgroups: Cgroups) -> Running {
    // Longer than a dlock or a command needs to start on a busy machine: most of these tests wait until it ends.
    start_with_ttl("6s", store, inherited_lock, tree, cgroups)
}

fn start_with_ttl(
    ttl: &str,
    store: &Store,
    inherited_lock: &InheritedLock,
    tree: Tree,
    cgroups: Cgroups,
) -> Running {
    let run = store.run_with_ttl(ttl);
    let pids = store.place.arg("pids");
    let run = match tree {
        Tree::Plain => run.probe(["--inherited-lock", inherited_lock.path(), "ignore-term"]),
        Tree::Scattered => run.probe(["--inherited-lock", inherited_lock.path(), "tree", "3", &pids]),
        Tree::Forking => {
            run.probe(["--inherited-lock", inherited_lock.path(), "tree", "3", &pids, "fork-forever"])
        }
    };
    let mut run = match cgroups {
        Cgroups::Found => run.spawn(),
        Cgroups::Hidden => run.without_cgroups().spawn(),
    };
    run.await_ready();
    run
}

/// S16: dlock is killed.
fn killing_dlock(store: &Store, tree: Tree, cgroups: Cgroups) {
    let inherited_lock = store.place.inherited_lock();
    let mut run = start(store, &inherited_lock, tree, cgroups);
    let guard = run.guard();
    let mut next_holder = store.next_holder(&inherited_lock);
    run.signal(Signal::SIGKILL);
    store.await_death_under_lock(&inherited_lock);
    assert_eq!(run.wait().exit, Exit::by(Signal::SIGKILL));
    let next_holder = next_holder.wait();
    assert_eq!((next_holder.exit, next_holder.stdout.as_str()), (Exit::Code(0), "clean\n"));
    until(SOON, "the end of the guard", || !process::alive(guard));
    assert_eq!(store.place.marker().bearers().len(), 0);
    until(SOON, "the end of its cgroup", || process::cgroups_named_after(&[run.pid(), guard]).is_empty());
}

/// S18: dlock is stopped past its lease.
fn stopping_dlock(store: &Store, tree: Tree, cgroups: Cgroups) {
    let inherited_lock = store.place.inherited_lock();
    let mut run = start(store, &inherited_lock, tree, cgroups);
    let halves = [run.pid(), run.guard()];
    run.signal(Signal::SIGSTOP);
    store.await_death_under_lock(&inherited_lock);
    run.assert_running();
    run.signal(Signal::SIGCONT);
    let output = run.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(76), "ready\n"));
    assert!(output.stderr.starts_with("dlock: "), "{}", output.stderr);
    assert_eq!(store.place.marker().bearers().len(), 0);
    until(SOON, "the end of its cgroup", || process::cgroups_named_after(&halves).is_empty());
}

/// S19: the guard is killed.
fn killing_the_guard(store: &Store, tree: Tree, cgroups: Cgroups) {
    without_the_guard(store, tree, cgroups, Signal::SIGKILL);
}

/// S19: the guard is stopped.
fn stopping_the_guard(store: &Store, tree: Tree, cgroups: Cgroups) {
    without_the_guard(store, tree, cgroups, Signal::SIGSTOP);
}

fn without_the_guard(store: &Store, tree: Tree, cgroups: Cgroups, signal: Signal) {
    let inherited_lock = store.place.inherited_lock();
    // On a busy machine, dlock may need longer than a shorter lease lasts.
    let mut run = start_with_ttl("15s", store, &inherited_lock, tree, cgroups);
    let halves = [run.pid(), run.guard()];
    let mut next_holder = store.next_holder(&inherited_lock);
    process::send(halves[1], signal);
    store.await_death_under_lock(&inherited_lock);
    let output = run.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(70), "ready\n"), "{}", output.stderr);
    assert!(output.stderr.starts_with("dlock: "), "{}", output.stderr);
    let next_holder = next_holder.wait();
    assert_eq!((next_holder.exit, next_holder.stdout.as_str()), (Exit::Code(0), "clean\n"));
    assert_eq!(store.place.marker().bearers().len(), 0, "the guard is left");
    until(SOON, "the end of its cgroup", || process::cgroups_named_after(&halves).is_empty());
}

/// S20: dlock and its guard are killed at the same time, and nothing is left that would remove their cgroup. Another run
/// does, when its own command has ended; not that of a run that is alive.
#[test]
fn a_cgroup_left_behind_is_removed_by_another_run() {
    let store = Store::file();
    let inherited_lock = store.place.inherited_lock();
    let live = start(&store, &inherited_lock, Tree::Plain, Cgroups::Found);
    let mut killed = store.place.run().name("other").probe(["ignore-term"]).spawn();
    killed.await_ready();
    let (halves, command) = ([killed.pid(), killed.guard()], killed.command());
    let left = process::cgroups_named_after(&halves);
    let used = process::cgroups_named_after(&[live.pid(), live.guard()]);
    assert_eq!(left.len(), used.len(), "each run has a cgroup where the host allows one");
    for signal in [Signal::SIGSTOP, Signal::SIGKILL] {
        halves.iter().for_each(|half| process::send(*half, signal));
    }
    killed.wait();
    until(SOON, "the death of its command", || !process::alive(command));
    // A recent one is not removed: its dlock may be about to fork into it.
    let long_ago = SystemTime::now() - Duration::from_secs(60);
    let age = |cgroup: &PathBuf| File::open(cgroup).and_then(|cgroup| cgroup.set_modified(long_ago));
    used.iter().for_each(|cgroup| age(cgroup).expect("a cgroup of this test"));
    // A run of another test may have removed it meanwhile.
    left.iter().for_each(|cgroup| drop(age(cgroup)));
    // Its guard removes others only if it saw the command run, which it may notice late.
    let run = store.place.run().name("third").command(["sleep", "2"]).output();
    assert_eq!(run.outcome(), (Exit::Code(0), "", ""));
    assert_eq!(process::cgroups_named_after(&halves), Vec::<PathBuf>::new());
    assert_eq!(process::cgroups_named_after(&[live.pid(), live.guard()]), used);
}

/// One test for each kind of tree, with and without cgroups, on one store.
macro_rules! on_every_tree {
    ($store:expr, $($claim:ident),+) => { $(
        mod $claim {
            use super::super::{Cgroups::*, Tree::*};
            use crate::support::store::Store;

            #[test]
            fn leaves_no_process_of_a_plain_tree() {
                super::super::$claim(&$store, Plain, Found);
            }

            #[test]
            fn leaves_no_process_of_a_plain_tree_without_cgroups() {
                super::super::$claim(&$store, Plain, Hidden);
            }

            #[test]
            fn leaves_no_process_of_a_scattered_tree() {
                super::super::$claim(&$store, Scattered, Found);
            }

            #[test]
            fn leaves_no_process_of_a_scattered_tree_without_cgroups() {
                super::super::$claim(&$store, Scattered, Hidden);
            }

            #[test]
            fn leaves_no_process_of_a_forking_tree() {
                super::super::$claim(&$store, Forking, Found);
            }

            #[test]
            fn leaves_no_process_of_a_forking_tree_without_cgroups() {
                super::super::$claim(&$store, Forking, Hidden);
            }
        }
    )+ };
}

mod on_files {
    on_every_tree!(Store::file(), killing_dlock, killing_the_guard, stopping_the_guard);
}

mod on_redis {
    on_every_tree!(Store::redis(), killing_dlock, stopping_dlock, killing_the_guard, stopping_the_guard);
}

/// S18
#[test]
fn stopping_the_process_group_of_dlock_leaves_no_process_past_the_lease() {
    let store = Store::redis();
    let inherited_lock = store.place.inherited_lock();
    let mut run = start(&store, &inherited_lock, Tree::Scattered, Cgroups::Found);
    process::send(-run.pid(), Signal::SIGSTOP);
    store.await_death_under_lock(&inherited_lock);
    process::send(-run.pid(), Signal::SIGCONT);
    assert_eq!(run.wait().exit, Exit::Code(76));
}

/// S18
#[test]
fn a_dlock_stopped_for_less_than_its_lease_continues() {
    let store = Store::redis();
    let inherited_lock = store.place.inherited_lock();
    let go = store.place.arg("go");
    let log = store.place.arg("log");
    let mut run = store
        .run_with_ttl("30s")
        .probe(["--inherited-lock", inherited_lock.path(), "hold", &log, "until", &go, "exit", "5"])
        .spawn();
    run.await_ready();
    for _ in 0..3 {
        run.signal(Signal::SIGSTOP);
        until(SOON, "a stopped dlock", || process::stopped(run.pid()));
        run.signal(Signal::SIGCONT);
        throughout(Duration::from_millis(300), "its command lives", || !inherited_lock.is_free());
    }
    store.place.write("go", "");
    assert_eq!(run.wait().outcome(), (Exit::Code(5), "ready\n", ""));
}

/// S18
#[test]
fn a_stopped_dlock_keeps_a_lock_that_has_no_lease() {
    let store = Store::file();
    let inherited_lock = store.place.inherited_lock();
    let mut run = start(&store, &inherited_lock, Tree::Plain, Cgroups::Found);
    run.signal(Signal::SIGSTOP);
    throughout(Duration::from_secs(5), "the lock is held and the command lives", || {
        store.is_held() && !inherited_lock.is_free()
    });
    run.signal(Signal::SIGCONT);
    throughout(Duration::from_secs(1), "the lock is held and the command lives", || {
        run.poll().is_none() && store.is_held() && !inherited_lock.is_free()
    });
}

/// S16
#[test]
fn pkill_by_name_does_not_reach_the_guard() {
    let store = Store::file();
    let inherited_lock = store.place.inherited_lock();
    let run = start(&store, &inherited_lock, Tree::Plain, Cgroups::Found);
    let guard = process::Stat::of(run.guard()).unwrap();
    assert!(!guard.comm.contains("dlock"), "{}", guard.comm);
    assert!(!process::command_line(guard.pid).contains("dlock"), "{}", process::command_line(guard.pid));
}

/// S16
#[test]
fn signals_to_the_group_and_session_of_dlock_do_not_reach_the_guard() {
    let store = Store::file();
    let inherited_lock = store.place.inherited_lock();
    let run = start(&store, &inherited_lock, Tree::Plain, Cgroups::Found);
    let (dlock, guard) = (process::Stat::of(run.pid()).unwrap(), process::Stat::of(run.guard()).unwrap());
    assert_ne!(guard.pgrp, dlock.pgrp);
    assert_ne!(guard.session, dlock.session);
    // The whole group at once, and the command with it: the guard kills the scattered processes, and ends.
    process::send(-run.pid(), Signal::SIGKILL);
    inherited_lock.await_free();
    until(SOON, "the end of the guard", || !process::alive(guard.pid));
}

/// S19
#[test]
fn fatal_signals_do_not_end_the_guard() {
    let store = Store::file();
    let inherited_lock = store.place.inherited_lock();
    let mut run = start(&store, &inherited_lock, Tree::Plain, Cgroups::Found);
    let guard = run.guard();
    for signal in
        [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGALRM]
    {
        process::send(guard, signal);
    }
    throughout(Duration::from_secs(1), "both halves and the command live", || {
        run.poll().is_none() && process::alive(guard) && !inherited_lock.is_free()
    });
}

/// S16
#[test]
fn children_that_dlock_inherited_are_not_part_of_the_tree() {
    // The shell's background job becomes dlock's child when the shell execs dlock.
    let store = Store::file();
    let run = store.run().args(["--orphans", "kill"]).sh("sleep 1000 & exit 3");
    let bystander = format!("sleep 2000 & echo $! >'{}'", store.place.arg("bystander"));
    let output = run.after_shell(&bystander).output();
    assert_eq!(output.outcome(), (Exit::Code(3), "", ""));
    let bystander: i32 = store.place.read("bystander").trim().parse().unwrap();
    assert!(process::alive(bystander), "dlock killed a process that its command did not start");
    process::send(bystander, Signal::SIGKILL);
}

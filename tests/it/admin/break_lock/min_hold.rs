//! A lock that is kept although its command has ended.

use super::{assert_broken, assert_ended, breaking, working};
use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::running::{Exit, Running};
use crate::support::store::Store;
use crate::support::wait::until;
use nix::sys::signal::Signal;

fn long(store: &Store) -> Dlock {
    store.run_with_ttl("30s").args(["--min-hold", "1h"])
}

/// A run whose command has ended and whose lock is kept.
#[track_caller]
fn kept(store: &Store, text: &str) -> Running {
    let run = long(store).sh(text).spawn();
    let shown = || store.place.bare().args(["status", "-b", store.url(), "--json"]).name("x").output().stdout;
    until(SOON, "the end of its command", || shown().contains("\"phase\":\"min_hold\""));
    run
}

/// There is no command to stop: the run ends as its command did.
#[test]
fn a_lock_kept_by_min_hold_is_freed_at_once() {
    for (text, status) in [("exit 0", 0), ("exit 3", 3)] {
        for store in Store::each() {
            let mut run = kept(&store, text);
            assert_ended(&breaking(&store).output());
            assert!(!store.is_held());
            assert_eq!(run.wait().outcome(), (Exit::Code(status), "", ""));
            assert_eq!(store.run_with_ttl("30s").command(["true"]).output().exit, Exit::Code(0));
        }
    }
}

#[test]
fn a_waiter_for_a_lock_kept_by_min_hold_is_granted_it() {
    for store in Store::each() {
        let mut run = kept(&store, "exit 0");
        let mut waiter = store.run_with_ttl("30s").args(["-v", "--wait", "forever"]).sh("echo ran").spawn();
        waiter.await_stderr("waiting");
        assert_ended(&breaking(&store).output());
        let output = waiter.wait();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"));
        assert_eq!(run.wait().exit, Exit::Code(0));
    }
}

/// On a file only a record is left then, without a process.
#[test]
fn a_waiter_is_granted_the_lock_although_its_former_holder_is_gone() {
    let store = Store::file();
    let mut run = kept(&store, "exit 0");
    let mut waiter = store.run_with_ttl("30s").args(["-v", "--wait", "forever"]).sh("echo ran").spawn();
    waiter.await_stderr("waiting");
    run.signal(Signal::SIGTERM);
    assert_eq!(run.wait().exit, Exit::Code(0));
    assert_eq!(store.run_with_ttl("30s").command(["true"]).output().exit, Exit::Code(75));
    assert_ended(&breaking(&store).output());
    let output = waiter.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"));
}

/// A request to break the lock overrides the option that keeps it.
#[test]
fn a_broken_run_does_not_apply_min_hold() {
    for store in Store::each() {
        let mut run = working(long(&store));
        assert_ended(&breaking(&store).output());
        assert_broken(&store, "x", &mut run);
        assert_eq!(store.run_with_ttl("30s").sh("echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""));
    }
}

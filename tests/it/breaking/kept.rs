//! A lock that is kept though its command has ended.

use super::{assert_broken, assert_ended, breaking, working};
use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::running::{Exit, Running};
use crate::support::store::Store;
use crate::support::wait::until;
use nix::sys::signal::Signal;

fn long(store: &Store) -> Dlock {
    store.run().args(["--min-hold", "1h"])
}

/// A run whose command has ended and whose lock is kept.
#[track_caller]
fn kept(store: &Store, text: &str) -> Running {
    let run = long(store).sh(text).spawn();
    let shown = || store.place.bare().args(["status", "-b", store.url(), "--json"]).name("x").output().stdout;
    until(SOON, "the end of its command", || shown().contains("\"phase\":\"min_hold\""));
    run
}

/// Nothing is there that had to be stopped: the run ends as its command did.
#[test]
fn what_is_kept_by_min_hold_is_freed_at_once() {
    for (text, status) in [("exit 0", 0), ("exit 3", 3)] {
        for store in Store::each() {
            let mut run = kept(&store, text);
            assert_ended(&breaking(&store).output());
            assert!(!store.is_held());
            assert_eq!(run.wait().outcome(), (Exit::Code(status), "", ""));
            assert_eq!(store.run().command(["true"]).output().exit, Exit::Code(0));
        }
    }
}

#[test]
fn who_waits_for_it_goes_on() {
    for store in Store::each() {
        let mut run = kept(&store, "exit 0");
        let mut waiter = store.run().args(["-v", "--wait", "forever"]).sh("echo ran").spawn();
        waiter.await_stderr("waiting");
        assert_ended(&breaking(&store).output());
        let output = waiter.wait();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"));
        assert_eq!(run.wait().exit, Exit::Code(0));
    }
}

/// On a file only a note is left then, which nobody stands behind.
#[test]
fn who_waits_for_it_goes_on_though_nobody_is_there_any_more() {
    let store = Store::file();
    let mut run = kept(&store, "exit 0");
    let mut waiter = store.run().args(["-v", "--wait", "forever"]).sh("echo ran").spawn();
    waiter.await_stderr("waiting");
    run.signal(Signal::SIGTERM);
    assert_eq!(run.wait().exit, Exit::Code(0));
    assert_eq!(store.run().command(["true"]).output().exit, Exit::Code(75));
    assert_ended(&breaking(&store).output());
    let output = waiter.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"));
}

/// Whoever breaks the lock wants it to be free, not to be kept by another option.
#[test]
fn a_run_that_is_broken_keeps_nothing() {
    for store in Store::each() {
        let mut run = working(long(&store));
        assert_ended(&breaking(&store).output());
        assert_broken(&store, "x", &mut run);
        assert_eq!(store.run().sh("echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""));
    }
}

//! A holder that is stopped, or on another host.

use super::{assert_broken, assert_ended, breaking};
use super::{pretend_other_host, stubborn, working};
use crate::acquire::queue::fixture::go_on;
use crate::acquire::queue::fixture::stop;
use crate::support::SOON;
use crate::support::process;
use crate::support::running::Exit;
use crate::support::store::Store;
use crate::support::wait::until;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// Stopped by Ctrl-Z.
#[test]
fn a_command_that_is_stopped_is_stopped_for_good() {
    for store in Store::each() {
        let inherited_lock = store.place.inherited_lock();
        let run = store.run_with_ttl("30s").args(["--grace", "600ms"]);
        let mut run = run.probe(["--inherited-lock", inherited_lock.path(), "signals"]).spawn();
        run.await_ready();
        let command = run.command();
        killpg(Pid::from_raw(command), Signal::SIGSTOP).unwrap();
        until(SOON, "a stopped command", || process::stopped(command));
        assert_ended(&breaking(&store).output());
        assert!(inherited_lock.is_free());
        assert_broken(&store, "x", &mut run);
    }
}

/// The break continues the holder so that it can release the lock.
#[test]
fn a_stopped_dlock_releases_the_lock() {
    for store in Store::each() {
        let inherited_lock = store.place.inherited_lock();
        // Long enough for the guard to do nothing about it.
        let run = store.run_with_ttl("10m");
        let mut run = run.probe(["--inherited-lock", inherited_lock.path(), "signals"]).spawn();
        run.await_ready();
        stop(&run);
        assert_ended(&breaking(&store).output());
        assert!(inherited_lock.is_free());
        assert_broken(&store, "x", &mut run);
    }
}

/// A dlock that is not continued: its guard ends the command in time, and the hold then ends with its lease.
#[test]
fn a_stopped_dlock_on_another_host_loses_the_lock_when_its_command_is_dead() {
    let store = Store::redis();
    let inherited_lock = store.place.inherited_lock();
    // Long enough for the first break to come before its end.
    let mut run = stubborn(store.run_with_ttl("8s"), &inherited_lock);
    let mut next_holder = store.next_holder(&inherited_lock);
    pretend_other_host(&store);
    stop(&run);
    let output = breaking(&store).args(["--wait", "0"]).output();
    assert_eq!(output.exit, Exit::Code(75), "{output:?}");
    assert_ended(&breaking(&store).output());
    assert!(inherited_lock.is_free(), "the lease is over, and the command lives");
    let next_holder = next_holder.wait();
    assert_eq!(
        (next_holder.exit, next_holder.stdout.as_str()),
        (Exit::Code(0), "clean\n"),
        "{}",
        next_holder.stderr
    );
    go_on(&run);
    assert_eq!(run.wait().exit, Exit::Code(76));
}

/// The server notifies it: its next renewal would be in twenty minutes.
#[test]
fn a_dlock_on_another_host_is_notified_by_the_store() {
    let store = Store::redis();
    let mut run = working(store.run_with_ttl("1h"));
    pretend_other_host(&store);
    assert_ended(&breaking(&store).output());
    assert_broken(&store, "x", &mut run);
}

#[test]
fn without_pushes_the_break_is_seen_at_the_next_renewal() {
    let store = Store::redis();
    let old = format!("{}&protocol=resp2", store.url());
    let mut run = working(store.place.run().backend(&old).args(["--ttl", "9s"]));
    pretend_other_host(&store);
    let breaks = store.place.bare().args(["break", "--yes", "-b", &old]).name("x").output();
    assert_ended(&breaks);
    assert_eq!(run.wait().exit, Exit::Code(76));
}

/// A lease whose expiry was removed is alive as well, and must not be removed before its command is dead.
#[test]
fn a_lock_whose_expiry_was_removed_is_kept_until_the_command_is_dead() {
    let store = Store::redis();
    let inherited_lock = store.place.inherited_lock();
    // It is not notified, so that it restores nothing before its next renewal.
    let old = format!("{}&protocol=resp2", store.url());
    let run = store.place.run().backend(&old).args(["--ttl", "9s", "--grace", "300ms"]);
    let mut run = stubborn(run, &inherited_lock);
    pretend_other_host(&store);
    let space = store.space();
    assert_eq!(space.command(&["PERSIST", &space.key("x")]).int(), 1);
    let mut breaks = breaking(&store).args(["--wait", "30s"]).spawn();
    store.await_death_under_lock(&inherited_lock);
    assert_ended(&breaks.wait());
    let output = run.wait();
    assert!(output.exit == Exit::Code(76) && output.stderr.contains("was broken by "), "{output:?}");
}

//! A holder that does nothing at the moment, or is far away.

use super::{assert_broken, assert_ended, breaking};
#[cfg(feature = "redis")]
use super::{move_to_another_host, stubborn, working};
use crate::support::SOON;
use crate::support::process;
#[cfg(feature = "redis")]
use crate::support::running::Exit;
use crate::support::store::Store;
use crate::support::wait::until;
#[cfg(feature = "redis")]
use crate::waiting::scene::go_on;
use crate::waiting::scene::stop;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// As Ctrl-Z stops it.
#[test]
fn a_command_that_is_stopped_is_stopped_for_good() {
    for store in Store::each() {
        let leash = store.place.leash();
        let mut run = store.run().probe(["--leash", leash.path(), "signals"]).spawn();
        run.await_ready();
        let command = run.command();
        killpg(Pid::from_raw(command), Signal::SIGSTOP).unwrap();
        until(SOON, "a stopped command", || process::stopped(command));
        assert_ended(&breaking(&store).output());
        assert!(leash.is_free());
        assert_broken(&store, "x", &mut run);
    }
}

/// Whoever breaks the lock lets it go on to give it up.
#[test]
fn a_dlock_that_is_stopped_gives_it_up_as_well() {
    for store in Store::each() {
        let leash = store.place.leash();
        // Long enough for the guarding half to do nothing about it.
        let run = store.run_with_ttl("10m");
        let mut run = run.probe(["--leash", leash.path(), "signals"]).spawn();
        run.await_ready();
        stop(&run);
        assert_ended(&breaking(&store).output());
        assert!(leash.is_free());
        assert_broken(&store, "x", &mut run);
    }
}

/// A dlock that does not go on: its other half ends the command in time, and the lease then ends the hold.
#[cfg(feature = "redis")]
#[test]
fn a_dlock_that_is_stopped_elsewhere_loses_it_when_its_command_is_dead() {
    let store = Store::redis();
    let leash = store.place.leash();
    let mut run = stubborn(store.run(), &leash);
    let mut heir = store.heir(&leash);
    move_to_another_host(&store);
    stop(&run);
    let output = breaking(&store).args(["--wait", "0"]).output();
    assert_eq!(output.exit, Exit::Code(75), "{output:?}");
    assert_ended(&breaking(&store).output());
    assert!(leash.is_free(), "the lease is over, and the command lives");
    let heir = heir.wait();
    assert_eq!((heir.exit, heir.stdout.as_str()), (Exit::Code(0), "clean\n"), "{}", heir.stderr);
    go_on(&run);
    assert_eq!(run.wait().exit, Exit::Code(76));
}

/// The server tells it: its next renewal would be in twenty minutes.
#[cfg(feature = "redis")]
#[test]
fn a_dlock_on_another_host_hears_of_it_from_the_store() {
    let store = Store::redis();
    let mut run = working(store.run_with_ttl("1h"));
    move_to_another_host(&store);
    assert_ended(&breaking(&store).output());
    assert_broken(&store, "x", &mut run);
}

#[cfg(feature = "redis")]
#[test]
fn where_the_store_tells_nothing_it_is_seen_at_the_next_renewal() {
    let store = Store::redis();
    let old = format!("{}&protocol=resp2", store.url());
    let mut run = working(store.place.run().backend(&old).args(["--ttl", "3s"]));
    move_to_another_host(&store);
    let breaks = store.place.bare().arg("break").args(["-b", &old]).name("x").output();
    assert_ended(&breaks);
    assert_eq!(run.wait().exit, Exit::Code(76));
}

/// One with a lease that somebody has made immortal lives as well, and must not lose it before its command is dead.
#[cfg(feature = "redis")]
#[test]
fn a_lock_whose_expiry_was_removed_is_kept_until_the_command_is_dead() {
    let store = Store::redis();
    let leash = store.place.leash();
    // Nobody tells it anything, so that it puts nothing back before its next renewal.
    let old = format!("{}&protocol=resp2", store.url());
    let run = store.place.run().backend(&old).args(["--ttl", "3s", "--grace", "300ms"]);
    let mut run = stubborn(run, &leash);
    move_to_another_host(&store);
    let space = store.space();
    assert_eq!(space.command(&["PERSIST", &space.key("x")]).int(), 1);
    let mut breaks = breaking(&store).spawn();
    store.await_death_under_lock(&leash);
    assert_ended(&breaks.wait());
    let output = run.wait();
    assert!(output.exit == Exit::Code(76) && output.stderr.contains("was broken by "), "{output:?}");
}

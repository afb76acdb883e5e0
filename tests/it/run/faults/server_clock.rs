//! The wall clock of the Redis server, which determines its leases.

use super::fixture::Fixture;
use super::shim::{Clocks, HOUR};
use crate::support::place::Place;
use crate::support::redis::Redis;
use crate::support::running::Exit;
use crate::support::wait::until;
use crate::support::{SOON, process};
use nix::sys::signal::Signal;

/// A server whose clock the test sets.
fn server() -> (Clocks, Redis, Place) {
    let place = Place::new();
    let clocks = Clocks::new(&place);
    let redis = Redis::start_preloaded(&clocks.variables());
    (clocks, redis, place)
}

/// F20
#[test]
fn a_server_clock_that_jumps_ahead_loses_the_lock_and_ends_the_command() {
    for push in [true, false] {
        let (clocks, redis, _place) = server();
        let fixture =
            if push { Fixture::on(&redis).ttl(600) } else { Fixture::on(&redis).ttl(6).without_push() };
        let mut run = fixture.witness();
        clocks.set_wall(HOUR);
        // The key has expired; the server deletes it at some later time, or when it is accessed.
        until(SOON, "an expired key", || !fixture.is_held());
        let output = run.wait();
        fixture.assert_reports_loss(&output);
        assert!(output.stderr.contains("it is gone from the store"), "{}", output.stderr);
        assert!(!fixture.is_held(), "the lock was made anew");
        fixture.assert_succession();
    }
}

/// F20
#[test]
fn a_server_clock_that_jumps_ahead_for_a_moment_only_is_noticed() {
    let (clocks, redis, _place) = server();
    let fixture = Fixture::on(&redis);
    let mut run = fixture.witness();
    clocks.set_wall(HOUR);
    until(SOON, "an expired key", || !fixture.is_held());
    clocks.set_wall(0);
    fixture.assert_reports_loss(&run.wait());
    // The counter, not the clock, makes the next token larger.
    fixture.assert_succession();
}

/// F21
#[test]
fn a_server_clock_that_jumps_back_makes_no_lock_immortal() {
    let (clocks, redis, _place) = server();
    let fixture = Fixture::on(&redis);
    let run = fixture.witness();
    redis.command(&["SET", "control", "1", "PX", "6000"]);
    clocks.set_wall(-HOUR);
    // The lock itself may have been renewed by then.
    let lives_too_long = || redis.command(&["PTTL", "control"]).int() > 6_000;
    until(SOON, "a key that lives too long", lives_too_long);
    fixture.await_renewals(2);
    assert!((1..=6_000).contains(&fixture.pttl()), "{}", fixture.pttl());
    fixture.assert_undisturbed(run);
}

/// F21: the next waiter hangs, and seems to have another hour to claim the lock.
#[test]
fn a_server_clock_that_jumps_back_keeps_no_dead_waiter_in_front() {
    let (clocks, redis, _place) = server();
    let fixture = Fixture::on(&redis).ttl(6);
    let mut holder = fixture.direct().sh("echo ready; exec sleep 600").spawn();
    holder.await_ready();
    let mut hung = fixture.direct().args(["-v", "--wait", "forever"]).sh("true").spawn();
    hung.await_stderr("; waiting at position 1\n");
    hung.signal(Signal::SIGSTOP);
    holder.signal(Signal::SIGTERM);
    holder.wait();
    clocks.set_wall(-HOUR);
    let next = fixture.direct().args(["--wait", "25s"]).sh("echo ran").output();
    assert_eq!((next.exit, next.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", next.stderr);
}

/// F21
#[test]
fn the_fencing_token_grows_over_a_server_clock_that_jumps_back() {
    let (clocks, redis, _place) = server();
    let fixture = Fixture::on(&redis);
    fixture.assert_succession();
    clocks.set_wall(-HOUR);
    fixture.assert_succession();
    clocks.set_wall(-2 * HOUR);
    fixture.assert_succession();
    assert_eq!(fixture.tokens().len(), 3);
}

/// F21
#[test]
fn a_waiter_for_a_lease_extended_by_a_clock_jump_is_notified_without_delay() {
    let (clocks, redis, _place) = server();
    let fixture = Fixture::on(&redis).ttl(600);
    let mut run = fixture.ticker();
    run.signal(Signal::SIGKILL);
    run.wait();
    fixture.inherited_lock.await_free();
    until(SOON, "the end of the guard", || {
        !fixture.place().marker().bearers().iter().any(process::Stat::is_alive)
    });
    clocks.set_wall(-HOUR);
    until(SOON, "a key that lives too long", || fixture.pttl() > 3_000_000);
    for option in [["--wait", "1s"], ["--wait", "0"]] {
        let output = fixture.direct().args(option).sh("echo ran").output();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(75), ""), "{}", output.stderr);
        assert!(output.stderr.contains("is held by"), "{}", output.stderr);
    }
    // It ends when the clock is right again, at the latest.
    clocks.set_wall(HOUR);
    fixture.assert_succession();
}

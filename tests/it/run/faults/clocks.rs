//! The clocks of dlock's own host.

use super::fixture::Fixture;
use super::shim::{Clocks, DAY, HOUR};
use super::timing::{nanoseconds, on_boot_clock};
use crate::support::SOON;
use crate::support::running::Exit;
use crate::support::wait::{side_by_side, until};
use std::time::{Duration, Instant};

/// F18
#[test]
fn a_wall_clock_that_jumps_during_a_run_has_no_effect() {
    let fixture = Fixture::new();
    let clocks = Clocks::new(fixture.place());
    let run = fixture.witness_of(clocks.of(fixture.run()));
    for seconds in [HOUR, -HOUR, DAY, -DAY, 1, 0] {
        let before = fixture.leases().len();
        clocks.set_wall(seconds);
        fixture.await_renewals(1);
        // Neither late nor early.
        assert!(fixture.leases().len() <= before + 3, "{:?}", fixture.proxy.flights());
    }
    fixture.assert_undisturbed(run);
}

/// F18
#[test]
fn a_wall_clock_that_is_wrong_from_the_start_has_no_effect() {
    let fixture = Fixture::new();
    let clocks = Clocks::new(fixture.place());
    for seconds in [HOUR, -HOUR, DAY, -DAY] {
        clocks.set_wall(seconds);
        let run = clocks.of(fixture.run());
        let output = fixture.recording(run, &["next-holder", fixture.inherited_lock.path()]).output();
        assert_eq!(output.outcome(), (Exit::Code(0), "clean\n", ""));
        assert!(!fixture.is_held());
    }
    fixture.assert_tokens_grow();
}

/// F18
#[test]
fn a_wall_clock_that_is_slewed_has_no_effect() {
    let fixture = Fixture::new();
    let clocks = Clocks::new(fixture.place());
    let run = fixture.witness_of(clocks.of(fixture.run()));
    let begun = Instant::now();
    // 500 millionths too fast, the limit of NTP, with a leap second in the middle.
    until(SOON, "more than a lease of slewing", || {
        let elapsed = begun.elapsed();
        let leap = if elapsed > Duration::from_secs(3) { 1_000_000_000 } else { 0 };
        clocks.set_wall_nanoseconds(i64::try_from(elapsed.as_nanos()).unwrap() / 2000 - leap);
        elapsed > Duration::from_secs(7)
    });
    fixture.assert_undisturbed(run);
}

/// F18
#[test]
fn a_wall_clock_that_jumps_does_not_move_the_deadline() {
    side_by_side([-DAY, DAY], |seconds| {
        let fixture = Fixture::new();
        let clocks = Clocks::new(fixture.place());
        let run = fixture.ticker_of(clocks.of(fixture.run()));
        let next_holder = fixture.next_holder();
        fixture.await_renewals(1);
        fixture.proxy.hold_both();
        clocks.set_wall(seconds);
        fixture.store.await_death_under_lock(&fixture.inherited_lock);
        fixture.assert_killed_in_time(run);
        fixture.assert_inherits(next_holder);
    });
}

/// F18
#[test]
fn a_wall_clock_jump_neither_ends_nor_extends_a_wait() {
    for seconds in [-DAY, DAY] {
        let fixture = Fixture::new();
        let mut holder = fixture.with_inherited_lock(fixture.direct(), &["ignore-term"]).spawn();
        holder.await_ready();
        let clocks = Clocks::new(fixture.place());
        let mut waiter = clocks.of(fixture.run().args(["-v", "--wait", "2s"])).sh("echo ran").spawn();
        waiter.await_stderr("waiting");
        clocks.set_wall(seconds);
        let output = waiter.wait();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(75), ""), "{}", output.stderr);
        assert!(output.elapsed >= Duration::from_secs(2), "{:?}", output.elapsed);
    }
}

/// F23
#[test]
fn a_set_wall_clock_triggers_an_immediate_renewal_and_stops_no_command() {
    // The only sign of a paused virtual machine: its host corrects the clock afterwards.
    let fixture = Fixture::new().ttl(600);
    let clocks = Clocks::new(fixture.place());
    let mut run = fixture.witness_of(clocks.of(fixture.run()));
    for _ in 0..3 {
        let before = fixture.leases().len();
        clocks.set_wall(HOUR);
        clocks.tell_that_it_was_set();
        until(Duration::from_secs(10), "an immediate renewal", || fixture.leases().len() > before);
        run.assert_running();
    }
    // At most two more requests.
    let asked = fixture.leases().len();
    fixture.assert_undisturbed(run);
    assert!(fixture.leases().len() <= asked + 2);
}

/// F23
#[test]
fn a_lock_lost_while_the_wall_clock_stood_still_is_noticed_when_the_clock_is_set() {
    let fixture = Fixture::new().ttl(600).without_push();
    let clocks = Clocks::new(fixture.place());
    let mut run = fixture.witness_of(clocks.of(fixture.run()));
    fixture.command(&["SET", &fixture.key(), "somebody else"]);
    clocks.set_wall(HOUR);
    clocks.tell_that_it_was_set();
    let output = run.wait_within(Duration::from_secs(10));
    fixture.assert_reports_loss(&output);
    assert_eq!(output.stdout, "ready\n");
}

/// F19: the deadline reserves a hundredth of the lease for a clock that is too slow. A lease of 10 s has
/// 100 ms of it, not counting the margin before the deadline.
#[test]
fn a_clock_one_percent_too_slow_ends_the_command_before_its_lease() {
    let fixture = Fixture::new().ttl(10);
    let clocks = Clocks::new(fixture.place());
    clocks.set_rate(-10_000);
    let mut run = fixture.ticker_of(clocks.of(fixture.run()));
    fixture.proxy.hold_both();
    fixture.store.await_death_under_lock(&fixture.inherited_lock);
    // The grant, unless the machine was so busy that the lease was renewed before.
    let last = fixture.last_replied();
    assert!(fixture.last_tick() <= on_boot_clock(last.at) + nanoseconds(fixture.ttl));
    fixture.assert_reports_loss(&run.wait());
}

/// F19
#[test]
fn a_clock_rate_error_of_one_percent_disturbs_no_command() {
    side_by_side([-10_000, 10_000], |millionths| {
        let fixture = Fixture::new();
        let clocks = Clocks::new(fixture.place());
        clocks.set_rate(millionths);
        let run = fixture.witness_of(clocks.of(fixture.run()));
        fixture.await_renewals(4);
        fixture.assert_undisturbed(run);
    });
}

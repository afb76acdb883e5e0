//! Replies that come late, twice, or out of order: none of them extends a lease.

use super::fixture::Fixture;
use crate::support::SOON;
use crate::support::proxy::Way;
use crate::support::wait::{side_by_side, until};
use std::time::Duration;

/// From a moment in the middle of the run on, each reply is late by this many hundredths of a lease.
#[track_caller]
fn late_replies_extend_no_lease(way: Way, hundredths: u64) {
    let fixture = Fixture::new();
    // A busy machine may take half of this lease to acquire it.
    let run = fixture.ticker_of(fixture.run().args(["--retry", "30s"]));
    let next_holder = fixture.next_holder();
    fixture.await_renewals(1);
    fixture.proxy.delay(way, Duration::from_millis(60 * hundredths));
    // Late renewals may keep the lock alive at the store, but never the command: it is killed in time, or
    // continues under a lease whose grant it received in time.
    fixture.store.await_death_under_lock(&fixture.inherited_lock);
    fixture.assert_killed_in_time(run);
    fixture.assert_inherits(next_holder);
}

/// F15
#[test]
fn replies_half_a_lease_late_extend_no_lease() {
    late_replies_extend_no_lease(Way::Down, 50);
}

/// F15
#[test]
fn replies_nearly_a_lease_late_extend_no_lease() {
    late_replies_extend_no_lease(Way::Down, 90);
}

/// F15
#[test]
fn replies_more_than_a_lease_late_extend_no_lease() {
    late_replies_extend_no_lease(Way::Down, 110);
}

/// F15
#[test]
fn renewals_that_arrive_late_extend_no_lease() {
    side_by_side([50, 90, 110], |hundredths| late_replies_extend_no_lease(Way::Up, hundredths));
}

/// F15
#[test]
fn slow_renewals_within_the_lease_keep_the_command_alive() {
    // An attempt may take a seventh of the lease.
    let fixture = Fixture::new().ttl(9);
    let run = fixture.witness();
    fixture.proxy.delay(Way::Up, Duration::from_millis(250));
    fixture.proxy.delay(Way::Down, Duration::from_millis(250));
    fixture.await_renewals(4);
    fixture.proxy.heal();
    fixture.assert_undisturbed(run);
}

/// F15
#[test]
fn the_lease_of_a_slow_renewal_counts_from_the_sending_of_its_request() {
    // Later than the margin before the deadline, and before an attempt is given up.
    let fixture = Fixture::new().ttl(9);
    let run = fixture.ticker();
    fixture.proxy.delay(Way::Down, Duration::from_millis(600));
    fixture.await_renewals(2);
    fixture.proxy.hold_both();
    fixture.store.await_death_under_lock(&fixture.inherited_lock);
    fixture.assert_killed_in_time(run);
    fixture.assert_succession();
}

/// F15
#[test]
fn a_renewal_that_arrives_twice_has_no_effect() {
    side_by_side([Way::Up, Way::Down], |way| {
        let fixture = Fixture::new();
        let run = fixture.witness();
        for _ in 0..2 {
            fixture.proxy.duplicate_next(way);
            fixture.await_renewals(2);
        }
        fixture.assert_undisturbed(run);
    });
}

/// F15
#[test]
fn a_duplicate_reply_is_not_taken_for_the_next_one() {
    // After the reply that comes twice, no request reaches the store.
    let fixture = Fixture::new();
    let run = fixture.ticker();
    fixture.proxy.duplicate_next(Way::Down);
    fixture.await_renewals(1);
    fixture.proxy.drop_all(Way::Up);
    fixture.assert_killed_in_time(run);
    fixture.assert_succession();
}

/// F15
#[test]
fn reordered_renewals_have_no_effect() {
    // A renewal is held; dlock gives it up, when about half of the lease is left, and sends the next over another
    // connection; then both arrive.
    let fixture = Fixture::new().ttl(9);
    let run = fixture.witness();
    for way in [Way::Up, Way::Down] {
        fixture.await_renewals(1);
        fixture.proxy.hold(way);
        let before = fixture.leases().len();
        until(SOON, "two renewals on their way", || fixture.leases().len() >= before + 2);
        fixture.proxy.heal();
        fixture.await_renewals(1);
    }
    fixture.assert_survived(run);
}

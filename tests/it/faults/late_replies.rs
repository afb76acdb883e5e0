//! Replies that come late, twice, or out of order: none of them makes a lease longer than it is.

use super::scene::Scene;
use crate::support::SOON;
use crate::support::proxy::Way;
use crate::support::wait::until;
use std::time::Duration;

/// Each reply comes so many hundredths of a lease late, from a moment in the middle of the run on.
#[track_caller]
fn late_replies_prolong_nothing(way: Way, hundredths: u64) {
    let scene = Scene::new().ttl(2);
    let run = scene.ticker();
    let heir = scene.heir();
    scene.await_renewals(1);
    scene.proxy.delay(way, Duration::from_millis(20 * hundredths));
    // Late renewals may keep the lock alive at the store, but never the command: it is killed in time, or
    // goes on under a lease that it has heard of in time.
    scene.store.await_death_under_lock(&scene.leash);
    scene.assert_killed_in_time(run);
    scene.assert_inherits(heir);
}

/// F15
#[test]
fn replies_that_are_half_a_lease_late_prolong_nothing() {
    late_replies_prolong_nothing(Way::Down, 50);
}

/// F15
#[test]
fn replies_that_are_nearly_a_lease_late_prolong_nothing() {
    late_replies_prolong_nothing(Way::Down, 90);
}

/// F15
#[test]
fn replies_that_are_more_than_a_lease_late_prolong_nothing() {
    late_replies_prolong_nothing(Way::Down, 110);
}

/// F15
#[test]
fn renewals_that_arrive_late_prolong_nothing() {
    for hundredths in [50, 90, 110] {
        late_replies_prolong_nothing(Way::Up, hundredths);
    }
}

/// F15
#[test]
fn renewals_that_are_late_but_in_time_keep_the_command_alive() {
    // A sixth of a lease each way: an attempt may take so long.
    let scene = Scene::new().ttl(6);
    let run = scene.witness();
    scene.proxy.delay(Way::Up, Duration::from_millis(250));
    scene.proxy.delay(Way::Down, Duration::from_millis(250));
    scene.await_renewals(4);
    scene.proxy.heal();
    scene.assert_undisturbed(run);
}

/// F15
#[test]
fn a_reply_that_is_late_but_in_time_counts_from_the_sending_of_its_request() {
    // Later than the margin before the deadline is long, and sooner than an attempt is given up.
    let scene = Scene::new().ttl(6);
    let run = scene.ticker();
    scene.proxy.delay(Way::Down, Duration::from_millis(600));
    scene.await_renewals(2);
    scene.proxy.hold_both();
    scene.store.await_death_under_lock(&scene.leash);
    scene.assert_killed_in_time(run);
    scene.assert_succession();
}

/// F15
#[test]
fn a_renewal_that_arrives_twice_disturbs_nobody() {
    for way in [Way::Up, Way::Down] {
        let scene = Scene::new();
        let run = scene.witness();
        for _ in 0..2 {
            scene.proxy.duplicate_next(way);
            scene.await_renewals(2);
        }
        scene.assert_undisturbed(run);
    }
}

/// F15
#[test]
fn a_reply_that_comes_twice_is_not_the_answer_to_the_next_renewal() {
    // The store hears nothing any more after the reply that comes twice.
    let scene = Scene::new();
    let run = scene.ticker();
    scene.proxy.duplicate_next(Way::Down);
    scene.await_renewals(1);
    scene.proxy.drop_all(Way::Up);
    scene.assert_killed_in_time(run);
    scene.assert_succession();
}

/// F15
#[test]
fn renewals_that_overtake_each_other_disturb_nobody() {
    // A renewal is held; dlock gives it up and sends the next over another connection; then both arrive.
    let scene = Scene::new().ttl(6);
    let run = scene.witness();
    for way in [Way::Up, Way::Down] {
        scene.await_renewals(1);
        scene.proxy.hold(way);
        let before = scene.leases().len();
        until(SOON, "two renewals on their way", || scene.leases().len() >= before + 2);
        scene.proxy.heal();
        scene.await_renewals(1);
    }
    scene.assert_undisturbed(run);
}

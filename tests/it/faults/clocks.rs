//! The clocks of dlock's own host.

use super::scene::Scene;
use super::shim::{Clocks, DAY, HOUR};
use super::timing::{nanoseconds, on_boot_clock};
use crate::support::SOON;
use crate::support::running::Exit;
use crate::support::wait::{eventually, until};
use std::time::{Duration, Instant};

/// F18
#[test]
fn a_wall_clock_that_jumps_during_a_run_has_no_effect() {
    let scene = Scene::new();
    let clocks = Clocks::new(scene.place());
    let run = scene.witness_of(clocks.of(scene.run()));
    for seconds in [HOUR, -HOUR, DAY, -DAY, 1, 0] {
        let before = scene.leases().len();
        clocks.set_wall(seconds);
        scene.await_renewals(1);
        // Neither late nor early.
        assert!(scene.leases().len() <= before + 3, "{:?}", scene.proxy.flights());
    }
    scene.assert_undisturbed(run);
}

/// F18
#[test]
fn a_wall_clock_that_is_wrong_from_the_start_has_no_effect() {
    let scene = Scene::new();
    let clocks = Clocks::new(scene.place());
    for seconds in [HOUR, -HOUR, DAY, -DAY] {
        clocks.set_wall(seconds);
        let run = clocks.of(scene.run());
        let output = scene.recording(run, &["heir", scene.leash.path()]).output();
        assert_eq!(output.outcome(), (Exit::Code(0), "clean\n", ""));
        assert!(!scene.is_held());
    }
    scene.assert_tokens_grow();
}

/// F18
#[test]
fn a_wall_clock_that_is_slewed_has_no_effect() {
    let scene = Scene::new();
    let clocks = Clocks::new(scene.place());
    let run = scene.witness_of(clocks.of(scene.run()));
    let begun = Instant::now();
    // 500 millionths too fast, the limit of NTP, with a leap second in the middle.
    until(SOON, "more than a lease of slewing", || {
        let elapsed = begun.elapsed();
        let leap = if elapsed > Duration::from_secs(2) { 1_000_000_000 } else { 0 };
        clocks.set_wall_nanoseconds(i64::try_from(elapsed.as_nanos()).unwrap() / 2000 - leap);
        elapsed > Duration::from_secs(4)
    });
    scene.assert_undisturbed(run);
}

/// F18
#[test]
fn a_wall_clock_that_jumps_does_not_move_the_deadline() {
    for seconds in [-DAY, DAY] {
        let scene = Scene::new();
        let clocks = Clocks::new(scene.place());
        let run = scene.ticker_of(clocks.of(scene.run()));
        let heir = scene.heir();
        scene.await_renewals(1);
        scene.proxy.hold_both();
        clocks.set_wall(seconds);
        scene.store.await_death_under_lock(&scene.leash);
        scene.assert_killed_in_time(run);
        scene.assert_inherits(heir);
    }
}

/// F18
#[test]
fn a_wall_clock_jump_neither_ends_nor_extends_a_wait() {
    for seconds in [-DAY, DAY] {
        let scene = Scene::new();
        let mut holder = scene.leashed(scene.direct(), &["ignore-term"]).spawn();
        holder.await_ready();
        let clocks = Clocks::new(scene.place());
        let mut waiter = clocks.of(scene.run().args(["-v", "--wait", "2s"])).sh("echo ran").spawn();
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
    let scene = Scene::new().ttl(600);
    let clocks = Clocks::new(scene.place());
    let mut run = scene.witness_of(clocks.of(scene.run()));
    for _ in 0..3 {
        let before = scene.leases().len();
        clocks.set_wall(HOUR);
        clocks.tell_that_it_was_set();
        until(Duration::from_secs(10), "an immediate renewal", || scene.leases().len() > before);
        run.assert_running();
    }
    // At most two more requests.
    let asked = scene.leases().len();
    scene.assert_undisturbed(run);
    assert!(scene.leases().len() <= asked + 2);
}

/// F23
#[test]
fn a_lock_lost_while_the_wall_clock_stood_still_is_noticed_when_the_clock_is_set() {
    let scene = Scene::new().ttl(600).without_push();
    let clocks = Clocks::new(scene.place());
    let mut run = scene.witness_of(clocks.of(scene.run()));
    scene.command(&["SET", &scene.key(), "somebody else"]);
    clocks.tell_that_it_was_set();
    let output = run.wait_within(Duration::from_secs(10));
    scene.assert_reports_loss(&output);
    assert_eq!(output.stdout, "ready\n");
}

/// F19: the deadline reserves a hundredth of the lease for a clock that is too slow. A lease of 10 s has
/// 100 ms of it, not counting the margin before the deadline.
#[test]
fn a_clock_one_percent_too_slow_ends_the_command_before_its_lease() {
    let scene = Scene::new().ttl(10);
    let clocks = Clocks::new(scene.place());
    clocks.set_rate(-10_000);
    let run = scene.ticker_of(clocks.of(scene.run()));
    let granted = eventually(SOON, "the grant", || Some(scene.leases().first()?.at));
    scene.proxy.hold_both();
    scene.store.await_death_under_lock(&scene.leash);
    assert!(scene.last_tick() <= on_boot_clock(granted) + nanoseconds(Duration::from_secs(10)));
    let mut run = run;
    scene.assert_reports_loss(&run.wait());
}

/// F19
#[test]
fn a_clock_rate_error_of_one_percent_disturbs_no_command() {
    for millionths in [-10_000, 10_000] {
        let scene = Scene::new();
        let clocks = Clocks::new(scene.place());
        clocks.set_rate(millionths);
        let run = scene.witness_of(clocks.of(scene.run()));
        scene.await_renewals(4);
        scene.assert_undisturbed(run);
    }
}

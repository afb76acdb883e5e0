//! The store, or the connection to it, fails while the command runs: for a while, or permanently.

use super::fixture::Fixture;
use crate::support::SOON;
use crate::support::proxy::Way;
use crate::support::redis::{Options, Redis};
use crate::support::running::{Exit, Running};
use crate::support::wait::{side_by_side, until};
use std::time::{Duration, Instant};

/// The lease in seconds. dlock announces a loss after two thirds of it. After a fault of half of it, the next attempt
/// may be a second away, and a renewal takes a while on a busy machine.
const LEASE: u64 = 12;

/// The moment at which a fault begins: right after a renewal, whose time it is, so that the fault's end alone decides.
#[track_caller]
fn right_after_a_renewal(fixture: &Fixture) -> Instant {
    fixture.await_renewals(1);
    fixture.last_replied().at
}

fn sleep_until(moment: Instant) {
    std::thread::sleep(moment.saturating_duration_since(Instant::now()));
}

/// F04, F13, F17: a fault that ends after half a lease.
#[track_caller]
fn is_survived(fixture: &Fixture, begin: impl FnOnce(), end: impl FnOnce()) {
    let run = fixture.witness();
    let begun = right_after_a_renewal(fixture);
    begin();
    sleep_until(begun + Duration::from_secs(LEASE) / 2);
    end();
    fixture.await_renewals(2);
    fixture.assert_survived(run);
}

/// F04
#[test]
fn a_store_that_refuses_for_half_a_lease_does_not_disturb_the_command() {
    let fixture = Fixture::new().ttl(LEASE);
    is_survived(&fixture, || fixture.proxy.refuse(), || fixture.proxy.heal());
}

/// F04
#[test]
fn broken_connections_do_not_disturb_the_command() {
    let fixture = Fixture::new();
    let run = fixture.witness();
    for _ in 0..3 {
        fixture.proxy.close();
        fixture.await_renewals(1);
        fixture.proxy.half_close();
        fixture.await_renewals(1);
    }
    fixture.assert_undisturbed(run);
}

/// F13
#[test]
fn a_partition_of_half_a_lease_does_not_disturb_the_command() {
    let fixture = Fixture::new().ttl(LEASE);
    is_survived(&fixture, || fixture.proxy.hold_both(), || fixture.proxy.heal());
}

/// F14
#[test]
fn a_one_way_partition_of_half_a_lease_does_not_disturb_the_command() {
    side_by_side([Way::Up, Way::Down], |way| {
        let fixture = Fixture::new().ttl(LEASE);
        is_survived(&fixture, || fixture.proxy.hold(way), || fixture.proxy.heal());
    });
}

/// F17
#[test]
fn a_server_stopped_for_half_a_lease_does_not_disturb_the_command() {
    let redis = Redis::start();
    let fixture = Fixture::on(&redis).ttl(LEASE);
    is_survived(&fixture, || redis.stop(), || redis.resume());
}

/// F08
#[test]
fn a_restart_of_a_persistent_server_does_not_disturb_the_command() {
    let mut redis = Redis::start_with(Options { persistent: true, ..Options::default() });
    let fixture = Fixture::on(&redis).ttl(LEASE);
    let run = fixture.witness();
    fixture.await_renewals(1);
    redis.restart();
    fixture.await_renewals(2);
    fixture.assert_survived(run);
}

/// F05, F12: a fault that begins while the command runs and never ends.
#[track_caller]
fn is_deadly(fixture: &Fixture, begin: impl FnOnce()) -> Running {
    let run = fixture.ticker();
    let next_holder = fixture.next_holder();
    fixture.await_renewals(1);
    begin();
    fixture.store.await_death_under_lock(&fixture.inherited_lock);
    fixture.assert_killed_in_time(run);
    next_holder
}

/// F05
#[test]
fn a_store_that_refuses_permanently_ends_the_command_in_time() {
    let fixture = Fixture::new();
    let next_holder = is_deadly(&fixture, || fixture.proxy.refuse());
    fixture.assert_inherits(next_holder);
}

/// F05
#[test]
fn a_dead_server_ends_the_command_in_time() {
    let mut redis = Redis::start();
    let fixture = Fixture::on(&redis);
    let run = fixture.ticker();
    fixture.await_renewals(1);
    redis.kill();
    fixture.assert_killed_in_time(run);
}

/// F05
#[test]
fn the_command_gets_one_sigterm_and_its_grace() {
    let fixture = Fixture::new();
    let mut run = fixture.witness_of(fixture.run().args(["--grace", "2700ms"]));
    fixture.proxy.refuse();
    run.await_stdout("TERM ");
    // Until it is killed it still has the lock.
    assert!(fixture.is_held());
    let output = run.wait();
    fixture.assert_reports_loss(&output);
    assert_eq!(output.stdout.matches("TERM ").count(), 1, "{}", output.stdout);
    fixture.assert_succession();
}

/// F05
#[test]
fn a_command_that_ends_at_sigterm_is_still_reported_as_lost() {
    let fixture = Fixture::new();
    let mut run = fixture.with_inherited_lock(fixture.run(), &["signals", "exit:TERM=0"]).spawn();
    run.await_ready();
    fixture.proxy.refuse();
    fixture.assert_reports_loss(&run.wait());
}

/// F05
#[test]
fn with_on_lost_warn_the_command_continues_without_a_store() {
    let fixture = Fixture::new();
    let mut run = fixture.witness_of(fixture.run().args(["--on-lost", "warn"]));
    fixture.proxy.refuse();
    until(SOON, "the end of the lease", || !fixture.is_held());
    run.await_stderr("; the command goes on (--on-lost warn)\n");
    run.assert_running();
    fixture.go();
    let output = run.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(5), "ready\n"), "{}", output.stderr);
    let store = fixture.proxied_url();
    let lines: Vec<&str> = output.stderr.lines().collect();
    let [warning, loss, release] = lines[..] else { panic!("{}", output.stderr) };
    assert!(warning.starts_with(&format!("dlock: x: cannot renew on {store}")), "{warning}");
    assert!(warning.contains("; the lock will be lost in ") && warning.ends_with("s unless that changes"));
    assert!(loss.starts_with(&format!("dlock: x on {store}")), "{loss}");
    assert!(loss.ends_with("; the command goes on (--on-lost warn)"), "{loss}");
    assert!(release.starts_with(&format!("dlock: x on {store}")), "{release}");
}

/// Whichever lease would have ended first.
#[test]
fn with_on_lost_warn_each_of_two_lost_locks_is_named_once() {
    let fixture = Fixture::new();
    let run = fixture.run().args(["--on-lost", "warn", "x", "y"]).no_name();
    let mut run = fixture.witness_of(run);
    fixture.command(&["DEL", &fixture.key()]);
    run.await_stderr("; the command goes on (--on-lost warn)\n");
    fixture.proxy.refuse();
    let losses = |run: &Running| -> Vec<String> {
        let said = run.stderr();
        let losses = said.lines().filter(|line| line.ends_with("; the command goes on (--on-lost warn)"));
        losses.map(str::to_owned).collect()
    };
    until(SOON, "the loss of the other lock", || losses(&run).len() > 1);
    let store = fixture.proxied_url();
    for (line, name) in losses(&run).iter().zip(["x", "y"]) {
        assert!(line.starts_with(&format!("dlock: {name} on {store}")), "{line}");
    }
    run.assert_running();
    fixture.go();
    assert_eq!(run.wait().exit, Exit::Code(5));
}

/// F05: `-q` does not silence that the command is about to be stopped.
#[test]
fn a_failing_renewal_is_reported_once_and_its_recovery_too() {
    // It is announced, at the latest, a second after half of it, and four seconds before the command is stopped.
    const LEASE: u64 = 18;
    let fixture = Fixture::new().ttl(LEASE);
    let mut run = fixture.witness_of(fixture.run().arg("-q"));
    fixture.proxy.refuse();
    run.await_stderr("unless that changes\n");
    fixture.proxy.heal();
    run.await_stderr("again\n");
    fixture.go();
    let output = run.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(5), "ready\n"), "{}", output.stderr);
    let store = fixture.proxied_url();
    let lines: Vec<&str> = output.stderr.lines().collect();
    let [failure, recovery] = lines[..] else { panic!("{}", output.stderr) };
    assert!(failure.starts_with(&format!("dlock: x: cannot renew on {store}: ")), "{failure}");
    let (_, left) = failure.split_once("; the command will be stopped in ").expect("the time left");
    // A third of the lease at most, in whole seconds; less if the attempt took long.
    let left = left.strip_suffix("s unless that changes").and_then(|left| left.parse::<u64>().ok());
    assert!(left.is_some_and(|left| (1..=LEASE / 3).contains(&left)), "{failure}");
    assert_eq!(recovery, format!("dlock: x: renewed on {store} again"));
}

/// F12
#[test]
fn a_partition_without_a_reset_ends_the_command_in_time() {
    let fixture = Fixture::new();
    let next_holder = is_deadly(&fixture, || fixture.proxy.hold_both());
    fixture.assert_inherits(next_holder);
}

/// F13
#[test]
fn a_command_that_was_stopped_in_a_partition_stays_stopped_when_it_heals() {
    let fixture = Fixture::new();
    let next_holder = is_deadly(&fixture, || fixture.proxy.hold_both());
    // Everything that was held arrives now, at a store that may have granted the lock to another client.
    fixture.proxy.heal();
    fixture.assert_inherits(next_holder);
    assert_eq!(fixture.tokens().len(), 2, "it ran again");
    fixture.place().marker().await_end();
    assert!(!fixture.is_held());
}

/// F13
#[test]
fn delayed_requests_do_not_touch_the_next_holder() {
    let fixture = Fixture::new();
    let run = fixture.ticker();
    fixture.await_renewals(1);
    fixture.proxy.hold_both();
    fixture.assert_killed_in_time(run);
    let holder = fixture.witness_of(fixture.direct().args(["--wait", "forever"]));
    let before = fixture.command(&["GET", &fixture.key()]);
    let replies = fixture.proxy.replies();
    fixture.proxy.heal();
    until(SOON, "late requests at the store", || fixture.proxy.replies() > replies);
    assert_eq!(fixture.command(&["GET", &fixture.key()]), before);
    fixture.assert_undisturbed(holder);
}

/// F14
#[test]
fn lost_replies_do_not_extend_the_run_of_the_command() {
    // The store receives every renewal; dlock receives no reply.
    let fixture = Fixture::new();
    let next_holder = is_deadly(&fixture, || fixture.proxy.hold(Way::Down));
    fixture.assert_inherits(next_holder);
}

/// F14
#[test]
fn lost_requests_end_the_command_in_time() {
    let fixture = Fixture::new();
    let next_holder = is_deadly(&fixture, || fixture.proxy.hold(Way::Up));
    fixture.assert_inherits(next_holder);
}

/// F17
#[test]
fn a_server_stopped_for_two_leases_ends_the_command_in_time() {
    let redis = Redis::start();
    let fixture = Fixture::on(&redis).ttl(5);
    let run = fixture.ticker();
    let begun = right_after_a_renewal(&fixture);
    redis.stop();
    fixture.assert_killed_in_time(run);
    sleep_until(begun + 2 * fixture.ttl);
    redis.resume();
    fixture.assert_succession();
    fixture.place().marker().await_end();
}

/// F05: the store returns after the command has been told to end, and before it is killed.
#[test]
fn a_store_that_returns_too_late_is_named_as_the_cause() {
    let fixture = Fixture::new().ttl(18);
    let mut run = fixture.witness_of(fixture.run().args(["--grace", "4s"]));
    fixture.proxy.refuse();
    run.await_stdout("TERM ");
    fixture.proxy.heal();
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
    let store = fixture.proxied_url();
    let lines: Vec<&str> = output.stderr.lines().collect();
    let [failure, end] = lines[..] else { panic!("{}", output.stderr) };
    assert!(failure.starts_with(&format!("dlock: x: cannot renew on {store}: ")), "{failure}");
    let why = end.strip_prefix(&format!("dlock: x on {store}: the lock could not be renewed in time ("));
    assert!(why.is_some_and(|why| !why.starts_with("dlock was stopped")), "{end}");
}

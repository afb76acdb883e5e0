//! The store, or the connection to it, fails while the command runs: for a while, or permanently.

use super::scene::Scene;
use crate::support::SOON;
use crate::support::proxy::Way;
use crate::support::redis::{Options, Redis};
use crate::support::running::{Exit, Running};
use crate::support::wait::until;
use std::time::{Duration, Instant};

/// The moment at which a fault begins: right after a renewal, so that its length alone decides.
#[track_caller]
fn right_after_a_renewal(scene: &Scene) -> Instant {
    scene.await_renewals(1);
    Instant::now()
}

fn sleep_until(moment: Instant) {
    std::thread::sleep(moment.saturating_duration_since(Instant::now()));
}

/// F04, F13, F17: a fault that ends after half a lease.
#[track_caller]
fn is_survived(scene: &Scene, begin: impl FnOnce(), end: impl FnOnce()) {
    let run = scene.witness();
    let begun = right_after_a_renewal(scene);
    begin();
    sleep_until(begun + Duration::from_secs(3));
    end();
    scene.await_renewals(2);
    scene.assert_undisturbed(run);
}

/// F04
#[test]
fn a_store_that_refuses_for_half_a_lease_does_not_disturb_the_command() {
    let scene = Scene::new().ttl(6);
    is_survived(&scene, || scene.proxy.refuse(), || scene.proxy.heal());
}

/// F04
#[test]
fn broken_connections_do_not_disturb_the_command() {
    let scene = Scene::new();
    let run = scene.witness();
    for _ in 0..3 {
        scene.proxy.close();
        scene.await_renewals(1);
        scene.proxy.half_close();
        scene.await_renewals(1);
    }
    scene.assert_undisturbed(run);
}

/// F13
#[test]
fn a_partition_of_half_a_lease_does_not_disturb_the_command() {
    let scene = Scene::new().ttl(6);
    is_survived(&scene, || scene.proxy.hold_both(), || scene.proxy.heal());
}

/// F14
#[test]
fn a_one_way_partition_of_half_a_lease_does_not_disturb_the_command() {
    for way in [Way::Up, Way::Down] {
        let scene = Scene::new().ttl(6);
        is_survived(&scene, || scene.proxy.hold(way), || scene.proxy.heal());
    }
}

/// F17
#[test]
fn a_server_stopped_for_half_a_lease_does_not_disturb_the_command() {
    let redis = Redis::start();
    let scene = Scene::on(&redis).ttl(6);
    is_survived(&scene, || redis.stop(), || redis.resume());
}

/// F08
#[test]
fn a_restart_of_a_persistent_server_does_not_disturb_the_command() {
    let mut redis = Redis::start_with(Options { persistent: true, ..Options::default() });
    let scene = Scene::on(&redis).ttl(6);
    let run = scene.witness();
    scene.await_renewals(1);
    redis.restart();
    scene.await_renewals(2);
    scene.assert_undisturbed(run);
}

/// F05, F12: a fault that begins while the command runs and never ends.
#[track_caller]
fn is_deadly(scene: &Scene, begin: impl FnOnce()) -> Running {
    let run = scene.ticker();
    let heir = scene.heir();
    scene.await_renewals(1);
    begin();
    scene.store.await_death_under_lock(&scene.leash);
    scene.assert_killed_in_time(run);
    heir
}

/// F05
#[test]
fn a_store_that_refuses_permanently_ends_the_command_in_time() {
    let scene = Scene::new();
    let heir = is_deadly(&scene, || scene.proxy.refuse());
    scene.assert_inherits(heir);
}

/// F05
#[test]
fn a_dead_server_ends_the_command_in_time() {
    let mut redis = Redis::start();
    let scene = Scene::on(&redis);
    let run = scene.ticker();
    scene.await_renewals(1);
    redis.kill();
    scene.assert_killed_in_time(run);
}

/// F05
#[test]
fn the_command_gets_one_sigterm_and_its_grace() {
    let scene = Scene::new();
    let mut run = scene.witness();
    scene.proxy.refuse();
    run.await_stdout("TERM ");
    // Until it is killed it still has the lock.
    assert!(scene.is_held());
    let output = run.wait();
    scene.assert_reports_loss(&output);
    assert_eq!(output.stdout.matches("TERM ").count(), 1, "{}", output.stdout);
    scene.assert_succession();
}

/// F05
#[test]
fn a_command_that_ends_at_sigterm_is_still_reported_as_lost() {
    let scene = Scene::new();
    let mut run = scene.leashed(scene.run(), &["signals", "exit:TERM=0"]).spawn();
    run.await_ready();
    scene.proxy.refuse();
    scene.assert_reports_loss(&run.wait());
}

/// F05
#[test]
fn with_on_lost_warn_the_command_continues_without_a_store() {
    let scene = Scene::new().ttl(1);
    let mut run = scene.witness_of(scene.run().args(["--on-lost", "warn"]));
    scene.proxy.refuse();
    until(SOON, "the end of the lease", || !scene.is_held());
    run.assert_running();
    scene.go();
    let output = run.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(5), "ready\n"), "{}", output.stderr);
    assert!(output.stderr.starts_with("dlock: x on redis://"), "{}", output.stderr);
}

/// F12
#[test]
fn a_partition_without_a_reset_ends_the_command_in_time() {
    let scene = Scene::new();
    let heir = is_deadly(&scene, || scene.proxy.hold_both());
    scene.assert_inherits(heir);
}

/// F13
#[test]
fn a_command_that_was_stopped_in_a_partition_stays_stopped_when_it_heals() {
    let scene = Scene::new();
    let heir = is_deadly(&scene, || scene.proxy.hold_both());
    // Everything that was held arrives now, at a store that may have granted the lock to another client.
    scene.proxy.heal();
    scene.assert_inherits(heir);
    assert_eq!(scene.tokens().len(), 2, "it ran again");
    assert_eq!(scene.place().marker().bearers().len(), 0);
    assert!(!scene.is_held());
}

/// F13
#[test]
fn delayed_requests_do_not_touch_the_next_holder() {
    let scene = Scene::new();
    let run = scene.ticker();
    scene.await_renewals(1);
    scene.proxy.hold_both();
    scene.assert_killed_in_time(run);
    let holder = scene.witness_of(scene.direct().args(["--wait", "forever"]));
    let before = scene.command(&["GET", &scene.key()]);
    let replies = scene.proxy.replies();
    scene.proxy.heal();
    until(SOON, "late requests at the store", || scene.proxy.replies() > replies);
    assert_eq!(scene.command(&["GET", &scene.key()]), before);
    scene.assert_undisturbed(holder);
}

/// F14
#[test]
fn lost_replies_do_not_extend_the_run_of_the_command() {
    // The store receives every renewal; dlock receives no reply.
    let scene = Scene::new();
    let heir = is_deadly(&scene, || scene.proxy.hold(Way::Down));
    scene.assert_inherits(heir);
}

/// F14
#[test]
fn lost_requests_end_the_command_in_time() {
    let scene = Scene::new();
    let heir = is_deadly(&scene, || scene.proxy.hold(Way::Up));
    scene.assert_inherits(heir);
}

/// F17
#[test]
fn a_server_stopped_for_two_leases_ends_the_command_in_time() {
    let redis = Redis::start();
    let scene = Scene::on(&redis);
    let run = scene.ticker();
    let begun = right_after_a_renewal(&scene);
    redis.stop();
    scene.assert_killed_in_time(run);
    sleep_until(begun + Duration::from_secs(6));
    redis.resume();
    scene.assert_succession();
    assert_eq!(scene.place().marker().bearers().len(), 0);
}

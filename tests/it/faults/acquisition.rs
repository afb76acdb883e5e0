//! The moment of the grant: a reply that is lost, late, or not read in time.

use super::scene::Scene;
use crate::support::SOON;
use crate::support::proxy::Way;
use crate::support::redis::Redis;
use crate::support::running::{Exit, Output};
use crate::support::wait::{eventually, until};
use nix::sys::signal::Signal;
use std::time::Duration;

#[track_caller]
fn assert_not_run(output: &Output) {
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""), "{}", output.stderr);
    assert!(output.stderr.starts_with("dlock: x on redis://127.0.0.1:"), "{}", output.stderr);
    assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
}

/// F02
#[test]
fn a_command_whose_store_dies_after_its_start_is_dead_in_time() {
    let scene = Scene::new();
    let run = scene.leashed(scene.run(), &["tick", &scene.place().arg("tick")]).spawn();
    eventually(SOON, "an answer handed over", || scene.leases().first()?.answered);
    scene.proxy.refuse();
    let mut run = run;
    run.await_ready();
    scene.assert_killed_in_time(run);
    scene.assert_succession();
}

/// F02
#[test]
fn a_command_is_not_started_near_the_end_of_the_lease() {
    let scene = Scene::new();
    let mut run = scene.stopped_before_the_grant(scene.run().sh("echo ran"));
    let half = u64::try_from(scene.pttl()).unwrap() / 2;
    until(SOON, "half a lease", || scene.pttl() < i64::try_from(half).unwrap() - 200);
    run.signal(Signal::SIGCONT);
    assert_not_run(&run.wait());
    assert!(!scene.is_held(), "the lock is left behind");
    scene.assert_succession();
}

/// F02
#[test]
fn a_grant_read_after_its_lease_does_not_touch_the_next_holder() {
    let scene = Scene::new();
    let mut run = scene.stopped_before_the_grant(scene.run().sh("echo ran"));
    let holder = scene.witness_of(scene.direct().args(["--wait", "forever"]));
    run.signal(Signal::SIGCONT);
    let output = run.wait();
    assert_eq!(output.stdout, "", "the command ran");
    assert!(matches!(output.exit, Exit::Code(69 | 75)), "{output:?}");
    scene.assert_undisturbed(holder);
}

/// F03
#[test]
fn a_claim_with_a_lost_reply_is_recognised() {
    // The connection breaks instead of a reply: the repeated request finds that the lock is already held by this run.
    let scene = Scene::new().ttl(60);
    scene.proxy.drop_all(Way::Down);
    let mut run = scene.run().sh("echo ran; exit 3").spawn();
    until(SOON, "a lock at the store", || scene.is_held());
    scene.proxy.heal();
    scene.proxy.close();
    assert_eq!(run.wait().outcome(), (Exit::Code(3), "ran\n", ""));
    assert!(!scene.is_held());
    let mut claims: Vec<_> = scene.leases().iter().map(|flight| flight.commands.last().cloned()).collect();
    claims.pop();
    assert!(claims.len() >= 2, "it was asked once only");
    assert!(claims.windows(2).all(|pair| pair[0] == pair[1]), "another token: {claims:?}");
}

/// F03
#[test]
fn a_claim_with_a_lost_reply_is_recognised_while_waiting() {
    let scene = Scene::new().ttl(60);
    scene.proxy.drop_all(Way::Down);
    let run = scene.run().args(["--wait", "forever", "--connect-timeout", "300ms"]);
    let mut run = run.sh("echo ran; exit 3").spawn();
    until(SOON, "a lock at the store", || scene.is_held());
    until(SOON, "another question", || scene.proxy.flights().len() > 1);
    scene.proxy.heal();
    assert_eq!(run.wait().outcome(), (Exit::Code(3), "ran\n", ""));
    assert!(!scene.is_held());
}

/// F03
#[test]
fn a_claim_without_a_reply_is_removed() {
    // Requests arrive, replies do not: the lock must not remain for its minute.
    let scene = Scene::new().ttl(60);
    scene.proxy.drop_all(Way::Down);
    let output = scene.run().args(["--connect-timeout", "500ms"]).sh("echo ran").output();
    assert_not_run(&output);
    until(Duration::from_secs(5), "a lock that is free again", || !scene.is_held());
    assert!(output.stderr.contains("no answer within "), "{}", output.stderr);
}

/// F03
#[test]
fn a_claim_without_a_reply_is_removed_when_the_wait_ends() {
    for option in [["--wait", "1s"], ["--retry", "1s"]] {
        let scene = Scene::new().ttl(60);
        scene.proxy.drop_all(Way::Down);
        let output = scene.run().args(option).args(["--connect-timeout", "300ms"]).sh("echo ran").output();
        assert_not_run(&output);
        until(Duration::from_secs(5), "a lock that is free again", || !scene.is_held());
    }
}

/// F03
#[test]
fn removing_a_claim_with_a_lost_reply_does_not_touch_the_next_holder() {
    // The first claim is executed and its reply lost; then its key is deleted, and another client takes the lock.
    let scene = Scene::new().ttl(60);
    scene.proxy.drop_all(Way::Down);
    let run = scene.run().args(["--wait", "forever", "--connect-timeout", "300ms"]).sh("echo ran; exit 3");
    let mut run = run.spawn();
    until(SOON, "a lock at the store", || scene.is_held());
    scene.proxy.hold(Way::Up);
    scene.command(&["DEL", &scene.key()]);
    let mut holder = scene.witness_of(scene.direct());
    scene.proxy.heal();
    crate::support::wait::throughout(Duration::from_secs(1), "the holder's lock", || scene.is_held());
    holder.assert_running();
    run.assert_running();
    scene.go();
    assert_eq!(holder.wait().outcome(), (Exit::Code(5), "ready\n", ""));
    assert_eq!(run.wait().outcome(), (Exit::Code(3), "ran\n", ""));
}

/// F16
#[test]
fn a_grant_that_took_longer_than_the_lease_is_discarded() {
    for way in [Way::Up, Way::Down] {
        let scene = Scene::new().ttl(1);
        scene.proxy.delay(way, Duration::from_millis(1200));
        assert_not_run(&scene.run().sh("echo ran").output());
        until(SOON, "a lock that is free again", || !scene.is_held());
        scene.assert_succession();
    }
}

/// F16
#[test]
fn a_grant_that_took_most_of_the_lease_is_released() {
    let scene = Scene::new().ttl(6);
    scene.proxy.delay(Way::Down, Duration::from_millis(3300));
    let mut run = scene.run().args(["--connect-timeout", "20s"]).sh("echo ran").spawn();
    eventually(SOON, "an answer handed over", || scene.leases().first()?.answered);
    scene.proxy.heal();
    assert_not_run(&run.wait());
    assert!(!scene.is_held(), "the lock is left behind");
}

/// F16
#[test]
fn the_lease_of_a_slow_grant_counts_from_the_sending_of_its_request() {
    let scene = Scene::new();
    scene.proxy.delay(Way::Down, Duration::from_secs(1));
    let run = scene.ticker();
    scene.proxy.hold_both();
    scene.store.await_death_under_lock(&scene.leash);
    scene.assert_killed_in_time(run);
    scene.assert_succession();
}

/// F16
#[test]
fn a_lock_is_acquired_once_the_store_is_fast_again() {
    let scene = Scene::new().ttl(1);
    scene.proxy.delay(Way::Down, Duration::from_millis(1200));
    let mut run = scene.run().args(["--wait", "forever"]).sh("echo ran; exit 3").spawn();
    eventually(SOON, "an answer handed over", || scene.leases().first()?.answered);
    scene.proxy.heal();
    assert_eq!(run.wait().outcome(), (Exit::Code(3), "ran\n", ""));
    assert!(!scene.is_held());
}

/// F16
#[test]
fn a_grant_of_a_server_that_hung_is_released() {
    let redis = Redis::start();
    let scene = Scene::on(&redis).ttl(2);
    redis.stop();
    let mut run = scene.run().args(["--connect-timeout", "20s"]).sh("echo ran").spawn();
    let asked = eventually(SOON, "a question", || Some(scene.proxy.flights().first()?.at));
    until(SOON, "more than a lease", || asked.elapsed() > Duration::from_millis(2500));
    redis.resume();
    assert_not_run(&run.wait());
    assert!(!scene.is_held(), "the lock is left behind");
    scene.assert_succession();
}

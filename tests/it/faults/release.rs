//! The release: a store that is down by then, and a reply that is lost.

use super::scene::Scene;
use crate::support::SOON;
use crate::support::proxy::Way;
use crate::support::redis::Redis;
use crate::support::running::{Exit, Output};
use crate::support::wait::until;

#[track_caller]
fn assert_kept_and_warned(output: &Output) {
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(5), "ready\n"), "{}", output.stderr);
    assert!(output.stderr.starts_with("dlock: x on redis://127.0.0.1:"), "{}", output.stderr);
    assert!(output.stderr.contains("could not be released"), "{}", output.stderr);
    assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
}

/// F06
#[test]
fn a_refused_release_keeps_the_status_of_the_command_and_warns() {
    let scene = Scene::new();
    let mut run = scene.witness();
    scene.proxy.refuse();
    scene.go();
    assert_kept_and_warned(&run.wait());
    assert!(scene.pttl() > 0, "the lock ends by itself");
    scene.assert_succession();
}

/// F06
#[test]
fn a_release_without_a_reply_keeps_the_status_of_the_command_and_warns() {
    let scene = Scene::new();
    let mut run = scene.witness();
    scene.await_renewals(1);
    scene.proxy.hold_both();
    scene.go();
    assert_kept_and_warned(&run.wait());
    scene.assert_succession();
}

/// F06
#[test]
fn a_release_to_a_stopped_or_dead_server_keeps_the_status_of_the_command() {
    let mut redis = Redis::start();
    let scene = Scene::on(&redis);
    let mut run = scene.witness();
    redis.stop();
    scene.go();
    assert_kept_and_warned(&run.wait());
    redis.resume();
    std::fs::remove_file(scene.place().path("go")).unwrap();
    let mut run = scene.witness_of(scene.run().args(["--wait", "forever"]));
    redis.kill();
    scene.go();
    assert_kept_and_warned(&run.wait());
    scene.assert_tokens_grow();
}

/// F06
#[test]
fn quiet_silences_a_failed_release() {
    let scene = Scene::new();
    let mut run = scene.witness_of(scene.run().args(["-q"]));
    scene.proxy.refuse();
    scene.go();
    assert_eq!(run.wait().outcome(), (Exit::Code(5), "ready\n", ""));
}

/// F06
#[test]
fn a_release_waits_no_longer_than_the_lease_or_the_time_out() {
    let scene = Scene::new().ttl(3600);
    let mut run = scene.witness_of(scene.run().args(["--connect-timeout", "1s"]));
    scene.proxy.hold_both();
    scene.go();
    assert_kept_and_warned(&run.wait());
}

/// F07
#[test]
fn a_release_with_a_lost_reply_does_not_delete_the_lock_of_the_next_holder() {
    let scene = Scene::new().ttl(60);
    let mut run = scene.witness();
    scene.proxy.hold(Way::Down);
    scene.go();
    until(SOON, "a lock that is free", || !scene.is_held());
    std::fs::remove_file(scene.place().path("go")).unwrap();
    let holder = scene.witness_of(scene.direct());
    let before = scene.command(&["GET", &scene.key()]);
    // The connection breaks, so that the release is tried again.
    let releases = scene.leases().len();
    scene.proxy.drop_all(Way::Down);
    scene.proxy.close();
    until(SOON, "a second release", || scene.leases().len() > releases);
    scene.proxy.heal();
    let output = run.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(5), "ready\n"), "{}", output.stderr);
    assert_eq!(scene.command(&["GET", &scene.key()]), before);
    scene.assert_undisturbed(holder);
}

/// F07
#[test]
fn a_release_with_a_lost_reply_takes_effect() {
    let scene = Scene::new().ttl(60);
    let mut run = scene.witness();
    scene.proxy.drop_all(Way::Down);
    scene.go();
    until(SOON, "a lock that is free", || !scene.is_held());
    scene.proxy.heal();
    scene.proxy.close();
    let output = run.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(5), "ready\n"), "{}", output.stderr);
    assert_eq!(output.stderr, "", "it was released, and nothing is known to be wrong");
    scene.assert_succession();
}

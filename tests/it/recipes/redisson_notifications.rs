//! Waiters for an `RLock` listen on a channel: they are notified there whenever dlock ends a hold, however that is
//! done.

use super::Scene;
use super::simulated_clients::{Listener, Thread};
use crate::support::resp::Value;
use crate::support::running::Exit;

fn scene() -> (Scene, Thread, Listener) {
    let scene = Scene::of("redisson");
    let thread = Thread::new(&scene, 1);
    let listener = Listener::on(&scene, "SUBSCRIBE", &thread.of_lock("_channel"));
    (scene, thread, listener)
}

/// F49: as the library waits: it tries, subscribes, tries again, and then does nothing until it is notified.
#[test]
fn a_waiting_rlock_is_notified_when_a_run_ends_and_gets_the_lock() {
    let (scene, mut java, mut listener) = scene();
    let mut run = scene.holding(&[]);
    assert!(matches!(java.lock(60_000), Value::Int(_)));
    assert!(listener.is_silent());
    drop(run.take_stdin());
    assert_eq!(listener.hears(), "0");
    assert_eq!(java.lock(60_000), Value::Nil);
    assert_eq!(run.wait().exit, Exit::Code(0));
}

/// In a cluster of Redis 7 it subscribes to sharded channels only.
#[test]
fn an_rlock_on_a_sharded_channel_is_notified() {
    let (scene, java, _) = scene();
    let mut listener = Listener::on(&scene, "SSUBSCRIBE", &java.of_lock("_channel"));
    assert_eq!(scene.run().command(["true"]).output().exit, Exit::Code(0));
    assert_eq!(listener.hears(), "0");
}

/// Fair locks have a queue, and each waiter has its own channel.
#[test]
fn the_first_waiter_of_a_fair_lock_is_notified() {
    let (scene, java, _) = scene();
    let line = java.of_lock("queue");
    let mut listeners: Vec<Listener> = ["uuid:7", "uuid:8"]
        .map(|id| {
            scene.command(&["RPUSH", &line, id]);
            Listener::on(&scene, "SUBSCRIBE", &format!("{}:{id}", java.of_lock("_channel")))
        })
        .into();
    assert_eq!(scene.run().command(["true"]).output().exit, Exit::Code(0));
    assert_eq!(listeners[0].hears(), "0");
    assert!(listeners[1].is_silent());
    assert_eq!(scene.command(&["LRANGE", &line, "0", "-1"]).texts(), ["uuid:7", "uuid:8"]);
    scene.command(&["DEL", &line]);
}

#[test]
fn only_the_last_sharing_holder_notifies() {
    let (scene, _, mut listener) = scene();
    for options in [&["--shared"][..], &["--slots", "2"]] {
        let mut runs = [scene.holding(options), scene.holding(options)];
        drop(runs[0].take_stdin());
        assert_eq!(runs[0].wait().exit, Exit::Code(0));
        assert!(listener.is_silent());
        drop(runs[1].take_stdin());
        assert_eq!(listener.hears(), "0");
        assert_eq!(runs[1].wait().exit, Exit::Code(0));
    }
}

#[test]
fn the_release_of_a_token_notifies() {
    let (scene, mut java, mut listener) = scene();
    let acquired = scene.place.bare().args(["acquire", "-b", &scene.url, "--ttl", "60s", "x"]).output();
    let token = acquired.stdout.trim_end().to_owned();
    assert!(matches!(java.lock(60_000), Value::Int(_)));
    let with_token = |command: &str| {
        scene.place.bare().args([command, "-b", &scene.url, "x"]).env("DLOCK_TOKEN", &token).output().exit
    };
    assert_eq!([with_token("renew"), with_token("check")], [Exit::Code(0); 2]);
    assert!(listener.is_silent());
    assert_eq!(with_token("release"), Exit::Code(0));
    assert_eq!(listener.hears(), "0");
    assert_eq!(java.lock(60_000), Value::Nil);
    assert_eq!(with_token("check"), Exit::Code(76));
}

/// The end of a hold kept by `--min-hold` is not announced until it is broken.
#[test]
fn breaking_a_hold_kept_by_min_hold_notifies() {
    let (scene, mut java, mut listener) = scene();
    let kept = scene.run().args(["--min-hold", "10m"]).command(["true"]).output();
    assert_eq!(kept.exit, Exit::Code(0));
    assert!(listener.is_silent());
    assert!(matches!(java.lock(60_000), Value::Int(_)));
    let broken = scene.place.bare().args(["break", "-b", &scene.url, "--yes", "x"]).output();
    assert_eq!(broken.exit, Exit::Code(0), "{}", broken.stderr);
    assert_eq!(listener.hears(), "0");
    assert_eq!(java.lock(60_000), Value::Nil);
}

#[test]
fn breaking_a_live_hold_notifies() {
    let (scene, _, mut listener) = scene();
    let mut run = scene.holding(&[]);
    let broken = scene.place.bare().args(["break", "-b", &scene.url, "--yes", "x"]).output();
    assert_eq!(broken.exit, Exit::Code(0), "{}", broken.stderr);
    assert_eq!(run.wait().exit, Exit::Code(76));
    assert_eq!(listener.hears(), "0");
}

/// Only the shown hold is removed: not the same lock entered once more, and not the next hold.
#[test]
fn removing_a_foreign_hold_notifies() {
    let (scene, mut java, mut listener) = scene();
    assert_eq!(java.lock(60_000), Value::Nil);
    let broken = |options: &[&str]| {
        scene.place.bare().args(["break", "-b", &scene.url, "--yes"]).args(options).arg("x").output().exit
    };
    assert_eq!(broken(&[]), Exit::Code(75));
    assert!(listener.is_silent());
    assert_eq!(broken(&["--force"]), Exit::Code(0));
    assert_eq!(listener.hears(), "0");
    assert_eq!((java.renew(), scene.command(&["EXISTS", &scene.key])), (Value::Int(0), Value::Int(0)));
}

//! Waiters for an `RLock` listen on a channel: they are notified there whenever dlock ends a hold, however that is
//! done.

use super::Fixture;
use super::simulated_clients::{Listener, Thread};
use crate::support::resp::Value;
use crate::support::running::Exit;

fn fixture() -> (Fixture, Thread, Listener) {
    let fixture = Fixture::of("redisson");
    let thread = Thread::new(&fixture, 1);
    let listener = Listener::on(&fixture, "SUBSCRIBE", &thread.of_lock("_channel"));
    (fixture, thread, listener)
}

/// F49: as the library waits: it tries, subscribes, tries again, and then does nothing until it is notified.
#[test]
fn a_waiting_rlock_is_notified_when_a_run_ends_and_gets_the_lock() {
    let (fixture, mut java, mut listener) = fixture();
    let mut run = fixture.holding(&[]);
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
    let (fixture, java, _) = fixture();
    let mut listener = Listener::on(&fixture, "SSUBSCRIBE", &java.of_lock("_channel"));
    assert_eq!(fixture.run().command(["true"]).output().exit, Exit::Code(0));
    assert_eq!(listener.hears(), "0");
}

/// Fair locks have a queue, and each waiter has its own channel.
#[test]
fn the_first_waiter_of_a_fair_lock_is_notified() {
    let (fixture, java, _) = fixture();
    let line = java.of_lock("queue");
    let mut listeners: Vec<Listener> = ["uuid:7", "uuid:8"]
        .map(|id| {
            fixture.command(&["RPUSH", &line, id]);
            Listener::on(&fixture, "SUBSCRIBE", &format!("{}:{id}", java.of_lock("_channel")))
        })
        .into();
    assert_eq!(fixture.run().command(["true"]).output().exit, Exit::Code(0));
    assert_eq!(listeners[0].hears(), "0");
    assert!(listeners[1].is_silent());
    assert_eq!(fixture.command(&["LRANGE", &line, "0", "-1"]).texts(), ["uuid:7", "uuid:8"]);
    fixture.command(&["DEL", &line]);
}

#[test]
fn only_the_last_sharing_holder_notifies() {
    let (fixture, _, mut listener) = fixture();
    for options in [&["--shared"][..], &["--slots", "2"]] {
        let mut runs = [fixture.holding(options), fixture.holding(options)];
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
    let (fixture, mut java, mut listener) = fixture();
    let acquired = fixture.place.bare().args(["acquire", "-b", &fixture.url, "--ttl", "60s", "x"]).output();
    let token = acquired.stdout.trim_end().to_owned();
    assert!(matches!(java.lock(60_000), Value::Int(_)));
    let with_token = |command: &str| {
        fixture.place.bare().args([command, "-b", &fixture.url, "x"]).env("DLOCK_TOKEN", &token).output().exit
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
    let (fixture, mut java, mut listener) = fixture();
    let kept = fixture.run().args(["--min-hold", "10m"]).command(["true"]).output();
    assert_eq!(kept.exit, Exit::Code(0));
    assert!(listener.is_silent());
    assert!(matches!(java.lock(60_000), Value::Int(_)));
    let broken = fixture.place.bare().args(["break", "-b", &fixture.url, "--yes", "x"]).output();
    assert_eq!(broken.exit, Exit::Code(0), "{}", broken.stderr);
    assert_eq!(listener.hears(), "0");
    assert_eq!(java.lock(60_000), Value::Nil);
}

#[test]
fn breaking_a_live_hold_notifies() {
    let (fixture, _, mut listener) = fixture();
    let mut run = fixture.holding(&[]);
    let broken = fixture.place.bare().args(["break", "-b", &fixture.url, "--yes", "x"]).output();
    assert_eq!(broken.exit, Exit::Code(0), "{}", broken.stderr);
    assert_eq!(run.wait().exit, Exit::Code(76));
    assert_eq!(listener.hears(), "0");
}

/// Only the shown hold is removed: not the same lock entered once more, and not the next hold.
#[test]
fn removing_a_foreign_hold_notifies() {
    let (fixture, mut java, mut listener) = fixture();
    assert_eq!(java.lock(60_000), Value::Nil);
    let broken = |options: &[&str]| {
        fixture.place.bare().args(["break", "-b", &fixture.url, "--yes"]).args(options).arg("x").output().exit
    };
    assert_eq!(broken(&[]), Exit::Code(75));
    assert!(listener.is_silent());
    assert_eq!(broken(&["--force"]), Exit::Code(0));
    assert_eq!(listener.hears(), "0");
    assert_eq!((java.renew(), fixture.command(&["EXISTS", &fixture.key])), (Value::Int(0), Value::Int(0)));
}

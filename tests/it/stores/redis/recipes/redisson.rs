//! The `RLock` of Redisson, on the same key.

use super::Fixture;
use super::simulated_clients::Thread;
use crate::support::SOON;
use crate::support::redis::{Keyspace, await_renewal};
use crate::support::resp::Value;
use crate::support::running::Exit;
use crate::support::wait::{throughout, until};
use std::time::Duration;

fn fixture() -> (Fixture, Thread) {
    let fixture = Fixture::of("redisson");
    let thread = Thread::new(&fixture, 1);
    (fixture, thread)
}

/// F49: every entry needs an exit.
#[test]
fn dlock_is_excluded_by_an_rlock_until_every_entry_is_left() {
    let (fixture, mut java) = fixture();
    assert_eq!([java.lock(60_000), java.lock(60_000)], [Value::Nil, Value::Nil]);
    let before = fixture.content();
    let beginning = format!(
        "dlock: x is held by another program on redis://127.0.0.1:{}/0?recipe=redisson&prefix={} (not a dlock, \
        for another ",
        fixture.space.port(),
        fixture.space.prefix()
    );
    for options in [&["--exclusive"][..], &["--shared"], &["--slots", "3"], &["--wait", "200ms"]] {
        let refused = fixture.run().args(options).command(["touch", "t"]).output();
        assert_eq!((refused.exit, refused.stdout.as_str()), (Exit::Code(75), ""));
        assert!(refused.stderr.starts_with(&beginning), "{}", refused.stderr);
    }
    assert_eq!(fixture.content(), before);
    assert_eq!(java.unlock(), Value::Int(0));
    assert_eq!(fixture.run().command(["touch", "t"]).output().exit, Exit::Code(75));
    assert_eq!(java.unlock(), Value::Int(1));
    assert!(!fixture.place.path("t").exists());
    assert_eq!(fixture.run().sh("echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""));
}

/// F49
#[test]
fn an_rlock_is_excluded_by_dlock_for_longer_than_a_lease() {
    let (fixture, mut java) = fixture();
    let mut run = fixture.holding(&[]);
    let fields = fixture.command(&["HGETALL", &fixture.key]).texts();
    assert_eq!((fields.len(), fields[1].as_str()), (2, "1"), "{fields:?}");
    let Value::Int(rest) = java.lock(60_000) else { panic!("the lock was taken") };
    assert!((1..=6_000).contains(&rest), "{rest}");
    let mut client = fixture.client();
    for _ in 0..2 {
        await_renewal(|| client.command(&["PTTL", &fixture.key]).int());
        assert!(matches!(java.lock(60_000), Value::Int(_)));
    }
    // It is not theirs to renew or to release.
    assert_eq!((java.renew(), java.unlock()), (Value::Int(0), Value::Nil));
    run.assert_running();
    drop(run.take_stdin());
    assert_eq!(run.wait().outcome(), (Exit::Code(0), "ready\n", ""));
    assert_eq!(java.lock(60_000), Value::Nil);
}

/// F49
#[test]
fn a_waiter_is_granted_the_lock_at_the_last_unlock_of_an_rlock() {
    let (fixture, mut java) = fixture();
    for options in [&["--exclusive"][..], &["--shared"], &["--slots", "2"]] {
        assert_eq!([java.lock(600_000), java.lock(600_000)], [Value::Nil, Value::Nil]);
        let mut waiter = fixture.waiting(options);
        assert_eq!((java.renew(), java.unlock()), (Value::Int(1), Value::Int(0)));
        throughout(Duration::from_millis(100), "dlock waits", || waiter.poll().is_none());
        assert_eq!(java.unlock(), Value::Int(1));
        let output = waiter.wait();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", output.stderr);
    }
}

/// F49: a Java program that has crashed.
#[test]
fn a_waiter_is_granted_the_lock_when_the_lease_of_an_rlock_ends() {
    let (fixture, mut java) = fixture();
    assert_eq!(java.lock(500), Value::Nil);
    let run = fixture.run().args(["--wait", "forever"]).sh("echo ran").output();
    assert_eq!(run.outcome(), (Exit::Code(0), "ran\n", ""));
    assert_eq!(java.renew(), Value::Int(0));
}

/// Readers and holders of slots are one owner to it, whichever of them join and leave.
#[test]
fn an_rlock_is_excluded_until_the_last_sharing_holder_has_left() {
    let (fixture, mut java) = fixture();
    for options in [&["--shared"][..], &["--slots", "3"]] {
        let mut first = fixture.holding(options);
        let mut second = fixture.holding(options);
        assert_eq!(fixture.command(&["HLEN", &fixture.key]), Value::Int(1));
        assert!(matches!(java.lock(60_000), Value::Int(_)));
        drop(first.take_stdin());
        assert_eq!(first.wait().exit, Exit::Code(0));
        assert!(matches!(java.lock(60_000), Value::Int(_)));
        drop(second.take_stdin());
        assert_eq!(second.wait().exit, Exit::Code(0));
        assert_eq!((java.lock(60_000), java.unlock()), (Value::Nil, Value::Int(1)));
    }
}

/// The hold is passed on without a moment in which it is free.
#[test]
fn an_rlock_is_excluded_while_nested_holds_outlive_the_first_owner() {
    let (fixture, mut java) = fixture();
    let inner = format!(
        "{} run --ttl 6s -b '{}' x -- sh -c 'echo inside; until [ -e go ]; do sleep 0.05; done' >out",
        crate::support::dlock::BINARY,
        fixture.url
    );
    let text = format!("{inner} & until grep -q inside out; do sleep 0.05; done");
    let outer = fixture.run().args(["--ttl", "6s", "--orphans", "leave"]).sh(&text).output();
    assert_eq!(outer.exit, Exit::Code(0), "{}", outer.stderr);
    let fields = fixture.command(&["HGETALL", &fixture.key]).texts();
    assert_eq!((fields.len(), fields[1].as_str()), (2, "1"), "{fields:?}");
    assert!(matches!(java.lock(60_000), Value::Int(_)));
    let mut client = fixture.client();
    await_renewal(|| client.command(&["PTTL", &fixture.key]).int());
    fixture.place.write("go", "");
    until(SOON, "the end of the inner run", || java.lock(60_000) == Value::Nil);
}

/// F10: the other client's hold is not touched.
#[test]
fn dlock_does_not_touch_a_lock_that_an_rlock_has_taken_since() {
    let (fixture, mut java) = fixture();
    for options in [&["--exclusive"][..], &["--shared"]] {
        let mut run = fixture.holding(options);
        fixture.command(&["DEL", &fixture.key]);
        until(SOON, "Redisson to have it", || java.lock(60_000) == Value::Nil);
        let before = fixture.content();
        let output = run.wait();
        assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
        assert_eq!(fixture.content(), before);
        while java.unlock() == Value::Int(0) {}
    }
}

/// F09: long before the next renewal, because the server pushes every change of the lock.
#[test]
fn a_deleted_hold_is_lost_at_once() {
    let (fixture, _) = fixture();
    let mut run = fixture.run().args(["--ttl", "10m"]).sh("echo ready; exec sleep 600").spawn();
    run.await_ready();
    fixture.command(&["DEL", &fixture.key]);
    assert_eq!(run.wait().exit, Exit::Code(76));
}

/// Each continues from the other's counter, and the shared counter never expires.
#[test]
fn fencing_tokens_grow_on_both_sides() {
    let (fixture, mut java) = fixture();
    let dlock = || -> u64 {
        let run = fixture.run().sh("echo $DLOCK_FENCING_TOKEN").output();
        assert_eq!(run.exit, Exit::Code(0), "{}", run.stderr);
        run.stdout.trim().parse().unwrap()
    };
    let counter = java.of_lock("token");
    let mut last = 0;
    for round in 0..3 {
        let theirs = java.fenced().expect("the lock is free");
        assert!(theirs > last, "{theirs} after {last}");
        if round == 0 {
            assert_eq!(theirs, 1);
        }
        assert_eq!(java.unlock(), Value::Int(1));
        let ours = dlock();
        assert!(ours > theirs, "{ours} after {theirs}");
        assert_eq!(fixture.command(&["PTTL", &counter]), Value::Int(-1));
        last = dlock();
        assert!(last > ours, "{last} after {ours}");
    }
    // A counter ahead of the server's clock.
    fixture.command(&["SET", &counter, "3769824800123456"]);
    assert_eq!((dlock(), java.fenced()), (3769824800123457, Some(3769824800123458)));
}

/// An application's lock is acquired by its exact key, including braces.
#[test]
fn the_exact_key_of_an_application_can_be_locked() {
    let space = Keyspace::new();
    let prefix = format!("{}{{app}}:", space.prefix());
    let fixture = Fixture::with_prefix("redisson", &prefix, space);
    let mut java = Thread::new(&fixture, 1);
    assert!(java.fenced().is_some());
    assert_eq!(fixture.run().command(["true"]).output().exit, Exit::Code(75));
    assert_eq!(java.unlock(), Value::Int(1));
    let run = fixture.run().sh("echo $DLOCK_FENCING_TOKEN").output();
    assert_eq!(run.exit, Exit::Code(0));
    assert_eq!(java.fenced().unwrap(), run.stdout.trim().parse::<u64>().unwrap() + 1);
}

/// `RReadWriteLock` does not see the holder of an `RLock`: dlock does, and reports what to do.
#[test]
fn a_read_write_lock_on_the_same_key_is_named() {
    let (fixture, mut java) = fixture();
    assert_eq!(java.lock_as_reader(), Value::Nil);
    let before = fixture.content();
    let refused = fixture.run().command(["true"]).output();
    let named = "(not a dlock, a key of type hash, as Redisson's RReadWriteLock makes it (no recipe supports it: \
    use another name), for another ";
    assert_eq!(refused.exit, Exit::Code(75));
    assert!(refused.stderr.contains(named), "{}", refused.stderr);
    let shown = fixture.place.bare().args(["status", "-b", &fixture.url, "x"]).output();
    assert!(shown.stdout.contains("as Redisson's RReadWriteLock makes it"), "{}", shown.stdout);
    assert_eq!(fixture.content(), before);
}

/// When one is taken beside a hold, two may run: dlock stops its command, and does not touch the other lock.
#[test]
fn a_read_write_lock_taken_over_a_hold_makes_it_lost() {
    let (fixture, mut java) = fixture();
    let mut run = fixture.holding(&[]);
    assert_eq!(java.lock_as_reader(), Value::Nil, "it looks at the mode alone");
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
    assert_eq!(fixture.command(&["HGET", &fixture.key, java.id()]), Value::Text("1".into()));
}

/// `status` distinguishes a dlock's hold from a Java program's.
#[test]
fn status_shows_the_rlock_as_holder() {
    let (fixture, mut java) = fixture();
    let show = |url: &str| {
        let shown = fixture.place.bare().args(["status", "--json", "-b", url, "x"]).output();
        let value: serde_json::Value = serde_json::from_str(&shown.stdout).unwrap();
        value["locks"][0].clone()
    };
    assert_eq!(java.lock(60_000), Value::Nil);
    let lock = show(&fixture.url);
    assert_eq!((&lock["state"], &lock["holders"][0]["foreign"]), (&"held".into(), &true.into()), "{lock}");
    assert_eq!(java.unlock(), Value::Int(1));
    let mut run = fixture.holding(&[]);
    let lock = show(&fixture.url);
    assert_eq!(
        (&lock["mode"], &lock["holders"][0]["foreign"]),
        (&"exclusive".into(), &false.into()),
        "{lock}"
    );
    assert_eq!(lock["holders"][0]["pid"], run.pid());
    drop(run.take_stdin());
    assert_eq!(run.wait().exit, Exit::Code(0));
    assert_eq!(show(&fixture.url)["state"], "free");
}

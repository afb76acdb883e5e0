//! A server that loses its script cache, and a server without free memory.

use super::fixture::Fixture;
use crate::support::SOON;
use crate::support::redis::Redis;
use crate::support::resp::Value;
use crate::support::running::Exit;
use crate::support::wait::{side_by_side, until};

/// F30
#[test]
fn flushed_scripts_are_sent_again() {
    let redis = Redis::start();
    let fixture = Fixture::on(&redis);
    let run = fixture.witness();
    for _ in 0..2 {
        redis.command(&["SCRIPT", "FLUSH"]);
        fixture.await_renewals(2);
    }
    redis.command(&["SCRIPT", "FLUSH"]);
    // No renewal was missed: each one got a reply, and none was repeated.
    assert!(fixture.leases().iter().all(|flight| flight.answered.is_some() && flight.commands.len() <= 3));
    fixture.assert_undisturbed(run);
}

/// A server without room for one more key.
fn full(redis: &Redis) {
    assert_eq!(redis.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]), Value::Text("OK".into()));
    assert_eq!(redis.command(&["CONFIG", "SET", "maxmemory", "1"]), Value::Text("OK".into()));
    assert!(matches!(redis.command(&["SET", "k", "v"]), Value::Error(text) if text.starts_with("OOM")));
}

/// F31
#[test]
fn a_full_server_is_named() {
    let redis = Redis::start();
    full(&redis);
    let fixture = Fixture::on(&redis);
    let output = fixture.run().sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""), "{}", output.stderr);
    assert!(output.stderr.contains("out of memory"), "{}", output.stderr);
    assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
    assert_eq!(redis.command(&["KEYS", "*"]), Value::List(Vec::new()));
}

/// F31
#[test]
fn a_full_server_is_waited_for() {
    let redis = Redis::start();
    full(&redis);
    let fixture = Fixture::on(&redis);
    let mut run = fixture.run().args(["--wait", "forever"]).sh("echo ran; exit 3").spawn();
    until(SOON, "two attempts", || fixture.leases().len() >= 2);
    redis.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(run.wait().outcome(), (Exit::Code(3), "ran\n", ""));
}

/// F31
#[test]
fn a_lock_on_a_server_that_fills_up_is_renewed_and_released() {
    side_by_side([true, false], |pushes| {
        let redis = Redis::start();
        let fixture = Fixture::on(&redis);
        let fixture = if pushes { fixture } else { fixture.without_push() };
        let mut run = fixture.witness();
        full(&redis);
        fixture.await_renewals(4);
        assert!(fixture.pttl() > 3_000, "{}", fixture.pttl());
        fixture.go();
        assert_eq!(run.wait().outcome(), (Exit::Code(5), "ready\n", ""));
        assert!(!fixture.is_held());
        redis.command(&["CONFIG", "SET", "maxmemory", "0"]);
        fixture.assert_succession();
    });
}

/// F31
#[test]
fn busy_is_reported_on_a_full_server() {
    let redis = Redis::start();
    let fixture = Fixture::on(&redis);
    let run = fixture.witness();
    full(&redis);
    let output = fixture.direct().sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(75), ""), "{}", output.stderr);
    redis.command(&["CONFIG", "SET", "maxmemory", "0"]);
    fixture.assert_undisturbed(run);
}

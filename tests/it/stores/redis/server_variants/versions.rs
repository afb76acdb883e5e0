//! Servers of other versions, whose features are detected: dlock contains no version numbers. The oldest also passes
//! the whole conformance suite.

use crate::admin::doctor::{Findings, doctor};
use crate::support::place::Place;
use crate::support::proxy::Proxy;
use crate::support::redis::{Redis, await_renewal};
use crate::support::resp::Value;
use crate::support::running::{Exit, Running};
use crate::support::versions::{Version, each_version};
use serde_json::Value as Json;
use std::process::Stdio;
use std::time::{Duration, Instant};

each_version! {
    a_lock_is_acquired_refused_handed_over_by_a_push_and_freed;
    a_holder_sends_three_requests_per_lease_and_notices_a_loss_at_once;
    a_lock_is_shared_and_divided_into_slots;
    a_lock_is_inspected_and_removed_and_its_history_is_kept;
    a_flushed_script_costs_nothing;
    states_without_writes_are_named;
    doctor_finds_no_problem;
}

fn holder(place: &Place, url: &str, args: &[&str]) -> Running {
    let run = place.run().backend(url).args(args).stdin(Stdio::piped());
    let mut holder = run.sh("echo ready; cat; echo \"$DLOCK_FENCING_TOKEN\" >>tokens").spawn();
    holder.await_ready();
    holder
}

fn behind(proxy: &Proxy) -> String {
    format!("redis://127.0.0.1:{}/0", proxy.port())
}

fn a_lock_is_acquired_refused_handed_over_by_a_push_and_freed(version: Version) {
    let (redis, place) = (version.start(), Place::new());
    let proxy = Proxy::to(redis.port());
    let mut first = holder(&place, &redis.url(), &["--ttl", "1h"]);
    let refused = place.run().backend(redis.url()).command(["true"]).output();
    assert_eq!(refused.exit, Exit::Code(75), "{}", refused.stderr);
    assert!(refused.stderr.contains("x is held by "), "{}", refused.stderr);
    let waiter = place.run().backend(behind(&proxy)).args(["-v", "--ttl", "1h", "--wait", "forever"]);
    let mut waiter = waiter.sh("echo \"$DLOCK_FENCING_TOKEN\" >>tokens").spawn();
    waiter.await_stderr("waiting");
    let asked = proxy.flights().len();
    drop(first.take_stdin());
    assert_eq!(first.wait().exit, Exit::Code(0));
    assert_eq!(waiter.wait().exit, Exit::Code(0));
    // It was started by a push: it requested the lock once more, and released it.
    let flights = proxy.flights();
    assert!(flights.len() <= asked + 3, "{flights:?}");
    assert_eq!(redis.command(&["EXISTS", "dlock:x"]), Value::Int(0));
    // F09: a larger number each time, also when all data is lost.
    assert_eq!(redis.command(&["FLUSHALL"]), Value::Text("OK".into()));
    let mut third = holder(&place, &redis.url(), &[]);
    drop(third.take_stdin());
    assert_eq!(third.wait().exit, Exit::Code(0));
    let tokens: Vec<u64> = place.read("tokens").lines().map(|token| token.parse().unwrap()).collect();
    assert!(tokens[0] < tokens[1] && tokens[1] < tokens[2], "{tokens:?}");
}

/// On Redis 6.0 every renewal is pushed to the client that made it.
fn a_holder_sends_three_requests_per_lease_and_notices_a_loss_at_once(version: Version) {
    let (redis, place) = (version.start(), Place::new());
    let proxy = Proxy::to(redis.port());
    let mut run = holder(&place, &behind(&proxy), &["--ttl", "3s", "--grace", "100ms"]);
    for _ in 0..2 {
        await_renewal(|| redis.command(&["PTTL", "dlock:x"]).int());
    }
    let (begun, asked) = (Instant::now(), proxy.flights().len());
    std::thread::sleep(Duration::from_secs(3));
    let thirds = usize::try_from(begun.elapsed().as_millis()).unwrap().div_ceil(1000);
    let asked = proxy.flights().len() - asked;
    assert!(asked <= thirds + 1, "{asked} questions in {thirds} thirds of a lease");
    drop(run.take_stdin());
    assert_eq!(run.wait().exit, Exit::Code(0));
    for loss in [&["DEL", "dlock:x"][..], &["SET", "dlock:x", "somebody else"], &["FLUSHALL"]] {
        let mut run = holder(&place, &redis.url(), &["--ttl", "1h", "--grace", "1s"]);
        redis.command(loss);
        let output = run.wait();
        assert_eq!(output.exit, Exit::Code(76), "{loss:?}: {}", output.stderr);
        redis.command(&["DEL", "dlock:x"]);
    }
}

fn a_lock_is_shared_and_divided_into_slots(version: Version) {
    let (redis, place) = (version.start(), Place::new());
    let url = redis.url();
    let refused = |args: &[&str]| place.run().backend(&url).args(args).command(["true"]).output().exit;
    let mut readers = [holder(&place, &url, &["--shared"]), holder(&place, &url, &["--shared"])];
    assert_eq!(refused(&[]), Exit::Code(75));
    for reader in &mut readers {
        drop(reader.take_stdin());
        assert_eq!(reader.wait().exit, Exit::Code(0));
    }
    let mut slots = [holder(&place, &url, &["--slots", "2"]), holder(&place, &url, &["--slots", "2"])];
    assert_eq!(refused(&["--slots", "2"]), Exit::Code(75));
    for slot in &mut slots {
        drop(slot.take_stdin());
        assert_eq!(slot.wait().exit, Exit::Code(0));
    }
    assert_eq!(refused(&["--min-hold", "1h", "--ttl", "1m"]), Exit::Code(0));
    assert_eq!(refused(&[]), Exit::Code(75), "it is kept");
}

fn a_lock_is_inspected_and_removed_and_its_history_is_kept(version: Version) {
    let (redis, place) = (version.start(), Place::new());
    let on = |command: &str| place.bare().arg(command).args(["-b", &redis.url()]);
    let mut run = holder(&place, &redis.url(), &["--note", "of the field", "--grace", "1s"]);
    let status = on("status").arg("--json").output();
    let locks: Json = serde_json::from_str(&status.stdout).unwrap();
    assert_eq!(locks["locks"][0]["name"], "x", "listed: {locks}");
    assert_eq!(locks["locks"][0]["holders"][0]["note"], "of the field", "{locks}");
    let broken = on("break").args(["--yes", "--reason", "a test", "x"]).output();
    assert_eq!(broken.exit, Exit::Code(0), "{broken:?}");
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(76));
    assert!(output.stderr.contains("a test"), "{}", output.stderr);
    let history = on("status").args(["--history", "x"]).output();
    assert_eq!(history.exit, Exit::Code(0), "{history:?}");
    assert!(history.stdout.contains("a test"), "{history:?}");
    // Another program's hash, with Redisson's field names in it.
    redis.command(&["HSET", "dlock:x", "8743c9c0-0795-4907-87fd-6c719a6b4586:1", "1"]);
    redis.command(&["PEXPIRE", "dlock:x", "3600000"]);
    let refused = place.run().backend(redis.url()).command(["true"]).output();
    assert_eq!(refused.exit, Exit::Code(75));
    assert!(refused.stderr.contains("a key of type hash"), "{}", refused.stderr);
    assert_eq!(on("break").args(["--yes", "--force", "x"]).output().exit, Exit::Code(0));
    assert_eq!(redis.command(&["EXISTS", "dlock:x"]), Value::Int(0));
}

/// F30
fn a_flushed_script_costs_nothing(version: Version) {
    let (redis, place) = (version.start(), Place::new());
    let mut run = holder(&place, &redis.url(), &["--ttl", "6s"]);
    for _ in 0..2 {
        assert_eq!(redis.command(&["SCRIPT", "FLUSH"]), Value::Text("OK".into()));
        await_renewal(|| redis.command(&["PTTL", "dlock:x"]).int());
    }
    assert_eq!(redis.command(&["SCRIPT", "FLUSH"]), Value::Text("OK".into()));
    drop(run.take_stdin());
    assert_eq!(run.wait().outcome(), (Exit::Code(0), "ready\n", ""));
}

#[track_caller]
fn assert_named(redis: &Redis, code: &str) {
    let output = Place::new().run().backend(redis.url()).sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""), "{code}: {}", output.stderr);
    assert!(output.stderr.contains(&format!("{code} ")), "{code}: {}", output.stderr);
    for noise in ["script", "call to"] {
        assert!(!output.stderr.contains(noise), "{code}: {}", output.stderr);
    }
}

/// F27, F31: they have the same errors with other texts.
fn states_without_writes_are_named(version: Version) {
    let redis = version.start();
    let set = |name: &str, value: &str| redis.command(&["CONFIG", "SET", name, value]);
    set("maxmemory", "1");
    assert_named(&redis, "OOM");
    set("maxmemory", "0");
    // That one allows writes in scripts.
    if version != Version::Redis6_0 {
        set("min-replicas-to-write", "1");
        assert_named(&redis, "NOREPLICAS");
        set("min-replicas-to-write", "0");
    }
    redis.command(&["REPLICAOF", "127.0.0.1", "1"]);
    assert_named(
        &redis,
        "the server is a replica, which takes no writes: name its master, which dlock doctor tells (READONLY",
    );
    set("replica-serve-stale-data", "no");
    assert_named(&redis, "MASTERDOWN");
    redis.command(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(Place::new().run().backend(redis.url()).command(["true"]).output().exit, Exit::Code(0));
}

fn doctor_finds_no_problem(version: Version) {
    let redis = version.start();
    let found = Findings::of(doctor(&Place::new(), &redis.url()));
    assert_eq!(found.at("problem"), [""; 0], "{found:?}");
    assert_eq!(found.at("warning"), ["persistence"], "{found:?}");
    let expected = match version {
        Version::Redis6_0 => "Redis 6.0.",
        Version::System => "Redis ",
        Version::Redis8_0 => "Redis 8.0.",
        Version::Valkey8_1 => "Valkey 8.1.",
        Version::Valkey9 => "Valkey 9.",
    };
    assert!(found.only("version", "ok").starts_with(expected), "{found:?}");
    found.only("lock", "ok");
}

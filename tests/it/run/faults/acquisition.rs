//! The moment of the grant: a reply that is lost, late, or not read in time.

use super::fixture::Fixture;
use crate::support::SOON;
use crate::support::flight::Flight;
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

/// Asserts that a dlock that has just ended has removed its claim, long before its lease ends: on a busy machine the
/// store may carry that out after dlock has ended.
#[track_caller]
fn assert_given_back(fixture: &Fixture) {
    until(fixture.ttl / 4, "a lock that was given back", || !fixture.is_held());
}

/// F02
#[test]
fn a_command_whose_store_dies_after_its_start_is_dead_in_time() {
    let fixture = Fixture::new();
    let run = fixture.with_inherited_lock(fixture.run(), &["tick", &fixture.place().arg("tick")]).spawn();
    until(SOON, "an answer handed over", || fixture.proxy.delivered_replies() > 0);
    fixture.proxy.refuse();
    let mut run = run;
    run.await_ready();
    fixture.assert_killed_in_time(run);
    fixture.assert_succession();
}

/// F02
#[test]
fn a_command_is_not_started_near_the_end_of_the_lease() {
    let fixture = Fixture::new();
    let run = fixture.run().args(["--connect-timeout", "60s"]).sh("echo ran");
    let mut run = fixture.stopped_before_the_grant(run);
    let half = u64::try_from(fixture.pttl()).unwrap() / 2;
    until(SOON, "half a lease", || fixture.pttl() < i64::try_from(half).unwrap() - 200);
    run.signal(Signal::SIGCONT);
    assert_not_run(&run.wait());
    assert_given_back(&fixture);
    fixture.assert_succession();
}

/// F02
#[test]
fn a_grant_read_after_its_lease_does_not_touch_the_next_holder() {
    let fixture = Fixture::new();
    let run = fixture.run().args(["--connect-timeout", "60s"]).sh("echo ran");
    let mut run = fixture.stopped_before_the_grant(run);
    let holder = fixture.witness_of(fixture.direct().args(["--wait", "forever"]));
    run.signal(Signal::SIGCONT);
    let output = run.wait();
    assert_eq!(output.stdout, "", "the command ran");
    assert!(matches!(output.exit, Exit::Code(69 | 75)), "{output:?}");
    fixture.assert_undisturbed(holder);
}

/// F03
#[test]
fn a_claim_with_a_lost_reply_is_recognised() {
    // The connection breaks instead of a reply: the repeated request finds that the lock is already held by this run.
    let fixture = Fixture::new().ttl(60);
    fixture.proxy.drop_all(Way::Down);
    // It is asked again at once if half of this has not passed.
    let mut run = fixture.run().args(["--connect-timeout", "20s"]).sh("echo ran; exit 3").spawn();
    until(SOON, "a lock at the store", || fixture.is_held());
    until(SOON, "a lost reply", || fixture.proxy.replies() > 0);
    fixture.proxy.heal();
    fixture.proxy.close();
    assert_eq!(run.wait().outcome(), (Exit::Code(3), "ran\n", ""));
    assert!(!fixture.is_held());
    let sent = |flight: &Flight| -> serde_json::Value {
        let request = flight.commands.last().and_then(|command| command.last()).expect("a request");
        serde_json::from_str(request).expect("JSON")
    };
    let mut claims: Vec<_> = fixture.leases().iter().map(sent).collect();
    claims.pop();
    assert!(claims.len() >= 2, "it was asked once only");
    for pair in claims.windows(2) {
        assert_eq!(pair[0]["token"], pair[1]["token"]);
        assert!(pair[0]["attempt"].as_u64() < pair[1]["attempt"].as_u64(), "{claims:?}");
    }
}

/// F03
#[test]
fn a_claim_with_a_lost_reply_is_recognised_while_waiting() {
    let fixture = Fixture::new().ttl(60);
    fixture.proxy.drop_all(Way::Down);
    // The release has this time, too.
    let run = fixture.run().args(["--wait", "forever", "--connect-timeout", "1800ms"]);
    let mut run = run.sh("echo ran; exit 3").spawn();
    until(SOON, "a lock at the store", || fixture.is_held());
    until(SOON, "another question", || fixture.proxy.flights().len() > 1);
    fixture.proxy.heal();
    assert_eq!(run.wait().outcome(), (Exit::Code(3), "ran\n", ""));
    assert!(!fixture.is_held());
}

/// F03
#[test]
fn a_claim_without_a_reply_is_removed() {
    // Requests arrive, replies do not: the lock must not remain for its minute.
    let fixture = Fixture::new().ttl(60);
    fixture.proxy.drop_all(Way::Down);
    // So long that the proxy has carried the claim to the store before its removal.
    let output = fixture.run().args(["--connect-timeout", "1800ms"]).sh("echo ran").output();
    assert_not_run(&output);
    until(fixture.ttl / 2, "a lock that is free again", || !fixture.is_held());
    assert!(output.stderr.contains("no answer within "), "{}", output.stderr);
}

/// F03
#[test]
fn a_claim_without_a_reply_is_removed_when_the_wait_ends() {
    for option in [["--wait", "2s"], ["--retry", "2s"]] {
        let fixture = Fixture::new().ttl(60);
        fixture.proxy.drop_all(Way::Down);
        // So long that the proxy has carried each claim to the store before its removal.
        let output = fixture.run().args(option).args(["--connect-timeout", "1s"]).sh("echo ran").output();
        assert_not_run(&output);
        until(fixture.ttl / 2, "a lock that is free again", || !fixture.is_held());
    }
}

/// The connection hangs and the server does not: another connection is tried before `--retry` ends, however long one
/// attempt may take.
#[test]
fn a_connection_that_hangs_is_given_up_for_another_one() {
    let fixture = Fixture::new().ttl(60);
    fixture.proxy.drop_all(Way::Down);
    let limits = ["--retry", "18s", "--connect-timeout", "18s"];
    let mut run = fixture.run().args(limits).sh("echo ran").spawn();
    // What was lost does not come back.
    until(SOON, "a lost reply", || fixture.proxy.replies() > 0);
    fixture.proxy.heal();
    let output = run.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", output.stderr);
    assert!(output.elapsed < Duration::from_secs(18), "{:?}", output.elapsed);
}

/// F03
#[test]
fn removing_a_claim_with_a_lost_reply_does_not_touch_the_next_holder() {
    // The first claim is executed and its reply lost; then its key is deleted, and another client takes the lock.
    let fixture = Fixture::new().ttl(60);
    fixture.proxy.drop_all(Way::Down);
    // No second claim is on its way while the key is deleted.
    let run = fixture.run().args(["--wait", "forever", "--connect-timeout", "1800ms"]);
    let mut run = run.sh("echo ran; exit 3").spawn();
    until(SOON, "a lock at the store", || fixture.is_held());
    fixture.proxy.hold(Way::Up);
    fixture.command(&["DEL", &fixture.key()]);
    let mut holder = fixture.witness_of(fixture.direct());
    fixture.proxy.heal();
    crate::support::wait::throughout(Duration::from_secs(1), "the holder's lock", || fixture.is_held());
    holder.assert_running();
    run.assert_running();
    fixture.go();
    assert_eq!(holder.wait().outcome(), (Exit::Code(5), "ready\n", ""));
    assert_eq!(run.wait().outcome(), (Exit::Code(3), "ran\n", ""));
}

/// F16
#[test]
fn a_grant_that_took_longer_than_the_lease_is_discarded() {
    for way in [Way::Up, Way::Down] {
        let fixture = Fixture::new().ttl(1);
        fixture.proxy.delay(way, Duration::from_millis(1200));
        assert_not_run(&fixture.run().sh("echo ran").output());
        until(SOON, "a lock that is free again", || !fixture.is_held());
        fixture.assert_succession();
    }
}

/// F16
#[test]
fn a_grant_that_took_most_of_the_lease_is_released() {
    let fixture = Fixture::new().ttl(6);
    fixture.proxy.delay(Way::Down, Duration::from_millis(3300));
    let mut run = fixture.run().args(["--connect-timeout", "20s"]).sh("echo ran").spawn();
    eventually(SOON, "an answer handed over", || fixture.leases().first()?.answered);
    fixture.proxy.heal();
    assert_not_run(&run.wait());
    assert_given_back(&fixture);
}

/// F16
#[test]
fn the_lease_of_a_slow_grant_counts_from_the_sending_of_its_request() {
    let fixture = Fixture::new();
    fixture.proxy.delay(Way::Down, Duration::from_secs(1));
    let run = fixture.ticker();
    fixture.proxy.hold_both();
    fixture.store.await_death_under_lock(&fixture.inherited_lock);
    fixture.assert_killed_in_time(run);
    fixture.assert_succession();
}

/// F16
#[test]
fn a_lock_is_acquired_once_the_store_is_fast_again() {
    let fixture = Fixture::new().ttl(6);
    fixture.proxy.delay(Way::Down, Duration::from_millis(3300));
    let run = fixture.run().args(["--wait", "forever", "--connect-timeout", "20s"]);
    let mut run = run.sh("echo ran; exit 3").spawn();
    eventually(SOON, "an answer handed over", || fixture.leases().first()?.answered);
    fixture.proxy.heal();
    assert_eq!(run.wait().outcome(), (Exit::Code(3), "ran\n", ""));
    assert!(!fixture.is_held());
}

/// F16
#[test]
fn a_grant_of_a_server_that_hung_is_released() {
    let redis = Redis::start();
    let fixture = Fixture::on(&redis).ttl(4);
    redis.stop();
    let mut run = fixture.run().args(["--connect-timeout", "20s"]).sh("echo ran").spawn();
    let asked = eventually(SOON, "a question", || Some(fixture.proxy.flights().first()?.at));
    until(SOON, "more than a lease", || asked.elapsed() > Duration::from_millis(4500));
    redis.resume();
    assert_not_run(&run.wait());
    assert_given_back(&fixture);
    fixture.assert_succession();
}

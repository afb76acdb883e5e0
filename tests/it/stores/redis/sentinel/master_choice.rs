//! Which of the servers named by sentinels is used.

use super::stage::{FakeReply, FakeService, SERVICE};
use crate::support::SOON;
use crate::support::redis::Redis;
use crate::support::running::Exit;
use crate::support::wait::until;

/// Longer than any test waits: a test that waits for a hung sentinel fails.
const FOR_EVER: [&str; 2] = ["--connect-timeout", "600s"];

/// Runs a command with these replies of the sentinels, and returns which server had the lock.
#[track_caller]
fn chosen(says: [impl Fn(&FakeService) -> FakeReply; 3]) -> usize {
    let stage = FakeService::new();
    stage.all_say(says.map(|says| says(&stage)));
    let run = stage.witness(stage.run().args(FOR_EVER));
    let held = [stage.is_held(0), stage.is_held(1)];
    stage.go();
    let mut run = run;
    assert_eq!(run.wait().outcome(), (Exit::Code(5), "ready\n", ""));
    assert_eq!([stage.is_held(0), stage.is_held(1)], [false, false], "the lock is left");
    match held {
        [true, false] => 0,
        [false, true] => 1,
        other => panic!("{other:?}"),
    }
}

type Saying = fn(&FakeService) -> FakeReply;
const OLD: Saying = |stage| stage.name(0, 3);
const NEW: Saying = |stage| stage.name(1, 4);
const HANGS: Saying = |_| FakeReply::Hangs;
const REFUSES: Saying = |_| FakeReply::Refuses;
const KNOWS_NOTHING: Saying = |_| FakeReply::KnowsNothing;

#[test]
fn the_lock_is_acquired_at_the_master_named_by_most_sentinels() {
    assert_eq!(chosen([OLD, OLD, OLD]), 0);
    assert_eq!(chosen([NEW, OLD, NEW]), 1);
}

#[test]
fn a_lying_sentinel_is_outvoted() {
    assert_eq!(chosen([NEW, OLD, OLD]), 0);
}

#[test]
fn a_hung_sentinel_costs_nothing() {
    assert_eq!(chosen([HANGS, OLD, OLD]), 0);
}

#[test]
fn when_most_sentinels_hang_one_reply_suffices() {
    assert_eq!(chosen([HANGS, OLD, HANGS]), 0);
    assert_eq!(chosen([REFUSES, OLD, HANGS]), 0);
}

#[test]
fn without_a_majority_the_latest_failover_counts() {
    assert_eq!(chosen([OLD, NEW, HANGS]), 1);
    assert_eq!(chosen([NEW, OLD, HANGS]), 1);
    assert_eq!(chosen([OLD, REFUSES, NEW]), 1);
}

#[test]
fn sentinels_without_the_service_do_not_vote() {
    assert_eq!(chosen([KNOWS_NOTHING, NEW, KNOWS_NOTHING]), 1);
}

#[test]
fn a_cold_start_queries_each_sentinel_once_in_one_round_trip() {
    let stage = FakeService::new();
    // Nothing is requested until the command ends: by then the replies may be too old, and are requested again.
    let mut run = stage.witness(stage.run_with_ttl("600s"));
    for sentinel in &stage.sentinels {
        until(SOON, "both questions", || sentinel.commands().len() >= 2);
        let commands = sentinel.commands();
        let expected = [["SENTINEL", "get-master-addr-by-name", SERVICE], ["SENTINEL", "master", SERVICE]];
        assert_eq!((sentinel.connections(), commands.len()), (1, 2), "{commands:?}");
        assert_eq!(commands, expected);
    }
    stage.go();
    assert_eq!(run.wait().outcome(), (Exit::Code(5), "ready\n", ""));
}

#[track_caller]
fn refused(stage: &FakeService, status: i32, why: &str) {
    let output = stage.run().command(["touch", "ran"]).output();
    let line = format!("dlock: x on {}: {why}\n", stage.url());
    assert_eq!(output.outcome(), (Exit::Code(status), "", line.as_str()));
    assert!(!stage.place.path("ran").exists(), "the command ran");
}

#[test]
fn an_unknown_service_is_named_with_the_known_ones() {
    let stage = FakeService::new();
    let url = format!("redis-sentinel://{}/lokcs", stage.hosts());
    let output = stage.place.run().backend(url).command(["touch", "ran"]).output();
    let line = format!(
        "dlock: x on redis-sentinel://{}/lokcs/0: the sentinels do not know the service 'lokcs' (known: {SERVICE}); the command \
         did not run\n",
        stage.hosts()
    );
    assert_eq!(output.outcome(), (Exit::Code(78), "", line.as_str()));
    assert!(!stage.place.path("ran").exists(), "the command ran");
}

#[test]
fn an_unknown_service_is_reported_when_most_sentinels_are_down() {
    let stage = FakeService::new();
    stage.all_say([FakeReply::Refuses, FakeReply::KnowsNothing, FakeReply::Hangs]);
    let why = format!(
        "the sentinels do not know the service '{SERVICE}' (known: {SERVICE}); the command did not run"
    );
    refused(&stage, 78, &why);
}

#[test]
fn sentinels_that_are_all_down_are_named() {
    let place = crate::support::place::Place::new();
    let url = "redis-sentinel://127.0.0.1:1,127.0.0.1:2/locks";
    let output = place.run().backend(url).command(["touch", "ran"]).output();
    let stderr = &output.stderr;
    assert_eq!(output.exit, Exit::Code(69), "{stderr}");
    let begins = format!("dlock: x on {url}/0: none of the sentinels can be asked (");
    assert!(stderr.starts_with(&begins) && stderr.lines().count() == 1, "{stderr}");
    for port in [1, 2] {
        assert!(stderr.contains(&format!("127.0.0.1:{port}: connection refused")), "{stderr}");
    }
    assert!(!place.path("ran").exists(), "the command ran");
}

#[test]
fn sentinels_that_all_hang_cost_only_the_connect_timeout() {
    let stage = FakeService::new();
    stage.all_say([FakeReply::Hangs; 3]);
    let output = stage.run().args(["--connect-timeout", "300ms"]).command(["touch", "ran"]).output();
    let line = format!(
        "dlock: x on {}: no connection within 300 ms; the command did not run, see --retry\n",
        stage.url()
    );
    assert_eq!(output.outcome(), (Exit::Code(69), "", line.as_str()));
}

#[test]
fn a_server_other_than_a_sentinel_is_reported() {
    let redis = Redis::start();
    let url = format!("redis-sentinel://127.0.0.1:{}/locks", redis.port());
    let output = crate::support::place::Place::new().run().backend(&url).command(["true"]).output();
    assert_eq!(output.exit, Exit::Code(78), "{}", output.stderr);
    let why = format!("sentinel 127.0.0.1:{}: no sentinel listens there", redis.port());
    assert!(output.stderr.contains(&why), "{}", output.stderr);
}

#[test]
fn a_master_that_is_down_is_named() {
    let mut stage = FakeService::new();
    stage.servers[0].kill();
    let why = format!(
        "master 127.0.0.1:{}: connection refused; the command did not run, see --retry",
        stage.servers[0].port()
    );
    refused(&stage, 69, &why);
}

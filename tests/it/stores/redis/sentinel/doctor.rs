//! The findings of doctor about sentinels.

use super::stage::{FakeReply, FakeService};
use crate::support::SOON;
use crate::support::doctor::assert_run_agrees;
use crate::support::place::Place;
use crate::support::postgres::Postgres;
use crate::support::running::{Exit, Output};
use crate::support::sentinels::Sentinels;
use std::time::Instant;

fn examine(url: &str) -> Output {
    Place::new().bare().args(["doctor", "--json", "-b", url]).output()
}

/// The findings of these checks: level and text.
fn findings(output: &Output, checks: &[&str]) -> Vec<(String, String)> {
    let report: serde_json::Value = serde_json::from_str(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", output.stdout, output.stderr));
    let findings = report["findings"].as_array().expect("findings").iter();
    let text = |value: &serde_json::Value| value.as_str().expect("a text").to_owned();
    findings
        .filter(|finding| checks.contains(&finding["check"].as_str().expect("a check")))
        .map(|finding| (text(&finding["level"]), text(&finding["found"])))
        .collect()
}

/// Examines until these are the findings and the exit status: on a busy machine a healthy sentinel may need more than
/// the second it is given, or take a replica for disconnected.
#[track_caller]
fn assert_eventually(url: &str, checks: &[&str], expected: &[(String, String)], exit: i32) -> Output {
    let until = Instant::now() + SOON;
    loop {
        let output = examine(url);
        let found = findings(&output, checks);
        if (found.as_slice(), &output.exit) == (expected, &Exit::Code(exit)) {
            return output;
        }
        assert!(Instant::now() < until, "expected {exit}, {expected:#?}, found {}", output.stdout);
    }
}

const CHECKS: &[&str] = &["sentinels", "agreement", "quorum", "replicas"];

fn owned<const N: usize>(findings: [(&str, String); N]) -> Vec<(String, String)> {
    findings.into_iter().map(|(level, found)| (level.to_owned(), found)).collect()
}

#[test]
fn a_healthy_service_is_reported() {
    let group = Sentinels::lent();
    let master = format!("127.0.0.1:{}", group.master().port());
    let names =
        |sentinel: usize| ("ok", format!("127.0.0.1:{} names {master}", group.sentinel(sentinel).port()));
    let healthy = owned([
        names(0),
        names(1),
        names(2),
        ("ok", format!("3 of 3 sentinels name {master}")),
        ("ok", "3 sentinels, of which 2 have to agree that the master is down".to_owned()),
        ("ok", "2 of 2 are up".to_owned()),
    ]);
    let output = assert_eventually(&group.url(), CHECKS, &healthy, 0);
    // The master is examined like any other server.
    assert_eq!(findings(&output, &["lock", "role"]).len(), 2);
}

#[test]
fn too_few_sentinels_in_the_url_and_too_few_replicas_are_reported() {
    let group = Sentinels::lent();
    let url = format!("redis-sentinel://127.0.0.1:{}/locks/0?wait_replicas=3", group.sentinel(0).port());
    let expected = owned([
        (
            "warning",
            "3 sentinels, of which 2 have to agree that the master is down; the URL names 1".to_owned(),
        ),
        ("ok", "2 of 2 are up".to_owned()),
        ("problem", "2 are connected, and wait_replicas=3 have to confirm a lock".to_owned()),
    ]);
    assert_eventually(&url, &["quorum", "replicas"], &expected, 1);
}

#[test]
fn sentinels_without_a_quorum_are_reported() {
    let mut group = Sentinels::lent();
    for sentinel in [0, 1] {
        group.sentinel_mut(sentinel).kill();
    }
    group.set_down_after(std::time::Duration::from_millis(500));
    let output = crate::support::wait::eventually(crate::support::SOON, "a quorum that is missed", || {
        let output = examine(&group.url());
        let told = findings(&output, &["quorum"]);
        told.first()
            .is_some_and(|(level, found)| level == "problem" && found.contains("NOQUORUM"))
            .then_some(output)
    });
    assert_eq!(output.exit, Exit::Code(1));
    let levels: Vec<String> =
        findings(&output, &["sentinels", "agreement"]).into_iter().map(|(level, _)| level).collect();
    assert_eq!(levels, ["warning", "warning", "ok", "problem"]);
}

/// Each of them has its own time.
#[test]
fn a_hung_sentinel_is_reported_and_the_others_are_examined() {
    let stage = FakeService::new();
    stage.all_say([FakeReply::Hangs, stage.name(0, 0), stage.name(0, 0)]);
    let output = examine(&stage.url());
    let seen = findings(&output, &["sentinels", "agreement"]);
    assert_eq!((seen[0].0.as_str(), seen[1].0.as_str()), ("warning", "ok"), "{seen:?}");
    assert!(seen[0].1.ends_with("no answer within 2s"), "{seen:?}");
    let master = format!("2 of 3 sentinels name 127.0.0.1:{}", stage.servers[0].port());
    assert_eq!(seen[3], ("ok".to_owned(), master));
    assert_eq!(findings(&output, &["lock"]).len(), 1, "{}", output.stdout);
}

#[test]
fn sentinels_that_disagree_are_reported() {
    let stage = FakeService::new();
    stage.all_say([stage.name(0, 0), stage.name(0, 0), stage.name(1, 9)]);
    let master = format!("127.0.0.1:{}", stage.servers[0].port());
    let seen = findings(&examine(&stage.url()), &["agreement"]);
    assert_eq!(seen, owned([("warning", format!("2 of 3 sentinels name {master}"))]));

    stage.all_say([stage.name(0, 0), FakeReply::Refuses, stage.name(1, 9)]);
    let master = format!("127.0.0.1:{}", stage.servers[1].port());
    let seen = findings(&examine(&stage.url()), &["agreement"]);
    let found = format!("1 of 3 sentinels name {master}, which is not a majority");
    assert_eq!(seen, owned([("problem", found)]));
}

#[test]
fn sentinels_without_any_service_are_a_problem() {
    let stage = FakeService::new();
    stage.all_say([FakeReply::KnowsNothing, FakeReply::Refuses, FakeReply::KnowsNothing]);
    let output = examine(&stage.url());
    assert_eq!(output.exit, Exit::Code(1), "{}", output.stdout);
    let seen = findings(&output, &["agreement"]);
    assert_eq!(seen, owned([("problem", "no sentinel knows the master of 'locks'".to_owned())]));
    assert_run_agrees(&stage.url(), "agreement", 78, "see the findings above");
}

#[test]
fn a_server_of_another_kind_is_named() {
    let other = Postgres::lent();
    let url = format!("redis-sentinel://127.0.0.1:{}/locks/0", other.port());
    let output = examine(&url);
    let found =
        format!("127.0.0.1:{}: the server speaks the protocol of PostgreSQL, not of Redis", other.port());
    assert_eq!(findings(&output, &["sentinels"]), owned([("warning", found)]));
    assert!(output.stdout.contains("use postgres://, or check the host"), "{}", output.stdout);
    assert_run_agrees(&url, "agreement", 78, "see the findings above");
    assert_run_agrees("redis-sentinel://127.0.0.1:1/locks/0", "agreement", 69, "see the findings above");
}

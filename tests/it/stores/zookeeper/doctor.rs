//! `dlock doctor` on ZooKeeper.

use crate::support::place::Place;
use crate::support::running::{Exit, Output};
use crate::support::zookeeper::{Ensemble, Plan, ZooKeeper};

fn doctor(url: &str) -> Output {
    Place::new().bare().args(["doctor", "-b", url, "--json"]).output()
}

/// The findings, as `level check found`, without figures that vary.
fn findings(output: &Output) -> Vec<(String, String, String)> {
    let found: serde_json::Value = serde_json::from_str(&output.stdout).expect("JSON");
    let text = |finding: &serde_json::Value, key: &str| finding[key].as_str().unwrap_or_default().to_owned();
    let findings = found["findings"].as_array().expect("findings");
    findings
        .iter()
        .map(|finding| (text(finding, "level"), text(finding, "check"), text(finding, "found")))
        .collect()
}

#[track_caller]
fn assert_found(findings: &[(String, String, String)], level: &str, check: &str, found: &str) {
    let is_meant = |finding: &&(String, String, String)| {
        finding.0 == level && finding.1 == check && finding.2.contains(found)
    };
    assert!(findings.iter().any(|finding| is_meant(&finding)), "{level} {check} {found}: {findings:?}");
}

#[test]
fn a_healthy_ensemble_has_only_good_findings() {
    let ensemble = Ensemble::lent();
    let zookeeper = &ensemble.0;
    let output = doctor(&zookeeper.url());
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stdout);
    let findings = findings(&output);
    assert!(findings.iter().all(|(level, ..)| level == "ok"), "{findings:?}");
    for (check, found) in [
        ("server", "ZooKeeper 3.8.0, leader"),
        ("server", "ZooKeeper 3.8.0, follower"),
        ("session", "for a --ttl from 66ms to 16h"),
        ("latency", "of 100 requests to the leader"),
        ("lock", "taken, renewed and given back in"),
        ("race", "20 races of 8 connections for a free lock had one winner each"),
    ] {
        assert_found(&findings, "ok", check, found);
    }
    let left = zookeeper.session().children("/dlock").unwrap();
    assert_eq!(left, [""; 0], "left behind");
}

#[test]
fn a_single_server_and_short_sessions_are_warnings() {
    let zookeeper =
        ZooKeeper::start_with(&Plan { lines: vec!["maxSessionTimeout=10000".to_owned()], ..Plan::default() });
    let output = doctor(&zookeeper.url());
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stdout);
    let findings = findings(&output);
    assert_found(&findings, "warning", "server", "ZooKeeper 3.8.0, standalone");
    assert_found(&findings, "warning", "session", "for a --ttl from 66ms to 6.666s");
}

#[test]
fn an_ensemble_without_a_quorum_is_a_problem() {
    let mut ensemble = Ensemble::lent();
    let zookeeper = &mut ensemble.0;
    (0..2).for_each(|member| zookeeper.kill(member));
    let url = format!("zookeeper://127.0.0.1:{}", zookeeper.port(2));
    crate::support::wait::until(crate::support::SOON, "the loss of the quorum", || {
        let output = doctor(&url);
        output.exit == Exit::Code(1)
            && findings(&output).iter().any(|(level, check, _)| level == "problem" && check == "quorum")
    });
    // A server that has searched for a leader for a while sends its vote rarely: all of them start anew.
    zookeeper.restart_all();
}

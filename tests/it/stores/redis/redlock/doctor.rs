//! `dlock doctor` on several nodes.

use super::fixture::Fixture;
use crate::run::faults::shim::Clocks;
use crate::support::SOON;
use crate::support::doctor::{assert_found, assert_run_agrees, findings};
use crate::support::place::Place;
use crate::support::redis::Redis;
use crate::support::running::Exit;
use crate::support::wait::until;
use serde_json::Value;
use std::time::Instant;

/// The exit status, and the findings of this check as level and text.
#[track_caller]
fn doctor(fixture: &Fixture, url: &str, check: &str) -> (Exit, Vec<(String, String)>) {
    let output = fixture.place.bare().args(["doctor", "-b", url, "--json"]).output();
    let found: Value = serde_json::from_str(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let findings = found["findings"].as_array().unwrap().iter();
    let of_check = findings.filter(|finding| finding["check"] == check);
    (output.exit, of_check.map(|finding| (text(&finding["level"]), text(&finding["found"]))).collect())
}

fn is(level: &str, found: impl Into<String>) -> Vec<(String, String)> {
    vec![(level.to_owned(), found.into())]
}

#[test]
fn five_independent_masters_are_healthy() {
    let fixture = Fixture::new();
    let url = fixture.masters.url();
    let quorum = "5 of 5 nodes are available, and a lock needs 3: 2 may fail without a lock being lost";
    assert_eq!(doctor(&fixture, &url, "quorum"), (Exit::Code(0), is("ok", quorum)));
    assert_eq!(doctor(&fixture, &url, "independence").1, is("ok", "each node is a separate server"));
    assert_eq!(doctor(&fixture, &url, "clocks").1[0].0, "ok");
    let locks = doctor(&fixture, &url, "lock").1;
    assert_eq!(locks.len(), 5, "one was tried at each: {locks:?}");
    fixture.assert_no_traces(&super::fixture::ALL);
}

#[test]
fn a_node_that_is_down_is_named_and_the_others_suffice() {
    let mut fixture = Fixture::new();
    fixture.masters.kill(1);
    fixture.masters.node(2).stop();
    let url = fixture.masters.url();
    let quorum = "3 of 5 nodes are available, and a lock needs 3: 0 more may fail";
    assert_eq!(doctor(&fixture, &url, "quorum"), (Exit::Code(0), is("warning", quorum)));
    let reached = "each of the 3 nodes that were reached is a separate server; 2 were not reached";
    assert_eq!(doctor(&fixture, &url, "independence").1, is("ok", reached));
    let counted = doctor(&fixture, &url, "age").1;
    let may_have_lost = "of 5 nodes may have lost locks, or are new: ";
    let is_old = counted[0].0 == "ok" && counted[0].1.ends_with("2 were not reached");
    let is_young = counted[0].0 == "warning" && counted[0].1.contains(may_have_lost);
    assert!(is_old || is_young, "{counted:?}");
    let name = format!("127.0.0.1:{}: ", fixture.masters.node(1).port());
    let reached = doctor(&fixture, &url, "reachability").1;
    assert!(
        reached.iter().any(|(level, found)| level == "warning" && found.starts_with(&name)),
        "{reached:?}"
    );
    fixture.masters.node(2).resume();
}

#[test]
fn too_few_nodes_are_a_problem() {
    let mut fixture = Fixture::new();
    for node in [0, 1, 2] {
        fixture.masters.kill(node);
    }
    let quorum = "2 of 5 nodes are available, and a lock needs 3";
    let url = fixture.masters.url();
    assert_eq!(doctor(&fixture, &url, "quorum"), (Exit::Code(1), is("problem", quorum)));
}

#[test]
fn nodes_that_are_not_independent_are_a_problem() {
    let fixture = Fixture::new();
    let port = |node: usize| fixture.masters.node(node).port();
    let twice = format!("redlock://127.0.0.1:{},127.0.0.1:{},localhost:{}", port(0), port(1), port(0));
    let same = format!("127.0.0.1:{} and localhost:{} are the same server", port(0), port(0));
    assert_eq!(doctor(&fixture, &twice, "independence"), (Exit::Code(1), is("problem", same)));
    let master = port(0).to_string();
    fixture.masters.node(1).command(&["REPLICAOF", "127.0.0.1", &master]);
    let url = fixture.masters.url_of(&[0, 1, 2]);
    let replica = format!("127.0.0.1:{} is a replica", port(1));
    assert_eq!(doctor(&fixture, &url, "independence"), (Exit::Code(1), is("problem", replica)));
    fixture.masters.node(1).command(&["REPLICAOF", "NO", "ONE"]);
}

#[test]
fn an_even_number_of_nodes_is_reported() {
    let fixture = Fixture::new();
    let url = fixture.masters.url_of(&[0, 1, 2, 3]);
    let output = fixture.place.bare().args(["doctor", "-b", &url, "-q"]).output();
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
    let even = "4 nodes tolerate the loss of 1, as 3 do: add a node or remove one";
    assert_eq!(doctor(&fixture, &url, "nodes").1, is("warning", even));
}

/// The others suffice; if they do not, a run ends with the status of the refusal.
#[test]
fn a_node_that_rejects_the_password_is_named_with_its_remedy() {
    let fixture = Fixture::new();
    let nodes = &fixture.masters;
    let add = |node: usize, password: &str| {
        nodes.node(node).command(&["ACL", "SETUSER", "web", "reset", "on", password, "~*", "&*", "+@all"]);
    };
    (0..5).for_each(|node| add(node, if node == 1 { ">other" } else { ">s3cret" }));
    let url = nodes.url().replace("redlock://", "redlock://web:s3cret@");
    let found = format!("127.0.0.1:{}: wrong username or password", nodes.node(1).port());
    let (exit, rejected) = doctor(&fixture, &url, "authentication");
    assert_eq!(exit, Exit::Code(0));
    assert!(
        rejected.iter().any(|(level, text)| level == "warning" && text.starts_with(&found)),
        "{rejected:?}"
    );
    let quorum = "4 of 5 nodes are available, and a lock needs 3: 1 more may fail";
    assert_eq!(doctor(&fixture, &url, "quorum").1, is("warning", quorum));
    [0, 2, 3, 4].iter().for_each(|node| add(*node, ">other"));
    let output = crate::support::doctor::doctor(&url);
    assert_found(&output, "problem", "quorum", "0 of 5 nodes are available, and a lock needs 3");
    assert_run_agrees(&url, "quorum", 77, "restore the other nodes");
    nodes.command(&["ACL", "DELUSER", "web"]);
}

/// An address stands once in a finding.
#[test]
fn nodes_with_different_clocks_are_a_warning() {
    let place = Place::new();
    let clocks = Clocks::new(&place);
    let nodes = [Redis::start(), Redis::start_preloaded(&clocks.variables()), Redis::start()];
    let [one, ahead, other] = nodes.each_ref().map(|node| format!("127.0.0.1:{}", node.port()));
    let url = format!("redlock://{one},{ahead},{other}");
    clocks.set_wall(60);
    until(SOON, "a server that has seen its clock", || {
        let clocks = findings(&crate::support::doctor::doctor(&url));
        clocks.iter().any(|finding| {
            let found = finding["found"].as_str().unwrap_or_default();
            finding["check"] == "clocks"
                && finding["level"] == "warning"
                && found.starts_with(&format!("the clock of {ahead} is 1m"))
        })
    });
    for finding in findings(&crate::support::doctor::doctor(&url)) {
        let found = finding["found"].as_str().unwrap_or_default();
        assert!([&one, &ahead, &other].iter().all(|node| found.matches(*node).count() < 2), "{finding}");
    }
}

/// They are asked side by side: together they take as long as one.
#[test]
fn hung_nodes_are_all_found_at_once() {
    let fixture = Fixture::new();
    let url = fixture.masters.url();
    let examined = || {
        let begin = Instant::now();
        let (exit, hung) = doctor(&fixture, &url, "authentication");
        let hung = hung.into_iter().filter(|(level, _)| level == "warning").count();
        ((exit, hung), begin.elapsed())
    };
    fixture.masters.node(0).stop();
    let (one, limit) = examined();
    (1..5).for_each(|node| fixture.masters.node(node).stop());
    let (all, took) = examined();
    // Whether the nodes are given up first, or the attempt.
    let runs = ["1s", "300ms"].map(|limit| {
        fixture.place.run().backend(&url).args(["--connect-timeout", limit]).sh("true").output()
    });
    (0..5).for_each(|node| fixture.masters.node(node).resume());
    assert_eq!((one, all), ((Exit::Code(0), 1), (Exit::Code(1), 5)));
    // One after another they would take three times as long as one of them.
    assert!(took < limit * 2, "{took:?}, one of them {limit:?}");
    for run in runs {
        assert_eq!(run.exit, Exit::Code(69), "{run:?}");
        assert!(run.stderr.contains("5 of 5 nodes are unavailable"), "{run:?}");
    }
}

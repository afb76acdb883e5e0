//! `dlock doctor` on ZooKeeper.

use crate::support::doctor::{assert_found, assert_refused, doctor, findings};
use crate::support::fake::Fake;
use crate::support::place::Place;
use crate::support::running::Exit;
use crate::support::zookeeper::{Ensemble, Plan, ZooKeeper};

#[test]
fn short_sessions_are_a_warning_and_bound_the_recommended_lease() {
    let zookeeper =
        ZooKeeper::start_with(&Plan { lines: vec!["maxSessionTimeout=10000".to_owned()], ..Plan::default() });
    let output = doctor(&zookeeper.url());
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stdout);
    assert_found(&output, "ok", "server", "ZooKeeper 3.8.0, standalone");
    assert_found(&output, "ok", "availability", "one server: while it is down no lock can be taken");
    assert_found(&output, "warning", "session", "for a --ttl from 66ms to 6.666s");
    let report: serde_json::Value = serde_json::from_str(&output.stdout).expect("JSON");
    assert_eq!(report["recommended_ttl_ms"], 6666, "{report}");
    let run = |options: &[&str]| {
        let run = Place::new().run().backend(zookeeper.url()).args(options).sh("true").output();
        assert_eq!(run.exit, Exit::Code(0), "{run:?}");
        run.stderr
    };
    let warning = |ttl: &str| {
        let url = zookeeper.url();
        format!(
            "dlock: x on {url}: the server limits the lease to 6.666s, less than --ttl {ttl}: give --ttl 6s to end this \
             warning, or see dlock doctor\n"
        )
    };
    assert_eq!(run(&["--ttl", "30s"]), warning("30s"));
    assert_eq!(run(&["--ttl", "7s"]), warning("7s"));
    assert_eq!(run(&["--ttl", "30s", "-q"]), "");
    assert_eq!(run(&["--ttl", "6s"]), "");
    // The default is far longer than what the server keeps.
    assert_eq!(run(&[]), warning("30s"));
}

/// A server with its own defaults keeps almost the default lease, for which no run is to warn.
#[test]
fn a_default_lease_that_is_a_little_too_long_is_a_detail() {
    let zookeeper =
        ZooKeeper::start_with(&Plan { lines: vec!["maxSessionTimeout=40000".to_owned()], ..Plan::default() });
    let run = |options: &[&str]| {
        let run = Place::new().run().backend(zookeeper.url()).args(options).sh("true").output();
        assert_eq!(run.exit, Exit::Code(0), "{run:?}");
        run.stderr
    };
    assert_eq!(run(&[]), "");
    let detail = "dlock: x: the server keeps a lease of 26s, not --ttl 30s\n";
    assert!(run(&["-v"]).contains(detail), "{}", run(&["-v"]));
    assert!(run(&["--ttl", "30s"]).contains("the server limits the lease to 26s, less than --ttl 30s"));
}

/// Whoever may delete the nodes in a directory needs no permission for these nodes.
#[test]
fn directories_that_any_client_may_change_are_warnings() {
    let zookeeper = ZooKeeper::start();
    let url = format!("{}/jobs", zookeeper.url().replace("//", "//me:mine@"));
    let mut session = zookeeper.session();
    session.authenticate("me:mine");
    let check = |findings: [(&str, &str); 2]| {
        let output = doctor(&url);
        assert_eq!(output.exit, Exit::Code(0), "{}", output.stdout);
        findings.iter().for_each(|(level, found)| assert_found(&output, level, "access", found));
    };
    session.create_all("/jobs/dlock");
    session.set_acl("/jobs/dlock", "auth", "");
    let all = "any client may create nodes in it, delete nodes in it, change its ACL";
    check([("warning", &format!("/: {all}")), ("warning", &format!("/jobs: {all}"))]);
    session.set_acl("/", "auth", "");
    session.set_acl("/jobs", "auth", "");
    let closed = "not every client may create or delete nodes in /, /jobs, /jobs/dlock";
    check([("ok", closed), ("ok", closed)]);
    session.set_acl("/jobs/dlock", "world", "anyone");
    check([("warning", &format!("/jobs/dlock: {all}")), ("ok", "nodes in /, /jobs")]);
    session.close().unwrap();
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
            && findings(&output)
                .iter()
                .any(|finding| finding["level"] == "problem" && finding["check"] == "quorum")
    });
    // A server that has searched for a leader for a while sends its vote rarely: all of them start anew.
    zookeeper.restart_all();
}

/// Of a server that only reports its status.
#[test]
fn the_state_of_a_server_is_judged_by_its_status() {
    for (status, level, check, found) in [
        (
            "Zookeeper version: 3.4.14-1\nMode: standalone\n",
            "problem",
            "server",
            "ZooKeeper 3.4.14, standalone",
        ),
        ("Zookeeper version: 3.8.0-1\nMode: read-only\n", "warning", "server", "ZooKeeper 3.8.0, read-only"),
        ("srvr is not executed because it is not in the whitelist.\n", "ok", "server", "unknown version"),
        (
            "This ZooKeeper instance is not currently serving requests\n",
            "problem",
            "quorum",
            "it has no quorum and serves no requests",
        ),
    ] {
        let server = Fake::answering_once(status);
        let output = doctor(&format!("zookeeper://127.0.0.1:{}", server.port()));
        assert_eq!(output.exit, Exit::Code(1), "{output:?}");
        assert_found(&output, level, check, found);
    }
    let silent = Fake::answering_once("");
    let output = doctor(&format!("zookeeper://127.0.0.1:{}", silent.port()));
    assert_refused(&output, "session", 69, "check the log of the server");
}

#[test]
fn one_server_that_is_down_is_a_warning() {
    let zookeeper = ZooKeeper::lent();
    let output = doctor(&format!("{},127.0.0.1:1", zookeeper.url()));
    assert_eq!(output.exit, Exit::Code(0), "{output:?}");
    assert_found(&output, "warning", "reachability", "127.0.0.1:1: connection refused");
}

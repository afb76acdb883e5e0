//! Nodes in a URL, and invalid ones.

use super::fixture::{Fixture, SINCE, assert_unavailable};
use crate::support::masters::{Masters, Plan};
use crate::support::place::Place;
use crate::support::redis::Redis;
use crate::support::running::Exit;

#[test]
fn an_even_or_single_list_is_allowed_and_its_tolerance_is_reported() {
    let masters = Masters::start_many(4);
    for (nodes, says) in [
        (&[0][..], "1 node tolerates no loss: this is a single Redis; name 3 or 5 independent masters"),
        (&[0, 1], "2 nodes tolerate no loss, as 1 does: name 3 or 5 independent masters"),
        (&[0, 1, 2, 3], "4 nodes tolerate the loss of 1, as 3 do: add a node or remove one"),
    ] {
        masters.wipe();
        let output = Place::new().run().backend(masters.url_of(nodes)).command(["echo", "ran"]).output();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", output.stderr);
        assert_eq!(output.stderr, format!("dlock: {says}\n"));
    }
}

#[test]
fn three_nodes_cause_no_message() {
    let masters = Masters::start_many(3);
    let output = Place::new().run().backend(masters.url()).command(["echo", "ran"]).output();
    assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
}

#[test]
fn invalid_lists_are_refused_before_any_node_is_contacted() {
    for (url, says) in [
        ("redlock://", "redlock:// takes independent masters, such as redlock://h1,h2,h3,h4,h5"),
        ("redlock://h1,h2,h1:6379", "h1:6379 is named twice"),
        ("redlock://h1,h2,h3/x", "'x' is not a database number"),
        ("redlock://h1,h2,h3?ca_file=/x", "'ca_file' needs TLS"),
    ] {
        let output = Place::new().run().backend(url).command(["true"]).output();
        assert_eq!(output.exit, Exit::Code(78), "{url}: {}", output.stderr);
        assert!(output.stderr.contains(says), "{url}: {}", output.stderr);
    }
}

#[test]
fn slots_are_refused_before_any_node_is_contacted() {
    let run = || Place::new().run().backend("redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3");
    let output = run().args(["--slots", "2"]).command(["true"]).output();
    assert_eq!(output.exit, Exit::Code(64));
    assert!(output.stderr.contains("a majority of nodes cannot count slots"), "{}", output.stderr);
    let output = run().args(["--slots", "1"]).command(["true"]).output();
    assert_eq!(output.exit, Exit::Code(69), "that is an exclusive lock: {}", output.stderr);
}

#[test]
fn one_server_under_two_names_is_detected() {
    let fixture = Fixture::new();
    let port = |node: usize| fixture.masters.node(node).port();
    let url = format!("redlock://127.0.0.1:{},127.0.0.1:{},localhost:{}", port(0), port(1), port(0));
    let output = fixture.run_at(&url).command(["true"]).output();
    assert_eq!(output.exit, Exit::Code(78), "{}", output.stderr);
    let says = format!("127.0.0.1:{} and localhost:{} are the same server", port(0), port(0));
    assert!(output.stderr.contains(&says), "{}", output.stderr);
    fixture.assert_no_traces(&[0, 1]);
}

#[test]
fn a_replica_is_not_accepted_as_a_node() {
    let fixture = Fixture::old();
    let port = fixture.masters.node(0).port().to_string();
    for node in [1, 2, 3] {
        fixture.masters.node(node).command(&["REPLICAOF", "127.0.0.1", &port]);
    }
    let output = fixture.run().command(["true"]).output();
    assert_eq!(output.exit, Exit::Code(78), "{}", output.stderr);
    let says = "it is a replica, and Redlock needs independent masters";
    assert!(output.stderr.contains(says), "{}", output.stderr);
    for node in [2, 3] {
        fixture.masters.node(node).command(&["REPLICAOF", "NO", "ONE"]);
    }
    // Old enough to vote, and young enough that all are awaited.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    for node in [0, 2, 3, 4] {
        let since = format!("{} node{node}", now.as_millis() - 3_600_000);
        fixture.masters.node(node).command(&["SET", SINCE, &since]);
    }
    let output = fixture.run().command(["true"]).output();
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stderr);
    let warning = format!(
        "127.0.0.1:{} is a replica, which cannot be part of a Redlock",
        fixture.masters.node(1).port()
    );
    assert_eq!(output.stderr.matches(&warning).count(), 1, "{}", output.stderr);
    fixture.masters.node(1).command(&["REPLICAOF", "NO", "ONE"]);
}

#[test]
fn a_wrong_password_is_reported() {
    let masters =
        Masters::start_with(Plan { count: Some(3), password: Some("right".into()), ..Plan::default() });
    let wrong = masters.url().replace("right", "wrong");
    let output = Place::new().run().backend(wrong).command(["true"]).output();
    assert_eq!(output.exit, Exit::Code(77), "{}", output.stderr);
    let words = ": wrong username or password: see the user in the URL, password_file= and REDISCLI_AUTH)";
    assert!(output.stderr.contains(words), "{}", output.stderr);
    assert!(!output.stderr.contains("WRONGPASS"), "{}", output.stderr);
    let output = Place::new().run().backend(masters.url()).command(["echo", "ran"]).output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", output.stderr);
}

/// A node that refuses the login counts as one that is down.
#[test]
fn one_node_with_another_password_is_tolerated() {
    let fixture = Fixture::old();
    fixture.masters.node(1).command(&["CONFIG", "SET", "requirepass", "other"]);
    fixture.token();
    let mut client = fixture.masters.node(1).connect();
    client.command(&["AUTH", "other"]);
    client.command(&["CONFIG", "SET", "requirepass", ""]);
}

#[test]
fn all_nodes_may_use_tls() {
    let masters = Masters::start_with(Plan { count: Some(3), tls: true, ..Plan::default() });
    assert!(masters.url().starts_with("redlocks://"), "{}", masters.url());
    let output = Place::new().run().backend(masters.url()).command(["echo", "ran"]).output();
    assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
}

#[test]
fn nodes_of_another_kind_of_server_are_unavailable() {
    let redis = Redis::start();
    let url = format!("redlock://127.0.0.1:{},127.0.0.1:1,127.0.0.1:2", redis.port());
    let output = Place::new().run().backend(url).command(["true"]).output();
    assert_unavailable(&output, "2 of 3 nodes are unavailable (127.0.0.1:1: ");
}

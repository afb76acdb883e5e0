//! Nodes that are down, hung, or unreachable: F33.

use super::fixture::{ALL, Fixture, assert_unavailable};
use crate::support::SOON;
use crate::support::flight::Flight;
use crate::support::proxy::{Proxy, Way};
use crate::support::running::Exit;
use crate::support::wait::{eventually, until};
use std::time::Duration;

/// F33
#[test]
fn two_of_five_may_be_down() {
    let mut fixture = Fixture::old();
    let before = fixture.token();
    fixture.masters.kill(1);
    fixture.masters.kill(3);
    assert!(fixture.token() > before);
    let run = fixture.witness();
    assert_eq!(fixture.run().command(["true"]).output().exit, Exit::Code(75));
    assert_eq!(fixture.run().args(["--wait", "200ms"]).command(["true"]).output().exit, Exit::Code(75));
    fixture.assert_undisturbed(run);
    fixture.assert_no_traces(&[0, 2, 4]);
}

/// F33
#[test]
fn with_three_of_five_down_nothing_runs_and_no_trace_is_left() {
    let mut fixture = Fixture::old();
    for node in [0, 2, 3] {
        fixture.masters.kill(node);
    }
    assert_unavailable(&fixture.run().command(["true"]).output(), "3 of 5 nodes are unavailable");
    fixture.assert_no_traces(&[1, 4]);
}

/// F33: they accept connections, and never reply.
#[test]
fn with_three_of_five_hung_nothing_runs_and_no_trace_is_left() {
    let fixture = Fixture::old().ttl("10m");
    for node in [0, 2, 3] {
        fixture.masters.node(node).stop();
    }
    assert_unavailable(&fixture.run().command(["true"]).output(), "3 of 5 nodes are unavailable");
    fixture.assert_no_traces(&[1, 4]);
    for node in [0, 2, 3] {
        fixture.masters.node(node).resume();
    }
    // They receive the request now, and at once its cancellation.
    until(SOON, "nodes that answer", || fixture.traces(&ALL).is_empty());
    let run = fixture.witness();
    fixture.assert_undisturbed(run);
}

/// F33
#[test]
fn a_hung_node_is_not_waited_for() {
    let fixture = Fixture::old().ttl("24h");
    fixture.masters.node(2).stop();
    let run = fixture.witness();
    fixture.assert_undisturbed(run);
    fixture.assert_no_traces(&[0, 1, 3, 4]);
    fixture.masters.node(2).resume();
    until(SOON, "a node that was told that it is over", || fixture.traces(&[2]).is_empty());
}

/// F33
#[test]
fn a_run_that_has_lost_three_nodes_is_killed_in_time() {
    let fixture = Fixture::old().ttl("6s");
    let mut run = fixture.witness();
    fixture.await_held_at(&ALL);
    for node in [0, 2, 3] {
        fixture.masters.node(node).stop();
    }
    until(SOON, "the death of the whole tree", || {
        // The order matters: a process seen alive after the lock was seen free has outlived it.
        let held = fixture.held_at(&[1, 4]);
        let dead = fixture.inherited_lock.is_free();
        assert!(held == [true; 2] || dead, "the lock has ended before the command");
        dead
    });
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
    for node in [0, 2, 3] {
        fixture.masters.node(node).resume();
    }
}

/// F33
#[test]
fn a_run_whose_nodes_are_gone_is_killed_in_time() {
    let mut fixture = Fixture::old().ttl("6s");
    let mut run = fixture.witness();
    fixture.await_held_at(&ALL);
    for node in [0, 2, 3] {
        fixture.masters.kill(node);
    }
    fixture.inherited_lock.await_free();
    assert_eq!(run.wait().exit, Exit::Code(76));
    // What could be released was.
    fixture.assert_no_traces(&[1, 4]);
}

/// F33
#[test]
fn a_run_outlives_the_loss_of_two_nodes() {
    let mut fixture = Fixture::old().ttl("6s");
    let run = fixture.witness();
    fixture.await_held_at(&ALL);
    fixture.masters.kill(0);
    fixture.masters.node(1).stop();
    for _ in 0..2 {
        fixture.await_renewals_at(&[2, 3, 4]);
    }
    fixture.assert_undisturbed(run);
    fixture.masters.node(1).resume();
}

/// F13
#[test]
fn a_node_that_was_away_is_renewed_again() {
    let fixture = Fixture::old().ttl("6s");
    let proxy = Proxy::to(fixture.masters.node(4).port());
    let url = fixture.masters.url_of(&[0, 1, 2, 3]).replace("/0", &format!(",127.0.0.1:{}/0", proxy.port()));
    let run = fixture.witness_of(fixture.run_at(&url));
    fixture.await_held_at(&ALL);
    proxy.hold_both();
    until(SOON, "the end of the lease at that node", || fixture.held_at(&[4]) == [false]);
    proxy.heal();
    fixture.await_held_at(&[4]);
    fixture.assert_undisturbed(run);
    fixture.assert_no_traces(&ALL);
}

/// F03
#[test]
fn a_lost_reply_costs_nothing() {
    let fixture = Fixture::old().ttl("10s");
    let proxy = Proxy::to(fixture.masters.node(4).port());
    let url = fixture.masters.url_of(&[0, 1]).replace("/0", &format!(",127.0.0.1:{}/0", proxy.port()));
    fixture.foreign_lock(&[1], "somebody else's");
    proxy.drop_next_reply();
    let output = fixture.run_at(&url).command(["true"]).output();
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stderr);
    until(SOON, "nodes that were told that it is over", || fixture.traces(&[0, 4]).is_empty());
}

/// F03: a node that has to be sent the script replies only to the first of two flights. After the second, which may be
/// executed at any time, the release is sent on the same connection, by its text too.
#[test]
fn an_unanswered_claim_sent_as_text_is_followed_by_its_release() {
    let fixture = Fixture::old();
    fixture.masters.node(4).command(&["SCRIPT", "FLUSH"]);
    let proxy = Proxy::to(fixture.masters.node(4).port());
    let url = fixture.masters.url_of(&[0, 1]).replace("/0", &format!(",127.0.0.1:{}/0", proxy.port()));
    fixture.foreign_lock(&[1], "somebody else's");
    // The answer that the script is not known arrives, and no other.
    proxy.hold_reply_after(1);
    let output = fixture.run_at(&url).command(["true"]).output();
    assert_ne!(output.exit, Exit::Code(0), "{}", output.stderr);
    let followed = eventually(SOON, "what is sent after the text of the script", || {
        let flights = proxy.flights();
        let sent = flights.iter().filter(|flight| flight.connection == 0).flat_map(Flight::names);
        sent.skip_while(|name| name != "EVAL").nth(1)
    });
    assert_eq!(followed, "EVAL");
    until(SOON, "nodes that were told that it is over", || fixture.traces(&[0, 4]).is_empty());
}

/// F16: the majority is slower than half of the lease.
#[test]
fn a_grant_that_arrives_too_late_is_released() {
    let fixture = Fixture::old().ttl("1s");
    let proxies: Vec<Proxy> = [2, 3, 4].map(|node| Proxy::to(fixture.masters.node(node).port())).into();
    for proxy in &proxies {
        proxy.delay(Way::Down, Duration::from_millis(700));
    }
    let ports: Vec<String> = proxies.iter().map(|proxy| format!("127.0.0.1:{}", proxy.port())).collect();
    let url = fixture.masters.url_of(&[0, 1]).replace("/0", &format!(",{}/0", ports.join(",")));
    let output = fixture.run_at(&url).command(["true"]).output();
    assert_eq!(output.exit, Exit::Code(69), "{}", output.stderr);
    until(SOON, "nodes that were told that it is over", || fixture.traces(&ALL).is_empty());
}

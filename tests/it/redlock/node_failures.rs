//! Nodes that are down, hung, or unreachable: F33.

use super::scene::{ALL, KEY, Scene, assert_unavailable};
use crate::support::SOON;
use crate::support::flight::Flight;
use crate::support::proxy::{Proxy, Way};
use crate::support::running::Exit;
use crate::support::wait::until;
use std::time::Duration;

/// F33
#[test]
fn two_of_five_may_be_down() {
    let mut scene = Scene::old();
    let before = scene.token();
    scene.masters.kill(1);
    scene.masters.kill(3);
    assert!(scene.token() > before);
    let run = scene.witness();
    assert_eq!(scene.run().command(["true"]).output().exit, Exit::Code(75));
    assert_eq!(scene.run().args(["--wait", "200ms"]).command(["true"]).output().exit, Exit::Code(75));
    scene.assert_undisturbed(run);
    assert_eq!(scene.traces(&[0, 2, 4]), [""; 0]);
}

/// F33
#[test]
fn with_three_of_five_down_nothing_runs_and_no_trace_is_left() {
    let mut scene = Scene::old();
    for node in [0, 2, 3] {
        scene.masters.kill(node);
    }
    assert_unavailable(&scene.run().command(["true"]).output(), "3 of 5 nodes are unavailable");
    assert_eq!(scene.traces(&[1, 4]), [""; 0]);
}

/// F33: they accept connections, and never reply.
#[test]
fn with_three_of_five_hung_nothing_runs_and_no_trace_is_left() {
    let scene = Scene::old().ttl("10m");
    for node in [0, 2, 3] {
        scene.masters.node(node).stop();
    }
    assert_unavailable(&scene.run().command(["true"]).output(), "3 of 5 nodes are unavailable");
    assert_eq!(scene.traces(&[1, 4]), [""; 0]);
    for node in [0, 2, 3] {
        scene.masters.node(node).resume();
    }
    // They receive the request now, and at once its cancellation.
    until(SOON, "nodes that answer", || scene.traces(&ALL).is_empty());
    let run = scene.witness();
    scene.assert_undisturbed(run);
}

/// F33
#[test]
fn a_hung_node_is_not_waited_for() {
    let scene = Scene::old().ttl("24h");
    scene.masters.node(2).stop();
    let run = scene.witness();
    scene.assert_undisturbed(run);
    assert_eq!(scene.traces(&[0, 1, 3, 4]), [""; 0]);
    scene.masters.node(2).resume();
    until(SOON, "a node that was told that it is over", || scene.traces(&[2]).is_empty());
}

/// F33
#[test]
fn a_run_that_has_lost_three_nodes_is_killed_in_time() {
    let scene = Scene::old();
    let mut run = scene.witness();
    scene.await_held_at(&ALL);
    for node in [0, 2, 3] {
        scene.masters.node(node).stop();
    }
    until(SOON, "the death of the whole tree", || {
        // The order matters: a process seen alive after the lock was seen free has outlived it.
        let held = scene.held_at(&[1, 4]);
        let dead = scene.leash.is_free();
        assert!(held == [true; 2] || dead, "the lock has ended before the command");
        dead
    });
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
    for node in [0, 2, 3] {
        scene.masters.node(node).resume();
    }
}

/// F33
#[test]
fn a_run_whose_nodes_are_gone_is_killed_in_time() {
    let mut scene = Scene::old();
    let mut run = scene.witness();
    scene.await_held_at(&ALL);
    for node in [0, 2, 3] {
        scene.masters.kill(node);
    }
    scene.leash.await_free();
    assert_eq!(run.wait().exit, Exit::Code(76));
    assert_eq!(scene.traces(&[1, 4]), [""; 0], "what could be released was");
}

/// F33
#[test]
fn a_run_outlives_the_loss_of_two_nodes() {
    let mut scene = Scene::old();
    let run = scene.witness();
    scene.await_held_at(&ALL);
    scene.masters.kill(0);
    scene.masters.node(1).stop();
    for node in [2, 3, 4] {
        for _ in 0..2 {
            crate::support::redis::await_renewal(|| scene.masters.node(node).command(&["PTTL", KEY]).int());
        }
    }
    scene.assert_undisturbed(run);
    scene.masters.node(1).resume();
}

/// F13
#[test]
fn a_node_that_was_away_is_renewed_again() {
    let scene = Scene::old();
    let proxy = Proxy::to(scene.masters.node(4).port());
    let url = scene.masters.url_of(&[0, 1, 2, 3]).replace("/0", &format!(",127.0.0.1:{}/0", proxy.port()));
    let run = scene.witness_of(scene.run_at(&url));
    scene.await_held_at(&ALL);
    proxy.hold_both();
    until(SOON, "the end of the lease at that node", || scene.held_at(&[4]) == [false]);
    proxy.heal();
    scene.await_held_at(&[4]);
    scene.assert_undisturbed(run);
    assert_eq!(scene.traces(&ALL), [""; 0]);
}

/// F03
#[test]
fn a_lost_reply_costs_nothing() {
    let scene = Scene::old().ttl("10s");
    let proxy = Proxy::to(scene.masters.node(4).port());
    let url = scene.masters.url_of(&[0, 1]).replace("/0", &format!(",127.0.0.1:{}/0", proxy.port()));
    scene.foreign_lock(&[1], "somebody else's");
    proxy.drop_next_reply();
    let output = scene.run_at(&url).command(["true"]).output();
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stderr);
    until(SOON, "nodes that were told that it is over", || scene.traces(&[0, 4]).is_empty());
}

/// F03: a node that has to be sent the script replies only to the first of two flights. After the second, which may be
/// executed at any time, the release is sent on the same connection.
#[test]
fn an_unanswered_claim_sent_as_text_is_followed_by_its_release() {
    let scene = Scene::old().ttl("20s");
    scene.masters.node(4).command(&["SCRIPT", "FLUSH"]);
    let proxy = Proxy::to(scene.masters.node(4).port());
    let url = scene.masters.url_of(&[0, 1]).replace("/0", &format!(",127.0.0.1:{}/0", proxy.port()));
    scene.foreign_lock(&[1], "somebody else's");
    proxy.delay(Way::Down, Duration::from_millis(100));
    let mut run = scene.run_at(&url).command(["true"]).spawn();
    until(SOON, "an answer that the script is not known", || proxy.replies() > 0);
    proxy.drop_all(Way::Down);
    let output = run.wait();
    assert_ne!(output.exit, Exit::Code(0), "{}", output.stderr);
    let flights = proxy.flights();
    let sent: Vec<Vec<String>> =
        flights.iter().filter(|flight| flight.connection == 0).map(Flight::names).collect();
    let claimed = sent.iter().flatten().position(|name| name == "EVAL").expect("the text of the script");
    assert_eq!(sent.iter().flatten().nth(claimed + 1).map(String::as_str), Some("EVALSHA"), "{sent:?}");
    until(SOON, "nodes that were told that it is over", || scene.traces(&[0, 4]).is_empty());
}

/// F16: the majority is slower than half of the lease.
#[test]
fn a_grant_that_arrives_too_late_is_released() {
    let scene = Scene::old().ttl("1s");
    let proxies: Vec<Proxy> = [2, 3, 4].map(|node| Proxy::to(scene.masters.node(node).port())).into();
    for proxy in &proxies {
        proxy.delay(Way::Down, Duration::from_millis(700));
    }
    let ports: Vec<String> = proxies.iter().map(|proxy| format!("127.0.0.1:{}", proxy.port())).collect();
    let url = scene.masters.url_of(&[0, 1]).replace("/0", &format!(",{}/0", ports.join(",")));
    let output = scene.run_at(&url).command(["true"]).output();
    assert_eq!(output.exit, Exit::Code(69), "{}", output.stderr);
    until(SOON, "nodes that were told that it is over", || scene.traces(&ALL).is_empty());
}

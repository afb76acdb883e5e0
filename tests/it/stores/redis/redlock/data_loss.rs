//! Nodes that return without their data, or with older data.

use super::fixture::{ALL, Fixture, KEY, SINCE, assert_unavailable};
use crate::support::SOON;
use crate::support::running::Exit;
use crate::support::wait::until;

/// F33: the holder is at exactly three of five, one of these loses its data, and the two others are back.
#[test]
fn a_node_that_lost_the_holder_admits_no_other_before_its_command_is_dead() {
    let mut fixture = Fixture::old().ttl("6s");
    fixture.masters.kill(3);
    fixture.masters.kill(4);
    let mut run = fixture.witness();
    fixture.await_held_at(&[0, 1, 2]);
    // No client may repair anything.
    run.signal(nix::sys::signal::Signal::SIGSTOP);
    fixture.masters.restart_empty(2);
    fixture.masters.restart_empty(3);
    fixture.masters.restart_empty(4);
    fixture.age(&[3, 4]);
    // Where the servers start slowly, the command may be dead by now.
    let mut next_holder = fixture.contender();
    fixture.inherited_lock.await_free();
    run.signal(nix::sys::signal::Signal::SIGCONT);
    assert_eq!(run.wait().exit, Exit::Code(76));
    let output = next_holder.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "clean\n"), "{}", output.stderr);
}

#[test]
fn a_node_that_lost_its_data_does_not_vote_for_one_lease() {
    let mut fixture = Fixture::old();
    fixture.masters.restart_empty(2);
    fixture.foreign_lock(&[0], "somebody else's");
    fixture.masters.kill(1);
    let output = fixture.run().command(["true"]).output();
    assert_eq!(output.exit, Exit::Code(75), "{}", output.stderr);
    fixture.masters.node(0).command(&["DEL", KEY]);
    fixture.token();
}

#[test]
fn too_many_nodes_without_their_data_are_reported() {
    let mut fixture = Fixture::old().ttl("6s");
    for node in [0, 1, 2] {
        fixture.masters.restart_empty(node);
    }
    let output = fixture.run().command(["true"]).output();
    assert_unavailable(
        &output,
        "3 of 5 nodes have lost their data or are new, and do not count for another ",
    );
    fixture.assert_no_traces(&ALL);
    // After a lease they vote.
    assert_eq!(fixture.run().args(["--retry", "20s"]).command(["true"]).output().exit, Exit::Code(0));
}

/// No lock can have been held.
#[test]
fn a_set_of_new_nodes_is_used_at_once() {
    let fixture = Fixture::new();
    fixture.token();
    let since: Vec<String> =
        ALL.iter().map(|node| fixture.masters.node(*node).command(&["GET", SINCE]).text()).collect();
    let ids: std::collections::HashSet<&str> =
        since.iter().filter_map(|since| since.split(' ').nth(1)).collect();
    assert_eq!(ids.len(), 5, "{since:?}");
}

/// A snapshot may be older than the last state.
#[test]
fn a_node_restored_from_a_snapshot_counts_as_one_that_lost_its_data() {
    let mut fixture = Fixture::old();
    fixture.token();
    for node in [0, 1, 2] {
        fixture.masters.restart(node);
    }
    let output = fixture.run().command(["true"]).output();
    assert_unavailable(&output, "3 of 5 nodes have lost their data");
}

/// Their common snapshots are older than the last state, too.
#[test]
fn nodes_restored_together_from_snapshots_are_not_new() {
    let mut fixture = Fixture::old();
    fixture.token();
    for node in ALL {
        fixture.masters.restart(node);
    }
    let output = fixture.run().command(["true"]).output();
    assert_unavailable(&output, "5 of 5 nodes have lost their data");
}

/// A snapshot restores an older counter, which must not be continued.
#[test]
fn fencing_tokens_grow_over_a_node_restored_with_an_older_counter() {
    let mut fixture = Fixture::old().ttl("5s");
    let first = fixture.token();
    for node in [0, 1, 2] {
        fixture.masters.node(node).save();
    }
    let last = (0..3).map(|_| fixture.token()).next_back().unwrap();
    assert!(first < last);
    for node in [0, 1, 2] {
        fixture.masters.node_mut(node).restart();
    }
    fixture.masters.kill(3);
    fixture.masters.kill(4);
    let after = fixture.token_of(fixture.run().args(["--retry", "20s"]));
    assert!(last < after, "{last} {after}");
}

#[test]
fn a_run_outlives_restarts_of_all_nodes_one_after_another() {
    let mut fixture = Fixture::old().ttl("6s");
    let run = fixture.witness();
    fixture.await_held_at(&ALL);
    let (url, place) = (fixture.masters.url(), fixture.place.clone());
    let shown = || -> serde_json::Value {
        let output = place.bare().args(["status", "-b", &url, "--json"]).output();
        serde_json::from_str(&output.stdout).unwrap()
    };
    // Not that of one node, which may have granted it late with its own number.
    let token = shown()["locks"][0]["holders"][0]["fencing_token"].as_u64().unwrap();
    for node in ALL {
        fixture.masters.restart_empty(node);
        fixture.await_held_at(&ALL);
    }
    until(SOON, "a node that was told of the token", || fixture.counters(&ALL) == [token; 5]);
    assert_eq!(shown()["locks"][0]["holders"][0]["fencing_token"], token);
    fixture.assert_undisturbed(run);
    fixture.assert_no_traces(&ALL);
}

#[test]
fn a_nested_run_outlives_restarts_of_all_nodes() {
    let mut fixture = Fixture::old().ttl("6s");
    let inner = [
        crate::support::dlock::BINARY,
        "run",
        "-b",
        &fixture.masters.url(),
        "--ttl",
        "6s",
        "x",
        "--",
        "sh",
        "-c",
        "echo ready; while ! test -e go; do sleep 0.05; done",
    ]
    .map(str::to_owned);
    let mut run = fixture.run().command(inner).spawn();
    run.await_ready();
    fixture.await_held_at(&ALL);
    let members = |fixture: &Fixture, node: usize| {
        fixture.masters.node(node).command(&["KEYS", "dlock#member:*"]).texts().len()
    };
    for node in ALL {
        fixture.masters.restart_empty(node);
        until(SOON, "both holds at the node", || members(&fixture, node) == 2);
    }
    fixture.assert_undisturbed(run);
}

/// F09
#[test]
fn a_run_forgotten_by_too_many_nodes_has_lost_its_lock() {
    let fixture = Fixture::old().ttl("60s");
    let mut run = fixture.witness();
    fixture.await_held_at(&ALL);
    run.signal(nix::sys::signal::Signal::SIGSTOP);
    for node in [0, 1, 2] {
        fixture.masters.node(node).command(&["FLUSHALL"]);
    }
    run.signal(nix::sys::signal::Signal::SIGCONT);
    run.await_stdout("TERM ");
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(76));
    assert!(output.stderr.contains("it is gone from the store"), "{}", output.stderr);
    assert_eq!(fixture.traces(&ALL), [""; 0], "it was made anew");
}

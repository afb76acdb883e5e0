//! Nodes that return without their data, or with older data.

use super::scene::{ALL, KEY, SINCE, Scene, assert_unavailable};
use crate::support::SOON;
use crate::support::running::Exit;
use crate::support::wait::until;

/// F33: the holder is at exactly three of five, one of these loses its data, and the two others are back.
#[test]
fn a_node_that_lost_the_holder_admits_no_other_before_its_command_is_dead() {
    let mut scene = Scene::old();
    scene.masters.kill(3);
    scene.masters.kill(4);
    let mut run = scene.witness();
    scene.await_held_at(&[0, 1, 2]);
    // No client may repair anything.
    run.signal(nix::sys::signal::Signal::SIGSTOP);
    scene.masters.restart_empty(2);
    scene.masters.restart_empty(3);
    scene.masters.restart_empty(4);
    scene.age(&[3, 4]);
    let mut heir = scene.heir();
    scene.leash.await_free();
    run.signal(nix::sys::signal::Signal::SIGCONT);
    assert_eq!(run.wait().exit, Exit::Code(76));
    let output = heir.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "clean\n"), "{}", output.stderr);
}

#[test]
fn a_node_that_lost_its_data_does_not_vote_for_one_lease() {
    let mut scene = Scene::old();
    scene.masters.restart_empty(2);
    scene.foreign_lock(&[0], "somebody else's");
    scene.masters.kill(1);
    let output = scene.run().command(["true"]).output();
    assert_eq!(output.exit, Exit::Code(75), "{}", output.stderr);
    scene.masters.node(0).command(&["DEL", KEY]);
    scene.token();
}

#[test]
fn too_many_nodes_without_their_data_are_reported() {
    let mut scene = Scene::old();
    for node in [0, 1, 2] {
        scene.masters.restart_empty(node);
    }
    let output = scene.run().command(["true"]).output();
    assert_unavailable(
        &output,
        "3 of 5 nodes have lost their data or are new, and do not count for another ",
    );
    assert_eq!(scene.traces(&ALL), [""; 0]);
    // After a lease they vote.
    assert_eq!(scene.run().args(["--retry", "20s"]).command(["true"]).output().exit, Exit::Code(0));
}

/// No lock can have been held.
#[test]
fn a_set_of_new_nodes_is_used_at_once() {
    let scene = Scene::new();
    scene.token();
    let since: Vec<String> =
        ALL.iter().map(|node| scene.masters.node(*node).command(&["GET", SINCE]).text()).collect();
    let ids: std::collections::HashSet<&str> =
        since.iter().filter_map(|since| since.split(' ').nth(1)).collect();
    assert_eq!(ids.len(), 5, "{since:?}");
}

/// A snapshot may be older than the last state.
#[test]
fn a_node_restored_from_a_snapshot_counts_as_one_that_lost_its_data() {
    let mut scene = Scene::old();
    scene.token();
    for node in [0, 1, 2] {
        scene.masters.restart(node);
    }
    let output = scene.run().command(["true"]).output();
    assert_unavailable(&output, "3 of 5 nodes have lost their data");
}

/// Their common snapshots are older than the last state, too.
#[test]
fn nodes_restored_together_from_snapshots_are_not_new() {
    let mut scene = Scene::old();
    scene.token();
    for node in ALL {
        scene.masters.restart(node);
    }
    let output = scene.run().command(["true"]).output();
    assert_unavailable(&output, "5 of 5 nodes have lost their data");
}

/// A snapshot restores an older counter, which must not be continued.
#[test]
fn fencing_tokens_grow_over_a_node_restored_with_an_older_counter() {
    let mut scene = Scene::old().ttl("1s");
    let first = scene.token();
    for node in [0, 1, 2] {
        scene.masters.node(node).save();
    }
    let last = (0..3).map(|_| scene.token()).next_back().unwrap();
    assert!(first < last);
    for node in [0, 1, 2] {
        scene.masters.node_mut(node).restart();
    }
    scene.masters.kill(3);
    scene.masters.kill(4);
    let after = scene.token_of(scene.run().args(["--retry", "20s"]));
    assert!(last < after, "{last} {after}");
}

#[test]
fn a_run_outlives_restarts_of_all_nodes_one_after_another() {
    let mut scene = Scene::old();
    let run = scene.witness();
    scene.await_held_at(&ALL);
    let token = scene.counters(&ALL)[0];
    for node in ALL {
        scene.masters.restart_empty(node);
        scene.await_held_at(&ALL);
    }
    assert_eq!(scene.counters(&ALL), [token; 5], "each was told of the token");
    let url = scene.masters.url();
    let shown = scene.place.bare().args(["status", "-b", &url, "--json"]).output();
    let shown: serde_json::Value = serde_json::from_str(&shown.stdout).unwrap();
    assert_eq!(shown["locks"][0]["holders"][0]["fencing_token"], token, "{shown}");
    scene.assert_undisturbed(run);
    assert_eq!(scene.traces(&ALL), [""; 0]);
}

#[test]
fn a_nested_run_outlives_restarts_of_all_nodes() {
    let mut scene = Scene::old();
    let inner = [
        crate::support::dlock::BINARY,
        "run",
        "-b",
        &scene.masters.url(),
        "--ttl",
        "3s",
        "x",
        "--",
        "sh",
        "-c",
        "echo ready; while ! test -e go; do sleep 0.01; done",
    ]
    .map(str::to_owned);
    let mut run = scene.run().command(inner).spawn();
    run.await_ready();
    scene.await_held_at(&ALL);
    let members = |scene: &Scene, node: usize| {
        scene.masters.node(node).command(&["KEYS", "dlock#member:*"]).texts().len()
    };
    for node in ALL {
        scene.masters.restart_empty(node);
        until(SOON, "both holds at the node", || members(&scene, node) == 2);
    }
    scene.assert_undisturbed(run);
}

/// F09
#[test]
fn a_run_forgotten_by_too_many_nodes_has_lost_its_lock() {
    let scene = Scene::old().ttl("60s");
    let mut run = scene.witness();
    scene.await_held_at(&ALL);
    run.signal(nix::sys::signal::Signal::SIGSTOP);
    for node in [0, 1, 2] {
        scene.masters.node(node).command(&["FLUSHALL"]);
    }
    run.signal(nix::sys::signal::Signal::SIGCONT);
    run.await_stdout("TERM ");
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(76));
    assert!(output.stderr.contains("it is gone from the store"), "{}", output.stderr);
    assert_eq!(scene.traces(&ALL), [""; 0], "it was made anew");
}

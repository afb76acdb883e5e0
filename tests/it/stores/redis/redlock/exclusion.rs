//! One holder at a majority, with a fencing token granted by the majority, in one round trip.

use super::fixture::{ALL, Fixture, KEY};
use crate::support::SOON;
use crate::support::monitor::Monitor;
use crate::support::running::Exit;
use crate::support::store::Store;
use crate::support::wait::until;
use std::time::Duration;

#[test]
fn a_run_holds_the_lock_at_every_node_and_leaves_no_trace() {
    let fixture = Fixture::new();
    let run = fixture.witness();
    fixture.await_held_at(&ALL);
    fixture.assert_undisturbed(run);
    fixture.assert_no_traces(&ALL);
}

#[test]
fn a_held_lock_excludes_others_and_busy_names_the_holder() {
    let fixture = Fixture::new();
    let run = fixture.witness();
    let output = fixture.run().command(["true"]).output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(75), ""));
    let pid = format!("(pid {}, ", run.pid());
    assert!(output.stderr.contains(&pid), "{}", output.stderr);
    fixture.await_held_at(&ALL);
    fixture.assert_undisturbed(run);
}

#[test]
fn fencing_tokens_grow_and_all_nodes_agree_on_them() {
    let fixture = Fixture::new();
    let tokens: Vec<u64> = (0..5).map(|_| fixture.token()).collect();
    assert!(tokens.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{tokens:?}");
    until(SOON, "nodes that agree", || fixture.counters(&ALL) == [tokens[4]; 5]);
}

#[test]
fn fencing_tokens_grow_whichever_majority_grants() {
    let fixture = Fixture::old();
    let mut last = fixture.token();
    // The same three each time, so that the others are far behind.
    for nodes in [[0, 1, 2], [0, 1, 2], [0, 1, 2], [2, 3, 4], [3, 4, 0], [1, 2, 3], [0, 2, 4], [1, 3, 4]] {
        let others: Vec<usize> = ALL.into_iter().filter(|node| !nodes.contains(node)).collect();
        fixture.await_free_at(&others);
        fixture.foreign_lock(&others, "somebody else's");
        let token = fixture.token();
        assert!(last < token, "{last} {token}");
        last = token;
        for node in others {
            fixture.masters.node(node).command(&["DEL", KEY]);
        }
    }
}

/// From the second grant on.
#[test]
fn a_grant_and_a_release_take_one_round_trip_to_each_node() {
    let fixture = Fixture::new();
    fixture.token();
    let monitors: Vec<Monitor> = ALL.iter().map(|node| Monitor::of(fixture.masters.node(*node))).collect();
    fixture.token();
    for monitor in monitors {
        let requests = monitor.requests();
        let names: Vec<&str> = requests.iter().map(|request| request.words[0].as_str()).collect();
        assert_eq!(names, ["HELLO", "CLIENT", "EVALSHA", "EVALSHA"]);
        assert_eq!(
            requests.iter().map(|request| &request.client).collect::<std::collections::HashSet<_>>().len(),
            1
        );
    }
}

#[test]
fn renewals_keep_the_lock_at_every_node() {
    let fixture = Fixture::new().ttl("6s");
    let run = fixture.witness();
    fixture.await_renewals_at(&ALL);
    fixture.assert_undisturbed(run);
}

#[test]
fn a_nested_run_enters_at_once_with_the_same_fencing_token() {
    let fixture = Fixture::new();
    let inner = format!(
        "echo $DLOCK_FENCING_TOKEN; {} run -b {} --ttl 60s x -- sh -c 'echo $DLOCK_FENCING_TOKEN'",
        crate::support::dlock::BINARY,
        fixture.masters.url()
    );
    let output = fixture.run().sh(&inner).output();
    let tokens: Vec<&str> = output.stdout.lines().collect();
    assert_eq!((output.exit, output.stderr.as_str(), tokens.len()), (Exit::Code(0), "", 2));
    assert_eq!(tokens[0], tokens[1]);
    fixture.assert_no_traces(&ALL);
}

#[test]
fn readers_share_and_exclude_a_writer() {
    let fixture = Fixture::new();
    let reader = fixture.witness_of(fixture.run().arg("--shared"));
    let other = fixture.token_of(fixture.run().arg("--shared"));
    assert!(other > 0);
    let writer = fixture.run().command(["true"]).output();
    assert_eq!(writer.exit, Exit::Code(75), "{}", writer.stderr);
    fixture.assert_undisturbed(reader);
    assert!(fixture.token() > other);
}

#[test]
fn the_lock_is_kept_for_min_hold_at_every_node() {
    let fixture = Fixture::new();
    assert_eq!(fixture.run().args(["--min-hold", "10m"]).command(["true"]).output().exit, Exit::Code(0));
    fixture.await_held_at(&ALL);
    let output = fixture.run().command(["true"]).output();
    assert_eq!(output.exit, Exit::Code(75));
    assert!(output.stderr.contains("is kept"), "{}", output.stderr);
}

#[test]
fn a_token_is_acquired_renewed_checked_and_released() {
    let fixture = Fixture::new();
    let url = fixture.masters.url();
    let token = fixture.place.arg("token");
    let dlock = |words: &[&str]| fixture.place.bare().args(words);
    let taken = dlock(&["acquire", "-b", &url, "--ttl", "30s", "--token-file", &token, "x"]).output();
    assert_eq!(taken.outcome(), (Exit::Code(0), "", ""));
    for (command, exit) in [("check", 0), ("renew", 0), ("release", 0), ("check", 76), ("renew", 76)] {
        let output = dlock(&[command, "-b", &url, "--token-file", &token, "x"]).output();
        assert_eq!(output.exit, Exit::Code(exit), "{command}: {}", output.stderr);
    }
    fixture.assert_no_traces(&ALL);
}

#[test]
fn break_ends_the_run_of_the_holder() {
    let fixture = Fixture::new().ttl("30s");
    let mut run = fixture.witness();
    let url = fixture.masters.url();
    let broken =
        fixture.place.bare().args(["break", "-b", &url, "--yes", "--reason", "maintenance", "x"]).output();
    assert_eq!(broken.exit, Exit::Code(0), "{}", broken.stderr);
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(76));
    assert!(output.stderr.contains("maintenance"), "{}", output.stderr);
    fixture.assert_no_traces(&ALL);
}

#[test]
fn status_shows_one_holder_with_one_fencing_token() {
    let fixture = Fixture::new();
    let run = fixture.witness();
    fixture.await_held_at(&ALL);
    let url = fixture.masters.url();
    let output = fixture.place.bare().args(["status", "-b", &url, "--json"]).output();
    let shown: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(shown["locks"].as_array().unwrap().len(), 1, "{shown}");
    let lock = &shown["locks"][0];
    assert_eq!(
        (&lock["name"], &lock["state"], &lock["mode"]),
        (&"x".into(), &"held".into(), &"exclusive".into())
    );
    assert_eq!(lock["holders"].as_array().unwrap().len(), 1, "{lock}");
    assert_eq!(lock["holders"][0]["pid"], run.pid());
    // A node that granted it late had its own number at first.
    until(SOON, "nodes that agree on the token", || {
        fixture.counters(&ALL).iter().all(|counter| lock["holders"][0]["fencing_token"] == *counter)
    });
    fixture.assert_undisturbed(run);
    let output = fixture.place.bare().args(["status", "-b", &url, "--exit-code", "x"]).output();
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stderr);
    let output = fixture.place.bare().args(["status", "-b", &url, "--history", "x"]).output();
    assert_eq!(
        output.stdout.matches("probe").count(),
        1,
        "one run, whichever nodes noted it: {}",
        output.stdout
    );
}

/// A partial hold, like that of a concurrent claim.
#[test]
fn a_hold_at_a_minority_is_not_shown_and_does_not_exclude() {
    let fixture = Fixture::old();
    fixture.foreign_lock(&[0, 1], "somebody else's");
    let url = fixture.masters.url();
    let output = fixture.place.bare().args(["status", "-b", &url, "--json", "x"]).output();
    let shown: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(shown["locks"][0]["state"], "free", "{shown}");
    fixture.token();
    fixture.await_free_at(&[2, 3, 4]);
    fixture.foreign_lock(&[2], "somebody else's");
    let output = fixture.run().command(["true"]).output();
    assert_eq!(output.exit, Exit::Code(75), "{}", output.stderr);
    // What was granted is given back.
    fixture.await_free_at(&[3, 4]);
}

/// Clients of redsync, redlock-py or node-redlock set the same key at each node.
#[test]
fn a_foreign_client_at_a_majority_is_excluded_and_excludes() {
    let fixture = Fixture::old();
    let run = fixture.witness();
    fixture.await_held_at(&ALL);
    fixture.assert_undisturbed(run);
    fixture.await_free_at(&ALL);
    fixture.foreign_lock(&[1, 2, 4], "somebody else's");
    let output = fixture.run().command(["true"]).output();
    assert_eq!(output.exit, Exit::Code(75), "{}", output.stderr);
    fixture.await_free_at(&[0, 3]);
}

#[test]
fn the_lock_of_a_killed_dlock_ends_with_its_lease() {
    let fixture = Fixture::new().ttl("6s");
    let run = fixture.witness();
    let next_holder = fixture.next_holder();
    run.signal(nix::sys::signal::Signal::SIGKILL);
    let mut next_holder = next_holder;
    let output = next_holder.wait_within(Duration::from_secs(20));
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "clean\n"), "{}", output.stderr);
    drop(run);
}

/// The same names in another store are different locks.
#[test]
fn a_single_node_is_a_different_store() {
    let fixture = Fixture::new();
    let run = fixture.witness();
    let one = Store::on(fixture.masters.node(0));
    assert_eq!(one.run().command(["true"]).output().exit, Exit::Code(75), "it has the same key, though");
    fixture.assert_undisturbed(run);
}

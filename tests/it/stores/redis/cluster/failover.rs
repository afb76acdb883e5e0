//! F26: a master dies while one of its locks is held, and its replica is promoted.

use super::{KEY, assert_ends_well, assert_ran, await_discovery, await_renewal, holder, let_go, run};
use crate::support::SOON;
use crate::support::cluster::{Cluster, Plan};
use crate::support::place::Place;
use crate::support::resp::Value;
use crate::support::running::Exit;
use crate::support::wait::until;
use std::time::Duration;

/// Six nodes that soon notice a dead one.
fn with_replicas() -> Cluster {
    Cluster::start_with(Plan {
        replicas: true,
        node_timeout: Some(Duration::from_secs(2)),
        ..Plan::default()
    })
}

/// Waits until the replica of a node has a key.
#[track_caller]
fn await_replica(cluster: &Cluster, node: usize, key: &str) {
    until(SOON, "a replica with the lock", || {
        let mut replica = cluster.node(node + 3).connect();
        replica.command(&["READONLY"]);
        replica.command(&["EXISTS", key]) == Value::Int(1)
    });
}

#[test]
fn a_hold_continues_on_a_promoted_replica_that_has_the_lock() {
    let (mut cluster, place) = (with_replicas(), Place::new());
    let master = cluster.node_of(KEY);
    // Only the master is given: the others are discovered.
    let mut held = holder(run(&place, &cluster.url_of(&[master]), "60s"), "go");
    await_discovery(&cluster, master);
    await_replica(&cluster, master, KEY);
    let mut waiter = run(&place, &cluster.url(), "60s").args(["--wait", "forever"]).sh("echo ran").spawn();
    super::await_line(&cluster, "x", 1);
    cluster.node_mut(master).kill();
    until(SOON, "a promoted replica", || {
        matches!(cluster.node(master + 3).command(&["ROLE"]), Value::List(parts)
            if parts[0] == Value::Text("master".into()))
    });
    held.assert_running();
    let_go(&place, "go");
    assert_ends_well(&mut held);
    let output = waiter.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", output.stderr);
}

#[test]
fn renewal_follows_a_promoted_replica() {
    let (mut cluster, place) = (with_replicas(), Place::new());
    let master = cluster.node_of(KEY);
    let mut held = holder(run(&place, &cluster.url_of(&[master]), "15s"), "go");
    await_discovery(&cluster, master);
    await_renewal(&cluster, KEY);
    await_replica(&cluster, master, KEY);
    cluster.node_mut(master).kill();
    await_renewal(&cluster, KEY);
    held.assert_running();
    let_go(&place, "go");
    let output = held.wait();
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stderr);
    assert_ran(&run(&place, &cluster.url(), "15s").sh("echo ran").output());
}

#[test]
fn a_lock_that_the_replica_lacks_is_lost() {
    let (mut cluster, place) = (with_replicas(), Place::new());
    let master = cluster.node_of(KEY);
    let mut held = holder(run(&place, &cluster.url(), "30s"), "go");
    await_replica(&cluster, master, KEY);
    cluster.node(master).stop();
    let promoted = cluster.node(master + 3);
    until(SOON, "a promoted replica", || {
        matches!(promoted.command(&["ROLE"]), Value::List(parts)
            if parts[0] == Value::Text("master".into()))
    });
    // As if it had been written last, and had not been replicated.
    assert_eq!(promoted.command(&["DEL", KEY]), Value::Int(1));
    cluster.node_mut(master).kill();
    let output = held.wait();
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
}

//! Locks in a Redis Cluster: found on whichever node they are, and kept while that changes.

mod discovery;
mod doctor;
mod failover;
mod inspection;
mod queue;
mod rights;
mod round_trips;
mod slot_migration;

use crate::support::SOON;
use crate::support::cluster::Cluster;
use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::resp::Value;
use crate::support::running::{Exit, Output, Running};
use crate::support::wait::{eventually, until};

/// The key of the lock `x`, the default of the runs.
const KEY: &str = "dlock:x";

/// A side key of a lock without braces.
fn side(what: &str, name: &str) -> String {
    format!("dlock#{what}:{{dlock:{name}}}")
}

/// `dlock run` on the lock `x`.
fn run(place: &Place, url: &str, ttl: &str) -> Dlock {
    place.run().backend(url).args(["--ttl", ttl])
}

/// A run whose command continues until it is [let go](let_go).
#[track_caller]
fn holder(run: Dlock, go: &str) -> Running {
    let go = run.place().arg(go);
    let mut holder = run.sh(&format!("echo ready; until [ -e '{go}' ]; do sleep 0.05; done")).spawn();
    holder.await_ready();
    holder
}

fn let_go(place: &Place, go: &str) {
    place.write(go, "");
}

/// Asserts that it ends by itself, its command too, without a message.
#[track_caller]
fn assert_ends_well(run: &mut Running) {
    let output = run.wait();
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""), "{}", output.stdout);
}

/// Asserts that it does not run, because the lock is held.
#[track_caller]
fn assert_held(output: &Output) {
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(75), ""), "{}", output.stderr);
    assert!(output.stderr.contains(" is held by "), "{}", output.stderr);
}

/// Asserts that it ran.
#[track_caller]
fn assert_ran(output: &Output) {
    assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
}

/// A node that does not have the key.
fn another(cluster: &Cluster, key: &str) -> usize {
    (cluster.node_of(key) + 1) % 3
}

/// The remaining lease of the lock, in ms.
fn left(cluster: &Cluster, key: &str) -> i64 {
    cluster.command_at(key, &["PTTL", key]).int()
}

/// Waits until the lock has been renewed since this was called.
#[track_caller]
fn await_renewal(cluster: &Cluster, key: &str) {
    crate::support::redis::await_renewal(|| left(cluster, key));
}

/// Waits until a holder has asked this node for the other ones.
#[track_caller]
fn await_discovery(cluster: &Cluster, node: usize) {
    until(SOON, "a holder that knows the other nodes", || {
        let stats = cluster.node(node).command(&["INFO", "commandstats"]).text();
        stats.contains("cmdstat_cluster|slots:")
    });
}

/// Waits until this many are in the queue, and returns their tokens.
#[track_caller]
fn await_line(cluster: &Cluster, name: &str, count: usize) -> Vec<String> {
    let queue = side("queue", name);
    eventually(SOON, "a line", || {
        let tokens = match cluster.command_at(&queue, &["ZRANGE", &queue, "0", "-1"]) {
            Value::List(tokens) => tokens.iter().map(Value::text).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        (tokens.len() == count).then_some(tokens)
    })
}

/// Waits until only the counter and the last outcomes of the lock are left.
#[track_caller]
fn await_nothing_left(cluster: &Cluster, name: &str) {
    let mut left = Vec::new();
    until(SOON, "nothing left of the lock", || {
        left = cluster.keys();
        left.retain(|key| key.contains(&format!("dlock:{name}")) && !crate::support::redis::is_memory(key));
        left.is_empty()
    });
}

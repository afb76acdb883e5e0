//! `dlock doctor` in a cluster: the cluster, and the node of a lock.

use crate::admin::doctor::{Findings, doctor};
use crate::support::SOON;
use crate::support::cluster::{Cluster, Plan};
use crate::support::place::Place;
use crate::support::redis::Redis;
use crate::support::resp::Value;
use crate::support::wait::until;
use std::time::Duration;

#[test]
fn a_cluster_without_replicas_is_a_warning() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    // The scratch lock is on another node each time.
    for node in [0, 1, 2, 0, 1, 2] {
        let found = Findings::of(doctor(&place, &cluster.url_of(&[node])));
        assert_eq!(
            found.only("cluster", "ok"),
            "state ok, 3 nodes, 16384 of 16384 slots are served, and none is served while any is not \
             (cluster-require-full-coverage)"
        );
        assert_eq!(found.only("masters", "warning"), "3 masters, none with a replica");
        assert!(found.only("lock", "ok").starts_with("taken, renewed and given back in "), "{found:?}");
        assert_eq!(found.at("problem"), Vec::<&str>::new());
    }
    crate::support::wait::until(SOON, "nothing left", || cluster.keys().is_empty());
}

#[test]
fn a_cluster_with_replicas_is_healthy() {
    let cluster = Cluster::start_with(Plan { replicas: true, ..Plan::default() });
    // A node lists a replica once it has heard from it.
    let told = |node: usize| {
        let Value::List(ranges) = cluster.node(node).command(&["CLUSTER", "SLOTS"]) else {
            panic!("no ranges")
        };
        ranges.iter().all(|range| matches!(range, Value::List(parts) if parts.len() == 4))
    };
    until(SOON, "replicas that are known", || (0..3).all(told));
    // A replica is a valid seed like any other.
    let found = Findings::of(doctor(&Place::new(), &cluster.url_of(&[4])));
    assert!(found.only("cluster", "ok").starts_with("state ok, 6 nodes"), "{found:?}");
    assert_eq!(found.only("masters", "ok"), "3 masters, each with 1 or more replicas");
    assert!(found.only("lock", "ok").starts_with("taken"), "{found:?}");
}

#[test]
fn a_cluster_that_is_down_is_a_problem() {
    let cluster = Cluster::start_with(Plan { node_timeout: Some(Duration::from_secs(2)), ..Plan::default() });
    let slot = cluster.node(0).command(&["CLUSTER", "DELSLOTS", "0"]);
    assert_eq!(slot, Value::Text("OK".into()));
    until(SOON, "a cluster that is down", || {
        cluster.node(0).command(&["CLUSTER", "INFO"]).text().contains("state:fail")
    });
    let found = Findings::of(doctor(&Place::new(), &cluster.url_of(&[0])));
    assert!(found.only("cluster", "problem").starts_with("state fail, 3 nodes, 16383 of 16384"), "{found:?}");
    assert!(found.only("writing", "problem").contains("CLUSTERDOWN"), "{found:?}");
}

#[test]
fn missing_rights_that_only_a_cluster_needs_are_named() {
    let cluster = Cluster::start_with(Plan::default());
    let rules =
        ["ACL", "SETUSER", "dlock", "on", ">s3cret", "~*", "&*", "+@all", "-asking", "-cluster|slots"];
    cluster.command_on_all(&rules);
    let url = cluster.url().replace("redis-cluster://", "redis-cluster://dlock:s3cret@");
    let found = Findings::of(doctor(&Place::new(), &url));
    assert_eq!(found.only("rights", "warning"), "dlock may not run ASKING, CLUSTER SLOTS");
    assert_eq!(found.check("rights")[0]["remedy"], "ACL SETUSER dlock +asking +cluster|slots");
}

#[test]
fn a_server_outside_a_cluster_is_a_problem() {
    let redis = Redis::start();
    let found = Findings::of(doctor(&Place::new(), &format!("redis-cluster://127.0.0.1:{}", redis.port())));
    assert!(found.only("cluster", "problem").starts_with("the server is not a node of"), "{found:?}");
}

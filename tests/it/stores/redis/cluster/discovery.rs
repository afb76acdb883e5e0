//! Which node has a lock: found from any of them, also when some are dead, hung, or were replaced.

use super::{
    KEY, another, assert_ends_well, assert_ran, await_discovery, await_nothing_left, await_renewal, holder,
    let_go, run,
};
use crate::support::SOON;
use crate::support::cluster::{Cluster, Plan};
use crate::support::fake::Fake;
use crate::support::place::Place;
use crate::support::redis::Redis;
use crate::support::resp::{self, Value};
use crate::support::running::Exit;
use crate::support::server::free_port;
use crate::support::wait::{throughout, until};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[test]
fn a_lock_is_found_from_every_node() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    for name in ["x", "y", "z"] {
        for node in 0..3 {
            let output = run(&place, &cluster.url_of(&[node]), "30s").name(name).sh("echo ran").output();
            assert_ran(&output);
        }
        await_nothing_left(&cluster, name);
    }
}

/// All keys of a lock are in its slot, whatever braces its name has: otherwise a node would refuse the script.
#[test]
fn names_with_braces_have_all_their_keys_in_one_slot() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    for name in ["a}b", "{}x", "{a}b", "{", "}{", "x{y}z", "{{a}}", "ä{"] {
        let url = cluster.url();
        let mut held = holder(run(&place, &url, "30s").name(name), name);
        let mut next_holder =
            run(&place, &url, "30s").name(name).args(["-v", "--wait", "forever"]).sh("echo ran").spawn();
        next_holder.await_stderr("waiting");
        let key = format!("dlock:{name}");
        let slot = cluster.slot_of(&key);
        let all = cluster.keys();
        let own: Vec<&String> = all
            .iter()
            .filter(|one| {
                one.ends_with(&key) || one.contains(&format!("{key}:")) || one.starts_with("dlock#")
            })
            .collect();
        assert!(own.len() >= 6, "{own:?}");
        for key in own {
            assert_eq!(cluster.slot_of(key), slot, "{key}");
        }
        let_go(&place, name);
        assert_ends_well(&mut held);
        assert_eq!((next_holder.wait().exit, next_holder.stdout().as_str()), (Exit::Code(0), "ran\n"));
        cluster.wipe();
    }
}

#[test]
fn several_names_in_different_slots_are_taken_together() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    let names: Vec<String> = (0..6).map(|number| format!("n{number}")).collect();
    let nodes: std::collections::BTreeSet<usize> =
        names.iter().map(|name| cluster.node_of(&format!("dlock:{name}"))).collect();
    assert_eq!(nodes.len(), 3, "on every node one");
    let mut held = holder(run(&place, &cluster.url(), "30s").no_name().args(&names), "go");
    for name in &names {
        let other = run(&place, &cluster.url(), "30s").name(name).sh("echo ran").output();
        super::assert_held(&other);
    }
    let_go(&place, "go");
    assert_ends_well(&mut held);
    for name in &names {
        await_nothing_left(&cluster, name);
    }
}

/// Dead or hung seeds cost a moment each, and not the time of an attempt.
#[test]
fn dead_or_hung_seeds_delay_no_run() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    let silent = Fake::silent();
    let port = |node: usize| cluster.node(node).port();
    let dead = free_port();
    let url = format!(
        "redis-cluster://127.0.0.1:{dead},127.0.0.1:{},127.0.0.1:{},127.0.0.1:{}",
        silent.port(),
        port(0),
        port(1)
    );
    assert_ran(&run(&place, &url, "20s").args(["--connect-timeout", "20s"]).sh("echo ran").output());
    let mut held = holder(run(&place, &url, "6s"), "go");
    await_renewal(&cluster, KEY);
    let_go(&place, "go");
    assert_ends_well(&mut held);
}

/// A hung server accepts connections, and even the first request, and never replies.
#[test]
fn a_stopped_node_does_not_delay_locks_on_other_nodes() {
    let (cluster, place) = (Cluster::start_with(Plan::default()), Place::new());
    let stopped = another(&cluster, KEY);
    cluster.node(stopped).stop();
    let nodes = [stopped, (stopped + 1) % 3, (stopped + 2) % 3];
    let output = run(&place, &cluster.url_of(&nodes), "6s").sh("echo ran").output();
    cluster.node(stopped).resume();
    assert_ran(&output);
}

/// Holders and waiters learn all nodes, in case that the given ones disappear.
#[test]
fn a_hold_survives_the_loss_of_all_seeds() {
    let (mut cluster, place) = (Cluster::start_with(Plan::default()), Place::new());
    let (owner, to) = (cluster.node_of(KEY), another(&cluster, KEY));
    let mut held = holder(run(&place, &cluster.url_of(&[owner]), "6s"), "go");
    await_discovery(&cluster, owner);
    await_renewal(&cluster, KEY);
    cluster.move_slot(KEY, to);
    // The cluster is no longer complete, and continues nevertheless.
    for node in [to, (to + 1) % 3, (to + 2) % 3].into_iter().filter(|node| *node != owner) {
        let set = ["CONFIG", "SET", "cluster-require-full-coverage", "no"];
        assert_eq!(cluster.node(node).command(&set), Value::Text("OK".into()));
    }
    cluster.node_mut(owner).kill();
    await_renewal(&cluster, KEY);
    held.assert_running();
    let_go(&place, "go");
    assert_ends_well(&mut held);
}

/// The node may only be slow: whoever never learns the others loses the lock with it.
#[test]
fn the_nodes_are_queried_again_if_there_was_no_reply() {
    let queries = AtomicUsize::new(0);
    let fake = Fake::scripted(move |words| match words[0].as_str() {
        "HELLO" => Some(b"%1\r\n$5\r\nproto\r\n:3\r\n".to_vec()),
        "CLUSTER" if queries.fetch_add(1, Ordering::SeqCst) == 0 => None,
        "CLUSTER" => Some(b"*0\r\n".to_vec()),
        "EVAL" | "EVALSHA" => {
            let asked = |operation: &str| words.iter().any(|word| word.contains(operation));
            Some(resp::bulk(match () {
                () if asked(r#""acquire""#) => {
                    r#"{"outcome":"granted","fencing":"1769824800123456","lease":60000}"#
                }
                () if asked(r#""renew""#) => r#"{"outcome":"renewed"}"#,
                () => r#"{"outcome":"released"}"#,
            }))
        }
        _ => Some(b"+OK\r\n".to_vec()),
    });
    let queried = || fake.commands().iter().filter(|words| words[0] == "CLUSTER").count();
    let place = Place::new();
    let url = format!("redis-cluster://127.0.0.1:{}", fake.port());
    let mut held = holder(run(&place, &url, "60s"), "go");
    until(SOON, "a second query", || queried() == 2);
    let_go(&place, "go");
    assert_ends_well(&mut held);
    assert_eq!(queried(), 2);
}

#[test]
fn a_cluster_without_a_reachable_node_is_unavailable() {
    let place = Place::new();
    let url = format!("redis-cluster://127.0.0.1:{},127.0.0.1:{}", free_port(), free_port());
    let output = run(&place, &url, "30s").sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""));
    for part in ["connection refused", "nor can the other known node be reached", "--retry"] {
        assert!(output.stderr.contains(part), "{}", output.stderr);
    }
}

/// CLUSTERDOWN: a slot has no owner, so no slot is served, unless the cluster is configured otherwise.
#[test]
fn a_cluster_that_is_down_is_unavailable_and_waited_for() {
    let (cluster, place) = (Cluster::start_with(Plan::default()), Place::new());
    let slot = cluster.slot_of(KEY);
    let (owner, lost) = (cluster.node_of_slot(slot), slot ^ 1);
    assert_eq!(cluster.node_of_slot(lost), owner);
    let tell = |words: [&str; 3]| {
        assert_eq!(cluster.node(owner).command(&words), Value::Text("OK".into()));
    };
    tell(["CLUSTER", "DELSLOTS", &lost.to_string()]);
    until(SOON, "a cluster that is down", || {
        cluster.node(owner).command(&["CLUSTER", "INFO"]).text().contains("state:fail")
    });
    let url = cluster.url_of(&[owner]);
    let output = run(&place, &url, "30s").sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""));
    assert!(output.stderr.contains("CLUSTERDOWN"), "{}", output.stderr);
    let mut patient = run(&place, &url, "30s").args(["--wait", "60s"]).sh("echo ran").spawn();
    throughout(Duration::from_millis(300), "nobody runs", || patient.stdout().is_empty());
    tell(["CLUSTER", "ADDSLOTS", &lost.to_string()]);
    assert_ran(&patient.wait());
}

#[test]
fn a_cluster_node_given_as_a_single_server_is_reported() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    let url = format!("redis://127.0.0.1:{}", cluster.node(another(&cluster, KEY)).port());
    let output = run(&place, &url, "30s").sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(78), ""));
    assert!(output.stderr.contains("use redis-cluster://"), "{}", output.stderr);
}

/// Each of them would be taken for the whole cluster, and the lock be granted on every one.
#[test]
fn servers_outside_a_cluster_grant_nothing() {
    let (redis, other, place) = (Redis::start(), Redis::start(), Place::new());
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", redis.port(), other.port());
    let user = ["ACL", "SETUSER", "dlock", "on", ">s3cret", "~*", "&*", "+@all", "-cluster"];
    assert_eq!(redis.command(&user), Value::Text("OK".into()));
    for (user, options) in [("", ""), ("", "?protocol=resp2"), ("dlock:s3cret@", "")] {
        let url = format!("redis-cluster://{user}{hosts}{options}");
        let output = run(&place, &url, "30s").sh("echo ran").output();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(78), ""), "{}", output.stderr);
        let why = format!(
            "127.0.0.1:{} is not a node of a Redis Cluster: use redis:// or redlock://",
            redis.port()
        );
        assert!(output.stderr.contains(&why), "{}", output.stderr);
        for server in [&redis, &other] {
            assert_eq!(server.command(&["EXISTS", KEY]).int(), 0, "{url}");
        }
    }
}

//! The cost of discovery: two round trips at most, and nothing once the node is found.

use super::{KEY, another, assert_ran, holder, let_go, run};
use crate::support::SOON;
use crate::support::cluster::Cluster;
use crate::support::monitor::Monitor;
use crate::support::place::Place;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long a hold lasts before its client queries the nodes.
const DISCOVERY_DELAY: Duration = Duration::from_millis(250);

/// How long a node has to reply before the next one is asked.
const GUESS_LIMIT: Duration = Duration::from_millis(250);

/// The requests to each node, as the first word of each request of a dlock.
fn asked(monitors: &[Monitor]) -> Vec<Vec<String>> {
    let words =
        |monitor: &Monitor| monitor.requests().iter().map(|request| request.words[0].clone()).collect();
    monitors.iter().map(words).collect()
}

/// Each request is one round trip. Besides the connection to the right node and the request to it, which a single
/// server costs too, there are one more connection and one more request.
#[test]
fn a_cold_start_costs_at_most_two_round_trips_more() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    let (owner, other) = (cluster.node_of(KEY), another(&cluster, KEY));
    let connections = |node: usize| {
        let info = cluster.node(node).command(&["INFO", "stats"]).text();
        let line = info.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        line.and_then(|number| number.trim().parse::<u64>().ok()).unwrap()
    };
    // From now on the node has the script cached.
    assert_ran(&run(&place, &cluster.url_of(&[owner]), "30s").sh("echo ran").output());
    let begun = Instant::now();
    let mut firsts = VecDeque::from([owner, other]);
    while let Some(first) = firsts.pop_front() {
        let monitors: Vec<Monitor> = (0..3).map(|node| Monitor::of(cluster.node(node))).collect();
        let before: Vec<u64> = (0..3).map(connections).collect();
        let url = cluster.url_of(&[first, (first + 1) % 3, (first + 2) % 3]);
        let output = run(&place, &url, "30s").sh("echo ran").output();
        assert_ran(&output);
        let made: Vec<u64> = (0..3).map(|node| connections(node) - before[node] - 1).collect();
        let asked = asked(&monitors);
        let mut expected = vec![0; 3];
        expected[owner] = 1;
        if first == other {
            expected[other] = 1;
            // A request that is refused with MOVED is not shown by MONITOR, because it was not executed.
            let sent = cluster.node(other).command(&["INFO", "commandstats"]).text();
            assert!(sent.contains("cmdstat_hello"), "{sent}");
        }
        // Reading the counters takes a separate connection.
        if asked[owner] == ["HELLO", "CLIENT", "EVALSHA", "EVALSHA"] && made == expected {
            continue;
        }
        // A node that is too slow, on a busy machine, is taken for one that does not have the lock: such a run shows nothing.
        assert!(output.elapsed >= GUESS_LIMIT && begun.elapsed() < SOON, "{asked:?}, {made:?}");
        firsts.push_front(first);
    }
}

/// Only long-running clients query the nodes for all others.
#[test]
fn a_short_hold_sends_no_further_requests() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    let owner = cluster.node_of(KEY);
    let monitor = Monitor::of(cluster.node(owner));
    assert_ran(&run(&place, &cluster.url_of(&[owner]), "30s").sh("echo ran").output());
    let short = monitor.requests();
    // On a busy machine the hold may last longer.
    for pair in short.windows(2) {
        let since = pair[1].at.saturating_sub(pair[0].at);
        assert!(pair[1].words[0] != "CLUSTER" || since >= DISCOVERY_DELAY, "after {since:?}");
    }
    let mut held = holder(run(&place, &cluster.url_of(&[owner]), "6s"), "go");
    super::await_renewal(&cluster, KEY);
    super::await_renewal(&cluster, KEY);
    let_go(&place, "go");
    super::assert_ends_well(&mut held);
    let requests = monitor.requests();
    let long = requests[short.len()..].iter();
    assert_eq!(long.filter(|request| request.words[0] == "CLUSTER").count(), 1);
}

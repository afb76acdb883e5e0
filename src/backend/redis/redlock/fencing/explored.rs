//! What the exploration shows: the rules keep tokens unique and ordered, and each of them is needed.
//!
//! `cargo test --lib fencing -- --nocapture` prints how many states there are. Optimised (`--release`) the tests explore
//! larger configurations too.

use super::explorer::{Explored, explore};
use super::model::{Memory, ModelNodes, Rule};
use super::{Step, step};

/// Three nodes, whose counters may begin anywhere up to two, and two claims. Locks may be lost at any moment.
const BASE: ModelNodes = ModelNodes {
    nodes: 3,
    claims: 2,
    shared: false,
    rounds: 1,
    repeats: 0,
    restarts: 0,
    memory: Memory::Empty,
    counters: 2,
    skew: 0,
    away: 1,
    mends: false,
    without: None,
    step,
};

/// No counters yet. One node may come back empty, after longer than the clocks differ.
const FORGETFUL: ModelNodes = ModelNodes { counters: 0, restarts: 1, skew: 1, away: 2, ..BASE };

/// A node may come back with what it had some time ago.
const STALE: ModelNodes = ModelNodes { counters: 1, restarts: 1, memory: Memory::Snapshot, ..BASE };

fn visit(what: &str, model: &ModelNodes) -> Explored {
    let explored = explore(model);
    println!("{what}: {} states, {:#?}", explored.states, explored.failure);
    explored
}

fn assert_holds(what: &str, model: ModelNodes) {
    assert_eq!(visit(what, &model).failure, None, "{what}");
}

fn assert_holds_if_optimised(what: &str, model: ModelNodes) {
    if !cfg!(debug_assertions) {
        assert_holds(what, model);
    }
}

fn assert_fails(what: &str, model: ModelNodes, story: &[&str]) {
    let failure = visit(what, &model).failure.unwrap_or_default();
    assert_eq!(failure, story, "{what}");
}

#[test]
fn tokens_are_unique_and_ordered_whatever_becomes_of_the_locks() {
    assert_holds("3 nodes, 3 claims", ModelNodes { claims: 3, counters: 1, ..BASE });
    assert_holds("5 nodes, 2 claims", ModelNodes { nodes: 5, ..BASE });
    assert_holds(
        "3 nodes that do not ask who holds the lock",
        ModelNodes { without: Some(Rule::WriteBackToHolder), ..BASE },
    );
    assert_holds_if_optimised("3 nodes, 3 claims, counters up to 2", ModelNodes { claims: 3, ..BASE });
}

#[test]
fn tokens_are_unique_and_ordered_when_requests_arrive_twice() {
    assert_holds("3 nodes, 2 claims, 1 repeat", ModelNodes { counters: 1, rounds: 2, repeats: 1, ..BASE });
    assert_holds_if_optimised(
        "5 nodes, 2 claims, 1 repeat",
        ModelNodes { nodes: 5, counters: 1, repeats: 1, ..BASE },
    );
    assert_holds_if_optimised("3 nodes, 2 claims, 2 repeats", ModelNodes { counters: 1, repeats: 2, ..BASE });
}

#[test]
fn tokens_are_unique_and_ordered_among_those_who_share_a_lock() {
    assert_holds("3 nodes, 2 claims, shared", ModelNodes { shared: true, counters: 1, rounds: 2, ..BASE });
    assert_holds("5 nodes, 2 claims, shared", ModelNodes { nodes: 5, shared: true, counters: 1, ..BASE });
    assert_holds_if_optimised(
        "3 nodes, 3 claims, shared",
        ModelNodes { claims: 3, shared: true, counters: 1, ..BASE },
    );
}

#[test]
fn tokens_are_unique_and_ordered_when_nodes_get_locks_back() {
    assert_holds("3 nodes, 2 claims, mending", ModelNodes { mends: true, ..BASE });
    assert_holds_if_optimised(
        "3 nodes, 3 claims, mending",
        ModelNodes { claims: 3, mends: true, counters: 1, ..BASE },
    );
    assert_holds_if_optimised(
        "5 nodes, 2 claims, mending",
        ModelNodes { nodes: 5, mends: true, counters: 1, ..BASE },
    );
}

#[test]
fn tokens_are_unique_and_ordered_when_nodes_come_back_empty_after_longer_than_clocks_differ() {
    assert_holds("3 nodes, 2 claims, 1 of them empty", FORGETFUL);
    assert_holds_if_optimised("the same, mending", ModelNodes { mends: true, ..FORGETFUL });
    assert_holds_if_optimised("the same, shared", ModelNodes { shared: true, ..FORGETFUL });
    assert_holds_if_optimised("the same, clocks further apart", ModelNodes { skew: 2, away: 3, ..FORGETFUL });
}

#[test]
fn tokens_are_unique_and_ordered_when_nodes_come_back_with_older_counters() {
    assert_holds("3 nodes, 2 claims, 1 of them stale", STALE);
    assert_holds_if_optimised(
        "the same, no counters, clocks apart",
        ModelNodes { counters: 0, skew: 1, away: 2, ..STALE },
    );
}

/// The assumption is needed: node 3 is one unit behind node 1, which it took 4 over from, and comes back within one unit.
#[test]
fn a_node_that_comes_back_empty_before_its_clock_has_caught_up_may_give_a_number_twice() {
    assert_fails(
        "away for no longer than the clocks differ",
        ModelNodes { away: 1, ..FORGETFUL },
        &[
            "node 3 grants A: 1",
            "node 1 grants A: 3",
            "node 2 grants A: 4",
            "A writes back 4",
            "node 3 is asked to give A 4: 4",
            "A has token 4",
            "node 3 comes back",
            "node 3 grants B: 4",
            "node 1 grants B: 4",
            "B has token 4",
            "two have this token",
        ],
    );
}

#[test]
fn counters_that_begin_with_one_instead_of_the_time_are_not_enough() {
    assert_fails(
        "no time as seed",
        ModelNodes { without: Some(Rule::TimeAsSeed), ..FORGETFUL },
        &[
            "node 1 grants A: 1",
            "node 2 grants A: 1",
            "node 3 grants B: 1",
            "A has token 1",
            "node 1 comes back",
            "node 1 grants B: 1",
            "B has token 1",
            "two have this token",
        ],
    );
}

#[test]
fn older_counters_that_go_on_as_if_nothing_had_happened_are_not_enough() {
    assert_fails(
        "no start",
        ModelNodes { without: Some(Rule::NoLessThanStart), ..STALE },
        &[
            "node 1 grants A: 2",
            "node 2 grants B: 2",
            "node 3 saves what it has",
            "node 3 grants A: 2",
            "A has token 2",
            "node 3 comes back",
            "node 3 grants B: 2",
            "B has token 2",
            "two have this token",
        ],
    );
    assert_fails(
        "no start for what is written back",
        ModelNodes { without: Some(Rule::NoLessThanStartWrittenBack), ..STALE },
        &[
            "node 1 grants A: 2",
            "node 2 grants A: 2",
            "node 1 grants B: 3",
            "node 3 grants B: 2",
            "node 3 grants A: 3",
            "A writes back 3",
            "node 2 saves what it has",
            "node 2 grants B: 3",
            "B has token 3",
            "node 2 comes back",
            "node 2 is asked to give A 3: 3",
            "A has token 3",
            "two have this token",
        ],
    );
}

#[test]
fn the_largest_number_without_write_back_is_not_enough() {
    let eager = |answered: &[u64], quorum: usize| {
        let largest = answered.iter().max().filter(|_| answered.len() >= quorum);
        largest.map(|largest| Step::Established(*largest))
    };
    assert_fails(
        "no write-back",
        ModelNodes { step: eager, ..BASE },
        &[
            "node 1 grants A: 2",
            "node 1 grants B: 3",
            "node 2 grants B: 2",
            "node 2 grants A: 3",
            "A has token 3",
            "B has token 3",
            "two have this token",
        ],
    );
}

/// As `max(counter, T)` would do.
#[test]
fn taking_over_a_number_that_is_not_larger_is_not_enough_among_those_who_share_a_lock() {
    assert_fails(
        "no comparison with the counter",
        ModelNodes { shared: true, without: Some(Rule::LargerThanCounter), ..BASE },
        &[
            "node 1 grants A: 3",
            "node 3 grants A: 2",
            "node 2 grants B: 3",
            "node 3 grants B: 3",
            "A writes back 3",
            "B has token 3",
            "node 3 is asked to give A 3: 3",
            "A has token 3",
            "two have this token",
        ],
    );
}

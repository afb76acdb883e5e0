//! Redlock's rules for fencing tokens keep the tokens unique and ordered, and each of the rules is needed.

mod model;

use self::model::{Memory, ModelNodes, Rule};
use crate::explorer::{Explored, explore};
use crate::rules::{Step, step};

/// Three nodes, whose counters may start anywhere up to two, and two claims. Locks may be lost at any moment.
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
    restores_holds: false,
    without: None,
    step,
};

/// No counters yet. One node may come back empty, after a longer time than the clocks differ.
const DATA_LOSS: ModelNodes = ModelNodes { counters: 0, restarts: 1, skew: 1, away: 2, ..BASE };

/// A node may come back with an older snapshot.
const STALE: ModelNodes = ModelNodes { counters: 1, restarts: 1, memory: Memory::Snapshot, ..BASE };

fn visit(case: &str, model: &ModelNodes) -> Explored {
    let explored = explore(model);
    println!("{case}: {} states, {:#?}", explored.states, explored.failure);
    explored
}

fn assert_holds(case: &str, model: ModelNodes) {
    assert_eq!(visit(case, &model).failure, None, "{case}");
}

fn assert_holds_if_optimised(case: &str, model: ModelNodes) {
    if !cfg!(debug_assertions) {
        assert_holds(case, model);
    }
}

fn assert_fails(case: &str, model: ModelNodes, trace: &[&str]) {
    let failure = visit(case, &model).failure.unwrap_or_default();
    assert_eq!(failure, trace, "{case}");
}

#[test]
fn tokens_are_unique_and_ordered_even_if_locks_are_lost() {
    assert_holds("3 nodes, 3 claims", ModelNodes { claims: 3, counters: 1, ..BASE });
    assert_holds("5 nodes, 2 claims", ModelNodes { nodes: 5, ..BASE });
    assert_holds(
        "3 nodes that do not check the holder",
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
fn tokens_are_unique_and_ordered_among_shared_holders() {
    assert_holds("3 nodes, 2 claims, shared", ModelNodes { shared: true, counters: 1, rounds: 2, ..BASE });
    assert_holds("5 nodes, 2 claims, shared", ModelNodes { nodes: 5, shared: true, counters: 1, ..BASE });
    assert_holds_if_optimised(
        "3 nodes, 3 claims, shared",
        ModelNodes { claims: 3, shared: true, counters: 1, ..BASE },
    );
}

#[test]
fn tokens_are_unique_and_ordered_when_holds_are_restored() {
    assert_holds("3 nodes, 2 claims, restored holds", ModelNodes { restores_holds: true, ..BASE });
    assert_holds_if_optimised(
        "3 nodes, 3 claims, restored holds",
        ModelNodes { claims: 3, restores_holds: true, counters: 1, ..BASE },
    );
    assert_holds_if_optimised(
        "5 nodes, 2 claims, restored holds",
        ModelNodes { nodes: 5, restores_holds: true, counters: 1, ..BASE },
    );
}

#[test]
fn tokens_are_unique_and_ordered_when_nodes_come_back_empty_after_longer_than_clocks_differ() {
    assert_holds("3 nodes, 2 claims, 1 of them empty", DATA_LOSS);
    assert_holds_if_optimised("the same, restored holds", ModelNodes { restores_holds: true, ..DATA_LOSS });
    assert_holds_if_optimised("the same, shared", ModelNodes { shared: true, ..DATA_LOSS });
    assert_holds_if_optimised("the same, clocks further apart", ModelNodes { skew: 2, away: 3, ..DATA_LOSS });
}

#[test]
fn tokens_are_unique_and_ordered_when_nodes_come_back_with_older_counters() {
    assert_holds("3 nodes, 2 claims, 1 of them stale", STALE);
    assert_holds_if_optimised(
        "the same, no counters, clocks apart",
        ModelNodes { counters: 0, skew: 1, away: 2, ..STALE },
    );
}

/// The assumption is needed: node 3 is one unit behind node 1, from which it took over 4, and comes back within one
/// unit.
#[test]
fn a_node_that_comes_back_empty_before_its_clock_has_caught_up_may_give_a_number_twice() {
    assert_fails(
        "away for no longer than the clocks differ",
        ModelNodes { away: 1, ..DATA_LOSS },
        &[
            "node 3 grants A: 1",
            "node 1 grants A: 3",
            "node 2 grants A: 4",
            "A writes back 4",
            "node 3 is requested to give A 4: 4",
            "A has token 4",
            "node 3 comes back",
            "node 3 grants B: 4",
            "node 1 grants B: 4",
            "B has token 4",
            "two claims have this token",
        ],
    );
}

#[test]
fn counters_that_start_at_one_instead_of_the_time_are_not_enough() {
    assert_fails(
        "no time as seed",
        ModelNodes { without: Some(Rule::TimeAsSeed), ..DATA_LOSS },
        &[
            "node 1 grants A: 1",
            "node 2 grants A: 1",
            "node 3 grants B: 1",
            "A has token 1",
            "node 1 comes back",
            "node 1 grants B: 1",
            "B has token 1",
            "two claims have this token",
        ],
    );
}

#[test]
fn continuing_with_older_counters_is_not_enough() {
    assert_fails(
        "no start",
        ModelNodes { without: Some(Rule::NoLessThanStart), ..STALE },
        &[
            "node 1 grants A: 2",
            "node 2 grants B: 2",
            "node 3 saves a snapshot",
            "node 3 grants A: 2",
            "A has token 2",
            "node 3 comes back",
            "node 3 grants B: 2",
            "B has token 2",
            "two claims have this token",
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
            "node 2 saves a snapshot",
            "node 2 grants B: 3",
            "B has token 3",
            "node 2 comes back",
            "node 2 is requested to give A 3: 3",
            "A has token 3",
            "two claims have this token",
        ],
    );
}

#[test]
fn the_largest_number_without_write_back_is_not_enough() {
    let eager = |numbers: &[u64], quorum: usize| {
        let largest = numbers.iter().max().filter(|_| numbers.len() >= quorum);
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
            "two claims have this token",
        ],
    );
}

/// What `max(counter, T)` would do.
#[test]
fn taking_over_a_number_that_is_not_larger_is_not_enough_among_shared_holders() {
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
            "node 3 is requested to give A 3: 3",
            "A has token 3",
            "two claims have this token",
        ],
    );
}

#[test]
fn a_number_of_a_majority_decides() {
    for (numbers, quorum, expected) in [
        (&[][..], 0, None),
        (&[], 2, None),
        (&[7], 2, None),
        (&[7], 1, Some(Step::Established(7))),
        (&[7, 7], 2, Some(Step::Established(7))),
        (&[7, 8], 2, Some(Step::WriteBack(8))),
        (&[7, 8, 8], 2, Some(Step::Established(8))),
        (&[8, 7, 7], 2, Some(Step::Established(7))),
        (&[7, 7, 8], 3, Some(Step::WriteBack(8))),
        (&[7, 8, 8, 6, 8], 3, Some(Step::Established(8))),
        (&[7, 8, 8, 7, 9], 3, Some(Step::WriteBack(9))),
    ] {
        assert_eq!(step(numbers, quorum), expected, "{numbers:?} of {quorum}");
    }
}

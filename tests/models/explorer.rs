//! Visits every reachable state of a model breadth first, so that the first failure found has the shortest trace.

use std::collections::{HashSet, VecDeque};
use std::fmt::Display;
use std::hash::Hash;

/// A nondeterministic model.
pub(crate) trait Model {
    /// Everything that determines what can happen next.
    type State;
    /// The canonical form of a state: two states of the same form have the same successors.
    type Form: Hash + Eq;
    type Action: Copy + Display;

    /// The initial states.
    fn initial_states(&self) -> Vec<Self::State>;

    /// The possible actions in a state, and the states they lead to.
    fn successors(&self, state: &Self::State) -> Vec<(Self::Action, Self::State)>;

    /// The canonical form of a state.
    fn form(&self, state: &Self::State) -> Self::Form;

    /// The property that a state violates, if any.
    fn fault(&self, state: &Self::State) -> Option<String>;
}

/// The result of an exploration.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Explored {
    /// The number of states visited.
    pub(crate) states: usize,
    /// The actions that lead to the first fault, followed by the fault.
    pub(crate) failure: Option<Vec<String>>,
}

/// Visits all states, or all states up to the first fault.
pub(crate) fn explore<M: Model>(model: &M) -> Explored {
    let mut seen = HashSet::new();
    let mut is_new = |state: &M::State| seen.insert(model.form(state));
    // The predecessor and the action of each state, for the trace.
    let mut visits: Vec<(usize, Option<M::Action>)> = Vec::new();
    let mut queue = VecDeque::new();
    for state in model.initial_states() {
        if is_new(&state) {
            queue.push_back((visits.len(), state));
            visits.push((0, None));
        }
    }
    while let Some((visit, state)) = queue.pop_front() {
        if let Some(fault) = model.fault(&state) {
            let mut trace = vec![fault];
            let mut at = visit;
            while let (before, Some(action)) = visits[at] {
                trace.push(action.to_string());
                at = before;
            }
            trace.reverse();
            return Explored { states: visits.len(), failure: Some(trace) };
        }
        for (action, next) in model.successors(&state) {
            if is_new(&next) {
                queue.push_back((visits.len(), next));
                visits.push((visit, Some(action)));
            }
        }
    }
    Explored { states: visits.len(), failure: None }
}

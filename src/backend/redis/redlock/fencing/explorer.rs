//! Visits every state that a model can come to, the nearest first, so that the first failure has the shortest story.

use std::collections::{HashSet, VecDeque};
use std::fmt::Display;
use std::hash::Hash;

/// Something that can go on in several ways.
pub(super) trait Model {
    /// All that matters for what can happen next.
    type State;
    /// The state without what makes no difference: two states of the same form have the same futures.
    type Form: Hash + Eq;
    /// What can happen.
    type Action: Copy + Display;

    /// Where it begins.
    fn beginnings(&self) -> Vec<Self::State>;

    /// Everything that can happen in a state, and what comes of it.
    fn futures(&self, state: &Self::State) -> Vec<(Self::Action, Self::State)>;

    /// The form of a state.
    fn form(&self, state: &Self::State) -> Self::Form;

    /// What is wrong with a state.
    fn fault(&self, state: &Self::State) -> Option<&'static str>;
}

/// What an exploration has come to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Explored {
    /// How many states were visited.
    pub(super) states: usize,
    /// What happens until the first fault, and the fault.
    pub(super) failure: Option<Vec<String>>,
}

/// Visits all states, or those before the first fault.
pub(super) fn explore<M: Model>(model: &M) -> Explored {
    let mut seen = HashSet::new();
    let mut is_new = |state: &M::State| seen.insert(model.form(state));
    // How each state was come to, for the story.
    let mut visits: Vec<(usize, Option<M::Action>)> = Vec::new();
    let mut ahead = VecDeque::new();
    for state in model.beginnings() {
        if is_new(&state) {
            ahead.push_back((visits.len(), state));
            visits.push((0, None));
        }
    }
    while let Some((visit, state)) = ahead.pop_front() {
        if let Some(fault) = model.fault(&state) {
            let mut story = vec![fault.to_owned()];
            let mut at = visit;
            while let (before, Some(action)) = visits[at] {
                story.push(action.to_string());
                at = before;
            }
            story.reverse();
            return Explored { states: visits.len(), failure: Some(story) };
        }
        for (action, next) in model.futures(&state) {
            if is_new(&next) {
                ahead.push_back((visits.len(), next));
                visits.push((visit, Some(action)));
            }
        }
    }
    Explored { states: visits.len(), failure: None }
}

//! A few nodes that number their grants, a few claims, and everything that can happen to them.
//!
//! Requests arrive in any order, never, or twice. A claim may stop at any point, which models its death. A lock may be
//! lost at any moment, so any request may be granted. A node that refuses, loses a request, or comes back with its
//! counters and without its locks needs no action: it has the same effect as a request that does not arrive. Decisions
//! are based on the replies of any majority, so late replies need no state. A request is sent as late as possible, just
//! before the first node grants it, because then the most tokens precede it.
//!
//! Time advances by one unit with every number that a node gives, and by `away` when a node comes back.

mod action;
mod successors;

use self::action::Action;
use crate::explorer::Model;
use crate::rules::Step;

const CLAIMS: usize = 4;
const NODES: usize = 5;
const ROUNDS: usize = 2;

/// The configuration to explore. The rules are those of `redlock/fencing.rs` unless one is left out.
#[derive(Clone, Copy)]
pub(super) struct ModelNodes {
    pub(super) nodes: usize,
    pub(super) claims: usize,
    /// Several claims may hold the lock at once.
    pub(super) shared: bool,
    /// How often a claim writes back.
    pub(super) rounds: usize,
    /// How many requests arrive twice.
    pub(super) repeats: u8,
    /// How many nodes restart and lose data.
    pub(super) restarts: u8,
    /// What data they restart with.
    pub(super) memory: Memory,
    /// Counters start anywhere up to this; with 0 there are none, and clocks seed them.
    pub(super) counters: u8,
    /// The largest difference between two clocks.
    pub(super) skew: u8,
    /// The time from the last number of a node that restarts to its next number.
    pub(super) away: u8,
    /// Holders restore their hold at nodes that have lost it.
    pub(super) restores_holds: bool,
    /// The rule that is left out.
    pub(super) without: Option<Rule>,
    pub(super) step: fn(&[u64], usize) -> Option<Step>,
}

/// The data of a node after a restart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    /// Nothing.
    Empty,
    /// Its data at some earlier moment.
    Snapshot,
}

/// A rule that nodes follow.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// A missing counter starts with the time of the node.
    TimeAsSeed,
    /// No number is smaller than the time of the node's start.
    NoLessThanStart,
    /// No number given for a write-back is smaller than that time.
    NoLessThanStartWrittenBack,
    /// A number that is written back has to be larger than the counter.
    LargerThanCounter,
    /// A write-back is accepted only for a claim that holds the lock.
    WriteBackToHolder,
}

/// The state of one claim at one node. A number of 0 means none.
#[derive(Clone, Copy, Default)]
struct Entry {
    /// The number stored at the node.
    number: u8,
    /// The number in the reply that the claim has received.
    replied: u8,
    /// The request for the lock has arrived.
    requested: bool,
    /// The write-backs that have arrived.
    write_backs: [bool; ROUNDS],
}

#[derive(Clone, Copy, Default)]
struct Node {
    counter: u8,
    /// The claim that was granted the lock last, counted from 1.
    holder: u8,
    /// How far its clock is ahead.
    ahead: u8,
    /// When it started, by its clock.
    started: u8,
    entries: [Entry; CLAIMS],
    /// A snapshot: its counter, holder and numbers at some moment.
    saved: Option<(u8, u8, [u8; CLAIMS])>,
}

#[derive(Clone, Copy, Default)]
struct Client {
    /// The largest token decided before its first request.
    before: u8,
    /// The numbers that it writes back.
    written_back: [u8; ROUNDS],
    token: u8,
}

#[derive(Clone, Copy, Default)]
pub(super) struct State {
    now: u8,
    repeats: u8,
    restarts: u8,
    nodes: [Node; NODES],
    claims: [Client; CLAIMS],
    fault: Option<&'static str>,
}

/// One word per node, and one for the claims and everything else.
type Form = [u128; NODES + 1];

struct Packed(u128);

impl Packed {
    fn put(&mut self, value: u8, bits: u32) {
        assert!(u32::from(value) < 1 << bits, "{value} needs more than {bits} bits");
        assert!(self.0.leading_zeros() >= bits, "a form has 128 bits");
        self.0 = self.0 << bits | u128::from(value);
    }
}

impl State {
    fn holds(&self, model: &ModelNodes, node: usize, claim: usize) -> bool {
        let node = &self.nodes[node];
        node.entries[claim].number != 0 && (model.shared || usize::from(node.holder) == claim + 1)
    }

    /// The smallest number that a node may give next.
    fn next(&self, model: &ModelNodes, node: usize) -> u8 {
        let node = &self.nodes[node];
        let time = 1 + self.now + node.ahead;
        let least = match node.counter {
            0 if model.without != Some(Rule::TimeAsSeed) => time,
            1.. if model.without != Some(Rule::NoLessThanStart) => node.started,
            _ => 0,
        };
        least.max(node.counter + 1)
    }

    fn gives(&mut self, node: usize, claim: usize, number: u8) {
        let node = &mut self.nodes[node];
        node.counter = node.counter.max(number);
        node.entries[claim].number = number;
        node.holder = u8::try_from(claim + 1).unwrap_or(0);
    }

    fn replies(&mut self, node: usize, claim: usize) {
        let entry = &mut self.nodes[node].entries[claim];
        entry.replied = entry.number;
    }
}

impl Model for ModelNodes {
    type State = State;
    type Form = Form;
    type Action = Action;

    fn initial_states(&self) -> Vec<State> {
        let (counters, clocks) = (usize::from(self.counters.max(1)), usize::from(self.skew) + 1);
        let digit = |digits: &mut usize, base: usize| {
            let digit = *digits % base;
            *digits /= base;
            u8::try_from(digit).unwrap_or(0)
        };
        let every = (0..(counters * clocks).pow(u32::try_from(self.nodes).unwrap_or(0))).map(|mut digits| {
            let mut state = State {
                now: self.counters,
                repeats: self.repeats,
                restarts: self.restarts,
                ..State::default()
            };
            for node in &mut state.nodes[..self.nodes] {
                node.counter = digit(&mut digits, counters) + u8::from(self.counters > 0);
                node.ahead = digit(&mut digits, clocks);
            }
            state
        });
        every.collect()
    }

    fn successors(&self, state: &State) -> Vec<(Action, State)> {
        let mut successors = Vec::new();
        self.grants(state, &mut successors);
        self.decides(state, &mut successors);
        self.takes(state, &mut successors);
        self.restores(state, &mut successors);
        self.restarts(state, &mut successors);
        successors
    }

    fn form(&self, state: &State) -> Form {
        let mut form = Form::default();
        let nodes = &state.nodes[..self.nodes];
        // Clocks matter only while a counter is missing or a restart is possible.
        let timeless = state.restarts == 0 && nodes.iter().all(|node| node.counter != 0);
        let mut packed = Packed(0);
        for claim in &state.claims[..self.claims] {
            let [one, two] = claim.written_back;
            for number in [claim.before, claim.token, one, two] {
                packed.put(number, 6);
            }
        }
        packed.put(if timeless { 0 } else { state.now }, 6);
        packed.put(state.repeats, 2);
        packed.put(state.restarts, 2);
        packed.put(state.fault.is_some().into(), 1);
        form[NODES] = packed.0;
        for (form, node) in form.iter_mut().zip(nodes) {
            let mut packed = Packed(1);
            packed.put(node.counter, 6);
            packed.put(node.holder, 3);
            packed.put(if timeless { 0 } else { node.ahead }, 2);
            packed.put(if node.started > node.counter + 1 { node.started } else { 0 }, 6);
            for entry in &node.entries[..self.claims] {
                packed.put(entry.number, 6);
                packed.put(entry.replied, 6);
                packed.put(entry.requested.into(), 1);
                for arrived in &entry.write_backs[..self.rounds] {
                    packed.put((*arrived).into(), 1);
                }
            }
            if let Some((counter, holder, numbers)) = node.saved.filter(|_| state.restarts > 0) {
                packed.put(counter, 6);
                packed.put(holder, 3);
                for number in &numbers[..self.claims] {
                    packed.put(*number, 6);
                }
            }
            *form = packed.0;
        }
        // Nodes are interchangeable.
        form[..self.nodes].sort_unstable();
        form
    }

    fn fault(&self, state: &State) -> Option<String> {
        state.fault.map(str::to_owned)
    }
}

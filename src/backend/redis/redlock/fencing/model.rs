//! A few nodes that number what they grant, a few claims, and everything that can happen to them.
//!
//! Requests arrive in any order, never, or again; a claim stops anywhere, which is what its death is. A lock may be lost
//! at any moment, so whoever asks for it may be granted it; that a node refuses, loses a request or comes back with its
//! counters and without its locks changes nothing that a request which does not arrive would not. Decisions are taken with
//! the answers of any majority, so that answers that are late need no state of their own. A request is sent as late as
//! possible, just before the first node grants it, because that is when most tokens come before it.
//!
//! Time stands still but for one unit with every number that a node gives, and `away` for a node that comes back.

mod futures;
mod happening;

use self::happening::Action;
use super::Step;
use super::explorer::Model;

const CLAIMS: usize = 4;
const NODES: usize = 5;
const ROUNDS: usize = 2;

/// What is explored. The rules are those of the module above unless one is left out.
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
    /// How many nodes come back without their memory.
    pub(super) restarts: u8,
    /// What they come back with.
    pub(super) memory: Memory,
    /// Counters begin anywhere up to this; with 0 there are none, and clocks seed them.
    pub(super) counters: u8,
    /// By how much clocks differ at most.
    pub(super) skew: u8,
    /// How much time passes from the last number of a node that comes back to its next.
    pub(super) away: u8,
    /// Holders give nodes that have lost their lock back to them.
    pub(super) mends: bool,
    /// The rule that is left out.
    pub(super) without: Option<Rule>,
    pub(super) step: fn(&[u64], usize) -> Option<Step>,
}

/// What a node comes back with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    /// Nothing.
    Empty,
    /// What it had at some moment before.
    Snapshot,
}

/// A rule that nodes keep.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// A counter that is not there begins with the time of the node.
    TimeAsSeed,
    /// No number is smaller than the time of the node's start.
    NoLessThanStart,
    /// Nor one that is written back.
    NoLessThanStartWrittenBack,
    /// A number that is written back has to be larger than the counter.
    LargerThanCounter,
    /// It is taken only for a claim that holds the lock.
    WriteBackToHolder,
}

/// What a node has of a claim, and the claim of the node. No number is 0.
#[derive(Clone, Copy, Default)]
struct Entry {
    /// What the node has noted.
    number: u8,
    /// What it answered.
    answered: u8,
    /// The request for the lock has arrived.
    asked: bool,
    /// The requests to take over a number have arrived.
    told: [bool; ROUNDS],
}

#[derive(Clone, Copy, Default)]
struct Node {
    counter: u8,
    /// Which claim was granted the lock last, from 1.
    holder: u8,
    /// Its clock is so far ahead.
    ahead: u8,
    /// When it started, by its clock.
    started: u8,
    entries: [Entry; CLAIMS],
    /// Its counter, holder and numbers at some moment.
    saved: Option<(u8, u8, [u8; CLAIMS])>,
}

#[derive(Clone, Copy, Default)]
struct Client {
    /// The largest token that was decided when it first asked.
    before: u8,
    /// What it asks nodes to take over.
    written_back: [u8; ROUNDS],
    /// Its token.
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

/// The nodes, and last the claims and everything else.
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

    fn answers(&mut self, node: usize, claim: usize) {
        let entry = &mut self.nodes[node].entries[claim];
        entry.answered = entry.number;
    }
}

impl Model for ModelNodes {
    type State = State;
    type Form = Form;
    type Action = Action;

    fn beginnings(&self) -> Vec<State> {
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

    fn futures(&self, state: &State) -> Vec<(Action, State)> {
        let mut futures = Vec::new();
        self.grants(state, &mut futures);
        self.decides(state, &mut futures);
        self.takes(state, &mut futures);
        self.mended(state, &mut futures);
        self.restarts(state, &mut futures);
        futures
    }

    fn form(&self, state: &State) -> Form {
        let mut form = Form::default();
        let nodes = &state.nodes[..self.nodes];
        // Clocks matter only to counters that are not there.
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
                packed.put(entry.answered, 6);
                packed.put(entry.asked.into(), 1);
                for told in &entry.told[..self.rounds] {
                    packed.put((*told).into(), 1);
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
        // Nodes are alike.
        form[..self.nodes].sort_unstable();
        form
    }

    fn fault(&self, state: &State) -> Option<&'static str> {
        state.fault
    }
}

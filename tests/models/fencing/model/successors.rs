//! The possible actions in a state, and the states they lead to.

use super::action::Action;
use super::{CLAIMS, Memory, ModelNodes, Rule, State};
use crate::rules::Step;

impl ModelNodes {
    /// A request for the lock arrives at a node where the lock is free or has just been lost, or where the claim holds
    /// it already.
    pub(super) fn grants(&self, state: &State, successors: &mut Vec<(Action, State)>) {
        // Claims are interchangeable, so they start in order.
        let started = state.claims[..self.claims].iter().enumerate().take_while(|(claim, _)| {
            *claim == 0 || state.nodes.iter().any(|node| node.entries[claim - 1].requested)
        });
        for (claim, _) in started {
            for node in 0..self.nodes {
                let entry = state.nodes[node].entries[claim];
                if entry.requested && state.repeats == 0 {
                    continue;
                }
                let mut next = *state;
                let repeated = entry.requested;
                next.repeats -= u8::from(repeated);
                next.nodes[node].entries[claim].requested = true;
                if state.nodes.iter().all(|node| !node.entries[claim].requested) {
                    let tokens = state.claims.iter().map(|claim| claim.token);
                    next.claims[claim].before = tokens.max().unwrap_or(0);
                }
                if repeated && state.holds(self, node, claim) && entry.number != entry.replied {
                    let mut next = next;
                    next.replies(node, claim);
                    successors.push((Action::Confirms { node, claim, number: entry.number }, next));
                }
                let number = state.next(self, node);
                next.gives(node, claim, number);
                next.now += 1;
                if repeated {
                    // The reply is lost or late, and the claim keeps the first one.
                    successors.push((Action::Grants { node, claim, number, repeated }, next));
                }
                next.replies(node, claim);
                successors.push((Action::Grants { node, claim, number, repeated }, next));
            }
        }
    }

    /// A claim decides on the replies of any majority.
    pub(super) fn decides(&self, state: &State, successors: &mut Vec<(Action, State)>) {
        for claim in 0..self.claims {
            if state.claims[claim].token != 0 {
                continue;
            }
            let nodes = state.nodes[..self.nodes].iter().map(|node| u64::from(node.entries[claim].replied));
            let all: Vec<u64> = nodes.filter(|number| *number != 0).collect();
            let quorum = self.nodes / 2 + 1;
            let mut steps: Vec<Step> = Vec::new();
            for chosen in 0u32..1 << all.len() {
                if chosen.count_ones() as usize >= quorum {
                    let is_chosen = |node: &usize| chosen >> node & 1 == 1;
                    let numbers: Vec<u64> = (0..all.len()).filter(is_chosen).map(|node| all[node]).collect();
                    steps.extend((self.step)(&numbers, quorum).filter(|step| !steps.contains(step)));
                }
            }
            successors.extend(steps.into_iter().filter_map(|step| self.continues(state, claim, step)));
        }
    }

    /// The result of a claim's step, if it is new. After the last round the claim gives up.
    fn continues(&self, state: &State, claim: usize, step: Step) -> Option<(Action, State)> {
        let mut next = *state;
        match step {
            Step::Established(token) => {
                let token = u8::try_from(token).unwrap_or(u8::MAX);
                let others = state.claims.iter().enumerate().filter(|(other, _)| *other != claim);
                if others.into_iter().any(|(_, other)| other.token == token) {
                    next.fault = Some("two claims have this token");
                } else if token <= state.claims[claim].before {
                    next.fault = Some("a token decided before its first request is not smaller");
                }
                next.claims[claim].token = token;
                Some((Action::Decides { claim, token }, next))
            }
            Step::WriteBack(number) => {
                let number = u8::try_from(number).unwrap_or(u8::MAX);
                let rounds = &mut next.claims[claim].written_back[..self.rounds];
                let round = rounds.iter().position(|round| *round == 0)?;
                if rounds.contains(&number) {
                    return None;
                }
                rounds[round] = number;
                Some((Action::WritesBack { claim, number }, next))
            }
        }
    }

    /// A node receives a write-back.
    pub(super) fn takes(&self, state: &State, successors: &mut Vec<(Action, State)>) {
        for claim in 0..self.claims {
            for (round, requested) in state.claims[claim].written_back.into_iter().enumerate() {
                for node in 0..self.nodes {
                    let entry = state.nodes[node].entries[claim];
                    let repeated = entry.write_backs[round];
                    let held =
                        state.holds(self, node, claim) || self.without == Some(Rule::WriteBackToHolder);
                    if requested == 0
                        || entry.replied == 0
                        || entry.replied == requested
                        || repeated && state.repeats == 0
                        || !held
                    {
                        continue;
                    }
                    let mut next = *state;
                    next.repeats -= u8::from(repeated);
                    next.nodes[node].entries[claim].write_backs[round] = true;
                    let number = if self.without == Some(Rule::LargerThanCounter) || entry.number == requested
                    {
                        requested
                    } else {
                        let least = match self.without {
                            Some(Rule::NoLessThanStartWrittenBack) => state.nodes[node].counter + 1,
                            _ => state.next(self, node),
                        };
                        next.now += u8::from(least > requested);
                        least.max(requested)
                    };
                    next.gives(node, claim, number);
                    next.replies(node, claim);
                    successors.push((Action::Takes { node, claim, requested, number }, next));
                }
            }
        }
    }

    /// A holder restores its hold at a node that has lost it.
    pub(super) fn restores(&self, state: &State, successors: &mut Vec<(Action, State)>) {
        for claim in 0..self.claims {
            let token = state.claims[claim].token;
            for node in 0..self.nodes {
                if !self.restores_holds || token == 0 || state.nodes[node].entries[claim].number == token {
                    continue;
                }
                let mut next = *state;
                next.gives(node, claim, token);
                successors.push((Action::Restores { node, claim }, next));
            }
        }
    }

    /// A node restarts without data, or with an older snapshot.
    pub(super) fn restarts(&self, state: &State, successors: &mut Vec<(Action, State)>) {
        for (node, it) in state.nodes.iter().enumerate().take(self.nodes) {
            if state.restarts == 0 || it.counter == 0 {
                continue;
            }
            let mut next = *state;
            next.now += self.away - 1;
            next.restarts -= 1;
            let of = &mut next.nodes[node];
            of.started = 1 + next.now + of.ahead;
            let (counter, holder, numbers) = match self.memory {
                Memory::Empty => (0, 0, [0; CLAIMS]),
                Memory::Snapshot => match it.saved {
                    Some(saved) => saved,
                    None => {
                        let mut next = *state;
                        next.nodes[node].saved =
                            Some((it.counter, it.holder, it.entries.map(|entry| entry.number)));
                        successors.push((Action::Saves { node }, next));
                        continue;
                    }
                },
            };
            of.counter = counter;
            of.holder = holder;
            for (entry, number) in of.entries.iter_mut().zip(numbers) {
                entry.number = number;
            }
            successors.push((Action::Restarts { node }, next));
        }
    }
}

//! What can happen in a state, and what comes of it.

use super::super::Step;
use super::happening::Action;
use super::{CLAIMS, Memory, ModelNodes, Rule, State};

impl ModelNodes {
    /// A request for the lock arrives, and the node has not the lock, or has just lost it. Or it holds already.
    pub(super) fn grants(&self, state: &State, futures: &mut Vec<(Action, State)>) {
        // Claims are alike: they begin in order.
        let begun = state.claims[..self.claims].iter().enumerate().take_while(|(claim, _)| {
            *claim == 0 || state.nodes.iter().any(|node| node.entries[claim - 1].asked)
        });
        for (claim, _) in begun {
            for node in 0..self.nodes {
                let entry = state.nodes[node].entries[claim];
                if entry.asked && state.repeats == 0 {
                    continue;
                }
                let mut next = *state;
                let repeated = entry.asked;
                next.repeats -= u8::from(repeated);
                next.nodes[node].entries[claim].asked = true;
                if state.nodes.iter().all(|node| !node.entries[claim].asked) {
                    let tokens = state.claims.iter().map(|claim| claim.token);
                    next.claims[claim].before = tokens.max().unwrap_or(0);
                }
                if repeated && state.holds(self, node, claim) && entry.number != entry.answered {
                    let mut next = next;
                    next.answers(node, claim);
                    futures.push((Action::Confirms { node, claim, number: entry.number }, next));
                }
                let number = state.next(self, node);
                next.gives(node, claim, number);
                next.now += 1;
                if repeated {
                    // The answer is lost, or late, and the first one is what the claim knows.
                    futures.push((Action::Grants { node, claim, number, repeated }, next));
                }
                next.answers(node, claim);
                futures.push((Action::Grants { node, claim, number, repeated }, next));
            }
        }
    }

    /// A claim decides with what any majority has answered.
    pub(super) fn decides(&self, state: &State, futures: &mut Vec<(Action, State)>) {
        for claim in 0..self.claims {
            if state.claims[claim].token != 0 {
                continue;
            }
            let nodes = state.nodes[..self.nodes].iter().map(|node| u64::from(node.entries[claim].answered));
            let all: Vec<u64> = nodes.filter(|number| *number != 0).collect();
            let quorum = self.nodes / 2 + 1;
            let mut steps: Vec<Step> = Vec::new();
            for chosen in 0u32..1 << all.len() {
                if chosen.count_ones() as usize >= quorum {
                    let is_chosen = |node: &usize| chosen >> node & 1 == 1;
                    let answered: Vec<u64> = (0..all.len()).filter(is_chosen).map(|node| all[node]).collect();
                    steps.extend((self.step)(&answered, quorum).filter(|step| !steps.contains(step)));
                }
            }
            futures.extend(steps.into_iter().filter_map(|step| self.goes_on(state, claim, step)));
        }
    }

    /// What comes of a claim's step, if it is new. After the last round it gives up.
    fn goes_on(&self, state: &State, claim: usize, step: Step) -> Option<(Action, State)> {
        let mut next = *state;
        match step {
            Step::Established(token) => {
                let token = u8::try_from(token).unwrap_or(u8::MAX);
                let others = state.claims.iter().enumerate().filter(|(other, _)| *other != claim);
                if others.into_iter().any(|(_, other)| other.token == token) {
                    next.fault = Some("two have this token");
                } else if token <= state.claims[claim].before {
                    next.fault = Some("one that was decided before it asked is not smaller");
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

    /// A node is asked to give a claim a number.
    pub(super) fn takes(&self, state: &State, futures: &mut Vec<(Action, State)>) {
        for claim in 0..self.claims {
            for (round, asked) in state.claims[claim].written_back.into_iter().enumerate() {
                for node in 0..self.nodes {
                    let entry = state.nodes[node].entries[claim];
                    let repeated = entry.told[round];
                    let held =
                        state.holds(self, node, claim) || self.without == Some(Rule::WriteBackToHolder);
                    if asked == 0
                        || entry.answered == 0
                        || entry.answered == asked
                        || repeated && state.repeats == 0
                        || !held
                    {
                        continue;
                    }
                    let mut next = *state;
                    next.repeats -= u8::from(repeated);
                    next.nodes[node].entries[claim].told[round] = true;
                    let number = if self.without == Some(Rule::LargerThanCounter) || entry.number == asked {
                        asked
                    } else {
                        let least = match self.without {
                            Some(Rule::NoLessThanStartWrittenBack) => state.nodes[node].counter + 1,
                            _ => state.next(self, node),
                        };
                        next.now += u8::from(least > asked);
                        least.max(asked)
                    };
                    next.gives(node, claim, number);
                    next.answers(node, claim);
                    futures.push((Action::Takes { node, claim, asked, number }, next));
                }
            }
        }
    }

    /// A holder gives a node that has lost it the lock back.
    pub(super) fn mended(&self, state: &State, futures: &mut Vec<(Action, State)>) {
        for claim in 0..self.claims {
            let token = state.claims[claim].token;
            for node in 0..self.nodes {
                if !self.mends || token == 0 || state.nodes[node].entries[claim].number == token {
                    continue;
                }
                let mut next = *state;
                next.gives(node, claim, token);
                futures.push((Action::Mends { node, claim }, next));
            }
        }
    }

    /// A node comes back with nothing, or with what it had some time ago.
    pub(super) fn restarts(&self, state: &State, futures: &mut Vec<(Action, State)>) {
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
                        futures.push((Action::Saves { node }, next));
                        continue;
                    }
                },
            };
            of.counter = counter;
            of.holder = holder;
            for (entry, number) in of.entries.iter_mut().zip(numbers) {
                entry.number = number;
            }
            futures.push((Action::Restarts { node }, next));
        }
    }
}

//! What must hold in every state.

use std::time::Duration;

use dlock::backend::ledger::Decision;
use dlock::backend::{Attempt, CLAIM_WITHIN, Refusal};
use dlock::lock::Mode;

use super::{Clients, Foreign, Freeze, MAX_ACTIONS, PATIENCE, Phase, State, client_of, token};

impl Clients {
    /// No two clients that exclude each other have the lock, and no two of them one slot.
    pub(super) fn check(&self, state: &mut State, new: usize) {
        let mut families: Vec<usize> = self.inside(state).iter().map(|one| self.family(*one)).collect();
        families.dedup();
        let mine = self.family(new);
        let is_together = families.iter().all(|one| match (self.modes[*one], self.modes[mine]) {
            _ if *one == mine => true,
            (Mode::Shared, Mode::Shared) => true,
            (Mode::Slots(of), Mode::Slots(_)) => families.len() <= of as usize,
            _ => false,
        });
        if !is_together || state.foreign == Foreign::Inside {
            state.fault = Some("two that exclude each other hold the lock");
        }
        let owners = state.ledger.holders.iter().filter(|one| one.ticket == one.family);
        let mut slots: Vec<u32> = owners.filter_map(|one| one.slot).collect();
        slots.sort_unstable();
        if slots.windows(2).any(|pair| pair[0] == pair[1]) {
            state.fault = Some("two holders have one slot");
        }
    }

    /// A claim that holds the lock already is granted again, with the same token; one inside a hold is granted at once.
    pub(super) fn check_grant(
        &self,
        state: &mut State,
        client: usize,
        step: &Decision<Attempt>,
        at: Duration,
    ) {
        let holds = |token: &str| {
            let mut holders = state.ledger.holders.iter();
            holders.find(|one| one.token == token && one.lease_ends.is_none_or(|ends| at < ends))
        };
        let Decision::Done { value, .. } = step else { return };
        let granted = match value {
            Attempt::Granted(grant) => Some(grant.fencing.map_or(0, |fencing| fencing.number())),
            _ => None,
        };
        let outer = if self.is_nested(client) { holds(&token(0)) } else { None };
        let is_refused = matches!(value, Attempt::Refused(Refusal::Inside(_) | Refusal::Slots(_)));
        if holds(&token(client)).is_some_and(|mine| granted != Some(mine.fencing_token)) {
            state.fault = Some("a repeated claim was not granted again");
        } else if outer.is_some_and(|outer| granted != Some(outer.fencing_token) && !is_refused) {
            state.fault = Some("a nested claim did not enter the outer hold");
        }
    }

    /// Nobody starts under a frozen lock who does not run inside a hold of it, or has one.
    pub(super) fn check_freeze(&self, state: &mut State, client: usize) {
        let holds = |token: &str| state.ledger.holders.iter().any(|one| one.token == token);
        if state.freeze == Freeze::InForce && !self.is_nested(client) && !holds(&token(client)) {
            state.fault = Some("a client was granted a lock that is frozen");
        }
    }

    /// A grant overtakes no live waiter that the new holder excludes and that has not missed its turn.
    pub(super) fn check_order(&self, state: &mut State, client: usize) {
        let mine = token(client);
        if self.is_nested(client) || state.ledger.holders.iter().any(|one| one.token == mine) {
            // It has the lock already.
            return;
        }
        let ahead = state.ledger.waiters.iter().take_while(|waiter| waiter.token != mine);
        let mut families: Vec<usize> = self.inside(state).iter().map(|one| self.family(*one)).collect();
        families.dedup();
        let running = families.len();
        let mut waiters = 0;
        let mut is_fair = true;
        for waiter in ahead {
            let other = client_of(&waiter.token).unwrap();
            let is_waiting = state.clients[other].phase == Phase::Waiting
                && waiter.lease_ends.is_none_or(|ends| state.now < ends)
                && waiter.called.is_none_or(|called| state.now < called + CLAIM_WITHIN);
            if !is_waiting {
                continue;
            }
            waiters += 1;
            is_fair &= match (self.modes[client], waiter.mode) {
                (Mode::Shared, Mode::Shared) => true,
                (Mode::Slots(of), Mode::Slots(_)) => running + waiters < of as usize,
                _ => false,
            };
        }
        if !is_fair {
            state.fault = Some("a waiter was overtaken");
        }
    }

    /// Lets every live client act promptly, without further faults, and returns whether all of them have run soon.
    pub(super) fn completes(&self, state: &State) -> bool {
        let mut state = state.clone();
        if state.foreign == Foreign::Inside {
            state.foreign = Foreign::Gone;
            self.notice(&mut state);
        }
        while state.freeze == Freeze::Stored {
            self.settle_now(&mut state);
        }
        if state.freeze == Freeze::InForce {
            self.thaw_now(&mut state);
        }
        let has_fault = (state.deaths, state.losses, state.delays) != (self.deaths, self.losses, self.delays);
        // It has stopped without a release, and the lease that it was granted is longer.
        let is_silent = state.ledger.holders.iter().any(|one| {
            let client = &state.clients[client_of(&one.token).unwrap()];
            client.is_revoked && client.phase == Phase::Ended && one.ended_at.is_none()
        });
        let lease = self.ttl.unwrap_or_default().max(self.min_hold);
        // The holders in one entry have one lease: one that stops without a release lives as long as the others.
        let shares_lease = self.entries && self.nested;
        let limit = if has_fault || is_silent || shares_lease { PATIENCE + lease } else { PATIENCE };
        let mut idle = Duration::ZERO;
        for _ in 0..MAX_ACTIONS {
            let clients = 0..state.clients.len();
            if let Some(client) = clients.clone().find(|client| state.clients[*client].decided.is_some()) {
                if state.clients[client].phase == Phase::Dead {
                    state.clients[client].decided = None;
                } else {
                    self.store_decision(&mut state, client, true, true);
                }
            } else if let Some(client) =
                clients.clone().find(|one| self.must_renew(&state, *one) && state.fault.is_none())
            {
                self.renew_now(&mut state, client);
            } else if let Some(client) = clients
                .clone()
                .find(|one| state.clients[*one].phase == Phase::Running || self.can_leave(&state, *one))
            {
                let rest = self.rest(&state, client);
                self.release_now(&mut state, client, rest, true);
            } else if let Some(client) = clients.clone().find(|one| self.can_try(&state, *one)) {
                self.try_now(&mut state, client);
            } else if clients.clone().all(|one| {
                matches!(state.clients[one].phase, Phase::Ended | Phase::Dead)
                    || state.clients[one].phase == Phase::Idle && self.is_nested(one)
            }) {
                return true;
            } else {
                let Some(next) = self.next_moment(&state) else { return false };
                if self.inside(&state).is_empty() {
                    idle += next - state.now;
                }
                if idle > limit {
                    return false;
                }
                self.pass_time(&mut state, next);
            }
        }
        false
    }
}

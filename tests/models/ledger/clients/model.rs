//! The reachable states.

use std::collections::HashSet;
use std::time::Duration;

use dlock::backend::ledger::{GateMode, Ledger};

use super::{Action, Client, Clients, Foreign, Freeze, Phase, State, entries, form, token};
use crate::explorer::Model;

impl Model for Clients {
    type State = State;
    type Form = String;
    type Action = Action;

    fn initial_states(&self) -> Vec<State> {
        let client = Client {
            phase: Phase::Idle,
            notified: false,
            due: Duration::ZERO,
            watches: Vec::new(),
            safe_until: None,
            has_renewed: false,
            fencing_token: 0,
            kept_until: None,
            owns_gate: false,
            is_revoked: false,
            knows_revocation: false,
            decided: None,
        };
        vec![State {
            now: Duration::ZERO,
            ledger: Ledger::default(),
            version: 0,
            listing: entries::empty(),
            clients: vec![client; self.count],
            foreign: if self.foreign { Foreign::Absent } else { Foreign::Gone },
            deaths: self.deaths,
            losses: self.losses,
            delays: self.delays,
            revocations: self.revocations,
            freezes: self.freezes,
            freeze: Freeze::Absent,
            settled: HashSet::new(),
            last_fencing_token: 0,
            fault: None,
        }]
    }

    fn successors(&self, state: &State) -> Vec<(Action, State)> {
        let mut successors = Vec::new();
        let mut add = |action, change: &dyn Fn(&mut State)| {
            let mut next = state.clone();
            change(&mut next);
            successors.push((action, next));
        };
        for client in 0..state.clients.len() {
            self.add_actions_of(state, client, &mut add);
        }
        for client in 0..state.clients.len() {
            if state.deaths > 0 && state.clients[client].phase == Phase::Waiting {
                add(Action::GiveUp(client), &|next| {
                    next.deaths -= 1;
                    next.clients[client].decided = None;
                    next.clients[client].kept_until = None;
                    self.release_now(next, client, Duration::ZERO, true);
                });
            }
        }
        match state.freeze {
            Freeze::Absent if state.freezes > 0 => add(Action::Freeze, &|next| {
                next.freezes -= 1;
                self.freeze_now(next);
            }),
            Freeze::Absent => {}
            Freeze::Stored => add(Action::Settle, &|next| self.settle_now(next)),
            Freeze::InForce => add(Action::Thaw, &|next| self.thaw_now(next)),
        }
        match state.foreign {
            Foreign::Absent if self.is_gate_open(state, GateMode::Exclusive) => {
                add(Action::ForeignTakes, &|next| next.foreign = Foreign::Inside);
            }
            Foreign::Inside => add(Action::ForeignLeaves, &|next| {
                next.foreign = Foreign::Gone;
                self.notice(next);
            }),
            _ => {}
        }
        let mut clients = 0..state.clients.len();
        let is_delay = clients.any(|client| {
            let is_idle = state.clients[client].phase == Phase::Idle;
            state.clients[client].decided.is_some()
                || self.must_renew(state, client)
                || self.can_leave(state, client)
                || !is_idle && self.can_try(state, client)
        });
        if let Some(to) = self.next_moment(state).filter(|_| !is_delay || state.delays > 0) {
            add(Action::TimePasses, &|next| {
                next.delays -= u8::from(is_delay);
                self.pass_time(next, to);
            });
        }
        successors
    }

    fn form(&self, state: &State) -> String {
        form::of(state)
    }

    fn fault(&self, state: &State) -> Option<String> {
        let fault = state.fault.or_else(|| (!self.completes(state)).then_some("a client is left behind"));
        fault.map(str::to_owned)
    }
}

/// Adds an action and the state that it leads to.
type Add<'a> = dyn FnMut(Action, &dyn Fn(&mut State)) + 'a;

impl Clients {
    /// Adds what a client may do, or what may happen to it.
    fn add_actions_of(&self, state: &State, client: usize, add: &mut Add<'_>) {
        let me = &state.clients[client];
        if self.can_try(state, client) {
            add(Action::Decide(client), &|next| self.try_now(next, client));
        }
        if me.decided.is_some() {
            add(Action::Store(client), &|next| self.store_decision(next, client, true, true));
            if state.losses > 0 {
                add(Action::StoreUnanswered(client), &|next| {
                    next.losses -= 1;
                    self.store_decision(next, client, true, false);
                });
                add(Action::StoreUnnoticed(client), &|next| {
                    next.losses -= 1;
                    self.store_decision(next, client, false, true);
                });
            }
        }
        let rest = self.rest(state, client);
        if me.phase == Phase::Running || self.can_leave(state, client) {
            add(Action::Release(client), &|next| self.release_now(next, client, rest, true));
            if state.losses > 0 {
                add(Action::ReleaseUnnoticed(client), &|next| {
                    next.losses -= 1;
                    self.release_now(next, client, rest, false);
                });
            }
        }
        if self.must_renew(state, client) {
            add(Action::Renew(client), &|next| self.renew_now(next, client));
        }
        if state.revocations > 0 && state.ledger.holders.iter().any(|one| one.token == token(client)) {
            add(Action::Revoke(client), &|next| {
                next.revocations -= 1;
                self.revoke_now(next, client);
            });
        }
        if state.deaths > 0 && matches!(me.phase, Phase::Waiting | Phase::Running | Phase::Leaving) {
            add(Action::Die(client), &|next| {
                next.deaths -= 1;
                next.clients[client].phase = Phase::Dead;
                next.clients[client].decided = None;
                self.notice(next);
            });
        }
    }
}

//! The reachable states.

use std::collections::HashSet;
use std::time::Duration;

use dlock::backend::ledger::entries::{Entry, Write};
use dlock::backend::ledger::{Decision, GateMode, Ledger, Watch};
use dlock::backend::{Attempt, CLAIM_WITHIN};

use super::{Action, Change, Client, Clients, Decided, Foreign, Freeze, Phase, State, entries, token};
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

    /// Times count from now, and tickets by their order: so that states which differ in nothing else are one.
    fn form(&self, state: &State) -> String {
        use std::fmt::Write as _;
        let mut form = String::new();
        let left = |at: Duration| at.saturating_sub(state.now).as_millis();
        let ledger_form = |form: &mut String, ledger: &Ledger, at: Duration| {
            for one in &ledger.holders {
                let ends = one.lease_ends.map(|ends| ends.saturating_sub(at).as_millis());
                let kept = one.kept_until.map(|until| until.saturating_sub(at).as_millis());
                let _ = write!(form, "h{}{:?}{ends:?}{kept:?}", one.token, one.slot);
                let _ = write!(form, "{}{}", one.ended_at.is_some(), one.revoked.is_some());
            }
            for one in &ledger.waiters {
                let called = one.called.map(|called| (called + CLAIM_WITHIN).saturating_sub(at).as_millis());
                let ends = one.lease_ends.map(|ends| ends.saturating_sub(at).as_millis());
                let _ = write!(form, "w{}{called:?}{ends:?}", one.token);
            }
            let _ = write!(form, "{}", ledger.incomplete);
        };
        ledger_form(&mut form, &state.ledger, state.now);
        let holder = |ticket: &u64| state.ledger.holders.iter().find(|one| one.ticket == *ticket);
        let waiter = |ticket: &u64| state.ledger.waiters.iter().find(|one| one.ticket == *ticket);
        let watched = |watch: &Watch| match watch {
            Watch::Holder(ticket) => holder(ticket).map(|one| one.token.clone()),
            Watch::Waiter(ticket) => waiter(ticket).map(|one| one.token.clone()),
            Watch::Entry(ticket) => {
                let token = holder(ticket).map(|one| &one.token).or(waiter(ticket).map(|one| &one.token));
                token.map(|token| format!("entry {token}"))
            }
            Watch::Freeze => Some("freeze".to_owned()),
            Watch::Gate(mode) => Some(format!("{mode:?}")),
        };
        for (index, client) in state.clients.iter().enumerate() {
            let watches: Vec<_> = client.watches.iter().map(watched).collect();
            let due = (!matches!(client.phase, Phase::Ended | Phase::Dead)).then(|| left(client.due));
            let kept = client.kept_until.filter(|_| !client.is_revoked).map(left);
            let _ = write!(form, "{kept:?}{}", client.owns_gate);
            let _ = write!(form, "{}{}", client.is_revoked, client.knows_revocation);
            let _ = write!(
                form,
                "c{index}{:?}{}{}{due:?}{watches:?}{:?}",
                client.phase,
                client.notified,
                client.has_renewed,
                client.safe_until.filter(|_| client.phase == Phase::Running).map(left)
            );
            match &client.decided {
                Some(Decided { at, change: Change::Document(version, ledger), .. }) => {
                    let is_current = *version == state.version;
                    let _ = write!(form, "d{is_current}");
                    if is_current {
                        let _ = write!(form, "{:?}", state.now - *at);
                        ledger_form(&mut form, ledger, state.now);
                    }
                }
                Some(Decided { at, change: Change::Entries(writes, _), step }) => {
                    let _ = write!(form, "e{:?}", state.now - *at);
                    for one in writes {
                        let (name, target, value) = match one {
                            Write::Create { alone, waiting, lease } => {
                                (format!("create{}{lease:?}", alone.is_some()), None, Some(waiting))
                            }
                            Write::Swap { order, version, value, lease } => {
                                (format!("swap{lease:?}"), Some((order, Some(version))), Some(value))
                            }
                            Write::Extend { order, lease } => {
                                (format!("extend{lease:?}"), Some((order, None)), None)
                            }
                            Write::Remove { order, version } => {
                                ("remove".to_owned(), Some((order, Some(version))), None)
                            }
                        };
                        // An entry of another version is as good as gone.
                        let entry = target.and_then(|(order, version)| {
                            let is_meant = |entry: &Entry| {
                                entry.order == *order
                                    && version.is_none_or(|version| entry.version == *version)
                            };
                            state.listing.entries.iter().position(is_meant)
                        });
                        let _ = write!(form, "{name}{entry:?}");
                        value.into_iter().for_each(|value| ledger_form(&mut form, value, state.now));
                    }
                    if let Decision::Done { value: Attempt::Busy(busy), watch, .. } = step {
                        let watches: Vec<_> = watch.iter().map(watched).collect();
                        let _ = write!(form, "{:?}{watches:?}", busy.again);
                    }
                }
                None => {}
            }
        }
        let (deaths, losses, delays) = (state.deaths, state.losses, state.delays);
        let _ = write!(form, "{:?}{deaths}{losses}{delays}{}", state.foreign, state.revocations);
        // Each entry is written once, before anything else of the freeze is looked at.
        let _ = write!(form, "{:?}{}{}", state.freeze, state.freezes, state.settled.len());
        // The same state may also be reached without one.
        let _ = write!(form, "{:?}", state.fault);
        form
    }

    fn fault(&self, state: &State) -> Option<String> {
        let fault = state.fault.or_else(|| (!self.completes(state)).then_some("a client is left behind"));
        fault.map(str::to_owned)
    }
}

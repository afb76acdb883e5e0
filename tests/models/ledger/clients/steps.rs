//! What clients do, and what follows from it.

use std::time::Duration;

use dlock::backend::ledger::document;
use dlock::backend::ledger::entries::{Fencing, Written};
use dlock::backend::ledger::{Decision, Effect, Gate, Ledger, Observed, Purpose, Watch, administer, decide};
use dlock::backend::{Again, Attempt, CLAIM_WITHIN, Ending, Intent, Release, Renewal};
use dlock::lock::{FencingToken, Revocation};

use super::entries::has_happened;
use super::{Change, Clients, Decided, Phase, State, client_of, token};

impl Clients {
    /// The decision on a claim, with the gate passed if that is required.
    pub(super) fn decide(&self, state: &State, client: usize) -> (Ledger, Decision<Attempt>) {
        let gate = if self.ttl.is_some() { Gate::Passed(None) } else { Gate::Untried };
        let decide = |gate| {
            let mut ledger = state.ledger.clone();
            let claim = self.claim(client);
            let step = decide::claim(&mut ledger, &self.view(state, gate), &claim, Intent::Enqueue);
            (ledger, step)
        };
        match decide(gate) {
            (_, Decision::PassGate(mode)) => {
                decide(if self.is_gate_open(state, mode) { Gate::Passed(None) } else { Gate::Closed })
            }
            decided => decided,
        }
    }

    /// Stores a new ledger and notifies the waiters.
    pub(super) fn store(&self, state: &mut State, ledger: Ledger, notifies: bool) {
        let before = std::mem::replace(&mut state.ledger, ledger);
        state.version += u32::from(before != state.ledger);
        let called = document::called(&before, &state.ledger);
        for waiter in state.ledger.waiters.iter().filter(|_| notifies && self.ttl.is_some()) {
            let client = client_of(&waiter.token).unwrap();
            state.clients[client].notified |= called.contains(&waiter.ticket);
            if document::next(&state.ledger, &called) == Some(waiter.ticket) {
                let me = &mut state.clients[client];
                me.due = me.due.min(state.now + CLAIM_WITHIN);
            }
        }
        self.notice(state);
    }

    /// The kernel notifies of the end of what is watched.
    pub(super) fn notice(&self, state: &mut State) {
        if self.ttl.is_some() {
            return;
        }
        for client in 0..state.clients.len() {
            let view = self.view(state, Gate::Untried);
            let has_gone = |watch: &Watch| match watch {
                Watch::Holder(ticket) => {
                    !state.ledger.holders.iter().any(|one| one.ticket == *ticket && !view.is_holder_dead(one))
                }
                Watch::Waiter(ticket) => {
                    !state.ledger.waiters.iter().any(|one| one.ticket == *ticket && !view.is_waiter_dead(one))
                }
                Watch::Gate(mode) => self.is_gate_open(state, *mode),
                Watch::Entry(_) | Watch::Freeze => unreachable!("turns do not follow from the order alone"),
            };
            let is_notified = state.clients[client].watches.iter().any(has_gone);
            state.clients[client].notified |= is_notified;
        }
    }

    /// What follows for the client from a decision that was stored.
    pub(super) fn conclude(&self, state: &mut State, client: usize, step: Decision<Attempt>, at: Duration) {
        let Decision::Done { value, watch, .. } = step else { unreachable!("the gate is tried at once") };
        match value {
            Attempt::NotDue(_) => unreachable!("no claim has a period"),
            Attempt::Granted(grant) => {
                let fencing = grant.fencing.map_or(0, |fencing| fencing.number());
                // A grant whose reply was lost is granted again, with the same token, and a nested client has the token
                // of the outer one.
                if fencing <= state.last_fencing_token
                    && state.clients[client].fencing_token != fencing
                    && !self.is_nested(client)
                {
                    state.fault = Some("a fencing token did not grow");
                }
                state.last_fencing_token = state.last_fencing_token.max(fencing);
                let me = &mut state.clients[client];
                me.safe_until = grant.lease.map(|lease| at + lease);
                if me.safe_until.is_some_and(|until| state.now >= until) {
                    // Too late to be used: the command is not started.
                    me.phase = Phase::Ended;
                    return;
                }
                me.phase = Phase::Running;
                me.due = at + grant.lease.unwrap_or_default() / 3;
                me.watches.clear();
                me.owns_gate = self.ttl.is_none() && !self.is_nested(client);
                self.check(state, client);
            }
            Attempt::Busy(busy) => {
                let me = &mut state.clients[client];
                me.phase = Phase::Waiting;
                me.watches = watch;
                me.notified |= self.entries && me.watches.iter().any(|one| has_happened(one, &state.listing));
                me.due = match busy.again {
                    Again::Within(within) => state.now + within,
                    Again::Poll => state.now,
                };
            }
            Attempt::Refused(_) => state.clients[client].phase = Phase::Ended,
        }
        self.notice(state);
    }

    pub(super) fn can_try(&self, state: &State, client: usize) -> bool {
        let me = &state.clients[client];
        me.decided.is_none()
            && match me.phase {
                Phase::Idle if self.is_nested(client) => state.clients[0].phase == Phase::Running,
                // Clients of the same mode are alike: they begin in the order of their numbers.
                Phase::Idle => (0..client).all(|other| {
                    self.nested
                        || self.modes[other] != self.modes[client]
                        || state.clients[other].phase != Phase::Idle
                }),
                Phase::Waiting => me.notified || state.now >= me.due,
                _ => false,
            }
    }

    pub(super) fn must_renew(&self, state: &State, client: usize) -> bool {
        let me = &state.clients[client];
        let is_due = self.ttl.is_some() && state.now >= me.due && !me.has_renewed;
        let outer = state.clients[self.family(client)].phase;
        let is_heir = self.ttl.is_none() && !me.owns_gate && matches!(outer, Phase::Ended | Phase::Dead);
        let must_learn = me.is_revoked && !me.knows_revocation;
        me.phase == Phase::Running && (is_due || is_heir) || self.has_hold(state, client) && must_learn
    }

    pub(super) fn has_hold(&self, state: &State, client: usize) -> bool {
        matches!(state.clients[client].phase, Phase::Running | Phase::Leaving)
    }

    /// Whether a client whose command has ended tries again to release the lock.
    pub(super) fn can_leave(&self, state: &State, client: usize) -> bool {
        let me = &state.clients[client];
        me.phase == Phase::Leaving && (me.notified || state.now >= me.due)
    }

    pub(super) fn try_now(&self, state: &mut State, client: usize) {
        let (step, change) = if self.entries {
            let claim = self.claim(client);
            let purpose = Purpose::Claim(claim.clone());
            let plan = self.plan(state, &purpose, |ledger, observed| {
                decide::claim(ledger, observed, &claim, Intent::Enqueue)
            });
            let step = Decision::Done { value: plan.value, effect: Effect::None, watch: plan.watch };
            (step, Change::Entries(plan.writes, plan.is_granted_by_revision))
        } else {
            self.take_shortcut(state, client);
            let (ledger, step) = self.decide(state, client);
            (step, Change::Document(state.version, ledger))
        };
        state.clients[client].notified = false;
        state.clients[client].decided = Some(Decided { step, at: state.now, change });
        if self.ttl.is_none() {
            // Under a short lock of the store.
            self.store_decision(state, client, true, true);
        }
    }

    pub(super) fn store_decision(&self, state: &mut State, client: usize, notifies: bool, replies: bool) {
        let Some(Decided { mut step, at, change }) = state.clients[client].decided.take() else { return };
        let mut stored = state.clone();
        let is_stored = match change {
            Change::Document(version, _) if version != state.version => false,
            Change::Document(_, ledger) => {
                self.store(&mut stored, ledger, notifies);
                true
            }
            Change::Entries(writes, is_granted_by_revision) => {
                let written = self.write(&mut stored, &writes, notifies);
                if let (Written::At(revision), true) = (&written, is_granted_by_revision)
                    && let Decision::Done { value: Attempt::Granted(grant), .. } = &mut step
                {
                    grant.fencing = FencingToken::new(*revision);
                    if self.fencing == Fencing::Order {
                        // It is remembered in the metadata before the command starts.
                        let last = &mut stored.listing.metadata.value.fencing_token;
                        *last = (*last).max(*revision);
                        stored.ledger = stored.listing.ledger(self.fencing);
                    }
                }
                matches!(written, Written::At(_))
            }
        };
        if !is_stored {
            // Another client was faster, or a new entry waits: read again.
            *state = stored;
            state.clients[client].notified = true;
            state.clients[client].phase = Phase::Waiting;
            return;
        }
        let is_granted = matches!(&step, Decision::Done { value: Attempt::Granted(_), .. });
        self.check_grant(state, client, &step, at);
        if is_granted {
            self.check_order(state, client);
            self.check_freeze(state, client);
        }
        stored.fault = state.fault;
        *state = stored;
        if is_granted && !self.min_hold.is_zero() {
            state.clients[client].kept_until.get_or_insert(at + self.min_hold);
        }
        if replies {
            self.conclude(state, client, step, at);
        } else {
            if let Decision::Done { value: Attempt::Granted(grant), .. } = step {
                let fencing = grant.fencing.map_or(0, |fencing| fencing.number());
                state.last_fencing_token = state.last_fencing_token.max(fencing);
                state.clients[client].fencing_token = fencing;
            }
            state.clients[client].phase = Phase::Waiting;
            state.clients[client].notified = true;
        }
    }

    pub(super) fn gate_of(&self, state: &State, client: usize) -> Gate {
        match self.ttl {
            None if !state.clients[client].owns_gate => Gate::Untried,
            _ => Gate::Passed(None),
        }
    }

    /// What is left of the minimum hold time.
    pub(super) fn rest(&self, state: &State, client: usize) -> Duration {
        state.clients[client].kept_until.map_or(Duration::ZERO, |until| until.saturating_sub(state.now))
    }

    pub(super) fn renew_now(&self, state: &mut State, client: usize) {
        let (claim, rest) = (self.claim(client), self.rest(state, client));
        if self.entries {
            let purpose = Purpose::Renew(claim.clone());
            let (value, _) = self.request(state, &purpose, true, |ledger, observed| {
                decide::renew(ledger, observed, &claim, rest)
            });
            return self.conclude_renewal(state, client, value, false);
        }
        let renew = |gate| {
            let mut ledger = state.ledger.clone();
            let step = decide::renew(&mut ledger, &self.view(state, gate), &claim, rest);
            (ledger, step)
        };
        let (ledger, step, owns_gate) = match renew(self.gate_of(state, client)) {
            (_, Decision::PassGate(mode)) => {
                let is_open = self.is_gate_open(state, mode);
                let (ledger, step) = renew(if is_open { Gate::Passed(None) } else { Gate::Closed });
                (ledger, step, is_open)
            }
            (ledger, step) => (ledger, step, state.clients[client].owns_gate),
        };
        let Decision::Done { value, .. } = step else { unreachable!("the gate is tried at once") };
        self.store(state, ledger, true);
        self.conclude_renewal(state, client, value, owns_gate);
    }

    fn conclude_renewal(&self, state: &mut State, client: usize, renewal: Renewal, owns_gate: bool) {
        let Renewal::Held { lease, revoked } = renewal else {
            state.fault = Some("a lock was lost that its holder renewed in time");
            return;
        };
        let (now, me) = (state.now, &mut state.clients[client]);
        me.has_renewed = true;
        me.owns_gate = owns_gate;
        me.knows_revocation = revoked.is_some();
        // What keeps the lock after the end of its command does not apply any more.
        me.notified |= me.phase == Phase::Leaving;
        me.safe_until = lease.map(|lease| now + lease);
        me.due = now + lease.unwrap_or_default() / 3;
        if me.is_revoked != me.knows_revocation {
            state.fault = Some("a revocation was not reported");
        }
        self.notice(state);
    }

    /// The command of a client has ended, or, with no `rest`, did not begin.
    pub(super) fn release_now(&self, state: &mut State, client: usize, rest: Duration, notifies: bool) {
        let claim = self.claim(client);
        let mut ledger = state.ledger.clone();
        let (value, watch) = if self.entries {
            let purpose = Purpose::Release(claim.clone());
            self.request(state, &purpose, notifies, |ledger, observed| {
                decide::release(ledger, observed, &claim, rest, Ending::default())
            })
        } else {
            let view = self.view(state, self.gate_of(state, client));
            match decide::release(&mut ledger, &view, &claim, rest, Ending::default()) {
                Decision::Done { value, watch, .. } => (value, watch),
                step => unreachable!("a release passes no gate: {step:?}"),
            }
        };
        // Without anything to watch, it is only a matter of time.
        let is_kept = value == Release::Kept || matches!(value, Release::NotYet(_)) && watch.is_empty();
        if is_kept && state.clients[client].is_revoked {
            state.fault = Some("a revoked hold is kept");
        }
        let me = &mut state.clients[client];
        if let Release::NotYet(again) = value {
            me.phase = Phase::Leaving;
            me.notified = false;
            me.watches = watch;
            me.due = state.now + again;
        } else {
            me.phase = Phase::Ended;
            let owned_gate = std::mem::take(&mut me.owns_gate);
            let is_inside = |one: usize| self.family(one) == self.family(client) && one != client;
            if owned_gate
                && (0..state.clients.len())
                    .any(|one| is_inside(one) && state.clients[one].phase == Phase::Running)
            {
                state.fault = Some("the gate was opened while another client was inside");
            }
        }
        if !self.entries {
            self.store(state, ledger, notifies);
        }
    }

    /// An operator revokes the hold of a client, which may have ended.
    pub(super) fn revoke_now(&self, state: &mut State, client: usize) {
        let fencing_token = |state: &State, client: usize| {
            let mut holders = state.ledger.holders.iter();
            holders.find(|one| one.token == token(client)).map(|one| one.fencing_token)
        };
        let Some(revoked) = fencing_token(state, client) else { return };
        for one in 0..state.clients.len() {
            state.clients[one].is_revoked |= fencing_token(state, one) == Some(revoked);
        }
        let (mut ledger, fencing) = (state.ledger.clone(), FencingToken::new(revoked).unwrap());
        let revocation = Revocation { by: String::new(), reason: None };
        if self.entries {
            self.request(state, &Purpose::Operate, true, |ledger, observed| {
                administer::revoke(ledger, observed, fencing, &revocation)
            });
            return;
        }
        administer::revoke(&mut ledger, &self.view(state, Gate::Untried), fencing, &revocation);
        self.store(state, ledger, true);
    }

    /// The next moment at which something is due.
    pub(super) fn next_moment(&self, state: &State) -> Option<Duration> {
        let mut moments = Vec::new();
        for client in &state.clients {
            match client.phase {
                Phase::Waiting => moments.push(client.due),
                Phase::Leaving => moments.push(client.due),
                Phase::Running if self.ttl.is_some() => {
                    moments.extend([client.due].into_iter().chain(client.safe_until))
                }
                _ => {}
            }
        }
        let called =
            state.ledger.waiters.iter().filter_map(|one| one.called).map(|called| called + CLAIM_WITHIN);
        let holders = state.ledger.holders.iter().filter_map(|one| one.lease_ends);
        let waiters = state.ledger.waiters.iter().filter_map(|one| one.lease_ends);
        let kept = state.ledger.holders.iter().filter_map(|one| one.kept_until);
        let entries = called.chain(holders).chain(waiters).chain(kept);
        moments.into_iter().chain(entries).filter(|at| *at > state.now).min()
    }

    pub(super) fn pass_time(&self, state: &mut State, to: Duration) {
        state.now = to;
        if self.entries {
            self.expire(state);
        }
        for client in &mut state.clients {
            if client.phase == Phase::Running && client.safe_until.is_some_and(|until| to >= until) {
                client.phase = Phase::Ended;
            }
        }
    }
}

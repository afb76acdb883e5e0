//! Clients that take turns on one ledger, each of them for one run: wait, hold, release.

use std::fmt;
use std::time::Duration;

use dlock::backend::ledger::{
    Gate, GateMode, HolderEntry, Ledger, Lifetime, Now, Observed, Step, WaiterEntry, Watch, decide,
};
use dlock::backend::{Again, Attempt, CLAIM_WITHIN, Intent, Renewal};
use dlock::lock::{Claim, Identity, LockName, Mode, Token};

use crate::explorer::Model;

/// A client that has to wait longer than this for a lock that no live client uses is left behind: beyond the lease of a
/// dead or silent client.
const PATIENCE: Duration = Duration::from_secs(1);

/// The clients of a lock.
#[derive(Clone, Debug)]
pub(super) struct Clients {
    pub(super) modes: [Mode; 3],
    /// How many of them there are.
    pub(super) count: usize,
    /// The lease; without one, entries live as long as their owner, and holders pass a gate.
    pub(super) ttl: Option<Duration>,
    /// How many clients may die, or stop waiting.
    pub(super) deaths: u8,
    /// How many messages may be lost: a reply, or the notifications of one change.
    pub(super) losses: u8,
    /// How often time may pass while a client has something to do at once.
    pub(super) delays: u8,
    /// A foreign program may once pass the gate exclusively.
    pub(super) foreign: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    Waiting,
    Running,
    /// Released the lock, or stopped before its lease ended.
    Ended,
    Dead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Foreign {
    Absent,
    Inside,
    Gone,
}

#[derive(Clone)]
struct Client {
    phase: Phase,
    notified: bool,
    /// When it tries again even without a notification; when a running one renews its lease.
    due: Duration,
    watches: Vec<Watch>,
    /// When a running one has to have stopped.
    safe_until: Option<Duration>,
    has_renewed: bool,
    /// The token of the last grant that was stored for it.
    fencing_token: u64,
    /// What it decided on the ledger of this version, before it is stored.
    decided: Option<(u32, Ledger, Step<Attempt>, Duration)>,
}

#[derive(Clone)]
pub(super) struct State {
    now: Duration,
    ledger: Ledger,
    version: u32,
    clients: Vec<Client>,
    foreign: Foreign,
    deaths: u8,
    losses: u8,
    delays: u8,
    last_fencing_token: u64,
    fault: Option<&'static str>,
}

#[derive(Clone, Copy)]
pub(super) enum Action {
    Decide(usize),
    Store(usize),
    StoreUnanswered(usize),
    StoreUnnoticed(usize),
    Renew(usize),
    Release(usize),
    ReleaseUnnoticed(usize),
    Die(usize),
    GiveUp(usize),
    ForeignTakes,
    ForeignLeaves,
    TimePasses,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Decide(client) => write!(f, "{client} decides"),
            Action::Store(client) => write!(f, "{client} stores"),
            Action::StoreUnanswered(client) => write!(f, "{client} stores, and gets no reply"),
            Action::StoreUnnoticed(client) => write!(f, "{client} stores, and no waiter is notified"),
            Action::Renew(client) => write!(f, "{client} renews"),
            Action::Release(client) => write!(f, "{client} releases"),
            Action::ReleaseUnnoticed(client) => write!(f, "{client} releases, and no waiter is notified"),
            Action::Die(client) => write!(f, "{client} dies"),
            Action::GiveUp(client) => write!(f, "{client} gives up"),
            Action::ForeignTakes => write!(f, "a foreign program passes the gate"),
            Action::ForeignLeaves => write!(f, "the foreign program leaves the gate"),
            Action::TimePasses => write!(f, "time passes"),
        }
    }
}

/// What a client observes.
struct View<'a> {
    model: &'a Clients,
    state: &'a State,
    gate: Gate,
}

impl View<'_> {
    fn is_dead(&self, token: &str) -> bool {
        let client = client_of(token).map(|client| self.state.clients[client].phase);
        self.model.ttl.is_none() && !matches!(client, Some(Phase::Idle | Phase::Waiting | Phase::Running))
    }
}

impl Observed for View<'_> {
    fn now(&self) -> Now {
        Now { clock: self.state.now, wall: 0 }
    }

    fn lifetime(&self) -> Lifetime {
        self.model.ttl.map_or(Lifetime::OfOwner(None), |_| Lifetime::Recorded)
    }

    fn is_holder_dead(&self, entry: &HolderEntry) -> bool {
        self.is_dead(&entry.token)
    }

    fn is_waiter_dead(&self, entry: &WaiterEntry) -> bool {
        self.is_dead(&entry.token)
    }

    fn gate(&self) -> Gate {
        self.gate
    }

    fn admits(&self, mode: Mode) -> bool {
        matches!(self.gate, Gate::Passed(_)) || self.model.is_gate_open(self.state, GateMode::of(mode))
    }
}

fn token(client: usize) -> String {
    format!("token-{client}")
}

fn client_of(token: &str) -> Option<usize> {
    token.strip_prefix("token-")?.parse().ok()
}

impl Clients {
    fn claim(&self, client: usize) -> Claim {
        Claim {
            name: LockName::new("x").unwrap(),
            token: Token::from_text(token(client)),
            mode: self.modes[client],
            ttl: self.ttl.unwrap_or(Duration::from_secs(3)),
            min_hold: Duration::ZERO,
            identity: Identity::default(),
            outer: Vec::new(),
            requires_outer_hold: false,
        }
    }

    /// Whether the kernel would let one more process pass in this mode.
    fn is_gate_open(&self, state: &State, mode: GateMode) -> bool {
        let mut inside =
            (0..state.clients.len()).filter(|client| state.clients[*client].phase == Phase::Running);
        state.foreign != Foreign::Inside
            && inside.all(|client| mode == GateMode::Shared && GateMode::of(self.modes[client]) == mode)
    }

    fn view<'a>(&'a self, state: &'a State, gate: Gate) -> View<'a> {
        View { model: self, state, gate }
    }

    /// The decision on a claim, with the gate passed if that is required.
    fn decide(&self, state: &State, client: usize) -> (Ledger, Step<Attempt>) {
        let gate = if self.ttl.is_some() { Gate::Passed(None) } else { Gate::Untried };
        let decide = |gate| {
            let mut ledger = state.ledger.clone();
            let claim = self.claim(client);
            let step = decide::claim(&mut ledger, &self.view(state, gate), &claim, Intent::Enqueue);
            (ledger, step)
        };
        match decide(gate) {
            (_, Step::PassGate(mode)) => {
                decide(if self.is_gate_open(state, mode) { Gate::Passed(None) } else { Gate::Closed })
            }
            decided => decided,
        }
    }

    /// Stores a new ledger and notifies the waiters.
    fn store(&self, state: &mut State, ledger: Ledger, notifies: bool) {
        let before = std::mem::replace(&mut state.ledger, ledger);
        state.version += u32::from(before != state.ledger);
        let was_called =
            |ticket| before.waiters.iter().any(|one| one.ticket == ticket && one.called.is_some());
        for waiter in state.ledger.waiters.iter().filter(|_| notifies && self.ttl.is_some()) {
            let client = client_of(&waiter.token).unwrap();
            state.clients[client].notified |= waiter.called.is_some() && !was_called(waiter.ticket);
        }
        self.notice(state);
    }

    /// The kernel notifies of the end of what is watched.
    fn notice(&self, state: &mut State) {
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
            };
            let is_notified = state.clients[client].watches.iter().any(has_gone);
            state.clients[client].notified |= is_notified;
        }
    }

    /// What follows for the client from a decision that was stored.
    fn conclude(&self, state: &mut State, client: usize, step: Step<Attempt>, at: Duration) {
        let Step::Done { value, watch, .. } = step else { unreachable!("the gate is tried at once") };
        match value {
            Attempt::Granted(grant) => {
                let fencing = grant.fencing.map_or(0, |fencing| fencing.number());
                // A grant whose reply was lost is granted again, with the same token.
                if fencing <= state.last_fencing_token && state.clients[client].fencing_token != fencing {
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
                self.check(state, client);
            }
            Attempt::Busy(busy) => {
                let me = &mut state.clients[client];
                me.phase = Phase::Waiting;
                me.watches = watch;
                me.due = match busy.again {
                    Again::Within(within) => state.now + within,
                    Again::Poll => state.now,
                };
            }
            Attempt::Refused(_) => state.clients[client].phase = Phase::Ended,
        }
        self.notice(state);
    }

    /// No two running clients exclude each other.
    fn check(&self, state: &mut State, new: usize) {
        let running: Vec<usize> =
            (0..state.clients.len()).filter(|one| state.clients[*one].phase == Phase::Running).collect();
        let is_together = running.iter().all(|one| match (self.modes[*one], self.modes[new]) {
            _ if *one == new => true,
            (Mode::Shared, Mode::Shared) => true,
            (Mode::Slots(of), Mode::Slots(_)) => running.len() <= of as usize,
            _ => false,
        });
        if !is_together || state.foreign == Foreign::Inside {
            state.fault = Some("two that exclude each other hold the lock");
        }
    }

    /// A grant overtakes no live waiter that the new holder excludes and that has not missed its turn.
    fn check_order(&self, state: &mut State, client: usize) {
        let mine = token(client);
        if state.ledger.holders.iter().any(|one| one.token == mine) {
            // The reply to the grant was lost.
            return;
        }
        let ahead = state.ledger.waiters.iter().take_while(|waiter| waiter.token != mine);
        let running = state.clients.iter().filter(|one| one.phase == Phase::Running).count();
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

    fn can_try(&self, state: &State, client: usize) -> bool {
        let me = &state.clients[client];
        me.decided.is_none()
            && match me.phase {
                // Clients of the same mode are alike: they begin in the order of their numbers.
                Phase::Idle => (0..client).all(|other| {
                    self.modes[other] != self.modes[client] || state.clients[other].phase != Phase::Idle
                }),
                Phase::Waiting => me.notified || state.now >= me.due,
                _ => false,
            }
    }

    fn must_renew(&self, state: &State, client: usize) -> bool {
        let me = &state.clients[client];
        let is_leased = self.ttl.is_some() && me.phase == Phase::Running;
        is_leased && state.now >= me.due && !me.has_renewed
    }

    fn try_now(&self, state: &mut State, client: usize) {
        let (ledger, step) = self.decide(state, client);
        state.clients[client].notified = false;
        state.clients[client].decided = Some((state.version, ledger, step, state.now));
        if self.ttl.is_none() {
            // Under a short lock of the store.
            self.store_decision(state, client, true, true);
        }
    }

    fn store_decision(&self, state: &mut State, client: usize, notifies: bool, replies: bool) {
        let Some((version, ledger, step, at)) = state.clients[client].decided.take() else { return };
        if version != state.version {
            // Another client was faster: read again.
            state.clients[client].notified = true;
            state.clients[client].phase = Phase::Waiting;
            return;
        }
        let is_granted = matches!(&step, Step::Done { value: Attempt::Granted(_), .. });
        if is_granted {
            self.check_order(state, client);
        }
        self.store(state, ledger, notifies);
        if replies {
            self.conclude(state, client, step, at);
        } else {
            if let Step::Done { value: Attempt::Granted(grant), .. } = step {
                let fencing = grant.fencing.map_or(0, |fencing| fencing.number());
                state.last_fencing_token = state.last_fencing_token.max(fencing);
                state.clients[client].fencing_token = fencing;
            }
            state.clients[client].phase = Phase::Waiting;
            state.clients[client].notified = true;
        }
    }

    fn renew_now(&self, state: &mut State, client: usize) {
        let mut ledger = state.ledger.clone();
        let claim = self.claim(client);
        let view = self.view(state, Gate::Passed(None));
        match decide::renew(&mut ledger, &view, &claim, Duration::ZERO) {
            Step::Done { value: Renewal::Held { lease, .. }, .. } => {
                let (now, me) = (state.now, &mut state.clients[client]);
                me.has_renewed = true;
                me.safe_until = lease.map(|lease| now + lease);
                me.due = now + lease.unwrap_or_default() / 3;
                self.store(state, ledger, true);
            }
            _ => state.fault = Some("a lock was lost that its holder renewed in time"),
        }
    }

    fn release_now(&self, state: &mut State, client: usize, notifies: bool) {
        let mut ledger = state.ledger.clone();
        let claim = self.claim(client);
        let view = self.view(state, Gate::Passed(None));
        decide::release(&mut ledger, &view, &claim, Duration::ZERO, None);
        state.clients[client].phase = Phase::Ended;
        self.store(state, ledger, notifies);
    }

    /// The next moment at which something is due.
    fn next_moment(&self, state: &State) -> Option<Duration> {
        let mut moments = Vec::new();
        for client in &state.clients {
            match client.phase {
                Phase::Waiting => moments.push(client.due),
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
        let entries = called.chain(holders).chain(waiters);
        moments.into_iter().chain(entries).filter(|at| *at > state.now).min()
    }

    fn pass_time(&self, state: &mut State, to: Duration) {
        state.now = to;
        for client in &mut state.clients {
            if client.phase == Phase::Running && client.safe_until.is_some_and(|until| to >= until) {
                client.phase = Phase::Ended;
            }
        }
    }

    /// Lets every live client act promptly, without further faults, and returns whether all of them have run soon.
    fn completes(&self, state: &State) -> bool {
        let mut state = state.clone();
        if state.foreign == Foreign::Inside {
            state.foreign = Foreign::Gone;
            self.notice(&mut state);
        }
        let has_fault = (state.deaths, state.losses, state.delays) != (self.deaths, self.losses, self.delays);
        let limit = PATIENCE + self.ttl.filter(|_| has_fault).unwrap_or_default();
        let mut idle = Duration::ZERO;
        loop {
            let clients = 0..state.clients.len();
            if let Some(client) = clients.clone().find(|client| state.clients[*client].decided.is_some()) {
                if state.clients[client].phase == Phase::Dead {
                    state.clients[client].decided = None;
                } else {
                    self.store_decision(&mut state, client, true, true);
                }
            } else if let Some(client) =
                clients.clone().find(|one| state.clients[*one].phase == Phase::Running)
            {
                self.release_now(&mut state, client, true);
            } else if let Some(client) = clients.clone().find(|one| self.can_try(&state, *one)) {
                self.try_now(&mut state, client);
            } else if clients
                .clone()
                .all(|one| matches!(state.clients[one].phase, Phase::Ended | Phase::Dead))
            {
                return true;
            } else {
                let Some(next) = self.next_moment(&state) else { return false };
                idle += next - state.now;
                if idle > limit {
                    return false;
                }
                self.pass_time(&mut state, next);
            }
        }
    }
}

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
            decided: None,
        };
        vec![State {
            now: Duration::ZERO,
            ledger: Ledger::default(),
            version: 0,
            clients: vec![client; self.count],
            foreign: if self.foreign { Foreign::Absent } else { Foreign::Gone },
            deaths: self.deaths,
            losses: self.losses,
            delays: self.delays,
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
            if me.phase == Phase::Running {
                add(Action::Release(client), &|next| self.release_now(next, client, true));
                if state.losses > 0 {
                    add(Action::ReleaseUnnoticed(client), &|next| {
                        next.losses -= 1;
                        self.release_now(next, client, false);
                    });
                }
                if self.must_renew(state, client) {
                    add(Action::Renew(client), &|next| self.renew_now(next, client));
                }
            }
            if state.deaths > 0 && matches!(me.phase, Phase::Waiting | Phase::Running) {
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
                    self.release_now(next, client, true);
                });
            }
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
        use std::fmt::Write;
        let mut form = String::new();
        let left = |at: Duration| at.saturating_sub(state.now).as_millis();
        let ledger_form = |form: &mut String, ledger: &Ledger, at: Duration| {
            for one in &ledger.holders {
                let ends = one.lease_ends.map(|ends| ends.saturating_sub(at).as_millis());
                let _ = write!(form, "h{}{:?}{ends:?}", one.token, one.slot);
            }
            for one in &ledger.waiters {
                let called = one.called.map(|called| (called + CLAIM_WITHIN).saturating_sub(at).as_millis());
                let ends = one.lease_ends.map(|ends| ends.saturating_sub(at).as_millis());
                let _ = write!(form, "w{}{called:?}{ends:?}", one.token);
            }
            let _ = write!(form, "{}", ledger.incomplete);
        };
        ledger_form(&mut form, &state.ledger, state.now);
        for (index, client) in state.clients.iter().enumerate() {
            let watched = |watch: &Watch| match watch {
                Watch::Holder(ticket) => {
                    state.ledger.holders.iter().find(|one| one.ticket == *ticket).map(|one| one.token.clone())
                }
                Watch::Waiter(ticket) => {
                    state.ledger.waiters.iter().find(|one| one.ticket == *ticket).map(|one| one.token.clone())
                }
                Watch::Gate(mode) => Some(format!("{mode:?}")),
            };
            let watches: Vec<_> = client.watches.iter().map(watched).collect();
            let due = matches!(client.phase, Phase::Waiting | Phase::Running).then(|| left(client.due));
            let _ = write!(
                form,
                "c{index}{:?}{}{}{due:?}{watches:?}{:?}",
                client.phase,
                client.notified,
                client.has_renewed,
                client.safe_until.filter(|_| client.phase == Phase::Running).map(left)
            );
            if let Some((version, ledger, _, at)) = &client.decided {
                let is_current = *version == state.version;
                let _ = write!(form, "d{is_current}");
                if is_current {
                    let _ = write!(form, "{:?}", state.now - *at);
                    ledger_form(&mut form, ledger, state.now);
                }
            }
        }
        let (deaths, losses, delays) = (state.deaths, state.losses, state.delays);
        let _ = write!(form, "{:?}{deaths}{losses}{delays}", state.foreign);
        form
    }

    fn fault(&self, state: &State) -> Option<&'static str> {
        state.fault.or_else(|| (!self.completes(state)).then_some("a client is left behind"))
    }
}

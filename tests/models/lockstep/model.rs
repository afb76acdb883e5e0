//! Clients that act in any order on one lock, which is stored twice: on a server whose script decides, and as a ledger.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use dlock::backend::ledger::{HolderEntry, Ledger, WaiterEntry};
use dlock::backend::{Ending, Intent};
use dlock::lock::record::RecordKind;
use dlock::lock::{
    Claim, FencingToken, FreezeRequest, Holder, Identity, LockName, LockState, Mode, Record, Revocation,
    Token,
};

use super::answers::{Answer, Sight};
use super::differences::{Compared, Facts, compare_answers, compare_sights};
use super::form::Form;
use super::ledgers::Ledgers;
use super::lua::Interpreter;
use super::redis::Redis;
use super::script::Scripted;
use crate::explorer::Model;

/// The time at which every case begins, in microseconds since 1970.
const START: u64 = 1_700_000_000_000_000;
pub(super) const TTL: Duration = Duration::from_secs(3);
/// Time passes by this much, or until the next moment at which something ends. Longer than a called waiter may take to
/// claim before it is late, and shorter than it has.
const LITTLE: Duration = Duration::from_millis(60);

/// What a client may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Claims the lock, and waits for it. A claim that is repeated is that of a waiter, or of a client that has got no
    /// reply.
    Claim,
    /// Claims the lock without waiting.
    Try,
    Renew,
    /// Releases what it has, and keeps the lock for the rest of the minimum hold time.
    Release,
    /// An operator revokes its hold.
    Revoke,
    /// An operator removes its hold.
    Remove,
    /// An operator raises the fencing counter.
    Raise,
    /// An operator freezes the lock: with the first client for [`Case::freezes`], with others until it is removed.
    Freeze,
    /// The operator who does so with this client removes that freeze.
    Thaw,
    /// Records that its run did not begin.
    Record,
}

/// The clients of a lock, and what they do.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) modes: Vec<Mode>,
    pub(super) requests: &'static [Request],
    /// How many actions there are.
    pub(super) depth: usize,
    /// The second client runs inside the hold of the first, and whether it says so.
    pub(super) nested: Option<bool>,
    pub(super) min_hold: Duration,
    pub(super) once_per: Option<Duration>,
    /// How long a freeze lasts that has an end.
    pub(super) freezes: Duration,
    /// By how many clients the lock may be frozen.
    pub(super) operators: usize,
    /// Which of the runs are those of `--supersede`, in turns.
    pub(super) supersedes: &'static [bool],
    /// Whether the script calls waiters although it is not their turn, in case that those ahead are dead.
    pub(super) calls_ahead: bool,
    /// The length of the lease of each client, as a multiple of the shortest.
    pub(super) leases: &'static [u32],
}

pub(super) const CASE: Case = Case {
    name: "",
    modes: Vec::new(),
    requests: &[Request::Claim, Request::Release],
    depth: 0,
    nested: None,
    min_hold: Duration::ZERO,
    once_per: None,
    freezes: Duration::from_secs(1),
    operators: 1,
    supersedes: &[false],
    calls_ahead: false,
    leases: &[1],
};

#[derive(Clone)]
pub(super) struct State {
    pub(super) now: u64,
    pub(super) server: Redis,
    pub(super) ledger: Ledger,
    pub(super) clients: Vec<Client>,
    actions: usize,
    fault: Option<String>,
    /// Both are not alike any more.
    is_last: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Client {
    has_begun: bool,
    /// It does not try without waiting afterwards.
    waits: bool,
    /// How often it has claimed the lock.
    attempts: u64,
    has_released: bool,
    /// Of the last grant.
    pub(super) fencing: Option<FencingToken>,
    granted_at: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Request(usize, Request),
    Pass(Duration),
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Request(client, request) => write!(f, "{client} {request:?}"),
            Action::Pass(time) => write!(f, "{time:?} pass"),
        }
    }
}

/// Explores one case.
pub(super) struct Lockstep<'a> {
    pub(super) case: Case,
    pub(super) interpreter: &'a Interpreter,
    /// The differences that have occurred.
    pub(super) differences: RefCell<BTreeSet<&'static str>>,
}

const HOSTS: [&str; 4] = ["alpha", "beta", "gamma", "delta"];

pub(super) fn token(client: usize) -> String {
    format!("token-{client}")
}

fn lock() -> LockName {
    LockName::new("x").unwrap()
}

fn freeze_id(client: usize) -> String {
    format!("freeze-{client}")
}

fn revocation() -> Revocation {
    Revocation { by: "root@here".to_owned(), reason: None }
}

impl<'a> Lockstep<'a> {
    pub(super) fn of(case: Case, interpreter: &'a Interpreter) -> Lockstep<'a> {
        Lockstep { case, interpreter, differences: RefCell::default() }
    }

    /// Records outcomes of these kinds, each a millisecond after the one before. Returns how many of each kind are kept by
    /// both.
    pub(super) fn keep_outcomes(&self, kinds: impl IntoIterator<Item = RecordKind>) -> [usize; 3] {
        let (mut state, mut ledgers) = (self.initial_states().remove(0), Ledgers::new());
        let mut kept = [0; 3];
        for kind in kinds {
            state.now += 1000;
            state.actions += 1;
            state.server.now = state.now;
            ledgers.set(&state.ledger, state.now);
            let record = self.record(&state, 0, kind);
            let mut script = Scripted { interpreter: self.interpreter, server: &mut state.server };
            assert_eq!(script.record(&record), ledgers.record(&lock(), &record));
            state.ledger = ledgers.ledger();
            let (scripted, ledger) = self.sights(&mut state, &mut ledgers);
            assert_eq!(scripted.history, ledger.history);
            kept = [RecordKind::Succeeded, RecordKind::Held, RecordKind::Missed]
                .map(|kind| ledger.history.iter().filter(|(_, record)| record.kind() == kind).count());
        }
        kept
    }

    pub(super) fn claim(&self, client: usize) -> Claim {
        let Case { modes, leases, min_hold, once_per, nested, .. } = &self.case;
        let is_inside = client == 1 && nested.is_some();
        Claim {
            mode: modes[client],
            min_hold: *min_hold,
            identity: Identity {
                host: HOSTS[client].to_owned(),
                pid: 7,
                supersedes: self.case.supersedes[client % self.case.supersedes.len()],
                ..Identity::default()
            },
            outer: if is_inside { vec![Token::from_text(token(0))] } else { Vec::new() },
            requires_outer_hold: is_inside && nested.unwrap_or_default(),
            once_per: *once_per,
            ..Claim::new(lock(), Token::from_text(token(client)), TTL * leases[client % leases.len()])
        }
    }

    /// What remains of the minimum hold time of a client.
    fn rest(&self, state: &State, client: usize) -> Duration {
        let granted_at = state.clients[client].granted_at.map(Duration::from_micros);
        let until = granted_at.map(|at| at + self.case.min_hold);
        until.map_or(Duration::ZERO, |until| until.saturating_sub(Duration::from_micros(state.now)))
    }

    fn record(&self, state: &State, client: usize, kind: RecordKind) -> Record {
        let identity = self.claim(client).identity;
        let held_ms = (kind != RecordKind::Missed).then_some(state.actions as u64);
        let exit_status = (kind == RecordKind::Succeeded).then_some(0);
        let outcome = "ran".to_owned();
        Record { outcome, identity, exit_status, held_ms, waited_ms: state.now, ..Record::default() }
    }

    fn requests(&self, state: &State) -> Vec<Action> {
        let mut actions = Vec::new();
        for (client, it) in state.clients.iter().enumerate() {
            // Clients of one mode and one lease are alike: they begin in the order of their numbers.
            let is_like = |other: &usize| {
                self.case.nested.is_none()
                    && self.case.modes[*other] == self.case.modes[client]
                    && self.claim(*other).ttl == self.claim(client).ttl
                    && self.claim(*other).identity.supersedes == self.claim(client).identity.supersedes
            };
            let may_begin = (0..client).filter(is_like).all(|other| state.clients[other].has_begun);
            for request in self.case.requests {
                let is_possible = match request {
                    Request::Claim | Request::Try if !self.may_claim(state, client) => false,
                    Request::Claim => may_begin,
                    Request::Try => may_begin && !it.waits,
                    Request::Renew => it.fencing.is_some() && !it.has_released,
                    Request::Revoke | Request::Remove => it.fencing.is_some(),
                    Request::Release => it.has_begun,
                    Request::Raise | Request::Record => client == 0,
                    Request::Freeze | Request::Thaw => client < self.case.operators,
                };
                if is_possible {
                    actions.push(Action::Request(client, *request));
                }
            }
        }
        actions
    }

    /// A run is not repeated with the same token. Here that matters only to a hold that is kept, and to those inside.
    fn may_claim(&self, state: &State, client: usize) -> bool {
        let it = &state.clients[client];
        match (self.case.nested, client) {
            (Some(_), 0) => it.fencing.is_none(),
            (Some(_), 1) => state.clients[0].fencing.is_some(),
            _ => self.case.min_hold.is_zero() || !it.has_released,
        }
    }

    fn apply(&self, state: &State, ledgers: &mut Ledgers, action: Action) -> State {
        let mut next = state.clone();
        next.actions += 1;
        match action {
            Action::Request(client, request) => self.request(&mut next, ledgers, client, request),
            Action::Pass(time) => {
                next.now += u64::try_from(time.as_micros()).unwrap();
                next.server.now = next.now;
                ledgers.set(&next.ledger, next.now);
            }
        }
        let facts = Facts { case: &self.case, before: state, action };
        let sights = self.sights(&mut next, ledgers);
        if next.fault.is_none() {
            self.note(&mut next, compare_sights(&facts, sights));
        }
        next
    }

    fn sights(&self, state: &mut State, ledgers: &mut Ledgers) -> (Sight, Sight) {
        let mut scripted = Scripted { interpreter: self.interpreter, server: &mut state.server };
        let free = LockState::free(lock());
        let mut both = (scripted.sight(&token(0), free), ledgers.sight(&lock(), &Token::from_text(token(0))));
        for sight in [&mut both.0, &mut both.1] {
            // Those who have acquired the lock in the same millisecond are listed in any order.
            sight.state.holders.sort_by(|one, other| {
                let order = |holder: &Holder| {
                    (holder.acquired_at, holder.identity.as_ref().map(|it| it.host.clone()))
                };
                order(one).cmp(&order(other))
            });
        }
        both
    }

    fn request(&self, state: &mut State, ledgers: &mut Ledgers, client: usize, request: Request) {
        let before = state.clone();
        let (claim, rest) = (self.claim(client), self.rest(state, client));
        let it = &mut state.clients[client];
        it.attempts += u64::from(matches!(request, Request::Claim | Request::Try));
        let (attempt, fencing) = (it.attempts, it.fencing);
        let has_held = fencing.is_some();
        let kind = match has_held && request == Request::Release {
            true => RecordKind::Succeeded,
            false => RecordKind::Missed,
        };
        let record = self.record(state, client, kind);
        let held = state.clients[client].granted_at.map(|at| Duration::from_micros(state.now - at));
        let success = held.filter(|_| claim.once_per.is_some());
        let ending = Ending { success, ..Ending::with_record(Some(&record)) };
        let floor = FencingToken::new(START + 10_000_000).unwrap();
        let freeze = FreezeRequest {
            id: freeze_id(client),
            by: "root@here".to_owned(),
            reason: None,
            lasts: (client == 0).then_some(self.case.freezes),
        };
        ledgers.set(&state.ledger, state.now);
        let mut script = Scripted { interpreter: self.interpreter, server: &mut state.server };
        let name = lock();
        let answers = match request {
            Request::Claim => {
                let waits = Intent::Enqueue;
                (script.claim(&claim, waits, attempt), ledgers.claim(&claim, waits))
            }
            Request::Try => {
                let at_once = Intent::TakeNow;
                (script.claim(&claim, at_once, attempt), ledgers.claim(&claim, at_once))
            }
            Request::Renew => (script.renew(&claim, rest), ledgers.renew(&claim, rest)),
            Request::Release => {
                (script.release(&claim, rest, ending, attempt), ledgers.release(&claim, rest, ending))
            }
            Request::Revoke => {
                let (fencing, revocation) = (fencing.unwrap(), revocation());
                (script.revoke(fencing, &revocation), ledgers.revoke(&name, fencing, &revocation))
            }
            Request::Remove => {
                let fencing = fencing.unwrap();
                (script.remove(fencing), ledgers.remove(&name, fencing))
            }
            Request::Raise => (script.raise(floor), ledgers.raise(&name, floor)),
            Request::Freeze => (script.freeze(&freeze), ledgers.freeze(&name, &freeze)),
            Request::Thaw => (script.thaw(&freeze.id), ledgers.thaw(&name, &freeze.id)),
            Request::Record => (script.record(&record), ledgers.record(&name, &record)),
        };
        state.ledger = ledgers.ledger();
        let it = &mut state.clients[client];
        if matches!(request, Request::Claim | Request::Try) {
            it.has_begun = true;
            it.waits |= request == Request::Claim;
        }
        it.has_released |= request == Request::Release;
        if let Answer::Granted(grant) = &answers.0
            && it.fencing != grant.fencing
        {
            (it.fencing, it.granted_at) = (grant.fencing, Some(state.now));
        }
        let facts = Facts { case: &self.case, before: &before, action: Action::Request(client, request) };
        self.note(state, compare_answers(&facts, answers));
    }

    fn note(&self, state: &mut State, compared: Result<Compared, String>) {
        match compared {
            Ok(Compared { differences, lasts }) => {
                self.differences.borrow_mut().extend(differences);
                state.is_last |= lasts;
            }
            Err(fault) => state.fault = Some(fault),
        }
    }

    /// The times until something ends, the shortest first.
    fn moments(&self, state: &State) -> Vec<Duration> {
        let ledger = &state.ledger;
        let called = ledger.waiters.iter().filter_map(|waiter| waiter.called);
        let called = called.map(|called| called + dlock::backend::CLAIM_WITHIN);
        let of_holder = |holder: &HolderEntry| [holder.lease_ends, holder.kept_until];
        let holders = ledger.holders.iter().flat_map(of_holder).flatten();
        let waiters = ledger.waiters.iter().filter_map(|waiter: &WaiterEntry| waiter.lease_ends);
        let of_script = state.server.expiries().into_iter().map(Duration::from_millis);
        let granted_at = ledger.success.as_ref().and_then(|success| success["granted_at"].as_u64());
        let due = granted_at.zip(self.case.once_per).map(|(at, period)| Duration::from_millis(at) + period);
        let now = Duration::from_micros(state.now);
        let thawed = ledger.freeze().and_then(|freeze| freeze.until).map(Duration::from_millis);
        let all = called.chain(holders).chain(waiters).chain(of_script).chain(due).chain(thawed);
        // Nothing but the memory of the lock ends later.
        let soon = |at: Duration| at.checked_sub(now).filter(|left| *left < Duration::from_secs(100));
        let mut moments: Vec<Duration> = all.filter_map(soon).map(|left| left + JUST_AFTER).collect();
        moments.sort_unstable();
        moments
    }
}

/// A key of Redis expires in the millisecond after the end of its time to live.
const JUST_AFTER: Duration = Duration::from_millis(1);

impl Model for Lockstep<'_> {
    type State = State;
    type Form = String;
    type Action = Action;

    fn initial_states(&self) -> Vec<State> {
        let clients = vec![Client::default(); self.case.modes.len()];
        let server = Redis::new(START);
        vec![State {
            now: START,
            server,
            ledger: Ledger::default(),
            clients,
            actions: 0,
            fault: None,
            is_last: false,
        }]
    }

    fn successors(&self, state: &State) -> Vec<(Action, State)> {
        if state.actions == self.case.depth || state.is_last {
            return Vec::new();
        }
        let mut ledgers = Ledgers::new();
        let mut actions = self.requests(state);
        let moments = self.moments(state);
        actions.extend(moments.first().map(|time| Action::Pass(*time)));
        actions.push(Action::Pass(LITTLE));
        actions.into_iter().map(|action| (action, self.apply(state, &mut ledgers, action))).collect()
    }

    fn form(&self, state: &State) -> String {
        Form::of(state)
    }

    fn fault(&self, state: &State) -> Option<String> {
        state.fault.clone()
    }
}

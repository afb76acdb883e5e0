//! Clients that take turns on one ledger, each of them for one run: wait, hold, release.

mod checks;
mod documents;
mod entries;
mod form;
mod freeze;
mod model;
mod steps;

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use dlock::backend::Attempt;
use dlock::backend::ledger::entries::{Fencing, Listing, Write};
use dlock::backend::ledger::{
    Decision, Gate, GateMode, HolderEntry, Ledger, Lifetime, Now, Observed, WaiterEntry, Watch,
};
use dlock::lock::{Claim, Identity, LockName, Mode, Token};

/// A client that has to wait longer than this for a lock that no live client uses is left behind: beyond the lease of a
/// dead or silent client.
const PATIENCE: Duration = Duration::from_secs(1);

/// More than enough for all clients to run, one after the other.
const MAX_ACTIONS: usize = 200;

/// The clients of a lock.
#[derive(Clone, Debug)]
pub(super) struct Clients {
    pub(super) modes: [Mode; 3],
    /// How many of them there are.
    pub(super) count: usize,
    /// The lease; without one, entries live as long as their owner, and holders pass a gate.
    pub(super) ttl: Option<Duration>,
    /// Each of them writes an entry of its own, with a lease. Otherwise the ledger is one document.
    pub(super) entries: bool,
    /// Which number is the fencing token of a grant, if they do.
    pub(super) fencing: Fencing,
    /// How many clients may die, or stop waiting.
    pub(super) deaths: u8,
    /// How many messages may be lost: a reply, or the notifications of one change.
    pub(super) losses: u8,
    /// How often time may pass while a client has something to do at once.
    pub(super) delays: u8,
    /// A foreign program may once pass the gate exclusively.
    pub(super) foreign: bool,
    /// The second client is started by the command of the first one, and enters its hold.
    pub(super) nested: bool,
    /// How long each hold is kept at least.
    pub(super) min_hold: Duration,
    /// How many holds may be revoked.
    pub(super) revocations: u8,
    /// How often the lock may be frozen.
    pub(super) freezes: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    Waiting,
    Running,
    /// Its command has ended, but its descriptors still keep the lock.
    Leaving,
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

/// The freeze of the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Freeze {
    Absent,
    /// It is stored; what was decided on before it may still be stored.
    Stored,
    /// Nobody else may start.
    InForce,
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
    /// Until when the lock is kept for it, whatever happens to it, unless it is revoked.
    kept_until: Option<Duration>,
    /// Its process has passed the gate.
    owns_gate: bool,
    is_revoked: bool,
    /// A renewal has reported the revocation.
    knows_revocation: bool,
    /// What it decided, before it is stored.
    decided: Option<Decided>,
}

#[derive(Clone)]
struct Decided {
    step: Decision<Attempt>,
    at: Duration,
    change: Change,
}

/// What is to be stored.
#[derive(Clone)]
enum Change {
    /// This ledger, in place of that of this version.
    Document(u32, Ledger),
    /// These entries; and whether the last one has the fencing token of its revision.
    Entries(Vec<Write>, bool),
}

#[derive(Clone)]
pub(super) struct State {
    now: Duration,
    ledger: Ledger,
    version: u32,
    /// The entries that the ledger consists of, if it is not a document.
    listing: Listing,
    clients: Vec<Client>,
    foreign: Foreign,
    deaths: u8,
    losses: u8,
    delays: u8,
    revocations: u8,
    freezes: u8,
    freeze: Freeze,
    /// The entries that were written to bring it in force, by their orders.
    settled: HashSet<u64>,
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
    Revoke(usize),
    Freeze,
    Settle,
    Thaw,
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
            Action::Revoke(client) => write!(f, "the hold of {client} is revoked"),
            Action::Freeze => write!(f, "the lock is frozen"),
            Action::Settle => write!(f, "the freeze is brought in force"),
            Action::Thaw => write!(f, "the lock is thawed"),
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
        self.model.ttl.is_none() && matches!(client, None | Some(Phase::Ended | Phase::Dead))
    }
}

impl Observed for View<'_> {
    fn now(&self) -> Now {
        Now { clock: self.state.now, wall: 0 }
    }

    fn lifetime(&self) -> Lifetime {
        self.model.ttl.map_or(Lifetime::OfOwner(None), |_| Lifetime::OfLease)
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
            min_hold: self.min_hold,
            // A foreign client has none.
            identity: Identity { host: "host".into(), ..Identity::default() },
            outer: if self.is_nested(client) { vec![Token::from_text(token(0))] } else { Vec::new() },
            requires_outer_hold: self.is_nested(client),
            once_per: None,
        }
    }

    fn is_nested(&self, client: usize) -> bool {
        self.nested && client == 1
    }

    /// The client whose hold this one has, or enters.
    fn family(&self, client: usize) -> usize {
        if self.is_nested(client) { 0 } else { client }
    }

    /// The clients for which the lock is held or kept.
    fn inside(&self, state: &State) -> Vec<usize> {
        let is_inside = |client: &usize| {
            let me = &state.clients[*client];
            let is_kept = me.kept_until.is_some_and(|until| state.now < until) && !me.is_revoked;
            self.has_hold(state, *client) || is_kept
        };
        (0..state.clients.len()).filter(is_inside).collect()
    }

    /// Whether the kernel would let one more process pass in this mode.
    fn is_gate_open(&self, state: &State, mode: GateMode) -> bool {
        let mut inside = (0..state.clients.len())
            .filter(|client| state.clients[*client].owns_gate && self.has_hold(state, *client));
        let shares = |client| GateMode::of(self.modes[self.family(client)]) == GateMode::Shared;
        state.foreign != Foreign::Inside && inside.all(|client| mode == GateMode::Shared && shares(client))
    }

    fn view<'a>(&'a self, state: &'a State, gate: Gate) -> View<'a> {
        View { model: self, state, gate }
    }
}

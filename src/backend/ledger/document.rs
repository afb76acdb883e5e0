//! The document shape: a ledger is one value with a version, and its entries live until their leases end.
//!
//! A change is decided on the value that was read, and stored if the version is still that; otherwise another client was
//! faster, and the ledger is read again.
//!
//! Used by stores that can swap a value if its version is still the one that was read. What always holds: nothing is
//! stored that was not decided on the very value that it replaces.

mod gate;

use std::future::Future;
use std::time::Duration;

use self::gate::Facts;
pub use self::gate::Occupant;
use super::observed::{GateLifetime, GateMode, Now, Observed};
use super::store::{Done, EXHAUSTED, Effect, Purpose, Step, Watch};
use super::value::{HolderEntry, Ledger};
use crate::backend::{Outlook, StoreError};
use crate::lock::{Claim, FencingToken, LockName, LockState, NotedRecord};

/// How often a change is decided again after a conflict before it is reported as a transient failure.
pub(super) const MAX_CONFLICTS: usize = 100;

/// A store that swaps a ledger if its version is still the one that was read.
pub trait DocumentStore {
    /// Identifies a value of a ledger, or that there is none. A ledger that is created anew after its deletion has a
    /// version of its own.
    type Version;

    /// Reads a ledger after the shortcut, which the store takes in the same step if it applies. A ledger that does not
    /// exist is empty. A store without shortcuts only reads.
    ///
    /// # Errors
    /// The store could not be queried, or the ledger is in an unknown format ([`StoreError::Config`]).
    fn load(
        &mut self,
        name: &LockName,
        shortcut: &Shortcut,
    ) -> impl Future<Output = Result<Seen<Self::Version>, StoreError>>;

    /// Returns the ledger as this client has read or stored it last, with the time as it should be now; `None` if that
    /// is unknown, as after a request without a reply. Does not contact the store.
    fn recall(&self, _name: &LockName) -> Option<Seen<Self::Version>> {
        None
    }

    /// Returns whether calls of the waiter with this ticket have reached this client since before the last load.
    fn is_subscribed(&self, _name: &LockName, _ticket: u64) -> bool {
        false
    }

    /// Stores a ledger if its version is still this one. Returns whether it was stored.
    ///
    /// # Errors
    /// The store could not be queried, or refused.
    fn swap(
        &mut self,
        name: &LockName,
        version: Self::Version,
        revision: Revision<'_>,
    ) -> impl Future<Output = Result<bool, StoreError>>;

    /// Returns why there are no ledgers, but only gates, and what to do about it: the user may not store any.
    fn lacks_ledgers(&self) -> Option<String> {
        None
    }

    /// Returns whether the gate in front of the ledgers is kept by a session or by a lease; `None` without a gate.
    fn gate_lifetime(&self) -> Option<GateLifetime> {
        None
    }

    /// Returns the identity of the gate that this client has passed for a claim and keeps, as far as it knows.
    fn passed(&self, _claim: &Claim) -> Option<(u64, u64)> {
        None
    }

    /// Returns who is in the gate. For a claim to be renewed or released, finds out whether it keeps the gate; a renewal
    /// extends a gate that has a lease.
    ///
    /// # Errors
    /// The store could not be queried.
    fn observe_gate(
        &mut self,
        _name: &LockName,
        _purpose: &Purpose,
    ) -> impl Future<Output = Result<Vec<Occupant>, StoreError>> {
        async { Ok(Vec::new()) }
    }

    /// Tries to pass the gate, without waiting, and keeps it in the mode of the claim. Returns whether it has passed.
    ///
    /// # Errors
    /// The store could not be queried, or its gate cannot be relied on.
    fn pass_gate(
        &mut self,
        _claim: &Claim,
        _mode: GateMode,
    ) -> impl Future<Output = Result<bool, StoreError>> {
        async { Ok(true) }
    }

    /// Leaves the gate; one that has a lease, after the `rest` of a minimum hold time. Returns whether it was kept until
    /// now.
    ///
    /// # Errors
    /// The store could not be queried.
    fn leave_gate(
        &mut self,
        _claim: &Claim,
        _rest: Duration,
    ) -> impl Future<Output = Result<bool, StoreError>> {
        async { Ok(true) }
    }
}

/// A ledger that was read.
#[derive(Clone, Debug)]
pub struct Seen<V> {
    /// Its value.
    pub ledger: Ledger,
    /// Its version.
    pub version: V,
    /// The time by the store's clock.
    pub now: Now,
}

/// What a store may change in a ledger before it returns it, without a decision, so that an uncontended change takes
/// one step. The store adds its own clock to the times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shortcut {
    /// Nothing.
    None,
    /// If no entry is alive, the entries are replaced with this holder. Its times count from now. It gets the next
    /// [fencing token](Observed::least_fencing_token) and the next ticket, and was acquired now.
    TakeIfIdle(Box<HolderEntry>),
    /// If the holder or waiter with this token is alive, its lease ends after this time from now, whatever else has
    /// changed.
    Touch(String, Duration),
}

/// A ledger that is to be stored.
#[derive(Debug)]
pub struct Revision<'a> {
    /// Its new value.
    pub ledger: &'a Ledger,
    /// What changes for this process. A waiter subscribes to the calls of its ticket before the ledger is stored: it may
    /// be called at once.
    pub effect: Effect,
    /// The tickets of the waiters that are called by this change, and are to be notified of it.
    pub called: Vec<u64>,
    /// The ticket of the waiter behind them, if any are called: it is to be notified that its turn comes within
    /// [`CLAIM_WITHIN`](crate::backend::CLAIM_WITHIN) unless they claim the lock.
    pub next: Option<u64>,
}

/// Entries with leases: the store observes nothing but the time.
impl Observed for Now {
    fn now(&self) -> Now {
        *self
    }
}

/// See [`LedgerStore::change`](super::LedgerStore::change).
///
/// # Errors
/// The store could not be queried, the ledger is in an unknown format, or it is changed too often by others.
pub async fn change<S: DocumentStore, T>(
    store: &mut S,
    name: &LockName,
    purpose: &Purpose,
    decide: impl Fn(&mut Ledger, &dyn Observed) -> Step<T>,
) -> Result<Done<T>, StoreError> {
    let has_gate = store.gate_lifetime().is_some();
    let recalled = store.recall(name);
    let shortcut = match Shortcut::of(purpose, recalled.as_ref(), &decide) {
        // The gate must be passed before the grant is stored.
        Shortcut::TakeIfIdle(_) if has_gate => Shortcut::None,
        shortcut => shortcut,
    };
    let mut facts = None;
    // A release that leaves a gate needs a fresh ledger: other processes may be inside the hold.
    let mut recalled = recalled.filter(|_| matches!(purpose, Purpose::Release(_)) && !has_gate);
    for _ in 0..MAX_CONFLICTS {
        let is_current = recalled.is_none();
        let Seen { ledger: before, version, now } = match recalled.take() {
            Some(seen) => seen,
            None => store.load(name, &shortcut).await?,
        };
        if let Some(why) = store.lacks_ledgers().filter(|_| matches!(purpose, Purpose::Operate)) {
            return Err(StoreError::Config(why));
        }
        let facts = facts.get_or_insert_with(|| Facts::of(store, now));
        facts.observe(store, name, purpose, &before, now).await?;
        let (ledger, value, effect, watch) = loop {
            let mut ledger = facts.ledger(&before);
            match (decide(&mut ledger, facts), purpose) {
                (Step::Done { value, effect, watch }, _) => {
                    if facts.leave(store, purpose, &ledger, effect).await? {
                        break (ledger, value, effect, watch);
                    }
                }
                (Step::PassGate(mode), Purpose::Claim(claim) | Purpose::Renew(claim)) => {
                    facts.pass(store, claim, mode).await?;
                }
                (Step::PassGate(_), _) => unreachable!("only a claim and a hold pass the gate"),
                (Step::Exhausted, _) => return Err(StoreError::Config(format!("{name}: {EXHAUSTED}"))),
            }
        };
        // Foreign programs send no notifications.
        let is_watched = !watch.iter().any(|event| matches!(event, Watch::Gate(_)));
        let done = Done { value, is_watched, fencing: None, lease: None, unwritten: None };
        let is_subscribed = match effect {
            Effect::Wait(ticket) => store.is_subscribed(name, ticket),
            _ => true,
        };
        if ledger == before && is_subscribed {
            match is_current {
                true => return Ok(done),
                false => continue,
            }
        }
        let called = called(&before, &ledger);
        let next = next(&ledger, &called);
        if store.swap(name, version, Revision { ledger: &ledger, effect, called, next }).await? {
            return Ok(done);
        }
    }
    Err(busy_ledger(name))
}

/// Returns when the lease of the entry with this token ends.
fn lease_end(ledger: &Ledger, token: &str) -> Option<Duration> {
    let holder = ledger.holders.iter().find(|holder| holder.token == token).map(|holder| holder.lease_ends);
    let waiter =
        || ledger.waiters.iter().find(|waiter| waiter.token == token).map(|waiter| waiter.lease_ends);
    holder.or_else(waiter).flatten()
}

/// Returns the waiter behind the last one that is called.
pub fn next(ledger: &Ledger, called: &[u64]) -> Option<u64> {
    let last = ledger.waiters.iter().position(|waiter| Some(&waiter.ticket) == called.last())?;
    ledger.waiters.get(last + 1).map(|waiter| waiter.ticket)
}

impl Shortcut {
    /// Returns what can be changed before the decision on a request, if this client has seen the ledger like that.
    pub fn of<V, T>(
        purpose: &Purpose,
        recalled: Option<&Seen<V>>,
        decide: &impl Fn(&mut Ledger, &dyn Observed) -> Step<T>,
    ) -> Shortcut {
        let claim = match purpose {
            Purpose::Claim(claim) | Purpose::Renew(claim) => claim,
            _ => return Shortcut::None,
        };
        let token = claim.token.reveal();
        if let Some(Seen { ledger, now, .. }) = recalled
            && lease_end(ledger, token).is_some()
        {
            let mut after = ledger.clone();
            decide(&mut after, now);
            return match lease_end(&after, token) {
                Some(ends) => Shortcut::Touch(token.to_owned(), ends.saturating_sub(now.clock)),
                None => Shortcut::None,
            };
        }
        if !matches!(purpose, Purpose::Claim(_)) || claim.once_per.is_some() {
            // The last success decides.
            return Shortcut::None;
        }
        let mut taken = Ledger::default();
        decide(&mut taken, &Now { clock: Duration::ZERO, wall: 0 });
        taken.holders.pop().map_or(Shortcut::None, |holder| Shortcut::TakeIfIdle(Box::new(holder)))
    }

    /// Applies the shortcut to a ledger that was read at this time, for stores that cannot apply it themselves.
    pub fn apply(&self, ledger: &mut Ledger, now: Now) {
        let is_alive = |ends: Option<Duration>| ends.is_none_or(|ends| now.clock < ends);
        match self {
            Shortcut::None => {}
            Shortcut::TakeIfIdle(holder) => {
                let is_idle = !ledger.holders.iter().any(|holder| holder.counts(&now))
                    && !ledger.waiters.iter().any(|waiter| waiter.has_owner(&now));
                let fencing = FencingToken::new(now.wall.max(ledger.fencing_token.saturating_add(1)));
                if let Some(fencing) = fencing.filter(|_| is_idle) {
                    ledger.fencing_token = fencing.number();
                    ledger.holders = vec![holder.taken(ledger.next_ticket(now), fencing.number(), now)];
                    ledger.waiters.clear();
                }
            }
            Shortcut::Touch(token, lease) => {
                let ends = Some(now.clock + *lease);
                let holders = ledger.holders.iter_mut().filter(|holder| holder.token == *token);
                holders.filter(|one| is_alive(one.lease_ends)).for_each(|one| one.lease_ends = ends);
                let waiters = ledger.waiters.iter_mut().filter(|waiter| waiter.token == *token);
                waiters.filter(|one| is_alive(one.lease_ends)).for_each(|one| one.lease_ends = ends);
            }
        }
    }
}

impl HolderEntry {
    /// Returns the entry of a [shortcut](Shortcut::TakeIfIdle) with its ticket and its fencing token, taken at this
    /// time.
    pub fn taken(&self, ticket: u64, fencing_token: u64, now: Now) -> HolderEntry {
        HolderEntry {
            ticket,
            family: ticket,
            fencing_token,
            acquired_at: now.wall,
            kept_until: self.kept_until.map(|rest| now.clock + rest),
            lease_ends: self.lease_ends.map(|lease| now.clock + lease),
            ..self.clone()
        }
    }
}

/// The ledger is changed too often by others.
pub(super) fn busy_ledger(name: &LockName) -> StoreError {
    let reason = format!("{name}: too many other clients change the record of this lock at the same time");
    StoreError::Unavailable { reason, maybe_applied: false, outlook: Outlook::Transient }
}

/// See [`LedgerStore::read`](super::LedgerStore::read).
///
/// # Errors
/// The store could not be queried.
pub async fn read<S: DocumentStore>(
    store: &mut S,
    names: &[LockName],
    view: impl Fn(&LockName, &Ledger, &dyn Observed) -> LockState,
) -> Result<(u64, Vec<LockState>), StoreError> {
    states(names, view, async |name| {
        let Seen { ledger, now, .. } = store.load(name, &Shortcut::None).await?;
        let mut facts = Facts::of(store, now);
        facts.observe(store, name, &Purpose::Operate, &ledger, now).await?;
        Ok((ledger, facts))
    })
    .await
}

/// Returns the time of the last inspection in ms since 1970, and what `view` makes of each ledger.
pub(super) async fn states<O: Observed>(
    names: &[LockName],
    view: impl Fn(&LockName, &Ledger, &dyn Observed) -> LockState,
    mut load: impl AsyncFnMut(&LockName) -> Result<(Ledger, O), StoreError>,
) -> Result<(u64, Vec<LockState>), StoreError> {
    let (mut locks, mut now_ms) = (Vec::new(), 0);
    for name in names {
        locks.push(match load(name).await {
            Ok((ledger, observed)) => {
                now_ms = observed.now().wall / 1000;
                view(name, &ledger, &observed)
            }
            Err(unreadable @ StoreError::Config(_)) => {
                LockState { unknown: Some(unreadable.into()), ..LockState::free(name.clone()) }
            }
            Err(error) => return Err(error),
        });
    }
    Ok((now_ms, locks))
}

/// See [`LedgerStore::history`](super::LedgerStore::history).
///
/// # Errors
/// The store could not be queried, or the ledger is in an unknown format.
pub async fn history<S: DocumentStore>(
    store: &mut S,
    name: &LockName,
) -> Result<Vec<NotedRecord>, StoreError> {
    let seen = store.load(name, &Shortcut::None).await?;
    if let Some(why) = store.lacks_ledgers() {
        return Err(StoreError::Config(why));
    }
    Ok(seen.ledger.outcomes.into_iter().rev().collect())
}

/// Returns the tickets of the waiters that are called in a ledger and were not before.
pub fn called(before: &Ledger, after: &Ledger) -> Vec<u64> {
    let was_called =
        |ticket| before.waiters.iter().any(|waiter| waiter.ticket == ticket && waiter.called.is_some());
    let called = after.waiters.iter().filter(|waiter| waiter.called.is_some() && !was_called(waiter.ticket));
    called.map(|waiter| waiter.ticket).collect()
}

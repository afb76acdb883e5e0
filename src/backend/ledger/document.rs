//! The document shape: a ledger is one value with a version, and its entries live until their leases end.
//!
//! A change is decided on the value that was read, and stored if the version is still that; otherwise another client was
//! faster, and the ledger is read again.

use std::future::Future;

use super::observed::{Now, Observed};
use super::store::{Done, EXHAUSTED, Effect, Step};
use super::value::Ledger;
use crate::backend::{Outlook, StoreError};
use crate::lock::{LockName, LockState, NotedRecord};

/// How often a change is decided anew before it is reported as a transient failure.
pub(super) const MAX_CONFLICTS: usize = 100;

/// A store that swaps a ledger if its version is still the one that was read.
pub trait DocumentStore {
    /// Identifies a value of a ledger, or that there is none.
    type Version;

    /// Reads a ledger, and the time by the store's clock. A ledger that does not exist is empty.
    ///
    /// # Errors
    /// The store could not be queried, or the ledger is in an unknown format ([`StoreError::Config`]).
    fn load(
        &mut self,
        name: &LockName,
    ) -> impl Future<Output = Result<(Ledger, Self::Version, Now), StoreError>>;

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
    decide: impl Fn(&mut Ledger, &dyn Observed) -> Step<T>,
) -> Result<Done<T>, StoreError> {
    for _ in 0..MAX_CONFLICTS {
        let (before, version, now) = store.load(name).await?;
        let mut ledger = before.clone();
        let (value, effect) = match decide(&mut ledger, &now) {
            Step::Done { value, effect, .. } => (value, effect),
            Step::Exhausted => return Err(StoreError::Config(format!("{name}: {EXHAUSTED}"))),
            Step::PassGate(_) => unreachable!("only a store with native locks has a gate"),
        };
        let done = Done { value, is_watched: true, fencing: None, unwritten: None };
        if ledger == before && !matches!(effect, Effect::Wait(_)) {
            return Ok(done);
        }
        let revision = Revision { ledger: &ledger, effect, called: called(&before, &ledger) };
        if store.swap(name, version, revision).await? {
            return Ok(done);
        }
    }
    Err(busy_ledger(name))
}

/// The ledger is changed too often by others.
pub(super) fn busy_ledger(name: &LockName) -> StoreError {
    let reason = format!("{name}: other clients change its ledger all the time");
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
    states(names, view, async |name| store.load(name).await.map(|(ledger, _, now)| (ledger, now))).await
}

/// Returns the time of the last inspection in ms since 1970, and what `view` makes of each ledger.
pub(super) async fn states(
    names: &[LockName],
    view: impl Fn(&LockName, &Ledger, &dyn Observed) -> LockState,
    mut load: impl AsyncFnMut(&LockName) -> Result<(Ledger, Now), StoreError>,
) -> Result<(u64, Vec<LockState>), StoreError> {
    let (mut locks, mut now_ms) = (Vec::new(), 0);
    for name in names {
        locks.push(match load(name).await {
            Ok((ledger, now)) => {
                now_ms = now.wall / 1000;
                view(name, &ledger, &now)
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
    let (ledger, ..) = store.load(name).await?;
    Ok(ledger.outcomes.into_iter().rev().collect())
}

/// Returns the tickets of the waiters that are called in a ledger and were not before.
pub fn called(before: &Ledger, after: &Ledger) -> Vec<u64> {
    let was_called =
        |ticket| before.waiters.iter().any(|waiter| waiter.ticket == ticket && waiter.called.is_some());
    let called = after.waiters.iter().filter(|waiter| waiter.called.is_some() && !was_called(waiter.ticket));
    called.map(|waiter| waiter.ticket).collect()
}

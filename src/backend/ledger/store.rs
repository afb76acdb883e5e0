//! What a store of ledgers provides.

use std::future::Future;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::observed::{GateMode, Observed};
use super::value::Ledger;
use crate::backend::admin::Removal;
use crate::backend::diagnosis::Diagnosis;
use crate::backend::{Change, Hazard, Reply, StoreError};
use crate::lock::{Claim, FencingToken, Holder, LockName, LockState, NotedRecord};

/// What a change of a ledger is for.
#[derive(Clone, Debug)]
pub enum Purpose {
    /// To acquire the lock.
    Claim(Claim),
    /// To keep it.
    Renew(Claim),
    /// To give up the lock or the queue position.
    Release(Claim),
    /// To end the hold of another client. A ledger that does not exist is not created.
    Operate,
    /// To change the ledger of a lock that nobody holds. A ledger that does not exist is created.
    Prepare,
    /// To add an outcome. Nothing else of the ledger is read or changed.
    Record,
}

impl Purpose {
    /// Returns the claim that it is for.
    pub fn claim(&self) -> Option<&Claim> {
        match self {
            Purpose::Claim(claim) | Purpose::Renew(claim) | Purpose::Release(claim) => Some(claim),
            Purpose::Operate | Purpose::Prepare | Purpose::Record => None,
        }
    }
}

/// Why there is no [next fencing token](Step::Exhausted).
pub const EXHAUSTED: &str = "its fencing counter is exhausted (2^53)";

/// A decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<T> {
    /// The gate has to be passed first; then decide again, on the same ledger as before.
    PassGate(GateMode),
    /// The changed ledger is to be stored.
    Done {
        /// The reply.
        value: T,
        /// What changes for this process.
        effect: Effect,
        /// What to notify this process of. Whatever happened in the meantime counts.
        watch: Vec<Watch>,
    },
    /// The fencing counter has no next value.
    Exhausted,
}

impl<T> Step<T> {
    /// Creates a decision that changes nothing for this process.
    pub(super) fn reply(value: T) -> Step<T> {
        Step::Done { value, effect: Effect::None, watch: Vec::new() }
    }
}

/// What a decision changes for the process that made it. A store whose entries live as long as their owner marks them
/// as alive before it stores the ledger, and takes a mark away after that: others must never read of a holder or waiter
/// that seems to be dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// It holds the lock, by the holder's entry with this ticket, and keeps the gate. It waits no longer.
    Hold(u64),
    /// It waits, by the waiter's entry with this ticket.
    Wait(u64),
    /// It waits no longer.
    Leave,
    /// It holds the lock no longer, and waits no longer. The gate is opened before others can read the ledger.
    Free,
}

/// An event that a process waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// The holder with this ticket has gone.
    Holder(u64),
    /// The waiter with this ticket has gone, or holds the lock.
    Waiter(u64),
    /// The waiter with this ticket has gone, and so has the hold that it was granted.
    Entry(u64),
    /// The foreign program has left the gate. The store may pass it at once.
    Gate(GateMode),
}

/// The result of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done<T> {
    /// The reply.
    pub value: T,
    /// Whether this process will be notified of everything that it has to watch.
    pub is_watched: bool,
    /// The fencing token of the grant, if the store assigns it by the order of its writes.
    pub fencing: Option<FencingToken>,
    /// The length of the lease of a grant, if only its write has shown it.
    pub lease: Option<Duration>,
    /// Why the ledger could not be stored, if the change is valid all the same.
    pub unwritten: Option<String>,
}

/// A store that keeps ledgers. It decides nothing.
pub trait LedgerStore {
    /// See [`Backend::display`](crate::backend::Backend::display).
    fn display(&self) -> &str;

    /// See [`Backend::connect`](crate::backend::Backend::connect).
    fn connect(&mut self) -> Reply<'_, Result<(), StoreError>>;

    /// Changes the ledger of a lock in one atomic step: reads it, lets `decide` change it, carries out the effect and
    /// stores it. `decide` may be called several times, each time with the ledger as read. If nothing changed, nothing
    /// is written. The outcome of a release is stored if possible; a failure to store it is not an error.
    ///
    /// # Errors
    /// The store could not be queried, or the ledger is in an unknown format: then it is not written.
    fn change<T: Send + 'static>(
        &mut self,
        name: &LockName,
        purpose: Purpose,
        decide: impl Fn(&mut Ledger, &dyn Observed) -> Step<T> + Send + 'static,
    ) -> impl Future<Output = Result<Done<T>, StoreError>>;

    /// Reads the ledgers of these locks, one after the other, and returns the time of the inspection in ms since 1970
    /// with what `view` makes of each. A ledger that does not exist is empty.
    ///
    /// # Errors
    /// The store could not be queried; an error of one lock is part of its [`LockState`].
    fn read(
        &mut self,
        names: &[LockName],
        view: impl Fn(&LockName, &Ledger, &dyn Observed) -> LockState + Send + 'static,
    ) -> impl Future<Output = Result<(u64, Vec<LockState>), StoreError>>;

    /// See [`LockAdmin::list`](crate::backend::admin::LockAdmin::list).
    fn list(&mut self) -> Reply<'_, Result<Vec<LockName>, StoreError>>;

    /// See [`LockAdmin::list_recorded`](crate::backend::admin::LockAdmin::list_recorded).
    fn list_recorded(&mut self) -> Reply<'_, Result<Vec<LockName>, StoreError>>;

    /// Returns the last outcomes, the latest first.
    ///
    /// # Errors
    /// The store could not be queried.
    fn history<'a>(&'a mut self, name: &'a LockName) -> Reply<'a, Result<Vec<NotedRecord>, StoreError>>;

    /// See [`Backend::changed`](crate::backend::Backend::changed).
    fn changed(&mut self) -> Reply<'_, Change>;

    /// See [`LockAdmin::examine`](crate::backend::admin::LockAdmin::examine).
    fn examine<'a>(&'a mut self, examination: &'a Diagnosis) -> Reply<'a, Result<(), StoreError>>;

    /// Ends the hold of a foreign program if it is still the one that was shown, where the store knows it by its lease.
    ///
    /// # Errors
    /// The store could not be queried, or the user may not.
    fn end_foreign<'a>(
        &'a mut self,
        _name: &'a LockName,
        _shown: &'a Holder,
    ) -> Reply<'a, Result<Removal, StoreError>> {
        Box::pin(async { Ok(Removal::Impossible) })
    }

    /// See [`LockAdmin::init`](crate::backend::admin::LockAdmin::init).
    fn init(&mut self) -> Reply<'_, Result<(), StoreError>> {
        Box::pin(async { Ok(()) })
    }

    /// Returns whether others can see the ledgers; otherwise grants have no fencing token, and there is no queue.
    fn shares_ledgers(&self) -> bool {
        true
    }

    /// See [`Backend::hazard`](crate::backend::Backend::hazard).
    fn hazard(&self) -> Option<Hazard> {
        None
    }

    /// See [`Backend::fails_over`](crate::backend::Backend::fails_over).
    fn fails_over(&self) -> bool {
        false
    }

    /// See [`Backend::kept_descriptors`](crate::backend::Backend::kept_descriptors).
    fn kept_descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
}

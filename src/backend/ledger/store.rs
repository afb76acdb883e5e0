//! What a store of ledgers provides.

use std::any::Any;
use std::future::Future;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::observed::{GateMode, Observed};
use super::value::Ledger;
use crate::backend::admin::{Listed, Removal};
use crate::backend::diagnosis::Diagnosis;
use crate::backend::{Change, Hazard, Reply, StoreError, TryReply};
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
    /// To change the ledger of a lock besides its entries. A ledger that does not exist is created.
    Prepare,
    /// To read the history, or to add a record to it. Nothing else of the ledger is read or changed.
    History,
}

impl Purpose {
    /// Returns the claim that it is for.
    pub fn claim(&self) -> Option<&Claim> {
        match self {
            Purpose::Claim(claim) | Purpose::Renew(claim) | Purpose::Release(claim) => Some(claim),
            Purpose::Operate | Purpose::Prepare | Purpose::History => None,
        }
    }

    /// Returns whether it is for the claim with this token.
    pub fn is_of(&self, token: &str) -> bool {
        self.claim().is_some_and(|claim| claim.token.reveal() == token)
    }
}

/// Why there is no [next fencing token](Decision::Exhausted).
pub const EXHAUSTED: &str = "its fencing counter is exhausted (2^53)";

/// A decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision<T> {
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

/// The reply of a decision, of a type that only the caller of a driver knows: a driver is compiled once for each store, and
/// not for each type of reply as well.
pub type AnyReply = Box<dyn Any + Send>;

/// How a ledger is decided on.
pub type Decide = Box<dyn Fn(&mut Ledger, &dyn Observed) -> Decision<AnyReply> + Send>;

impl<T> Decision<T> {
    /// Creates a decision that changes nothing for this process.
    pub(super) fn reply(value: T) -> Decision<T> {
        Decision::Done { value, effect: Effect::None, watch: Vec::new() }
    }

    /// Returns the decision with a reply of any type.
    pub(super) fn boxed(self) -> Decision<AnyReply>
    where
        T: Send + 'static,
    {
        match self {
            Decision::PassGate(mode) => Decision::PassGate(mode),
            Decision::Done { value, effect, watch } => {
                Decision::Done { value: Box::new(value), effect, watch }
            }
            Decision::Exhausted => Decision::Exhausted,
        }
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
    /// The freeze has ended.
    Freeze,
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

impl<T> Done<T> {
    /// Creates the result of a change that has nothing but a reply; all that it has to watch is watched.
    pub(super) fn of(value: T) -> Done<T> {
        Done { value, is_watched: true, fencing: None, lease: None, unwritten: None }
    }

    /// Returns the result with another reply.
    pub(super) fn map<U>(self, reply: impl FnOnce(T) -> U) -> Done<U> {
        let Done { value, is_watched, fencing, lease, unwritten } = self;
        Done { value: reply(value), is_watched, fencing, lease, unwritten }
    }
}

/// How a store keeps ledgers: one driver for all stores of a shape, with what it remembers of one client's ledgers.
pub trait Shape<S>: Default {
    /// Changes the ledger of a lock in one atomic step: reads it, lets `decide` change it, carries out the effect and
    /// stores it. `decide` may be called several times, each time with the ledger as read. If nothing changed, nothing
    /// is written. The record of a release is stored if possible; a failure to store it is not an error.
    ///
    /// # Errors
    /// The store could not be queried, or the ledger is in an unknown format: then it is not written.
    fn change(
        &mut self,
        store: &mut S,
        name: &LockName,
        purpose: Purpose,
        decide: Decide,
    ) -> impl Future<Output = Result<Done<AnyReply>, StoreError>>;

    /// Reads the ledgers of these locks, one after the other, and returns the time of the inspection in ms since 1970
    /// with what `view` makes of each. A ledger that does not exist is empty.
    ///
    /// # Errors
    /// The store could not be queried; an error of one lock is part of its [`LockState`].
    fn read(
        &mut self,
        store: &mut S,
        names: &[LockName],
        view: impl Fn(&LockName, &Ledger, &dyn Observed) -> LockState + Send + 'static,
    ) -> impl Future<Output = Result<(u64, Vec<LockState>), StoreError>>;

    /// Returns the history, the latest record first.
    ///
    /// # Errors
    /// The store could not be queried, or the ledger is in an unknown format.
    fn history(
        &mut self,
        store: &mut S,
        name: &LockName,
    ) -> impl Future<Output = Result<Vec<NotedRecord>, StoreError>>;
}

/// A client of a store that keeps ledgers. It decides nothing.
pub trait Store: Sized {
    /// How it keeps them.
    type Shape: Shape<Self>;

    /// See [`Backend::connect`](crate::backend::Backend::connect).
    fn connect(&mut self) -> TryReply<'_, ()>;

    /// See [`LockAdmin::list`](crate::backend::admin::LockAdmin::list).
    fn list(&mut self, which: Listed) -> TryReply<'_, Vec<LockName>>;

    /// See [`Backend::changed`](crate::backend::Backend::changed).
    fn changed(&mut self) -> Reply<'_, Change>;

    /// See [`Backend::explained`](crate::backend::Backend::explained).
    fn explained(&self, late: StoreError) -> StoreError {
        late
    }

    /// See [`LockAdmin::examine`](crate::backend::admin::LockAdmin::examine).
    fn examine<'a>(&'a mut self, examination: &'a Diagnosis) -> TryReply<'a, ()>;

    /// Ends the hold of a foreign program if it is still the one that was shown, where the store knows it by its lease.
    ///
    /// # Errors
    /// The store could not be queried, or the user may not.
    fn end_foreign<'a>(&'a mut self, _name: &'a LockName, _shown: &'a Holder) -> TryReply<'a, Removal> {
        Box::pin(async { Ok(Removal::Impossible) })
    }

    /// Returns whether others can see the ledgers; otherwise grants have no fencing token, and there is no queue.
    fn shares_ledgers(&self) -> bool {
        true
    }

    /// See [`LockAdmin::unfrozen`](crate::backend::admin::LockAdmin::unfrozen).
    fn unfrozen(&self) -> Option<&str> {
        None
    }

    /// Returns whether the fencing tokens of grants always grow; otherwise they only identify holds, and are not shown.
    fn has_fencing_tokens(&self) -> bool {
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

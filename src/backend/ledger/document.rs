//! The document shape: a ledger is one value with a version, and its entries live until their leases end.
//!
//! A change is decided on the value that was read, and stored if the version is still that; otherwise another client was
//! faster, and the ledger is read again.
//!
//! Used by stores that can swap a value if its version is still the one that was read. What always holds: nothing is
//! stored that was not decided on the very value that it replaces.

mod driver;
mod gate;
mod identity;
pub mod leased_gate;
mod shortcut;

use std::future::Future;
use std::time::Duration;

pub use self::driver::{Documents, called, next};
pub use self::gate::Occupant;
pub use self::identity::digest;
pub use self::shortcut::Shortcut;
use super::observed::{GateLifetime, GateMode, Now, Observed};
use super::store::{Effect, Purpose};
use super::value::{Ledger, WaiterEntry};
use crate::backend::StoreError;
use crate::clock::Moment;
use crate::lock::{Claim, LockName};

/// A store that swaps a ledger if its version is still the one that was read.
pub trait DocumentStore {
    /// The version of a ledger; one of them stands for a ledger that does not exist. A version is never used again, not
    /// even after the ledger was deleted and created anew.
    type Version;

    /// Reads a ledger after the shortcut, which the store takes in the same step if it applies. A ledger that does not
    /// exist is empty. A store without shortcuts only reads. `known` is the ledger that this client has read or stored last,
    /// as it should be now.
    ///
    /// # Errors
    /// The store could not be queried, or the ledger is in an unknown format ([`StoreError::Config`]).
    fn load(
        &mut self,
        name: &LockName,
        purpose: &Purpose,
        shortcut: &Shortcut,
        known: Option<&Seen<Self::Version>>,
    ) -> impl Future<Output = Result<Seen<Self::Version>, StoreError>>;

    /// Returns whether calls of this waiter have reached this client since before the last load.
    fn is_subscribed(&self, _name: &LockName, _waiter: &WaiterEntry) -> bool {
        false
    }

    /// Returns whether this client is notified of what it watches, as far as the store can do that.
    fn is_notified(&self) -> bool {
        true
    }

    /// Returns whether this client is notified when the foreign program that is in the gate leaves it.
    fn is_gate_watched(&self) -> bool {
        false
    }

    /// Stores a ledger if its version is still this one. Returns the version that it has now; `None` if it was not stored.
    ///
    /// # Errors
    /// The store could not be queried, or refused.
    fn swap(
        &mut self,
        name: &LockName,
        purpose: &Purpose,
        version: Self::Version,
        revision: Revision<'_>,
    ) -> impl Future<Output = Result<Option<Self::Version>, StoreError>>;

    /// Returns the time of the store in the last reply, if that is how the store shows its time, and writes the ends of leases as
    /// they were decided: this host may have stood still between the reading that they count from and the write.
    fn shown(&self) -> Option<Duration> {
        None
    }

    /// Returns how much earlier than the true time the store's clock may show. A store adds this to the ends of what a
    /// shortcut stores.
    fn clock_lag(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns how long the first waiter has to claim a free lock, if the waiters of this store look at the ledger only now
    /// and then, and write it only to join or leave: the entry of one that has died stays until its turn has passed.
    fn polled(&self) -> Option<Duration> {
        None
    }

    /// Returns whether what was read last is the lock of a foreign program in the place of a ledger, so that no waiter can be
    /// added.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Returns why there are no ledgers, but only gates, and what to do about it: the user may not store any.
    fn lacks_ledgers(&self) -> Option<String> {
        None
    }

    /// Returns whether the gate in front of the ledgers is kept by a session or by a lease; `None` without a gate.
    fn gate_lifetime(&self) -> Option<GateLifetime> {
        None
    }

    /// Returns the identity of the gate that this client has passed for the claim of a request and keeps, as far as it
    /// knows.
    fn passed(&self, _purpose: &Purpose) -> Option<(u64, u64)> {
        None
    }

    /// Returns whether what has passed the gate for the claim of a request, such as a session, is known to have ended.
    fn has_lost_gate(&self, _purpose: &Purpose) -> bool {
        false
    }

    /// Returns who is in the gate of this ledger, unless that was read together with it. For a claim to be renewed or released,
    /// finds out whether it keeps the gate; a renewal extends a gate that has a lease.
    ///
    /// # Errors
    /// The store could not be queried.
    fn observe_gate(
        &mut self,
        _name: &LockName,
        _purpose: &Purpose,
        _ledger: &Ledger,
    ) -> impl Future<Output = Result<Vec<Occupant>, StoreError>> {
        async { Ok(Vec::new()) }
    }

    /// Tries to pass the gate, without waiting, and keeps it in the mode of the claim. Returns whether it has passed.
    ///
    /// # Errors
    /// The store could not be queried, or its gate cannot be relied on.
    fn pass_gate(
        &mut self,
        _purpose: &Purpose,
        _claim: &Claim,
        _mode: GateMode,
    ) -> impl Future<Output = Result<bool, StoreError>> {
        async { Ok(true) }
    }

    /// Returns whether the gate is passed and left in the step that stores the ledger, so that neither is done without the
    /// other.
    fn swaps_gate(&self) -> bool {
        false
    }

    /// Leaves the gate; one that has a lease, after the `rest` of a minimum hold time. Returns whether it was kept until
    /// now.
    ///
    /// # Errors
    /// The store could not be queried.
    fn leave_gate(
        &mut self,
        _purpose: &Purpose,
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
    /// When the request was sent that has read it.
    pub sent: Moment,
    /// Who is in the gate, if that was read in the same step.
    pub occupants: Option<Vec<Occupant>>,
}

/// A ledger that is to be stored.
#[derive(Debug)]
pub struct Revision<'a> {
    /// The value that it replaces.
    pub before: &'a Ledger,
    /// Its new value.
    pub ledger: &'a Ledger,
    /// The time by the store's clock, as far as it is known here.
    pub now: Now,
    /// What changes for this process. A waiter subscribes to the calls of its ticket before the ledger is stored: it may
    /// be called at once.
    pub effect: Effect,
    /// The tickets of the waiters to notify: those that this change calls, the first waiter if the hold that it
    /// waits for ends sooner than before, and waiters that a later one supersedes now.
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

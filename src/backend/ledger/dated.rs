//! Stores that swap values by their versions over HTTP, and whose clock is that of their replies (`Date`): a client says how
//! a value is read and written, and [`DatedStore`] turns it into a store of ledgers.
//!
//! Used by S3, DynamoDB and Kubernetes. What always holds: every write has the number of an attempt of its own, by which its author
//! recognises it if its reply was lost.

pub mod doctor;
mod driver;

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use tokio::time::sleep;

pub use self::driver::{DatedStore, check_count};
use super::document::Occupant;
use super::document::leased_gate::{Identity, LeasedGate};
use super::observed::Now;
use super::polling::Shown;
use super::store::Purpose;
use super::value::{HolderEntry, Ledger};
use crate::backend::StoreError;
use crate::backend::admin::Removal;
use crate::backend::diagnosis::Diagnosis;
use crate::clock::Moment;
use crate::lock::{Claim, Holder, LockName};

/// A client of such a store: its requests, and what the replies say.
pub trait Dated: Sized {
    /// The version of a value. It is never used again.
    type Version: Clone + PartialEq;

    /// The locks of another program in front of the ledgers; [`Infallible`] without any.
    type Gate: LeasedGate<Self>;

    /// No waiter is added to a ledger beyond this length.
    const LONGEST: usize;

    /// The store can write a holder of an idle lock without reading its ledger, see [`take`](Dated::take).
    const TAKES: bool = false;

    /// A renewal writes the ledger as this client has seen it last, without reading it before.
    const TOUCHES: bool = false;

    /// Foreign programs hold the values themselves, and call no waiter.
    const IS_SHARED: bool = false;

    /// See [`Backend::connect`](crate::backend::Backend::connect). If it [takes](Dated::TAKES) idle locks, the
    /// store's clock is known then.
    fn connect(&mut self) -> impl Future<Output = Result<(), StoreError>>;

    /// Returns what the store's clock has shown last.
    fn clock(&self) -> Option<Shown>;

    /// Returns the store's time now, as far as it is known; zero before the first reply.
    fn time(&self) -> Duration {
        self.clock().map(|clock| clock.time()).unwrap_or_default()
    }

    /// Returns the key of a lock.
    fn key(&self, name: &LockName) -> String;

    /// Returns whether the key of a lock contains its name; otherwise the ledger has it.
    fn contains_name(&self, _name: &LockName) -> bool {
        true
    }

    /// Returns what is at a key, in words.
    fn described(&self, key: &str) -> String;

    /// Reads a value.
    ///
    /// # Errors
    /// The store cannot be reached, refuses, or does not reply as such a store does.
    fn read(&mut self, key: &str) -> impl Future<Output = Result<Reading<Self::Version>, StoreError>>;

    /// Writes a value if it is still of the version that the change expects.
    ///
    /// # Errors
    /// The store cannot be reached or does not reply, so that the value may be written; or it refuses.
    fn write(
        &mut self,
        key: &str,
        change: &Change<'_, Self::Version>,
    ) -> impl Future<Output = Result<Written<Self::Version>, StoreError>>;

    /// Writes a holder, whose times count from now, if its lock is idle or has no value.
    ///
    /// # Errors
    /// As of [`write`](Dated::write).
    fn take(
        &mut self,
        _key: &str,
        _holder: &HolderEntry,
        _now: Now,
        _attempt: &str,
    ) -> impl Future<Output = Result<Written<Self::Version>, StoreError>> {
        async { Ok(Written::Refused(None)) }
    }

    /// Refreshes credentials that end soon or within a lease of this length. Called while a lock is held or awaited and no request
    /// has failed. May be dropped.
    fn refresh(&mut self, _lease: Duration) -> impl Future<Output = ()> {
        async {}
    }

    /// Visits all locks: the name of each, if its key contains it, and its ledger, if that can be read.
    ///
    /// # Errors
    /// As of [`read`](Dated::read).
    fn visit(
        &mut self,
        visit: impl FnMut(Option<LockName>, Option<Ledger>),
    ) -> impl Future<Output = Result<(), StoreError>>;

    /// A waiter is to notice from now on what happens to a value after this version.
    fn follow(&mut self, _key: &str, _version: Option<&Self::Version>) {}

    /// No waiter follows a value any more.
    fn unfollow(&mut self) {}

    /// Waits for a change of the value that a waiter has seen at this version, and follows: reads it after this pause, in a
    /// store that sends no notifications. May be dropped and called again.
    ///
    /// # Errors
    /// As of [`read`](Dated::read).
    fn next(
        &mut self,
        key: &str,
        pause: Duration,
        _seen: Option<&Self::Version>,
    ) -> impl Future<Output = Result<Noticed<Self::Version>, StoreError>> {
        async move {
            sleep(pause).await;
            Ok(Noticed::Changed(Box::new(self.read(key).await?)))
        }
    }

    /// See [`Backend::explained`](crate::backend::Backend::explained).
    fn explained(&self, late: StoreError) -> StoreError {
        late
    }

    /// See [`LockAdmin::examine`](crate::backend::admin::LockAdmin::examine).
    fn examine(&mut self, diagnosis: &Diagnosis) -> impl Future<Output = Result<(), StoreError>>;
}

/// A value as it is stored.
#[derive(Debug)]
pub struct Found<V> {
    /// Its version; `None` for a missing value, or one without a version.
    pub version: Option<V>,
    /// Its ledger, or why the value is not a lock. The ledger of a missing value is empty.
    pub ledger: Result<Ledger, String>,
    /// The length of the ledger, as it is stored.
    pub length: usize,
    /// The number of the attempt that has written it.
    pub attempt: Option<String>,
}

impl<V> Found<V> {
    /// Returns what is found where no value is stored.
    pub fn nothing() -> Found<V> {
        Found { version: None, ledger: Ok(Ledger::default()), length: 0, attempt: None }
    }

    /// Returns whether the value was written by this attempt.
    pub fn is_of(&self, attempt: &str) -> bool {
        self.attempt.as_deref() == Some(attempt)
    }
}

/// A value as it was read.
#[derive(Debug)]
pub struct Reading<V> {
    /// What was found.
    pub found: Found<V>,
    /// The store's time, as far as it is known, since 1970.
    pub time: Duration,
    /// When the request was sent.
    pub sent: Moment,
}

/// What a value is to become.
#[derive(Debug)]
pub struct Change<'a, V> {
    /// The version that is expected; `None` stands for no value.
    pub version: Option<&'a V>,
    /// The ledger that it has.
    pub before: &'a Ledger,
    /// The new one.
    pub ledger: &'a Ledger,
    /// The store's time, as far as it is known here: what is counted in this change counts from then. It may be ahead by as much
    /// as a request has taken.
    pub now: Now,
    /// Identifies the attempt to write it.
    pub attempt: &'a str,
}

/// What a waiter has noticed.
#[derive(Debug)]
pub enum Noticed<V> {
    /// Nothing.
    Unchanged,
    /// The value is like this, perhaps as it was.
    Changed(Box<Reading<V>>),
    /// The value may have changed, and is to be read.
    Unknown,
}

/// How a conditional write has ended.
#[derive(Debug)]
pub enum Written<V> {
    /// The value is as it was written.
    Stored(Found<V>),
    /// It is not known to be stored: the value was not as expected, or the reply does not say. This is how it was, if the
    /// store says so; perhaps this very write has changed it.
    Refused(Option<Reading<V>>),
}

/// No lock of another program.
impl<C> LeasedGate<C> for Infallible {
    async fn occupant(
        &mut self,
        _: &mut C,
        _: &LockName,
        _: &Purpose,
    ) -> Result<Option<Occupant>, StoreError> {
        match *self {}
    }

    async fn extend(
        &mut self,
        _: &mut C,
        _: &LockName,
        _: Identity,
        _: Duration,
        _: Duration,
    ) -> Result<bool, StoreError> {
        match *self {}
    }

    async fn end(&mut self, _: &mut C, _: &LockName, _: Identity, _: Duration) -> Result<bool, StoreError> {
        match *self {}
    }

    async fn take(&mut self, _: &mut C, _: &Purpose, _: &Claim, _: &[Identity]) -> Result<bool, StoreError> {
        match *self {}
    }

    async fn end_shown(&mut self, _: &mut C, _: &LockName, _: &Holder) -> Result<Removal, StoreError> {
        match *self {}
    }
}

/// Returns whether a foreign program holds the lock, unless its lease has ended.
pub fn has_foreign_holder(ledger: &Ledger) -> bool {
    ledger.holders.iter().any(|holder| holder.identity().is_none())
}

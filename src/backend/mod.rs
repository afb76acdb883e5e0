//! What a store of locks is to dlock: try, renew, release, and word of a change. Everything that stores have in common
//! (waiting, deadlines, retries, supervision) is done once, above this trait.

pub mod admin;
pub mod diagnosis;
pub mod file;
pub mod locator;
#[cfg(feature = "redis")]
pub mod redis;
pub mod thread;
pub mod url;

use std::future::Future;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::time::Duration;

use crate::lock::{Claim, Grant, Holder, LockName, Mode, Record, Revocation};

/// What the methods of a [`Backend`] return, so that the trait can be an object.
pub type Reply<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A store of locks.
///
/// A backend never sleeps, retries, prints, or sees a clock other than the store's. Each method may be dropped halfway:
/// the request may then have been carried out or not, the connection is given up, and the next call makes a new one.
pub trait Backend {
    /// Where the locks live, without secrets, as messages and `DLOCK_HELD` name it.
    fn display(&self) -> &str;

    /// Makes the store ready to be asked, if it is not: the connection, and nothing that could be mistaken for a
    /// request of ours. Validity is counted from after this.
    ///
    /// # Errors
    /// The store cannot be reached.
    fn connect(&mut self) -> Reply<'_, Result<(), StoreError>>;

    /// Asks for the lock once. A claim whose token holds the lock already (the reply to an earlier attempt was lost) is
    /// granted again with the full lease. With [`Intent::WaitInLine`] a claim that is not granted has its place in the
    /// line afterwards, until it is granted, [released](Backend::release), or was not heard of for about a lease.
    ///
    /// The line is first come, first served, in the order of numbers that the store gives. Whoever's turn it is has
    /// [`CLAIM_WITHIN`] to ask; then the next one's turn comes.
    ///
    /// # Errors
    /// The store could not be asked, or refused. After [`StoreError::Unavailable`] with `maybe_applied` the lock, or a
    /// place in the line, may be ours: ask again or release.
    fn try_acquire<'a>(
        &'a mut self,
        claim: &'a Claim,
        intent: Intent,
    ) -> Reply<'a, Result<Attempt, StoreError>>;

    /// Extends the lease to its full length from now, or to `rest` (what is left of the least time that the lock is to
    /// be kept) if that is longer, if the claim's token still holds the lock. Never creates it anew.
    ///
    /// # Errors
    /// The store could not be asked: the answer is unknown, which is not loss.
    fn renew<'a>(&'a mut self, claim: &'a Claim, rest: Duration) -> Reply<'a, Result<Renewal, StoreError>>;

    /// Gives up what the claim has: the lock, or its place in the line; otherwise changes nothing. May be repeated. If
    /// `rest` is not zero the lock is kept for so long without us. Whoever's turn it is then is told. A `record` is kept in
    /// the lock's history, as well as that can be done.
    ///
    /// # Errors
    /// The store could not be asked; the lease will end by itself.
    fn release<'a>(
        &'a mut self,
        claim: &'a Claim,
        rest: Duration,
        record: Option<&'a Record>,
    ) -> Reply<'a, Result<Release, StoreError>>;

    /// Keeps a record of a run that has not begun, or has lost its lock, in the lock's history.
    ///
    /// # Errors
    /// The store could not be asked, or keeps no history.
    fn record<'a>(&'a mut self, name: &'a LockName, record: &'a Record) -> Reply<'a, Result<(), StoreError>>;

    /// What the store has told of itself that endangers locks.
    fn hazard(&self) -> Option<Hazard> {
        None
    }

    /// Resolves when the store tells something about the lock that we hold or wait for. Never resolves where the store
    /// cannot tell.
    fn changed(&mut self) -> Reply<'_, Change>;

    /// Whether another server may take over from one that has failed, so that asking again soon may help.
    fn fails_over(&self) -> bool {
        false
    }

    /// Descriptors whose closing frees the lock; the guarding process keeps duplicates.
    fn kept_descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
}

/// How long one whose turn it is has to ask for the lock, before the next one's turn comes.
pub const CLAIM_WITHIN: Duration = Duration::from_millis(500);

/// What to do about a lock that cannot be had at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Nothing: take it now, past nobody who waits.
    TakeNow,
    /// Wait in line.
    WaitInLine,
}

/// The answer to [`Backend::try_acquire`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// The lock is ours.
    Granted(Grant),
    /// It is not, for now.
    Busy(Busy),
    /// It cannot be, as things are; nothing is left of the claim.
    Refused(Refusal),
}

/// Why a lock cannot be had for now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Busy {
    /// Who holds it, the first few of them; none when it is free but others come first.
    pub holders: Vec<Holder>,
    /// How many hold it besides those.
    pub more: usize,
    /// Our place in the line, from 1.
    pub position: Option<u32>,
    /// It is free, and it is somebody else's turn: a question later on will be granted, or find a holder.
    pub promised: bool,
    /// When to ask again, even if the store tells nothing.
    pub again: Again,
}

/// When to ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// At the latest after so long; the store tells when it is sooner.
    Within(Duration),
    /// Every now and then: the store cannot tell.
    Poll,
}

/// Why a claim cannot be granted as things are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Those who use the lock have agreed on another number of slots.
    Slots(u32),
    /// We run inside a hold of this lock whose mode does not allow ours.
    Inside(Mode),
    /// We run inside a hold of this lock that its owner, which lives, has lost.
    OuterLost,
}

/// What the store tells unasked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is our turn.
    OurTurn,
    /// It will be our turn soon: ask within this time, unless we are called before.
    Soon(Duration),
    /// Somebody has touched the lock.
    Touched,
    /// The connection is gone.
    Disconnected,
}

/// The answer to [`Backend::renew`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// Still ours.
    Held {
        /// For so long from the moment the request was sent; `None` where there is no lease.
        lease: Option<Duration>,
        /// Somebody wants us to give it up.
        revoked: Option<Revocation>,
    },
    /// Not ours any more.
    Lost(Loss),
}

impl Renewal {
    /// The same answer of a server that has taken over from the one that knew of the lock before.
    pub fn after_fail_over(self) -> Renewal {
        match self {
            Renewal::Lost(Loss::Gone) => Renewal::Lost(Loss::FailedOver),
            other => other,
        }
    }
}

/// How a lock was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// It is gone from the store and free: nobody else need be running yet.
    Gone,
    /// The store has failed over to a server that does not have it, and there it is free.
    FailedOver,
    /// Somebody else holds it and may be running already.
    Taken,
}

/// The answer to [`Backend::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// It was ours and is not any more; others who have entered the hold may still be inside.
    Released,
    /// The store keeps it without us for the rest of the least time.
    Kept,
    /// It was ours and still is, because the store cannot keep it without us: others are inside, or the least time is
    /// not over. To be released again when the store [tells](Backend::changed), and after this time at the latest.
    NotYet(Duration),
    /// It was not ours; nothing was changed but a place in the line, if we had one.
    NotHeld,
}

/// What endangers the locks of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hazard {
    /// It removes keys by this policy when its memory is full, locks among them.
    Eviction(String),
    /// One of its nodes is no independent server, and does nothing for the locks: which, and what it is.
    Node(String),
}

/// Why a store gave no answer. Words of the store in it have been scrubbed of secrets where they entered
/// ([`crate::secret`]); our own words are not: `***` in place of one of them would tell what the password is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// It cannot be reached or cannot serve us at the moment; trying again may help.
    #[error("{reason}")]
    Unavailable {
        /// What was found.
        reason: String,
        /// The request may have been carried out all the same.
        maybe_applied: bool,
        /// It lasts for moments only: to be asked again even by one who has no patience.
        transient: bool,
    },
    /// It refused us; trying again does not help.
    #[error("{0}")]
    Denied(String),
    /// What was configured does not fit the store.
    #[error("{0}")]
    Config(String),
}

impl StoreError {
    /// The store cannot be reached; nothing was asked.
    pub fn unreachable(reason: impl Into<String>) -> StoreError {
        StoreError::Unavailable { reason: reason.into(), maybe_applied: false, transient: false }
    }

    /// What is asked for is on its way from one part of the store to another. It may have been done by half.
    pub fn resharding(reason: impl Into<String>) -> StoreError {
        StoreError::Unavailable { reason: reason.into(), maybe_applied: true, transient: true }
    }

    /// Whether it lasts for moments only.
    pub fn is_transient(&self) -> bool {
        matches!(self, StoreError::Unavailable { transient: true, .. })
    }

    /// The store was asked and did not answer as it should.
    pub fn unanswered(reason: impl Into<String>) -> StoreError {
        StoreError::Unavailable { reason: reason.into(), maybe_applied: true, transient: false }
    }
}

/// An I/O error in the words of the system, without its number.
pub fn io_text(error: &std::io::Error) -> String {
    match error.raw_os_error() {
        Some(errno) => nix::errno::Errno::from_raw(errno).desc().to_lowercase(),
        None => error.to_string(),
    }
}

//! The traits that a lock store implements: acquire, renew, release, and notify of changes. Everything that stores have
//! in common (waiting, deadlines, retries, supervision) is implemented once, above these traits.
//!
//! Called by [`lease`](crate::lease) and `commands`, which never name a concrete store: [`registry`] does. What always
//! holds: a store that cannot be queried is unknown ([`StoreError`]), which is never reported as free, held or lost.

pub mod admin;
#[cfg(feature = "consul")]
pub mod consul;
pub mod diagnosis;
#[cfg(feature = "dynamodb")]
pub mod dynamodb;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod file;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod ledger;
pub mod location;
#[cfg(feature = "memcached")]
pub mod memcached;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "net")]
pub mod net;
pub mod options;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod race;
#[cfg(feature = "redis")]
pub mod redis;
pub mod registry;
#[cfg(feature = "s3")]
pub mod s3;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub mod shedlock;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub mod sql;
pub mod url;
pub mod worker;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

use std::future::Future;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::time::Duration;

pub use self::location::Location;
use crate::exit::FailureKind;
use crate::lock::{
    Claim, Freeze, Grant, Holder, Identity, LockName, Mode, NotDue, Record, Revocation, UnknownFormat,
};

/// The future returned by the methods of a [`Backend`], boxed so that the trait is object-safe.
pub type Reply<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// The reply to a request that may fail.
pub type TryReply<'a, T> = Reply<'a, Result<T, StoreError>>;

/// A store of locks.
///
/// A backend never sleeps, retries, prints, or reads a clock other than the store's. Each method may be dropped
/// halfway: the request may or may not have been carried out, the connection is discarded, and the next call opens a
/// new one.
pub trait Backend {
    /// Opens the connection if there is none, without sending anything that could be mistaken for a lock request. The
    /// validity of a lease is counted from after this call.
    ///
    /// # Errors
    /// The store cannot be reached.
    fn connect(&mut self) -> TryReply<'_, ()>;

    /// Requests the lock once. A claim whose token already holds the lock (the reply to an earlier attempt was lost) is
    /// granted again with the full lease. With [`Intent::Enqueue`] a claim that is not granted is in the queue
    /// afterwards, until it is granted, [released](Backend::release), or has sent nothing for about a lease.
    ///
    /// The queue is first come, first served, in the order of the numbers that the store assigns. The first waiter has
    /// [`CLAIM_WITHIN`] to claim a free lock; then it is the next waiter's turn.
    ///
    /// # Errors
    /// The store could not be queried, or refused. After [`StoreError::Unavailable`] with `maybe_applied` the claim may
    /// hold the lock or a queue position: try again or release.
    fn try_acquire<'a>(&'a mut self, claim: &'a Claim, intent: Intent) -> TryReply<'a, Attempt>;

    /// Extends the lease if the claim's token still holds the lock: to its full length from now, or to `rest` (what
    /// remains of the minimum hold time) if that is longer. Never creates the lock anew.
    ///
    /// # Errors
    /// The store could not be queried: the state of the lock is unknown, which does not mean that it is lost.
    fn renew<'a>(&'a mut self, claim: &'a Claim, rest: Duration) -> TryReply<'a, Renewal>;

    /// Releases what the claim has: the lock, or its queue position; otherwise changes nothing. May be repeated. If
    /// `rest` is not zero, the store keeps the lock for that long without its owner. The next waiter is then notified.
    /// In the same step it stores what the `ending` says of the run.
    ///
    /// # Errors
    /// The store could not be queried; the lease expires by itself.
    fn release<'a>(
        &'a mut self,
        claim: &'a Claim,
        rest: Duration,
        ending: Ending<'a>,
    ) -> TryReply<'a, Release>;

    /// Adds the record of a run that did not start, or that lost its lock, to the history of the lock.
    ///
    /// # Errors
    /// The store could not be queried, or keeps no history.
    fn add_record<'a>(&'a mut self, name: &'a LockName, record: &'a Record) -> TryReply<'a, ()>;

    /// Returns what the store has reported about itself that endangers locks.
    fn hazard(&self) -> Option<Hazard> {
        None
    }

    /// Resolves when the store reports a change of the lock that is held or waited for. Never resolves if the store
    /// cannot notify.
    fn changed(&mut self) -> Reply<'_, Change>;

    /// Returns the error of a request that was given up because it took too long, with what this store knows of the reason.
    fn explained(&self, late: StoreError) -> StoreError {
        late
    }

    /// Returns whether another server may take over from one that has failed, so that an early retry may help.
    fn fails_over(&self) -> bool {
        false
    }

    /// Returns the descriptors whose closing frees the lock; the guard process keeps duplicates.
    fn kept_descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
}

/// What a release stores about the run that ends.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ending<'a> {
    /// The record that is added to the history of the lock, if possible.
    pub record: Option<&'a Record>,
    /// An earlier attempt may have released the lock and stored the record: it is stored only if the hold is still found.
    pub is_repeated: bool,
    /// The run counts for `--once-per`, and has held the lock for this long by the clock of its own host. Not stored for
    /// a hold that is lost or revoked.
    pub success: Option<Duration>,
}

impl<'a> Ending<'a> {
    /// Returns the ending of a run that does not count for `--once-per`.
    pub fn with_record(record: Option<&'a Record>) -> Ending<'a> {
        Ending { record, ..Ending::default() }
    }

    /// Returns the same ending for a release that is repeated.
    #[must_use]
    pub fn repeated(self) -> Ending<'a> {
        Ending { is_repeated: true, ..self }
    }
}

/// How long the first waiter has to claim a free lock before it is the next waiter's turn.
pub const CLAIM_WITHIN: Duration = Duration::from_millis(500);

/// What to do about a lock that is not available immediately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Nothing: take it only if it is free and nothing else waits for it.
    TakeNow,
    /// Wait in the queue.
    Enqueue,
}

/// The result of [`Backend::try_acquire`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// The claim holds the lock.
    Granted(Grant),
    /// The lock is not available at the moment.
    Busy(Busy),
    /// The claim cannot be granted in the current state; nothing of it is left in the store.
    Refused(Refusal),
    /// The lock is free, but the claim is not due ([`Claim::once_per`]); nothing of it is left in the store.
    NotDue(NotDue),
}

/// Why a lock is not available at the moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Busy {
    /// The first few of its holders; empty if the lock is free but waiters are ahead.
    pub holders: Vec<Holder>,
    /// The number of further holders.
    pub more: usize,
    /// The queue position of the claim, from 1.
    pub position: Option<u32>,
    /// The number that the store has assigned to this position, if it was asked for: later ones are larger.
    pub ticket: Option<u64>,
    /// The queue takes no further waiter: the claim waits without a place in it.
    pub is_outside_queue: bool,
    /// The lock is free, and it is another waiter's turn: a later attempt will be granted, or find a holder.
    pub promised: bool,
    /// The freeze that keeps the claim out, or will when the holders have ended.
    pub freeze: Option<Box<Freeze>>,
    /// When to try again, even without a notification.
    pub again: Again,
}

impl Busy {
    /// Returns the holder that keeps the claim out; `None` if a freeze does.
    pub fn holder(&self) -> Option<&Holder> {
        self.holders.first().filter(|_| self.freeze.is_none())
    }
}

/// When to try again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Again {
    /// After this time at the latest; the store notifies if it is to be sooner.
    Within(Duration),
    /// At intervals: the store cannot notify.
    #[default]
    Poll,
}

/// Why a claim cannot be granted in the current state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The current users of the lock have agreed on another number of slots.
    Slots(u32),
    /// This process runs inside a hold of this lock whose mode does not allow the mode of the claim.
    Inside(Mode),
    /// This process runs inside a hold of this lock that its owner, which is alive, has lost.
    OuterLost,
    /// The user may not have what the claim needs, for this reason.
    Unsupported(String),
    /// The last success, which decides whether the claim is due, cannot be read.
    Success(UnknownFormat),
    /// This run waits behind the claim, and both [supersede](Identity::supersedes) older ones.
    Superseded(Box<Identity>),
}

/// A notification from the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is this waiter's turn.
    OurTurn,
    /// It will soon be this waiter's turn: try again within this time, unless notified before.
    Soon(Duration),
    /// Another client has changed the lock.
    Touched,
    /// The connection is closed.
    Disconnected,
}

/// The result of [`Backend::renew`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The claim still holds the lock.
    Held {
        /// The length of the lease, from the moment the request was sent; `None` if there is no lease.
        lease: Option<Duration>,
        /// The holder was asked to give the lock up.
        revoked: Option<Revocation>,
    },
    /// The claim does not hold the lock any more.
    Lost(Loss),
}

impl Renewal {
    /// Converts the reply of a server that has taken over from the one that knew of the lock before.
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
    /// It is gone from the store and free: no other client need be running yet.
    Gone,
    /// The store has failed over to a server that does not have it, and it is free there.
    FailedOver,
    /// Another client holds it and may be running already.
    Taken,
}

/// The result of [`Backend::release`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Release {
    /// The claim held the lock and no longer does; processes that have entered the hold may still be inside.
    Released,
    /// The store keeps the lock without its owner for the rest of the minimum hold time.
    Kept,
    /// One of these, but the success could not be stored, for this reason.
    SuccessNotStored(String),
    /// The claim still holds the lock, because the store cannot keep it without its owner: other processes are inside,
    /// or the minimum hold time has not expired. To be released again when the store [notifies](Backend::changed), and
    /// after this time at the latest.
    NotYet(Duration),
    /// The claim did not hold the lock; nothing was changed except its queue position, if it had one.
    NotHeld,
}

/// A property of a store that endangers its locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hazard {
    /// When its memory is full, it evicts keys by this policy, including locks.
    Eviction(String),
    /// It may forget a lock at any time: its locks save work that would be done twice, and protect nothing.
    Forgetful,
    /// One of its nodes is not an independent server and adds nothing to the safety of the locks: which one, and what
    /// it is.
    Node(String),
}

/// Why a store gave no reply. Text from the store has been scrubbed of secrets where it entered (`crate::secret`);
/// dlock's own words are not scrubbed: `***` in place of one of them would reveal the password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// It cannot be reached or cannot serve requests at the moment.
    #[error("{reason}")]
    Unavailable {
        /// What was found.
        reason: String,
        /// The request may have been carried out nevertheless.
        maybe_applied: bool,
        /// Whether a retry may help.
        outlook: Outlook,
    },
    /// It refused the request; a retry does not help.
    #[error("{0}")]
    Denied(String),
    /// The configuration does not fit the store.
    #[error("{0}")]
    Config(String),
    /// The server is of another kind.
    #[error("{found}: {remedy}")]
    OtherServer {
        /// What it is.
        found: String,
        /// What to do about it.
        remedy: String,
    },
}

/// How long a failure is expected to last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// Moments: to be retried even after the wait and retry limits.
    Transient,
    /// A retry may help.
    Unknown,
    /// Until the configuration of the server or of the client, such as its certificates, is changed.
    Permanent,
}

impl StoreError {
    /// Returns the kind of failure that a command reports for it.
    pub fn failure_kind(&self) -> FailureKind {
        match self {
            StoreError::Unavailable { .. } => FailureKind::Unavailable,
            StoreError::Denied(_) => FailureKind::Denied,
            StoreError::Config(_) | StoreError::OtherServer { .. } => FailureKind::Config,
        }
    }

    /// The store cannot be reached; no request was sent.
    pub fn unreachable(reason: impl Into<String>) -> StoreError {
        StoreError::Unavailable { reason: reason.into(), maybe_applied: false, outlook: Outlook::Unknown }
    }

    /// The requested keys are being moved from one part of the store to another. The request may have been carried out
    /// in part.
    pub fn resharding(reason: impl Into<String>) -> StoreError {
        StoreError::transient(reason, true)
    }

    /// The failure lasts only moments. With `maybe_applied`, the request may have been carried out nevertheless.
    pub fn transient(reason: impl Into<String>, maybe_applied: bool) -> StoreError {
        StoreError::Unavailable { reason: reason.into(), maybe_applied, outlook: Outlook::Transient }
    }

    /// Returns the same error for a request of which a part has been carried out.
    #[must_use]
    pub fn after_a_part(self) -> StoreError {
        match self {
            StoreError::Unavailable { reason, outlook, .. } => {
                StoreError::Unavailable { reason, maybe_applied: true, outlook }
            }
            other => other,
        }
    }

    /// Returns the same error with another text, made from its own.
    pub fn map_text(self, text: impl FnOnce(String) -> String) -> StoreError {
        match self {
            StoreError::Unavailable { reason, maybe_applied, outlook } => {
                StoreError::Unavailable { reason: text(reason), maybe_applied, outlook }
            }
            StoreError::Denied(reason) => StoreError::Denied(text(reason)),
            StoreError::Config(reason) => StoreError::Config(text(reason)),
            StoreError::OtherServer { found, remedy } => {
                StoreError::OtherServer { found: text(found), remedy }
            }
        }
    }

    /// Returns how long the failure is expected to last.
    pub fn outlook(&self) -> Outlook {
        match self {
            StoreError::Unavailable { outlook, .. } => *outlook,
            StoreError::Denied(_) | StoreError::Config(_) | StoreError::OtherServer { .. } => {
                Outlook::Permanent
            }
        }
    }

    /// Returns whether the error lasts only moments.
    pub fn is_transient(&self) -> bool {
        self.outlook() == Outlook::Transient
    }

    /// The store received the request and did not reply properly.
    pub fn unanswered(reason: impl Into<String>) -> StoreError {
        StoreError::Unavailable { reason: reason.into(), maybe_applied: true, outlook: Outlook::Unknown }
    }
}

/// Returns the system's text for an I/O error, without its number.
pub fn io_text(error: &std::io::Error) -> String {
    match error.raw_os_error() {
        Some(errno) => nix::errno::Errno::from_raw(errno).desc().to_lowercase(),
        None => error.to_string(),
    }
}

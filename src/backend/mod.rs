//! What a store of locks is to dlock: try, renew, release, and word of a change. Everything that stores have in common
//! (waiting, deadlines, retries, supervision) is done once, above this trait.

pub mod file;
pub mod locator;
#[cfg(feature = "redis")]
pub mod redis;
pub mod url;

use std::future::Future;
use std::os::fd::BorrowedFd;
use std::pin::Pin;

use crate::lock::{Claim, Grant, Holder};

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
    /// granted again with the full lease.
    ///
    /// # Errors
    /// The store could not be asked, or refused. After [`StoreError::Unavailable`] with `maybe_applied` the lock may be
    /// ours: ask again or release.
    fn try_acquire<'a>(&'a mut self, claim: &'a Claim) -> Reply<'a, Result<Attempt, StoreError>>;

    /// Extends the lease to its full length from now, if the claim's token still holds the lock. Never creates it anew.
    ///
    /// # Errors
    /// The store could not be asked: the answer is unknown, which is not loss.
    fn renew<'a>(&'a mut self, claim: &'a Claim) -> Reply<'a, Result<Renewal, StoreError>>;

    /// Frees the lock if the claim's token still holds it; otherwise changes nothing. May be repeated.
    ///
    /// # Errors
    /// The store could not be asked; the lease will end by itself.
    fn release<'a>(&'a mut self, claim: &'a Claim) -> Reply<'a, Result<Release, StoreError>>;

    /// Resolves when the store says that the lock may have changed, or that the connection is gone: reason to ask now
    /// rather than later. Never resolves where the store cannot tell.
    fn changed(&mut self) -> Reply<'_, ()>;

    /// A descriptor whose closing frees the lock; the guarding process keeps a duplicate.
    fn kept_descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// The answer to [`Backend::try_acquire`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// The lock is ours.
    Granted(Grant),
    /// Somebody else holds it.
    Busy(Holder),
}

/// The answer to [`Backend::renew`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// Still ours, for so long from the moment the request was sent; `None` where there is no lease.
    Held(Option<std::time::Duration>),
    /// Not ours any more.
    Lost(Loss),
}

/// How a lock was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// It is gone from the store and free: nobody else need be running yet.
    Gone,
    /// Somebody else holds it and may be running already.
    Taken,
}

/// The answer to [`Backend::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// It was ours and is free now.
    Released,
    /// It was not ours; nothing was changed.
    NotHeld,
}

/// Why a store gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// It cannot be reached or cannot serve us at the moment; trying again may help.
    #[error("{reason}")]
    Unavailable {
        /// What was found.
        reason: String,
        /// The request may have been carried out all the same.
        maybe_applied: bool,
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
        StoreError::Unavailable { reason: reason.into(), maybe_applied: false }
    }

    /// The store was asked and did not answer as it should.
    pub fn unanswered(reason: impl Into<String>) -> StoreError {
        StoreError::Unavailable { reason: reason.into(), maybe_applied: true }
    }
}

/// An I/O error in the words of the system, without its number.
pub fn io_text(error: &std::io::Error) -> String {
    match error.raw_os_error() {
        Some(errno) => nix::errno::Errno::from_raw(errno).desc().to_lowercase(),
        None => error.to_string(),
    }
}

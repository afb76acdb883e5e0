//! What can be seen of a lock: who holds it, and who waits.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{FencingToken, Identity, LockName, Mode};
use crate::secret;

/// What a holder is about to do with its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Its command runs.
    Running,
    /// Its command has ended, and the lock is kept by `--min-hold`.
    MinHold,
    /// No process stands behind it, but a token.
    Token,
    /// It has been told to give the lock up.
    Revoking,
    /// A foreign client does not tell.
    Unknown,
}

impl Phase {
    /// The phase's name, as it is shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Running => "running",
            Phase::MinHold => "min_hold",
            Phase::Token => "token",
            Phase::Revoking => "revoking",
            Phase::Unknown => "unknown",
        }
    }
}

/// One who holds a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// What a dlock wrote of itself; `None` for a foreign client.
    pub identity: Option<Identity>,
    /// For how long it has held the lock, by the store's clock.
    pub age: Option<Duration>,
    /// What is left of its lease. `None`: no lease, or unknown.
    pub remaining: Option<Duration>,
    /// Its command ended so long ago; the lock is kept by `--min-hold`.
    pub ended: Option<Duration>,
    /// What else the store tells of a foreign holder, for instance the type of its key.
    pub hint: Option<String>,
    /// The fencing token of its hold.
    pub fencing: Option<FencingToken>,
    /// Its slot of a semaphore.
    pub slot: Option<u32>,
    /// The length of the lease that it asked for last.
    pub lease: Option<Duration>,
    /// It has no lease that ends, as it should: it stays until somebody deletes it.
    pub immortal: bool,
    /// It has been told to give the lock up.
    pub revoked: Option<Revocation>,
    /// The token that was asked with is its own.
    pub ours: bool,
    /// Stands for a foreign value, which is nobody's to read: as long as this is the same, so is the value.
    pub digest: Option<String>,
}

impl Holder {
    /// What it is about.
    pub fn phase(&self) -> Phase {
        match &self.identity {
            None => Phase::Unknown,
            Some(_) if self.ended.is_some() => Phase::MinHold,
            Some(_) if self.revoked.is_some() => Phase::Revoking,
            Some(identity) if identity.unattended => Phase::Token,
            Some(_) => Phase::Running,
        }
    }
}

/// Somebody's word that a hold is to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocation {
    /// Who said so: `user@host`.
    #[serde(deserialize_with = "secret::text")]
    pub by: String,
    /// `--reason`
    #[serde(default, deserialize_with = "secret::optional_text", skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// One who waits for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// What a dlock wrote of itself.
    pub identity: Option<Identity>,
    /// What it wants.
    pub mode: Mode,
    /// For how long it has been waiting, by the store's clock.
    pub waiting: Duration,
}

/// Everything that a store tells about a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockState {
    /// Which lock.
    pub name: LockName,
    /// How it is held; `None` when it is free, or by a client that does not tell.
    pub mode: Option<Mode>,
    /// Who holds it.
    pub holders: Vec<Holder>,
    /// Who waits for it, in order.
    pub waiters: Vec<Waiter>,
    /// Why nothing else can be said of it.
    pub unknown: Option<Unknown>,
}

/// Why it is unknown who holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// We may not look, or what is there is not to be trusted.
    Denied(String),
    /// It could not be looked at in time.
    Unanswered(String),
    /// It is not stored in a form that this dlock knows.
    Unreadable(String),
}

impl Unknown {
    /// The reason, in words.
    pub fn why(&self) -> &str {
        match self {
            Unknown::Denied(why) | Unknown::Unanswered(why) | Unknown::Unreadable(why) => why,
        }
    }
}

impl LockState {
    /// A lock that nobody holds or awaits.
    pub fn free(name: LockName) -> LockState {
        LockState { name, mode: None, holders: Vec::new(), waiters: Vec::new(), unknown: None }
    }

    /// Makes it what it is so much later if nothing happens.
    pub fn age(&mut self, time: Duration) {
        for holder in &mut self.holders {
            holder.age = holder.age.map(|age| age + time);
            holder.ended = holder.ended.map(|ended| ended + time);
            holder.remaining = holder.remaining.map(|rest| rest.saturating_sub(time));
        }
        for waiter in &mut self.waiters {
            waiter.waiting += time;
        }
    }
}

//! The state of a lock: its holders and waiters.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{FencingToken, Freeze, Identity, LockName, Mode, Success};
use crate::secret;

/// The state of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Its run waits for another of its locks; no command runs yet.
    Waiting,
    /// Its command runs.
    Running,
    /// Its command has ended, and the lock is kept by `--min-hold`.
    MinHold,
    /// It belongs to no process, but to the bearer of a token.
    Token,
    /// Its owner has been asked to give the lock up.
    Revoking,
    /// A foreign client's hold.
    Unknown,
}

impl Phase {
    /// Returns the phase's name, as displayed.
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Waiting => "waiting",
            Phase::Running => "running",
            Phase::MinHold => "min_hold",
            Phase::Token => "token",
            Phase::Revoking => "revoking",
            Phase::Unknown => "unknown",
        }
    }
}

/// A holder of a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// What dlock recorded about itself; `None` for a foreign client.
    pub identity: Option<Identity>,
    /// How long it has held the lock, by the store's clock.
    pub age: Option<Duration>,
    /// When it acquired the lock, as the time since 1970 that is stored with the hold: the same in every reply.
    pub acquired_at: Option<Duration>,
    /// The rest of its lease. `None`: no lease, or unknown.
    pub remaining: Option<Duration>,
    /// How long ago its command ended; the lock is kept by `--min-hold`.
    pub ended: Option<Duration>,
    /// Further information about a foreign holder, for instance the type of its key.
    pub hint: Option<String>,
    /// The fencing token of the hold.
    pub fencing: Option<FencingToken>,
    /// The slot of a semaphore.
    pub slot: Option<u32>,
    /// The length of the lease that it requested last.
    pub lease: Option<Duration>,
    /// It should have a lease but has none: it stays until an operator deletes it.
    pub immortal: bool,
    /// The request to give the lock up, if there is one.
    pub revoked: Option<Revocation>,
    /// The lock that its run waits for, if [that was looked for](super::mark_waiting).
    pub waits_for: Option<LockName>,
    /// The hold belongs to the token of the request.
    pub ours: bool,
    /// Identifies a hold without a fencing token, such as that of a foreign client, whose value must not be shown: as long
    /// as this is the same, so is the hold.
    pub digest: Option<String>,
}

impl Holder {
    /// Advances the hold by this time, as if nothing had happened since.
    pub fn age_by(&mut self, time: Duration) {
        self.age = self.age.map(|age| age + time);
        self.ended = self.ended.map(|ended| ended + time);
        self.remaining = self.remaining.map(|rest| rest.saturating_sub(time));
    }

    /// Returns how long `--min-hold` still keeps the lock, if its command has ended.
    pub fn kept(&self) -> Option<Duration> {
        self.ended.and(self.remaining)
    }

    /// Returns whether both are the same hold: fencing tokens are unique, and so are digests.
    pub fn is_same_hold(&self, other: &Holder) -> bool {
        self.fencing == other.fencing && self.digest == other.digest
    }

    /// Returns whether its run takes another lock after this one.
    pub fn has_next_lock(&self) -> bool {
        self.identity.as_ref().is_some_and(|identity| identity.next_lock.is_some())
    }

    /// Returns the state of the hold.
    pub fn phase(&self) -> Phase {
        match &self.identity {
            None => Phase::Unknown,
            Some(_) if self.ended.is_some() => Phase::MinHold,
            Some(_) if self.revoked.is_some() => Phase::Revoking,
            Some(identity) if identity.unattended => Phase::Token,
            Some(_) if self.waits_for.is_some() => Phase::Waiting,
            Some(_) => Phase::Running,
        }
    }
}

/// A request to end a hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocation {
    /// The sender: `user@host`.
    #[serde(deserialize_with = "secret::text")]
    pub by: String,
    /// `--reason`
    #[serde(default, deserialize_with = "secret::optional_text", skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A waiter for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// What dlock recorded about itself.
    pub identity: Option<Identity>,
    /// The requested mode.
    pub mode: Mode,
    /// How long it has been waiting, by the store's clock.
    pub waiting: Duration,
}

/// The state of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockState {
    /// Which lock.
    pub name: LockName,
    /// How it is held; `None` if it is free, or held by a client that does not record a mode.
    pub mode: Option<Mode>,
    /// The holders.
    pub holders: Vec<Holder>,
    /// The waiters, in order.
    pub waiters: Vec<Waiter>,
    /// The freeze, if the lock is frozen.
    pub freeze: Option<Freeze>,
    /// The last success of a run with `--once-per`, if its format is known.
    pub last_success: Option<Success>,
    /// Why nothing else is known about it.
    pub unknown: Option<Unknown>,
}

/// Why the state of a lock is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// Access was denied, or what was found is not trustworthy.
    Denied(String),
    /// It could not be read in time.
    Unanswered(String),
    /// It is not stored in a format that this dlock knows.
    Unreadable(String),
}

impl Unknown {
    /// Returns the reason as text.
    pub fn why(&self) -> &str {
        match self {
            Unknown::Denied(why) | Unknown::Unanswered(why) | Unknown::Unreadable(why) => why,
        }
    }
}

impl LockState {
    /// Returns the state of a lock without holders and waiters.
    pub fn free(name: LockName) -> LockState {
        LockState {
            name,
            mode: None,
            holders: Vec::new(),
            waiters: Vec::new(),
            freeze: None,
            last_success: None,
            unknown: None,
        }
    }

    /// Advances the state by this time, as if nothing had happened since.
    pub fn age(&mut self, time: Duration) {
        self.holders.iter_mut().for_each(|holder| holder.age_by(time));
        for waiter in &mut self.waiters {
            waiter.waiting += time;
        }
    }
}

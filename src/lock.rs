//! The values of locking: names, tokens, modes, claims, grants. No I/O.
//!
//! Used by every module. What always holds: a value that exists has been checked, and a
//! token is formatted only where it is [revealed](Token::reveal).

mod freeze;
mod history;
mod natural_order;
pub mod overdue;
pub mod record;
mod sequence;
mod state;
mod success;

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{random, secret};

pub use self::freeze::{Freeze, FreezeRequest};
pub use self::history::{Filter, History, also_needed};
pub use self::natural_order::{natural_order, natural_order_of};
pub use self::record::{NotedRecord, Record};
pub use self::sequence::{Known, Queues, mark_waiting, unread};
pub use self::state::{Holder, LockState, Phase, Revocation, Unknown, Waiter};
pub use self::success::{Due, NotDue, Success, UnknownFormat};

/// The default lease: how long a crashed host blocks other clients.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// The name of a lock: 1 to 200 bytes of UTF-8 without control characters, not `.` or `..`. Compared as bytes: two
/// names that look alike (NFC and NFD) are two locks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName(String);

/// What is wrong with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It has no character.
    #[error("a lock name may not be empty")]
    Empty,
    /// It is longer than [`LockName::MAX_BYTES`].
    #[error("a lock name may have at most 200 bytes, this one has {0}")]
    TooLong(usize),
    /// It has a control character.
    #[error("a lock name may not contain control characters")]
    Control,
    /// It is a directory entry that exists everywhere.
    #[error("'.' and '..' are not lock names")]
    Dots,
}

impl LockName {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 200;

    /// Checks a name.
    pub fn new(text: &str) -> Result<LockName, NameError> {
        match text {
            "" => Err(NameError::Empty),
            "." | ".." => Err(NameError::Dots),
            _ if text.len() > Self::MAX_BYTES => Err(NameError::TooLong(text.len())),
            _ if text.chars().any(char::is_control) => Err(NameError::Control),
            _ => Ok(LockName(text.to_owned())),
        }
    }

    /// The name as typed.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A positive integer below 2^53 that grows with every grant of the same name, so that a resource that remembers the
/// largest one it has seen can reject a late writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FencingToken(u64);

impl FencingToken {
    /// The first number that is not a token: from there on, languages with floating-point numbers cannot count by ones.
    pub const END: u64 = 1 << 53;

    /// Returns the token if the number is in range.
    pub fn new(number: u64) -> Option<FencingToken> {
        (1..FencingToken::END).contains(&number).then_some(FencingToken(number))
    }

    /// Returns the number.
    pub fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The secret that proves ownership. Its `Debug` form hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Returns a new token.
    pub fn random() -> Token {
        Token::from_text(random::id())
    }

    /// Wraps the text of a token from a store or an environment variable, and registers it as a secret.
    pub fn from_text(text: impl Into<String>) -> Token {
        let text = text.into();
        secret::keep(&text);
        Token(text)
    }

    /// Returns the text that is stored and given to the command; never to be printed.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// What a holder states about itself, as stored with the lock for others to read. Readers must treat every field as
/// untrusted text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The host's name.
    #[serde(deserialize_with = "secret::text")]
    pub host: String,
    /// dlock's own process id on that host.
    pub pid: u32,
    /// The login name, or the number of a user that has none.
    #[serde(deserialize_with = "secret::text")]
    pub user: String,
    /// The file name of the command.
    #[serde(deserialize_with = "secret::text")]
    pub command: String,
    /// `--note`.
    #[serde(default, deserialize_with = "secret::optional_text", skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The start time of the process, in clock ticks since boot (field 22 of `proc_pid_stat(5)`); 0 if unknown.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub start: u64,
    /// The boot id of its host; empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub boot: String,
    /// The PID namespace in which the process has that number (`pid_namespaces(7)`); 0 if unknown.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pid_ns: u64,
    /// The URL of the CI job that the process is part of.
    #[serde(default, deserialize_with = "secret::optional_text", skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The hold belongs to no process: it was taken by `dlock acquire` for the bearer of the token.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unattended: bool,
    /// The lock that the run takes after this one; its command runs when it has the last.
    #[serde(default, deserialize_with = "secret::optional_text", skip_serializing_if = "Option::is_none")]
    pub next_lock: Option<String>,
    /// A run with `--supersede`: older waiters that have it too leave.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub supersedes: bool,
    /// With `--supersede`, of a run that has lost its place in the queue and stands there again: the number of its first
    /// position, by which it is compared with others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_ticket: Option<u64>,
}

impl Identity {
    /// Returns whether both were stated by the same run, perhaps about two of its locks.
    pub fn is_same_run(&self, other: &Identity) -> bool {
        let run = |identity: &Identity| Identity { next_lock: None, ..identity.clone() };
        run(self) == run(other)
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// How a lock is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// One holder.
    Exclusive,
    /// Any number of holders, but no exclusive one at the same time.
    Shared,
    /// A semaphore: up to this many holders, two or more.
    Slots(u32),
}

impl Mode {
    /// The largest number of slots of a lock.
    pub const MOST_SLOTS: u32 = 10_000;

    /// Returns the mode of a semaphore with this many slots; with one slot it is an exclusive lock.
    pub fn of_slots(slots: u32) -> Mode {
        if slots <= 1 { Mode::Exclusive } else { Mode::Slots(slots) }
    }

    /// Returns the mode's name, as displayed and stored.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Exclusive => "exclusive",
            Mode::Shared => "shared",
            Mode::Slots(_) => "slots",
        }
    }

    /// Returns whether a claim of mode `self` may enter a hold of mode `outer` that its process runs under: an
    /// exclusive hold allows every mode, the others only their own.
    pub fn fits_inside(self, outer: Mode) -> bool {
        outer == Mode::Exclusive || self == outer
    }
}

/// A request for a lock: its name, owner, mode and lease.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Which lock.
    pub name: LockName,
    /// Proves ownership.
    pub token: Token,
    /// How the lock is to be shared.
    pub mode: Mode,
    /// The requested lease.
    pub ttl: Duration,
    /// The store keeps the lock for at least this long after the grant, whatever happens to its owner.
    pub min_hold: Duration,
    /// The owner.
    pub identity: Identity,
    /// The tokens of the holds that this process runs under; one of them may be a hold of this lock.
    pub outer: Vec<Token>,
    /// One of them is a hold of this lock, according to its dlock, which is alive: without that hold nothing is
    /// granted.
    pub requires_outer_hold: bool,
    /// `--once-per`: grant nothing if a run that began less than this long ago has succeeded.
    pub once_per: Option<Duration>,
}

impl Claim {
    /// Returns a claim of an exclusive lock by an unknown owner, outside of any other hold.
    pub fn new(name: LockName, token: Token, ttl: Duration) -> Claim {
        Claim {
            name,
            token,
            mode: Mode::Exclusive,
            ttl,
            min_hold: Duration::ZERO,
            identity: Identity::default(),
            outer: Vec::new(),
            requires_outer_hold: false,
            once_per: None,
        }
    }
}

/// The store's reply to a claim that was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Larger than that of every earlier grant; a nested claim gets that of the outer hold. `None` if the recipe has no
    /// room for one.
    pub fencing: Option<FencingToken>,
    /// The lease that the store replied; `None` if the lock lives as long as a descriptor or a session of this process.
    pub lease: Option<Duration>,
    /// The slot of a semaphore, from 0; no other live holder has it.
    pub slot: Option<u32>,
    /// The time of the last success, which was ignored because it lies this far in the future.
    pub undated: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        let long = "a".repeat(200);
        let four_byte = "\u{1F512}".repeat(50);
        for good in ["a", " ", "a/b", "*", "{}", "é", "-x", "a}b", long.as_str(), four_byte.as_str()] {
            assert_eq!(LockName::new(good).map(|name| name.as_str().to_owned()), Ok(good.to_owned()));
        }
        let too_long = "a".repeat(201);
        for (bad, why) in [
            ("", NameError::Empty),
            (".", NameError::Dots),
            ("..", NameError::Dots),
            ("a\nb", NameError::Control),
            ("a\0", NameError::Control),
            ("\u{9b}2J", NameError::Control),
            (too_long.as_str(), NameError::TooLong(201)),
        ] {
            assert_eq!(LockName::new(bad), Err(why), "{bad:?}");
        }
    }

    #[test]
    fn a_token_is_unique_and_does_not_show() {
        let token = Token::random();
        assert_eq!(token.reveal().len(), 32);
        assert_ne!(token, Token::random());
        assert_eq!(format!("{token:?}"), "Token(..)");
    }
}

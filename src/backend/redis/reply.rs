//! The replies of the scripts. The server is not trusted: replies that make no sense are rejected.

use std::time::Duration;

use redis::Value;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::backend::StoreError;
use crate::backend::admin::OTHER_FORMAT;
use crate::lock::{FencingToken, Freeze, Holder, Identity, Mode, Revocation};
use crate::secret;

/// The record of a member, as the scripts store it.
#[derive(Deserialize)]
pub(super) struct HolderRecord {
    /// In ms since 1970.
    #[serde(default)]
    pub(super) ended: Option<u64>,
    #[serde(default)]
    pub(super) fencing: Option<FencingToken>,
    /// In ms.
    #[serde(default)]
    pub(super) lease: Option<u64>,
    /// In ms since 1970.
    pub(super) at: u64,
    pub(super) identity: Identity,
}

impl HolderRecord {
    /// Returns the holder at the time `now`, in ms since 1970.
    pub(super) fn holder(self, now: u64) -> Holder {
        let ago = |then: u64| Duration::from_millis(now.saturating_sub(then));
        Holder {
            identity: Some(self.identity),
            age: Some(ago(self.at)),
            acquired_at: Some(Duration::from_millis(self.at)),
            ended: self.ended.map(ago),
            fencing: self.fencing,
            lease: self.lease.map(Duration::from_millis),
            ..Holder::default()
        }
    }
}

/// An invalid reply: the request may have been executed.
pub(super) fn nonsense() -> StoreError {
    StoreError::unanswered("the server sent an invalid reply")
}

/// The reply of a script on a lock. Times are in ms.
#[derive(Debug, Deserialize)]
pub(super) struct LockReply {
    #[serde(flatten)]
    pub(super) outcome: Outcome,
    /// The eviction policy of the server, if it evicts keys, locks among them.
    pub(super) eviction: Option<String>,
    /// Why the success of a run could not be stored.
    #[serde(default, deserialize_with = "secret::optional_text")]
    pub(super) unrecorded: Option<String>,
    /// The state of the node of a Redlock that replied to a claim.
    pub(super) node: Option<NodeMark>,
}

/// The outcome of an operation.
#[derive(Debug, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub(super) enum Outcome {
    Granted {
        fencing: String,
        lease: u64,
        slot: Option<u32>,
        /// How far a record of the last success lies in the future that was ignored.
        undated: Option<f64>,
    },
    Busy(BusyReply),
    /// A run with `--once-per` that is not due.
    NotDue {
        /// The record of the last success.
        success: String,
        now: u64,
    },
    /// The record of the last success is in another format.
    OtherSuccess {
        format: String,
    },
    /// The fencing counter has no next value below 2^53.
    CounterExhausted,
    /// The hold that the claim is nested in has another mode.
    OuterMode {
        mode: String,
        slots: u32,
    },
    /// The live users of the lock use another number of slots.
    OtherSlots {
        slots: u32,
    },
    OuterLost,
    /// A run that has come later supersedes the claim.
    Superseded {
        /// Its identity, as JSON.
        by: String,
    },
    /// The lock is stored by another version of dlock.
    OtherFormat {
        format: Option<String>,
    },
    /// The user lacks rights.
    Denied {
        denied: Vec<DeniedTrial>,
    },
    Renewed {
        revocation: Option<String>,
    },
    /// The lock is free, or there is no such hold.
    Gone,
    /// Another client holds the lock.
    Taken,
    Released,
    /// The lock is kept without its owner.
    Kept,
    /// A hold was revoked or removed.
    Ended {
        /// The number of its members that were notified, and that were removed.
        notified: usize,
        removed: usize,
    },
    Done,
    /// The lock is frozen, perhaps by another request.
    Frozen {
        /// As JSON.
        freeze: String,
        /// It was frozen before.
        was_there: bool,
    },
    Fenced {
        fencing: String,
    },
    /// Every later fencing token is larger than the floor.
    Raised,
    /// The fencing counter is not raised while the lock is held.
    Held,
    /// The last fencing token is larger than the floor.
    Above {
        fencing: String,
    },
}

/// Why a claim is not granted.
#[derive(Debug, Deserialize)]
pub(super) struct BusyReply {
    /// The type of the key; `dlock`, or `free`.
    pub(super) kind: String,
    /// Of the lease; negative if the key has no expiry. Expiries that other programs set may exceed all integers.
    pub(super) remaining: f64,
    /// In the queue; 0 if it is not in the queue.
    pub(super) position: u32,
    /// Of a run with `--supersede`: the number of its queue position.
    #[serde(default)]
    pub(super) number: Option<String>,
    /// Of the time for which the lock is reserved for waiters ahead.
    pub(super) call_remaining: u64,
    /// The time of the server since 1970.
    pub(super) now: u64,
    pub(super) can_be_notified: bool,
    pub(super) holders: usize,
    /// The records of some of the holders.
    #[serde(default)]
    pub(super) records: Vec<String>,
    /// The freeze of the lock, as JSON.
    #[serde(default)]
    pub(super) freeze: Option<String>,
}

/// A command that the server has denied to this user, or does not have.
#[derive(Debug, Deserialize)]
pub(super) struct DeniedTrial {
    pub(super) command: String,
    #[serde(default)]
    pub(super) key: String,
    pub(super) message: String,
}

/// What a node of a Redlock adds to its reply to a claim.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct NodeMark {
    /// How long the node has remembered everything written to it, in ms.
    pub(super) age: u64,
    pub(super) id: String,
    /// The node had received no request before that.
    pub(super) is_new: bool,
    /// The claim's number in the node's queue.
    pub(super) number: Option<String>,
}

/// Reads the reply of a script, a JSON text.
///
/// # Errors
/// The reply is something else.
pub(super) fn read<T: DeserializeOwned>(reply: &Value) -> Result<T, StoreError> {
    let Value::BulkString(json) = reply else { return Err(nonsense()) };
    // It may quote values of other programs, which need not be UTF-8.
    serde_json::from_str(&String::from_utf8_lossy(json)).map_err(|_| nonsense())
}

/// Returns the mode that the scripts call so.
pub(super) fn mode_of(mode: &str, slots: u32) -> Option<Mode> {
    match mode {
        "x" => Some(Mode::Exclusive),
        "s" => Some(Mode::Shared),
        "c" => Some(Mode::of_slots(slots)),
        _ => None,
    }
}

/// Returns a time in ms, unless it is negative.
pub(super) fn time(ms: f64) -> Option<Duration> {
    (ms >= 0.0).then(|| Duration::from_millis(ms as u64))
}

/// Reads the revocation of a hold. Any text in this place is one, even if it cannot be read.
pub(super) fn revocation(text: &str) -> Revocation {
    let unreadable = |_| Revocation { by: "an unknown user".into(), reason: None };
    serde_json::from_str(text).unwrap_or_else(unreadable)
}

/// Reads the freeze of a lock.
///
/// # Errors
/// It was stored by another version of dlock, or is damaged.
pub(super) fn freeze(text: &str) -> Result<Freeze, StoreError> {
    serde_json::from_str(text).map_err(|_| StoreError::Config(format!("its freeze is {OTHER_FORMAT}")))
}

pub(super) fn number(value: Option<&Value>) -> Option<i64> {
    match value? {
        Value::Int(number) => Some(*number),
        _ => None,
    }
}

pub(super) fn text(value: Option<&Value>) -> Option<&str> {
    match value? {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

//! Parses the replies of the scripts. The server is not trusted: replies that make no sense are rejected.

use std::time::Duration;

use redis::Value;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::location::Location;
use super::recipe::Recipe;
use super::rights::MissingRights;
use crate::backend::admin::OTHER_FORMAT;
use crate::backend::{Again, Attempt, Busy, Loss, Refusal, Release, Renewal, StoreError};
use crate::lock::{Due, FencingToken, Grant, Holder, Identity, Mode, Revocation, Success, UnknownFormat};
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

/// The first waiter has this much time to send a request after the lease ends, before the second one does.
const FIRST_DELAY: Duration = Duration::from_millis(50);
/// ... and each later one sends its request this much after the one ahead. A request has all waiters ahead called, so
/// dead ones among them need not be waited for one by one.
const DELAY_PER_WAITER: Duration = Duration::from_millis(100);

/// An invalid reply: the request may have been executed.
pub(super) fn nonsense() -> StoreError {
    StoreError::unanswered("the server sent an invalid reply")
}

/// The reply of lock.lua. Times are in ms.
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
    kind: String,
    /// Of the lease; negative if the key has no expiry. Expiries that other programs set may exceed all integers.
    remaining: f64,
    /// In the queue; 0 if it is not in the queue.
    position: u32,
    /// Of the time for which the lock is reserved for waiters ahead.
    call_remaining: u64,
    /// The time of the server since 1970.
    now: u64,
    can_be_notified: bool,
    holders: usize,
    /// The records of some of the holders.
    #[serde(default)]
    records: Vec<String>,
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
#[derive(Debug, Deserialize)]
pub(super) struct NodeMark {
    /// How long the node has remembered everything written to it, in ms.
    pub(super) age: u64,
    pub(super) id: String,
    /// The node had received no request before that.
    pub(super) is_new: bool,
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

/// Returns the result of a claim with this period, if it has [one](crate::lock::Claim::once_per).
///
/// # Errors
/// The reply is invalid, or says that the lock cannot be used.
pub(super) fn attempt(
    outcome: Outcome,
    once_per: Option<Duration>,
    location: &Location,
) -> Result<Attempt, StoreError> {
    match outcome {
        Outcome::Granted { fencing, lease, slot, undated } => Ok(Attempt::Granted(Grant {
            fencing: Some(fencing.parse().ok().and_then(FencingToken::new).ok_or_else(nonsense)?),
            lease: Some(Duration::from_millis(lease)),
            slot,
            undated: undated.and_then(time),
        })),
        Outcome::NotDue { success, now } => {
            let stored = serde_json::from_str(&success).map_err(|_| nonsense())?;
            match Success::parse(&stored).map(|last| last.due(now, once_per.unwrap_or_default())) {
                Ok(Due::Not(not_due)) => Ok(Attempt::NotDue(not_due)),
                Ok(_) => Err(nonsense()),
                Err(format) => Ok(Attempt::Refused(Refusal::Success(format))),
            }
        }
        Outcome::OtherSuccess { format } => Ok(Attempt::Refused(Refusal::Success(UnknownFormat(format)))),
        Outcome::Busy(reply) => Ok(Attempt::Busy(busy(reply, location.recipe))),
        Outcome::CounterExhausted => {
            Err(StoreError::Config("the fencing counter is exhausted (2^53)".into()))
        }
        Outcome::OuterMode { mode, slots } => {
            let outer = mode_of(&mode, slots).ok_or_else(nonsense)?;
            Ok(Attempt::Refused(Refusal::Inside(outer)))
        }
        Outcome::OtherSlots { slots } => Ok(Attempt::Refused(Refusal::Slots(slots))),
        Outcome::OuterLost => Ok(Attempt::Refused(Refusal::OuterLost)),
        Outcome::Denied { denied } => Err(MissingRights::of(&denied, location).error(location)),
        other => Err(unexpected(&other)),
    }
}

/// The error for an outcome that the operation does not have, or that says that the lock cannot be used.
pub(super) fn unexpected(outcome: &Outcome) -> StoreError {
    let Outcome::OtherFormat { format } = outcome else { return nonsense() };
    let format = format.as_deref().unwrap_or("unknown");
    StoreError::Config(format!("{OTHER_FORMAT} (format {}, known: 1 and 2)", secret::scrubbed(format)))
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

fn busy(reply: BusyReply, recipe: Recipe) -> Busy {
    let (kind, remaining) = (reply.kind.as_str(), time(reply.remaining));
    let position = Some(reply.position).filter(|position| *position > 0);
    let call_remaining = Duration::from_millis(reply.call_remaining);
    let records = reply.records.iter().filter_map(|record| serde_json::from_str::<HolderRecord>(record).ok());
    let mut holders: Vec<Holder> =
        records.map(|record| Holder { remaining, ..record.holder(reply.now) }).collect();
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.age));
    let more = reply.holders.saturating_sub(holders.len());
    if holders.is_empty() && kind != "free" {
        holders.push(Holder {
            remaining,
            hint: hint(kind, remaining, recipe),
            immortal: remaining.is_none(),
            ..Holder::default()
        });
    }
    let again = match position {
        _ if !call_remaining.is_zero() => call_remaining + Duration::from_millis(1),
        place => remaining.map_or(Duration::MAX, |rest| rest + delay_after_lease(place)),
    };
    let again = if position.is_some() && !reply.can_be_notified { Again::Poll } else { Again::Within(again) };
    Busy { holders, more, position, promised: !call_remaining.is_zero(), again }
}

/// Returns how long after the end of the holder's lease a waiter sends a request, even if it is not notified: the
/// waiters ahead may have died with the holder. Those that are alive get the lock first.
fn delay_after_lease(place: Option<u32>) -> Duration {
    match place {
        None | Some(0 | 1) => Duration::from_millis(1),
        Some(place) => FIRST_DELAY + DELAY_PER_WAITER.saturating_mul(place - 2),
    }
}

/// Returns which client a key was probably made by, from its type (the clients' sources), and what to do. `rwlock` is
/// the hash of Redisson's `RReadWriteLock`.
pub(super) fn hint(kind: &str, remaining: Option<Duration>, recipe: Recipe) -> Option<String> {
    let looks_like = match kind {
        "dlock" => return None,
        _ if kind == recipe.key_type() => {
            let immortal = "a key without expiry, which stays until it is deleted";
            return remaining.is_none().then(|| immortal.to_owned());
        }
        "rwlock" => {
            return Some(
                "a key of type hash, as Redisson's RReadWriteLock makes it (no recipe supports it: use another name)".into(),
            );
        }
        "string" => ", as most clients make it (recipe=plain)",
        "hash" => ", as Redisson makes it (recipe=redisson)",
        "zset" => ", as Symfony makes it (no recipe supports it)",
        "list" => ", as python-redis-lock's signals are (recipe=python-redis-lock takes its locks)",
        _ => ", perhaps data, not a lock",
    };
    Some(format!("a key of type {}{looks_like}", secret::scrubbed(kind)))
}

/// Returns the result of a renewal with this lease.
///
/// # Errors
/// The reply is invalid.
pub(super) fn renewal(outcome: &Outcome, lease: Duration) -> Result<Renewal, StoreError> {
    match outcome {
        Outcome::Renewed { revocation: text } => {
            Ok(Renewal::Held { lease: Some(lease), revoked: text.as_deref().map(revocation) })
        }
        Outcome::Gone => Ok(Renewal::Lost(Loss::Gone)),
        Outcome::Taken => Ok(Renewal::Lost(Loss::Taken)),
        other => Err(unexpected(other)),
    }
}

/// Returns the result of a release.
///
/// # Errors
/// The reply is invalid.
pub(super) fn release(reply: LockReply) -> Result<Release, StoreError> {
    match (&reply.outcome, reply.unrecorded) {
        (Outcome::Released | Outcome::Kept, Some(why)) => Ok(Release::Unrecorded(why)),
        (Outcome::Released, None) => Ok(Release::Released),
        (Outcome::Kept, None) => Ok(Release::Kept),
        (Outcome::Gone | Outcome::Taken, _) => Ok(Release::NotHeld),
        (other, _) => Err(unexpected(other)),
    }
}

/// Reads the revocation of a hold. Any text in this place is one, even if it cannot be read.
pub(super) fn revocation(text: &str) -> Revocation {
    let unreadable = |_| Revocation { by: "an unknown user".into(), reason: None };
    serde_json::from_str(text).unwrap_or_else(unreadable)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::redis::location::tests::location;

    #[test]
    fn waiters_ask_one_after_another_when_the_lease_ends() {
        for (position, ms) in [(None, 1), (Some(1), 1), (Some(2), 50), (Some(4), 250)] {
            assert_eq!(delay_after_lease(position), Duration::from_millis(ms), "{position:?}");
        }
    }

    #[test]
    fn replies_with_invalid_values_are_rejected() {
        let attempt = |json: &str| {
            let reply: LockReply = read(&Value::BulkString(json.into()))?;
            attempt(reply.outcome, None, &location("redis://h").expect("good"))
        };
        for json in [
            "",
            "1",
            "{}",
            r#"{"outcome":"granted"}"#,
            r#"{"outcome":"granted","fencing":7,"lease":1000}"#,
            r#"{"outcome":"granted","fencing":"9007199254740992","lease":1000}"#,
            r#"{"outcome":"granted","fencing":"7","lease":-1}"#,
            r#"{"outcome":"outer_mode","mode":"z","slots":1}"#,
            r#"{"outcome":"gone"}"#,
        ] {
            assert!(attempt(json).is_err(), "{json}");
        }
        let slots = attempt(r#"{"outcome":"other_slots","slots":3}"#);
        assert_eq!(slots, Ok(Attempt::Refused(Refusal::Slots(3))));
    }

    /// A script writes large numbers in this form, for instance the expiry of a key of another program.
    #[test]
    fn a_time_may_be_larger_than_any_integer() {
        let reply = r#"{"outcome":"busy","kind":"string","remaining":9.2233720368548e+18,"position":0,
            "call_remaining":0,"now":1,"can_be_notified":true,"holders":0}"#;
        let reply: LockReply = read(&Value::BulkString(reply.into())).expect("a reply");
        let Outcome::Busy(reply) = reply.outcome else { panic!("{reply:?}") };
        assert!(busy(reply, Recipe::Plain).holders[0].remaining > Some(Duration::from_secs(1 << 50)));
    }
}

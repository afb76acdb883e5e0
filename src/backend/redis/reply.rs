//! Parses the replies of the scripts. The server is not trusted: replies that make no sense are rejected.

use std::time::Duration;

use redis::Value;
use serde::Deserialize;

use super::recipe::Recipe;
use crate::backend::admin::OTHER_FORMAT;
use crate::backend::{Again, Attempt, Busy, Loss, Refusal, Release, Renewal, StoreError};
use crate::lock::{FencingToken, Grant, Holder, Identity, Mode, Revocation};
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

/// Parses the reply to `ACQUIRE`.
///
/// # Errors
/// The reply is invalid, or says that the lock cannot be used.
pub(super) fn attempt(reply: &[Value], recipe: Recipe) -> Result<Attempt, StoreError> {
    match number(reply.first()) {
        Some(1) => granted(reply).map(Attempt::Granted),
        Some(0) => busy(reply, recipe).map(Attempt::Busy),
        Some(-2) => Err(StoreError::Config("the fencing counter is exhausted (2^53)".into())),
        Some(-3) => {
            let slots = count(reply.get(2));
            let outer = match (text(reply.get(1)), slots) {
                (Some("s"), _) => Mode::Shared,
                (Some("c"), Some(slots)) => Mode::of_slots(slots),
                _ => return Err(nonsense()),
            };
            Ok(Attempt::Refused(Refusal::Inside(outer)))
        }
        Some(-4) => {
            let slots = count(reply.get(1)).ok_or_else(nonsense)?;
            Ok(Attempt::Refused(Refusal::Slots(slots)))
        }
        Some(-5) => Ok(Attempt::Refused(Refusal::OuterLost)),
        Some(-6) => Err(other_format(reply)),
        _ => Err(nonsense()),
    }
}

/// Returns the reply to `ACQUIRE` without the prefix of a node of a Redlock.
pub(super) fn of_lock(reply: &[Value]) -> &[Value] {
    match reply.last() {
        Some(Value::Array(of_lock)) => of_lock,
        _ => reply,
    }
}

/// `{-6, format}`
pub(super) fn other_format(reply: &[Value]) -> StoreError {
    let format = text(reply.get(1)).unwrap_or("unknown");
    StoreError::Config(format!("{OTHER_FORMAT} (format {format}, known: 1 and 2)"))
}

/// `{1, fencing, lease, slot, eviction}`
fn granted(reply: &[Value]) -> Result<Grant, StoreError> {
    let fencing = text(reply.get(1)).and_then(|text| FencingToken::new(text.parse().ok()?));
    let lease = count(reply.get(2));
    let (Some(fencing), Some(lease), Some(slot)) = (fencing, lease, number(reply.get(3))) else {
        return Err(nonsense());
    };
    Ok(Grant {
        fencing: Some(fencing),
        lease: Some(Duration::from_millis(lease)),
        slot: u32::try_from(slot).ok(),
    })
}

/// `{0, remaining lease, kind, queue position, remaining time of a call, now, whether the client can be notified,
/// number of holders, eviction, records of some holders...}`
fn busy(reply: &[Value], recipe: Recipe) -> Result<Busy, StoreError> {
    let ms = |value: Option<&Value>| count(value).map(Duration::from_millis);
    // PTTL returns -1 for a key without expiry: when that ends is unknown.
    let remaining = ms(reply.get(1));
    let kind = text(reply.get(2)).ok_or_else(nonsense)?;
    let position = count(reply.get(3)).filter(|place| *place > 0);
    let call_remaining = ms(reply.get(4)).unwrap_or_default();
    let now = count(reply.get(5)).ok_or_else(nonsense)?;
    let can_be_notified = number(reply.get(6)).ok_or_else(nonsense)? == 1;
    let all: usize = count(reply.get(7)).ok_or_else(nonsense)?;
    let mut holders: Vec<Holder> = Vec::new();
    for value in &reply[reply.len().min(9)..] {
        let Some(Ok(record)) = text(Some(value)).map(serde_json::from_str::<HolderRecord>) else { continue };
        holders.push(Holder { remaining, ..record.holder(now) });
    }
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.age));
    let more = all.saturating_sub(holders.len());
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
    let again = if position.is_some() && !can_be_notified { Again::Poll } else { Again::Within(again) };
    Ok(Busy { holders, more, position, promised: !call_remaining.is_zero(), again })
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

/// Parses the reply to `RENEW` with this lease.
///
/// # Errors
/// The reply is invalid.
pub(super) fn renewal(reply: &[Value], lease: Duration) -> Result<Renewal, StoreError> {
    match number(reply.first()) {
        Some(1) => Ok(Renewal::Held { lease: Some(lease), revoked: revocation(reply.get(1)) }),
        Some(0) => Ok(Renewal::Lost(Loss::Gone)),
        Some(-1) => Ok(Renewal::Lost(Loss::Taken)),
        Some(-6) => Err(other_format(reply)),
        _ => Err(nonsense()),
    }
}

/// Parses the reply to `RELEASE`.
///
/// # Errors
/// The reply is invalid.
pub(super) fn release(reply: &[Value]) -> Result<Release, StoreError> {
    match number(reply.first()) {
        Some(1) => Ok(Release::Released),
        Some(2) => Ok(Release::Kept),
        Some(0 | -1) => Ok(Release::NotHeld),
        Some(-6) => Err(other_format(reply)),
        _ => Err(nonsense()),
    }
}

/// Returns the revocation of a hold, if there is one. Any text in this place is one, even if it cannot be read.
pub(super) fn revocation(value: Option<&Value>) -> Option<Revocation> {
    let unreadable = || Revocation { by: "an unknown user".into(), reason: None };
    text(value).map(|text| serde_json::from_str(text).unwrap_or_else(|_| unreadable()))
}

/// Returns the eviction policy in the reply to a claim; `None` if the server does not evict keys, locks among them.
pub(super) fn eviction(reply: &[Value]) -> Option<String> {
    let policy = match number(reply.first()) {
        Some(1) => text(reply.get(4)),
        Some(0) => text(reply.get(8)),
        _ => None,
    };
    policy.filter(|policy| !policy.is_empty()).map(|policy| secret::scrubbed(policy).into_owned())
}

/// A number that is not negative, and not too large.
pub(super) fn count<T: TryFrom<i64>>(value: Option<&Value>) -> Option<T> {
    number(value)?.try_into().ok()
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

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn a_key_type_of_another_recipe_is_attributed_to_that_recipe() {
        use Recipe::{Plain, PythonRedisLock, Redisson};
        let second = Some(Duration::from_secs(1));
        for (kind, remaining, recipe, expected) in [
            ("string", second, Plain, None),
            ("string", None, Plain, Some("without expiry")),
            ("string", second, PythonRedisLock, None),
            ("string", second, Redisson, Some("(recipe=plain)")),
            ("string", None, Redisson, Some("(recipe=plain)")),
            ("hash", second, Redisson, None),
            ("hash", None, Redisson, Some("without expiry")),
            ("hash", second, Plain, Some("(recipe=redisson)")),
            ("hash", second, PythonRedisLock, Some("(recipe=redisson)")),
            ("rwlock", second, Plain, Some("RReadWriteLock")),
            ("rwlock", second, Redisson, Some("RReadWriteLock")),
            ("list", None, Plain, Some("recipe=python-redis-lock")),
            ("list", None, PythonRedisLock, Some("recipe=python-redis-lock")),
        ] {
            let hint = hint(kind, remaining, recipe);
            let fits = match expected {
                Some(expected) => hint.as_deref().is_some_and(|hint| hint.contains(expected)),
                None => hint.is_none(),
            };
            assert!(fits, "{kind} {recipe:?}: {hint:?}");
        }
    }

    #[test]
    fn waiters_ask_one_after_another_when_the_lease_ends() {
        for (position, ms) in [(None, 1), (Some(1), 1), (Some(2), 50), (Some(4), 250)] {
            assert_eq!(delay_after_lease(position), Duration::from_millis(ms), "{position:?}");
        }
    }

    #[test]
    fn invalid_replies_are_rejected() {
        for nonsense in [
            vec![],
            vec![Value::Nil],
            vec![Value::Int(7)],
            vec![Value::Int(1), Value::Nil, Value::Nil],
            vec![Value::Int(0), Value::Int(1)],
            vec![Value::Int(-4), bulk("x")],
        ] {
            assert!(attempt(&nonsense, Recipe::Plain).is_err(), "{nonsense:?}");
        }
        assert_eq!(
            attempt(&[Value::Int(-4), Value::Int(3)], Recipe::Plain),
            Ok(Attempt::Refused(Refusal::Slots(3)))
        );
    }
}

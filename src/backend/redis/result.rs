//! What the replies of the scripts mean for a claim, a renewal and a release.

use std::time::Duration;

use super::location::Location;
use super::recipe::Recipe;
use super::reply::{
    BusyReply, HolderRecord, LockReply, Outcome, freeze, mode_of, nonsense, revocation, time,
};
use super::rights::MissingRights;
use crate::backend::admin::OTHER_FORMAT;
use crate::backend::{Again, Attempt, Busy, Loss, Refusal, Release, Renewal, StoreError};
use crate::lock::{Due, FencingToken, Grant, Holder, Success, UnknownFormat};
use crate::secret;

/// The first waiter has this much time to send a request after the lease ends, before the second one does.
const FIRST_DELAY: Duration = Duration::from_millis(50);
/// ... and each later one sends its request this much after the one ahead. A request has all waiters ahead called, so
/// dead ones among them need not be waited for one by one.
const DELAY_PER_WAITER: Duration = Duration::from_millis(100);
/// A waiter asks again this long after the end of a freeze, of which nobody is notified, ...
const AFTER_FREEZE: Duration = Duration::from_millis(1);
/// ... and this much later than the waiter ahead of it.
const BETWEEN_WAITERS: Duration = Duration::from_millis(25);

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
        Outcome::Busy(reply) => Ok(Attempt::Busy(busy(reply, location.recipe)?)),
        Outcome::CounterExhausted => {
            Err(StoreError::Config("the fencing counter is exhausted (2^53)".into()))
        }
        Outcome::OuterMode { mode, slots } => {
            let outer = mode_of(&mode, slots).ok_or_else(nonsense)?;
            Ok(Attempt::Refused(Refusal::Inside(outer)))
        }
        Outcome::OtherSlots { slots } => Ok(Attempt::Refused(Refusal::Slots(slots))),
        Outcome::OuterLost => Ok(Attempt::Refused(Refusal::OuterLost)),
        Outcome::Superseded { by } => {
            let newer = serde_json::from_str(&by).map_err(|_| nonsense())?;
            Ok(Attempt::Refused(Refusal::Superseded(Box::new(newer))))
        }
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

fn busy(reply: BusyReply, recipe: Recipe) -> Result<Busy, StoreError> {
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
    let freeze = reply.freeze.as_deref().map(freeze).transpose()?.map(Box::new);
    let frozen_for = freeze.as_ref().and_then(|freeze| freeze.rest(reply.now));
    let behind = BETWEEN_WAITERS.saturating_mul(position.unwrap_or(1) - 1);
    let again = frozen_for.map_or(again, |rest| again.min(rest.saturating_add(AFTER_FREEZE + behind)));
    let again = if position.is_some() && !reply.can_be_notified { Again::Poll } else { Again::Within(again) };
    let promised = !call_remaining.is_zero();
    let ticket = reply.number.and_then(|number| number.parse().ok());
    Ok(Busy { holders, more, position, ticket, is_outside_queue: false, promised, freeze, again })
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
        (Outcome::Released | Outcome::Kept, Some(why)) => Ok(Release::SuccessNotStored(why)),
        (Outcome::Released, None) => Ok(Release::Released),
        (Outcome::Kept, None) => Ok(Release::Kept),
        (Outcome::Gone | Outcome::Taken, _) => Ok(Release::NotHeld),
        (other, _) => Err(unexpected(other)),
    }
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;
    use crate::backend::redis::location::tests::location;
    use crate::backend::redis::reply::read;
    use crate::backend::redis::script::json;
    use crate::lock::Freeze;

    #[test]
    fn waiters_ask_one_after_another_when_the_lease_ends() {
        for (position, ms) in [(None, 1), (Some(1), 1), (Some(2), 50), (Some(4), 250)] {
            assert_eq!(delay_after_lease(position), Duration::from_millis(ms), "{position:?}");
        }
    }

    #[test]
    fn waiters_ask_one_after_another_when_a_freeze_ends() {
        let freeze = |until| {
            let until = Some(until).filter(|until| *until > 0);
            json(&Freeze { id: "a".into(), by: "root@here".into(), reason: None, since: 1, until })
        };
        for (remaining, position, until, ms) in [
            (5_000, 0, 2_000, Some(1_001)),
            (5_000, 1, 2_000, Some(1_001)),
            (-2, 4, 2_000, Some(1_076)),
            (300, 0, 2_000, Some(301)),
            (300, 0, 0, Some(301)),
            (-1, 1, 0, None),
        ] {
            let reply = format!(
                r#"{{"outcome":"busy","kind":"free","remaining":{remaining},"position":{position},"call_remaining":0,
                "now":1000,"can_be_notified":true,"holders":0,"freeze":{}}}"#,
                json(&freeze(until))
            );
            let reply: LockReply = read(&Value::BulkString(reply.into())).expect("a reply");
            let attempt = attempt(reply.outcome, None, &location("redis://h").expect("good"));
            let Ok(Attempt::Busy(busy)) = attempt else { panic!("{attempt:?}") };
            let again = ms.map_or(Duration::MAX, Duration::from_millis);
            assert_eq!((busy.holders.len(), busy.again), (0, Again::Within(again)));
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
        let busy = busy(reply, Recipe::Plain).expect("a freeze that can be read");
        assert!(busy.holders[0].remaining > Some(Duration::from_secs(1 << 50)));
    }
}

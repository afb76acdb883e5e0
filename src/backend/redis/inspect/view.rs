//! Reads the replies of look.lua: the holders and waiters of a lock, and its history.

use std::time::Duration;

use redis::Value;
use serde::Deserialize;

use crate::backend::StoreError;
use crate::backend::admin::OTHER_FORMAT;
use crate::backend::redis::keys::Keys;
use crate::backend::redis::recipe::Recipe;
use crate::backend::redis::reply::{HolderRecord, count, hint, nonsense, number, revocation, text};
use crate::lock::{Holder, Identity, LockName, LockState, Mode, NotedRecord, Unknown, Waiter};

/// The state of a lock as far as it has been read.
pub(super) struct View {
    pub(super) keys: Keys,
    /// The number of holders and waiters read so far.
    pub(super) holders: u64,
    pub(super) waiters: u64,
    pub(super) is_whole: bool,
    /// The time of the state, in ms since 1970.
    now: u64,
    pub(super) state: LockState,
}

impl View {
    pub(super) fn new(name: LockName, keys: Keys) -> View {
        View { keys, holders: 0, waiters: 0, is_whole: false, now: 0, state: LockState::free(name) }
    }

    /// Records why the lock cannot be inspected.
    pub(super) fn set_unknown(&mut self, why: Unknown) {
        self.state = LockState { unknown: Some(why), ..LockState::free(self.state.name.clone()) };
        self.is_whole = true;
    }

    /// Moves the state to a later time, assuming that nothing changes.
    pub(super) fn age(&mut self, now: u64) {
        self.state.age(Duration::from_millis(now.saturating_sub(self.now)));
        self.now = now;
    }

    /// Adds one reply:
    /// `{kind, mode, slots, remaining, digest, holders seen, of, waiters seen, of, {holders...}, {waiters...}}`
    pub(super) fn add(&mut self, seen: &Value, now: u64, recipe: Recipe) -> Result<(), StoreError> {
        let Value::Array(seen) = seen else { return Err(nonsense()) };
        let (Some(kind), Some(mode), Some(remaining)) =
            (text(seen.first()), text(seen.get(1)), number(seen.get(3)))
        else {
            return Err(nonsense());
        };
        let (Some(holders), Some(of_holders), Some(waiters), Some(of_waiters)) =
            (count(seen.get(5)), count(seen.get(6)), count(seen.get(7)), count(seen.get(8)))
        else {
            return Err(nonsense());
        };
        let (Some(Value::Array(held)), Some(Value::Array(queue))) = (seen.get(9), seen.get(10)) else {
            return Err(nonsense());
        };
        let remaining = remaining.try_into().ok().map(Duration::from_millis);
        let slots = count(seen.get(2)).unwrap_or(0);
        self.age(now);
        self.state.mode = mode_of(mode, slots);
        if kind != "none" && !matches!(mode, "x" | "s" | "c") {
            let hint = match mode {
                "?" => Some(OTHER_FORMAT.to_owned()),
                _ => hint(kind, remaining, recipe),
            };
            let digest = text(seen.get(4)).filter(|digest| !digest.is_empty()).map(str::to_owned);
            self.state.holders =
                vec![Holder { remaining, hint, digest, immortal: remaining.is_none(), ..Holder::default() }];
        } else {
            self.state.holders.extend(held.iter().map(|holder| self::holder(holder, now)));
        }
        self.state.waiters.extend(queue.iter().filter_map(|waiter| self::waiter(waiter, now)));
        let advanced = holders > self.holders || waiters > self.waiters;
        self.is_whole = !advanced || holders >= of_holders && waiters >= of_waiters;
        (self.holders, self.waiters) = (holders, waiters);
        if self.is_whole {
            self.state.holders.sort_by_key(|holder| std::cmp::Reverse(holder.age));
        }
        Ok(())
    }
}

fn mode_of(mode: &str, slots: u32) -> Option<Mode> {
    match mode {
        "x" => Some(Mode::Exclusive),
        "s" => Some(Mode::Shared),
        "c" => Some(Mode::of_slots(slots)),
        _ => None,
    }
}

/// Reads `{record, remaining lease, slot, whether the token is ours, revocation}`.
fn holder(value: &Value, now: u64) -> Holder {
    let Value::Array(parts) = value else { return Holder::default() };
    let record = text(parts.first()).and_then(|text| serde_json::from_str::<HolderRecord>(text).ok());
    let unreadable = || Holder { hint: Some("its record cannot be read".into()), ..Holder::default() };
    Holder {
        remaining: count(parts.get(1)).map(Duration::from_millis),
        slot: text(parts.get(2)).and_then(|slot| slot.parse().ok()),
        ours: number(parts.get(3)) == Some(1),
        revoked: revocation(parts.get(4)),
        ..record.map_or_else(unreadable, |record| record.holder(now))
    }
}

/// Reads `{mode, slots, queue number, identity}`.
fn waiter(value: &Value, now: u64) -> Option<Waiter> {
    let Value::Array(parts) = value else { return None };
    let slots = count(parts.get(1)).unwrap_or(1);
    let since: f64 = text(parts.get(2))?.parse().ok()?;
    Some(Waiter {
        identity: text(parts.get(3)).and_then(|text| serde_json::from_str::<Identity>(text).ok()),
        mode: mode_of(text(parts.first())?, slots)?,
        // Queue numbers are times in microseconds, or larger if several waiters arrived at the same time.
        waiting: Duration::from_millis(now.saturating_sub((since / 1000.0) as u64)),
    })
}

/// Reads one entry of the history: `TIME JSON`.
pub(super) fn record(value: &Value) -> Option<NotedRecord> {
    let (at, record) = text(Some(value))?.split_once(' ')?;
    let mut record = serde_json::Deserializer::from_str(record);
    Some((at.parse().ok()?, Deserialize::deserialize(&mut record).ok()?))
}

//! The requests and replies of script/look.lua: the holders and waiters of a lock; and the entries of its history.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::backend::admin::OTHER_FORMAT;
use crate::backend::redis::keys::Keys;
use crate::backend::redis::recipe::Recipe;
use crate::backend::redis::reply::{HolderRecord, freeze, mode_of, revocation, time};
use crate::backend::redis::result::hint;
use crate::lock::{Holder, Identity, LockName, LockState, NotedRecord, Success, Unknown, Waiter};

/// Asks for the state of some locks.
#[derive(Serialize)]
pub(super) struct LookRequest<'a> {
    pub(super) index: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<&'a str>,
    /// The type of a lock's key by the recipe.
    pub(super) own_type: &'static str,
    pub(super) locks: Vec<StateRequest<'a>>,
}

/// Asks for the state of one lock, without the holders and waiters that have been read already.
#[derive(Serialize)]
pub(super) struct StateRequest<'a> {
    lock: &'a str,
    tail: &'a str,
    holders_seen: u64,
    waiters_seen: u64,
}

/// The state of the first of these locks.
#[derive(Deserialize)]
pub(super) struct LookReply {
    /// In ms since 1970.
    pub(super) now: u64,
    pub(super) locks: Vec<StateReply>,
}

/// The state of one lock. Numbers that are stored beside the lock are texts, because they may be anything.
#[derive(Deserialize)]
pub(super) struct StateReply {
    /// The type of the key, or `none`.
    kind: String,
    /// Empty for the lock of another program, `?` for one in an unknown format.
    mode: String,
    slots: String,
    /// In ms; negative if the key has no expiry. Expiries that other programs set may exceed all integers.
    remaining: f64,
    /// Of the value of another program.
    digest: Option<String>,
    /// How many have been read, including those of earlier replies, and their number.
    holders_seen: u64,
    of_holders: u64,
    waiters_seen: u64,
    of_waiters: u64,
    #[serde(default)]
    holders: Vec<HolderReply>,
    #[serde(default)]
    waiters: Vec<WaiterReply>,
    /// The record of the last success; empty if there is none.
    success: String,
    /// The freeze, as JSON; perhaps it has just ended.
    #[serde(default)]
    freeze: Option<String>,
    /// The slot of the lock is migrating, and only the other node knows whether it is frozen.
    #[serde(default)]
    is_freeze_elsewhere: bool,
}

#[derive(Deserialize)]
struct HolderReply {
    record: String,
    /// In ms.
    remaining: f64,
    slot: String,
    is_ours: bool,
    revocation: Option<String>,
}

#[derive(Deserialize)]
struct WaiterReply {
    mode: String,
    slots: String,
    number: String,
    identity: String,
}

/// The state of a lock as far as it has been read.
pub(super) struct View {
    pub(super) keys: Keys,
    pub(super) holders: u64,
    pub(super) waiters: u64,
    pub(super) is_whole: bool,
    /// See [`StateReply::is_freeze_elsewhere`].
    pub(super) is_freeze_elsewhere: bool,
    /// The time of the state, in ms since 1970.
    now: u64,
    pub(super) state: LockState,
}

impl View {
    pub(super) fn new(name: LockName, keys: Keys) -> View {
        let state = LockState::free(name);
        View { keys, holders: 0, waiters: 0, is_whole: false, is_freeze_elsewhere: false, now: 0, state }
    }

    /// Records why the lock cannot be inspected.
    pub(super) fn set_unknown(&mut self, why: Unknown) {
        self.state = LockState { unknown: Some(why), ..LockState::free(self.state.name.clone()) };
        self.is_whole = true;
    }

    /// Adds the freeze, as JSON, unless it has just ended.
    pub(super) fn set_freeze(&mut self, text: Option<&str>) {
        match text.map(freeze).transpose() {
            Ok(freeze) => self.state.freeze = freeze.filter(|freeze| freeze.rest(self.now).is_some()),
            Err(error) => self.set_unknown(error.into()),
        }
    }

    /// Moves the state to a later time, assuming that nothing changes.
    pub(super) fn age(&mut self, now: u64) {
        self.state.age(Duration::from_millis(now.saturating_sub(self.now)));
        self.now = now;
    }

    /// Returns the request for what has not been read yet.
    pub(super) fn request(&self) -> StateRequest<'_> {
        let Keys { lock, tail, .. } = &self.keys;
        StateRequest { lock, tail, holders_seen: self.holders, waiters_seen: self.waiters }
    }

    pub(super) fn add(&mut self, reply: StateReply, now: u64, recipe: Recipe) {
        let (kind, mode, remaining) = (reply.kind.as_str(), reply.mode.as_str(), time(reply.remaining));
        self.age(now);
        self.state.mode = mode_of(mode, reply.slots.parse().unwrap_or(0));
        if kind != "none" && self.state.mode.is_none() {
            let hint = match mode {
                "?" => Some(OTHER_FORMAT.to_owned()),
                _ => hint(kind, remaining, recipe),
            };
            let (digest, immortal) = (reply.digest, remaining.is_none());
            self.state.holders = vec![Holder { remaining, hint, digest, immortal, ..Holder::default() }];
        } else {
            self.state.holders.extend(reply.holders.into_iter().map(|holder| holder.holder(now)));
        }
        self.state.waiters.extend(reply.waiters.into_iter().filter_map(|waiter| waiter.waiter(now)));
        let advanced = reply.holders_seen > self.holders || reply.waiters_seen > self.waiters;
        let is_complete = reply.holders_seen >= reply.of_holders && reply.waiters_seen >= reply.of_waiters;
        self.is_whole = !advanced || is_complete;
        (self.holders, self.waiters) = (reply.holders_seen, reply.waiters_seen);
        self.state.last_success =
            serde_json::from_str(&reply.success).ok().and_then(|stored| Success::parse(&stored).ok());
        self.is_freeze_elsewhere = reply.is_freeze_elsewhere;
        self.set_freeze(reply.freeze.as_deref());
        if self.is_whole {
            // The lock outlives its last member if several had it.
            self.state.mode = self.state.mode.filter(|_| !self.state.holders.is_empty());
            self.state.holders.sort_by_key(|holder| std::cmp::Reverse(holder.age));
        }
    }
}

impl HolderReply {
    fn holder(self, now: u64) -> Holder {
        let unreadable = |_| Holder { hint: Some("its record cannot be read".into()), ..Holder::default() };
        let record = serde_json::from_str(&self.record);
        Holder {
            remaining: time(self.remaining),
            slot: self.slot.parse().ok(),
            ours: self.is_ours,
            revoked: self.revocation.as_deref().map(revocation),
            ..record.map_or_else(unreadable, |record: HolderRecord| record.holder(now))
        }
    }
}

impl WaiterReply {
    fn waiter(self, now: u64) -> Option<Waiter> {
        let since: f64 = self.number.parse().ok()?;
        Some(Waiter {
            identity: serde_json::from_str::<Identity>(&self.identity).ok(),
            mode: mode_of(&self.mode, self.slots.parse().unwrap_or(1))?,
            // Queue numbers are times in microseconds, or larger if several waiters arrived at the same time.
            waiting: Duration::from_millis(now.saturating_sub((since / 1000.0) as u64)),
        })
    }
}

/// Reads one entry of the history: `TIME JSON`.
pub(super) fn record(entry: &str) -> Option<NotedRecord> {
    let (at, record) = entry.split_once(' ')?;
    let mut record = serde_json::Deserializer::from_str(record);
    Some((at.parse().ok()?, Deserialize::deserialize(&mut record).ok()?))
}

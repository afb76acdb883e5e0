//! The JSON of `dlock status`, its keys in the order of the contract.

use std::time::Duration;

use serde::Serialize;

use super::began;
use crate::backend::admin::Inspection;
use crate::lock::{FencingToken, LockName, LockState, Mode, NotedRecord, Waiter};
use crate::report::{HolderView, IdentityView, json, milliseconds, time};

#[derive(Serialize)]
struct StatusView<'a, L> {
    version: u32,
    backend: &'a str,
    locks: Vec<L>,
}

#[derive(Serialize)]
struct LockView<'a> {
    name: &'a str,
    state: &'static str,
    mode: Option<&'static str>,
    slots: Option<u32>,
    holders: Vec<HolderView<'a>>,
    waiters: Vec<WaiterView<'a>>,
}

#[derive(Serialize)]
struct WaiterView<'a> {
    host: Option<&'a str>,
    pid: Option<u32>,
    user: Option<&'a str>,
    mode: &'static str,
    waiting_ms: u64,
    command: Option<&'a str>,
    note: Option<&'a str>,
    url: Option<&'a str>,
}

/// Returns one JSON object on one line.
pub fn status_json(store: &str, seen: &Inspection) -> String {
    let now = Duration::from_millis(seen.now_ms);
    let locks = seen.locks.iter().map(|lock| LockView::new(lock, now)).collect();
    json(&StatusView { version: 1, backend: store, locks })
}

impl LockView<'_> {
    fn new(lock: &LockState, now: Duration) -> LockView<'_> {
        LockView {
            name: lock.name.as_str(),
            state: match (&lock.unknown, lock.holders.is_empty()) {
                (Some(_), _) => "unknown",
                (None, true) => "free",
                (None, false) => "held",
            },
            mode: lock.mode.map(Mode::as_str),
            slots: match lock.mode {
                Some(Mode::Exclusive) => Some(1),
                Some(Mode::Slots(slots)) => Some(slots),
                Some(Mode::Shared) | None => None,
            },
            holders: lock.holders.iter().map(|holder| HolderView::new(holder, now)).collect(),
            waiters: lock.waiters.iter().map(WaiterView::new).collect(),
        }
    }
}

impl WaiterView<'_> {
    fn new(waiter: &Waiter) -> WaiterView<'_> {
        let identity = waiter.identity.as_ref();
        WaiterView {
            host: identity.map(|identity| identity.host.as_str()),
            pid: identity.map(|identity| identity.pid),
            user: identity.map(|identity| identity.user.as_str()),
            mode: waiter.mode.as_str(),
            waiting_ms: milliseconds(waiter.waiting),
            command: identity.map(|identity| identity.command.as_str()),
            note: identity.and_then(|identity| identity.note.as_deref()),
            url: identity.and_then(|identity| identity.url.as_deref()),
        }
    }
}

#[derive(Serialize)]
struct HistoryView<'a> {
    name: &'a str,
    history: Vec<RecordView<'a>>,
}

#[derive(Serialize)]
struct RecordView<'a> {
    began_at: String,
    outcome: &'a str,
    dlock_exit: i32,
    exit_status: Option<i32>,
    signal: Option<i32>,
    #[serde(flatten)]
    identity: IdentityView<'a>,
    fencing_token: Option<FencingToken>,
    waited_ms: u64,
    held_ms: Option<u64>,
    holder: Option<WhoView<'a>>,
    reason: Option<&'a str>,
    error: Option<&'a str>,
}

#[derive(Serialize)]
struct WhoView<'a> {
    host: &'a str,
    pid: u32,
    user: &'a str,
    command: &'a str,
}

pub fn history_json(store: &str, histories: &[(LockName, Vec<NotedRecord>)]) -> String {
    let locks = histories
        .iter()
        .map(|(name, records)| HistoryView {
            name: name.as_str(),
            history: records.iter().map(record_view).collect(),
        })
        .collect();
    json(&StatusView { version: 1, backend: store, locks })
}

fn record_view((at, record): &NotedRecord) -> RecordView<'_> {
    RecordView {
        began_at: time(Duration::from_millis(began(*at, record))),
        outcome: &record.outcome,
        dlock_exit: record.dlock_exit,
        exit_status: record.exit_status,
        signal: record.signal,
        identity: IdentityView::new(Some(&record.identity)),
        fencing_token: record.fencing_token,
        waited_ms: record.waited_ms,
        held_ms: record.held_ms,
        holder: record.holder.as_ref().map(|holder| WhoView {
            host: &holder.host,
            pid: holder.pid,
            user: &holder.user,
            command: &holder.command,
        }),
        reason: record.reason.as_deref(),
        error: record.error.as_deref(),
    }
}

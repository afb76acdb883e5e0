//! Outcomes at known times, as dlocks store them.

use crate::support::dlock::Dlock;
use crate::support::store::Store;
use serde_json::{Value, json};

/// 2026-11-26 22:00 in Berlin, in ms since 1970.
pub const EVENING: u64 = 1_795_726_800_000;
pub const MINUTE: u64 = 60_000;

/// A run that ended this many minutes after the evening began.
pub fn ran(host: &str, minutes: u64, held: u64, status: i32) -> (u64, Value) {
    let record = json!({"outcome": "ran", "identity": identity(host), "dlock_exit": status, "exit_status": status,
        "fencing_token": minutes + 1, "waited_ms": 0, "held_ms": held * MINUTE});
    (EVENING + minutes * MINUTE, record)
}

/// An attempt that was given up this many minutes after the evening began, because this host held the lock.
pub fn contended(host: &str, minutes: u64, waited: u64, holder: &str) -> (u64, Value) {
    let record = json!({"outcome": "contended", "identity": identity(host), "dlock_exit": 75,
        "waited_ms": waited * MINUTE, "holder": identity(holder)});
    (EVENING + minutes * MINUTE, record)
}

fn identity(host: &str) -> Value {
    json!({"host": host, "pid": 7, "user": "root", "command": "backup.sh"})
}

/// Stores the history of a lock, the latest record last.
pub fn plant(store: &Store, name: &str, records: &[(u64, Value)]) {
    if store.url().starts_with("file:") {
        let line = |(at, record): &(u64, Value)| {
            let mut line = record.clone();
            line["at"] = (*at).into();
            format!("{line}\n")
        };
        let path = store.place.path(&format!("locks/{name}%history.dlock"));
        return std::fs::write(path, records.iter().map(line).collect::<String>()).unwrap();
    }
    let key = store.space().key(name);
    for (at, record) in records {
        let kind = if record["held_ms"].is_null() { "missed" } else { "history" };
        store.space().command(&["LPUSH", &format!("dlock#{kind}:{{{key}}}"), &format!("{at} {record}")]);
    }
}

/// `dlock history` on this store, in Berlin.
pub fn history(store: &Store) -> Dlock {
    store.place.bare().args(["history", "--backend", store.url()]).env("TZ", "Europe/Berlin")
}

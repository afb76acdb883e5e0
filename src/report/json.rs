//! The JSON that dlock prints: its keys in the order of the contract, unknown values null.

use std::time::Duration;

use serde_json::{Value, json};

use super::{is_unsafe, milliseconds, time};
use crate::backend::admin::Inspection;
use crate::lock::{
    History, Holder, Identity, LockName, LockState, Mode, NotDue, NotedRecord, Success, Waiter,
};

/// Formats one object on one line, safe for a terminal as [`super::printable`] text is, without changing its meaning.
pub fn line(object: &Value) -> String {
    let mut safe = String::new();
    for c in object.to_string().chars() {
        // Only strings have such characters, and in a string this is the same character (RFC 8259, section 7).
        if is_unsafe(c) {
            let mut units = [0; 2];
            safe.extend(c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            safe.push(c);
        }
    }
    safe.push('\n');
    safe
}

/// Returns the state of the locks, for `status --json`.
pub fn status(store: &str, seen: &Inspection) -> String {
    let locks: Value = seen.locks.iter().map(lock).collect();
    line(&json!({"version": 1, "backend": store, "locks": locks}))
}

fn lock(lock: &LockState) -> Value {
    let state = match (&lock.unknown, lock.holders.is_empty(), &lock.freeze) {
        (Some(_), ..) => "unknown",
        (None, false, _) => "held",
        (None, true, Some(_)) => "frozen",
        (None, true, None) => "free",
    };
    let is_foreign = !lock.holders.is_empty() && lock.holders.iter().all(|holder| holder.identity.is_none());
    let mode = lock.mode.filter(|_| !is_foreign);
    let slots = match mode {
        Some(Mode::Exclusive) => Some(1),
        Some(Mode::Slots(slots)) => Some(slots),
        Some(Mode::Shared) | None => None,
    };
    json!({
        "name": lock.name.as_str(),
        "state": state,
        "mode": mode.map(Mode::as_str),
        "slots": slots,
        "holders": lock.holders.iter().map(holder).collect::<Value>(),
        "waiters": lock.waiters.iter().map(waiter).collect::<Value>(),
        "freeze": lock.freeze.as_ref().map(super::freeze::json),
        "last_success": lock.last_success.as_ref().map(success),
    })
}

/// Returns a holder.
pub(super) fn holder(holder: &Holder) -> Value {
    let rest = json!({
        "phase": holder.phase().as_str(),
        "slot": holder.slot,
        "acquired_at": holder.acquired_at.map(time),
        "expires_in_ms": holder.remaining.map(milliseconds),
        "immortal": holder.immortal,
        "fencing_token": holder.fencing,
        "foreign": holder.identity.is_none(),
        "waits_for": holder.waits_for.as_ref().map(LockName::as_str),
    });
    merged([identity(holder.identity.as_ref()), rest])
}

/// Returns what a dlock says about itself; `None` is another client.
fn identity(identity: Option<&Identity>) -> Value {
    json!({
        "host": identity.map(|identity| &identity.host),
        "pid": identity.map(|identity| identity.pid),
        "user": identity.map(|identity| &identity.user),
        "command": identity.map(|identity| &identity.command),
        "note": identity.and_then(|identity| identity.note.as_ref()),
        "url": identity.and_then(|identity| identity.url.as_ref()),
    })
}

/// Returns a run with `--once-per` that ended with status 0.
fn success(success: &Success) -> Value {
    json!({
        "host": success.host,
        "pid": success.pid,
        "user": success.user,
        "granted_at": time(Duration::from_millis(success.granted_at)),
        "ended_at": time(Duration::from_millis(success.ended_at)),
        "fencing_token": success.fencing_token,
    })
}

/// Returns why a run with `--once-per` is not due.
pub(super) fn done(not_due: &NotDue) -> Value {
    merged([success(&not_due.last), json!({"due_in_ms": milliseconds(not_due.due_in)})])
}

fn waiter(waiter: &Waiter) -> Value {
    let identity = waiter.identity.as_ref();
    json!({
        "host": identity.map(|identity| &identity.host),
        "pid": identity.map(|identity| identity.pid),
        "user": identity.map(|identity| &identity.user),
        "mode": waiter.mode.as_str(),
        "waiting_ms": milliseconds(waiter.waiting),
        "command": identity.map(|identity| &identity.command),
        "note": identity.and_then(|identity| identity.note.as_ref()),
        "url": identity.and_then(|identity| identity.url.as_ref()),
    })
}

/// Returns the history of each lock, for `history --json`.
pub fn history(store: &str, histories: &[History]) -> String {
    let lock = |History { name, records }: &History| json!({"name": name.as_str(), "history": records.iter().map(record).collect::<Value>()});
    let locks: Value = histories.iter().map(lock).collect();
    line(&json!({"version": 1, "backend": store, "locks": locks}))
}

fn record((at, record): &NotedRecord) -> Value {
    let ended = json!({
        "began_at": time(Duration::from_millis(record.began(*at))),
        "outcome": record.outcome,
        "dlock_exit": record.dlock_exit,
        "exit_status": record.exit_status,
        "signal": record.signal,
        "interrupted": record.interrupted,
    });
    let holder = record.holder.as_ref().map(
        |Identity { host, pid, user, command, .. }| json!({"host": host, "pid": pid, "user": user, "command": command}),
    );
    let rest = json!({
        "fencing_token": record.fencing_token,
        "waited_ms": record.waited_ms,
        "held_ms": record.held_ms,
        "kept_ms": record.kept_ms,
        "holder": holder,
        "reason": record.reason,
        "error": record.error,
    });
    merged([ended, identity(Some(&record.identity)), rest])
}

/// Returns one object with the keys of all.
fn merged<const N: usize>(objects: [Value; N]) -> Value {
    let entries = objects.into_iter().filter_map(|object| match object {
        Value::Object(entries) => Some(entries),
        _ => None,
    });
    Value::Object(entries.flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_safe_for_a_terminal_and_has_the_same_meaning() {
        let object = json!({"note": "\u{1b}[2J\n\u{202e}\u{e0001} größe 🔒"});
        let line = line(&object);
        assert_eq!(line, "{\"note\":\"\\u001b[2J\\n\\u202e\\udb40\\udc01 größe 🔒\"}\n");
        assert_eq!(serde_json::from_str::<Value>(&line).ok(), Some(object));
    }
}

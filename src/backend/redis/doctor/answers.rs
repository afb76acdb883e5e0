//! The answers of one server to the questions that every store answers.

use std::collections::HashMap;

use redis::{Value, from_redis_value_ref};

use super::super::reply::number;
use super::Info;
use crate::backend::diagnosis::{Answer, one_ttl};

/// Leases are set by `PX`, and a waiter tries again when that of the holder has ended.
pub fn lease_clock() -> String {
    let ttl = one_ttl();
    format!(
        "in steps of 1ms; the lock of a crashed holder is free {ttl} after its last renewal, plus 1s for each crashed waiter \
         ahead"
    )
}

/// Answers whether this server can lose a lock that it has granted.
pub(super) fn losses(info: &Info) -> Answer {
    let mut causes = Vec::new();
    if info.number("connected_slaves").unwrap_or(0) > 0 {
        causes.push("a fail-over (the locks that were not replicated yet)");
    }
    match (info.field("aof_enabled"), info.setting("appendfsync")) {
        (Some("1"), Some("always")) => {}
        (Some("1"), Some("no")) => {
            causes.push("a crash of the server's host (the locks of the last half minute)")
        }
        (Some("1"), _) => causes.push("a crash of the server's host (the locks of the last second)"),
        (Some(_), _) if info.setting("save") == Some("") => {
            causes.push("a restart of the server (all locks)")
        }
        _ => causes.push("a crash of the server (the locks since its last snapshot, or all)"),
    }
    match info.field("maxmemory_policy") {
        Some("noeviction") => {}
        Some(_) if info.number("maxmemory") == Some(0) => {}
        _ => causes.push("eviction when the memory of the server is full"),
    }
    match causes.as_slice() {
        [] => Answer::new(
            "no",
            "only if its key is removed by hand (DEL, FLUSHALL) or the server's disk is lost",
        ),
        causes => Answer::new("yes", format!("by {}", causes.join("; "))),
    }
}

/// Returns the identifier of the session in the reply to `HELLO`.
pub(super) fn session_of(reply: &Value) -> Option<i64> {
    let fields: HashMap<String, Value> = from_redis_value_ref(reply).ok()?;
    number(fields.get("id"))
}

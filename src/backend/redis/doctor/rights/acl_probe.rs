//! Tries the rights that a lock needs with the first request for it: if a right turned out to be missing only at a
//! renewal, the command would be killed.

use redis::Value;

use super::{KeyKind, Need, Refused};
use crate::backend::StoreError;
use crate::backend::redis::answers::{number, text};
use crate::backend::redis::keys::Keys;
use crate::backend::redis::location::Location;

/// The kinds of keys by their index in lock.lua, from 1.
const KEY_KINDS: &[KeyKind] =
    &[KeyKind::Lock, KeyKind::Holder, KeyKind::Fencing, KeyKind::Queue, KeyKind::Waiters, KeyKind::Member];

/// The trials. None of them changes anything: the member key, the fields and the elements do not exist. A server that
/// does not accept writes refuses the first command; it would not refuse those after it.
const TRIALS: &[(&str, KeyKind, &[&str])] = &[
    ("SET", KeyKind::Member, &["x", "XX"]),
    ("ZADD", KeyKind::Queue, &["XX", "0", "?"]),
    ("DEL", KeyKind::Member, &[]),
    ("PEXPIRE", KeyKind::Member, &["1"]),
    // With too few arguments.
    ("HSET", KeyKind::Member, &["x", "y", "z"]),
    ("HDEL", KeyKind::Holder, &["?"]),
    ("HDEL", KeyKind::Waiters, &["?"]),
    ("ZREM", KeyKind::Queue, &["?"]),
    ("TIME", KeyKind::None, &[]),
    ("GET", KeyKind::Lock, &[]),
    ("GET", KeyKind::Fencing, &[]),
    ("GET", KeyKind::Member, &[]),
    ("TYPE", KeyKind::Lock, &[]),
    ("EXISTS", KeyKind::Queue, &[]),
    ("PTTL", KeyKind::Lock, &[]),
    ("HGET", KeyKind::Holder, &["?"]),
    ("HGET", KeyKind::Waiters, &["?"]),
    ("HMGET", KeyKind::Holder, &["?", "??"]),
    ("HGETALL", KeyKind::Member, &[]),
    ("HEXISTS", KeyKind::Holder, &["?"]),
    ("HLEN", KeyKind::Holder, &[]),
    ("ZRANGE", KeyKind::Queue, &["0", "0"]),
    ("ZSCORE", KeyKind::Queue, &["?"]),
    ("ZRANK", KeyKind::Queue, &["?"]),
    ("ZCARD", KeyKind::Queue, &[]),
];

/// Returns the trials as JSON, as lock.lua reads them.
pub(in crate::backend::redis) fn trials() -> String {
    let trial = |(command, kind, arguments): &(&str, KeyKind, &[&str])| {
        let index = KEY_KINDS.iter().position(|known| known == kind).map(|index| index + 1);
        let words =
            [serde_json::json!(command)].into_iter().chain(index.map(|index| serde_json::json!(index)));
        words.chain(arguments.iter().map(|argument| serde_json::json!(argument))).collect::<Vec<_>>()
    };
    serde_json::json!(TRIALS.iter().map(trial).collect::<Vec<_>>()).to_string()
}

/// Reads the reply `{-7, index of the trial, message of the server, ...}` as an error that names the missing rights.
/// Returns `None` for any other reply.
pub(in crate::backend::redis) fn missing(
    reply: &[Value],
    keys: &Keys,
    location: &Location,
) -> Option<StoreError> {
    if number(reply.first()) != Some(-7) {
        return None;
    }
    let mut refused = Refused::default();
    for pair in reply[1..].chunks(2) {
        let index = number(pair.first()).and_then(|index| usize::try_from(index).ok()?.checked_sub(1));
        if let (Some((command, kind, _)), Some(message)) =
            (index.and_then(|index| TRIALS.get(index)), text(pair.get(1)))
        {
            // Some recipes have their own counter.
            let kind = if *kind == KeyKind::Fencing && keys.others.counter.is_some() {
                KeyKind::Counter
            } else {
                *kind
            };
            refused.note_denied(Need::Lock, command, kind, message);
        }
    }
    let user = location.username().unwrap_or("default");
    let (found, remedy) = refused.of_needs(&[Need::Lock], location.prefix(), user);
    Some(StoreError::Denied(format!("a right is missing: {found} ({remedy})")))
}

/// Adds the key pattern to an error about missing access to a lock's key, which servers do not name. Returns any other
/// error unchanged.
pub(in crate::backend::redis) fn named(error: StoreError, location: &Location) -> StoreError {
    match error {
        // "NOPERM this user has no permissions to access one of the keys used as arguments"
        StoreError::Denied(message) if message.contains("ermissions to access") => {
            let (user, prefix) = (location.username().unwrap_or("default"), location.prefix());
            StoreError::Denied(format!("{user} has no access to {prefix}*: {message}"))
        }
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::redis::doctor::rights::trials::TRIALS as ALL;

    #[test]
    fn every_right_that_a_lock_needs_is_probed() {
        // The server names EVAL itself when it refuses it.
        let needed = ALL.iter().filter(|trial| matches!(trial.need, Need::Lock | Need::Wait));
        for trial in needed.filter(|trial| trial.command != "EVAL") {
            assert!(TRIALS.iter().any(|(command, ..)| *command == trial.command), "{}", trial.command);
        }
        for kind in KEY_KINDS {
            assert!(TRIALS.iter().any(|(_, tried, _)| tried == kind), "{kind:?}");
        }
    }

    #[test]
    fn trials_have_the_form_that_the_script_reads() {
        assert!(
            trials().starts_with(r#"[["SET",6,"x","XX"],["ZADD",4,"XX","0","?"],["DEL",6],"#),
            "{}",
            trials()
        );
        assert!(trials().contains(r#",["TIME"],"#), "{}", trials());
    }
}

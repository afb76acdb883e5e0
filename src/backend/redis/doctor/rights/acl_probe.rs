//! What a lock needs sooner or later, tried with the first question for it: a right that turns out to be missing when a
//! lease is to be renewed would cost the command its life.

use redis::Value;

use super::{KeyKind, Need, Refused};
use crate::backend::StoreError;
use crate::backend::redis::answers::{number, text};
use crate::backend::redis::keys::Keys;
use crate::backend::redis::location::Location;

/// The kinds of keys as lock.lua counts them, from 1.
const PLACES: &[KeyKind] =
    &[KeyKind::Lock, KeyKind::Holder, KeyKind::Fencing, KeyKind::Queue, KeyKind::Waiters, KeyKind::Member];

/// What is tried. None of it changes anything: the member is one that there is not, and so are the fields and elements. The
/// first is refused by a server that takes no writes; what comes behind it would not be.
const TRIALS: &[(&str, KeyKind, &[&str])] = &[
    ("SET", KeyKind::Member, &["x", "XX"]),
    ("ZADD", KeyKind::Queue, &["XX", "0", "?"]),
    ("DEL", KeyKind::Member, &[]),
    ("PEXPIRE", KeyKind::Member, &["1"]),
    // With too few words.
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

/// What is to be tried, as lock.lua reads it.
pub(in crate::backend::redis) fn trials() -> String {
    let trial = |(command, place, arguments): &(&str, KeyKind, &[&str])| {
        let place = PLACES.iter().position(|known| known == place).map(|index| index + 1);
        let words =
            [serde_json::json!(command)].into_iter().chain(place.map(|place| serde_json::json!(place)));
        words.chain(arguments.iter().map(|word| serde_json::json!(word))).collect::<Vec<_>>()
    };
    serde_json::json!(TRIALS.iter().map(trial).collect::<Vec<_>>()).to_string()
}

/// Which rights are missing: the answer `{-7, which, what the server said, ...}`; `None` for any other.
pub(in crate::backend::redis) fn missing(
    answer: &[Value],
    keys: &Keys,
    location: &Location,
) -> Option<StoreError> {
    if number(answer.first()) != Some(-7) {
        return None;
    }
    let mut refused = Refused::default();
    for pair in answer[1..].chunks(2) {
        let which = number(pair.first()).and_then(|which| usize::try_from(which).ok()?.checked_sub(1));
        if let (Some((command, place, _)), Some(said)) =
            (which.and_then(|which| TRIALS.get(which)), text(pair.get(1)))
        {
            // Some recipes have a counter of their own.
            let place = if *place == KeyKind::Fencing && keys.others.counter.is_some() {
                KeyKind::Counter
            } else {
                *place
            };
            refused.note_denied(Need::Lock, command, place, said);
        }
    }
    let user = location.username().unwrap_or("default");
    let (found, remedy) = refused.of_needs(&[Need::Lock], location.prefix(), user);
    Some(StoreError::Denied(format!("a right is missing: {found} ({remedy})")))
}

/// The same error; where it is the lock's own key that is closed to us, which no server names, with its pattern.
pub(in crate::backend::redis) fn named(error: StoreError, location: &Location) -> StoreError {
    match error {
        // "NOPERM this user has no permissions to access one of the keys used as arguments"
        StoreError::Denied(said) if said.contains("ermissions to access") => {
            let (user, prefix) = (location.username().unwrap_or("default"), location.prefix());
            StoreError::Denied(format!("{user} has no access to {prefix}*: {said}"))
        }
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::redis::doctor::rights::trials::TRIALS as ALL;

    #[test]
    fn what_a_lock_needs_is_tried_beforehand() {
        // EVAL is refused by its name.
        let needed = ALL.iter().filter(|trial| matches!(trial.need, Need::Lock | Need::Line));
        for trial in needed.filter(|trial| trial.command != "EVAL") {
            assert!(TRIALS.iter().any(|(command, ..)| *command == trial.command), "{}", trial.command);
        }
        for place in PLACES {
            assert!(TRIALS.iter().any(|(_, tried, _)| tried == place), "{place:?}");
        }
    }

    #[test]
    fn trials_are_as_the_script_reads_them() {
        assert!(
            trials().starts_with(r#"[["SET",6,"x","XX"],["ZADD",4,"XX","0","?"],["DEL",6],"#),
            "{}",
            trials()
        );
        assert!(trials().contains(r#",["TIME"],"#), "{}", trials());
    }
}

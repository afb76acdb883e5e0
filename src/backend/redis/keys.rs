//! The keys of a lock. The lock itself is `prefix + name`, byte for byte, so that the lock of an application can be
//! taken by its exact key. All other keys have a reserved prefix that no name can have, and are in the same cluster
//! slot.

use serde::Serialize;

use super::recipe::{Others, Recipe};
use super::slot::{SLOTS, hash_tag, number_in_slot, numbers_and_slots, slot_of, slot_of_key};
use crate::lock::record::RecordKind;
use crate::lock::{LockName, Record};

/// The prefix of the keys that are reserved for dlock.
pub const RESERVED: &str = "dlock#";

/// The key under which all locks of a database are listed.
pub const INDEX: &str = "dlock#locks";

/// The key under which all locks with outcomes are listed.
pub const RECORDED: &str = "dlock#recorded";

/// The keys of one lock. The table in script.rs says what is stored in each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Keys {
    /// Shared with other programs.
    #[serde(skip)]
    pub lock: String,
    /// The suffix of the side keys, after their kind.
    pub tail: String,
    pub index: String,
    /// The other keys of the lock's recipe.
    #[serde(rename = "recipe")]
    pub others: Others,
}

/// The kinds of side keys that hold the state of a lock, except the keys of its members and the fencing counter.
pub const SIDES: [&str; 11] = [
    "holder",
    "queue",
    "waiters",
    "member-ends",
    "free-slots",
    "waiter-slots",
    "success",
    "frozen",
    SUCCEEDED,
    HISTORY,
    MISSED,
];
/// The lists of the history.
pub const HISTORY_LISTS: [&str; 3] = [SUCCEEDED, HISTORY, MISSED];
pub const SUCCEEDED: &str = "succeeded";
pub const HISTORY: &str = "history";
pub const MISSED: &str = "missed";

impl Keys {
    /// Returns the keys of the lock with this name. A Redis Cluster has an index for each slot, so that it is on the same
    /// node as the lock.
    pub(super) fn new(prefix: &str, is_cluster: bool, recipe: Recipe, name: &LockName) -> Keys {
        let lock = format!("{prefix}{name}");
        let index = match is_cluster {
            true => index_of_slot(number_in_slot(slot_of_key(&lock))),
            false => INDEX.to_owned(),
        };
        Keys { tail: tail(&lock), index, others: recipe.others(&lock), lock }
    }

    /// Returns the side key of this kind.
    pub fn side(&self, kind: &str) -> String {
        format!("{RESERVED}{kind}:{}", self.tail)
    }

    /// Returns the key in which the locks with outcomes are listed: beside the index, of the database or of the slot.
    pub fn recorded(&self) -> String {
        self.index.replacen(INDEX, RECORDED, 1)
    }

    pub fn fencing(&self) -> String {
        self.others.counter.clone().unwrap_or_else(|| self.side("fencing"))
    }

    pub fn member(&self, token: &str) -> String {
        format!("{}:{token}", self.side("member"))
    }

    /// Returns the channel on which a waiter is notified.
    pub fn channel(&self, token: &str) -> String {
        format!("{}:{token}", self.side("call"))
    }

    /// Returns the list that keeps this outcome.
    pub fn history_of(&self, record: Option<&Record>) -> String {
        self.side(match record.map(Record::kind) {
            Some(RecordKind::Succeeded) => SUCCEEDED,
            Some(RecordKind::Held) | None => HISTORY,
            Some(RecordKind::Missed) => MISSED,
        })
    }
}

/// The suffix that makes a side key unique to the lock, in the lock's slot. It has three forms that cannot be confused:
/// `{lock}` if the lock has no brace; `{tag}lock` if it has a hash tag; `{n}lock` with a number whose slot is that of
/// the lock if it has braces but no tag (`a}b` is not in the slot of `{a}b}`).
fn tail(lock: &str) -> String {
    if !lock.contains(['{', '}']) {
        return format!("{{{lock}}}");
    }
    match hash_tag(lock) {
        Some(tag) => format!("{{{tag}}}{lock}"),
        None => format!("{{{}}}{lock}", number_in_slot(slot_of(lock.as_bytes()))),
    }
}

/// The key in which the locks of a slot are listed, for each slot.
pub fn indexes() -> Vec<String> {
    let mut indexes = vec![String::new(); usize::from(SLOTS)];
    let (mut missing, mut numbers) = (indexes.len(), numbers_and_slots());
    while missing > 0
        && let Some((number, slot)) = numbers.next()
    {
        let index = &mut indexes[usize::from(slot)];
        if index.is_empty() {
            *index = index_of_slot(number);
            missing -= 1;
        }
    }
    indexes
}

fn index_of_slot(number_in_slot: u32) -> String {
    format!("{INDEX}:{{{number_in_slot}}}")
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::random::Xorshift;

    #[test]
    fn every_slot_has_an_index_of_its_own() {
        let indexes = indexes();
        assert_eq!(indexes.len(), usize::from(SLOTS));
        for (slot, index) in (0..SLOTS).zip(&indexes) {
            assert_eq!(slot_of_key(index), slot);
        }
        for name in ["dlock:a", "dlock:a}b", "{}x"] {
            let keys = Keys::new("", true, Recipe::Plain, &LockName::new(name).expect("good name"));
            assert_eq!(keys.index, indexes[usize::from(slot_of_key(name))]);
        }
    }

    #[test]
    fn side_keys_share_the_slot_and_never_collide() {
        let names =
            ["a", "a}b", "{}x", "{a}b", "{a", "}{", "x{y}z", "{a}", "a{b", "{{a}}", "dlock#holder:{a}"];
        let mut seen = std::collections::HashSet::new();
        for prefix in ["dlock:", "", "{p}:"] {
            for name in names {
                let keys = Keys::new(prefix, true, Recipe::Plain, &LockName::new(name).expect("good name"));
                assert_eq!(slot_of_key(&keys.lock), slot_of_key(&keys.index));
                assert_eq!(slot_of_key(&keys.lock), slot_of_key(&keys.recorded()));
                let sides = SIDES.map(|kind| keys.side(kind));
                for key in sides.into_iter().chain([keys.fencing(), keys.member("0123")]) {
                    assert_eq!(slot_of_key(&keys.lock), slot_of_key(&key), "{prefix}{name}");
                    assert!(seen.insert(key.clone()), "{prefix}{name}: {key}");
                }
            }
        }
    }

    #[test]
    fn no_two_locks_share_a_key() {
        let alphabet: Vec<char> = "ab{}:0".chars().collect();
        let mut random = Xorshift::new();
        let mut owner = HashMap::new();
        for _ in 0..2_000 {
            let Ok(name) = LockName::new(&random.text(&alphabet, 7)) else { continue };
            let keys = Keys::new("", false, Recipe::Plain, &name);
            for key in [keys.side("holder"), keys.fencing(), keys.member(""), keys.lock] {
                assert_eq!(owner.entry(key).or_insert_with(|| name.clone()), &name);
            }
        }
    }
}

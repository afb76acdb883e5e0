//! What other programs see of a lock, and how a session takes and leaves it: a key that its holder has locked, or, with
//! `recipe=semaphore`, the keys of a [semaphore](super::semaphore).

use std::collections::BTreeSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use super::location::{Location, Recipe};
use super::semaphore::{Document, SEMAPHORE_FLAGS};
use crate::backend::StoreError;
use crate::lock::{LockName, Mode};

/// What marks a key as a lock (`LockFlagValue` in `api/lock.go` of Consul).
pub(super) const LOCK_FLAGS: u64 = 0x2ddc_cbc0_58a5_0c18;

/// A key as it was read.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Pair {
    /// Its name.
    pub key: String,
    flags: u64,
    #[serde(default)]
    value: Option<String>,
    #[serde(default)]
    session: Option<String>,
    /// The index of its last modification.
    pub modify_index: u64,
}

impl Pair {
    /// Returns its value; `None` if it has not the form of one.
    pub fn value(&self) -> Option<Vec<u8>> {
        STANDARD.decode(self.value.as_deref().unwrap_or_default()).ok()
    }

    /// Returns the session that has locked it.
    fn session(&self) -> Option<String> {
        self.session.clone().filter(|session| !session.is_empty())
    }
}

/// Who holds a lock, for all programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Gate {
    /// The key belongs to something else.
    pub is_other: bool,
    /// The sessions that hold the lock.
    pub sessions: Vec<String>,
    /// How many may hold it; 0 if the next holder decides that.
    pub limit: u32,
    /// The index of the key, or of the document of a semaphore; 0 if there is none.
    pub index: u64,
}

impl Gate {
    /// Returns what the keys of a lock say.
    pub fn read(location: &Location, name: &LockName, pairs: &[Pair]) -> Gate {
        let key = location.lock_key(name);
        let lock = pairs.iter().find(|pair| pair.key == key);
        let index = lock.map_or(0, |pair| pair.modify_index);
        if location.recipe == Recipe::Lock {
            return Gate {
                is_other: lock.is_some_and(|pair| pair.flags != LOCK_FLAGS),
                sessions: lock.and_then(Pair::session).into_iter().collect(),
                limit: 1,
                index,
            };
        }
        let contenders: BTreeSet<String> = pairs.iter().filter_map(Pair::session).collect();
        let document = match lock {
            None => Some(Document::default()),
            Some(pair) if pair.flags == SEMAPHORE_FLAGS => {
                pair.value().and_then(|value| Document::parse(&value))
            }
            Some(_) => None,
        };
        let is_other = document.is_none();
        let Document { limit, holders } = document.unwrap_or_default();
        Gate {
            is_other,
            sessions: holders.into_iter().flatten().map(|(session, _)| session).collect(),
            limit,
            index,
        }
        .without(|session| !contenders.contains(session))
    }

    /// Checks that the key is that of a lock of this recipe.
    ///
    /// # Errors
    /// It belongs to something else.
    pub fn check(&self, location: &Location, name: &LockName) -> Result<(), StoreError> {
        let key = location.lock_key(name);
        match (self.is_other, location.recipe) {
            (false, _) => Ok(()),
            (true, Recipe::Lock) => Err(StoreError::Config(format!(
                "the key {key} is not that of a lock (it lacks the flags {LOCK_FLAGS}): another program uses it, such as \
                 consul lock -n (see recipe=semaphore)"
            ))),
            (true, Recipe::Semaphore) => Err(StoreError::Config(format!(
                "the key {key} is not that of a semaphore (flags {SEMAPHORE_FLAGS}, with Limit and Holders): another \
                 program uses it, such as consul lock, or a dlock without recipe=semaphore"
            ))),
        }
    }

    /// Returns whether one more session may hold it in this mode. The holders of a semaphore agree on their number; one that has
    /// crashed may have left its number behind.
    pub fn admits(&self, mode: Mode) -> bool {
        let slots = slots(mode);
        let is_agreed = self.limit == slots || self.sessions.is_empty();
        is_agreed && self.sessions.len() < slots as usize
    }

    /// Returns whether one more session may hold it, in the mode of those that do.
    pub fn has_room(&self) -> bool {
        self.sessions.len() < self.limit.max(1) as usize
    }

    /// Returns how a session takes it in this mode, if it is still like this, and who holds it then.
    pub fn taken(
        &self,
        location: &Location,
        name: &LockName,
        session: &str,
        mode: Mode,
    ) -> (Vec<Value>, Gate) {
        let mut after = Gate { limit: slots(mode), ..self.clone() };
        after.sessions.push(session.to_owned());
        let lock = location.lock_key(name);
        let operations = match location.recipe {
            Recipe::Lock => vec![self.checking(&lock), locking("lock", &lock, LOCK_FLAGS, session)],
            Recipe::Semaphore => {
                let contender = location.contender_key(name, session);
                vec![locking("lock", &contender, SEMAPHORE_FLAGS, session), after.storing(&lock)]
            }
        };
        (operations, after)
    }

    /// Returns how a session leaves it, and who holds it then.
    pub fn left(&self, location: &Location, name: &LockName, session: &str) -> (Vec<Value>, Gate) {
        let after = self.clone().without(|holder| holder == session);
        let lock = location.lock_key(name);
        let operations = match location.recipe {
            Recipe::Lock => vec![locking("unlock", &lock, LOCK_FLAGS, session)],
            Recipe::Semaphore => {
                let contender = json!({"Verb": "delete", "Key": location.contender_key(name, session)});
                vec![json!({"KV": contender}), after.storing(&lock)]
            }
        };
        (operations, after)
    }

    /// Returns how the document of a semaphore without holders is removed that one of them has left behind; empty without one.
    pub fn cleared(&self, location: &Location, name: &LockName) -> Vec<Value> {
        match self.sessions.is_empty() && self.index != 0 {
            true => vec![self.storing(&location.lock_key(name))],
            false => Vec::new(),
        }
    }

    /// Returns it as it is when its key, or its document, was stored at this index.
    pub fn stored(self, recipe: Recipe, index: u64) -> Gate {
        let has_key = recipe == Recipe::Lock || !self.sessions.is_empty();
        Gate { index: if has_key { index } else { 0 }, ..self }
    }

    /// Returns it without these sessions.
    pub fn without(mut self, is_gone: impl Fn(&str) -> bool) -> Gate {
        self.sessions.retain(|session| !is_gone(session));
        self
    }

    /// The operation that checks that nobody else has changed the key: locking it does not look at its flags.
    fn checking(&self, key: &str) -> Value {
        match self.index {
            0 => json!({"KV": {"Verb": "check-not-exists", "Key": key}}),
            index => json!({"KV": {"Verb": "check-index", "Key": key, "Index": index}}),
        }
    }

    /// The operation that stores the document of a semaphore if it still has this index. Without holders there is none: the
    /// next one decides how many there may be.
    fn storing(&self, key: &str) -> Value {
        if self.sessions.is_empty() {
            return json!({"KV": {"Verb": "delete-cas", "Key": key, "Index": self.index}});
        }
        let value = STANDARD.encode(Document::of(self.limit, &self.sessions).to_json());
        let index = self.index;
        json!({"KV": {"Verb": "cas", "Key": key, "Value": value, "Flags": SEMAPHORE_FLAGS, "Index": index}})
    }
}

/// The operation that locks a key (`verb` is `lock`) or unlocks it (`unlock`).
fn locking(verb: &str, key: &str, flags: u64, session: &str) -> Value {
    json!({"KV": {"Verb": verb, "Key": key, "Flags": flags, "Session": session}})
}

/// Returns how many holders there may be in this mode.
fn slots(mode: Mode) -> u32 {
    match mode {
        Mode::Slots(slots) => slots,
        Mode::Exclusive | Mode::Shared => 1,
    }
}

//! What other programs see of a lock, and how a session takes and leaves it: a key that its holder has locked.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use super::location::Location;
use crate::backend::StoreError;
use crate::lock::LockName;

/// What marks a key as a lock (`LockFlagValue` in `api/lock.go` of Consul).
const LOCK_FLAGS: u64 = 0x2ddc_cbc0_58a5_0c18;

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
    is_other: bool,
    /// The session that holds the lock.
    pub session: Option<String>,
}

impl Gate {
    /// Returns what the keys of a lock say.
    pub fn read(location: &Location, name: &LockName, pairs: &[Pair]) -> Gate {
        let key = location.lock_key(name);
        let lock = pairs.iter().find(|pair| pair.key == key);
        let is_other = lock.is_some_and(|pair| pair.flags != LOCK_FLAGS);
        Gate { is_other, session: lock.and_then(Pair::session) }
    }

    /// Checks that the key is that of a lock.
    ///
    /// # Errors
    /// It belongs to something else.
    pub fn check(&self, location: &Location, name: &LockName) -> Result<(), StoreError> {
        if !self.is_other {
            return Ok(());
        }
        let key = location.lock_key(name);
        Err(StoreError::Config(format!(
            "the key {key} is not that of a lock (it lacks the flags {LOCK_FLAGS}): another program uses it, such as consul \
             lock -n"
        )))
    }
}

/// The operation that locks a key (`verb` is `lock`) or unlocks it (`unlock`).
pub(super) fn locking(verb: &str, key: &str, session: &str) -> Value {
    json!({"KV": {"Verb": verb, "Key": key, "Flags": LOCK_FLAGS, "Session": session}})
}

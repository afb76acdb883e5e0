//! Whose lock it is besides dlock's: what is in its key, where they count, and whom to tell that it is free.

use serde::Serialize;

use super::keys::slot_of_key;
use crate::backend::diagnosis::Finding;
use crate::backend::url::UrlError;

/// How other programs take the same lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recipe {
    /// A string that is the owner's token (`SET key token NX PX ttl`). Whoever waits polls.
    #[default]
    Plain,
    /// The `RLock` of Redisson: a hash with one field, the owner, whose value counts how often it has the lock. Whoever waits
    /// listens on a channel.
    Redisson,
    /// The `Lock` of python-redis-lock: a string, and beside it a list from which whoever waits pops.
    PythonRedisLock,
}

/// What belongs to a lock by its recipe and is not dlock's own, as the scripts take it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Others {
    /// Counts the fencing tokens, for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counter: Option<String>,
    /// Where the end of a hold is published; with an id behind it, to the one in the line of the fair lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// The line of the fair lock, a list of ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// The list from which whoever waits pops.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
}

/// What those keys begin with that Redisson has for its locks.
const REDISSON_OWN: &str = "redisson_lock_";
/// What the keys of python-redis-lock begin with, and those of its signals.
const PYTHON_LOCK: &str = "lock:";
const PYTHON_SIGNAL: &str = "lock-signal:";

impl Recipe {
    const ALL: [Recipe; 3] = [Recipe::Plain, Recipe::Redisson, Recipe::PythonRedisLock];

    /// The recipe that a URL names.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn named(name: &str) -> Result<Recipe, UrlError> {
        Recipe::ALL.into_iter().find(|recipe| recipe.name() == name).ok_or_else(|| {
            let known = Recipe::ALL.map(Recipe::name).join(", ");
            UrlError::new(format!("unknown recipe '{name}' (known: {known})"))
        })
    }

    /// Its name in URLs.
    pub fn name(self) -> &'static str {
        match self {
            Recipe::Plain => "plain",
            Recipe::Redisson => "redisson",
            Recipe::PythonRedisLock => "python-redis-lock",
        }
    }

    /// What stands before each name unless the URL says otherwise.
    pub fn prefix(self) -> &'static str {
        match self {
            Recipe::Plain | Recipe::Redisson => "dlock:",
            Recipe::PythonRedisLock => PYTHON_LOCK,
        }
    }

    /// The type of a key that is held, as `TYPE` tells it.
    pub fn key_type(self) -> &'static str {
        match self {
            Recipe::Plain | Recipe::PythonRedisLock => "string",
            Recipe::Redisson => "hash",
        }
    }

    /// Refuses a prefix under which those who follow the recipe have no locks.
    ///
    /// # Errors
    /// It is one.
    pub fn check_prefix(self, prefix: &str) -> Result<(), UrlError> {
        match self {
            Recipe::PythonRedisLock if !prefix.starts_with(PYTHON_LOCK) => Err(UrlError::new(format!(
                "the locks of python-redis-lock begin with '{PYTHON_LOCK}', so prefix= must too, not '{prefix}'"
            ))),
            _ => Ok(()),
        }
    }

    /// Refuses a recipe whose programs do not ask a majority of servers.
    ///
    /// # Errors
    /// It is one.
    pub fn check_redlock(self) -> Result<(), UrlError> {
        match self {
            Recipe::Plain => Ok(()),
            Recipe::Redisson | Recipe::PythonRedisLock => Err(UrlError::new(format!(
                "recipe={} is for locks on one server, and those of redlock:// are on a majority of several",
                self.name()
            ))),
        }
    }

    /// What belongs to the lock with this key. Redisson puts a name in braces unless it has a `{` already
    /// (`RedissonObject.prefixName`).
    pub fn others(self, lock: &str) -> Others {
        let of_redisson = |what: &str| {
            Some(match lock.contains('{') {
                true => format!("{REDISSON_OWN}{what}:{lock}"),
                false => format!("{REDISSON_OWN}{what}:{{{lock}}}"),
            })
        };
        match self {
            Recipe::Plain => Others::default(),
            Recipe::Redisson => Others {
                counter: of_redisson("token"),
                channel: of_redisson("_channel"),
                queue: of_redisson("queue"),
                signal: None,
            },
            Recipe::PythonRedisLock => {
                let name = lock.strip_prefix(PYTHON_LOCK).unwrap_or(lock);
                Others { signal: Some(format!("{PYTHON_SIGNAL}{name}")), ..Others::default() }
            }
        }
    }

    /// What there is to know of it, beside what is always so.
    pub fn finding(self) -> Option<Finding> {
        let found = match self {
            Recipe::Plain => return None,
            Recipe::Redisson => {
                "redisson: an RLock with the same key is the same lock, RFencedLock counts fencing tokens on with dlock \
                 (redisson_lock_token:*); an RReadWriteLock is another"
            }
            Recipe::PythonRedisLock => {
                "python-redis-lock: its Lock(client, NAME) is the same lock, and who waits there is told by lock-signal:*"
            }
        };
        Some(Finding::ok("recipe", found))
    }

    /// Refuses a lock whose key may belong to another lock by its recipe.
    ///
    /// # Errors
    /// It may.
    pub fn check_key(self, lock: &str) -> Result<(), UrlError> {
        match self {
            Recipe::Redisson if lock.starts_with(REDISSON_OWN) => Err(UrlError::new(format!(
                "its key would begin with {REDISSON_OWN}, which Redisson keeps for itself"
            ))),
            _ => Ok(()),
        }
    }

    /// Refuses a lock of a Redis Cluster whose other keys are in other slots.
    ///
    /// # Errors
    /// They are.
    pub fn check_slot(self, lock: &str) -> Result<(), UrlError> {
        let Others { counter, channel, queue, signal } = self.others(lock);
        let slot = slot_of_key(lock);
        match [counter, channel, queue, signal].into_iter().flatten().find(|key| slot_of_key(key) != slot) {
            None => Ok(()),
            Some(key) => Err(UrlError::new(format!(
                "recipe={} in a Redis Cluster needs a name with a part in braces, as {{name}}: {key} has to be in the slot of \
                 {lock}",
                self.name()
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(recipe: Recipe, lock: &str) -> String {
        serde_json::to_string(&recipe.others(lock)).expect("JSON")
    }

    #[test]
    fn the_other_keys_are_those_of_the_libraries() {
        assert_eq!(json(Recipe::Plain, "a"), "{}");
        assert_eq!(
            json(Recipe::Redisson, "a"),
            r#"{"counter":"redisson_lock_token:{a}","channel":"redisson_lock__channel:{a}","queue":"redisson_lock_queue:{a}"}"#
        );
        assert_eq!(
            json(Recipe::Redisson, "a{b"),
            r#"{"counter":"redisson_lock_token:a{b","channel":"redisson_lock__channel:a{b","queue":"redisson_lock_queue:a{b"}"#
        );
        assert_eq!(json(Recipe::PythonRedisLock, "lock:lock:a"), r#"{"signal":"lock-signal:lock:a"}"#);
    }

    #[test]
    fn in_a_cluster_all_keys_share_a_slot_or_the_name_is_refused() {
        for lock in ["a", "{a}", "a{b}c", "a{b", "a}b", "{}a"] {
            assert!(Recipe::Plain.check_slot(lock).is_ok(), "{lock}");
        }
        for (lock, fits) in
            [("a", true), ("a{b}c", true), ("{a}", true), ("a{b", false), ("a}b", false), ("{}a", false)]
        {
            assert_eq!(Recipe::Redisson.check_slot(lock).is_ok(), fits, "{lock}");
        }
        for (lock, fits) in [("lock:a", false), ("lock:{a}", true), ("lock:a{b}", true), ("lock:a{b", false)]
        {
            assert_eq!(Recipe::PythonRedisLock.check_slot(lock).is_ok(), fits, "{lock}");
        }
    }
}

//! The lock formats of other programs: the value of the key, the fencing counter, and how waiters are notified.

use serde::Serialize;

use super::slot::slot_of_key;
use crate::backend::diagnosis::Finding;
use crate::backend::url::UrlError;

/// How other programs take the same lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recipe {
    /// A string that is the owner's token (`SET key token NX PX ttl`). Waiters poll.
    #[default]
    Plain,
    /// The `RLock` of Redisson: a hash with one field, the owner, whose value counts how often it holds the lock.
    /// Waiters subscribe to a channel.
    Redisson,
    /// The `Lock` of python-redis-lock: a string, and a list from which waiters pop.
    PythonRedisLock,
}

/// The keys of a lock that its recipe defines, in the form that the scripts take.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Others {
    /// The fencing counter, without expiry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counter: Option<String>,
    /// The channel on which a release is published; with an id appended, to the first waiter of the fair lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// The queue of the fair lock, a list of ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// The list from which waiters pop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
}

/// The prefix of each name unless the URL or the recipe sets another one.
pub const DEFAULT_PREFIX: &str = "dlock:";
/// The prefix of the keys that Redisson uses for its locks.
const REDISSON_OWN: &str = "redisson_lock_";
const PYTHON_LOCK: &str = "lock:";
const PYTHON_SIGNAL: &str = "lock-signal:";

impl Recipe {
    /// By the names that the option has for them.
    pub const ALL: [(&str, Recipe); 3] = [
        ("plain", Recipe::Plain),
        ("redisson", Recipe::Redisson),
        ("python-redis-lock", Recipe::PythonRedisLock),
    ];

    pub fn name(self) -> &'static str {
        Recipe::ALL.iter().find(|(_, recipe)| *recipe == self).map_or("", |(name, _)| name)
    }

    /// The prefix of each name unless the URL sets another one.
    pub fn prefix(self) -> &'static str {
        match self {
            Recipe::Plain | Recipe::Redisson => DEFAULT_PREFIX,
            Recipe::PythonRedisLock => PYTHON_LOCK,
        }
    }

    /// The type of the key of a held lock, as returned by `TYPE`.
    pub fn key_type(self) -> &'static str {
        match self {
            Recipe::Plain | Recipe::PythonRedisLock => "string",
            Recipe::Redisson => "hash",
        }
    }

    /// Rejects a prefix under which other programs of the recipe have no locks.
    ///
    /// # Errors
    /// The prefix is rejected.
    pub fn check_prefix(self, prefix: &str) -> Result<(), UrlError> {
        match self {
            Recipe::PythonRedisLock if !prefix.starts_with(PYTHON_LOCK) => Err(UrlError::new(format!(
                "the locks of python-redis-lock begin with '{PYTHON_LOCK}', so prefix= must too, not '{prefix}'"
            ))),
            _ => Ok(()),
        }
    }

    /// Rejects a recipe whose programs do not use a majority of servers.
    ///
    /// # Errors
    /// The recipe is rejected.
    pub fn check_redlock(self) -> Result<(), UrlError> {
        match self {
            Recipe::Plain => Ok(()),
            Recipe::Redisson | Recipe::PythonRedisLock => Err(UrlError::new(format!(
                "recipe={} is for locks on one server, and those of redlock:// are on a majority of several",
                self.name()
            ))),
        }
    }

    /// Returns the other keys of the lock with this key. Redisson puts a name in braces unless it contains a `{`
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

    /// The patterns of the other keys and channels in an ACL rule.
    pub fn patterns(self) -> &'static [&'static str] {
        match self {
            Recipe::Plain => &[],
            Recipe::Redisson => {
                &["~redisson_lock_token:*", "~redisson_lock_queue:*", "&redisson_lock__channel:*"]
            }
            Recipe::PythonRedisLock => &["~lock-signal:*"],
        }
    }

    /// The finding of `dlock doctor` about the recipe, if there is one.
    pub fn finding(self) -> Option<Finding> {
        let found = match self {
            Recipe::Plain => return None,
            Recipe::Redisson => {
                "redisson: an RLock with the same key is the same lock, RFencedLock shares the fencing counter with dlock \
                 (redisson_lock_token:*); an RReadWriteLock is a different lock"
            }
            Recipe::PythonRedisLock => {
                "python-redis-lock: its Lock(client, NAME) is the same lock, and its waiters are notified through lock-signal:*"
            }
        };
        Some(Finding::ok("recipe", found))
    }

    /// Rejects a lock whose key may belong to another lock of the recipe.
    ///
    /// # Errors
    /// It may belong to another lock.
    pub fn check_key(self, lock: &str) -> Result<(), UrlError> {
        match self {
            Recipe::Redisson if lock.starts_with(REDISSON_OWN) => Err(UrlError::new(format!(
                "its key would begin with {REDISSON_OWN}, which Redisson keeps for itself"
            ))),
            _ => Ok(()),
        }
    }

    /// Rejects a lock of a Redis Cluster whose other keys are in other slots.
    ///
    /// # Errors
    /// They are in other slots.
    pub fn check_slot(self, lock: &str) -> Result<(), UrlError> {
        let Others { counter, channel, queue, signal } = self.others(lock);
        let slot = slot_of_key(lock);
        match [counter, channel, queue, signal].into_iter().flatten().find(|key| slot_of_key(key) != slot) {
            None => Ok(()),
            Some(key) => Err(UrlError::new(format!(
                "recipe={} in a Redis Cluster needs a name with a part in braces, such as {{name}}: {key} has to be in the slot of \
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

//! The rights that a lock needs, which are tried with the first request for it: if a right turned out to be missing only
//! at a renewal, the command would be killed.

use super::errors::DeniedRight;
use super::keys::{Keys, RESERVED};
use super::location::Location;
use super::reply::DeniedTrial;
use crate::backend::StoreError;

/// A key that a command is tried on, by its position in lock.lua.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// The command has no key.
    None = 0,
    Lock,
    Holder,
    Counter,
    Queue,
    Waiters,
    Member,
}

impl Target {
    /// Returns the key, which for a member does not exist.
    pub(super) fn key(self, keys: &Keys, token: &str) -> Option<String> {
        Some(match self {
            Target::None => return None,
            Target::Lock => keys.lock.clone(),
            Target::Holder => keys.holder.clone(),
            Target::Counter => keys.fencing.clone(),
            Target::Queue => keys.queue.clone(),
            Target::Waiters => keys.waiters.clone(),
            Target::Member => format!("{}{token}?", keys.members),
        })
    }

    /// Returns the pattern of such keys in an ACL rule.
    pub(super) fn pattern(self, location: &Location) -> String {
        match self {
            Target::Lock => format!("~{}*", location.prefix()),
            Target::Counter if location.recipe.others("").counter.is_some() => {
                "~redisson_lock_token:*".to_owned()
            }
            _ => format!("~{RESERVED}*"),
        }
    }
}

/// A command, its key, and its other arguments.
pub(super) type Trial = (&'static str, Target, &'static [&'static str]);

/// The commands that a lock needs, besides EVAL. None of them changes anything: the member key, the fields and the
/// elements do not exist. A server that does not accept writes refuses the first command; it would not refuse those after
/// it.
pub(super) const TRIALS: &[Trial] = &[
    ("SET", Target::Member, &["x", "XX"]),
    ("ZADD", Target::Queue, &["XX", "0", "?"]),
    ("DEL", Target::Member, &[]),
    ("PEXPIRE", Target::Member, &["1"]),
    // With too few arguments.
    ("HSET", Target::Member, &["x", "y", "z"]),
    ("HDEL", Target::Holder, &["?"]),
    ("HDEL", Target::Waiters, &["?"]),
    ("ZREM", Target::Queue, &["?"]),
    ("TIME", Target::None, &[]),
    ("GET", Target::Lock, &[]),
    ("GET", Target::Counter, &[]),
    ("GET", Target::Member, &[]),
    ("TYPE", Target::Lock, &[]),
    ("EXISTS", Target::Queue, &[]),
    ("PTTL", Target::Lock, &[]),
    ("HGET", Target::Holder, &["?"]),
    ("HGET", Target::Waiters, &["?"]),
    ("HMGET", Target::Holder, &["?", "??"]),
    ("HGETALL", Target::Member, &[]),
    ("HEXISTS", Target::Holder, &["?"]),
    ("HLEN", Target::Holder, &[]),
    ("ZRANGE", Target::Queue, &["0", "0"]),
    ("ZSCORE", Target::Queue, &["?"]),
    ("ZRANK", Target::Queue, &["?"]),
    ("ZCARD", Target::Queue, &[]),
];

/// Returns the trials as JSON, as lock.lua reads them.
pub(super) fn trials() -> serde_json::Value {
    let trial = |(command, target, arguments): &Trial| {
        let key = (*target != Target::None).then(|| serde_json::json!(*target as usize));
        let words = [serde_json::json!(command)].into_iter().chain(key);
        words.chain(arguments.iter().map(|argument| serde_json::json!(argument))).collect::<Vec<_>>()
    };
    serde_json::json!(TRIALS.iter().map(trial).collect::<Vec<_>>())
}

/// The rights that a user lacks.
#[derive(Debug, Default)]
pub(super) struct MissingRights {
    commands: Vec<&'static str>,
    /// Commands that the server does not have.
    absent: Vec<&'static str>,
    /// Patterns of keys (`~`) and channels (`&`).
    patterns: Vec<String>,
}

impl MissingRights {
    pub(super) fn is_empty(&self) -> bool {
        self.commands.is_empty() && self.absent.is_empty() && self.patterns.is_empty()
    }

    /// Records that the server does not have a command.
    pub(super) fn note_absent(&mut self, command: &'static str) {
        insert(&mut self.absent, command);
    }

    /// Records that the server has denied a command, or the keys or channels of this pattern.
    pub(super) fn note_denied(&mut self, command: &'static str, pattern: String, right: DeniedRight) {
        match right {
            DeniedRight::Command => insert(&mut self.commands, command),
            DeniedRight::Key => insert(&mut self.patterns, pattern),
        }
    }

    /// Returns what is missing.
    pub(super) fn found(&self, user: &str) -> String {
        let patterns: Vec<&str> = self.patterns.iter().map(|pattern| &pattern[1..]).collect();
        let parts = [
            (format!("{user} may not run "), self.commands.join(", ")),
            (format!("{user} has no access to "), patterns.join(", ")),
            ("the server does not know ".to_owned(), self.absent.join(", ")),
        ];
        let parts = parts.into_iter().filter(|(_, list)| !list.is_empty());
        parts.map(|(what, list)| what + &list).collect::<Vec<_>>().join("; ")
    }

    /// Returns the ACL rule that grants it.
    pub(super) fn remedy(&self, user: &str) -> String {
        let rule = |command: &&str| format!("+{}", command.to_lowercase().replace(' ', "|"));
        let rules: Vec<String> =
            self.commands.iter().map(rule).chain(self.patterns.iter().cloned()).collect();
        let mut remedies = Vec::new();
        if !rules.is_empty() {
            remedies.push(format!("ACL SETUSER {user} {}", rules.join(" ")));
        }
        if !self.absent.is_empty() {
            remedies.push("do not rename these commands, and use no proxy that lacks them".to_owned());
        }
        remedies.join("; ")
    }
}

/// Inserts a value into a sorted list without duplicates.
fn insert<T: Ord>(list: &mut Vec<T>, value: T) {
    if let Err(at) = list.binary_search(&value) {
        list.insert(at, value);
    }
}

/// Returns the error that names the missing rights.
pub(super) fn missing(denied: &[DeniedTrial], location: &Location) -> StoreError {
    let mut missing = MissingRights::default();
    for DeniedTrial { trial, message } in denied {
        if let Some((command, target, _)) = trial.checked_sub(1).and_then(|trial| TRIALS.get(trial)) {
            missing.note_denied(command, target.pattern(location), DeniedRight::in_text(message));
        }
    }
    let user = user(location);
    StoreError::Denied(format!("a right is missing: {} ({})", missing.found(user), missing.remedy(user)))
}

/// The name of this user at the server.
pub(super) fn user(location: &Location) -> &str {
    location.username().unwrap_or("default")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A right that is not tried would be discovered while a command runs.
    #[test]
    fn every_command_that_lock_lua_depends_on_is_tried() {
        // The script does without these.
        let optional = [
            "INFO",
            "PUBLISH",
            "SPUBLISH",
            "STRLEN",
            "MEMORY",
            "LPUSH",
            "LTRIM",
            "LRANGE",
            "ZREMRANGEBYSCORE",
        ];
        let words: Vec<&str> = include_str!("lock.lua").split(['(', ' ']).collect();
        for pair in words.windows(2) {
            let ["call" | "try", quoted] = pair else { continue };
            let Some(command) = quoted.strip_prefix('\'').and_then(|rest| rest.split('\'').next()) else {
                continue;
            };
            assert!(
                optional.contains(&command) || TRIALS.iter().any(|(tried, ..)| *tried == command),
                "{command}"
            );
        }
    }
}

//! The rights that a lock needs. script/lock.lua tries them with the first request: if a right turned out to be missing
//! only at a renewal, the command would be killed.

use std::collections::BTreeSet;

use super::errors::{Lack, SEE_DOCTOR};
use super::keys::RESERVED;
use super::location::Location;
use super::reply::DeniedTrial;
use crate::backend::StoreError;

/// The greatest number of missing rights that one line names.
const MOST_NAMED: usize = 3;

/// The rights that a user lacks.
#[derive(Debug, Default)]
pub(super) struct MissingRights {
    commands: BTreeSet<String>,
    absent: BTreeSet<String>,
    /// Patterns of keys (`~`) and channels (`&`).
    patterns: BTreeSet<String>,
}

impl MissingRights {
    /// Returns the rights that the trials have shown to be missing.
    pub(super) fn of(denied: &[DeniedTrial], location: &Location) -> MissingRights {
        let mut missing = MissingRights::default();
        for DeniedTrial { command, key, message } in denied {
            missing.note(Lack::in_text(message), command, pattern(key, location));
        }
        missing
    }

    pub(super) fn is_empty(&self) -> bool {
        self.commands.is_empty() && self.absent.is_empty() && self.patterns.is_empty()
    }

    /// Records that this command was refused, with keys or channels of this pattern.
    pub(super) fn note(&mut self, lack: Lack, command: &str, pattern: String) {
        match lack {
            Lack::Command => self.commands.insert(command.to_owned()),
            Lack::Support => self.absent.insert(command.to_owned()),
            Lack::Key => self.patterns.insert(pattern),
        };
    }

    pub(super) fn found(&self, user: &str) -> String {
        let patterns = self.patterns.iter().map(|pattern| pattern[1..].to_owned()).collect();
        let parts = [
            (format!("{user} may not run "), &self.commands),
            (format!("{user} has no access to "), &patterns),
            ("the server does not know ".to_owned(), &self.absent),
        ];
        let parts = parts.into_iter().filter(|(_, set)| !set.is_empty());
        let list = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>().join(", ");
        parts.map(|(what, set)| what + &list(set)).collect::<Vec<_>>().join("; ")
    }

    /// Returns the ACL rule that grants it.
    pub(super) fn remedy(&self, user: &str) -> String {
        let rule = |command: &String| format!("+{}", command.to_lowercase().replace(' ', "|"));
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

    /// Returns the error that names them.
    pub(super) fn error(&self, location: &Location) -> StoreError {
        let user = user(location);
        let count = self.commands.len() + self.absent.len() + self.patterns.len();
        let text = match count <= MOST_NAMED {
            true => format!("a right is missing: {} ({})", self.found(user), self.remedy(user)),
            false => format!("{count} rights of {user} are missing: {SEE_DOCTOR}"),
        };
        if self.absent.is_empty() { StoreError::Denied(text) } else { StoreError::Config(text) }
    }
}

/// Returns the pattern of keys such as this one in an ACL rule.
fn pattern(key: &str, location: &Location) -> String {
    const COUNTERS_OF_REDISSON: &str = "redisson_lock_token:";
    let known = [RESERVED, COUNTERS_OF_REDISSON].into_iter().find(|prefix| key.starts_with(prefix));
    let prefix = known.unwrap_or(&location.prefix);
    format!("~{prefix}*")
}

/// The name of this user at the server.
pub(super) fn user(location: &Location) -> &str {
    location.username().unwrap_or("default")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::backend::redis::script::source;

    /// A right that is not tried would be discovered while a command runs.
    #[test]
    fn every_command_that_the_scripts_depend_on_is_tried() {
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
        let scripts = [source::CLAIM, source::HOLD, source::ADMINISTER].concat();
        let words: Vec<&str> = scripts.split(['(', ' ']).collect();
        let mut tried = BTreeSet::new();
        for pair in words.windows(2) {
            let ["call" | "try", quoted] = pair else { continue };
            let Some(command) = quoted.strip_prefix('\'').and_then(|rest| rest.split('\'').next()) else {
                continue;
            };
            let is_tried = scripts.contains(&format!("{{'{command}'"));
            assert!(is_tried || optional.contains(&command), "{command}");
            tried.extend(is_tried.then_some(command));
        }
        assert!(tried.len() > 15, "{tried:?}");
    }
}

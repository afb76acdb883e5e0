//! The results of the checks of a store.

use std::fmt::Display;

use serde::Serialize;

use crate::backend::{Outlook, StoreError};
use crate::exit::FailureKind;
use crate::secret::scrubbed;

/// The check of [`Finding::one_server`].
pub const AVAILABILITY: &str = "availability";

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// No fault was found.
    Ok,
    /// Locks work, but something about them is worse than it could be, or unknown.
    Warning,
    /// Locks do not work, or cannot be relied on.
    Problem,
}

impl Level {
    /// Returns the level's name, as displayed.
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Problem => "problem",
        }
    }
}

/// The result of one check. The texts may quote the store, which is not trusted: they are escaped when they are
/// printed. They contain no secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was checked: one or two words that stay the same from version to version.
    pub check: &'static str,
    /// How well it is.
    pub level: Level,
    /// What was found.
    pub found: String,
    /// What follows from it for locks, unless the level is `Ok`.
    pub consequence: Option<String>,
    /// What to do about it, unless the level is `Ok`.
    pub remedy: Option<String>,
}

impl Finding {
    // The text of a finding often quotes the store: secrets in it are replaced.

    /// Creates a finding without a fault.
    pub fn ok(check: &'static str, found: impl Into<String>) -> Finding {
        let found = scrubbed(&found.into()).into_owned();
        Finding { check, level: Level::Ok, found, consequence: None, remedy: None }
    }

    /// Creates a finding that locks work with a limitation.
    pub fn warning(
        check: &'static str,
        found: impl Into<String>,
        consequence: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        let (consequence, remedy) = (Some(consequence.into()), Some(remedy.into()));
        let found = scrubbed(&found.into()).into_owned();
        Finding { check, level: Level::Warning, found, consequence, remedy }
    }

    /// Creates a finding that locks do not work, or cannot be relied on.
    pub fn problem(
        check: &'static str,
        found: impl Into<String>,
        consequence: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding { level: Level::Problem, ..Finding::warning(check, found, consequence, remedy) }
    }

    /// Creates the finding that a server cannot be used because of this error.
    pub fn refusal(check: &'static str, error: &StoreError, remedy: &str) -> Finding {
        let found = match error {
            // The remedy is one of the finding.
            StoreError::OtherServer { found, .. } => found.clone(),
            error => error.to_string(),
        };
        Finding::problem(check, found, no_lock(error.failure_kind()), remedy)
    }

    /// Creates the finding that the store cannot be used because of this error, with what is to be done about an error of
    /// its kind.
    pub fn failure(check: &'static str, error: &StoreError) -> Finding {
        Finding::refusal(check, error, remedy_of(error))
    }

    /// Creates the finding that nothing takes over from the server.
    pub fn one_server() -> Finding {
        Finding::ok(
            AVAILABILITY,
            "one server: while it is down no lock can be taken and commands are stopped",
        )
    }

    /// Creates the finding that a table is missing which the user may create.
    pub fn missing_table(table: &dyn Display) -> Finding {
        Finding::warning(
            "table",
            format!("there is no table {table}"),
            "the first dlock run creates it; the remaining checks need it and were not made",
            "create it now: dlock doctor --init, or what dlock doctor --policy prints",
        )
    }

    /// Returns the same finding about one of several servers, which the others can do without.
    pub(super) fn of_one(self, server: &dyn Display, consequence: &str) -> Finding {
        let Finding { check, found, remedy, .. } = self.about(server);
        Finding::warning(check, found, consequence, remedy.unwrap_or_default())
    }

    /// Returns the same finding with the address of the server, unless it begins with that.
    pub fn about(self, server: &dyn Display) -> Finding {
        let server = server.to_string();
        match self.found.starts_with(&server) {
            true => self,
            false => Finding { found: format!("{server}: {}", self.found), ..self },
        }
    }
}

/// Returns what follows from a failure of this kind.
pub fn no_lock(kind: FailureKind) -> String {
    let retry = match kind {
        FailureKind::Unavailable => ", or keeps trying with --retry",
        _ => "",
    };
    format!("no lock can be taken: dlock run ends with {}{retry}", kind as u8)
}

/// Returns what is to be done about an error of a store, whatever the request was.
pub fn remedy_of(error: &StoreError) -> &str {
    match error {
        StoreError::Denied(_) => "grant the user the rights that dlock doctor --policy prints",
        StoreError::OtherServer { remedy, .. } => remedy,
        StoreError::Config(_) => "see the error: correct the URL, or what it names in the store",
        StoreError::Unavailable { outlook: Outlook::Permanent, .. } => {
            "see the error: correct the configuration of the server, or of this client"
        }
        StoreError::Unavailable { .. } => {
            "check that the store runs and that nothing between drops packets; --connect-timeout allows it more time"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_belongs_to_the_error() {
        let permanent = |reason: &str| StoreError::Unavailable {
            reason: reason.into(),
            maybe_applied: false,
            outlook: Outlook::Permanent,
        };
        for (error, status, remedy) in [
            (StoreError::Denied("no right".into()), 77, "dlock doctor --policy"),
            (StoreError::Config("another table".into()), 78, "correct the URL"),
            (permanent("the certificate has expired"), 69, "correct the configuration"),
            (StoreError::unreachable("connection refused"), 69, "nothing between drops packets"),
            (StoreError::unanswered("no answer within 5s"), 69, "nothing between drops packets"),
        ] {
            let finding = Finding::failure("lock", &error);
            let consequence = format!("no lock can be taken: dlock run ends with {status}");
            assert_eq!(finding.level, Level::Problem, "{error}");
            assert!(finding.consequence.is_some_and(|text| text.starts_with(&consequence)), "{error}");
            assert!(finding.remedy.is_some_and(|text| text.contains(remedy)), "{error}");
        }
    }
}

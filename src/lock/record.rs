//! A record of a run. Those of the last runs are the history of a lock.

use serde::{Deserialize, Serialize};

use super::{FencingToken, Identity};
use crate::secret;

/// The outcome of a run that did not get its locks because others had them.
pub const CONTENDED: &str = "contended";
/// The outcome of `dlock acquire`, besides those of a run.
pub const ACQUIRED: &str = "acquired";
/// The outcome of `dlock release`.
pub const RELEASED: &str = "released";
/// The outcome of `dlock break`.
pub const BROKEN: &str = "broken";
/// The outcome of `dlock break --force`.
pub const REMOVED: &str = "removed";

/// How a run ended or why it did not start, as kept in the history of a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The outcome of the run, in the words of `--report`.
    #[serde(deserialize_with = "secret::text")]
    pub outcome: String,
    /// The owner of the run.
    pub identity: Identity,
    /// The exit status of dlock; 128 + n if it was killed by signal n.
    pub dlock_exit: i32,
    /// The exit status of the command, if it ran and was not killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_status: Option<i32>,
    /// The signal that killed the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// The fencing token of the hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<FencingToken>,
    /// How long the run waited for the lock, in ms.
    pub waited_ms: u64,
    /// How long the run held the lock, in ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_ms: Option<u64>,
    /// How long after this record `--min-hold` keeps the lock: that of the run itself, or that of `holder`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_ms: Option<u64>,
    /// The holder that kept the run from getting its locks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<Identity>,
    /// The lock that it held, if that is another one of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_lock: Option<String>,
    /// Why the lock was revoked.
    #[serde(default, deserialize_with = "secret::optional_text", skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The command ended with status 0 although it was told to end, or although the hold had been revoked or lost by then:
    /// it may have left its work unfinished.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
    /// The error that ended the run.
    #[serde(default, deserialize_with = "secret::optional_text", skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Record {
    /// Returns which quota of the history it counts against.
    pub fn kind(&self) -> RecordKind {
        match self.held_ms.is_some() || self.fencing_token.is_some() {
            true if self.has_succeeded() => RecordKind::Succeeded,
            true => RecordKind::Held,
            false => RecordKind::Missed,
        }
    }

    /// Returns whether it is about a run that has done its work, by the rules of `--once-per`.
    pub fn has_succeeded(&self) -> bool {
        self.outcome == "ran" && self.exit_status == Some(0) && !self.interrupted
    }

    /// Returns when the run began that was recorded at this time, in ms since 1970.
    pub fn began(&self, at: u64) -> u64 {
        at.saturating_sub(self.waited_ms).saturating_sub(self.held_ms.unwrap_or(0))
    }

    /// Returns whether everything went well.
    pub fn went_well(&self) -> bool {
        match self.outcome.as_str() {
            "ran" => self.has_succeeded(),
            outcome => matches!(outcome, ACQUIRED | RELEASED | "done"),
        }
    }
}

/// The kinds of records. Each has its own quota, so that many of one kind do not displace the last one of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// Of runs that have done their work.
    Succeeded,
    /// Of other holds.
    Held,
    /// Of runs that did not get the lock.
    Missed,
}

/// A record, and when the store stored it, in ms since 1970 by the store's clock.
pub type NotedRecord = (u64, Record);

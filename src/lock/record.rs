//! What has been: the outcome of a run, as it is kept in the store.

use serde::{Deserialize, Serialize};

use super::{FencingToken, Identity};
use crate::secret;

/// How a run ended or why it did not begin, as it is kept in the store for those who ask later.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// What came of it, as `--report` names it.
    #[serde(deserialize_with = "secret::text")]
    pub outcome: String,
    /// Who ran it, or would have.
    pub identity: Identity,
    /// How dlock exited; 128 + n when it died of a signal.
    pub dlock_exit: i32,
    /// How the command exited, if it ran and was not killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_status: Option<i32>,
    /// The signal that the command died of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// The fencing token of its hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<FencingToken>,
    /// For how long it waited, in ms.
    pub waited_ms: u64,
    /// For how long it held the lock, in ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_ms: Option<u64>,
    /// Who had the lock instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<Identity>,
    /// Why the lock was revoked.
    #[serde(default, deserialize_with = "secret::optional_text", skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What went wrong.
    #[serde(default, deserialize_with = "secret::optional_text", skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Record {
    /// Whether the lock was its own, for a while. Such records are kept apart from the others, so that many who did not get
    /// it do not push out the one who did.
    pub fn has_held(&self) -> bool {
        self.held_ms.is_some()
    }
}

/// A record, and when the store noted it, in ms since 1970 by the store's clock.
pub type NotedRecord = (u64, Record);

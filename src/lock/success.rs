//! The last success of a lock: the run that `--once-per` looks for.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Claim, FencingToken};
use crate::secret;

/// A run with `--once-per` whose command ended with status 0. Its form as JSON is a stored format: fields are only
/// added. Times are in ms since 1970, by the store's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Success {
    format: u32,
    /// When it was granted the lock.
    pub granted_at: u64,
    /// When its command had ended.
    pub ended_at: u64,
    /// The host's name.
    #[serde(deserialize_with = "secret::text")]
    pub host: String,
    /// The process id of its dlock.
    pub pid: u32,
    /// The login name, or the number of a user that has none.
    #[serde(deserialize_with = "secret::text")]
    pub user: String,
    /// The fencing token of its hold, if the recipe has one.
    #[serde(default)]
    pub fencing_token: Option<FencingToken>,
}

/// A stored success is in this format, which is not a known one. It must not be guessed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownFormat(pub String);

/// Whether a run is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Due {
    /// The last success began long enough ago.
    Now,
    /// The last success lies this far in the future, further than the period is long, and says nothing.
    Undated(Duration),
    /// It began too recently.
    Not(NotDue),
}

/// Why a run is not due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotDue {
    /// The run that succeeded.
    pub last: Success,
    /// How long ago its command ended, by the store's clock.
    pub ago: Duration,
    /// When the next run is due.
    pub due_in: Duration,
}

impl Success {
    /// The format number that is written.
    pub const FORMAT: u32 = 1;
    /// How long a success is kept: longer than the longest `--once-per`.
    pub const KEPT: Duration = Duration::from_secs(31 * 24 * 3600);

    /// Returns the success of a claim that holds the lock.
    pub fn of(claim: &Claim, fencing: Option<FencingToken>, granted_at: u64, ended_at: u64) -> Success {
        Success {
            format: Success::FORMAT,
            granted_at,
            ended_at,
            host: claim.identity.host.clone(),
            pid: claim.identity.pid,
            user: claim.identity.user.clone(),
            fencing_token: fencing,
        }
    }

    /// Reads a stored success.
    ///
    /// # Errors
    /// It is in another format.
    pub fn parse(stored: &serde_json::Value) -> Result<Success, UnknownFormat> {
        match Success::deserialize(stored) {
            Ok(success) if success.format == Success::FORMAT => Ok(success),
            _ => Err(UnknownFormat(match stored.get("format").and_then(serde_json::Value::as_u64) {
                Some(format) if format != u64::from(Success::FORMAT) => format.to_string(),
                _ => "unknown".to_owned(),
            })),
        }
    }

    /// Returns whether a run with this period is due at `now`, in ms since 1970.
    pub fn due(self, now: u64, period: Duration) -> Due {
        let ago = Duration::from_millis(now.saturating_sub(self.ended_at));
        let (began, now) = (Duration::from_millis(self.granted_at), Duration::from_millis(now));
        match began.checked_sub(now) {
            Some(ahead) if ahead > period => Due::Undated(ahead),
            _ if began + period > now => Due::Not(NotDue { last: self, ago, due_in: began + period - now }),
            _ => Due::Now,
        }
    }

    /// Returns whether the success is still kept at `now`, in ms since 1970.
    pub fn is_kept(&self, now: u64) -> bool {
        Duration::from_millis(now.saturating_sub(self.ended_at)) < Success::KEPT
    }
}

//! Freezes: an operator prevents runs from starting under a name.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::random;
use crate::secret;

/// A freeze of a lock: while it lasts, nobody is granted the lock who does not run inside a hold of it. It stands before
/// all waiters, who keep their order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Freeze {
    /// Distinguishes it from every other freeze.
    pub id: String,
    /// Who has frozen the lock: `user@host`.
    #[serde(deserialize_with = "secret::text")]
    pub by: String,
    /// `--reason`
    #[serde(default, deserialize_with = "secret::optional_text", skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it began, in ms since 1970 by the store's clock.
    pub since: u64,
    /// When it ends, likewise; `None` if it lasts until it is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
}

/// What is requested of a freeze: the store sets its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreezeRequest {
    /// See [`Freeze::id`].
    pub id: String,
    /// See [`Freeze::by`].
    pub by: String,
    /// See [`Freeze::reason`].
    pub reason: Option<String>,
    /// How long it lasts; `None` if it lasts until it is removed.
    pub lasts: Option<Duration>,
}

impl FreezeRequest {
    /// Returns a request for a new freeze.
    pub fn new(by: String, reason: Option<String>, lasts: Option<Duration>) -> FreezeRequest {
        FreezeRequest { id: random::id(), by, reason, lasts }
    }

    /// Returns the freeze that begins at this time, in ms since 1970.
    pub fn at(&self, now_ms: u64) -> Freeze {
        let Self { id, by, reason, lasts } = self.clone();
        let end = |lasts: Duration| now_ms.saturating_add(lasts.as_millis().try_into().unwrap_or(u64::MAX));
        Freeze { id, by, reason, since: now_ms, until: lasts.map(end) }
    }
}

impl Freeze {
    /// Returns how long it still lasts at this time, in ms since 1970: [`Duration::MAX`] until it is removed, and `None` if
    /// it has ended.
    pub fn rest(&self, now_ms: u64) -> Option<Duration> {
        let Some(until) = self.until else { return Some(Duration::MAX) };
        until.checked_sub(now_ms).filter(|rest| *rest > 0).map(Duration::from_millis)
    }
}

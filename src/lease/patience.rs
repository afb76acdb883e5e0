//! How long an acquisition may take.

use std::time::Duration;

use crate::backend::Intent;
use crate::clock::Moment;

/// How long to wait for a lock that another client holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// Up to this long.
    For(Duration),
    /// Until the lock is granted.
    Forever,
}

/// The limits of an acquisition, as durations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// How long to wait for a holder.
    pub wait: Wait,
    /// How long to retry a store that cannot be reached, even without waiting for a holder.
    pub retry: Duration,
}

/// The limits of an acquisition, as moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub(super) intent: Intent,
    /// When to stop waiting for a holder; `None` is never.
    pub(super) wait_until: Option<Moment>,
    /// When to stop retrying a store that cannot be reached.
    pub(super) retry_until: Option<Moment>,
}

impl Patience {
    /// Returns the limits of an acquisition that begins now.
    pub fn from(self, begin: Moment) -> Limits {
        let (intent, wait_until) = match self.wait {
            Wait::No => (Intent::TakeNow, Some(begin)),
            Wait::For(duration) => (Intent::Enqueue, Some(begin + duration)),
            Wait::Forever => (Intent::Enqueue, None),
        };
        let retry_until = wait_until.map(|until| until.max(begin + self.retry));
        Limits { intent, wait_until, retry_until }
    }
}

impl Limits {
    /// Returns when to stop waiting for a holder; `None` is never.
    pub fn wait_until(&self) -> Option<Moment> {
        self.wait_until
    }

    /// Returns whether a store that fails may not be retried any more.
    pub fn is_retry_expired(&self) -> bool {
        self.retry_until.is_some_and(|until| Moment::now() >= until)
    }
}

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
    /// With `--retry`, the longest time for an attempt that is not the last.
    attempt: Option<Duration>,
}

/// With `--retry`, this many attempts fit even if the store does not answer ...
const ATTEMPTS: u32 = 3;
/// ... unless each would be shorter than this.
const MIN_ATTEMPT: Duration = Duration::from_millis(800);

impl Patience {
    /// Returns the limits of an acquisition that begins now.
    pub fn from(self, begin: Moment) -> Limits {
        let (intent, wait_until) = match self.wait {
            Wait::No => (Intent::TakeNow, Some(begin)),
            Wait::For(duration) => (Intent::Enqueue, Some(begin + duration)),
            Wait::Forever => (Intent::Enqueue, None),
        };
        let retry_until = wait_until.map(|until| until.max(begin + self.retry));
        let attempt = (!self.retry.is_zero()).then(|| (self.retry / ATTEMPTS).max(MIN_ATTEMPT));
        Limits { intent, wait_until, retry_until, attempt }
    }
}

impl Limits {
    /// Returns how long an attempt may take that begins now; `since` is when the first one began, unless this is it.
    /// Whatever the limits, the store gets the connect timeout once; and every attempt gets a minimum, however little
    /// is left of the wait: a late reply is more useful than "unknown" in time. A connection on which the store does
    /// not answer uses up no more than a share of `--retry`: another one may lead to a server that does. But each
    /// attempt may take as long as all before it together, so that a slow store is reached in the end.
    pub(super) fn attempt(&self, since: Option<Moment>, connect_timeout: Duration) -> Duration {
        let now = Moment::now();
        let rest = match (since, self.retry_until) {
            (Some(begin), Some(until)) => {
                connect_timeout.min((until.max(begin + connect_timeout) - now).max(MIN_ATTEMPT))
            }
            _ => connect_timeout,
        };
        let so_far = since.map_or(Duration::ZERO, |begin| now - begin);
        let share = self.attempt.map(|share| share.max(so_far));
        let share = share.filter(|share| self.retry_until.is_none_or(|until| now + *share < until));
        share.map_or(rest, |share| share.min(rest))
    }

    /// Returns when to stop waiting for a holder; `None` is never.
    pub fn wait_until(&self) -> Option<Moment> {
        self.wait_until
    }

    /// Returns whether a store that fails may not be retried any more.
    pub fn is_retry_expired(&self) -> bool {
        self.retry_until.is_some_and(|until| Moment::now() >= until)
    }

    /// Returns the limits of a single attempt that begins now, without waiting.
    pub(super) fn once() -> Limits {
        let now = Some(Moment::now());
        Limits { intent: Intent::TakeNow, wait_until: now, retry_until: now, attempt: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_attempt_may_take_as_long_as_all_before_it() {
        let patience = Patience { wait: Wait::Forever, retry: Duration::from_secs(2) };
        let begin = Moment::now();
        let limits = patience.from(begin);
        let connect_timeout = Duration::from_secs(5);
        assert_eq!(limits.attempt(None, connect_timeout), MIN_ATTEMPT);
        let long_ago = Moment::from_boot(Duration::ZERO);
        assert_eq!(limits.attempt(Some(long_ago), connect_timeout), connect_timeout);
    }
}

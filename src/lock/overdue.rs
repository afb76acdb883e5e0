//! When a lock was last held by a run that succeeded, and whether that is too long ago: pure.

use std::time::Duration;

use super::record::{ACQUIRED, BROKEN, RELEASED, REMOVED, RecordKind};
use super::{LockName, NotedRecord, Record, Success};

/// A history with this many failures may have forgotten others.
const FORGETFUL: usize = 20;

/// The last run under a lock that succeeded. Its time is by the store's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastSuccess {
    /// When it was granted the lock, in ms since 1970.
    pub began: u64,
    /// The host's name.
    pub host: String,
    /// The process id of its dlock.
    pub pid: u32,
    /// The login name, or the number of a user that has none.
    pub user: String,
}

/// The limits of the age of a success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgeLimits {
    /// The first limit.
    pub warning: Duration,
    /// The second limit, which is longer.
    pub critical: Option<Duration>,
}

/// How overdue a lock is, the mildest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Not at all.
    Fine,
    /// Beyond the first limit.
    Warning,
    /// Beyond the second limit.
    Critical,
}

/// What is known of the successes of one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Which lock it is.
    pub name: LockName,
    /// The last success, if one is known.
    pub last: Option<LastSuccess>,
    /// How long ago the last success began; `None` if none is known.
    pub age: Option<Duration>,
    /// How overdue the lock is.
    pub severity: Severity,
}

impl LastSuccess {
    /// Returns the later one of the last success in the history and the last one with `--once-per`, which is kept when the
    /// history is not.
    pub fn of(once_per: Option<&Success>, history: &[NotedRecord]) -> Option<LastSuccess> {
        let recorded = history.iter().filter(|(_, record)| record.has_succeeded()).map(|(at, record)| {
            let (identity, held_ms) = (&record.identity, record.held_ms.unwrap_or(0));
            let (host, user) = (identity.host.clone(), identity.user.clone());
            LastSuccess { began: at.saturating_sub(held_ms), host, pid: identity.pid, user }
        });
        let counted = once_per.map(|success| LastSuccess {
            began: success.granted_at,
            host: success.host.clone(),
            pid: success.pid,
            user: success.user.clone(),
        });
        recorded.chain(counted).max_by_key(|last| last.began)
    }
}

impl AgeLimits {
    /// Returns how overdue a lock is whose last success has this age. One of which no success is known is beyond all limits:
    /// the store has forgotten what is older.
    pub fn severity(&self, age: Option<Duration>) -> Severity {
        let exceeds = |limit: Duration| age.is_none_or(|age| age > limit);
        match self.critical {
            Some(critical) if exceeds(critical) => Severity::Critical,
            _ if exceeds(self.warning) => Severity::Warning,
            _ => Severity::Fine,
        }
    }

    /// Returns whether runs have held the lock before the first limit, and no success is known: they are so many that
    /// earlier ones are forgotten, or the first of them is too long ago.
    pub fn is_exceeded_by_failures(&self, history: &[NotedRecord], now: u64) -> bool {
        let is_of_run =
            |record: &Record| ![ACQUIRED, RELEASED, BROKEN, REMOVED].contains(&record.outcome.as_str());
        let failed =
            history.iter().filter(|(_, record)| record.kind() == RecordKind::Held && is_of_run(record));
        let began: Vec<u64> =
            failed.map(|(at, record)| at.saturating_sub(record.held_ms.unwrap_or(0))).collect();
        let oldest = began.iter().min().map(|began| Duration::from_millis(now.saturating_sub(*began)));
        began.len() >= FORGETFUL || oldest.is_some_and(|age| age > self.warning)
    }

    /// Checks a lock at `now`, in ms since 1970.
    pub fn check(&self, name: LockName, last: Option<LastSuccess>, now: u64) -> Checked {
        let age = last.as_ref().map(|last| Duration::from_millis(now.saturating_sub(last.began)));
        Checked { name, last, age, severity: self.severity(age) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{Claim, FencingToken, Token};

    fn record(host: &str, exit_status: i32, held_ms: u64) -> Record {
        let mut record = Record { outcome: "ran".into(), ..Record::default() };
        record.identity.host = host.into();
        (record.exit_status, record.held_ms) = (Some(exit_status), Some(held_ms));
        record
    }

    #[test]
    fn the_last_success_is_the_one_that_began_last() {
        let name = LockName::new("x").expect("a name");
        let mut claim = Claim::new(name, Token::from_text("t"), Duration::from_secs(30));
        claim.identity.host = "once".into();
        let once = |granted_at| Success::of(&claim, FencingToken::new(7), granted_at, granted_at + 5);
        let interrupted = Record { interrupted: true, ..record("interrupted", 0, 1) };
        let history = [
            (950, interrupted),
            (900, record("failed", 1, 1)),
            (800, record("long", 0, 500)),
            (700, record("short", 0, 10)),
        ];
        let last = |once: Option<&Success>, history: &[NotedRecord]| {
            LastSuccess::of(once, history).map(|last| (last.began, last.host))
        };
        assert_eq!(last(None, &history), Some((690, "short".into())));
        assert_eq!(last(Some(&once(691)), &history), Some((691, "once".into())));
        assert_eq!(last(Some(&once(600)), &history[..3]), Some((600, "once".into())));
        assert_eq!(last(None, &history[..2]), None);
    }

    #[test]
    fn a_success_that_is_forgotten_is_beyond_all_limits() {
        let [hour, day] = [1, 24].map(|hours| Duration::from_secs(hours * 3600));
        let one = AgeLimits { warning: hour, critical: None };
        let two = AgeLimits { warning: hour, critical: Some(day) };
        let cases = [
            (Some(Duration::ZERO), Severity::Fine, Severity::Fine),
            (Some(hour), Severity::Fine, Severity::Fine),
            (Some(hour + Duration::from_millis(1)), Severity::Warning, Severity::Warning),
            (Some(day), Severity::Warning, Severity::Warning),
            (Some(day * 2), Severity::Warning, Severity::Critical),
            (None, Severity::Warning, Severity::Critical),
        ];
        for (age, with_one, with_two) in cases {
            assert_eq!((one.severity(age), two.severity(age)), (with_one, with_two), "{age:?}");
        }
    }

    #[test]
    fn a_job_that_only_fails_is_overdue_in_the_end() {
        let limits = AgeLimits { warning: Duration::from_secs(1), critical: None };
        let missed = Record { held_ms: None, ..record("missed", 1, 0) };
        let history = [(5_000, record("failed", 1, 100)), (4_000, record("failed", 1, 100)), (1, missed)];
        assert!(limits.is_exceeded_by_failures(&history, 4_901));
        assert!(!limits.is_exceeded_by_failures(&history, 4_900));
        assert!(!limits.is_exceeded_by_failures(&history[2..], 4_901));
        let often = vec![(4_900, record("often", 1, 1)); 20];
        assert!(limits.is_exceeded_by_failures(&often, 4_901));
        assert!(!limits.is_exceeded_by_failures(&often[1..], 4_901));
        let lost = Record { outcome: "lost".into(), exit_status: None, ..record("lost", 0, 1) };
        assert!(limits.is_exceeded_by_failures(&[(1, lost)], 4_901));
        let acquired = Record { outcome: ACQUIRED.into(), ..record("a token", 0, 1) };
        assert!(!limits.is_exceeded_by_failures(&[(1, acquired)], 4_901));
    }

    /// A clock that was set back must not make a lock overdue.
    #[test]
    fn a_success_in_the_future_is_new() {
        let limits = AgeLimits { warning: Duration::from_secs(1), critical: None };
        let last = LastSuccess { began: 10_000, host: "h".into(), pid: 1, user: "u".into() };
        let checked = limits.check(LockName::new("x").expect("a name"), Some(last), 5_000);
        assert_eq!((checked.age, checked.severity), (Some(Duration::ZERO), Severity::Fine));
    }
}

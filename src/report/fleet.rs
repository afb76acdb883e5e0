//! The state of locks as metrics, in the text format of Prometheus.
//!
//! Called by `commands/fleet`. What always holds: each series is there once, and every metric is a gauge, because a store
//! forgets outcomes.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use super::metrics::escaped;
use crate::lock::overdue::LastSuccess;
use crate::lock::{LockState, NotedRecord};

/// The locks, and how many more there are.
pub struct Fleet {
    pub locks: Vec<Measured>,
    pub omitted: usize,
}

/// What is known of one lock.
pub struct Measured {
    pub state: LockState,
    pub history: Vec<NotedRecord>,
}

/// The samples of one metric: labels and value.
type Samples = Vec<(String, f64)>;

impl Fleet {
    /// Returns the metrics.
    pub fn text(&self) -> String {
        let known: Vec<&Measured> = self.locks.iter().filter(|lock| lock.state.unknown.is_none()).collect();
        let of_each = |value: &dyn Fn(&Measured) -> Option<f64>| -> Samples {
            known.iter().filter_map(|lock| Some((name_label(lock), value(lock)?))).collect()
        };
        let mut text = String::new();
        let mut family = |name: &str, help: &str, samples: Samples| {
            if !samples.is_empty() {
                let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge");
            }
            for (labels, value) in samples {
                let _ = writeln!(text, "{name}{labels} {value}");
            }
        };
        let readable = |lock: &Measured| (name_label(lock), f64::from(lock.state.unknown.is_none()));
        family(
            "dlock_lock_readable",
            "Whether the state of the lock could be read; it has no other series if not.",
            self.locks.iter().map(readable).collect(),
        );
        family(
            "dlock_locks_omitted",
            "Further locks, of which there are no series.",
            vec![(String::new(), self.omitted as f64)],
        );
        family(
            "dlock_lock_holders",
            "Holders of the lock.",
            of_each(&|lock| Some(lock.state.holders.len() as f64)),
        );
        family(
            "dlock_lock_frozen",
            "Whether the lock is frozen.",
            of_each(&|lock| Some(f64::from(lock.state.freeze.is_some()))),
        );
        family(
            "dlock_lock_waiters",
            "Waiters for the lock.",
            of_each(&|lock| Some(lock.state.waiters.len() as f64)),
        );
        family(
            "dlock_lock_oldest_wait_seconds",
            "How long the lock has been waited for, by the waiter that has waited longest.",
            of_each(&|lock| {
                let waits = lock.state.waiters.iter().map(|waiter| waiter.waiting);
                Some(waits.max().unwrap_or_default().as_secs_f64())
            }),
        );
        family(
            "dlock_lock_last_success_timestamp_seconds",
            "When the last run under the lock that succeeded began, on any host, by the clock of the store.",
            of_each(&|lock| {
                let last = LastSuccess::of(lock.state.last_success.as_ref(), &lock.history)?;
                Some(Duration::from_millis(last.began).as_secs_f64())
            }),
        );
        family(
            "dlock_lock_outcomes",
            "Outcomes in the history of the lock, which forgets the oldest.",
            known.iter().flat_map(|lock| outcomes(lock)).collect(),
        );
        text
    }
}

fn name_label(lock: &Measured) -> String {
    format!("{{name=\"{}\"}}", escaped(lock.state.name.as_str()))
}

/// Counts the outcomes of a lock, each by its word in `--report`.
fn outcomes(lock: &Measured) -> Samples {
    let mut counts: BTreeMap<String, f64> = BTreeMap::new();
    for (_, record) in &lock.history {
        *counts.entry(escaped(&record.outcome)).or_default() += 1.0;
    }
    let name = escaped(lock.state.name.as_str());
    let sample = |(outcome, count)| (format!("{{name=\"{name}\",outcome=\"{outcome}\"}}"), count);
    counts.into_iter().map(sample).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{Holder, LockName, Mode, Record, Unknown, Waiter};

    fn lock(name: &str) -> LockState {
        LockState::free(LockName::new(name).expect("a name"))
    }

    #[test]
    fn each_series_is_there_once() {
        let mut held = lock("a\"b");
        held.holders = vec![Holder::default()];
        let wait =
            |seconds| Waiter { identity: None, mode: Mode::Exclusive, waiting: Duration::from_secs(seconds) };
        held.waiters = vec![wait(9), wait(2)];
        let ran = |at, status| {
            let outcome = "ran".to_owned();
            (at, Record { outcome, exit_status: Some(status), held_ms: Some(500), ..Record::default() })
        };
        let history = vec![ran(2_000_000, 0), ran(3_000_000, 1)];
        let mut unknown = lock("secret");
        unknown.unknown = Some(Unknown::Denied("no".into()));
        let free = Measured { state: lock("free"), history: Vec::new() };
        let locks =
            vec![Measured { state: held, history }, free, Measured { state: unknown, history: Vec::new() }];
        assert_eq!(
            Fleet { locks, omitted: 3 }.text(),
            "# HELP dlock_lock_readable Whether the state of the lock could be read; it has no other series if not.\n\
             # TYPE dlock_lock_readable gauge\n\
             dlock_lock_readable{name=\"a\\\"b\"} 1\n\
             dlock_lock_readable{name=\"free\"} 1\n\
             dlock_lock_readable{name=\"secret\"} 0\n\
             # HELP dlock_locks_omitted Further locks, of which there are no series.\n\
             # TYPE dlock_locks_omitted gauge\n\
             dlock_locks_omitted 3\n\
             # HELP dlock_lock_holders Holders of the lock.\n\
             # TYPE dlock_lock_holders gauge\n\
             dlock_lock_holders{name=\"a\\\"b\"} 1\n\
             dlock_lock_holders{name=\"free\"} 0\n\
             # HELP dlock_lock_frozen Whether the lock is frozen.\n\
             # TYPE dlock_lock_frozen gauge\n\
             dlock_lock_frozen{name=\"a\\\"b\"} 0\n\
             dlock_lock_frozen{name=\"free\"} 0\n\
             # HELP dlock_lock_waiters Waiters for the lock.\n\
             # TYPE dlock_lock_waiters gauge\n\
             dlock_lock_waiters{name=\"a\\\"b\"} 2\n\
             dlock_lock_waiters{name=\"free\"} 0\n\
             # HELP dlock_lock_oldest_wait_seconds How long the lock has been waited for, by the waiter that has waited \
             longest.\n\
             # TYPE dlock_lock_oldest_wait_seconds gauge\n\
             dlock_lock_oldest_wait_seconds{name=\"a\\\"b\"} 9\n\
             dlock_lock_oldest_wait_seconds{name=\"free\"} 0\n\
             # HELP dlock_lock_last_success_timestamp_seconds When the last run under the lock that succeeded began, on any \
             host, by the clock of the store.\n\
             # TYPE dlock_lock_last_success_timestamp_seconds gauge\n\
             dlock_lock_last_success_timestamp_seconds{name=\"a\\\"b\"} 1999.5\n\
             # HELP dlock_lock_outcomes Outcomes in the history of the lock, which forgets the oldest.\n\
             # TYPE dlock_lock_outcomes gauge\n\
             dlock_lock_outcomes{name=\"a\\\"b\",outcome=\"ran\"} 2\n"
        );
    }
}

//! The histories of locks, and what is selected of them.

use super::record::CONTENDED;
use super::{Identity, LockName, NotedRecord, Record};

/// The history of one lock, the run that began last first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// Which lock.
    pub name: LockName,
    /// What was noted of its runs.
    pub records: Vec<NotedRecord>,
}

/// What is selected of a history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only what ended at or after this time, in ms since 1970 by the store's clock.
    pub since: Option<u64>,
    /// Only what began before this time.
    pub until: Option<u64>,
    /// Leave out what went well, and what a run that went well kept out.
    pub only_failed: bool,
}

/// How much later than it happened an outcome may be dated, in ms: a dlock that has to leave tries this long to note it.
const LATE: u64 = 1000;

impl History {
    /// Returns the history with its records in order.
    pub fn new(name: LockName, mut records: Vec<NotedRecord>) -> History {
        records.sort_by_key(|(at, record)| std::cmp::Reverse(record.began(*at)));
        History { name, records }
    }
}

impl Filter {
    /// Returns what is selected of the histories. `others` are those of the locks that [`also_needed`] names.
    pub fn apply(self, histories: &[History], others: &[History]) -> Vec<History> {
        let is_selected = |own: &History, noted: &NotedRecord| {
            let (at, record) = noted;
            let is_between = self.since.is_none_or(|since| *at >= since)
                && self.until.is_none_or(|until| record.began(*at) < until);
            let went_well = || record.went_well() || was_kept_out(noted, own, histories, others);
            is_between && !(self.only_failed && went_well())
        };
        let of = |own: &History| {
            let records = own.records.iter().filter(|noted| is_selected(own, noted)).cloned().collect();
            History { name: own.name.clone(), records }
        };
        histories.iter().map(of).collect()
    }
}

/// Returns the locks, besides these, whose histories tell whether a run that kept others out of these locks has succeeded.
pub fn also_needed(histories: &[History]) -> Vec<LockName> {
    let mut names: Vec<LockName> = Vec::new();
    for (_, record) in histories.iter().flat_map(|history| &history.records) {
        let Some(name) = record.held_lock.as_ref().and_then(|name| LockName::new(name).ok()) else {
            continue;
        };
        if histories.iter().all(|history| history.name != name) && !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Returns whether a run did not get its locks because another one had them that has succeeded: the harmless twin of a run
/// that is started on several hosts.
///
/// Such a record names the host, the process, the user and the command of the holder. Process ids are used again (in
/// containers by every run), so the time decides between the runs that match: when it was kept out, that run held the
/// lock, or kept it by `--min-hold`.
fn was_kept_out(
    (at, record): &NotedRecord,
    own: &History,
    histories: &[History],
    others: &[History],
) -> bool {
    let (CONTENDED, Some(holder)) = (record.outcome.as_str(), &record.holder) else { return false };
    let lock = record.held_lock.as_deref().unwrap_or(own.name.as_str());
    let Some(of) = histories.iter().chain(others).find(|history| history.name.as_str() == lock) else {
        return false;
    };
    let process = |identity: &Identity| {
        (identity.host.clone(), identity.pid, identity.user.clone(), identity.command.clone())
    };
    let holds = of
        .records
        .iter()
        .filter(|(_, hold)| hold.held_ms.is_some() && process(&hold.identity) == process(holder));
    // Of runs that followed each other, the one that is nearest.
    let nearest = holds.min_by_key(|(ended, hold)| distance(*at, *ended, hold));
    nearest.is_some_and(|(ended, hold)| hold.went_well() && distance(*at, *ended, hold) <= LATE)
}

/// Returns how far a time is from a hold that ended at `ended`.
fn distance(at: u64, ended: u64, hold: &Record) -> u64 {
    let from = ended.saturating_sub(hold.held_ms.unwrap_or(0));
    let to = ended.saturating_add(hold.kept_ms.unwrap_or(0));
    from.saturating_sub(at).max(at.saturating_sub(to))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(host: &str, pid: u32) -> Identity {
        Identity {
            host: host.into(),
            pid,
            user: "root".into(),
            command: "backup.sh".into(),
            ..Identity::default()
        }
    }

    fn ran(host: &str, pid: u32, status: i32, held_ms: u64) -> Record {
        Record {
            outcome: "ran".into(),
            identity: identity(host, pid),
            exit_status: Some(status),
            held_ms: Some(held_ms),
            ..Record::default()
        }
    }

    fn kept_out(holder: Option<Identity>) -> Record {
        Record { outcome: "contended".into(), identity: identity("web-2", 7), holder, ..Record::default() }
    }

    fn history(name: &str, records: Vec<NotedRecord>) -> History {
        History::new(LockName::new(name).expect("a name"), records)
    }

    /// Returns when the failures were noted.
    fn failures(records: Vec<NotedRecord>, others: &[History]) -> Vec<u64> {
        let filter = Filter { only_failed: true, ..Filter::default() };
        let selected = filter.apply(&[history("x", records)], others);
        selected[0].records.iter().map(|(at, _)| *at).collect()
    }

    #[test]
    fn a_twin_of_a_run_that_succeeded_is_harmless() {
        let holder = || Some(identity("web-1", 5));
        // It held the lock from 20 s to 50 s.
        let (won, failed) = (ran("web-1", 5, 0, 30_000), ran("web-1", 5, 1, 30_000));
        assert_eq!(failures(vec![(50_000, won.clone()), (20_010, kept_out(holder()))], &[]), [0; 0]);
        assert_eq!(
            failures(vec![(50_000, failed.clone()), (20_010, kept_out(holder()))], &[]),
            [20_010, 50_000]
        );
        // The dates of both are those of the notes.
        for at in [19_500, 50_900] {
            assert_eq!(failures(vec![(50_000, won.clone()), (at, kept_out(holder()))], &[]), [0; 0], "{at}");
        }
        for at in [18_000, 52_000] {
            assert_eq!(failures(vec![(50_000, won.clone()), (at, kept_out(holder()))], &[]), [at], "{at}");
        }
        // Another process, another host, and one that is not known.
        for other in [Some(identity("web-1", 6)), Some(identity("web-3", 5)), None] {
            assert_eq!(failures(vec![(50_000, won.clone()), (30_000, kept_out(other))], &[]), [30_000]);
        }
        // The process id was used again.
        let records = vec![
            (50_000, won.clone()),
            (80_000, failed),
            (49_000, kept_out(holder())),
            (51_000, kept_out(holder())),
        ];
        assert_eq!(failures(records, &[]), [51_000, 80_000]);
        let kept = Record { kept_ms: Some(60_000), ..won.clone() };
        assert_eq!(failures(vec![(50_000, kept), (100_000, kept_out(holder()))], &[]), [0; 0]);
        // It gave up for another reason.
        let interrupted = Record { outcome: "interrupted".into(), ..kept_out(holder()) };
        assert_eq!(failures(vec![(50_000, won), (30_000, interrupted)], &[]), [30_000]);
    }

    #[test]
    fn the_lock_that_was_held_may_be_another_one() {
        let other = Record { held_lock: Some("y".into()), ..kept_out(Some(identity("web-1", 5))) };
        let histories = [history("x", vec![(30_000, other.clone())])];
        assert_eq!(also_needed(&histories), [LockName::new("y").expect("a name")]);
        let won = history("y", vec![(50_000, ran("web-1", 5, 0, 30_000))]);
        assert_eq!(failures(vec![(30_000, other.clone())], &[won]), [0; 0]);
        assert_eq!(failures(vec![(30_000, other)], &[]), [30_000]);
    }

    #[test]
    fn what_overlaps_the_window_is_selected() {
        // From 10 s to 30 s, of which it waited for 10 s.
        let run = || Record { waited_ms: 10_000, ..ran("web-1", 5, 0, 10_000) };
        for (since, until, is_shown) in [
            (None, None, true),
            (Some(30_000), None, true),
            (Some(30_001), None, false),
            (None, Some(10_000), false),
            (None, Some(10_001), true),
            (Some(15_000), Some(16_000), true),
        ] {
            let filter = Filter { since, until, only_failed: false };
            let selected = filter.apply(&[history("x", vec![(30_000, run())])], &[]);
            assert_eq!(selected[0].records.is_empty(), !is_shown, "{since:?} {until:?}");
        }
    }
}

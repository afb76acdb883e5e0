//! The history of locks, as a table for people.
//!
//! Called by `commands/history`. What always holds: all times of a table are in one zone, which it names.

use std::fmt;
use std::time::Duration;

use jiff::civil::DateTime;
use jiff::tz::Offset;
use jiff::{Timestamp, Zoned};

use super::form::Form;
use super::status::{note_and_job, who};
use super::table::{Cell, Colour, FENCING_TOKEN, Layout, Table};
use super::{describe_identity, printable};
use crate::duration::show_distance;
use crate::lock::record::{ACQUIRED, BROKEN, CONTENDED, RELEASED, REMOVED};
use crate::lock::{Filter, History, LockName, NotedRecord, Record};

/// When, which lock if there are several, what, where and why.
const LAYOUT: Layout =
    Layout { spare: &["PID", "USER", "WAITED", "COMMAND", "HELD"], whole: &[0, 2, 3], wraps: true };

/// Returns what is said of a lock without outcomes.
pub(super) fn nothing(filter: Filter) -> &'static str {
    match filter == Filter::default() {
        true => "no runs are recorded",
        false => "no matching runs are recorded",
    }
}

/// The difference between local time and UTC, such as `UTC+01:00`.
#[derive(Clone, Copy)]
pub(super) struct Zone(pub(super) Offset);

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let zone = self.0.to_time_zone();
        match self.0 {
            Offset::UTC => f.write_str("UTC"),
            _ => write!(f, "UTC{}", Timestamp::UNIX_EPOCH.to_zoned(zone).strftime("%:z")),
        }
    }
}

impl Zone {
    /// Returns that of now, for all times of an output.
    pub(super) fn now() -> Zone {
        Zone(Zoned::now().offset())
    }
}

/// Returns the outcomes of all locks as one list, the latest first.
pub fn history_text(store: &str, histories: &[History], filter: Filter, form: Form) -> String {
    let mut text = format!("{}\n", printable(store));
    if histories.is_empty() {
        text.push_str(&format!("{}\n", nothing(filter)));
    }
    // The name of a single lock is the title of the table.
    let title = match histories {
        [History { name, .. }] => Some(name),
        _ => None,
    };
    text.extend(title.map(|name| format!("{}\n", printable(name.as_str()))));
    let mut all: Vec<(&LockName, &NotedRecord)> = histories
        .iter()
        .flat_map(|history| history.records.iter().map(|noted| (&history.name, noted)))
        .collect();
    all.sort_by_key(|(_, (at, record))| std::cmp::Reverse(record.began(*at)));
    if !all.is_empty() {
        text.push_str(&table(&all, title.is_none(), Zone::now()).to_text(form));
    }
    for History { name, .. } in histories.iter().filter(|history| history.records.is_empty()) {
        let about = title.map_or_else(|| format!("{}: ", printable(name.as_str())), |_| String::new());
        text.push_str(&format!("{about}{}\n", nothing(filter)));
    }
    text
}

/// Returns the table of these outcomes; without `has_names`, the column for them is empty, and not shown.
fn table(all: &[(&LockName, &NotedRecord)], has_names: bool, zone: Zone) -> Table {
    let began_in_zone = format!("BEGAN ({zone})");
    let mut table = Table::new(&[
        &began_in_zone,
        "NAME",
        "OUTCOME",
        "HOST",
        "PID",
        "USER",
        "COMMAND",
        "WAITED",
        "HELD",
        FENCING_TOKEN,
        "WHY",
    ])
    .laid_out(LAYOUT);
    for (name, (at, record)) in all {
        let (outcome, colour) = outcome(record);
        let mut cells = vec![
            Cell::new(&time_at(record.began(*at), zone)),
            Cell::new(if has_names { name.as_str() } else { "" }),
            Cell::new(&outcome).coloured(colour),
        ];
        cells.extend(who(Some(&record.identity)));
        let times = [Some(record.waited_ms), record.held_ms];
        cells.extend(times.map(|ms| Cell::known(ms.map(|ms| show_distance(Duration::from_millis(ms))))));
        cells.push(Cell::known(record.fencing_token));
        cells.push(Cell::new(&why(*at, record, zone)));
        table.add(cells);
    }
    table
}

/// Returns a time in ms since 1970 in the zone, unless it is later than any that a calendar has.
pub(super) fn local(ms: u64, zone: Zone) -> Option<DateTime> {
    let time = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    time.map(|time| zone.0.to_datetime(time))
}

/// A time that is later than any that a calendar has.
const AFTER_ALL: &str = "after 9999";

pub(super) fn time_at(ms: u64, zone: Zone) -> String {
    local(ms, zone)
        .map_or_else(|| AFTER_ALL.to_owned(), |time| time.strftime("%Y-%m-%d %H:%M:%S").to_string())
}

pub(super) fn outcome(record: &Record) -> (String, Colour) {
    match (record.outcome.as_str(), record.exit_status, record.signal) {
        ("ran", Some(0), _) if record.interrupted => ("ok, interrupted".to_owned(), Colour::Yellow),
        ("ran", Some(0), _) => ("ok".to_owned(), Colour::Green),
        ("ran", Some(status), _) => (format!("exit {status}"), Colour::Red),
        ("ran", None, Some(signal)) => (format!("signal {signal}"), Colour::Red),
        (ACQUIRED | RELEASED, ..) => (record.outcome.clone(), Colour::Green),
        (CONTENDED, ..) => (record.outcome.clone(), Colour::Yellow),
        (other, ..) => (other.to_owned(), Colour::Red),
    }
}

/// Returns until when `--min-hold` keeps the lock, with the date if that is not the one of the beginning.
fn kept_until(at: u64, record: &Record, zone: Zone) -> Option<String> {
    let until = at.saturating_add(record.kept_ms?);
    let date = |ms| local(ms, zone).map(DateTime::date);
    let time = match local(until, zone) {
        Some(time) if date(record.began(at)) == Some(time.date()) => time.strftime("%H:%M:%S").to_string(),
        _ => time_at(until, zone),
    };
    Some(format!("kept until {time} by --min-hold"))
}

fn why(at: u64, record: &Record, zone: Zone) -> String {
    let kept = kept_until(at, record, zone);
    let why = match (&record.holder, &record.error) {
        (Some(holder), _) => {
            let lock = record.held_lock.as_ref().map(|lock| format!("{lock} is ")).unwrap_or_default();
            let holder = describe_identity(holder);
            match (record.outcome.as_str(), &record.reason) {
                (BROKEN | REMOVED, Some(reason)) => Some(format!("from {holder}: {reason}")),
                (BROKEN | REMOVED, None) => Some(format!("from {holder}")),
                _ => {
                    let kept = kept.map(|kept| format!(", {kept}")).unwrap_or_default();
                    Some(format!("{lock}held by {holder}{kept}"))
                }
            }
        }
        (None, error) => {
            error.clone().into_iter().chain(kept).reduce(|error, kept| format!("{error}; {kept}"))
        }
    };
    why.into_iter().chain(note_and_job(&record.identity)).collect::<Vec<_>>().join("; ")
}

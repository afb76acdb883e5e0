//! Holders and waiters: as a table for people, and as JSON for programs.
//!
//! Called by `commands/status`. What always holds: both show the same inspection.

mod table;

use std::fmt;
use std::time::Duration;

use jiff::civil::DateTime;
use jiff::tz::Offset;
use jiff::{Timestamp, Zoned};

use self::table::{Cell, FENCING_TOKEN, Layout, Table};
pub(super) use self::table::{Colour, painted};
use super::form::Form;
use super::{broken_by, describe_identity, printable};
use crate::backend::admin::Inspection;
use crate::duration::show_distance;
use crate::lock::record::{ACQUIRED, BROKEN, RELEASED, REMOVED};
use crate::lock::{Holder, Identity, LockName, LockState, Mode, NotedRecord, Phase, Record, Waiter};

const STATUS_COLUMNS: &[&str] =
    &["LOCK", "STATE", "HOST", "PID", "USER", "COMMAND", "FOR", "LEASE", FENCING_TOKEN, "NOTE"];

/// Returns the locks as a table, with the store in the first line.
pub fn status_text(store: &str, seen: &Inspection, form: Form) -> String {
    let mut table = Table::new(STATUS_COLUMNS);
    for lock in &seen.locks {
        let mut name = Some(&lock.name);
        let mut row = |cells: Vec<Cell>| {
            let first = name.take().map_or(Cell::empty(), |name| Cell::new(name.as_str()));
            table.add([first].into_iter().chain(cells));
        };
        for holder in &lock.holders {
            row(holder_cells(lock, holder));
        }
        if let Some(unknown) = &lock.unknown {
            let mut cells = vec![Cell::new("unknown").coloured(Colour::Red)];
            cells.extend(["-"; 7].map(Cell::new));
            cells.push(Cell::new(unknown.why()));
            row(cells);
        } else if lock.holders.is_empty() {
            row(vec![Cell::new("free").coloured(Colour::Green)]);
        }
        for (index, waiter) in lock.waiters.iter().enumerate() {
            row(waiter_cells(index + 1, waiter));
        }
    }
    let mut text = format!("{}\n", printable(store));
    match table.is_empty() {
        true => text.push_str("no lock is held or awaited\n"),
        false => text.push_str(&table.to_text(form)),
    }
    text
}

fn holder_cells(lock: &LockState, holder: &Holder) -> Vec<Cell> {
    let (what, colour) = state(lock.mode, holder);
    let lease = holder.remaining.map(show_distance).or(holder.immortal.then(|| "for ever".to_owned()));
    let mut cells = vec![Cell::new(&what).coloured(colour)];
    cells.extend(who(holder.identity.as_ref()));
    cells.extend([
        Cell::known(holder.age.map(show_distance)),
        Cell::known(lease),
        Cell::known(holder.fencing),
    ]);
    cells.push(Cell::new(&remarks(holder)));
    cells
}

fn state(mode: Option<Mode>, holder: &Holder) -> (String, Colour) {
    // What is known of the mode of another program depends on the store: it is shown for none.
    let mode = mode.filter(|_| holder.identity.is_some());
    let held = match (mode, holder.slot) {
        (Some(Mode::Slots(of)), Some(slot)) => format!("slot {slot} of {of}"),
        (Some(mode), _) => mode.as_str().to_owned(),
        (None, _) => "held".to_owned(),
    };
    match holder.phase() {
        Phase::Running => (held, Colour::Yellow),
        // What it waits for has to fit beside it.
        Phase::Waiting if mode == Some(Mode::Exclusive) => ("waiting".to_owned(), Colour::Cyan),
        Phase::Waiting => (format!("{held}, waiting"), Colour::Cyan),
        Phase::Unknown if holder.immortal => (format!("{held}, immortal"), Colour::Red),
        Phase::Unknown => (format!("{held}, foreign"), Colour::Yellow),
        Phase::Revoking => (format!("{held}, revoking"), Colour::Red),
        phase => (format!("{held}, {}", phase.as_str()), Colour::Yellow),
    }
}

fn waiter_cells(position: usize, waiter: &Waiter) -> Vec<Cell> {
    let wants = match waiter.mode {
        Mode::Exclusive => String::new(),
        mode => format!(", {}", mode.as_str()),
    };
    let mut cells = vec![Cell::new(&format!("waits #{position}{wants}")).coloured(Colour::Cyan)];
    cells.extend(who(waiter.identity.as_ref()));
    cells.extend([Cell::new(&show_distance(waiter.waiting)), Cell::new("-"), Cell::new("-")]);
    let note = waiter.identity.as_ref().map(|identity| note_and_job(identity).join("; ")).unwrap_or_default();
    cells.push(Cell::new(&note));
    cells
}

/// Returns host, process, user, command.
fn who(identity: Option<&Identity>) -> [Cell; 4] {
    let Some(identity) = identity else { return ["-"; 4].map(Cell::new) };
    let pid = identity.pid.to_string();
    [&identity.host, &pid, &identity.user, &identity.command].map(|text| Cell::new(text))
}

fn remarks(holder: &Holder) -> String {
    let mut remarks: Vec<String> = holder.hint.iter().cloned().collect();
    if let Some(ended) = holder.ended {
        remarks.push(format!("ended {} ago", show_distance(ended)));
    }
    remarks.extend(holder.revoked.as_ref().map(broken_by));
    remarks.extend(holder.waits_for.as_ref().map(|lock| format!("waiting for {lock}")));
    remarks.extend(holder.identity.iter().flat_map(note_and_job));
    remarks.join("; ")
}

/// Returns the note and the CI job of a run.
fn note_and_job(identity: &Identity) -> Vec<String> {
    identity.note.clone().into_iter().chain(identity.url.clone()).collect()
}

/// When, what, where and why.
const HISTORY_LAYOUT: Layout = Layout { spare: &["PID", "USER", "WAITED", "COMMAND", "HELD"], whole: 3 };

const NO_HISTORY: &str = "nothing is known of earlier runs\n";

/// The difference between local time and UTC, such as `UTC+01:00`.
#[derive(Clone, Copy)]
struct Zone(Offset);

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let zone = self.0.to_time_zone();
        match self.0 {
            Offset::UTC => f.write_str("UTC"),
            _ => write!(f, "UTC{}", Timestamp::UNIX_EPOCH.to_zoned(zone).strftime("%:z")),
        }
    }
}

/// Returns the history of each lock, the latest record first.
pub fn history_text(store: &str, histories: &[(LockName, Vec<NotedRecord>)], form: Form) -> String {
    let mut text = format!("{}\n", printable(store));
    if histories.is_empty() {
        text.push_str(NO_HISTORY);
    }
    // That of now, for all times of the table.
    let zone = Zone(Zoned::now().offset());
    for (index, (name, records)) in histories.iter().enumerate() {
        let gap = if index == 0 { "" } else { "\n" };
        text.push_str(&format!("{gap}{}\n", printable(name.as_str())));
        if records.is_empty() {
            text.push_str(NO_HISTORY);
            continue;
        }
        let began_in_zone = format!("BEGAN ({zone})");
        let mut table = Table::new(&[
            &began_in_zone,
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
        .laid_out(HISTORY_LAYOUT);
        for (at, record) in records {
            let (outcome, colour) = outcome(record);
            let mut cells =
                vec![Cell::new(&time_at(began(*at, record), zone)), Cell::new(&outcome).coloured(colour)];
            cells.extend(who(Some(&record.identity)));
            let times = [Some(record.waited_ms), record.held_ms];
            cells.extend(times.map(|ms| Cell::known(ms.map(|ms| show_distance(Duration::from_millis(ms))))));
            cells.push(Cell::known(record.fencing_token));
            cells.push(Cell::new(&why(*at, record, zone)));
            table.add(cells);
        }
        text.push_str(&table.to_text(form));
    }
    text
}

/// Returns when a run began that was recorded at this time, in ms since 1970.
pub fn began(at: u64, record: &Record) -> u64 {
    at.saturating_sub(record.waited_ms).saturating_sub(record.held_ms.unwrap_or(0))
}

/// Returns a time in ms since 1970 in the zone, unless it is later than any that a calendar has.
fn local(ms: u64, zone: Zone) -> Option<DateTime> {
    let time = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    time.map(|time| zone.0.to_datetime(time))
}

/// A time that is later than any that a calendar has.
const AFTER_ALL: &str = "after 9999";

fn time_at(ms: u64, zone: Zone) -> String {
    local(ms, zone)
        .map_or_else(|| AFTER_ALL.to_owned(), |time| time.strftime("%Y-%m-%d %H:%M:%S").to_string())
}

fn outcome(record: &Record) -> (String, Colour) {
    match (record.outcome.as_str(), record.exit_status, record.signal) {
        ("ran", Some(0), _) if record.interrupted => ("ok, interrupted".to_owned(), Colour::Yellow),
        ("ran", Some(0), _) => ("ok".to_owned(), Colour::Green),
        ("ran", Some(status), _) => (format!("exit {status}"), Colour::Red),
        ("ran", None, Some(signal)) => (format!("signal {signal}"), Colour::Red),
        (ACQUIRED | RELEASED, ..) => (record.outcome.clone(), Colour::Green),
        ("contended", ..) => ("contended".to_owned(), Colour::Yellow),
        (other, ..) => (other.to_owned(), Colour::Red),
    }
}

/// Returns until when `--min-hold` keeps the lock, with the date if that is not the one of the beginning.
fn kept_until(at: u64, record: &Record, zone: Zone) -> Option<String> {
    let until = at.saturating_add(record.kept_ms?);
    let date = |ms| local(ms, zone).map(DateTime::date);
    let time = match local(until, zone) {
        Some(time) if date(began(at, record)) == Some(time.date()) => time.strftime("%H:%M:%S").to_string(),
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

/// The part of a terminal that is redrawn.
#[derive(Default)]
pub struct Screen {
    lines: usize,
}

impl Screen {
    /// Returns whether nothing is drawn.
    pub fn is_clear(&self) -> bool {
        self.lines == 0
    }

    /// Returns the sequence that draws the text over the previous one: no line longer than the terminal is
    /// wide, and no more lines than it is high, because scrolled-off lines cannot be redrawn.
    pub fn frame(&mut self, text: &str) -> String {
        let (width, height) = terminal_size::terminal_size()
            .map_or((80, 24), |(width, height)| (usize::from(width.0), usize::from(height.0)));
        let all: Vec<&str> = text.lines().collect();
        let most = height.saturating_sub(1).max(1);
        let mut lines: Vec<String> = all.iter().take(most).map(|line| table::cut(line, width)).collect();
        if all.len() > most {
            lines.truncate(most - 1);
            lines.push(table::cut(&format!("... and {} lines more", all.len() - most + 1), width));
        }
        let mut frame = String::new();
        if self.lines > 0 {
            // Moves up to where the last frame began, and clears everything below (ECMA-48, CUU and ED).
            frame.push_str(&format!("\x1b[{}A\r\x1b[J", self.lines));
        }
        for line in &lines {
            frame.push_str(line);
            frame.push('\n');
        }
        self.lines = lines.len();
        frame
    }
}

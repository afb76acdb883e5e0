//! The progress of a wait: a line for each change and each minute, or on a terminal one line that is redrawn in place.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use super::reporter::Details;
use super::table::cut;
use super::{Reporter, describe, describe_briefly, describe_none, is_dumb, printable, shown};
use crate::backend::{Busy, StoreError};
use crate::clock::Moment;
use crate::duration::show_distance;
use crate::lock::{Identity, LockName};
use crate::settings::LogFormat;

/// The interval between two messages about an unchanged wait.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// The interval between two drawings on a terminal.
const DRAW_INTERVAL: Duration = Duration::from_secs(1);

/// Reports a wait, if the reporter reports waits. What was drawn is cleared when the value is dropped.
pub struct WaitLine<'a> {
    reporter: &'a Reporter,
    store: &'a str,
    begin: Moment,
    /// When the wait ends, if ever.
    end: Option<Moment>,
    /// The locks of which any one is waited for, in their order; none if one certain lock is.
    alternatives: Vec<LockName>,
    /// The holders that were last found, and when: of the lock that is waited for, or of each of the alternatives.
    found: RefCell<Vec<(LockName, Busy, Moment)>>,
    /// The lock and the holder that were last reported.
    reported: RefCell<Option<(LockName, Option<Option<Identity>>)>>,
    /// The number of slots that it was last in use with instead of ours.
    other_slots: Cell<u32>,
    is_failing: Cell<bool>,
    drawing: RefCell<Drawing>,
}

impl<'a> WaitLine<'a> {
    /// Begins a wait for locks in this store, or for any one of the `alternatives`.
    pub fn new(
        reporter: &'a Reporter,
        store: &'a str,
        begin: Moment,
        end: Option<Moment>,
        alternatives: Vec<LockName>,
    ) -> WaitLine<'a> {
        let (found, reported, other_slots, is_failing, drawing) = Default::default();
        WaitLine {
            reporter,
            store,
            begin,
            end,
            alternatives,
            found,
            reported,
            other_slots,
            is_failing,
            drawing,
        }
    }

    /// Notes that the lock is busy, and reports it the first time and when the holder changes. Alternatives are reported
    /// when all of them are busy, and then when the holder changes that is shown.
    pub fn busy(&self, name: &LockName, busy: &Busy) {
        self.replied();
        let place = |name: &LockName| self.alternatives.iter().position(|alternative| alternative == name);
        let mut found = self.found.take();
        found.retain(|(other, ..)| other != name && place(other).is_some());
        found.push((name.clone(), busy.clone(), Moment::now()));
        found.sort_by_key(|(name, ..)| place(name));
        let is_complete = found.len() >= self.alternatives.len();
        let (name, holder) = shown(&found.iter().map(|(name, busy, _)| (name, busy)).collect::<Vec<_>>());
        let who = name.map(|name| (name.clone(), holder.map(|holder| holder.identity.clone())));
        self.found.replace(found);
        if is_complete && *self.reported.borrow() != who {
            self.reported.replace(who);
            self.update();
        }
    }

    /// Notes that the lock is in use with another number of slots, and reports it when that changes.
    pub fn other_slots(&self, name: &LockName, ours: u32, theirs: u32) {
        self.replied();
        if self.other_slots.replace(theirs) != theirs {
            let line = format!(
                "{name} is in use with {theirs} slots; waiting until it has no holder and no waiter, to use it with {ours}"
            );
            let details = Details { lock: Some(name), ..Details::new("info", "waiting") };
            self.print(details, &line);
        }
    }

    /// Notes that the store cannot be reached and is tried again until then, if there is a limit; reports it the first
    /// time.
    pub fn failed(&self, error: &StoreError, until: Option<Moment>) {
        if !self.is_failing.replace(true) {
            let left = |until: Moment| format!("for another {}", show_distance(until - Moment::now()));
            let end = until.map_or_else(|| "again".to_owned(), left);
            let line = format!("cannot reach {}: {error}; trying {end}", self.store);
            self.print(Details::new("info", "unreachable"), &line);
        }
    }

    /// Notes that the store has replied, and reports it after a failure.
    pub fn replied(&self) {
        if self.is_failing.replace(false) {
            self.print(Details::new("info", "reachable"), &format!("{} replies again", self.store));
        }
    }

    /// Returns how long after an update the next one is due.
    pub fn interval(&self) -> Duration {
        if self.is_redrawn() { DRAW_INTERVAL } else { REPORT_INTERVAL }
    }

    /// Reports the wait again, with the ages and times of now.
    pub fn update(&self) {
        let mut found = self.found.borrow().clone();
        if found.is_empty() || self.is_failing.get() || !self.reporter.reports_waiting {
            return;
        }
        let now = Moment::now();
        for (_, busy, seen) in &mut found {
            busy.holders.iter_mut().for_each(|holder| holder.age_by(now - *seen));
        }
        let found: Vec<(&LockName, &Busy)> = found.iter().map(|(name, busy, _)| (name, busy)).collect();
        // The best of several.
        let position = found.iter().filter_map(|(_, busy)| busy.position).min();
        let waited = Some(now - self.begin).filter(|waited| waited.as_secs() > 0);
        let waited = waited.map(|waited| format!(" for {}", show_distance(waited))).unwrap_or_default();
        let left = self.end.map(|end| format!(", {} left", show_distance(end - now))).unwrap_or_default();
        if self.is_redrawn() {
            let position = position.map_or("waiting".to_owned(), |position| format!("#{position}"));
            let held = describe_none(&found, self.store, describe_briefly);
            self.draw(&format!("dlock: {position}{waited}{left}: {held}"));
        } else {
            let position = match position {
                Some(position) => format!(" at position {position}"),
                None if found.iter().any(|(_, busy)| busy.is_outside_queue) => {
                    " without a place in the queue".to_owned()
                }
                None => String::new(),
            };
            let held = describe_none(&found, self.store, describe);
            let (lock, holder) = shown(&found);
            let details = Details { lock, holder, ..Details::new("info", "waiting") };
            self.print(details, &format!("{held}; waiting{position}{waited}{left}"));
        }
    }

    /// Clears what was drawn, so that other output begins on a clean line.
    pub fn clear(&self) {
        if !self.drawing.borrow().is_clear() {
            self.draw("");
        }
    }

    /// Whether the line is redrawn: on a terminal that understands control sequences, in the foreground of which dlock
    /// runs. Elsewhere a shell or another job writes to it.
    pub fn is_redrawn(&self) -> bool {
        let is_foreground =
            || nix::unistd::tcgetpgrp(std::io::stderr()).is_ok_and(|group| group == nix::unistd::getpgrp());
        let reporter = self.reporter;
        reporter.reports_waiting && reporter.format == LogFormat::Text && is_foreground() && !is_dumb()
    }

    fn print(&self, details: Details<'_>, message: &str) {
        if self.reporter.reports_waiting {
            self.clear();
            self.reporter.write(details, message);
        }
    }

    fn draw(&self, line: &str) {
        self.reporter.emit(&self.drawing.borrow_mut().frame(&printable(line)));
    }
}

impl Drop for WaitLine<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}

/// The part of a terminal that is redrawn in place.
#[derive(Default)]
struct Drawing {
    lines: usize,
}

impl Drawing {
    /// Returns whether nothing is drawn.
    fn is_clear(&self) -> bool {
        self.lines == 0
    }

    /// Returns the sequence that draws the line over the previous one, no longer than the terminal is wide.
    fn frame(&mut self, text: &str) -> String {
        let width = terminal_size::terminal_size().map_or(80, |(width, _)| usize::from(width.0));
        let mut frame = String::new();
        if self.lines > 0 {
            // Moves up to where the last frame began, and clears everything below (ECMA-48, CUU and ED).
            frame.push_str(&format!("\x1b[{}A\r\x1b[J", self.lines));
        }
        for line in text.lines() {
            frame.push_str(&cut(line, width));
            frame.push('\n');
        }
        self.lines = text.lines().count();
        frame
    }
}

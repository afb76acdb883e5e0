//! The progress of a wait: a line for each change and each minute, or on a terminal one line that is redrawn in place.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
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
    /// What was last reported.
    reported: RefCell<Option<Reported>>,
    /// The number of slots that it was last in use with instead of ours.
    other_slots: Cell<u32>,
    /// The locks for which the store fails.
    failing: RefCell<BTreeSet<LockName>>,
    /// The alternatives that are not waited for any more.
    left: RefCell<BTreeSet<LockName>>,
    drawing: RefCell<Drawing>,
}

/// What a wait was reported to be for.
#[derive(PartialEq, Eq)]
struct Reported {
    lock: LockName,
    /// The id of the freeze, if the lock is frozen.
    freeze: Option<String>,
    /// The holder, which may be a foreign program.
    holder: Option<Option<Identity>>,
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
        let (found, reported, other_slots, failing, left, drawing) = Default::default();
        WaitLine {
            reporter,
            store,
            begin,
            end,
            alternatives,
            found,
            reported,
            other_slots,
            failing,
            left,
            drawing,
        }
    }

    /// Notes that the lock is busy, and reports it the first time and when the holder changes. Alternatives are reported
    /// when none of them is left to be seen, and then when the holder changes that is shown.
    pub fn busy(&self, name: &LockName, busy: &Busy) {
        self.replied(name);
        let place = |name: &LockName| self.alternatives.iter().position(|alternative| alternative == name);
        let mut found = self.found.take();
        found.retain(|(other, ..)| other != name && place(other).is_some());
        found.push((name.clone(), busy.clone(), Moment::now()));
        found.sort_by_key(|(name, ..)| place(name));
        self.found.replace(found);
        self.update_if_changed();
    }

    /// Notes that this lock is not waited for any more, unlike the other alternatives.
    pub fn left(&self, name: &LockName) {
        self.replied(name);
        if !self.alternatives.is_empty() {
            self.found.borrow_mut().retain(|(other, ..)| other != name);
            self.left.borrow_mut().insert(name.clone());
            self.update_if_changed();
        }
    }

    /// Reports the wait if all alternatives have been seen, and another holder is to be shown than was last reported.
    fn update_if_changed(&self) {
        let who = {
            let found = self.found.borrow();
            let is_seen = |name: &LockName| {
                found.iter().any(|(found, ..)| found == name)
                    || self.failing.borrow().contains(name)
                    || self.left.borrow().contains(name)
            };
            if found.is_empty() || !self.alternatives.iter().all(is_seen) {
                return;
            }
            let (name, holder) = shown(&found.iter().map(|(name, busy, _)| (name, busy)).collect::<Vec<_>>());
            let busy = found.iter().find(|(other, ..)| Some(other) == name).map(|(_, busy, _)| busy);
            let freeze = busy.and_then(|busy| busy.freeze.as_ref()).map(|freeze| freeze.id.clone());
            name.map(|name| Reported {
                lock: name.clone(),
                freeze,
                holder: holder.map(|one| one.identity.clone()),
            })
        };
        if *self.reported.borrow() != who {
            self.reported.replace(who);
            self.update();
        }
    }

    /// Notes that the lock is in use with another number of slots, and reports it when that changes.
    pub fn other_slots(&self, name: &LockName, ours: u32, theirs: u32) {
        self.replied(name);
        if self.other_slots.replace(theirs) != theirs {
            let line = format!(
                "{name} is in use with {theirs} slots; waiting until it has no holder and no waiter, to use it with {ours}"
            );
            let details = Details { lock: Some(name), ..Details::new("info", "waiting") };
            self.print(details, &line);
        }
    }

    /// Notes that the store cannot be reached for this lock and is tried again until then, if there is a limit; reports it the
    /// first time. The other alternatives are waited for meanwhile.
    pub fn failed(&self, name: &LockName, error: &StoreError, until: Option<Moment>) {
        if self.begins_to_fail(name) {
            let left = |until: Moment| format!("for another {}", show_distance(until - Moment::now()));
            let end = until.map_or_else(|| "again".to_owned(), left);
            let line = format!("cannot reach {}: {error}; trying {end}", self.store);
            self.print(Details::new("info", "unreachable"), &line);
        }
        if !self.alternatives.is_empty() {
            self.found.borrow_mut().retain(|(other, ..)| other != name);
            self.update_if_changed();
        }
    }

    /// Notes that the store has replied about this lock, and reports it after a failure, if it fails for none of the
    /// alternatives any more.
    pub fn replied(&self, name: &LockName) {
        if self.ceases_to_fail(name) {
            self.print(Details::new("info", "reachable"), &format!("{} replies again", self.store));
        }
    }

    /// Returns whether this is the first lock for which the store fails now.
    fn begins_to_fail(&self, name: &LockName) -> bool {
        let mut failing = self.failing.borrow_mut();
        let is_first = failing.is_empty();
        failing.insert(name.clone());
        is_first
    }

    /// Returns whether this was the last lock for which the store failed.
    fn ceases_to_fail(&self, name: &LockName) -> bool {
        let mut failing = self.failing.borrow_mut();
        let was_failing = !failing.is_empty();
        match self.alternatives.is_empty() {
            // The locks are taken one after the other.
            true => failing.clear(),
            false => drop(failing.remove(name)),
        }
        was_failing && failing.is_empty()
    }

    /// Returns how long after an update the next one is due.
    pub fn interval(&self) -> Duration {
        if self.is_redrawn() { DRAW_INTERVAL } else { REPORT_INTERVAL }
    }

    /// Reports the wait again, with the ages and times of now.
    pub fn update(&self) {
        let mut found = self.found.borrow().clone();
        let all_fail = self.alternatives.is_empty() && !self.failing.borrow().is_empty();
        if found.is_empty() || all_fail || !self.reporter.reports_waiting {
            return;
        }
        let now = Moment::now();
        for (_, busy, seen) in &mut found {
            busy.holders.iter_mut().for_each(|holder| holder.age_by(now - *seen));
        }
        let found: Vec<(&LockName, &Busy)> = found.iter().map(|(name, busy, _)| (name, busy)).collect();
        let waited = Some(now - self.begin).filter(|waited| waited.as_secs() > 0);
        let waited = waited.map(|waited| format!(" for {}", show_distance(waited))).unwrap_or_default();
        let left = self.end.map(|end| format!(", {} left", show_distance(end - now))).unwrap_or_default();
        if self.is_redrawn() {
            let held = describe_none(&found, self.store, describe_briefly);
            self.draw(&format!("dlock: {}{waited}{left}: {held}", place(&found, true)));
        } else {
            let held = describe_none(&found, self.store, describe);
            let (lock, holder) = shown(&found);
            let details = Details { lock, holder, ..Details::new("info", "waiting") };
            self.print(details, &format!("{held}; {}{waited}{left}", place(&found, false)));
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

/// Returns where the run waits: at the best position of several.
fn place(found: &[(&LockName, &Busy)], is_brief: bool) -> String {
    match found.iter().filter_map(|(_, busy)| busy.position).min() {
        Some(position) if is_brief => format!("#{position}"),
        Some(position) => format!("waiting at position {position}"),
        None if found.iter().any(|(_, busy)| busy.is_outside_queue) => "waiting outside the queue".to_owned(),
        None => "waiting".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line<'a>(reporter: &'a Reporter, alternatives: &[&LockName]) -> WaitLine<'a> {
        let alternatives = alternatives.iter().map(|name| (*name).clone()).collect();
        WaitLine::new(reporter, "fake:", Moment::now(), None, alternatives)
    }

    fn name(name: &str) -> LockName {
        LockName::new(name).expect("a name")
    }

    #[test]
    fn a_store_fails_from_the_first_alternative_to_the_last() {
        let reporter = Reporter::new(true, 0, LogFormat::Text);
        let (a, b) = (name("a"), name("b"));
        let either = line(&reporter, &[&a, &b]);
        assert!(either.begins_to_fail(&a));
        assert!(!either.ceases_to_fail(&b));
        assert!(!either.begins_to_fail(&a));
        assert!(!either.begins_to_fail(&b));
        assert!(!either.ceases_to_fail(&a));
        assert!(either.ceases_to_fail(&b));
        assert!(!either.ceases_to_fail(&b));
        let both = line(&reporter, &[]);
        assert!(both.begins_to_fail(&a));
        assert!(both.ceases_to_fail(&b));
    }

    #[test]
    fn both_forms_say_where_the_run_waits() {
        let (a, queued) = (name("a"), Busy { position: Some(3), ..Busy::default() });
        let outside = Busy { is_outside_queue: true, ..Busy::default() };
        for (found, brief, whole) in [
            (vec![(&a, &queued), (&a, &outside)], "#3", "waiting at position 3"),
            (vec![(&a, &outside)], "waiting outside the queue", "waiting outside the queue"),
            (vec![], "waiting", "waiting"),
        ] {
            assert_eq!((place(&found, true).as_str(), place(&found, false).as_str()), (brief, whole));
        }
    }

    #[test]
    fn the_wait_for_alternatives_begins_when_each_was_seen() {
        let reporter = Reporter::new(true, 0, LogFormat::Text);
        let (a, b, c) = (name("a"), name("b"), name("c"));
        let error = StoreError::unreachable("down");
        let is_reported = |line: &WaitLine<'_>| line.reported.borrow().is_some();
        for busy_at in 0..3 {
            let line = line(&reporter, &[&a, &b, &c]);
            for step in 0..3 {
                assert!(!is_reported(&line));
                match (step + busy_at) % 3 {
                    0 => line.busy(&a, &Busy::default()),
                    1 => line.failed(&b, &error, None),
                    _ => line.left(&c),
                }
            }
            assert!(is_reported(&line), "{busy_at}");
        }
        let none = line(&reporter, &[&a, &b]);
        none.failed(&a, &error, None);
        none.left(&b);
        assert!(!is_reported(&none));
    }
}

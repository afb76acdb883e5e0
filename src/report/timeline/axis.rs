//! The axis of time: which column a time is in, and the labels below.

use super::super::history::{Zone, local};
use crate::lock::{Filter, NotedRecord};

const SECOND: u64 = 1000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// The distances of labels; those beyond are doubled.
const STEPS: &[u64] = &[
    SECOND,
    2 * SECOND,
    5 * SECOND,
    10 * SECOND,
    15 * SECOND,
    30 * SECOND,
    MINUTE,
    2 * MINUTE,
    5 * MINUTE,
    10 * MINUTE,
    15 * MINUTE,
    30 * MINUTE,
    HOUR,
    2 * HOUR,
    3 * HOUR,
    4 * HOUR,
    6 * HOUR,
    12 * HOUR,
    DAY,
    2 * DAY,
    7 * DAY,
];

/// The last time of the calendar, in ms since 1970.
const LAST: u64 = 253_402_207_199_999;

/// The part of the past that is drawn, in ms since 1970 by the store's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from: u64,
    pub(super) to: u64,
}

impl Span {
    /// Returns the part that is to be shown: without other limits, from the beginning of the first record to the end of
    /// the last one, and from a given beginning on until now. `None` if that is nothing.
    pub(super) fn new<'a>(
        records: impl Iterator<Item = &'a NotedRecord> + Clone,
        filter: Filter,
        now: u64,
    ) -> Option<Span> {
        let first = records.clone().map(|(at, record)| record.began(*at)).min()?;
        let last = records.map(|(at, _)| *at).max()?;
        let from = filter.since.unwrap_or(first).min(LAST - SECOND);
        let to = filter.until.unwrap_or(if filter.since.is_some() { last.max(now) } else { last });
        Some(Span { from, to: to.clamp(from + SECOND, LAST) })
    }
}

pub(super) struct Axis {
    span: Span,
    /// The number of columns.
    pub(super) cells: usize,
    zone: Zone,
}

impl Axis {
    pub(super) fn new(span: Span, cells: usize, zone: Zone) -> Axis {
        Axis { span, cells, zone }
    }

    fn length(&self) -> u64 {
        self.span.to - self.span.from
    }

    /// Returns how much time a column stands for.
    pub(super) fn cell_ms(&self) -> u64 {
        self.length() / self.cells as u64
    }

    /// Returns the column of a time; times outside are in the first or the last one.
    pub(super) fn cell(&self, time: u64) -> usize {
        let since = time.clamp(self.span.from, self.span.to) - self.span.from;
        // No product of the two is too large: the calendar ends before 2^48 ms, and no terminal is as wide as 2^16.
        let cell = since * self.cells as u64 / self.length();
        (cell as usize).min(self.cells - 1)
    }

    /// Returns the form of the labels at this distance, and their width.
    fn form(step: u64) -> (&'static str, usize) {
        match step {
            _ if step < MINUTE => ("%H:%M:%S", 8),
            _ if step < DAY => ("%H:%M", 5),
            _ if step <= 7 * DAY => ("%m-%d", 5),
            _ => ("%Y-%m-%d", 10),
        }
    }

    /// Returns the smallest distance at which labels, with the tick before them and a blank after them, do not touch.
    fn step(&self) -> u64 {
        let fits = |step: &u64| *step * self.cells as u64 / self.length() >= Axis::form(*step).1 as u64 + 2;
        let longer =
            std::iter::successors(Some(14 * DAY), |step| Some(step * 2)).take_while(|step| *step < LAST);
        STEPS.iter().copied().chain(longer).find(fits).unwrap_or(LAST)
    }

    /// Returns the labels below the columns of their times: round ones by local time. At midnight the label is the date.
    pub(super) fn text(&self, tick: char) -> String {
        let step = self.step();
        let (form, width) = Axis::form(step);
        // Round by local time, which may be behind that of the epoch.
        let ahead = (i64::from(self.zone.0.seconds()) * 1000).rem_euclid(DAY as i64) as u64;
        let first = (self.span.from + ahead).next_multiple_of(step);
        let mut line = vec![' '; self.cells];
        for time in (first..=self.span.to + ahead).step_by(usize::try_from(step).unwrap_or(usize::MAX)) {
            let at = self.cell(time - ahead);
            let form = if step < DAY && time % DAY == 0 { "%m-%d" } else { form };
            let label = local(time - ahead, self.zone).map(|time| time.strftime(form).to_string());
            let label: Vec<char> = label.unwrap_or_default().chars().collect();
            line[at] = tick;
            if at + 1 + width <= self.cells {
                line[at + 1..][..label.len()].copy_from_slice(&label);
            }
        }
        line.into_iter().collect()
    }
}

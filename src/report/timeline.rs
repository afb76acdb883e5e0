//! The history of locks as a picture: time from left to right, a row for each host, a bar for each hold.
//!
//! Called by `commands/history`. What always holds: no line but that of the store is wider than the terminal, every
//! outcome has a letter, and of several in one cell the worst is shown.

mod axis;
mod verdict;

use unicode_width::UnicodeWidthChar;

use self::axis::{Axis, Span};
use self::verdict::Verdict;
use super::form::{Form, Style, width_of, wrapped};
use super::history::{Zone, nothing, time_at};
use super::table::{Colour, painted};
use super::{is_dumb, printable};
use crate::clock::wall_micros;
use crate::lock::{Filter, History, NotedRecord, natural_order_of};

/// What a picture is drawn with.
#[derive(Clone, Copy, Debug)]
pub struct Glyphs {
    held: char,
    waited: char,
    tick: char,
    /// Marks a text that was cut.
    cut: char,
}

impl Glyphs {
    const LINES: Glyphs = Glyphs { held: '━', waited: '─', tick: '│', cut: '…' };
    const ASCII: Glyphs = Glyphs { held: '=', waited: '-', tick: '|', cut: '~' };

    /// Returns those that the terminal has.
    pub fn of_terminal() -> Glyphs {
        if is_dumb() { Glyphs::ASCII } else { Glyphs::LINES }
    }
}

/// The width of a picture that is not on a terminal.
const DEFAULT_WIDTH: usize = 80;
/// The gap between the hosts and the picture.
const GAP: usize = 2;
/// Records of one host that overlap by no more than this, in ms, follow each other: times are those of the notes.
const IMPRECISION: u64 = 1000;

/// Returns a picture of the histories, with the store in the first line and the legend in the last one.
pub fn timeline_text(
    store: &str,
    histories: &[History],
    filter: Filter,
    form: Form,
    glyphs: Glyphs,
) -> String {
    picture(store, histories, filter, form, glyphs, (wall_micros() / 1000, Zone::now()))
}

/// Returns the same at this time, in ms since 1970, and in this zone.
fn picture(
    store: &str,
    histories: &[History],
    filter: Filter,
    form: Form,
    glyphs: Glyphs,
    (now, zone): (u64, Zone),
) -> String {
    let mut text = format!("{}\n", printable(store));
    let width = form.width.unwrap_or(DEFAULT_WIDTH);
    let records = || histories.iter().flat_map(|history| &history.records);
    let Some(span) = Span::new(records(), filter, now) else {
        for History { name, .. } in histories {
            text.push_str(&format!("{}: {}\n", printable(name.as_str()), nothing(filter)));
        }
        if histories.is_empty() {
            text.push_str(&format!("{}\n", nothing(filter)));
        }
        return text;
    };
    let between = format!("{} to {} ({zone})", time_at(span.from, zone), time_at(span.to, zone));
    text.extend(wrapped(&between, width, "").iter().map(|line| format!("{line}\n")));
    let widest = records().map(|(_, record)| width_of(&host(&record.identity.host))).max().unwrap_or(0);
    let label = widest.min(width / 4);
    let picture = Picture {
        axis: Axis::new(span, width.saturating_sub(label + GAP).max(1), zone),
        label,
        style: form.style,
        glyphs,
    };
    for History { name, records } in histories {
        text.push_str(&format!("\n{}\n", cut(&printable(name.as_str()), width, glyphs)));
        match records.is_empty() {
            true => text.push_str(&format!("{}\n", nothing(filter))),
            false => text.push_str(&picture.block(records)),
        }
    }
    text.push('\n');
    text.extend(
        wrapped(&legend(records(), glyphs), width, "").iter().map(|line| format!("{}\n", unglued(line))),
    );
    text
}

/// A host's name, safe for a terminal.
fn host(name: &str) -> String {
    if name.is_empty() { "-".to_owned() } else { printable(name) }
}

/// One column of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    part: Part,
    verdict: Verdict,
}

/// The parts of a bar; a later one hides those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Waited,
    Held,
    Ended,
}

/// What is the same for all locks.
struct Picture {
    axis: Axis,
    /// The width of the hosts' names.
    label: usize,
    style: Style,
    glyphs: Glyphs,
}

impl Picture {
    /// Returns the rows of a lock, and the axis below them.
    fn block(&self, records: &[NotedRecord]) -> String {
        let mut hosts: Vec<&str> = records.iter().map(|(_, record)| record.identity.host.as_str()).collect();
        hosts.sort_by(|one, other| natural_order_of(one, other));
        hosts.dedup();
        let mut text = String::new();
        for name in hosts {
            let mut label = host(name);
            for lane in self.lanes(records.iter().filter(|(_, record)| record.identity.host == name)) {
                text.push_str(&self.line(&label, &self.row(&lane)));
                label.clear();
            }
        }
        let axis: String = self.axis.text(self.glyphs.tick);
        text.push_str(&self.line("", &axis));
        text
    }

    fn line(&self, label: &str, row: &str) -> String {
        let label = cut(label, self.label, self.glyphs);
        let blanks = (self.label + GAP).saturating_sub(width_of(&label));
        format!("{label}{:blanks$}{row}", "").trim_end().to_owned() + "\n"
    }

    /// Distributes the records of a host over as few rows as they need not to overlap.
    fn lanes<'a>(&self, records: impl Iterator<Item = &'a NotedRecord>) -> Vec<Vec<&'a NotedRecord>> {
        let mut records: Vec<&NotedRecord> = records.collect();
        records.sort_by_key(|(at, record)| (record.began(*at), *at));
        let imprecision = IMPRECISION.min(self.axis.cell_ms());
        let mut lanes: Vec<(u64, Vec<&NotedRecord>)> = Vec::new();
        for noted @ (at, record) in records {
            let is_free = |end: u64| end <= record.began(*at).saturating_add(imprecision);
            match lanes.iter_mut().find(|(end, _)| is_free(*end)) {
                Some((end, lane)) => {
                    *end = (*end).max(*at);
                    lane.push(noted);
                }
                None => lanes.push((*at, vec![noted])),
            }
        }
        lanes.into_iter().map(|(_, lane)| lane).collect()
    }

    fn row(&self, lane: &[&NotedRecord]) -> String {
        let mut cells: Vec<Option<Cell>> = vec![None; self.axis.cells];
        for (at, record) in lane {
            let verdict = Verdict::of(record);
            let mut draw = |from: u64, to: u64, part: Part| {
                for cell in &mut cells[self.axis.cell(from)..=self.axis.cell(to)] {
                    let rank = |cell: &Cell| (cell.part, cell.verdict.severity());
                    let new = Cell { part, verdict };
                    if cell.is_none_or(|cell| rank(&new) > rank(&cell)) {
                        *cell = Some(new);
                    }
                }
            };
            let granted = at.saturating_sub(record.held_ms.unwrap_or(0));
            if record.waited_ms > 0 {
                draw(record.began(*at), granted, Part::Waited);
            }
            if record.held_ms.is_some() {
                draw(granted, *at, Part::Held);
            }
            draw(*at, *at, Part::Ended);
        }
        let colour = |cell: &Option<Cell>| cell.map_or(Colour::None, |cell| cell.verdict.colour);
        let glyph = |cell: &Option<Cell>| match cell {
            None => ' ',
            Some(Cell { part: Part::Waited, .. }) => self.glyphs.waited,
            Some(Cell { part: Part::Held, .. }) => self.glyphs.held,
            Some(Cell { part: Part::Ended, verdict }) => verdict.letter,
        };
        let runs = cells.chunk_by(|one, next| colour(one) == colour(next));
        runs.map(|run| painted(&run.iter().map(glyph).collect::<String>(), colour(&run[0]), self.style))
            .collect()
    }
}

/// Keeps the words of an entry of the legend on one line.
const GLUE: char = '\u{a0}';

/// Explains the letters that occur, and the lines, the worst outcome first.
fn legend<'a>(records: impl Iterator<Item = &'a NotedRecord>, glyphs: Glyphs) -> String {
    let mut verdicts: Vec<Verdict> = Vec::new();
    for verdict in records.map(|(_, record)| Verdict::of(record)) {
        if !verdicts.contains(&verdict) {
            verdicts.push(verdict);
        }
    }
    verdicts.sort_by_key(|verdict| std::cmp::Reverse(verdict.severity()));
    let mut entries: Vec<String> =
        verdicts.iter().map(|verdict| format!("{} {}", verdict.letter, verdict.word)).collect();
    entries.extend(
        [(glyphs.held, "held"), (glyphs.waited, "waited")].map(|(glyph, word)| format!("{glyph} {word}")),
    );
    let glue = GLUE.to_string();
    entries.iter().map(|entry| entry.replace(' ', &glue)).collect::<Vec<_>>().join(&format!("{GLUE} "))
}

/// Returns a line of the legend as it is printed.
fn unglued(line: &str) -> String {
    line.replace(GLUE, " ").trim_end().to_owned()
}

/// Returns a text that is no wider than this, with a mark where its middle was cut: names that differ do so at either end.
fn cut(text: &str, width: usize, glyphs: Glyphs) -> String {
    if width_of(text) <= width {
        return text.to_owned();
    }
    let Some(room) = width.checked_sub(1) else { return String::new() };
    let head: String = fitting(text.chars(), room.div_ceil(2)).collect();
    let tail: Vec<char> = fitting(text.chars().rev(), room - width_of(&head)).collect();
    let tail: String = tail.into_iter().rev().collect();
    // What belongs to a character that was cut.
    let tail = tail.trim_start_matches(|c: char| c.width() == Some(0));
    format!("{head}{}{tail}", glyphs.cut)
}

/// Returns as many of the characters as fit into this width.
fn fitting(chars: impl Iterator<Item = char>, width: usize) -> impl Iterator<Item = char> {
    let mut used = 0;
    chars.take_while(move |c| {
        used += c.width().unwrap_or(0);
        used <= width
    })
}

#[cfg(test)]
mod tests;

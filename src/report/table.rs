//! A table for people: aligned columns, coloured on a terminal.

use unicode_width::UnicodeWidthChar;

use super::form::{self, Form, Style};
use super::printable;
use crate::lock::LockName;

/// Meaning, as a colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colour {
    None,
    Green,
    Yellow,
    Red,
    Cyan,
}

impl Colour {
    /// Returns the parameter of SGR (ECMA-48).
    fn code(self) -> &'static str {
        match self {
            Colour::None => "0",
            Colour::Green => "32",
            Colour::Yellow => "33",
            Colour::Red => "31",
            Colour::Cyan => "36",
        }
    }
}

/// Returns a text in a colour, if the style has colours.
pub(super) fn painted(text: &str, colour: Colour, style: Style) -> String {
    match (style, colour) {
        (Style::Plain, _) | (_, Colour::None) => text.to_owned(),
        (Style::Coloured, colour) => format!("\x1b[{}m{text}\x1b[0m", colour.code()),
    }
}

/// How many characters of a cell are shown, in the first column, in the last one, and in the others; the JSON and `--wide`
/// have all of it.
const LONGEST_NAME: usize = LockName::MAX_BYTES;
const LONGEST_REMARK: usize = 1500;
const LONGEST_TEXT: usize = 80;
/// The first two columns, and the others, are not made narrower than this; what does not fit even then is cut at the edge
/// of the terminal.
const NARROWEST_NAME: usize = 16;
const NARROWEST: usize = 5;
/// The gap between two columns.
const GAP: usize = 2;

/// One cell; its text is safe for a terminal.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    text: String,
    colour: Colour,
}

impl Cell {
    /// Returns a cell of foreign text.
    pub(super) fn new(text: &str) -> Cell {
        Cell { text: printable(text), colour: Colour::None }
    }

    /// Returns a cell for a value that may be unknown.
    pub(super) fn known(value: Option<impl ToString>) -> Cell {
        value.map_or_else(|| Cell::new("-"), |value| Cell::new(&value.to_string()))
    }

    fn is_nothing(&self) -> bool {
        matches!(self.text.as_str(), "" | "-")
    }

    pub(super) fn empty() -> Cell {
        Cell::new("")
    }

    pub(super) fn coloured(self, colour: Colour) -> Cell {
        Cell { colour, ..self }
    }
}

/// A column that only `--wide` shows.
pub(super) const FENCING_TOKEN: &str = "FENCING TOKEN";

pub(super) struct Table {
    headings: Vec<Cell>,
    rows: Vec<Vec<Cell>>,
    layout: Layout,
}

/// Which columns are worth more than others on a terminal that is too narrow for all.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Layout {
    /// They are left out, in this order, before any other is cut.
    pub(super) spare: &'static [&'static str],
    /// These, counted from the left, are not cut.
    pub(super) whole: &'static [usize],
    /// The last one is not cut either, but continued below.
    pub(super) wraps: bool,
}

impl Table {
    pub(super) fn new(headings: &[&str]) -> Table {
        let headings = headings.iter().map(|heading| Cell::new(heading)).collect();
        Table { headings, rows: Vec::new(), layout: Layout::default() }
    }

    pub(super) fn laid_out(self, layout: Layout) -> Table {
        Table { layout, ..self }
    }

    pub(super) fn add(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the table as lines, without empty columns, with the columns separated by spaces and without
    /// trailing ones. No line is wider than the form allows: columns are left out, and the widest others are cut.
    pub(super) fn to_text(&self, form: Form) -> String {
        let last = self.headings.len() - 1;
        let longest = |column: usize| match column {
            _ if form.is_wide => usize::MAX,
            0 => LONGEST_NAME,
            _ if column == last => LONGEST_REMARK,
            _ => LONGEST_TEXT,
        };
        let says = |column: &usize| {
            let is_shown = form.is_wide || self.headings[*column].text != FENCING_TOKEN;
            is_shown && self.rows.iter().any(|row| row.get(*column).is_some_and(|cell| !cell.is_nothing()))
        };
        let width_of = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            let widest = cells.chain([&self.headings[column]]).map(|cell| form::width_of(&cell.text)).max();
            (column, widest.unwrap_or(0).min(longest(column)))
        };
        let mut columns: Vec<(usize, usize)> = (0..=last).filter(says).map(width_of).collect();
        let room = form.width.unwrap_or(usize::MAX);
        let overflows = |columns: &[(usize, usize)]| {
            columns.iter().map(|(_, width)| width + GAP).sum::<usize>() > room.saturating_add(GAP)
        };
        for spare in self.layout.spare {
            if overflows(&columns) {
                columns.retain(|(column, _)| self.headings[*column].text != *spare);
            }
        }
        while overflows(&columns) {
            let narrowest = |column| match column {
                _ if self.layout.whole.contains(&column) => usize::MAX,
                0 | 1 => NARROWEST_NAME,
                _ => NARROWEST,
            };
            let wide = columns.iter_mut().filter(|(column, width)| *width > narrowest(*column));
            match wide.max_by_key(|(_, width)| *width) {
                Some((_, width)) => *width -= 1,
                None => break,
            }
        }
        let mut text = String::new();
        for row in [&self.headings].into_iter().chain(&self.rows) {
            let (mut line, mut blanks, mut begin, mut below) = (String::new(), 0, 0, Vec::new());
            for &(column, width) in &columns {
                let Some(cell) = row.get(column) else { break };
                let mut parts = vec![cell.text.clone()];
                if self.layout.wraps && column == last {
                    parts = form::wrapped(&cut(&cell.text, longest(column)), width, "");
                }
                below.extend(parts.drain(1..).map(|part| (begin, painted(&part, cell.colour, form.style))));
                begin += width + GAP;
                let shown = cut(&parts[0], width);
                if !shown.is_empty() {
                    line.extend(std::iter::repeat_n(' ', blanks));
                    line.push_str(&painted(&shown, cell.colour, form.style));
                    blanks = 0;
                }
                blanks += width.saturating_sub(form::width_of(&shown)) + GAP;
            }
            let below = below.into_iter().map(|(begin, part)| format!("{:begin$}{part}", ""));
            for line in std::iter::once(line).chain(below) {
                text.push_str(&cut(&line, room));
                text.push('\n');
            }
        }
        text
    }
}

/// Returns the beginning of a line that has this width, with a mark where it was cut; colours take no width, and are
/// reset at the cut.
pub(super) fn cut(line: &str, width: usize) -> String {
    let mut taken = String::new();
    // The part before the mark, and the width of all that has been taken.
    let (mut before, mut used) = (0, 0);
    let mut in_escape = false;
    for c in line.chars() {
        if in_escape || c == '\x1b' {
            in_escape = c != 'm';
            taken.push(c);
            continue;
        }
        used += c.width().unwrap_or(0);
        if used > width {
            taken.truncate(before);
            taken.push_str(if width > 0 { "…" } else { "" });
            taken.push_str(if taken.contains('\x1b') { "\x1b[0m" } else { "" });
            return taken;
        }
        taken.push(c);
        if used < width {
            before = taken.len();
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(width: Option<usize>) -> Form {
        Form { style: Style::Plain, width, is_wide: false }
    }

    #[test]
    fn columns_are_as_wide_as_their_cells() {
        let mut table = Table::new(&["LOCK", "STATE", "NOTE"]);
        table.add([Cell::new("größe 🔒"), Cell::new("free").coloured(Colour::Green)]);
        table.add([Cell::empty(), Cell::new("held"), Cell::new("a\nb")]);
        let text = "LOCK      STATE  NOTE\ngröße 🔒  free\n          held   a\\u{a}b\n";
        assert_eq!(table.to_text(form(None)), text);
        let coloured = Form { style: Style::Coloured, ..form(None) };
        assert!(table.to_text(coloured).contains("\x1b[32mfree\x1b[0m\n"));
    }

    #[test]
    fn the_widest_columns_are_cut_to_the_width_of_the_terminal() {
        let mut table = Table::new(&["LOCK", "STATE", "NOTE"]);
        table.add([Cell::new("a"), Cell::new("held"), Cell::new(&"x".repeat(100))]);
        assert_eq!(table.to_text(form(Some(20))), "LOCK  STATE  NOTE\na     held   xxxxxx…\n");
        assert_eq!(table.to_text(form(Some(12))), "LOCK  STATE…\na     held …\n");
    }

    #[test]
    fn the_last_column_may_go_on_below() {
        let layout = Layout { wraps: true, ..Layout::default() };
        let mut table = Table::new(&["LOCK", "STATE", "NOTE"]).laid_out(layout);
        table.add([Cell::new("a"), Cell::new("held"), Cell::new("one or two words")]);
        table.add([Cell::new("b"), Cell::new("free"), Cell::new("three")]);
        let head = "LOCK  STATE  NOTE\n";
        let below = "a     held   one or\n             two\n             words\nb     free   three\n";
        assert_eq!(table.to_text(form(Some(20))), format!("{head}{below}"));
        let beside = "a     held   one or two words\nb     free   three\n";
        assert_eq!(table.to_text(form(None)), format!("{head}{beside}"));
    }

    /// An emoji with a selector is wider for some than its characters.
    #[test]
    fn sequences_of_characters_are_as_wide_as_these() {
        let clouds = "☁\u{fe0f}".repeat(60);
        let mut table = Table::new(&["LOCK", "STATE", "NOTE"]);
        table.add([Cell::new("a"), Cell::new(&clouds), Cell::new("b")]);
        let blanks = " ".repeat(57);
        assert_eq!(table.to_text(form(None)), format!("LOCK  STATE{blanks}NOTE\na     {clouds}  b\n"));
        let cloud = "☁\u{fe0f}";
        let narrow = format!("LOCK  STATE             NOTE\na     {}…  b\n", cloud.repeat(15));
        assert_eq!(table.to_text(form(Some(28))), narrow);
    }

    #[test]
    fn lines_are_cut_at_the_edge_of_the_terminal_with_a_mark() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("abcdef", 3), "ab…");
        assert_eq!(cut("a🔒b", 2), "a…");
        assert_eq!(cut("\x1b[31mabc\x1b[0md", 2), "\x1b[31ma…\x1b[0m");
        assert_eq!(cut("\x1b[31mab\x1b[0m", 2), "\x1b[31mab\x1b[0m");
    }
}

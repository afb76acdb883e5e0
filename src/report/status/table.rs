//! A table for people: aligned columns, coloured on a terminal.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::Style;
use crate::report::printable;

/// Meaning, as a colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::report) enum Colour {
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
pub(in crate::report) fn painted(text: &str, colour: Colour, style: Style) -> String {
    match (style, colour) {
        (Style::Plain, _) | (_, Colour::None) => text.to_owned(),
        (Style::Coloured, colour) => format!("\x1b[{}m{text}\x1b[0m", colour.code()),
    }
}

/// Foreign text beyond this is cut; the JSON has all of it.
const LONGEST_TEXT: usize = 80;
/// The maximum width of a column because of one cell: after a longer cell, the row continues on the next
/// line.
const WIDEST: usize = 40;

/// One cell; its text is safe for a terminal.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    text: String,
    colour: Colour,
}

impl Cell {
    /// Returns a cell of foreign text, cut to the maximum length.
    pub(super) fn new(text: &str) -> Cell {
        Cell::cut(text, LONGEST_TEXT)
    }

    /// Returns a cell for a value that may be unknown.
    pub(super) fn known(value: Option<impl ToString>) -> Cell {
        value.map_or_else(|| Cell::new("-"), |value| Cell::new(&value.to_string()))
    }

    /// Returns a cell of foreign text, cut to this number of characters.
    pub(super) fn cut(text: &str, longest: usize) -> Cell {
        let text = match text.char_indices().nth(longest) {
            Some((end, _)) => format!("{}...", printable(&text[..end])),
            None => printable(text),
        };
        Cell { text, colour: Colour::None }
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

pub(super) struct Table {
    headings: &'static [&'static str],
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub(super) fn new(headings: &'static [&'static str]) -> Table {
        Table { headings, rows: Vec::new() }
    }

    pub(super) fn add(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the table as lines, without empty columns, with the columns separated by spaces and without
    /// trailing ones.
    pub(super) fn to_text(&self, style: Style) -> String {
        let mut widths: Vec<usize> = self.headings.iter().map(|heading| heading.width()).collect();
        let mut says = vec![false; widths.len()];
        for row in &self.rows {
            for ((width, says), cell) in widths.iter_mut().zip(&mut says).zip(row) {
                let own = cell.text.width();
                *width = if own <= WIDEST { own.max(*width) } else { *width };
                *says |= !cell.is_nothing();
            }
        }
        let headings: Vec<Cell> = self.headings.iter().map(|heading| Cell::new(heading)).collect();
        let mut text = String::new();
        for row in [&headings].into_iter().chain(&self.rows) {
            // The end of the text so far on this line, and the start of the column.
            let (mut at, mut column) = (0, 0);
            for ((cell, width), _) in row.iter().zip(&widths).zip(&says).filter(|(_, says)| **says) {
                if !cell.text.is_empty() {
                    if at > 0 && at >= column {
                        text.push('\n');
                        at = 0;
                    }
                    text.extend(std::iter::repeat_n(' ', column - at));
                    at = column + cell.text.width();
                    text.push_str(&painted(&cell.text, cell.colour, style));
                }
                column += width + 2;
            }
            text.push('\n');
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

    #[test]
    fn columns_are_as_wide_as_their_cells() {
        let mut table = Table::new(&["LOCK", "STATE", "NOTE"]);
        table.add([Cell::new("größe 🔒"), Cell::new("free").coloured(Colour::Green)]);
        table.add([Cell::empty(), Cell::new("held"), Cell::new("a\nb")]);
        assert_eq!(
            table.to_text(Style::Plain),
            "LOCK      STATE  NOTE\ngröße 🔒  free\n          held   a\\u{a}b\n"
        );
        assert!(table.to_text(Style::Coloured).contains("\x1b[32mfree\x1b[0m\n"));
    }

    #[test]
    fn one_long_cell_does_not_widen_its_column() {
        let mut table = Table::new(&["LOCK", "STATE", "NOTE"]);
        let long = "x".repeat(100);
        table.add([Cell::new("a"), Cell::new("held"), Cell::new("-")]);
        table.add([Cell::cut(&long, 200), Cell::new("free"), Cell::empty()]);
        table.add([Cell::empty(), Cell::new(&long), Cell::empty()]);
        let cut = "x".repeat(LONGEST_TEXT);
        assert_eq!(
            table.to_text(Style::Plain),
            format!("LOCK  STATE\na     held\n{long}\n      free\n      {cut}...\n")
        );
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

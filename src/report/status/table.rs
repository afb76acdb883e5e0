//! A table for people: aligned columns, coloured where somebody looks.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::Style;
use crate::report::printable;

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
    /// The parameter of SGR (ECMA-48).
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

/// One cell; its text is safe for a terminal.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    text: String,
    colour: Colour,
}

impl Cell {
    /// Foreign text.
    pub(super) fn new(text: &str) -> Cell {
        Cell { text: printable(text), colour: Colour::None }
    }

    pub(super) fn empty() -> Cell {
        Cell::new("")
    }

    pub(super) fn coloured(self, colour: Colour) -> Cell {
        Cell { colour, ..self }
    }
}

/// Rows under a heading.
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

    /// Each line, with as many spaces between the columns as it takes and none at its end.
    pub(super) fn to_text(&self, style: Style) -> String {
        let mut widths: Vec<usize> = self.headings.iter().map(|heading| heading.width()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.text.width().max(*width);
            }
        }
        let headings: Vec<Cell> = self.headings.iter().map(|heading| Cell::new(heading)).collect();
        let mut text = String::new();
        for row in [&headings].into_iter().chain(&self.rows) {
            let mut gap = 0;
            for (cell, width) in row.iter().zip(&widths) {
                if !cell.text.is_empty() {
                    text.extend(std::iter::repeat_n(' ', gap));
                    gap = 0;
                    match (style, cell.colour) {
                        (Style::Coloured, colour) if colour != Colour::None => {
                            text.push_str(&format!("\x1b[{}m{}\x1b[0m", colour.code(), cell.text));
                        }
                        _ => text.push_str(&cell.text),
                    }
                }
                gap += width - cell.text.width() + 2;
            }
            text.push('\n');
        }
        text
    }
}

/// The first part of a line that is so wide; colours take no room, and end with it.
pub(super) fn cut(line: &str, width: usize) -> String {
    let mut taken = String::new();
    let mut room = width;
    let mut in_escape = false;
    for c in line.chars() {
        if in_escape || c == '\x1b' {
            in_escape = c != 'm';
            taken.push(c);
            continue;
        }
        let wide = c.width().unwrap_or(0);
        if wide > room {
            taken.push_str(if taken.contains('\x1b') { "\x1b[0m" } else { "" });
            break;
        }
        room -= wide;
        taken.push(c);
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
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
    fn lines_are_cut_at_the_edge_of_the_terminal() {
        assert_eq!(cut("abcdef", 3), "abc");
        assert_eq!(cut("a🔒b", 2), "a");
        assert_eq!(cut("\x1b[31mabc\x1b[0md", 2), "\x1b[31mab\x1b[0m");
        assert_eq!(cut("\x1b[31mab\x1b[0m", 2), "\x1b[31mab\x1b[0m");
    }
}

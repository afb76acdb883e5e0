//! How text is laid out on standard output: colours, and the width of the terminal.

use std::io::IsTerminal;

use unicode_width::UnicodeWidthChar;

use crate::input;

/// Whether text may be coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Coloured,
    /// Anywhere else, and with `NO_COLOR` (no-color.org).
    Plain,
}

/// How pages of the manual are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// By the user's pager.
    InPager,
    /// Formatted, without a pager: the terminal understands no control sequences.
    Plain,
    /// As they are, for another program or a file.
    Unformatted,
}

/// How text is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    pub style: Style,
    /// The width of the terminal, if it is one.
    pub width: Option<usize>,
    /// Show all columns, uncut.
    pub is_wide: bool,
}

impl Form {
    /// Returns the form for standard output.
    pub fn of_stdout() -> Form {
        let is_terminal = std::io::stdout().is_terminal();
        let style = match is_terminal && !is_dumb() && input::variable("NO_COLOR").is_none() {
            true => Style::Coloured,
            false => Style::Plain,
        };
        let size = is_terminal.then(|| terminal_size::terminal_size_of(std::io::stdout())).flatten();
        // A terminal that does not know its size reports 0.
        let width = size.map(|(width, _)| usize::from(width.0)).filter(|width| *width > 0);
        Form { style, width, is_wide: false }
    }

    /// Returns the same form with all columns, uncut.
    #[must_use]
    pub fn wide(self) -> Form {
        Form { width: None, is_wide: true, ..self }
    }

    /// Returns how pages of the manual are shown.
    pub fn pages(self) -> Pages {
        match std::io::stdout().is_terminal() {
            true if is_dumb() => Pages::Plain,
            true => Pages::InPager,
            false => Pages::Unformatted,
        }
    }

    /// Breaks the lines of a text that are wider than the terminal, between words.
    pub fn fit(self, text: &str) -> String {
        let Some(width) = self.width else { return text.to_owned() };
        let fit = |line: &str| {
            if width_of(line) <= width {
                return format!("{line}\n");
            }
            let indent = line.len() - line.trim_start().len();
            let lines = wrapped(line.trim_start(), width.saturating_sub(indent), "");
            lines.iter().map(|part| format!("{:indent$}{part}\n", "")).collect()
        };
        text.lines().map(fit).collect()
    }
}

/// Returns whether the terminal understands no control sequences (`TERM=dumb`).
pub fn is_dumb() -> bool {
    input::variable("TERM").is_some_and(|terminal| terminal == "dumb")
}

/// Returns how many columns a text takes: the sum of those of its characters, as terminals count. A sequence that they draw
/// as one character, such as an emoji with a selector, has no width of its own, so that a part is never wider than the whole.
pub(super) fn width_of(text: &str) -> usize {
    text.chars().filter_map(UnicodeWidthChar::width).sum()
}

/// Breaks a text between words into lines of this width; the first begins with `first`, the others are indented by as
/// much.
pub(super) fn wrapped(text: &str, width: usize, first: &str) -> Vec<String> {
    let mut lines = vec![first.to_owned()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is a first line");
        let is_empty = line.trim_end().len() == first.trim_end().len() || line.trim().is_empty();
        if !is_empty && width_of(line) + 1 + width_of(word) > width {
            lines.push(format!("{:1$}{word}", "", first.len()));
        } else {
            if !is_empty {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

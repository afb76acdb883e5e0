//! A text that is redrawn on the alternate screen of a terminal, which leaves what was on it before as it was.
//!
//! Called by `commands/watch`. What always holds: a frame scrolls nothing, and says how many lines it hides.

use super::table::cut;

/// Switches to the alternate screen, empty, without a cursor (xterm, DECSET 1049; DECTCEM; ECMA-48, ED).
pub const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J";
/// Switches back, without a colour, to the cursor where it was.
pub const LEAVE: &str = "\x1b[0m\x1b[?25h\x1b[?1049l";

/// The size of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub columns: usize,
    pub rows: usize,
}

impl Size {
    /// Returns the size of the terminal that standard output is; 80 columns and 24 rows if it does not know.
    pub fn of_stdout() -> Size {
        let known = terminal_size::terminal_size_of(std::io::stdout());
        let (columns, rows) = known.map_or((0, 0), |(columns, rows)| (columns.0.into(), rows.0.into()));
        let or = |size: usize, default| if size == 0 { default } else { size };
        Size { columns: or(columns, 80), rows: or(rows, 24) }
    }
}

/// Returns the sequence that draws the text over the previous one: no line is longer than the terminal is wide. The last
/// row says how many rows are hidden, if the text has more than the terminal.
pub fn frame(text: &str, size: Size) -> String {
    let all: Vec<&str> = text.lines().collect();
    let mut lines: Vec<String> = all.iter().take(size.rows).map(|line| cut(line, size.columns)).collect();
    if all.len() > size.rows {
        lines.pop();
        lines.push(cut(&format!("... {} more", all.len() - lines.len()), size.columns));
    }
    // Each line is cleared before it is written: after one that is as wide as the terminal, the cursor is still on its last
    // column (ECMA-48, CUP, EL and ED).
    let mut frame = "\x1b[H".to_owned();
    for (row, line) in lines.iter().enumerate() {
        let next = if row == 0 { "" } else { "\r\n" };
        frame.push_str(&format!("{next}\x1b[2K{line}"));
    }
    if lines.len() < size.rows {
        frame.push_str("\r\n\x1b[J");
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(columns: usize, rows: usize) -> Size {
        Size { columns, rows }
    }

    #[test]
    fn a_frame_fits_the_screen_and_counts_what_it_hides() {
        let text = "one\ntwo\nthree\nfour\n";
        let all = "\x1b[H\x1b[2Kone\r\n\x1b[2Ktwo\r\n\x1b[2Kthree\r\n\x1b[2Kfour";
        assert_eq!(frame(text, size(10, 5)), format!("{all}\r\n\x1b[J"));
        assert_eq!(frame(text, size(10, 4)), all);
        assert_eq!(frame(text, size(10, 3)), "\x1b[H\x1b[2Kone\r\n\x1b[2Ktwo\r\n\x1b[2K... 2 more");
        assert_eq!(frame(text, size(4, 2)), "\x1b[H\x1b[2Kone\r\n\x1b[2K...…");
        assert_eq!(frame(text, size(10, 1)), "\x1b[H\x1b[2K... 4 more");
        assert_eq!(frame("", size(10, 2)), "\x1b[H\r\n\x1b[J");
    }

    #[test]
    fn colours_end_with_the_line_that_is_cut() {
        assert_eq!(frame("\x1b[31mred and more\x1b[0m\n", size(4, 1)), "\x1b[H\x1b[2K\x1b[31mred…\x1b[0m");
    }
}

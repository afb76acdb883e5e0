//! A terminal with an alternate screen.

use crate::support::dlock::BINARY;
use crate::support::pty::Terminal;
use crate::support::store::Store;
use std::process::Command;

/// `dlock status` alone on a terminal of this size. What follows it waits for ever.
pub fn watching(store: &Store, args: &[&str], rows: u16, columns: u16) -> Terminal {
    let mut shell = Command::new("sh");
    let text = format!(
        "stty rows {rows} cols {columns}; echo before; \"$0\" status -b '{}' \"$@\"; echo \"ended $?\"; cat",
        store.url()
    );
    shell.args(["-c", &text, BINARY]).args(args).current_dir(store.place.path("."));
    shell.env_remove("NO_COLOR").env_remove("DLOCK_BACKEND");
    Terminal::start(&store.place, shell)
}

/// What a terminal shows.
#[derive(Debug)]
pub struct Shown {
    /// All that was written to the normal screen.
    pub normal: String,
    /// The rows of the alternate screen, if it is shown, up to the last one that was written to.
    pub alternate: Option<Vec<String>>,
    pub has_cursor: bool,
    /// How often the alternate screen was entered.
    pub entered: usize,
}

/// The screen of a terminal of this size after this output. It supports only what `--watch` uses.
#[track_caller]
pub fn shown(written: &str, rows: usize, columns: usize) -> Shown {
    let mut shown = Shown { normal: String::new(), alternate: None, has_cursor: true, entered: 0 };
    let (mut row, mut column) = (0, 0);
    let mut rest = written;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        if c == '\u{1b}' {
            let end = rest.find(|c: char| c.is_ascii_alphabetic());
            // The rest of the sequence has not been written yet.
            let Some(end) = end else { break };
            match (&rest[..=end], &mut shown.alternate) {
                ("[?25h", _) => shown.has_cursor = true,
                ("[?25l", _) => shown.has_cursor = false,
                ("[?1049h", alternate @ None) => {
                    *alternate = Some(Vec::new());
                    shown.entered += 1;
                }
                ("[?1049l", alternate @ Some(_)) => *alternate = None,
                ("[H", Some(_)) => (row, column) = (0, 0),
                ("[2J", Some(lines)) => lines.clear(),
                ("[2K", Some(lines)) => lines.get_mut(row).map_or((), String::clear),
                ("[J", Some(lines)) => {
                    assert_eq!(column, 0, "{written:?}");
                    lines.truncate(row);
                }
                (sequence, _) if sequence.ends_with('m') => {}
                other => panic!("{other:?}: {written:?}"),
            }
            rest = &rest[end + 1..];
            continue;
        }
        match &mut shown.alternate {
            None => shown.normal.push(c),
            Some(_) if c == '\n' => {
                (row, column) = (row + 1, 0);
                assert!(row < rows, "the screen scrolls: {written:?}");
            }
            Some(lines) => {
                lines.resize(lines.len().max(row + 1), String::new());
                // Each line is written as a whole.
                assert_eq!(lines[row].chars().count(), column, "{written:?}");
                lines[row].push(c);
                column += 1;
                assert!(column <= columns, "a line is wider than the terminal: {written:?}");
            }
        }
    }
    shown
}

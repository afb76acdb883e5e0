//! How a run ended, as one letter.

use super::super::history::outcome;
use super::super::table::Colour;
use crate::lock::Record;
use crate::lock::record::{ACQUIRED, BROKEN, CONTENDED, RELEASED, REMOVED};

/// An outcome as it is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) letter: char,
    /// The outcome in the words of the table.
    pub(super) word: &'static str,
    pub(super) colour: Colour,
}

/// Letters from the worst outcome to the best: where there is room for one, it is the first of these.
const WORST_FIRST: &str = "LXBTSENDU?IWCORA";

impl Verdict {
    pub(super) fn of(record: &Record) -> Verdict {
        let (letter, word) = match (record.outcome.as_str(), record.exit_status, record.signal) {
            ("ran", Some(0), _) if record.interrupted => ('W', "ok, interrupted"),
            ("ran", Some(0), _) => ('O', "ok"),
            ("ran", Some(_), _) => ('E', "exit"),
            ("ran", None, Some(_)) => ('S', "signal"),
            ("lost", ..) => ('L', "lost"),
            ("max_runtime", ..) => ('T', "max_runtime"),
            ("not_executable", ..) => ('N', "not_executable"),
            ("denied", ..) => ('D', "denied"),
            ("unavailable", ..) => ('U', "unavailable"),
            ("interrupted", ..) => ('I', "interrupted"),
            (CONTENDED, ..) => ('C', "contended"),
            (ACQUIRED, ..) => ('A', "acquired"),
            (RELEASED, ..) => ('R', "released"),
            (BROKEN, ..) => ('B', "broken"),
            (REMOVED, ..) => ('X', "removed"),
            _ => ('?', "other"),
        };
        Verdict { letter, word, colour: outcome(record).1 }
    }

    /// Returns a number that is larger for a worse outcome.
    pub(super) fn severity(self) -> usize {
        WORST_FIRST.len() - WORST_FIRST.find(self.letter).unwrap_or(WORST_FIRST.len())
    }
}

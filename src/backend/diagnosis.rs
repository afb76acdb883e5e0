//! What a store finds out about itself: whether it is fit to hold locks.

use std::time::Duration;

use tokio::sync::mpsc;

use crate::secret::scrubbed;

/// How well one thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// As it should be.
    Ok,
    /// Locks work, but something about them is not as good as it could be, or not known.
    Warning,
    /// Locks do not work, or cannot be relied on.
    Problem,
}

impl Level {
    /// The level's name, as it is shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Problem => "problem",
        }
    }
}

/// One thing that was looked at. The texts may quote the store, which is foreign: whoever prints them escapes them. No
/// secret is in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at: one or two words that stay the same from version to version.
    pub check: &'static str,
    /// How well it is.
    pub level: Level,
    /// What was found.
    pub found: String,
    /// What follows from it for locks, unless all is well.
    pub consequence: Option<String>,
    /// What to do about it, unless all is well.
    pub remedy: Option<String>,
}

impl Finding {
    // What is found is often in the words of the store: our secrets in it are hidden.

    /// All is well.
    pub fn ok(check: &'static str, found: impl Into<String>) -> Finding {
        let found = scrubbed(&found.into()).into_owned();
        Finding { check, level: Level::Ok, found, consequence: None, remedy: None }
    }

    /// Locks work, but.
    pub fn warning(
        check: &'static str,
        found: impl Into<String>,
        consequence: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        let (consequence, remedy) = (Some(consequence.into()), Some(remedy.into()));
        let found = scrubbed(&found.into()).into_owned();
        Finding { check, level: Level::Warning, found, consequence, remedy }
    }

    /// Locks do not work, or cannot be relied on.
    pub fn problem(
        check: &'static str,
        found: impl Into<String>,
        consequence: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding { level: Level::Problem, ..Finding::warning(check, found, consequence, remedy) }
    }
}

/// What is told while a store is examined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// The next answer of the store that is awaited is about this.
    Begins(&'static str),
    /// Something was found.
    Found(Finding),
    /// A lease of this length goes well with how fast the store answers.
    Ttl(Duration),
}

/// Where a store tells what it finds, as it finds it: so what is known is not lost when the store does not answer any
/// more, and whoever listens can tell where that was. Clones tell the same listener.
#[derive(Clone, Debug)]
pub struct Diagnosis(mpsc::UnboundedSender<Note>);

impl Diagnosis {
    /// An examination and its listener.
    pub fn new() -> (Diagnosis, mpsc::UnboundedReceiver<Note>) {
        let (sender, notes) = mpsc::unbounded_channel();
        (Diagnosis(sender), notes)
    }

    /// Tells that an answer about this is awaited from now on.
    pub fn begin(&self, check: &'static str) {
        self.tell(Note::Begins(check));
    }

    /// Tells what was found.
    pub fn found(&self, finding: Finding) {
        self.tell(Note::Found(finding));
    }

    /// Tells which lease goes well with how fast the store answers.
    pub fn recommend_ttl(&self, ttl: Duration) {
        self.tell(Note::Ttl(ttl));
    }

    fn tell(&self, note: Note) {
        // Nobody listens any more: then nobody wants to know.
        let _ = self.0.send(note);
    }
}

/// The middle one of some durations, and the one that only one in a hundred exceeds; zero of none.
pub(super) fn p50_and_p99(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort_unstable();
    // The nearest rank.
    let at = |percent: usize| times.get((times.len() * percent).div_ceil(100).checked_sub(1)?).copied();
    (at(50).unwrap_or_default(), at(99).unwrap_or_default())
}

/// A short duration as people read it: `0.12ms`, `3.4ms`, `120ms`.
pub(super) fn short(duration: Duration) -> String {
    let ms = duration.as_secs_f64() * 1e3;
    match ms {
        ..1.0 => format!("{ms:.2}ms"),
        ..10.0 => format!("{ms:.1}ms"),
        _ => format!("{ms:.0}ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_sorted_times() {
        let ms = Duration::from_millis;
        assert_eq!(p50_and_p99((1..=100).rev().map(ms).collect()), (ms(50), ms(99)));
        assert_eq!(p50_and_p99(vec![ms(7)]), (ms(7), ms(7)));
        assert_eq!(p50_and_p99(Vec::new()), (ms(0), ms(0)));
    }

    #[test]
    fn short_durations_have_two_digits_or_three() {
        for (micros, shown) in [(123, "0.12ms"), (3_400, "3.4ms"), (120_400, "120ms"), (0, "0.00ms")] {
            assert_eq!(short(Duration::from_micros(micros)), shown);
        }
    }
}

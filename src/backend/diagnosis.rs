//! What a store finds out about itself: whether it is fit to hold locks.

use std::fmt::Display;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::mpsc;

use super::{Outlook, StoreError};
use crate::clock::Moment;
use crate::duration::show;
use crate::secret::scrubbed;

/// The recommended ttl is the default lease, but at least [`REPLIES_PER_TTL`] times as long as a slow reply.
const SHORTEST_RECOMMENDED: Duration = Duration::from_secs(30);
const REPLIES_PER_TTL: u32 = 100;
/// How many requests the response time is measured with.
const REQUESTS: usize = 100;

/// The check of [`Finding::one_server`].
pub const AVAILABILITY: &str = "availability";

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// No fault was found.
    Ok,
    /// Locks work, but something about them is worse than it could be, or unknown.
    Warning,
    /// Locks do not work, or cannot be relied on.
    Problem,
}

impl Level {
    /// Returns the level's name, as displayed.
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Problem => "problem",
        }
    }
}

/// The result of one check. The texts may quote the store, which is not trusted: they are escaped when they are
/// printed. They contain no secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was checked: one or two words that stay the same from version to version.
    pub check: &'static str,
    /// How well it is.
    pub level: Level,
    /// What was found.
    pub found: String,
    /// What follows from it for locks, unless the level is `Ok`.
    pub consequence: Option<String>,
    /// What to do about it, unless the level is `Ok`.
    pub remedy: Option<String>,
}

impl Finding {
    // The text of a finding often quotes the store: secrets in it are replaced.

    /// Creates a finding without a fault.
    pub fn ok(check: &'static str, found: impl Into<String>) -> Finding {
        let found = scrubbed(&found.into()).into_owned();
        Finding { check, level: Level::Ok, found, consequence: None, remedy: None }
    }

    /// Creates a finding that locks work with a limitation.
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

    /// Creates a finding that locks do not work, or cannot be relied on.
    pub fn problem(
        check: &'static str,
        found: impl Into<String>,
        consequence: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding { level: Level::Problem, ..Finding::warning(check, found, consequence, remedy) }
    }

    /// Creates the finding that a server cannot be used because of this error.
    pub fn refusal(check: &'static str, error: &StoreError, remedy: &str) -> Finding {
        let consequence = format!("no lock can be taken: dlock run ends with {}", error.failure_kind() as u8);
        let found = match error {
            // The remedy is one of the finding.
            StoreError::OtherServer { found, .. } => found.clone(),
            error => error.to_string(),
        };
        Finding::problem(check, found, consequence, remedy)
    }

    /// Creates the finding that the store cannot be used because of this error, with what is to be done about an error of
    /// its kind.
    pub fn failure(check: &'static str, error: &StoreError) -> Finding {
        Finding::refusal(check, error, remedy_of(error))
    }

    /// Creates the finding that nothing takes over from the server.
    pub fn one_server() -> Finding {
        Finding::ok(
            AVAILABILITY,
            "one server: while it is down no lock can be taken and commands are stopped",
        )
    }

    /// Creates the finding that a table is missing which the user may create.
    pub fn missing_table(table: &dyn Display) -> Finding {
        Finding::warning(
            "table",
            format!("there is no table {table}"),
            "the first dlock run creates it; the remaining checks need it and were not made",
            "create it now: dlock doctor --init, or what dlock doctor --policy prints",
        )
    }

    /// Returns the same finding about one of several servers, which the others can do without.
    fn of_one(self, server: &dyn Display, consequence: &str) -> Finding {
        let found = format!("{server}: {}", self.found);
        Finding::warning(self.check, found, consequence, self.remedy.unwrap_or_default())
    }
}

/// Returns what is to be done about an error of a store, whatever the request was.
pub(super) fn remedy_of(error: &StoreError) -> &str {
    match error {
        StoreError::Denied(_) => "grant the user the rights that dlock doctor --policy prints",
        StoreError::OtherServer { remedy, .. } => remedy,
        StoreError::Config(_) => "see the error: correct the URL, or what it names in the store",
        StoreError::Unavailable { outlook: Outlook::Permanent, .. } => {
            "see the error: correct the configuration of the server, or of this client"
        }
        StoreError::Unavailable { .. } => {
            "check that the store runs and that nothing between drops packets; --connect-timeout allows it more time"
        }
    }
}

/// What users have to know of any store before they rely on its locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// Whether of several clients that claim a free lock at once exactly one gets it.
    AtomicGrant,
    /// Whether a lock that was granted can be lost, and by what.
    Loss,
    /// Whether a session keeps to one server, with nothing in between that distributes requests.
    OneServer,
    /// Which clock ends a lease, with which resolution, and when the lock of a crashed holder is free at the latest.
    LeaseClock,
}

impl Question {
    /// All questions, in the order in which they are shown.
    pub const ALL: [Question; 4] =
        [Question::AtomicGrant, Question::Loss, Question::OneServer, Question::LeaseClock];

    /// Returns the question in words.
    pub fn text(self) -> &'static str {
        match self {
            Question::AtomicGrant => "Is a grant atomic here?",
            Question::Loss => "Can a granted lock be lost, and by what?",
            Question::OneServer => "Does a session keep to one server?",
            Question::LeaseClock => {
                "Whose clock ends a lease, and how long does a crashed holder block others?"
            }
        }
    }
}

/// The answer to a [`Question`]. It contains no secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Answer {
    /// One word that stays the same from version to version: `yes`, `no`, `unknown`, or whose clock it is.
    pub answer: &'static str,
    /// The reason, or the details.
    pub detail: String,
}

impl Answer {
    /// Creates an answer.
    pub fn new(answer: &'static str, detail: impl Into<String>) -> Answer {
        Answer { answer, detail: scrubbed(&detail.into()).into_owned() }
    }

    /// The answer of an examination that ended before.
    pub fn unknown() -> Answer {
        Answer::new("unknown", "the checks ended before that")
    }
}

/// A message sent while a store is examined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// The next reply of the store concerns this check.
    Begins(&'static str),
    /// Something was found.
    Found(Finding),
    /// A question is answered.
    Answered(Question, Answer),
    /// A lease of this length suits the response time of the store.
    Ttl(Duration),
}

/// The sending end for findings, which are sent as soon as they are known: what is known is not lost if the store stops
/// replying, and the receiver can report where that was. Clones send to the same receiver.
#[derive(Clone, Debug)]
pub struct Diagnosis(mpsc::UnboundedSender<Note>);

impl Diagnosis {
    /// Creates a diagnosis and its receiver.
    pub fn new() -> (Diagnosis, mpsc::UnboundedReceiver<Note>) {
        let (sender, notes) = mpsc::unbounded_channel();
        (Diagnosis(sender), notes)
    }

    /// Reports that the reply awaited from now on concerns this check.
    pub fn begin(&self, check: &'static str) {
        self.send(Note::Begins(check));
    }

    /// Reports a finding.
    pub fn found(&self, finding: Finding) {
        self.send(Note::Found(finding));
    }

    /// Reports what is wrong with some of several servers: only warnings, with this consequence, if others can be used.
    pub fn found_of_some(
        &self,
        failures: Vec<(&impl Display, Finding)>,
        others_work: bool,
        consequence: &str,
    ) {
        for (server, finding) in failures {
            self.found(if others_work { finding.of_one(server, consequence) } else { finding });
        }
    }

    /// Answers a question.
    pub fn answer(&self, question: Question, answer: Answer) {
        self.send(Note::Answered(question, answer));
    }

    /// Reports which lease suits the response time of the store.
    pub fn recommend_ttl(&self, ttl: Duration) {
        self.send(Note::Ttl(ttl));
    }

    /// Measures how long the store takes to reply to a request, and reports that and which lease suits it. `requests` is
    /// what the requests are.
    ///
    /// # Errors
    /// That of a request.
    pub async fn measure_latency(
        &self,
        requests: &str,
        request: impl AsyncFnMut() -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        self.measure_latency_for(Duration::MAX, requests, request).await
    }

    /// Does the same for a store whose leases are at most this `longest`.
    ///
    /// # Errors
    /// That of a request.
    pub async fn measure_latency_for(
        &self,
        longest: Duration,
        requests: &str,
        mut request: impl AsyncFnMut() -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut times = Vec::with_capacity(REQUESTS);
        for _ in 0..REQUESTS {
            self.begin("latency");
            let start = Moment::now();
            request().await?;
            times.push(Moment::now() - start);
        }
        let (p50, p99) = p50_and_p99(times);
        let found = format!("p50 {}, p99 {} of {REQUESTS} {requests}", short(p50), short(p99));
        let needed = recommended_ttl(p99);
        let ttl = needed.min(longest);
        self.recommend_ttl(ttl);
        let consequence = "with a short ttl, a few slow replies are enough for a command to be stopped";
        self.found(match (needed > SHORTEST_RECOMMENDED, needed > longest) {
            (false, _) => Finding::ok("latency", found),
            (true, false) => Finding::warning("latency", found, consequence, format!("--ttl {}", show(ttl))),
            (true, true) => {
                let remedy = format!(
                    "let the servers keep leases of {}: they keep {} at most",
                    show(needed),
                    show(ttl)
                );
                Finding::warning("latency", found, consequence, remedy)
            }
        });
        Ok(())
    }

    fn send(&self, note: Note) {
        // An error means that the receiver is gone; the note is then not needed.
        let _ = self.0.send(note);
    }
}

fn recommended_ttl(p99: Duration) -> Duration {
    let seconds = (p99 * REPLIES_PER_TTL).as_secs_f64().ceil();
    SHORTEST_RECOMMENDED.max(Duration::from_secs(seconds as u64))
}

/// Returns the first three numbers of a version, such as `3.5.13` or `3.6.0-rc.1`; 0 for one that is missing.
pub fn version_of(text: &str) -> (u32, u32, u32) {
    let mut numbers = text.split(['.', '-']).map(|number| number.parse().unwrap_or_default());
    let mut next = || numbers.next().unwrap_or_default();
    (next(), next(), next())
}

/// Returns the median and the 99th percentile of some durations; zero if there are none.
pub(super) fn p50_and_p99(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort_unstable();
    // The nearest rank.
    let at = |percent: usize| times.get((times.len() * percent).div_ceil(100).checked_sub(1)?).copied();
    (at(50).unwrap_or_default(), at(99).unwrap_or_default())
}

/// Formats a short duration for people: `0.12ms`, `3.4ms`, `120ms`.
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
    fn a_slow_store_needs_a_long_lease() {
        for (ms, seconds) in [(0, 30), (300, 30), (301, 31), (2_000, 200)] {
            assert_eq!(recommended_ttl(Duration::from_millis(ms)), Duration::from_secs(seconds));
        }
    }

    #[test]
    fn the_remedy_belongs_to_the_error() {
        let permanent = |reason: &str| StoreError::Unavailable {
            reason: reason.into(),
            maybe_applied: false,
            outlook: Outlook::Permanent,
        };
        for (error, status, remedy) in [
            (StoreError::Denied("no right".into()), 77, "dlock doctor --policy"),
            (StoreError::Config("another table".into()), 78, "correct the URL"),
            (permanent("the certificate has expired"), 69, "correct the configuration"),
            (StoreError::unreachable("connection refused"), 69, "nothing between drops packets"),
            (StoreError::unanswered("no answer within 5s"), 69, "nothing between drops packets"),
        ] {
            let finding = Finding::failure("lock", &error);
            let consequence = format!("no lock can be taken: dlock run ends with {status}");
            assert_eq!((finding.level, finding.consequence), (Level::Problem, Some(consequence)), "{error}");
            assert!(finding.remedy.is_some_and(|text| text.contains(remedy)), "{error}");
        }
    }

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

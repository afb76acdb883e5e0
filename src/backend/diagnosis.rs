//! What a store finds out about itself: whether it is fit to hold locks. `dlock doctor` calls it.
//!
//! What always holds: a diagnosis writes only under names of its own.

mod finding;

use std::fmt::Display;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::mpsc;

pub(super) use self::finding::remedy_of;
pub use self::finding::{AVAILABILITY, Finding, Level, no_lock};
use super::StoreError;
use crate::clock::Moment;
use crate::duration::show;
use crate::lock::DEFAULT_TTL;
use crate::secret::scrubbed;

/// The recommended ttl is the default lease, but at least this many times as long as a slow reply.
const REPLIES_PER_TTL: u32 = 100;
/// How many requests the response time is measured with.
const REQUESTS: usize = 100;

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

    /// The answer about a lock that is a row on the disk of a server with this many replicas, if that is known, and what is
    /// special about its `replication`.
    pub fn loss_of_row(replicas: Option<u64>, replication: &str) -> Answer {
        match replicas {
            Some(0) => Answer::new(
                "no",
                "only if its row is removed by hand, or the server loses its disk; it has no replica now",
            ),
            Some(_) => Answer::new(
                "yes",
                format!("by a fail-over to a replica that has not received it; {replication}"),
            ),
            None => Answer::new(
                "unknown",
                "yes if a replica takes over that has not received it; whether there is one, the server does not tell this user",
            ),
        }
    }

    /// The answer where the server's clock ends leases, in steps of this length.
    pub fn lease_of_server(step: &str) -> Answer {
        let ttl = one_ttl();
        let crash = format!("the lock of a crashed holder is free {ttl} after its last renewal");
        Answer::new("server", format!("the server's, in steps of {step}; {crash}"))
    }

    /// The answer of an examination that ended before.
    pub fn unknown() -> Answer {
        Answer::new("unknown", "not determined: an earlier check failed")
    }
}

/// Returns how long a lease of one ttl lasts at most, in words.
pub fn one_ttl() -> String {
    format!("at most one --ttl ({} unless set)", show(DEFAULT_TTL))
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
pub struct Diagnosis {
    notes: mpsc::UnboundedSender<Note>,
    creates: bool,
}

impl Diagnosis {
    /// Creates a diagnosis and its receiver.
    pub fn new() -> (Diagnosis, mpsc::UnboundedReceiver<Note>) {
        let (sender, notes) = mpsc::unbounded_channel();
        (Diagnosis { notes: sender, creates: false }, notes)
    }

    /// Returns a diagnosis that also creates what the store needs before its first lock, such as a table, if that is missing.
    pub fn creating(self) -> Diagnosis {
        Diagnosis { creates: true, ..self }
    }

    /// Returns whether it does.
    pub fn creates(&self) -> bool {
        self.creates
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
        self.found(match (needed > DEFAULT_TTL, needed > longest) {
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
        let _ = self.notes.send(note);
    }
}

fn recommended_ttl(p99: Duration) -> Duration {
    let seconds = (p99 * REPLIES_PER_TTL).as_secs_f64().ceil();
    DEFAULT_TTL.max(Duration::from_secs(seconds as u64))
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

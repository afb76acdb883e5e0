//! Metrics of runs, in the text format of Prometheus, as node_exporter's textfile collector reads them.
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>

mod parse;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use super::histogram::{HOLD_BOUNDS, Histogram, RENEWAL_BOUNDS, WAIT_BOUNDS};
use super::outcome::{Outcome, RunReport};
use crate::child::protocol::Ended;

/// The content of one file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Metrics {
    /// The metrics by lock name.
    locks: BTreeMap<String, Series>,
    /// Metric families of a later version, unchanged.
    unknown: String,
}

/// The metrics of one lock.
#[derive(Clone, Debug, PartialEq)]
struct Series {
    /// The number of runs, by outcome.
    runs: BTreeMap<String, u64>,
    wait: Histogram,
    hold: Histogram,
    renewal: Histogram,
    /// The gauges, each once it has a value.
    last: BTreeMap<Gauge, f64>,
}

/// The gauges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Gauge {
    Run,
    Success,
    ExitStatus,
    FencingToken,
}

impl Gauge {
    const ALL: [Gauge; 4] = [Gauge::Run, Gauge::Success, Gauge::ExitStatus, Gauge::FencingToken];
}

/// A family of metrics: its name, its type, and its help text.
struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
}

const RUNS: Family = Family {
    name: "dlock_runs_total",
    kind: "counter",
    help: "Runs of dlock, by the name of the lock and by outcome.",
};
const WAIT: Family = Family {
    name: "dlock_wait_seconds",
    kind: "histogram",
    help: "From the beginning of a run to the grant of its lock, or to giving up.",
};
const HOLD: Family = Family {
    name: "dlock_hold_seconds",
    kind: "histogram",
    help: "From the grant of a lock to its release.",
};
const RENEWAL: Family = Family {
    name: "dlock_renewal_seconds",
    kind: "histogram",
    help: "From the request to renew a lock to its acknowledgement.",
};

impl Gauge {
    fn family(self) -> Family {
        let (name, help) = match self {
            Gauge::Run => {
                ("dlock_last_run_timestamp_seconds", "When the last run ended, whatever its outcome.")
            }
            Gauge::Success => {
                ("dlock_last_success_timestamp_seconds", "When a command last ended with exit status 0.")
            }
            Gauge::ExitStatus => (
                "dlock_last_exit_status",
                "Exit status of the last command that ran; 128 + n when signal n ended it.",
            ),
            Gauge::FencingToken => ("dlock_last_fencing_token", "Fencing token of the last grant."),
        };
        Family { name, kind: "gauge", help }
    }
}

impl Series {
    /// Returns the metrics of a new lock. Every outcome is present from the beginning: Prometheus does not
    /// see the increase of a counter that first appears with the value one.
    fn new() -> Series {
        Series {
            runs: Outcome::ALL.map(|outcome| (outcome.as_str().to_owned(), 0)).into(),
            wait: Histogram::new(WAIT_BOUNDS),
            hold: Histogram::new(HOLD_BOUNDS),
            renewal: Histogram::new(RENEWAL_BOUNDS),
            last: BTreeMap::new(),
        }
    }
}

impl Metrics {
    /// Parses the content of a file; an empty one has no metrics yet.
    ///
    /// # Errors
    /// It is not a metrics file of dlock, or is damaged: the line, and what is wrong with it.
    pub(super) fn parse(text: &str) -> Result<Metrics, String> {
        parse::parse(text)
    }

    /// Counts a run that ended at `now`, the time since 1970. A run whose names are not valid is counted
    /// under the empty name, which no lock has, without its time: otherwise a job of that name would seem
    /// never to succeed.
    pub(super) fn add(&mut self, report: &RunReport, now: Duration) {
        if report.locks.is_empty() {
            let series = self.locks.entry(String::new()).or_insert_with(Series::new);
            *series.runs.entry(report.outcome.as_str().to_owned()).or_default() += 1;
        }
        for lock in &report.locks {
            let series = self.locks.entry(lock.name.as_str().to_owned()).or_insert_with(Series::new);
            *series.runs.entry(report.outcome.as_str().to_owned()).or_default() += 1;
            if report.requested {
                series.wait.observe(report.waited);
            }
            if let Some(held) = report.held {
                series.hold.observe(held);
            }
            series.renewal.add(&lock.renewals);
            let now = now.as_millis() as f64 / 1000.0;
            series.last.insert(Gauge::Run, now);
            if report.succeeded() {
                series.last.insert(Gauge::Success, now);
            }
            let status = match report.command {
                Some(Ended::Exited(status)) => Some(status),
                Some(Ended::Killed(signal)) => Some(128 + signal),
                Some(Ended::NotExecuted(_)) | None => None,
            };
            if let Some(status) = status {
                series.last.insert(Gauge::ExitStatus, f64::from(status));
            }
            if let Some(fencing) = lock.fencing {
                // Below 2^53, so nothing is lost.
                series.last.insert(Gauge::FencingToken, fencing.number() as f64);
            }
        }
    }

    /// Returns the content of the file: each family once, with all its samples.
    pub(super) fn render(&self) -> String {
        let mut text = String::new();
        self.family(&mut text, &RUNS, |text, name, series| {
            for (outcome, count) in &series.runs {
                let outcome = escaped(outcome);
                let _ = writeln!(text, "{}{{name=\"{name}\",outcome=\"{outcome}\"}} {count}", RUNS.name);
            }
        });
        self.histogram(&mut text, &WAIT, |series| &series.wait);
        self.histogram(&mut text, &HOLD, |series| &series.hold);
        self.histogram(&mut text, &RENEWAL, |series| &series.renewal);
        for gauge in Gauge::ALL {
            let family = gauge.family();
            self.family(&mut text, &family, |text, name, series| {
                if let Some(value) = series.last.get(&gauge) {
                    let _ = writeln!(text, "{}{{name=\"{name}\"}} {value}", family.name);
                }
            });
        }
        text.push_str(&self.unknown);
        text
    }

    fn family(
        &self,
        text: &mut String,
        family: &Family,
        mut samples: impl FnMut(&mut String, &str, &Series),
    ) {
        let Family { name, kind, help } = family;
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (lock, series) in &self.locks {
            samples(text, &escaped(lock), series);
        }
    }

    fn histogram(&self, text: &mut String, family: &Family, of: impl Fn(&Series) -> &Histogram) {
        let metric = family.name;
        self.family(text, family, |text, name, series| {
            let Histogram { buckets, sum, count } = of(series);
            for (bound, count) in buckets {
                let _ = writeln!(text, "{metric}_bucket{{name=\"{name}\",le=\"{bound}\"}} {count}");
            }
            let _ = writeln!(text, "{metric}_bucket{{name=\"{name}\",le=\"+Inf\"}} {count}");
            let _ = writeln!(text, "{metric}_sum{{name=\"{name}\"}} {sum}");
            let _ = writeln!(text, "{metric}_count{{name=\"{name}\"}} {count}");
        });
    }
}

/// Formats the value of a label: backslash, quote and line feed are escaped. The format has no escape for
/// other control characters, and names have none; a stray one is replaced visibly.
fn escaped(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for c in value.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            c if c.is_control() => text.push('\u{FFFD}'),
            c => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{FencingToken, LockName};
    use crate::report::outcome::Started;

    fn report(name: &str) -> RunReport {
        let name = LockName::new(name).expect("a good name");
        let mut report = RunReport::new(Started::now(), &[name], None);
        report.outcome = Outcome::Ran;
        report.requested = true;
        report.waited = Duration::from_millis(50);
        report.held = Some(Duration::from_secs(5));
        report.command = Some(Ended::Exited(0));
        report.locks[0].fencing = FencingToken::new(FencingToken::END - 1);
        report.locks[0].renewals.observe(Duration::from_millis(3));
        report
    }

    #[test]
    fn written_metrics_can_be_parsed() {
        let mut metrics = Metrics::default();
        for name in ["a", "\\", "\"", "\\\"n", "a\\nb", "{name=\"x\"} 7", "größe 🔒", "a b"] {
            metrics.add(&report(name), Duration::from_millis(1_769_824_800_123));
        }
        let text = metrics.render();
        assert_eq!(Metrics::parse(&text), Ok(metrics));
        assert!(text.contains("dlock_last_fencing_token{name=\"a\"} 9007199254740991\n"), "{text}");
        assert!(text.contains("dlock_last_run_timestamp_seconds{name=\"a\"} 1769824800.123\n"), "{text}");
    }

    #[test]
    fn runs_are_added_to_existing_metrics() {
        let mut metrics = Metrics::default();
        for _ in 0..3 {
            metrics.add(&report("a"), Duration::from_secs(1));
            metrics = Metrics::parse(&metrics.render()).expect("our own");
        }
        let text = metrics.render();
        for line in [
            "dlock_runs_total{name=\"a\",outcome=\"ran\"} 3",
            "dlock_runs_total{name=\"a\",outcome=\"lost\"} 0",
            "dlock_wait_seconds_bucket{name=\"a\",le=\"0.01\"} 0",
            "dlock_wait_seconds_bucket{name=\"a\",le=\"0.1\"} 3",
            "dlock_wait_seconds_count{name=\"a\"} 3",
            "dlock_hold_seconds_sum{name=\"a\"} 15",
            "dlock_renewal_seconds_bucket{name=\"a\",le=\"0.0025\"} 0",
            "dlock_renewal_seconds_bucket{name=\"a\",le=\"+Inf\"} 3",
            "dlock_last_exit_status{name=\"a\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn a_command_that_never_ran_has_no_gauges() {
        let mut refused = report("a");
        refused.outcome = Outcome::NotExecutable;
        (refused.requested, refused.held, refused.command) = (false, None, None);
        let mut metrics = Metrics::default();
        metrics.add(&refused, Duration::from_secs(1));
        let text = metrics.render();
        assert!(!text.contains("dlock_last_exit_status{"), "{text}");
        assert!(!text.contains("dlock_last_success_timestamp_seconds{"), "{text}");
        assert!(text.contains("dlock_wait_seconds_count{name=\"a\"} 0\n"), "{text}");
    }

    #[test]
    fn no_control_character_is_ever_raw() {
        assert_eq!(escaped("a\\b\"c\nd\re\u{1b}f\u{9b}"), "a\\\\b\\\"c\\nd\u{FFFD}e\u{FFFD}f\u{FFFD}");
    }
}

//! Metrics of runs, in the text format of Prometheus, as node_exporter's textfile collector reads them.
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>
//!
//! Samples are kept as they are written, and only those of the locks of a run change.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::histogram::{Histogram, RENEWAL_BOUNDS};
use super::outcome::{Outcome, RunReport};

/// The content of one file.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Metrics {
    /// The samples of each lock, by its escaped name, in the order in which they are written.
    locks: BTreeMap<String, Vec<Sample>>,
    /// Metric families of a later version, unchanged.
    unknown: String,
}

/// A line with a value.
#[derive(Debug, PartialEq)]
struct Sample {
    family: &'static str,
    /// The metric with its labels: `dlock_runs_total{name="nightly",outcome="ran"}`.
    series: String,
    value: f64,
}

enum Kind {
    Counter,
    Gauge,
    /// With the upper bounds of its buckets, in seconds.
    Histogram(&'static [f64]),
}

const RUNS: &str = "dlock_runs_total";
const WAIT: &str = "dlock_wait_seconds";
const HOLD: &str = "dlock_hold_seconds";
const RENEWAL: &str = "dlock_renewal_seconds";
const LAST_RUN: &str = "dlock_last_run_timestamp_seconds";
const LAST_SUCCESS: &str = "dlock_last_success_timestamp_seconds";
const LAST_EXIT_STATUS: &str = "dlock_last_exit_status";
const LAST_FENCING_TOKEN: &str = "dlock_last_fencing_token";

const WAIT_BOUNDS: &[f64] = &[0.01, 0.1, 1.0, 5.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0];
const HOLD_BOUNDS: &[f64] = &[0.1, 1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 43200.0, 86400.0];

/// The metrics in the order of the file: name, type, help.
const FAMILIES: [(&str, Kind, &str); 8] = [
    (RUNS, Kind::Counter, "Runs of dlock, by the name of the lock and by outcome."),
    (
        WAIT,
        Kind::Histogram(WAIT_BOUNDS),
        "From the beginning of a run to the grant of its lock, or to giving up.",
    ),
    (HOLD, Kind::Histogram(HOLD_BOUNDS), "From the grant of a lock to its release."),
    (RENEWAL, Kind::Histogram(RENEWAL_BOUNDS), "From the request to renew a lock to its acknowledgement."),
    (LAST_RUN, Kind::Gauge, "When the last run ended, whatever its outcome."),
    (
        LAST_SUCCESS,
        Kind::Gauge,
        "When a command last ended with exit status 0, on another host too if dlock run --once-per found it done.",
    ),
    (
        LAST_EXIT_STATUS,
        Kind::Gauge,
        "Exit status of the last command that ran; 128 + n when signal n ended it.",
    ),
    (LAST_FENCING_TOKEN, Kind::Gauge, "Fencing token of the last grant."),
];

/// The largest counter: up to here a double represents every whole number exactly.
const MOST: f64 = 9_007_199_254_740_992.0;

impl Metrics {
    /// Parses the content of a file; an empty one has no metrics yet.
    ///
    /// # Errors
    /// It is not a metrics file of dlock, or is damaged: the line, and what is wrong with it.
    pub(super) fn parse(text: &str) -> Result<Metrics> {
        let mut metrics = Metrics::default();
        for (index, line) in text.lines().enumerate() {
            metrics.take_line(line.trim()).with_context(|| format!("line {}", index + 1))?;
        }
        Ok(metrics)
    }

    fn take_line(&mut self, line: &str) -> Result<()> {
        let comment = line.strip_prefix('#').map(|comment| comment.split_whitespace().collect::<Vec<_>>());
        let metric = match comment.as_deref() {
            _ if line.is_empty() => return Ok(()),
            Some(["HELP" | "TYPE", metric, ..]) => *metric,
            Some(_) => return Ok(()),
            None => line.split(['{', ' ']).next().unwrap_or_default(),
        };
        let sample = line.rsplit_once(' ').and_then(|(series, value)| Some((series, value.parse().ok()?)));
        ensure!(comment.is_some() || sample.is_some(), "neither a sample nor a comment");
        ensure!(metric.starts_with("dlock_"), "{metric} is not a metric of dlock");
        let family = FAMILIES.iter().map(|(name, kind, _)| (*name, kind)).find(|(name, kind)| match kind {
            Kind::Histogram(_) => {
                let part = metric.strip_prefix(name);
                part.is_some_and(|part| matches!(part, "" | "_bucket" | "_sum" | "_count"))
            }
            _ => metric == *name,
        });
        match (family, sample) {
            (None, _) => {
                self.unknown.push_str(line);
                self.unknown.push('\n');
            }
            (Some((family, _)), Some((series, value))) if comment.is_none() => {
                let Some(name) = name_in(series, metric).filter(|_| fits(metric, value)) else {
                    bail!("not a sample of {metric} in the format of dlock");
                };
                *sample_of(self.locks.entry(name).or_default(), family, series) = value;
            }
            _ => {}
        }
        Ok(())
    }

    /// Counts a run that ended at `now`, the time since 1970. A run whose names are not valid is counted
    /// under the empty name, which no lock has, without its time: otherwise a job of that name would seem
    /// never to succeed.
    pub(super) fn add(&mut self, report: &RunReport, now: Duration) {
        if report.locks.is_empty() {
            self.series("").count(report.outcome);
        }
        for lock in &report.locks {
            let mut series = self.series(lock.name.as_str());
            series.count(report.outcome);
            if report.requested {
                series.observe(WAIT, report.waited);
            }
            if let Some(held) = report.held {
                series.observe(HOLD, held);
            }
            series.add(RENEWAL, &lock.renewals);
            let now = now.as_millis() as f64 / 1000.0;
            *series.gauge(LAST_RUN) = now;
            if report.succeeded() {
                *series.gauge(LAST_SUCCESS) = now;
            } else if let Some(done) = &report.done {
                // So that an alert on it can be the same on every host. A later run by hand is not forgotten.
                let ended_at = done.last.ended_at as f64 / 1000.0;
                let latest = series.gauge(LAST_SUCCESS);
                *latest = latest.max(ended_at);
            }
            if let Some(status) = report.exit_status().or(report.signal().map(|signal| 128 + signal)) {
                *series.gauge(LAST_EXIT_STATUS) = f64::from(status);
            }
            if let Some(fencing) = lock.fencing {
                // Below 2^53, so nothing is lost.
                *series.gauge(LAST_FENCING_TOKEN) = fencing.number() as f64;
            }
        }
    }

    /// Returns the samples of a lock. Every outcome and bucket is present from the beginning: Prometheus does
    /// not see the increase of a counter that first appears with the value one.
    fn series(&mut self, lock: &str) -> Series<'_> {
        let name = escaped(lock);
        let samples = self.locks.entry(name.clone()).or_default();
        let mut series = Series { name, samples };
        let mut outcomes = Outcome::ALL.map(|(_, name)| name);
        outcomes.sort_unstable();
        for outcome in outcomes {
            series.add_to(RUNS, "", &format!(",outcome=\"{outcome}\""), 0.0);
        }
        for (family, kind, _) in &FAMILIES {
            let Kind::Histogram(bounds) = kind else { continue };
            // A file of another version may have other bounds.
            if series.samples.iter().all(|sample| sample.family != *family) {
                for bound in bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]) {
                    series.add_to(family, "_bucket", &format!(",le=\"{bound}\""), 0.0);
                }
            }
        }
        series
    }

    /// Returns the content of the file: each family once, with all its samples.
    pub(super) fn render(&self) -> String {
        let mut text = String::new();
        for (name, kind, help) in &FAMILIES {
            let kind = match kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram(_) => "histogram",
            };
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for Sample { series, value, .. } in
                self.locks.values().flatten().filter(|sample| sample.family == *name)
            {
                let _ = writeln!(text, "{series} {value}");
            }
        }
        text + &self.unknown
    }
}

/// The samples of one lock.
struct Series<'a> {
    name: String,
    samples: &'a mut Vec<Sample>,
}

impl Series<'_> {
    /// Adds to a sample, from zero if it does not exist yet.
    fn add_to(&mut self, family: &'static str, part: &str, labels: &str, by: f64) {
        let series = format!("{family}{part}{{name=\"{}\"{labels}}}", self.name);
        *sample_of(self.samples, family, &series) += by;
    }

    /// Returns the value of a gauge; zero if it does not exist yet.
    fn gauge(&mut self, family: &'static str) -> &mut f64 {
        let series = format!("{family}{{name=\"{}\"}}", self.name);
        sample_of(self.samples, family, &series)
    }

    fn count(&mut self, outcome: Outcome) {
        self.add_to(RUNS, "", &format!(",outcome=\"{}\"", outcome.as_str()), 1.0);
    }

    fn observe(&mut self, family: &'static str, duration: Duration) {
        let seconds = duration.as_secs_f64();
        self.add_observations(family, seconds, 1, |bound| u64::from(seconds <= bound));
    }

    fn add(&mut self, family: &'static str, histogram: &Histogram) {
        self.add_observations(family, histogram.sum(), histogram.count(), |bound| histogram.up_to(bound));
    }

    /// Adds observations; `up_to` returns how many of them certainly do not exceed a bound.
    fn add_observations(&mut self, family: &'static str, sum: f64, count: u64, up_to: impl Fn(f64) -> u64) {
        let buckets = format!("{family}_bucket{{name=\"{}\",le=\"", self.name);
        for sample in self.samples.iter_mut() {
            let bound = sample.series.strip_prefix(&buckets).and_then(|rest| rest.strip_suffix("\"}"));
            if let Some(bound) = bound.and_then(|bound| bound.parse().ok()) {
                sample.value += up_to(bound) as f64;
            }
        }
        self.add_to(family, "_sum", "", sum);
        self.add_to(family, "_count", "", count as f64);
    }
}

/// Returns the value of a sample, which is zero if it does not exist yet.
fn sample_of<'a>(samples: &'a mut Vec<Sample>, family: &'static str, series: &str) -> &'a mut f64 {
    let index = samples.iter().position(|sample| sample.series == series).unwrap_or(samples.len());
    if index == samples.len() {
        samples.push(Sample { family, series: series.to_owned(), value: 0.0 });
    }
    &mut samples[index].value
}

/// Returns the escaped name of the lock in a series of this metric, if its labels are those that dlock writes.
fn name_in(series: &str, metric: &str) -> Option<String> {
    let labels = series.strip_prefix(metric)?.strip_prefix("{name=\"")?.strip_suffix("\"}")?;
    let label = match metric {
        // Only its parts have samples.
        WAIT | HOLD | RENEWAL => return None,
        RUNS => Some("outcome"),
        _ if metric.ends_with("_bucket") => Some("le"),
        _ => None,
    };
    let (name, value) = match label {
        None => (labels, ""),
        Some(label) => labels.rsplit_once(&format!("\",{label}=\""))?,
    };
    let is_bound = label != Some("le") || value.parse::<f64>().is_ok();
    // A quote within a value is escaped.
    let unescaped = [name, value].concat().replace("\\\\", "").replace("\\\"", "");
    (is_bound && !unescaped.contains('"')).then(|| name.to_owned())
}

/// Whether a sample of this metric can have this value: counters are whole.
fn fits(metric: &str, value: f64) -> bool {
    match metric == RUNS || metric.ends_with("_bucket") || metric.ends_with("_count") {
        true => (0.0..=MOST).contains(&value) && value.fract() == 0.0,
        false => value.is_finite() || !metric.ends_with("_sum"),
    }
}

/// Formats the value of a label: backslash, quote and line feed are escaped. The format has no escape for
/// other control characters, and names have none; a stray one is replaced visibly.
pub(super) fn escaped(value: &str) -> String {
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

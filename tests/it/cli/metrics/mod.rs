//! `--metrics-file`: the counters, that nothing is lost, and that Prometheus can read it.

mod counting;
mod files;
pub mod prometheus;

use crate::support::place::Place;

/// The value of a series in the file `m`.
#[track_caller]
fn value(place: &Place, series: &str) -> Option<f64> {
    let text = place.read("m");
    let mut found = text.lines().filter_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    let value = found.next().map(|value| value.parse().unwrap());
    assert_eq!(found.next(), None, "{series} is there twice: {text}");
    value
}

/// The number of runs of `name` with each outcome; outcomes that never happened are omitted.
#[track_caller]
fn runs(place: &Place, name: &str) -> Vec<(String, u64)> {
    let text = place.read("m");
    let beginning = format!("dlock_runs_total{{name=\"{name}\",outcome=\"");
    let counts = text.lines().filter_map(|line| line.strip_prefix(&beginning)?.split_once("\"} "));
    let counts = counts.map(|(outcome, count)| (outcome.to_owned(), count.parse().unwrap()));
    counts.filter(|(_, count)| *count > 0).collect()
}

/// A few counts, as [`runs`] has them.
fn counts<const N: usize>(counts: [(&str, u64); N]) -> Vec<(String, u64)> {
    counts.map(|(outcome, count)| (outcome.to_owned(), count)).into()
}

//! Parses the metrics that dlock has written, and rejects all others.

use super::{Gauge, HOLD, Metrics, RENEWAL, RUNS, Series, WAIT};
use crate::report::histogram::{HOLD_BOUNDS, Histogram, RENEWAL_BOUNDS, WAIT_BOUNDS};

/// The largest counter: up to here a double represents every whole number exactly.
const MOST: f64 = 9_007_199_254_740_992.0;

/// A line with a value.
struct Sample<'a> {
    metric: &'a str,
    labels: Vec<(&'a str, String)>,
    value: f64,
}

pub(super) fn parse(text: &str) -> Result<Metrics, String> {
    let mut metrics = Metrics::default();
    for (index, line) in text.lines().enumerate() {
        let wrong = |what: String| format!("line {}: {what}", index + 1);
        take_line(&mut metrics, line).map_err(wrong)?;
    }
    for (name, series) in &mut metrics.locks {
        let histograms = [
            (&mut series.wait, WAIT_BOUNDS),
            (&mut series.hold, HOLD_BOUNDS),
            (&mut series.renewal, RENEWAL_BOUNDS),
        ];
        for (histogram, bounds) in histograms {
            if histogram.buckets.is_empty() && histogram.count == 0 {
                *histogram = Histogram::new(bounds);
            }
            let counts = histogram.buckets.iter().map(|(_, count)| *count).chain([histogram.count]);
            let bounds = histogram.buckets.iter().map(|(bound, _)| *bound);
            if !counts.is_sorted() || !bounds.is_sorted_by(|one, next| one < next) {
                return Err(format!("the buckets of '{name}' do not grow"));
            }
        }
    }
    Ok(metrics)
}

fn take_line(metrics: &mut Metrics, line: &str) -> Result<(), String> {
    let line = line.trim();
    if line.is_empty() {
        return Ok(());
    }
    if let Some(comment) = line.strip_prefix('#') {
        let mut words = comment.split_whitespace();
        let (Some("HELP" | "TYPE"), Some(family)) = (words.next(), words.next()) else { return Ok(()) };
        return match is_known(family)? {
            true => Ok(()),
            false => keep(metrics, line),
        };
    }
    let sample = sample(line).ok_or("neither a sample nor a comment")?;
    if !is_known(sample.metric)? {
        return keep(metrics, line);
    }
    take_sample(metrics, &sample)
        .ok_or_else(|| format!("not a sample of {} in the format of dlock", sample.metric))
}

/// A family of a later version.
fn keep(metrics: &mut Metrics, line: &str) -> Result<(), String> {
    metrics.unknown.push_str(line);
    metrics.unknown.push('\n');
    Ok(())
}

/// Whether this version knows the metric.
fn is_known(metric: &str) -> Result<bool, String> {
    if !metric.starts_with("dlock_") {
        return Err(format!("{metric} is not a metric of dlock"));
    }
    let gauges = Gauge::ALL.map(|gauge| gauge.family().name);
    let histograms = [WAIT.name, HOLD.name, RENEWAL.name];
    let part = |family: &str| {
        let part = metric.strip_prefix(family);
        part.is_some_and(|part| matches!(part, "" | "_bucket" | "_sum" | "_count"))
    };
    Ok(metric == RUNS.name || gauges.contains(&metric) || histograms.into_iter().any(part))
}

fn take_sample(metrics: &mut Metrics, sample: &Sample<'_>) -> Option<()> {
    let label = |wanted: &str| {
        sample.labels.iter().find(|(label, _)| *label == wanted).map(|(_, value)| value.as_str())
    };
    let name = label("name")?;
    let series = metrics.locks.entry(name.to_owned()).or_insert_with(|| Series {
        // The values in the file replace the initial ones.
        wait: Histogram::new(&[]),
        hold: Histogram::new(&[]),
        renewal: Histogram::new(&[]),
        ..Series::new()
    });
    let labels = sample.labels.len();
    if sample.metric == RUNS.name {
        let outcome = label("outcome").filter(|_| labels == 2)?;
        series.runs.insert(outcome.to_owned(), whole(sample.value)?);
        return Some(());
    }
    if let Some(gauge) = Gauge::ALL.into_iter().find(|gauge| gauge.family().name == sample.metric) {
        (labels == 1).then(|| series.last.insert(gauge, sample.value))?;
        return Some(());
    }
    let families =
        [(WAIT.name, &mut series.wait), (HOLD.name, &mut series.hold), (RENEWAL.name, &mut series.renewal)];
    let (part, histogram) = families
        .into_iter()
        .find_map(|(family, histogram)| Some((sample.metric.strip_prefix(family)?, histogram)))?;
    match (part, label("le"), labels) {
        ("_bucket", Some("+Inf"), 2) => whole(sample.value).map(drop),
        ("_bucket", Some(bound), 2) => {
            let bound = bound.parse().ok().filter(|bound: &f64| bound.is_finite())?;
            histogram.buckets.push((bound, whole(sample.value)?));
            Some(())
        }
        ("_sum", None, 1) => {
            histogram.sum = Some(sample.value).filter(|sum| sum.is_finite())?;
            Some(())
        }
        ("_count", None, 1) => {
            histogram.count = whole(sample.value)?;
            Some(())
        }
        _ => None,
    }
}

fn whole(value: f64) -> Option<u64> {
    ((0.0..=MOST).contains(&value) && value.fract() == 0.0).then_some(value as u64)
}

/// `metric{label="value",...} 1.5`
fn sample(line: &str) -> Option<Sample<'_>> {
    let end =
        line.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':')).filter(|end| *end > 0)?;
    let (metric, rest) = line.split_at(end);
    let mut labels = Vec::new();
    let mut rest = match rest.strip_prefix('{') {
        None => rest,
        Some(mut rest) => loop {
            rest = rest.trim_start();
            if let Some(behind) = rest.strip_prefix('}') {
                break behind;
            }
            let (label, value) = rest.split_once("=\"")?;
            let (value, behind) = unescaped(value)?;
            labels.push((label.trim(), value));
            rest = behind.trim_start();
            rest = rest.strip_prefix(',').unwrap_or(rest);
        },
    }
    .split_whitespace();
    let value = rest.next()?.parse().ok()?;
    rest.next().is_none().then_some(Sample { metric, labels, value })
}

/// Returns the value of a label up to its closing quote, and the rest of the text.
fn unescaped(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match chars.next()?.1 {
                'n' => '\n',
                c => c,
            }),
            c => value.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Xorshift;

    #[test]
    fn foreign_content_is_rejected_with_its_line() {
        for (text, why) in [
            ("node_load1 0.5\n", "line 1: node_load1 is not a metric of dlock"),
            ("\n# HELP up x\n", "line 2: up is not a metric of dlock"),
            ("hello world\n", "line 1: neither a sample nor a comment"),
            ("{\"version\":1}", "line 1: neither a sample nor a comment"),
            ("dlock_runs_total{name=\"x", "line 1: neither a sample nor a comment"),
            (
                "dlock_runs_total{name=\"x\"} 1",
                "line 1: not a sample of dlock_runs_total in the format of dlock",
            ),
            (
                "dlock_runs_total{name=\"x\",outcome=\"ran\"} 1.5",
                "line 1: not a sample of dlock_runs_total in the format of dlock",
            ),
            (
                "dlock_last_exit_status{name=\"x\",host=\"y\"} 1",
                "line 1: not a sample of dlock_last_exit_status in the format of dlock",
            ),
            (
                "dlock_wait_seconds_bucket{name=\"x\",le=\"1\"} 2\ndlock_wait_seconds_count{name=\"x\"} 1\n",
                "the buckets of 'x' do not grow",
            ),
        ] {
            assert_eq!(parse(text).map(drop), Err(why.to_owned()), "{text}");
        }
    }

    #[test]
    fn an_empty_file_has_no_metrics() {
        for text in ["", "\n\n", "# made by hand\n"] {
            assert_eq!(parse(text), Ok(Metrics::default()));
        }
    }

    #[test]
    fn families_of_a_later_version_are_kept() {
        let text =
            "# HELP dlock_new_total x\n# TYPE dlock_new_total counter\ndlock_new_total{name=\"a\"} 7\n";
        assert!(parse(text).expect("ours").render().ends_with(text));
    }

    #[test]
    fn arbitrary_input_does_not_panic() {
        let alphabet: Vec<char> = "dlock_runs_total{}name=\"x\\,#\n 1.e+Inf".chars().collect();
        let mut random = Xorshift::new();
        for _ in 0..20_000 {
            let _ = parse(&random.text(&alphabet, 60));
            let _ = parse(&format!("dlock_runs_total{{name=\"{}", random.text(&alphabet, 30)));
        }
    }
}

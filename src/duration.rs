//! Parses and formats durations as people write them: humantime, behind the checks that dlock needs.

use std::time::Duration;

use humantime::{DurationError as Error, format_duration, parse_duration};

/// Units that humantime knows and dlock rejects: `M` has meant months, minutes and millions, and neither months nor
/// years have one length.
const REJECTED: &[&str] = &["M", "month", "months", "y", "yr", "yrs", "year", "years"];
/// The longest duration: a hundred years, so that no sum of moments overflows.
const LONGEST: Duration = Duration::from_secs(100 * 366 * 86400);

/// Parses a duration: `250ms`, `90s`, `5m`, `1h 30m`, `1d`, `1.5m`; a bare number is seconds, as for `flock -w 5`.
///
/// # Errors
/// Any other text.
pub fn parse(text: &str) -> Result<Duration, String> {
    let expected = "expected a duration like 250ms, 90s, 5m, 1h30m or 1d (a bare number is seconds)";
    let unknown = |unit: &str| format!("unknown unit '{unit}': known are ms, s, m, h, d");
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let text = text.trim();
    if let Some(unit) = text.split(|c: char| !c.is_alphabetic()).find(|unit| REJECTED.contains(unit)) {
        return Err(unknown(unit));
    }
    // humantime skips spaces within a number.
    let words: Vec<&str> = text.split_whitespace().collect();
    if words.windows(2).any(|pair| pair[0].ends_with(is_number) && pair[1].starts_with(is_number)) {
        return Err(expected.into());
    }
    let zero = if text.starts_with('.') { "0" } else { "" };
    let unit = if text.chars().all(is_number) { "s" } else { "" };
    match parse_duration(&format!("{zero}{text}{unit}")) {
        Ok(duration) if duration <= LONGEST => Ok(duration),
        Err(Error::NumberOverflow) if text.contains('.') => {
            Err("the fraction is too fine for this unit: use a smaller one".into())
        }
        Ok(_) | Err(Error::NumberOverflow) => Err("longer than a hundred years".into()),
        Err(Error::UnknownUnit { unit, .. }) if !unit.is_empty() => Err(unknown(&unit)),
        Err(_) => Err(expected.into()),
    }
}

/// Formats a duration for people: the two largest units that are not zero.
pub fn show(duration: Duration) -> String {
    let (ms, seconds) = (duration.as_millis(), duration.as_secs());
    match seconds {
        0 => format!("{ms}ms"),
        1..10 => format!("{}s", ms as f64 / 1000.0),
        10..3600 => exact(Duration::from_secs(seconds)),
        3600..86400 => exact(Duration::from_secs(seconds / 60 * 60)),
        _ => exact(Duration::from_secs(seconds / 3600 * 3600)),
    }
}

/// Formats how long ago or how far away a moment is: rounded to seconds unless it is less than one.
pub fn show_distance(duration: Duration) -> String {
    match duration.as_secs() {
        0 => show(duration),
        _ => show(Duration::from_secs((duration + Duration::from_millis(500)).as_secs())),
    }
}

/// Formats a duration so that [`parse`] returns the same.
pub fn exact(duration: Duration) -> String {
    // humantime would continue with months and years.
    let days = duration.as_secs() / 86400;
    let rest = duration - Duration::from_secs(days * 86400);
    let rest = match (days, rest) {
        (1.., Duration::ZERO) => String::new(),
        _ => format_duration(rest).to_string().replace(' ', ""),
    };
    if days > 0 { format!("{days}d{rest}") } else { rest }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read() {
        for (text, ms) in [
            ("250ms", 250),
            ("90s", 90_000),
            ("5m", 300_000),
            ("1h 30m", 5_400_000),
            ("1h30m", 5_400_000),
            ("1d", 86_400_000),
            ("0.5", 500),
            ("1.5m", 90_000),
            ("5", 5_000),
            ("0", 0),
            (" 2 s ", 2_000),
            (".5s", 500),
            ("1.1", 1_100),
            ("0s", 0),
            ("10min", 600_000),
            ("30sec", 30_000),
            ("2hours", 7_200_000),
            ("5 minutes", 300_000),
            ("1w", 604_800_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for bad in [
            "", " ", "1M", "-1s", "1h 30", "s", "1..5s", "1s2", "5S", "1e3", "inf", "NaN", ".", "999999d",
            "1 2", "1 2s", "1. 5s", "2month", "1h 1M", "1y", "0.0001h",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert!(parse(&"9".repeat(20)).is_err() && parse(&format!("{}d", "9".repeat(20))).is_err());
    }

    #[test]
    fn durations_are_shown_as_people_write_them() {
        for (ms, shown) in [
            (0, "0ms"),
            (250, "250ms"),
            (1_000, "1s"),
            (1_488, "1.488s"),
            (30_000, "30s"),
            (90_000, "1m30s"),
            (720_000, "12m"),
            (3_600_000, "1h"),
            (90_061_000, "1d1h"),
        ] {
            assert_eq!(show(Duration::from_millis(ms)), shown);
        }
    }

    #[test]
    fn exact_durations_are_read_back() {
        for (text, shown) in [
            ("0", "0s"),
            ("90", "1m30s"),
            ("1.5s", "1s500ms"),
            ("1d 1h 1m 1s", "1d1h1m1s"),
            ("0.0001", "100us"),
            ("36600d", "36600d"),
        ] {
            let duration = parse(text).expect(text);
            assert_eq!(exact(duration), shown);
            assert_eq!(parse(shown), Ok(duration));
        }
    }
}

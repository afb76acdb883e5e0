//! Parses and formats durations as people write them.

use std::time::Duration;

/// The units of durations. `M` is not one: it has meant months, minutes and millions.
const UNITS: &[(&str, f64)] = &[("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86400.0)];
/// The longest duration: a hundred years, so that no sum of moments overflows.
const LONGEST_SECONDS: f64 = 100.0 * 366.0 * 86400.0;

/// Parses a duration: `250ms`, `90s`, `5m`, `1h 30m`, `1d`, `1.5m`; a bare number is seconds, as for `flock -w 5`.
///
/// # Errors
/// Any other text.
pub fn parse(text: &str) -> Result<Duration, String> {
    let expected =
        || "expected a duration like 250ms, 90s, 5m, 1h30m or 1d (a bare number is seconds)".to_owned();
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(expected());
    }
    let mut seconds = 0.0;
    let mut parts = 0;
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(number_end);
        let after = after.trim_start();
        let unit_end =
            after.find(|c: char| c.is_ascii_digit() || c == '.' || c.is_whitespace()).unwrap_or(after.len());
        let (unit, next) = after.split_at(unit_end);
        rest = next.trim_start();
        if !number.contains(|c: char| c.is_ascii_digit()) {
            return Err(expected());
        }
        let number: f64 = number.parse().map_err(|_| expected())?;
        let scale = match UNITS.iter().find(|(name, _)| *name == unit) {
            Some((_, scale)) => *scale,
            None if unit.is_empty() && parts == 0 && rest.is_empty() => 1.0,
            None if unit.is_empty() => return Err(expected()),
            None => return Err(format!("unknown unit '{unit}': known are ms, s, m, h, d")),
        };
        seconds += number * scale;
        parts += 1;
    }
    if seconds > LONGEST_SECONDS {
        return Err("longer than a hundred years".into());
    }
    // A binary fraction is off by up to a nanosecond; smaller units than a microsecond are not needed.
    Ok(Duration::from_micros((seconds * 1e6).round() as u64))
}

/// Formats a duration for people: the two largest units that are not zero.
pub fn show(duration: Duration) -> String {
    let ms = duration.as_millis();
    if ms < 1000 {
        return format!("{ms}ms");
    }
    if ms < 10_000 && !ms.is_multiple_of(1000) {
        return format!("{}s", duration.as_millis() as f64 / 1000.0);
    }
    let seconds = duration.as_secs();
    let parts =
        [("d", seconds / 86400), ("h", seconds / 3600 % 24), ("m", seconds / 60 % 60), ("s", seconds % 60)];
    let first = parts.iter().position(|(_, count)| *count > 0).unwrap_or(3);
    parts[first..]
        .iter()
        .take(2)
        .filter(|(_, count)| *count > 0)
        .map(|(unit, count)| format!("{count}{unit}"))
        .collect()
}

/// Formats a duration so that [`parse`] reads it back, to the microsecond.
pub fn exact(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let below = f64::from(duration.subsec_micros()) / 1000.0;
    let units =
        [("d", seconds / 86400), ("h", seconds / 3600 % 24), ("m", seconds / 60 % 60), ("s", seconds % 60)];
    let mut text: String =
        units.iter().filter(|(_, count)| *count > 0).map(|(unit, count)| format!("{count}{unit}")).collect();
    if below > 0.0 {
        text.push_str(&format!("{below}ms"));
    }
    if text.is_empty() { "0s".into() } else { text }
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
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for bad in [
            "",
            " ",
            "1M",
            "5 minutes",
            "-1s",
            "1h 30",
            "s",
            "1..5s",
            "1s2",
            "5S",
            "1e3",
            "inf",
            "NaN",
            ".",
            "9999999999d",
            "1 2",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
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
            ("0.0001", "0.1ms"),
            ("36600d", "36600d"),
        ] {
            let duration = parse(text).expect(text);
            assert_eq!(exact(duration), shown);
            assert_eq!(parse(shown), Ok(duration));
        }
    }
}

//! Points in time as people write them: `--since 22:00`, `--until 2026-11-26`.

use std::time::Duration;

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, Zoned};

use crate::duration;
use crate::exit::Failure;

/// A point in time, as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// This long ago.
    Ago(Duration),
    /// The last time that a clock showed this.
    Clock(Time),
    /// By the clock and the calendar of the host.
    Local(DateTime),
    At(Timestamp),
}

const EXPECTED: &str =
    "expected a time like 12h (ago), 22:00, 2026-11-26, '2026-11-26 22:00' or 2026-11-26T22:00:00Z";

/// Whether a bare number, which is seconds, rather is meant as a year or a date without dashes.
fn looks_like_a_date(text: &str) -> bool {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let is_of_these_centuries = text.starts_with("19") || text.starts_with("20");
    let is_date = text.len() == 4 || text.len() == 8 && Date::strptime("%Y%m%d", text).is_ok();
    is_number && is_of_these_centuries && is_date
}

/// Returns when the clock shows this, in their order: two different ones if it shows it twice. Of a time that it skips,
/// it is what RFC 5545 says, and beyond the calendar its last moment.
fn shown(time: DateTime, zone: &TimeZone) -> [Timestamp; 2] {
    let times = zone.to_ambiguous_timestamp(time);
    let beyond = if time.year() < 0 { Timestamp::MIN } else { Timestamp::MAX };
    [times.compatible(), times.later()].map(|time| time.unwrap_or(beyond))
}

impl When {
    /// Parses a duration, a time of day, a date, both, or RFC 3339.
    ///
    /// # Errors
    /// Any other text.
    pub fn parse(text: &str) -> Result<When, String> {
        let text = text.trim();
        let clock = ["%H:%M", "%H:%M:%S"].iter().find_map(|form| Time::strptime(form, text).ok());
        let moment = ["%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"];
        let moment = || moment.iter().find_map(|form| DateTime::strptime(form, text).ok());
        if looks_like_a_date(text) {
            return Err(EXPECTED.to_owned());
        }
        let date = || Date::strptime("%Y-%m-%d", text).ok().map(DateTime::from);
        // A bracketed zone is of other standards.
        let timestamp = || text.parse::<Timestamp>().ok().filter(|_| !text.ends_with(']'));
        clock
            .map(When::Clock)
            .or_else(|| moment().or_else(date).map(When::Local))
            .or_else(|| timestamp().map(When::At))
            .or_else(|| duration::parse(text).ok().map(When::Ago))
            .ok_or_else(|| EXPECTED.to_owned())
    }

    /// Returns the point in time. A date and time that the clock skipped or showed twice is resolved as RFC 5545 says.
    fn resolve(self, now: &Zoned) -> Timestamp {
        let zone = now.time_zone();
        match self {
            When::At(time) => time,
            When::Local(time) => shown(time, zone)[0],
            When::Ago(ago) => SignedDuration::try_from(ago)
                .ok()
                .and_then(|ago| now.timestamp().checked_sub(ago).ok())
                .unwrap_or(Timestamp::MIN),
            When::Clock(time) => {
                let yesterday = now.date().yesterday().unwrap_or(now.date());
                let [first, last] = shown(now.date().to_datetime(time), zone);
                let past = [last, first].into_iter().find(|time| *time <= now.timestamp());
                past.unwrap_or(shown(yesterday.to_datetime(time), zone)[1])
            }
        }
    }

    /// Returns the end of what begins at `since`. If both are times of day, the end is the first one after it.
    fn resolve_after(self, since: Option<(When, Timestamp)>, now: &Zoned) -> Timestamp {
        match (self, since) {
            (When::Clock(time), Some((When::Clock(from), since))) if time != from => {
                let zone = now.time_zone();
                let date = since.to_zoned(zone.clone()).date();
                let next = shown(date.tomorrow().unwrap_or(date).to_datetime(time), zone)[0];
                shown(date.to_datetime(time), zone).into_iter().find(|end| *end > since).unwrap_or(next)
            }
            _ => self.resolve(now),
        }
    }
}

/// The part of the past that is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
}

impl Window {
    /// Resolves `--since` and `--until`.
    ///
    /// # Errors
    /// Nothing lies between them (64).
    pub fn new(since: Option<When>, until: Option<When>, now: &Zoned) -> Result<Window, Failure> {
        let since = since.map(|since| (since, since.resolve(now)));
        let until = until.map(|until| until.resolve_after(since, now));
        let since = since.map(|(_, since)| since);
        if let (Some(from), Some(to)) = (since, until)
            && from >= to
        {
            let shown = |time: Timestamp| {
                time.to_zoned(now.time_zone().clone()).strftime("%Y-%m-%d %H:%M:%S").to_string()
            };
            let (from, to) = (shown(from), shown(to));
            return Err(Failure::usage(format!(
                "--since {from} is not before --until {to}: nothing lies between them"
            )));
        }
        Ok(Window { since, until })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what is between these two at half past eight in Berlin, an hour ahead of UTC.
    fn between(since: &str, until: &str) -> String {
        between_at("2026-11-27T08:30:00+01:00", since, until)
    }

    /// Returns what is between these two at this time in Berlin.
    fn between_at(now: &str, since: &str, until: &str) -> String {
        let now: Zoned = format!("{now}[Europe/Berlin]").parse().expect("a time");
        let when = |text: &str| (!text.is_empty()).then(|| When::parse(text).expect(text));
        match Window::new(when(since), when(until), &now) {
            Ok(Window { since, until }) => {
                let shown = |time: Option<Timestamp>| time.map_or("-".to_owned(), |time| time.to_string());
                format!("{} {}", shown(since), shown(until))
            }
            Err(failure) => failure.message,
        }
    }

    #[test]
    fn times_are_read_in_every_form() {
        for (since, expected) in [
            ("12h", "2026-11-26T19:30:00Z -"),
            ("90", "2026-11-27T07:28:30Z -"),
            // No dates.
            ("3600", "2026-11-27T06:30:00Z -"),
            ("20266", "2026-11-27T01:52:14Z -"),
            ("20261399", "2026-04-06T19:20:01Z -"),
            ("2026s", "2026-11-27T06:56:14Z -"),
            ("22:00", "2026-11-26T21:00:00Z -"),
            ("08:30", "2026-11-27T07:30:00Z -"),
            ("08:30:01", "2026-11-26T07:30:01Z -"),
            ("2026-11-26", "2026-11-25T23:00:00Z -"),
            ("2026-11-26 22:00", "2026-11-26T21:00:00Z -"),
            (" 2026-11-26 22:00:30 ", "2026-11-26T21:00:30Z -"),
            ("2026-11-26T22:00", "2026-11-26T21:00:00Z -"),
            ("2026-11-26T22:00:00Z", "2026-11-26T22:00:00Z -"),
            ("2026-11-26T22:00:00.5-02:00", "2026-11-27T00:00:00.5Z -"),
            // Summer time.
            ("2026-07-01 12:00", "2026-07-01T10:00:00Z -"),
            // The clock skipped this one.
            ("2026-03-29 02:30", "2026-03-29T01:30:00Z -"),
            // In the future.
            ("2027-01-01", "2026-12-31T23:00:00Z -"),
        ] {
            assert_eq!(between(since, ""), expected, "{since}");
        }
        for bad in [
            "",
            "yesterday",
            "25:00",
            "22:60",
            "8h ago",
            "-1h",
            "2026-02-30",
            "2026-11-26 25:00",
            "26.11.2026",
            "2026-11",
            "2026",
            "1999",
            "20261126",
            "2026-11-26T22:00:00+01:00[Europe/Berlin]",
            "\u{1b}",
        ] {
            assert!(When::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_time_of_day_ends_after_one() {
        assert_eq!(between("22:00", "06:00"), "2026-11-26T21:00:00Z 2026-11-27T05:00:00Z");
        // What has not ended yet.
        assert_eq!(between("22:00", "09:00"), "2026-11-26T21:00:00Z 2026-11-27T08:00:00Z");
        assert_eq!(between("07:00", "08:00"), "2026-11-27T06:00:00Z 2026-11-27T07:00:00Z");
        assert_eq!(between("3d", "09:00"), "2026-11-24T07:30:00Z 2026-11-26T08:00:00Z");
        assert_eq!(between("", "06:00"), "- 2026-11-27T05:00:00Z");
    }

    /// On 2026-10-25 the hour from 02:00 to 03:00 came twice.
    #[test]
    fn of_a_time_that_the_clock_showed_twice_it_is_the_last_one() {
        let morning = "2026-10-25T08:30:00+01:00";
        assert_eq!(between_at(morning, "02:30", ""), "2026-10-25T01:30:00Z -");
        assert_eq!(between_at("2026-10-25T02:45:00+02:00", "02:30", ""), "2026-10-25T00:30:00Z -");
        assert_eq!(between_at("2026-10-25T02:15:00+01:00", "02:30", ""), "2026-10-25T00:30:00Z -");
        assert_eq!(between_at("2026-10-26T01:00:00+01:00", "02:30", ""), "2026-10-25T01:30:00Z -");
        // The first one after the beginning.
        assert_eq!(between_at(morning, "02:30", "02:45"), "2026-10-25T01:30:00Z 2026-10-25T01:45:00Z");
        assert_eq!(between_at(morning, "01:30", "02:45"), "2026-10-24T23:30:00Z 2026-10-25T00:45:00Z");
        let second = "2026-10-25T02:40:00+01:00";
        assert_eq!(between_at(second, "02:45", "02:30"), "2026-10-25T00:45:00Z 2026-10-25T01:30:00Z");
        assert_eq!(between_at(morning, "2026-10-25 02:30", ""), "2026-10-25T00:30:00Z -");
    }

    #[test]
    fn nothing_lies_before_the_beginning() {
        assert_eq!(
            between("1h", "2h"),
            "--since 2026-11-27 07:30:00 is not before --until 2026-11-27 06:30:00: nothing lies between them"
        );
        for (since, until) in [("1h", "1h"), ("22:00", "22:00"), ("2026-11-26", "2026-11-25")] {
            assert!(between(since, until).contains("is not before"), "{since} {until}");
        }
    }
}

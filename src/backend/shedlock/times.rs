//! The clock of a table of ShedLock, and the times that are written by it.

use std::time::Duration;

use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Timestamp, civil};

use super::Dialect;
use crate::backend::options::{Options, Value};
use crate::backend::url::UrlError;
use crate::clock::wall_micros;

/// Which clock the other programs write into the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The server's, in UTC (`usingDbTime()`).
    Server,
    /// That of each host, in this time zone (without `usingDbTime()`).
    Host(TimeZone),
}

/// What an option is missing for.
const CLOCKS: &str = "recipe=shedlock takes clock=db-utc, if the other programs use the clock of the database \
                      (usingDbTime()), or else clock=jvm-zone&zone=Area/City, the time zone of their JVM";

impl Clock {
    /// The values of `clock`; there is no default.
    pub const OPTION: Value = Value::Only(&["db-utc", "jvm-zone"], CLOCKS);

    /// Returns the clock that the options `clock` and `zone` name.
    ///
    /// # Errors
    /// One of them is missing, or there is no such time zone.
    pub fn of(options: &mut Options) -> Result<Clock, UrlError> {
        let clock = Clock::parse(options.given("clock"), options.given("zone"))?;
        if let Clock::Host(zone) = &clock {
            options.replace("zone", zone.iana_name().unwrap_or_default());
        }
        Ok(clock)
    }

    fn parse(clock: Option<&str>, zone: Option<&str>) -> Result<Clock, UrlError> {
        match (clock, zone) {
            (Some("db-utc"), None) => Ok(Clock::Server),
            (Some("jvm-zone"), Some(zone)) => TimeZone::get(zone).map(Clock::Host).map_err(|_| {
                UrlError::new(format!("unknown time zone '{zone}' (known: Area/City, such as Europe/Berlin)"))
                    .about("zone")
            }),
            (Some("db-utc"), Some(_)) => Err(UrlError::new("zone= is for clock=jvm-zone").about("zone")),
            (Some("jvm-zone"), None) => Err(UrlError::new(CLOCKS).about("zone")),
            _ => Err(UrlError::new(CLOCKS).about("clock")),
        }
    }

    /// Returns the expressions of the times that a statement needs, which has to be sent at once.
    pub(super) fn times(&self, dialect: Dialect, lease: Duration) -> Times {
        match self {
            Clock::Server => {
                let now = dialect.now().to_owned();
                // The end is rounded up, as the beginning is rounded down.
                let until = dialect.plus(&now, lease.as_millis().saturating_add(1));
                Times { free: now.clone(), now, until }
            }
            Clock::Host(zone) => {
                let micros = i64::try_from(wall_micros()).unwrap_or(i64::MAX);
                let local = Local::at(zone, Timestamp::from_microsecond(micros).unwrap_or_default(), lease);
                let [now, free, until] = [local.now, local.free, local.until].map(literal);
                Times { now, free, until }
            }
        }
    }
}

/// Times as expressions.
#[derive(Debug)]
pub(super) struct Times {
    pub(super) now: String,
    /// A lock is free if its `lock_until` is not after this.
    pub(super) free: String,
    /// When a lease ends that begins now.
    pub(super) until: String,
}

/// Times as the clocks on the wall show them. The hour that ends daylight saving time comes twice: a time in it that was
/// read is taken for the second one, and one that is written is late enough to be after all times until then. So no lock
/// seems to be free too early, but one may seem to be held for an hour longer.
#[derive(Debug, PartialEq, Eq)]
struct Local {
    now: civil::DateTime,
    free: civil::DateTime,
    until: civil::DateTime,
}

impl Local {
    fn at(zone: &TimeZone, at: Timestamp, lease: Duration) -> Local {
        let now = milliseconds(zone.to_datetime(at));
        let comes_again = matches!(zone.to_ambiguous_timestamp(now).offset(), AmbiguousOffset::Fold { before, .. }
            if before == zone.to_offset(at));
        let transition = zone.following(at).next().filter(|_| comes_again);
        // The hour begins with the time to which the clocks are set back.
        let free = match transition {
            Some(back) => zone.to_datetime(back.timestamp()).saturating_sub(SignedDuration::from_millis(1)),
            None => now,
        };
        // The end is rounded up, as the beginning is rounded down.
        let lease = SignedDuration::try_from(lease).unwrap_or(SignedDuration::MAX);
        let lease = lease.saturating_add(SignedDuration::from_millis(1));
        let end = milliseconds(zone.to_datetime(at.saturating_add(lease).unwrap_or(Timestamp::MAX)));
        Local { now, free, until: end.max(now.saturating_add(lease)) }
    }
}

fn milliseconds(time: civil::DateTime) -> civil::DateTime {
    time.with().microsecond(0).nanosecond(0).build().unwrap_or(time)
}

fn literal(time: civil::DateTime) -> String {
    format!("TIMESTAMP '{}'", time.strftime("%Y-%m-%d %H:%M:%S%.3f"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn berlin() -> TimeZone {
        TimeZone::get("Europe/Berlin").expect("it exists")
    }

    /// In UTC, and with a lease in seconds.
    fn times(at: &str, lease: u64) -> [String; 3] {
        let at: Timestamp = at.parse().expect("a time");
        let local = Local::at(&berlin(), at, Duration::from_secs(lease));
        [local.now, local.free, local.until].map(literal)
    }

    #[test]
    fn times_are_those_of_the_zone() {
        let expected = ["2026-07-01 14:00:00.123", "2026-07-01 14:00:00.123", "2026-07-01 14:00:30.124"];
        assert_eq!(
            times("2026-07-01T12:00:00.123456Z", 30),
            expected.map(|time| format!("TIMESTAMP '{time}'"))
        );
    }

    /// At 01:00 UTC the clocks are set back from 03:00 to 02:00.
    #[test]
    fn in_the_hour_that_comes_twice_no_lock_is_free_too_early() {
        let [_, free, until] = times("2026-10-25T00:59:50Z", 30);
        assert_eq!(free, "TIMESTAMP '2026-10-25 01:59:59.999'");
        assert_eq!(until, "TIMESTAMP '2026-10-25 03:00:20.001'");
        let [now, free, until] = times("2026-10-25T01:00:00Z", 30);
        assert_eq!((&now, now.as_str()), (&free, "TIMESTAMP '2026-10-25 02:00:00.000'"));
        assert_eq!(until, "TIMESTAMP '2026-10-25 02:00:30.001'");
    }

    #[test]
    fn in_the_night_without_an_hour_a_lease_ends_after_it() {
        let [now, free, until] = times("2026-03-29T00:59:50Z", 30);
        assert_eq!((&now, now.as_str()), (&free, "TIMESTAMP '2026-03-29 01:59:50.000'"));
        assert_eq!(until, "TIMESTAMP '2026-03-29 03:00:20.001'");
    }

    /// Around every change of two years: until the lease has ended, no clock shows that it has, neither to a dlock nor to
    /// a program that only compares.
    #[test]
    fn a_lease_never_seems_to_end_early() {
        for zone in ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "UTC"] {
            let zone = TimeZone::get(zone).expect("it exists");
            let begin: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
            for change in zone.following(begin).take(4) {
                for (minutes, lease) in (-150..150).step_by(7).flat_map(|at| [(at, 10), (at, 50), (at, 130)])
                {
                    let at = change.timestamp() + SignedDuration::from_mins(minutes);
                    let lease = Duration::from_secs(lease * 60);
                    let until = Local::at(&zone, at, lease).until;
                    for second in (0..lease.as_secs()).step_by(59) {
                        let then = at + SignedDuration::from_secs(i64::try_from(second).expect("small"));
                        let Local { now, free, .. } = Local::at(&zone, then, lease);
                        assert!(free <= now && now < until, "{zone:?} {at} {then}");
                    }
                }
            }
        }
    }

    /// What another program has written, which does not know of the hour that comes twice.
    #[test]
    fn a_foreign_lease_is_over_when_its_end_has_come_for_the_last_time() {
        let zone = berlin();
        let begin: Timestamp = "2026-10-24T23:00:00Z".parse().expect("a time");
        for (start, lease) in (0..150).step_by(5).flat_map(|at| [(at, 5), (at, 65), (at, 100)]) {
            let end = begin + SignedDuration::from_mins(start + lease);
            let written = zone.to_datetime(end);
            for minute in 0..start + lease {
                let free = Local::at(&zone, begin + SignedDuration::from_mins(minute), Duration::ZERO).free;
                assert!(minute < start || free < written, "{start} {lease} {minute}");
            }
        }
    }

    #[test]
    fn there_is_no_default_clock() {
        let refusal = |clock, zone| Clock::parse(clock, zone).expect_err("it is refused").to_string();
        assert_eq!(refusal(None, None), CLOCKS);
        assert_eq!(refusal(Some("jvm"), None), CLOCKS);
        assert_eq!(refusal(Some("jvm-zone"), None), CLOCKS);
        assert_eq!(refusal(Some("db-utc"), Some("UTC")), "zone= is for clock=jvm-zone");
        let unknown = "unknown time zone 'Europe/Bonn' (known: Area/City, such as Europe/Berlin)";
        assert_eq!(refusal(Some("jvm-zone"), Some("Europe/Bonn")), unknown);
        assert!(Clock::parse(Some("jvm-zone"), Some("../../etc/passwd")).is_err());
    }
}

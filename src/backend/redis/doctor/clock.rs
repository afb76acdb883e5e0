//! The check of the server's clock against that of this host.

use std::time::Duration;

use redis::{Value, from_redis_value_ref};

use crate::backend::StoreError;
use crate::backend::diagnosis::{Finding, short};
use crate::clock::{Moment, wall_micros};
use crate::duration::show;

/// The differences between the two clocks from which on a warning is given, and a problem.
pub const CLOCK_WARNING: Duration = Duration::from_secs(1);
const CLOCK_PROBLEM: Duration = Duration::from_secs(3600);

/// Returns the finding for a server whose clock is `offset` microseconds ahead of this host's.
pub(super) fn finding(offset: i128) -> Finding {
    let apart = Duration::from_micros(offset.unsigned_abs().try_into().unwrap_or(u64::MAX));
    let direction = if offset > 0 { "ahead of" } else { "behind" };
    let shown = if apart < CLOCK_WARNING { short(apart) } else { show(apart) };
    let found = format!("the server's clock is {shown} {direction} this host's");
    let remedy = "synchronize the clocks of both hosts by NTP";
    if apart < CLOCK_WARNING {
        return Finding::ok("clock", found);
    }
    let times = "times in status and history are the server's, and new fencing tokens start from its time";
    if apart < CLOCK_PROBLEM {
        return Finding::warning("clock", found, times, remedy);
    }
    // Leases end by the server's clock: `EXPIRE`, "Keys with an expire", redis.io.
    let consequence = match offset > 0 {
        true => {
            "when it is corrected, leases of dead holders last that much longer, and fencing tokens may not grow if the \
             server loses its keys"
        }
        false => {
            "when it is corrected, every lease ends at once: running commands are stopped, and others may start before that"
        }
    };
    Finding::problem("clock", found, format!("{consequence}; {times}"), remedy)
}

/// The server's clock at one time.
pub struct Reading {
    pub(super) took: Duration,
    /// In microseconds since 1970.
    pub server_time: u64,
    /// By how many microseconds it is ahead of this host's clock, assuming that it was read halfway between request and
    /// reply.
    pub offset: i128,
}

/// Reads the clock by a request for `TIME`. Returns `None` if the reply is not a time.
///
/// # Errors
/// Those of the request.
pub async fn read(
    request: impl Future<Output = Result<Value, StoreError>>,
) -> Result<Option<Reading>, StoreError> {
    let (start, before) = (Moment::now(), wall_micros());
    let reply = request.await?;
    let took = Moment::now() - start;
    let host_time = i128::from(before) + (took / 2).as_micros() as i128;
    let reading = |server_time| Reading { took, server_time, offset: i128::from(server_time) - host_time };
    Ok(time_of(&reply).map(reading))
}

/// Returns the time in the reply to `TIME`, in microseconds since 1970.
fn time_of(reply: &Value) -> Option<u64> {
    let (seconds, micros): (u64, u64) = from_redis_value_ref(reply).ok()?;
    seconds.checked_mul(1_000_000)?.checked_add(micros)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::diagnosis::Level;

    #[test]
    fn clocks_may_be_a_second_apart_and_not_an_hour() {
        for (micros, level, words) in [
            (120, Level::Ok, "0.12ms ahead of"),
            (-999_000, Level::Ok, "999ms behind"),
            (5_000_000, Level::Warning, "5s ahead of"),
            (-60_000_000, Level::Warning, "1m behind"),
            (7_200_000_000, Level::Problem, "2h ahead of"),
            (-7_200_000_000, Level::Problem, "2h behind"),
        ] {
            let finding = finding(micros);
            assert_eq!(finding.level, level, "{micros}");
            assert!(finding.found.contains(words), "{}", finding.found);
        }
    }

    #[test]
    fn a_time_that_cannot_be_is_not_read() {
        for (seconds, micros, time) in [
            ("1769824800", "123456", Some(1_769_824_800_123_456)),
            ("18446744073709", "551615", Some(u64::MAX)),
            ("18446744073709", "551616", None),
            ("18446744073710", "0", None),
            ("-1", "0", None),
            ("1", "x", None),
        ] {
            let parts = [seconds, micros].map(|part| Value::BulkString(part.into()));
            assert_eq!(time_of(&Value::Array(parts.into())), time, "{seconds} {micros}");
        }
    }
}

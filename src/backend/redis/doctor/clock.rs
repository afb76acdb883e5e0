//! The server's clock beside ours.

use std::time::Duration;

use redis::Value;

use super::super::answers::text;
use crate::backend::diagnosis::{Finding, short};
use crate::duration::show;

/// How far the clocks of two hosts may be apart before anybody cares; and before it is dangerous.
const CLOCK_WARNING: Duration = Duration::from_secs(1);
const CLOCK_PROBLEM: Duration = Duration::from_secs(3600);
/// What it means that the server's clock is so many microseconds ahead of ours.
pub(super) fn finding(offset: i128) -> Finding {
    let apart = Duration::from_micros(offset.unsigned_abs().try_into().unwrap_or(u64::MAX));
    let way = if offset > 0 { "ahead of" } else { "behind" };
    let shown = if apart < CLOCK_WARNING { short(apart) } else { show(apart) };
    let found = format!("the server's clock is {shown} {way} this host's");
    let remedy = "let both hosts keep their clocks by NTP";
    if apart < CLOCK_WARNING {
        return Finding::ok("clock", found);
    }
    let times = "times in status and history are the server's, and so is what new fencing tokens begin with";
    if apart < CLOCK_PROBLEM {
        return Finding::warning("clock", found, times, remedy);
    }
    // Leases end by the server's clock: `EXPIRE`, "Keys with an expire", redis.io.
    let consequence = match offset > 0 {
        true => {
            "when it is set right, leases of dead holders last longer by as much, and fencing tokens may not grow if the \
             server loses its keys"
        }
        false => {
            "when it is set right, every lease ends at once: running commands are stopped, and others may start before that"
        }
    };
    Finding::problem("clock", found, format!("{consequence}; {times}"), remedy)
}

/// Microseconds since 1970, as `TIME` answers.
pub(super) fn time_of(answer: &Value) -> Option<u64> {
    let Value::Array(parts) = answer else { return None };
    let part = |index: usize| text(parts.get(index))?.parse::<u64>().ok();
    part(0)?.checked_mul(1_000_000)?.checked_add(part(1)?)
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
}

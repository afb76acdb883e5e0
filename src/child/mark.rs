//! Points in time with which the start of any process can be compared.

use std::time::Duration;

use super::procfs::{self, Stat};
use crate::clock::Moment;

/// A point in time with which the start of any process can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// In clock ticks since boot.
    ticks: u64,
    /// The process that was created last.
    newest: Option<i32>,
}

/// The unit of the start time of a process (`sysconf(3)`, `_SC_CLK_TCK`, which is 100 on Linux).
const TICK: Duration = Duration::from_millis(10);

/// Two pids that were assigned within some ticks are closer than this, unless the numbers started over between them: the
/// kernel uses at least 32,768.
const FAR: u32 = 1 << 14;

impl Mark {
    /// Returns the present moment.
    pub fn now() -> Mark {
        let ticks = (Moment::now().since_boot().as_nanos() / TICK.as_nanos()) as u64;
        Mark { ticks, newest: procfs::newest().filter(|newest| *newest > 0) }
    }

    /// Returns the earlier one of two moments.
    pub fn earlier(self, other: Mark) -> Mark {
        let other_is_earlier = match (other.newest, self.newest) {
            (Some(pid), Some(newest)) if other.ticks.abs_diff(self.ticks) <= 1 => is_up_to(pid, newest),
            _ => other.ticks <= self.ticks,
        };
        if other_is_earlier { other } else { self }
    }

    /// Returns whether the process was started before this moment. Pids are assigned in ascending order, which decides where
    /// the start time is too coarse.
    pub fn is_after_start(&self, pid: i32, stat: &Stat) -> bool {
        match self.newest {
            Some(newest) if stat.start.abs_diff(self.ticks) <= 1 => is_up_to(pid, newest),
            _ => stat.start <= self.ticks,
        }
    }
}

/// Returns whether a pid was assigned before another one, or is that, if both were assigned within some ticks.
fn is_up_to(pid: i32, other: i32) -> bool {
    (pid <= other) == (pid.abs_diff(other) < FAR)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_stat() -> Stat {
        Stat::of(std::process::id() as i32).expect("a process that runs")
    }

    fn started_at(start: u64) -> Stat {
        let mut stat = own_stat();
        stat.start = start;
        stat
    }

    #[test]
    fn pids_decide_where_ticks_are_too_coarse() {
        let mark = Mark { ticks: 500, newest: Some(7000) };
        for (pid, start, is_after) in [
            (7000, 500, true),
            (7001, 500, false),
            (6000, 501, true),
            (7001, 499, false),
            (9000, 498, true),
            (6000, 502, false),
            // The numbers started over between the two.
            (32_000, 500, true),
        ] {
            assert_eq!(mark.is_after_start(pid, &started_at(start)), is_after, "{pid} at {start}");
        }
        let mark = Mark { ticks: 500, newest: Some(32_000) };
        assert!(!mark.is_after_start(300, &started_at(500)), "the numbers started over");
        let mark = Mark { ticks: 500, newest: None };
        assert!(mark.is_after_start(9000, &started_at(500)) && !mark.is_after_start(9000, &started_at(501)));
    }

    #[test]
    fn the_earlier_moment_is_found_within_a_tick() {
        let at = |ticks, newest| Mark { ticks, newest };
        for (earlier, later) in [
            (at(500, Some(7000)), at(500, Some(7001))),
            (at(500, Some(7000)), at(501, Some(7001))),
            (at(500, Some(32_700)), at(500, Some(310))),
            (at(500, Some(9000)), at(502, Some(7000))),
            (at(500, None), at(501, Some(7000))),
        ] {
            assert_eq!((earlier.earlier(later), later.earlier(earlier)), (earlier, earlier));
        }
    }

    #[test]
    fn this_process_has_started() {
        assert!(Mark::now().is_after_start(std::process::id() as i32, &own_stat()));
    }
}

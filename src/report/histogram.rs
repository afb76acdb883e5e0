//! A histogram of durations, as in Prometheus: each bound counts the observations that are not longer.

use std::time::Duration;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// The number of observations that do not exceed each of [`RENEWAL_BOUNDS`].
    buckets: [u64; RENEWAL_BOUNDS.len()],
    sum: f64,
    count: u64,
}

/// The upper bounds of the buckets, in seconds.
pub(super) const RENEWAL_BOUNDS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

impl Histogram {
    /// Adds an observation.
    pub fn observe(&mut self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        for (bound, count) in RENEWAL_BOUNDS.iter().zip(&mut self.buckets) {
            *count += u64::from(seconds <= *bound);
        }
        self.sum += seconds;
        self.count += 1;
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn sum(&self) -> f64 {
        self.sum
    }

    /// Returns the number of observations that certainly do not exceed this bound, which may be that of a file of
    /// another version.
    pub(super) fn up_to(&self, bound: f64) -> u64 {
        if bound == f64::INFINITY {
            return self.count;
        }
        let below = RENEWAL_BOUNDS.iter().zip(&self.buckets).take_while(|(own, _)| **own <= bound);
        below.last().map_or(0, |(_, count)| *count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_another_version_count_only_certain_values() {
        let mut histogram = Histogram::default();
        for micros in [1_000, 1_001, 80_000, 9_000_000] {
            histogram.observe(Duration::from_micros(micros));
        }
        for (bound, count) in [(0.0005, 0), (0.001, 1), (0.002, 1), (0.0025, 2), (0.09, 2), (60.0, 3)] {
            assert_eq!(histogram.up_to(bound), count, "{bound}");
        }
        assert_eq!(histogram.up_to(f64::INFINITY), 4);
    }
}

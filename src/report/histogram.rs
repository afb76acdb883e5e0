//! A histogram of durations, as in Prometheus: each bound counts the observations that are not longer.

use std::time::Duration;

/// A histogram of durations.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// Upper bounds in seconds, ascending, each with the number of observations that do not exceed it.
    pub(super) buckets: Vec<(f64, u64)>,
    /// The sum of all observations, in seconds.
    pub(super) sum: f64,
    /// The number of observations.
    pub(super) count: u64,
}

/// The bounds of `dlock_wait_seconds`.
pub(super) const WAIT_BOUNDS: &[f64] = &[0.01, 0.1, 1.0, 5.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0];
/// The bounds of `dlock_hold_seconds`.
pub(super) const HOLD_BOUNDS: &[f64] =
    &[0.1, 1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 43200.0, 86400.0];
/// The bounds of `dlock_renewal_seconds`.
pub(super) const RENEWAL_BOUNDS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

impl Histogram {
    /// Returns an empty histogram.
    pub(super) fn new(bounds: &[f64]) -> Histogram {
        Histogram { buckets: bounds.iter().map(|bound| (*bound, 0)).collect(), sum: 0.0, count: 0 }
    }

    /// Returns an empty histogram for the latencies of renewals.
    pub fn of_renewals() -> Histogram {
        Histogram::new(RENEWAL_BOUNDS)
    }

    /// Adds an observation.
    pub fn observe(&mut self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        for (bound, count) in &mut self.buckets {
            *count += u64::from(seconds <= *bound);
        }
        self.sum += seconds;
        self.count += 1;
    }

    /// Returns the number of observations.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Adds all observations of another histogram. If its bounds differ, as in a file of another version,
    /// each bound of this histogram gets the observations that certainly do not exceed it.
    pub(super) fn add(&mut self, other: &Histogram) {
        for (bound, count) in &mut self.buckets {
            let below = other.buckets.iter().take_while(|(theirs, _)| *theirs <= *bound);
            *count += below.last().map_or(0, |(_, count)| *count);
        }
        self.sum += other.sum;
        self.count += other.count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_counts_values_up_to_it() {
        let mut histogram = Histogram::new(&[0.1, 1.0]);
        for ms in [100, 101, 1_000, 5_000] {
            histogram.observe(Duration::from_millis(ms));
        }
        assert_eq!((histogram.buckets, histogram.count), (vec![(0.1, 1), (1.0, 3)], 4));
        assert!((histogram.sum - 6.201).abs() < 1e-9);
    }

    #[test]
    fn bounds_of_another_version_count_only_certain_values() {
        let mut ours = Histogram::new(&[0.1, 1.0]);
        let mut theirs = Histogram::new(&[0.05, 0.5, 2.0]);
        for ms in [10, 80, 300, 1_500] {
            theirs.observe(Duration::from_millis(ms));
        }
        ours.add(&theirs);
        assert_eq!((ours.buckets, ours.count), (vec![(0.1, 1), (1.0, 3)], 4));
    }
}

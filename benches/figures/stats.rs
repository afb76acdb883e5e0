//! Order statistics of durations, and their output.

use std::time::Duration;

/// A set of measurements, sorted.
pub struct Sample(Vec<Duration>);

impl Sample {
    pub fn new(mut values: Vec<Duration>) -> Self {
        values.sort_unstable();
        Sample(values)
    }

    /// The percentile by the nearest-rank method.
    pub fn percentile(&self, percent: f64) -> Duration {
        let rank = (percent / 100.0 * self.0.len() as f64).ceil() as usize;
        self.0[rank.clamp(1, self.0.len()) - 1]
    }

    pub fn p50(&self) -> Duration {
        self.percentile(50.0)
    }

    pub fn p99(&self) -> Duration {
        self.percentile(99.0)
    }

    pub fn max(&self) -> Duration {
        self.percentile(100.0)
    }
}

/// The median of at least one ratio.
pub fn median(ratios: impl Iterator<Item = f64>) -> f64 {
    let mut ratios: Vec<f64> = ratios.collect();
    ratios.sort_by(f64::total_cmp);
    ratios[ratios.len() / 2]
}

pub fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// A small pseudo-random number generator (xorshift64) for the order of a round and the length of pauses.
pub struct Rng(u64);

impl Rng {
    pub fn new() -> Self {
        Rng(0x9e37_79b9_7f4a_7c15)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit.max(1)
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

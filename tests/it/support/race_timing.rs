//! Hits the moment at which either side of a race may win.

use std::time::Duration;

/// How much later than planned an event happens, adjusted after each outcome, because the moment depends on the store and
/// on how busy the machine is.
pub struct RaceTiming {
    /// In µs.
    offset: i64,
    step: i64,
}

impl RaceTiming {
    /// Begins without an offset; each outcome changes it by `step` µs.
    pub fn new(step: i64) -> Self {
        Self { offset: 0, step }
    }

    /// Records an outcome: the event was early enough, and is to be later next time, or the reverse.
    pub fn record(&mut self, was_early: bool) {
        self.offset += if was_early { self.step } else { -self.step };
    }

    /// Returns the time of an event planned after `planned` µs.
    pub fn moment(&self, planned: u64, jitter: i64) -> Duration {
        Duration::from_micros(planned.saturating_add_signed(self.offset + jitter))
    }
}

//! Faults of the store: one at a time, with pauses.

use super::fault_plan::Rng;
use std::time::{Duration, Instant};

/// A store that can be disturbed.
pub trait FaultyStore {
    /// Disturbs it in a random way.
    fn disturb(&mut self, draw: &mut Rng) -> String;

    /// Ends the disturbance.
    fn heal(&mut self);

    /// Whether entries of killed clients expire; otherwise the next dlock removes them.
    fn has_leases(&self) -> bool;

    /// The remains of locks without holders and waiters: nothing.
    fn traces(&self) -> Vec<String>;
}

/// When the store is disturbed, and for how long.
pub struct StoreFaults {
    draw: Rng,
    is_bad: bool,
    /// When that changes.
    next: Instant,
    /// The faults so far.
    pub faults: Vec<String>,
}

impl StoreFaults {
    /// Starts without a fault.
    pub fn from(seed: u64) -> Self {
        Self { draw: Rng::from(seed), is_bad: false, next: Instant::now(), faults: Vec::new() }
    }

    /// Starts or ends the fault that is due.
    pub fn pass(&mut self, faulty_store: &mut dyn FaultyStore) {
        if Instant::now() < self.next {
            return;
        }
        self.is_bad = !self.is_bad;
        let span = if self.is_bad {
            self.faults.push(faulty_store.disturb(&mut self.draw));
            // From less than a round trip with a pause to longer than any lease.
            if self.draw.percent(50) { self.draw.millis(5, 500) } else { self.draw.millis(500, 4000) }
        } else {
            faulty_store.heal();
            self.draw.millis(100, 2500)
        };
        self.next = Instant::now() + span;
    }

    /// Ends it.
    pub fn clear(&mut self, faulty_store: &mut dyn FaultyStore) {
        if std::mem::take(&mut self.is_bad) {
            faulty_store.heal();
        }
        self.next = Instant::now() + Duration::from_secs(3600);
    }
}

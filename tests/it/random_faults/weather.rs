//! Faults of the store: one at a time, and calm in between.

use super::draw::Draw;
use std::time::{Duration, Instant};

/// A store that can be disturbed.
pub trait Stage {
    /// Disturbs it in a way that is drawn by lot.
    fn disturb(&mut self, draw: &mut Draw) -> String;

    /// Takes the disturbance back.
    fn heal(&mut self);

    /// Whether entries of those who were killed end by themselves; otherwise the next dlock removes them.
    fn has_leases(&self) -> bool;

    /// What is left of locks that nobody holds or waits for: nothing.
    fn traces(&self) -> Vec<String>;
}

/// When the store is disturbed, and for how long.
pub struct Weather {
    draw: Draw,
    is_bad: bool,
    /// When that changes.
    next: Instant,
    /// What has happened so far.
    pub faults: Vec<String>,
}

impl Weather {
    /// Begins calm.
    pub fn from(seed: u64) -> Self {
        Self { draw: Draw::from(seed), is_bad: false, next: Instant::now(), faults: Vec::new() }
    }

    /// Lets happen what is due.
    pub fn pass(&mut self, stage: &mut dyn Stage) {
        if Instant::now() < self.next {
            return;
        }
        self.is_bad = !self.is_bad;
        let span = if self.is_bad {
            self.faults.push(stage.disturb(&mut self.draw));
            // From less than a round trip with a pause to longer than any lease.
            if self.draw.percent(50) { self.draw.millis(5, 500) } else { self.draw.millis(500, 4000) }
        } else {
            stage.heal();
            self.draw.millis(100, 2500)
        };
        self.next = Instant::now() + span;
    }

    /// Ends it.
    pub fn clear(&mut self, stage: &mut dyn Stage) {
        if std::mem::take(&mut self.is_bad) {
            stage.heal();
        }
        self.next = Instant::now() + Duration::from_secs(3600);
    }
}

//! The moments until which the command may live.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Moment;

/// The moments until which the lease allows the tree to live. All of them come before the earliest end of the lease at
/// the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadlines {
    /// However large the tree is, SIGTERM does not come before this moment: a renewal must have its chance.
    pub earliest: Moment,
    /// When SIGTERM is due, unless a renewal is acknowledged before.
    pub term: Moment,
    /// When SIGKILL is due.
    pub kill: Moment,
    /// When the last process of the tree must be dead.
    pub dead: Moment,
}

impl Deadlines {
    /// Returns when SIGTERM is due for a tree that needs this much longer than others to die.
    pub(super) fn term_for(&self, reserve: Duration) -> Moment {
        self.term.saturating_sub(reserve).max(self.earliest).min(self.term)
    }

    /// Returns when SIGKILL is due for such a tree.
    pub(super) fn kill_for(&self, reserve: Duration) -> Moment {
        self.kill.saturating_sub(reserve).max(self.term_for(reserve)).min(self.kill)
    }

    /// Returns when another process sends SIGKILL to such a tree, because the guard has not: the guard had a quarter of the time
    /// that the tree has to die, and the rest is left for that.
    pub(super) fn takeover_for(&self, reserve: Duration) -> Moment {
        self.kill_for(reserve) + (self.dead - self.kill) / 4
    }

    /// Returns from when on, and how often, the tree is to be measured.
    pub(super) fn measure_from(&self) -> (Moment, Duration) {
        let interval = (self.dead - self.earliest) / 10;
        (self.earliest.saturating_sub(interval), interval)
    }
}

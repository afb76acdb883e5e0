//! The ledgers of a client that may not have the table.

use std::collections::HashMap;

use super::row::{micros, now};
use crate::backend::ledger::Ledger;
use crate::backend::ledger::document::Seen;
use crate::clock::{Moment, wall_micros};
use crate::lock::LockName;

/// The ledgers of a client that may not have the table, which no other client can see: a lock consists of its gate alone.
pub struct OwnLedgers {
    ledgers: HashMap<LockName, Ledger>,
    /// The time, in microseconds since 1970, at a moment: no change of the host's clock ends a lease.
    start: (u64, Moment),
}

impl Default for OwnLedgers {
    fn default() -> OwnLedgers {
        OwnLedgers { ledgers: HashMap::new(), start: (wall_micros(), Moment::now()) }
    }
}

impl OwnLedgers {
    /// Returns a ledger as [`swap`](OwnLedgers::swap) has stored it.
    pub fn load(&self, name: &LockName) -> Seen<u64> {
        let (wall, start) = self.start;
        let ledger = self.ledgers.get(name).cloned().unwrap_or_default();
        let sent = Moment::now();
        Seen { ledger, version: 0, now: now(wall + micros(sent - start)), sent, occupants: None }
    }

    /// Stores a ledger.
    pub fn swap(&mut self, name: &LockName, ledger: &Ledger) {
        self.ledgers.insert(name.clone(), ledger.clone());
    }
}

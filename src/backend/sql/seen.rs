//! The ledgers that a client knows without asking the server.

use std::collections::HashMap;

use super::row::{micros, now};
use crate::backend::ledger::document::Seen;
use crate::backend::ledger::{Ledger, Now};
use crate::clock::{Moment, wall_micros};
use crate::lock::LockName;

/// The ledger that a connection has read or stored last, of one lock.
#[derive(Debug, Default)]
pub struct LastSeen(Option<(LockName, Seen<u64>, Moment)>);

impl LastSeen {
    /// Forgets the ledger: it may change.
    pub fn take(&mut self) -> LastSeen {
        LastSeen(self.0.take())
    }

    /// Keeps a ledger that was read by a request that was sent at this moment.
    pub fn read(&mut self, name: &LockName, seen: &Seen<u64>, sent: Moment) {
        self.0 = Some((name.clone(), seen.clone(), sent));
    }

    /// Keeps a ledger that has been stored in place of the one that was read.
    pub fn stored(&mut self, before: LastSeen, ledger: &Ledger, version: u64) {
        self.0 = before
            .0
            .map(|(name, seen, sent)| (name, Seen { ledger: ledger.clone(), version, now: seen.now }, sent));
    }

    /// Returns the ledger of this lock as it was read or stored, if it is known.
    pub fn ledger(&self, name: &LockName) -> Option<&Ledger> {
        self.0.as_ref().filter(|(of, ..)| of == name).map(|(_, seen, _)| &seen.ledger)
    }

    /// Returns the time of the ledger that is known.
    pub fn now(&self) -> Option<Now> {
        let (_, seen, sent) = self.0.as_ref()?;
        Some(now(seen.now.wall + micros(Moment::now() - *sent)))
    }

    /// Returns the ledger of this lock, if it is known, with the time as the server's clock shows it now or will show it
    /// within the time that a request takes.
    pub fn recall(&self, name: &LockName) -> Option<Seen<u64>> {
        let (_, seen, _) = self.0.as_ref().filter(|(of, ..)| of == name)?;
        Some(Seen { now: self.now()?, ..seen.clone() })
    }
}

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
        Seen { ledger, version: 0, now: now(wall + micros(Moment::now() - start)) }
    }

    /// Stores a ledger.
    pub fn swap(&mut self, name: &LockName, ledger: &Ledger) {
        self.ledgers.insert(name.clone(), ledger.clone());
    }
}

//! Which outcomes a store keeps.

use crate::lock::{NotedRecord, Record};

/// The number of outcomes that are kept, of each kind.
const MAX_OUTCOMES: usize = 20;

/// Counts the outcomes of the runs that held the lock, and of those that did not acquire it: many runs of one kind must
/// not displace the last one of the other.
#[derive(Debug, Default)]
pub struct Quota {
    held: usize,
    missed: usize,
}

impl Quota {
    /// Counts an outcome, from the latest to the earliest, and returns whether it is kept.
    pub fn has_room_for(&mut self, record: &Record) -> bool {
        let count = if record.has_held() { &mut self.held } else { &mut self.missed };
        *count += 1;
        *count <= MAX_OUTCOMES
    }
}

/// Adds the latest outcome to those in a ledger, the latest last.
pub fn append(outcomes: &mut Vec<NotedRecord>, at_ms: u64, record: Record) {
    outcomes.push((at_ms, record));
    let mut quota = Quota::default();
    let mut kept: Vec<bool> = outcomes.iter().rev().map(|(_, record)| quota.has_room_for(record)).collect();
    outcomes.retain(|_| kept.pop().unwrap_or_default());
}

//! The history of a lock: the records of its last runs. Which of them a store keeps.

use crate::lock::{NotedRecord, Record};

/// The number of records that are kept, of each kind.
const MAX_RECORDS: usize = 20;

/// Counts the records of the runs that held the lock, and of those that did not acquire it: many runs of one kind must
/// not displace the last one of the other.
#[derive(Debug, Default)]
pub struct Quota {
    held: usize,
    not_acquired: usize,
}

impl Quota {
    /// Counts a record, from the latest to the earliest, and returns whether it is kept.
    pub fn has_room_for(&mut self, record: &Record) -> bool {
        let count = if record.has_held() { &mut self.held } else { &mut self.not_acquired };
        *count += 1;
        *count <= MAX_RECORDS
    }
}

/// Adds the latest record to a history, the latest last.
pub fn append(history: &mut Vec<NotedRecord>, at_ms: u64, record: Record) {
    history.push((at_ms, record));
    let mut quota = Quota::default();
    let mut kept: Vec<bool> = history.iter().rev().map(|(_, record)| quota.has_room_for(record)).collect();
    history.retain(|_| kept.pop().unwrap_or_default());
}

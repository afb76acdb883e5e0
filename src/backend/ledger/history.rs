//! The history of a lock: the records of its last runs. Which of them a store keeps.

use crate::lock::record::RecordKind;
use crate::lock::{NotedRecord, Record};

/// The number of records that are kept, of each kind.
const MAX_RECORDS: usize = 20;

/// Counts the records of each kind.
#[derive(Debug, Default)]
pub struct Quota {
    succeeded: usize,
    held: usize,
    missed: usize,
}

impl Quota {
    /// Counts a record, from the latest to the earliest, and returns whether it is kept.
    pub fn has_room_for(&mut self, record: &Record) -> bool {
        let count = match record.kind() {
            RecordKind::Succeeded => &mut self.succeeded,
            RecordKind::Held => &mut self.held,
            RecordKind::Missed => &mut self.missed,
        };
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

//! The history of a lock: an item besides that of the lock, with a line for each record.

use crate::backend::ledger::history;
use crate::lock::NotedRecord;

/// How long a history is kept after its last record, in seconds.
const MONTH: u64 = 30 * 24 * 3600;
/// The size of a history, in bytes, from which on the records that need not be kept are removed.
pub(super) const LONG: u64 = 64 << 10;

/// Returns the records that are to be kept, the latest last.
pub(super) fn kept(item: &[u8]) -> Vec<NotedRecord> {
    let mut kept = Vec::new();
    for line in item.split(|byte| *byte == b'\n') {
        if let Ok((at_ms, record)) = serde_json::from_slice(line) {
            history::append(&mut kept, at_ms, record);
        }
    }
    kept
}

fn lines(records: &[NotedRecord]) -> String {
    let line = |noted| serde_json::to_string(noted).expect("texts and numbers are JSON") + "\n";
    records.iter().map(line).collect()
}

/// Returns the requests that add records, the last one of which returns the size of the history.
pub(super) fn append(key: &str, records: &[NotedRecord]) -> (String, usize) {
    let added = lines(records);
    // There is no request that appends to an item which may not exist.
    let add = format!("ms {key} 0 ME T{MONTH}\r\n\r\nms {key} {} MA\r\n{added}\r\n", added.len());
    (format!("{add}mg {key} s T{MONTH}\r\n"), 3)
}

/// Returns the request that replaces a history with this CAS value by the records that are to be kept.
pub(super) fn shorten(key: &str, cas: u64, item: &[u8]) -> String {
    let kept = lines(&kept(item));
    format!("ms {key} {} C{cas} T{MONTH}\r\n{kept}\r\n", kept.len())
}

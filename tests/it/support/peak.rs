//! The memory of a process.

use super::process::{descendants, status_field};

/// The memory that a hostile server may cost above that of one that does no harm, in KiB.
pub const ALLOWANCE: u64 = 16 * 1024;

/// The largest resident set so far of one of dlock's processes in KiB; 0 when it has ended, and while it is still a copy of
/// this process.
pub fn peak(pid: i32) -> u64 {
    let name = status_field(pid, "Name").unwrap_or_default();
    if !name.starts_with("dlock") && !name.starts_with("lock-") {
        return 0;
    }
    let peak = |text: String| text.split(' ').next()?.parse().ok();
    status_field(pid, "VmHWM").and_then(peak).unwrap_or(0)
}

/// The largest of those of a run so far, which has this process and its descendants.
pub fn peaks(run: i32) -> u64 {
    let tree = descendants(run).into_iter().map(|stat| stat.pid);
    tree.chain([run]).map(peak).max().unwrap_or(0)
}

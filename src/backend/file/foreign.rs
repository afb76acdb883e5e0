//! Finds the foreign programs that hold a lock file, in the kernel's list of locks. The check must not disturb them:
//! trying the lock would make another program's `flock -n` fail in that moment.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::sys::stat::{major, minor};

use crate::lock::{Holder, Mode};

/// Returns the holder of the lock on the file, if the kernel shows one: not without `/proc`, nor for processes in other
/// PID namespaces.
pub(super) fn holder_of(path: &Path) -> Option<(Mode, Holder)> {
    let file = fs::symlink_metadata(path).ok()?;
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let identity = (major(file.dev()), minor(file.dev()), file.ino());
    let Lock { mode, pid, .. } = locks.lines().filter_map(parse).find(|lock| lock.file == identity)?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let hint = match name.trim() {
        "" => format!("process {pid}"),
        name => format!("process {pid}, {name}"),
    };
    Some((mode, Holder { hint: Some(hint), ..Holder::default() }))
}

#[derive(Debug, PartialEq, Eq)]
struct Lock {
    mode: Mode,
    pid: i32,
    /// Major and minor number of the device, and the inode.
    file: (u64, u64, u64),
}

/// Parses a line such as `1: FLOCK  ADVISORY  WRITE 708 08:01:131 0 EOF` (`proc_locks(5)`); that of a waiter has `->`
/// after its number.
fn parse(line: &str) -> Option<Lock> {
    let mut words = line.split_whitespace().skip(1);
    if words.next()? != "FLOCK" {
        return None;
    }
    let mode = match words.nth(1)? {
        "WRITE" => Mode::Exclusive,
        "READ" => Mode::Shared,
        _ => return None,
    };
    let pid = words.next()?.parse().ok()?;
    let mut file = words.next()?.split(':');
    let mut hex = || u64::from_str_radix(file.next()?, 16).ok();
    let (major, minor) = (hex()?, hex()?);
    Some(Lock { mode, pid, file: (major, minor, file.next()?.parse().ok()?) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_list_is_read() {
        let lock = Lock { mode: Mode::Exclusive, pid: 708, file: (0xfe, 0x1, 131) };
        assert_eq!(parse("1: FLOCK  ADVISORY  WRITE 708 fe:01:131 0 EOF"), Some(lock));
        for other in [
            "1: -> FLOCK  ADVISORY  WRITE 708 fe:01:131 0 EOF",
            "2: OFDLCK ADVISORY  WRITE -1 fe:00:7 0 0",
            "",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}

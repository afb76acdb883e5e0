//! The sidecar file beside a lock file: one line of JSON of a known format, rewritten in place under a lock.
//!
//! A writer may be killed at any moment, or find the disk full. Content that fits into one page is written with one
//! call, so that the file has either the old line or the new one (`write(2)` is not interrupted within a page). Larger
//! content is first written further back, where it overwrites nothing valid; then the first line is set to point to it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::lock_file::{open_existing, open_or_create};
use super::presence::{lock_content, unlock_content};
use crate::backend::ledger::{Ledger, Unreadable};
use crate::clock::Moment;

/// The limit of the content: it is read and written as a whole, with the file locked.
const MAX_CONTENT: u64 = 1 << 20;
/// The part of it that waiters leave to holders: the entry of a holder is longer.
const FOR_HOLDERS: usize = 128 << 10;
/// The limit of the content's offset in its file.
const MAX_OFFSET: u64 = 1 << 40;
/// What is written atomically.
const PAGE: usize = 4096;
/// How long another dlock may keep the content locked: each use takes a few system calls, unless its process was
/// stopped in the middle, which must not block this one.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// The first line of a sidecar whose content is further back. Of any other one, only the format is read: an error would take
/// longer than the rest of it, because its position in the text is counted.
#[derive(Debug, Serialize, Deserialize)]
struct Pointer {
    format: u32,
    at: Option<u64>,
    length: Option<u64>,
}

/// An open sidecar file with its content locked until it is dropped.
pub(super) struct Sidecar {
    file: File,
    /// The range of the content in the file, if it is not the first line.
    large_content: Option<(u64, u64)>,
    /// The number of waiters that were recorded.
    waiters: usize,
}

/// The content is not in a format that this dlock knows.
fn unreadable(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

impl Sidecar {
    /// Opens the file, or creates it, and waits for its lock.
    pub(super) fn open(path: &Path) -> io::Result<(Sidecar, Ledger)> {
        Sidecar::lock(open(path)?, PATIENCE)
    }

    /// Opens the file if it exists, and waits for its lock, up to this long.
    pub(super) fn open_existing(path: &Path, patience: Duration) -> io::Result<Option<(Sidecar, Ledger)>> {
        match open_existing(path, OpenOptions::new().read(true).write(true)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            file => Sidecar::lock(file?, patience).map(Some),
        }
    }

    fn lock(file: File, patience: Duration) -> io::Result<(Sidecar, Ledger)> {
        lock(&file, patience)?;
        let mut sidecar = Sidecar { file, large_content: None, waiters: 0 };
        let ledger = sidecar.read()?;
        sidecar.waiters = ledger.waiters.len();
        Ok((sidecar, ledger))
    }

    /// Returns the descriptor, for locks of single bytes.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Returns whether dead waiters are to be removed before another one joins.
    pub(super) fn is_nearly_full(&self) -> bool {
        self.large_content.is_some_and(|(from, to)| to - from > MAX_CONTENT - 2 * FOR_HOLDERS as u64)
    }

    fn read(&mut self) -> io::Result<Ledger> {
        let page = self.read_at(0, PAGE as u64)?;
        let line = page.split(|byte| *byte == b'\n').next().unwrap_or_default();
        if line.iter().all(|byte| *byte == 0 || byte.is_ascii_whitespace()) {
            return Ok(Ledger::default());
        }
        let Ok(Pointer { format, at: Some(at), length: Some(length) }) = serde_json::from_slice(line) else {
            return Ledger::parse(line).map_err(unreadable);
        };
        Ledger::check_format(format).map_err(unreadable)?;
        if at < PAGE as u64 || at > MAX_OFFSET {
            return Err(unreadable(Unreadable::Damaged));
        }
        if length > MAX_CONTENT {
            let limit = MAX_CONTENT >> 10;
            return Err(unreadable(format!("larger than dlock writes it ({limit} KiB)")));
        }
        self.large_content = Some((at, at + length));
        Ledger::parse(&self.read_at(at, length)?).map_err(unreadable)
    }

    /// Reads this many bytes, or fewer at the end of the file.
    fn read_at(&self, mut at: u64, length: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length as usize];
        let mut filled = 0;
        while filled < bytes.len() {
            match self.file.read_at(&mut bytes[filled..], at)? {
                0 => break,
                count => {
                    filled += count;
                    at += count as u64;
                }
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    /// Writes the content. A reader sees the old content or the new one, and the file is never truncated.
    pub(super) fn write(&mut self, ledger: &Ledger) -> io::Result<()> {
        let mut text = serde_json::to_vec(ledger)?;
        text.push(b'\n');
        let has_new_waiter = ledger.waiters.len() > self.waiters;
        let limit = MAX_CONTENT as usize - if has_new_waiter { FOR_HOLDERS } else { 0 };
        if text.len() > limit {
            return Err(io::Error::other("no space is left for another waiter or holder"));
        }
        let mut large_content = None;
        if text.len() > PAGE {
            let length = text.len() as u64;
            let first = PAGE as u64;
            // Do not overwrite the valid content.
            let at = match self.large_content {
                Some((from, to)) if first + length > from => to.next_multiple_of(first),
                _ => first,
            };
            self.file.write_all_at(&text, at)?;
            large_content = Some((at, at + length));
            let pointer = Pointer { format: Ledger::FORMAT, at: Some(at), length: Some(length) };
            text = serde_json::to_vec(&pointer)?;
            text.push(b'\n');
        }
        if self.file.metadata()?.len() < PAGE as u64 {
            // Reserves the disk space of one page for good.
            text.resize(PAGE, b' ');
        }
        self.file.write_all_at(&text, 0)?;
        self.large_content = large_content;
        Ok(())
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        unlock_content(&self.file);
    }
}

/// Opens a sidecar file, or creates it.
pub(super) fn open(path: &Path) -> io::Result<File> {
    open_or_create(path, OpenOptions::new().read(true).write(true))
}

fn lock(file: &File, patience: Duration) -> io::Result<()> {
    let begin = Moment::now();
    let mut pause = Duration::from_micros(100);
    while !lock_content(file)? {
        if Moment::now() - begin >= patience {
            let why = if patience < PATIENCE { "is locked" } else { "has been locked for a second" };
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("it {why} by another dlock")));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(2));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::ledger::WaiterEntry;
    use crate::lock::{Identity, Mode};

    fn content(waiters: u64) -> Ledger {
        let waiter = |ticket| WaiterEntry {
            ticket,
            token: String::new(),
            mode: Mode::Exclusive,
            since: 0,
            called: None,
            lease_ends: None,
            identity: Identity::default(),
        };
        let mut ledger = Ledger::default();
        ledger.fencing_token = 7;
        ledger.ticket = waiters;
        ledger.waiters = (0..waiters).map(waiter).collect();
        ledger
    }

    #[test]
    fn content_of_any_length_is_read_back() {
        let path = std::env::temp_dir().join(format!("dlock-sidecar-{}", std::process::id()));
        for waiters in [0, 1, 100, 101, 30, 3, 500, 40, 41, 0, 1000, 1] {
            let (mut sidecar, _) = Sidecar::open(&path).expect("a sidecar");
            sidecar.write(&content(waiters)).expect("room on the disk");
            drop(sidecar);
            let (sidecar, read) = Sidecar::open(&path).expect("a sidecar");
            assert_eq!(read, content(waiters));
            // As small as possible: no larger than both contents.
            let limit = (PAGE + 4 * serde_json::to_vec(&content(1000)).expect("JSON").len()) as u64;
            assert!(sidecar.file.metadata().expect("metadata").len() <= limit);
        }
        std::fs::remove_file(&path).expect("our own file");
    }

    /// The head of a full queue must be able to become a holder.
    #[test]
    fn waiters_leave_room_for_holders() {
        let path = std::env::temp_dir().join(format!("dlock-sidecar-full-{}", std::process::id()));
        let (mut sidecar, read) = Sidecar::open(&path).expect("a sidecar");
        let per_waiter = serde_json::to_vec(&content(1000)).expect("JSON").len() as u64 / 1000;
        let mut full = content(MAX_CONTENT * 15 / 16 / per_waiter);
        assert!(sidecar.write(&full).is_err());
        sidecar.write(&read).expect("room on the disk");
        sidecar.waiters = full.waiters.len();
        sidecar.write(&full).expect("room for those that are there");
        full.waiters.extend(content(20_000).waiters);
        assert!(sidecar.write(&full).is_err());
        drop(sidecar);
        std::fs::remove_file(&path).expect("our own file");
    }

    /// A writer that was killed before the first line was written has changed nothing.
    #[test]
    fn large_content_counts_only_when_the_first_line_points_to_it() {
        let path = std::env::temp_dir().join(format!("dlock-sidecar-behind-{}", std::process::id()));
        for before in [3, 100] {
            let (mut sidecar, _) = Sidecar::open(&path).expect("a sidecar");
            sidecar.write(&content(before)).expect("room on the disk");
            let first = sidecar.read_at(0, PAGE as u64).expect("the first page");
            sidecar.write(&content(200)).expect("room on the disk");
            sidecar.file.write_all_at(&first, 0).expect("the old first page");
            drop(sidecar);
            let (_sidecar, read) = Sidecar::open(&path).expect("a sidecar");
            assert_eq!(read, content(before));
        }
        std::fs::remove_file(&path).expect("our own file");
    }
}

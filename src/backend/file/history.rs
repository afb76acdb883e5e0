//! The last outcomes of a lock, in a file of their own beside the lock file: one line for each, the latest last.
//!
//! A line is appended in one piece. When there are many, the file is made anew with the last of them, under another name,
//! and put in its place: whoever reads sees the old file or the new one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::lock_file::{Flock, is_at, open_existing, open_or_make, try_lock};
use super::trust;
use crate::lock::{NotedRecord, Record};

/// So many outcomes are told.
const OUTCOMES: usize = 20;
/// A file that has grown beyond this is made anew.
const LARGEST: u64 = 256 * 1024;
/// Others who write are waited for so often, a millisecond each: nobody keeps the end of a run up for long.
const TRIES: u32 = 20;
/// One line is never longer.
const LONGEST_LINE: usize = 8 * 1024;

#[derive(Serialize, Deserialize)]
struct Line<R> {
    /// Milliseconds since 1970.
    at: u64,
    #[serde(flatten)]
    record: R,
}

/// Appends an outcome.
///
/// # Errors
/// The file cannot be made or written.
pub(super) fn append(path: &Path, at: u64, record: &Record) -> io::Result<()> {
    let mut line = serde_json::to_vec(&Line { at, record })?;
    line.push(b'\n');
    if line.len() > LONGEST_LINE {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the record is too long"));
    }
    let mut file = open_alone(path)?;
    let mut last = [b'\n'];
    if file.seek(SeekFrom::End(-1)).is_ok() && file.read(&mut last).is_ok() && last != [b'\n'] {
        // Somebody was killed, or the disk was full, in the middle of a line.
        line.insert(0, b'\n');
    }
    file.write_all(&line)?;
    if file.metadata()?.len() > LARGEST {
        shorten(path)?;
    }
    Ok(())
}

/// Opens the file, or makes it, with nobody else writing it: what is appended while it is made anew would be lost with the
/// old one.
fn open_alone(path: &Path) -> io::Result<File> {
    let mut tries = 0;
    loop {
        let file = open_or_make(path, OpenOptions::new().read(true).append(true))?;
        let is_ours = try_lock(&file, Flock::Exclusive).unwrap_or(false) && is_at(&file, path);
        if is_ours || tries == TRIES {
            return Ok(file);
        }
        tries += 1;
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The last outcomes, the latest first; none where there is no file. Lines that make no sense are passed over.
///
/// # Errors
/// The file cannot be read.
pub(super) fn read(path: &Path) -> io::Result<Vec<NotedRecord>> {
    let text = match open_existing(path, OpenOptions::new().read(true)) {
        Ok(file) => tail(file)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let lines = text.lines().rev().filter(|line| line.len() <= LONGEST_LINE);
    let lines = lines.filter_map(|line| serde_json::from_str::<Line<Record>>(line).ok());
    let mut last = Last::default();
    Ok(lines.filter(|line| last.has_room_for(&line.record)).map(|line| (line.at, line.record)).collect())
}

/// The last outcomes of those who held the lock, and of those who did not get it.
#[derive(Default)]
struct Last {
    held: usize,
    missed: usize,
}

impl Last {
    fn has_room_for(&mut self, record: &Record) -> bool {
        let count = if record.has_held() { &mut self.held } else { &mut self.missed };
        *count += 1;
        *count <= OUTCOMES
    }
}

/// The last part of the file, however large it is.
fn tail(mut file: File) -> io::Result<String> {
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(2 * LARGEST)))?;
    let mut bytes = Vec::new();
    file.take(2 * LARGEST).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn shorten(path: &Path) -> io::Result<()> {
    let text = tail(open_existing(path, OpenOptions::new().read(true))?)?;
    let mut last = Last::default();
    let keep = |line: &&str| {
        serde_json::from_str::<Line<Record>>(line).is_ok_and(|line| last.has_room_for(&line.record))
    };
    let mut kept: Vec<&str> = text.lines().rev().filter(keep).collect();
    kept.reverse();
    let kept = kept.join("\n") + "\n";
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let new = Path::new(&name);
    let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(new);
    let result = written.and_then(|mut file| {
        trust::share(&file, new);
        file.write_all(kept.as_bytes())?;
        fs::rename(new, path)
    });
    if result.is_err() {
        let _ = fs::remove_file(new);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_outcomes_are_kept_and_no_more() {
        let path = std::env::temp_dir().join(format!("dlock-history-{}", std::process::id()));
        for number in 0..1000 {
            let error = Some("e".repeat(1000));
            let record = Record { outcome: "ran".into(), waited_ms: number, error, ..Record::default() };
            append(&path, number, &record).expect("room on the disk");
        }
        let records = read(&path).expect("a history");
        let waited: Vec<u64> = records.iter().map(|(_, record)| record.waited_ms).collect();
        assert_eq!(waited, (980..1000).rev().collect::<Vec<_>>());
        assert!(fs::metadata(&path).expect("metadata").len() <= LARGEST);
        fs::remove_file(&path).expect("our own file");
        assert_eq!(read(&path).expect("no history"), []);
    }
}

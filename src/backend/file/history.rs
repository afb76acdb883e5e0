//! The history of a lock, in a separate file next to the lock file: one line for each record, the latest last.
//!
//! A line is appended with one write. When there are too many, a new file with the last of them is written under
//! another name and renamed into place: a reader sees the old file or the new one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::lock_file::{is_at, open_existing, open_or_create, try_lock};
use super::trust;
use crate::backend::ledger::GateMode;
use crate::backend::ledger::history::Quota;
use crate::lock::{NotedRecord, Record};

/// A file that has grown beyond this size is shortened.
const MAX_SIZE: u64 = 256 * 1024;
/// How often to try the lock of another writer, once per millisecond: no process may delay the end of a run for long.
const MAX_TRIES: u32 = 20;
/// The limit of the length of one line.
const MAX_LINE: usize = 8 * 1024;

#[derive(Serialize, Deserialize)]
struct Line<R> {
    /// In milliseconds since 1970.
    at: u64,
    #[serde(flatten)]
    record: R,
}

/// Appends a record.
///
/// # Errors
/// The file cannot be created or written.
pub(super) fn append(path: &Path, at: u64, record: &Record) -> io::Result<()> {
    let mut line = serde_json::to_vec(&Line { at, record })?;
    line.push(b'\n');
    if line.len() > MAX_LINE {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the record is too long"));
    }
    let mut file = open_for_append(path)?;
    let mut last = [b'\n'];
    if file.seek(SeekFrom::End(-1)).is_ok() && file.read(&mut last).is_ok() && last != [b'\n'] {
        // A writer was killed, or the disk was full, in the middle of a line.
        line.insert(0, b'\n');
    }
    file.write_all(&line)?;
    if file.metadata()?.len() > MAX_SIZE {
        shorten(path)?;
    }
    Ok(())
}

/// Opens or creates the file, with its writer's lock if possible: a line that is appended while the file is shortened
/// would be lost with the old one.
fn open_for_append(path: &Path) -> io::Result<File> {
    let mut tries = 0;
    loop {
        let file = open_or_create(path, OpenOptions::new().read(true).append(true))?;
        let is_locked = try_lock(&file, GateMode::Exclusive).unwrap_or(false) && is_at(&file, path);
        if is_locked || tries == MAX_TRIES {
            return Ok(file);
        }
        tries += 1;
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the records, the latest first; none if there is no file.
///
/// # Errors
/// The file cannot be read.
pub(super) fn read(path: &Path) -> io::Result<Vec<NotedRecord>> {
    let text = match open_existing(path, OpenOptions::new().read(true)) {
        Ok(file) => tail(file)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    Ok(kept(&text).map(|(_, line)| (line.at, line.record)).collect())
}

/// Returns the lines that are kept, the latest first. Malformed lines are skipped.
fn kept(text: &str) -> impl Iterator<Item = (&str, Line<Record>)> {
    let mut quota = Quota::default();
    let lines = text.lines().rev().filter(|line| line.len() <= MAX_LINE);
    let lines = lines.filter_map(|line| Some((line, serde_json::from_str::<Line<Record>>(line).ok()?)));
    lines.filter(move |(_, line)| quota.has_room_for(&line.record))
}

/// Returns the last part of the file, however large it is.
fn tail(mut file: File) -> io::Result<String> {
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(2 * MAX_SIZE)))?;
    let mut bytes = Vec::new();
    file.take(2 * MAX_SIZE).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn shorten(path: &Path) -> io::Result<()> {
    let text = tail(open_existing(path, OpenOptions::new().read(true))?)?;
    let mut lines: Vec<&str> = kept(&text).map(|(line, _)| line).collect();
    lines.reverse();
    let new = path.with_added_extension(std::process::id().to_string());
    let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new);
    let result = written.and_then(|mut file| {
        trust::share(&file, &new);
        file.write_all((lines.join("\n") + "\n").as_bytes())?;
        fs::rename(&new, path)
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
    fn the_last_records_are_kept_and_no_more() {
        let path = std::env::temp_dir().join(format!("dlock-history-{}", std::process::id()));
        for number in 0..1000 {
            let error = Some("e".repeat(1000));
            let record = Record { outcome: "ran".into(), waited_ms: number, error, ..Record::default() };
            append(&path, number, &record).expect("room on the disk");
        }
        let records = read(&path).expect("a history");
        let waited: Vec<u64> = records.iter().map(|(_, record)| record.waited_ms).collect();
        assert_eq!(waited, (980..1000).rev().collect::<Vec<_>>());
        assert!(fs::metadata(&path).expect("metadata").len() <= MAX_SIZE);
        fs::remove_file(&path).expect("our own file");
        assert_eq!(read(&path).expect("no history"), []);
    }
}

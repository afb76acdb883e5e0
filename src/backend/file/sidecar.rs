//! The file beside a lock file: one JSON object of a known format, rewritten in place under its own lock.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::wall_micros;
use crate::lock::{FencingToken, Holder, Identity};

const FORMAT: u32 = 1;
/// Larger than any sidecar that dlock writes.
const LARGEST: u64 = 1 << 20;

#[derive(Debug, Serialize, Deserialize)]
struct Content {
    format: u32,
    fencing_token: u64,
    holder: Option<Record>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    token: String,
    /// Microseconds since 1970.
    acquired_at: u64,
    identity: Identity,
}

/// An open and locked sidecar file.
pub(super) struct Sidecar {
    file: File,
}

/// Why a sidecar cannot be used.
#[derive(Debug)]
pub(super) enum SidecarError {
    /// The file system refused.
    Io(io::Error),
    /// Its content is not one that this dlock knows.
    Unknown(String),
}

impl From<io::Error> for SidecarError {
    fn from(error: io::Error) -> SidecarError {
        SidecarError::Io(error)
    }
}

impl Sidecar {
    /// Opens the file, or makes it, and waits for its lock: every use is a few system calls long.
    pub(super) fn open(path: &Path) -> Result<Sidecar, SidecarError> {
        let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
        let open = |options: &mut OpenOptions| options.read(true).write(true).custom_flags(flags).open(path);
        let file = loop {
            match open(&mut OpenOptions::new()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    match open(OpenOptions::new().create_new(true).mode(0o600)) {
                        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                        result => break result?,
                    }
                }
                result => break result?,
            }
        };
        if !file.metadata()?.is_file() {
            return Err(SidecarError::Unknown("not a regular file".into()));
        }
        lock(&file)?;
        Ok(Sidecar { file })
    }

    fn read(&self) -> Result<Content, SidecarError> {
        let mut text = Vec::new();
        (&self.file).take(LARGEST).read_to_end(&mut text)?;
        if text.iter().all(u8::is_ascii_whitespace) {
            return Ok(Content { format: FORMAT, fencing_token: 0, holder: None });
        }
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        match serde_json::from_slice::<Version>(&text) {
            Ok(Version { format: FORMAT }) => {}
            Ok(Version { format }) => {
                return Err(SidecarError::Unknown(format!(
                    "written by another dlock (format {format}, known: {FORMAT})"
                )));
            }
            Err(_) => return Err(SidecarError::Unknown("not written by dlock, or damaged".into())),
        }
        serde_json::from_slice(&text).map_err(|_| SidecarError::Unknown("damaged".into()))
    }

    /// In one write, padded to the old length: a reader sees the old content or the new one, and nothing is truncated.
    fn write(&self, content: &Content) -> Result<(), SidecarError> {
        let mut text = serde_json::to_vec(content).map_err(io::Error::from)?;
        text.push(b'\n');
        let length = self.file.metadata()?.len() as usize;
        while text.len() < length {
            text.insert(text.len() - 1, b' ');
        }
        self.file.write_all_at(&text, 0)?;
        Ok(())
    }

    /// Notes a new holder and returns its fencing token: one more than the last, and never less than the time in
    /// microseconds, so that a sidecar that was deleted does not start the count anew.
    pub(super) fn take(&mut self, identity: &Identity, token: &str) -> Result<FencingToken, SidecarError> {
        let content = self.read()?;
        let now = wall_micros();
        let fencing_token = now.max(content.fencing_token.saturating_add(1));
        let fencing = FencingToken::new(fencing_token)
            .ok_or_else(|| SidecarError::Unknown("its fencing counter has come to its end (2^53)".into()))?;
        let record = Record { token: token.to_owned(), acquired_at: now, identity: identity.clone() };
        self.write(&Content { format: FORMAT, fencing_token, holder: Some(record) })?;
        Ok(fencing)
    }

    /// Removes the holder if it is the one with this token.
    pub(super) fn clear(&mut self, token: &str) -> Result<(), SidecarError> {
        let mut content = self.read()?;
        if content.holder.as_ref().is_some_and(|record| record.token == token) {
            content.holder = None;
            self.write(&content)?;
        }
        Ok(())
    }

    /// The noted holder, if its process still lives on this boot of the host. `reader` says which boot that is.
    pub(super) fn holder(&mut self, reader: &Identity) -> Result<Option<Holder>, SidecarError> {
        let Some(record) = self.read()?.holder else { return Ok(None) };
        let identity = record.identity;
        if identity.boot != reader.boot || !lives(&identity) {
            return Ok(None);
        }
        let age = Duration::from_micros(wall_micros().saturating_sub(record.acquired_at));
        Ok(Some(Holder { identity: Some(identity), age: Some(age), ..Holder::default() }))
    }
}

/// Whether the process is there and is not another one with the same number.
fn lives(identity: &Identity) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", identity.pid));
    match stat {
        Ok(stat) => {
            let start = stat
                .rfind(')')
                .and_then(|end| stat[end + 1..].split_ascii_whitespace().nth(19)?.parse().ok());
            start == Some(identity.start)
        }
        // No /proc at all: believe the note.
        Err(_) => !Path::new("/proc/self").exists(),
    }
}

/// Every use is a few system calls long, unless its process was stopped in the middle: that must not stop us too.
fn lock(file: &File) -> io::Result<()> {
    for _ in 0..1000 {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "another dlock has had it locked for a second"))
}

//! The file beside a lock file: one line of JSON of a known format, rewritten in place under its own lock.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::line::{Member, Waiter};
use super::presence::{lock_content, unlock_content};
use crate::clock::{Moment, wall_micros};

const FORMAT: u32 = 1;
/// Larger than any line that dlock writes.
const LARGEST: u64 = 16 << 20;
/// How long another dlock may have the content locked: each use is a few system calls, unless its process was stopped in
/// the middle, which must not stop us too.
const PATIENCE: Duration = Duration::from_secs(1);

/// What is noted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Content {
    format: u32,
    /// The last one given.
    pub(super) fencing_token: u64,
    /// The last one given.
    #[serde(default)]
    pub(super) ticket: u64,
    /// Who holds the lock.
    #[serde(default)]
    pub(super) members: Vec<Member>,
    /// Who waits, in order.
    #[serde(default)]
    pub(super) line: Vec<Waiter>,
}

impl Content {
    /// The next number: never that of an earlier one, not even of one in a sidecar that was deleted since.
    pub(super) fn next_ticket(&mut self) -> u64 {
        self.ticket = wall_micros().max(self.ticket.saturating_add(1));
        self.ticket
    }
}

/// An open sidecar file with its content locked until it is dropped.
pub(super) struct Sidecar {
    file: File,
    /// How many bytes of the file are in use.
    used: usize,
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
    /// Opens the file, or makes it, and waits for its lock.
    pub(super) fn open(path: &Path) -> Result<(Sidecar, Content), SidecarError> {
        let file = open(path)?;
        if !file.metadata()?.is_file() {
            return Err(SidecarError::Unknown("not a regular file".into()));
        }
        lock(&file)?;
        let mut sidecar = Sidecar { file, used: 0 };
        let content = sidecar.read()?;
        Ok((sidecar, content))
    }

    /// The descriptor, for locks of single bytes.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    fn read(&mut self) -> Result<Content, SidecarError> {
        let mut text = Vec::new();
        let mut reader = (&self.file).take(LARGEST);
        let mut chunk = [0u8; 4096];
        // What stands behind the first line is left over from a longer one.
        while !text.contains(&b'\n') {
            match reader.read(&mut chunk)? {
                0 => break,
                count => text.extend_from_slice(&chunk[..count]),
            }
        }
        let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
        self.used = line.len() + 1;
        if line.iter().all(u8::is_ascii_whitespace) {
            return Ok(Content {
                format: FORMAT,
                fencing_token: 0,
                ticket: 0,
                members: vec![],
                line: vec![],
            });
        }
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        match serde_json::from_slice::<Version>(line) {
            Ok(Version { format: FORMAT }) => {}
            Ok(Version { format }) => {
                return Err(SidecarError::Unknown(format!(
                    "written by another dlock (format {format}, known: {FORMAT})"
                )));
            }
            Err(_) => return Err(SidecarError::Unknown("not written by dlock, or damaged".into())),
        }
        serde_json::from_slice(line).map_err(|_| SidecarError::Unknown("damaged".into()))
    }

    /// In one write, blanks over what was longer before: a reader sees the old line or the new one, and nothing is
    /// truncated.
    pub(super) fn write(&mut self, content: &Content) -> Result<(), SidecarError> {
        let mut text = serde_json::to_vec(content).map_err(io::Error::from)?;
        text.push(b'\n');
        let used = text.len();
        if used < self.used {
            text.resize(self.used - 1, b' ');
            text.push(b'\n');
        }
        self.file.write_all_at(&text, 0)?;
        self.used = used;
        Ok(())
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        unlock_content(&self.file);
    }
}

/// Opens a sidecar file, or makes it.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
    let open = |options: &mut OpenOptions| options.read(true).write(true).custom_flags(flags).open(path);
    loop {
        match open(&mut OpenOptions::new()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match open(OpenOptions::new().create_new(true).mode(0o600)) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    result => return result,
                }
            }
            result => return result,
        }
    }
}

fn lock(file: &File) -> io::Result<()> {
    let begin = Moment::now();
    let mut pause = Duration::from_micros(100);
    while !lock_content(file)? {
        if Moment::now() - begin > PATIENCE {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "another dlock has had it locked for a second",
            ));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(2));
    }
    Ok(())
}

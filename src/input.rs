//! Reads environment variables, and whole files that users name: opened without blocking, checked after opening, and
//! bounded.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::clock::Moment;

/// Reads an environment variable; an empty one counts as unset.
pub fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Opens a regular file for reading. Symbolic links are followed, because Kubernetes mounts its secrets as such;
/// whatever the path leads to, opening it neither blocks (`O_NONBLOCK`, `fifo(7)`) nor acquires a controlling terminal.
///
/// # Errors
/// It cannot be opened, or is not a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    let file = open_any(path)?;
    match file.metadata()?.file_type() {
        kind if kind.is_file() => Ok(file),
        kind if kind.is_dir() => Err(io::Error::from_raw_os_error(libc::EISDIR)),
        _ => Err(io::Error::other("not a regular file")),
    }
}

/// Reads a regular file of up to `most` bytes.
///
/// # Errors
/// It cannot be read, is not a regular file, or is longer.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    read_opened(open(path)?, most)
}

/// Reads the rest of an open file of up to `most` bytes.
///
/// # Errors
/// It cannot be read, or is longer. The length that `fstat(2)` reports is not trusted.
pub fn read_opened(file: impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    file.take(most + 1).read_to_end(&mut content)?;
    match content.len() as u64 > most {
        true => Err(io::Error::other(format!("longer than {most} bytes"))),
        false => Ok(content),
    }
}

/// Reads a regular file, or a pipe until its writer closes it, such as a shell's `<(command)`: up to `most` bytes, and
/// for up to `within`.
///
/// # Errors
/// It cannot be read, is neither, is longer, or the writer of the pipe does not finish in time.
pub fn read_file_or_pipe(path: &Path, most: u64, within: Duration) -> io::Result<Vec<u8>> {
    let file = open_any(path)?;
    if !file.metadata()?.file_type().is_fifo() {
        drop(file);
        return read(path, most);
    }
    read_pipe(file, most, within)
}

/// Reads a pipe until its writer closes it: up to `most` bytes, and for up to `within`.
///
/// # Errors
/// It cannot be read, is longer, or the writer does not finish in time (`TimedOut`).
pub fn read_pipe(mut pipe: impl Read + AsFd, most: u64, within: Duration) -> io::Result<Vec<u8>> {
    let until = Moment::now() + within;
    let mut content = Vec::new();
    let mut buffer = [0; 4096];
    while content.len() as u64 <= most {
        let left = until - Moment::now();
        let mut fds = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
            Ok(0) => {
                let why = "nothing was written to this pipe in time";
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            Ok(_) => {}
            Err(nix::errno::Errno::EINTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        match pipe.read(&mut buffer) {
            Ok(0) => return Ok(content),
            Ok(count) => content.extend_from_slice(&buffer[..count]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other(format!("longer than {most} bytes")))
}

fn open_any(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

//! The lock file itself: opened, never written.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Opens a lock file, or makes it. A file that others made is opened as far as its mode allows: `flock(2)` needs no
/// right to write. `O_CREAT` only for a missing one, because `fs.protected_regular` refuses it for others' files.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
    let mut rounds = 0;
    let file = loop {
        rounds += 1;
        match OpenOptions::new().read(true).custom_flags(flags).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match OpenOptions::new()
                    .read(true)
                    .write(true)
                    .create_new(true)
                    .mode(0o600)
                    .custom_flags(flags)
                    .open(path)
                {
                    // Another one has just made it.
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists && rounds < 100 => {}
                    result => break result?,
                }
            }
            Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
                break OpenOptions::new().write(true).custom_flags(flags).open(path)?;
            }
            result => break result?,
        }
    };
    let kind = file.metadata()?.file_type();
    if kind.is_fifo() || kind.is_socket() || kind.is_char_device() || kind.is_block_device() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(file)
}

/// Whether the path still leads to the open file.
pub(super) fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(open), Ok(there)) => (open.dev(), open.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

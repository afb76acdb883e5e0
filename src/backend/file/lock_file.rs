//! The lock file itself: it is opened, but never written.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::linkat;

use super::trust;
use crate::backend::ledger::GateMode;

/// The time within which a dlock that creates a file has shared it with its group, in milliseconds, where it cannot do both
/// in one step.
const SHARED_WITHIN: u32 = 20;

/// Opens an existing file for `access`, never through a symbolic link at its end, if it is one that dlock
/// [may use](trust::check).
pub(super) fn open_existing(path: &Path, access: &mut OpenOptions) -> io::Result<File> {
    access.custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK);
    let file = access.open(path).map_err(trust::explain)?;
    trust::check(&file.metadata()?, path)?;
    Ok(file)
}

/// Opens a file for `access`, or creates it: private to the user, or for the group that shares the directory.
pub(super) fn open_or_create(path: &Path, access: &mut OpenOptions) -> io::Result<File> {
    // Another dlock may create or remove it between the two steps, or have created it without having shared it yet.
    for turn in 0..100 {
        match open_existing(path, access) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error)
                if error.raw_os_error() == Some(libc::EACCES)
                    && turn < SHARED_WITHIN
                    && trust::is_shared(path) =>
            {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            result => return result,
        }
        match create(path, access) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            result => return result,
        }
    }
    Err(io::Error::other("it is removed repeatedly"))
}

/// Creates a file: private to the user, or for the group that shares the directory.
fn create(path: &Path, access: &OpenOptions) -> io::Result<File> {
    if let Some(file) = trust::is_shared(path).then(|| unnamed(path, access)).flatten() {
        trust::share(&file, path);
        // It appears with its final group and mode: no other member finds it while it is private.
        match name(&file, path) {
            Ok(()) => return Ok(file),
            Err(Errno::EEXIST) => return Err(io::ErrorKind::AlreadyExists.into()),
            // No /proc, for example.
            Err(_) => {}
        }
    }
    let created = access.clone().read(true).write(true).create_new(true).mode(0o600).open(path);
    created.inspect(|file| trust::share(file, path))
}

/// Creates a file without a name in the directory of this path (`open(2)`, `O_TMPFILE`); `None` where the file system cannot,
/// as NFS.
fn unnamed(path: &Path, access: &OpenOptions) -> Option<File> {
    let flags = libc::O_TMPFILE | libc::O_CLOEXEC;
    access.clone().read(true).write(true).custom_flags(flags).mode(0o600).open(path.parent()?).ok()
}

/// Gives an unnamed file its name, if that is free.
fn name(file: &File, path: &Path) -> nix::Result<()> {
    let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(AT_FDCWD, unnamed.as_str(), AT_FDCWD, path, AtFlags::AT_SYMLINK_FOLLOW)
}

/// Opens a lock file, or creates it. A file that another user created is opened as far as its mode allows: `flock(2)`
/// needs no write permission.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let readable = open_or_create(path, OpenOptions::new().read(true));
    match readable {
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
            open_or_create(path, OpenOptions::new().write(true)).map_err(|_| error)
        }
        result => result,
    }
}

/// Returns the identity of the file: device and inode.
pub(super) fn number_of(file: &File) -> io::Result<(u64, u64)> {
    file.metadata().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Returns the identity of the file at this path, if there is one.
pub(super) fn number_at(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Returns whether the path still leads to the open file.
pub(super) fn is_at(file: &File, path: &Path) -> bool {
    number_of(file).is_ok_and(|number| number_at(path) == Some(number))
}

/// Takes the kernel's lock on the file at this path, if it is free.
pub(super) fn try_flock(path: &Path, mode: GateMode) -> io::Result<Option<File>> {
    try_flock_of(open(path)?, path, mode)
}

/// The same, starting with a file that was at this path a moment ago.
pub(super) fn try_flock_of(mut file: File, path: &Path, mode: GateMode) -> io::Result<Option<File>> {
    for _ in 0..100 {
        let locked = match try_lock(&file, mode) {
            // NFS 4 needs a descriptor for writing to lock a file exclusively (flock(2), "NFS details"). Not in any case: a script
            // can be its own lock file, and cannot be executed while it is open for writing.
            Err(error) if error.raw_os_error() == Some(libc::EBADF) => {
                file = open_or_create(path, OpenOptions::new().read(true).write(true)).map_err(|_| error)?;
                try_lock(&file, mode)
            }
            locked => locked,
        };
        if !locked? {
            return Ok(None);
        }
        // The file may have been replaced between open and lock: a lock on the old file excludes nothing.
        if is_at(&file, path) {
            return Ok(Some(file));
        }
        file = open(path)?;
    }
    Err(io::Error::other("it is replaced repeatedly"))
}

/// On every Unix that dlock supports, the standard library's file lock is `flock(2)`.
pub(super) fn try_lock(file: &File, mode: GateMode) -> io::Result<bool> {
    let locked = match mode {
        GateMode::Exclusive => file.try_lock(),
        GateMode::Shared => file.try_lock_shared(),
    };
    match locked {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

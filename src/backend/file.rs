//! Locks on this host: `flock(2)` on `DIRECTORY/NAME.lock`, so that `flock(1)` on the same file excludes dlock and is
//! excluded by it. The lock file's content is never touched. What dlock has to remember (fencing counter, holder) is in
//! a sidecar file beside it, under its own short lock.

mod location;
mod sidecar;

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

pub use self::location::Location;
use self::sidecar::{Sidecar, SidecarError};
use super::{Attempt, Backend, Loss, Release, Renewal, Reply, StoreError, io_text};
use crate::lock::{Claim, Grant, Holder, Token};

/// The store.
pub struct FileStore {
    location: Location,
    held: Option<Held>,
}

/// A lock that is ours.
struct Held {
    file: File,
    token: Token,
    grant: Grant,
}

impl Held {
    fn is(&self, claim: &Claim) -> bool {
        self.token == claim.token
    }
}

impl FileStore {
    /// Names the store; touches nothing.
    pub fn new(location: Location) -> FileStore {
        FileStore { location, held: None }
    }

    fn prepare(&self) -> Result<(), StoreError> {
        if let Some(directory) = self.location.directory_to_make()
            && !directory.exists()
        {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(directory)
                .map_err(|error| describe(&error, "make the directory", directory))?;
        }
        Ok(())
    }

    fn acquire_now(&mut self, claim: &Claim) -> Result<Attempt, StoreError> {
        let path = self.location.lock_path(&claim.name);
        let sidecar_path = self.location.sidecar_path(&claim.name);
        if let Some(held) = self.held.as_ref().filter(|held| held.is(claim) && is_at(&held.file, &path)) {
            return Ok(Attempt::Granted(held.grant));
        }
        let mut rounds = 0;
        let file = loop {
            rounds += 1;
            if rounds > 100 {
                return Err(StoreError::unreachable(format!(
                    "{} is replaced again and again",
                    path.display()
                )));
            }
            let file = open(&path).map_err(|error| describe(&error, "open", &path))?;
            // On every Unix that dlock runs on the standard library's file lock is flock(2).
            match file.try_lock() {
                // Somebody may have replaced the file between open and lock: what we hold then is nobody's lock.
                Ok(()) if is_at(&file, &path) => break file,
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(Attempt::Busy(busy(&sidecar_path, claim)?)),
                Err(TryLockError::Error(error)) => return Err(describe(&error, "lock", &path)),
            }
        };
        // The sidecar before anything else: without its counter there is no fencing token, so no grant.
        let fencing = Sidecar::open(&sidecar_path)
            .and_then(|mut sidecar| sidecar.take(&claim.identity, claim.token.reveal()))
            .map_err(|error| sidecar_failure(error, &sidecar_path))?;
        let grant = Grant { fencing: Some(fencing), lease: None };
        self.held = Some(Held { file, token: claim.token.clone(), grant });
        Ok(Attempt::Granted(grant))
    }

    fn renew_now(&self, claim: &Claim) -> Result<Renewal, StoreError> {
        let path = self.location.lock_path(&claim.name);
        let Some(held) = self.held.as_ref().filter(|held| held.is(claim)) else {
            return Ok(Renewal::Lost(Loss::Taken));
        };
        match fs::symlink_metadata(&path) {
            Ok(_) if is_at(&held.file, &path) => Ok(Renewal::Held(None)),
            Ok(_) => Ok(Renewal::Lost(Loss::Taken)),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Ok(Renewal::Lost(Loss::Gone))
            }
            // A file system that does not answer has not lost the lock.
            Err(error) => {
                Err(StoreError::unanswered(format!("cannot look at {}: {}", path.display(), io_text(&error))))
            }
        }
    }

    fn release_now(&mut self, claim: &Claim) -> Result<Release, StoreError> {
        let Some(Held { file, .. }) = self.held.take_if(|held| held.is(claim)) else {
            return Ok(Release::NotHeld);
        };
        let path = self.location.lock_path(&claim.name);
        let release = if is_at(&file, &path) { Release::Released } else { Release::NotHeld };
        // Who held it is news for `status`; that it is free is what matters, so nothing here keeps the lock.
        if let Ok(mut sidecar) = Sidecar::open(&self.location.sidecar_path(&claim.name)) {
            let _ = sidecar.clear(claim.token.reveal());
        }
        // Explicitly, because the guarding process may still have its duplicate open for a moment.
        file.unlock().map(|()| release).map_err(|error| describe(&error, "unlock", &path))
    }
}

impl Backend for FileStore {
    fn display(&self) -> &str {
        self.location.display()
    }

    fn connect(&mut self) -> Reply<'_, Result<(), StoreError>> {
        Box::pin(async { self.prepare() })
    }

    fn try_acquire<'a>(&'a mut self, claim: &'a Claim) -> Reply<'a, Result<Attempt, StoreError>> {
        Box::pin(async { self.acquire_now(claim) })
    }

    /// There is no lease; the lock is lost when its file was unlinked or replaced, because others lock the new one.
    fn renew<'a>(&'a mut self, claim: &'a Claim) -> Reply<'a, Result<Renewal, StoreError>> {
        Box::pin(async { self.renew_now(claim) })
    }

    fn release<'a>(&'a mut self, claim: &'a Claim) -> Reply<'a, Result<Release, StoreError>> {
        Box::pin(async { self.release_now(claim) })
    }

    fn changed(&mut self) -> Reply<'_, ()> {
        Box::pin(std::future::pending())
    }

    fn kept_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.held.as_ref().map(|held| held.file.as_fd())
    }
}
/// Opens a lock file, or makes it. A file that others made is opened as far as its mode allows: `flock(2)` needs no
/// right to write. `O_CREAT` only for a missing one, because `fs.protected_regular` refuses it for others' files.
fn open(path: &Path) -> io::Result<File> {
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
fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(open), Ok(there)) => (open.dev(), open.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

/// Who holds the lock, as far as the sidecar knows: what it names counts only while that process lives. A sidecar that
/// is not there, or not ours to read, knows nothing.
fn busy(sidecar_path: &Path, claim: &Claim) -> Result<Holder, StoreError> {
    if !sidecar_path.exists() {
        return Ok(Holder::default());
    }
    match Sidecar::open(sidecar_path).and_then(|mut sidecar| sidecar.holder(&claim.identity)) {
        Ok(holder) => Ok(holder.unwrap_or_default()),
        Err(SidecarError::Io(_)) => Ok(Holder::default()),
        Err(error) => Err(sidecar_failure(error, sidecar_path)),
    }
}

fn sidecar_failure(error: SidecarError, path: &Path) -> StoreError {
    match error {
        SidecarError::Io(error) => describe(&error, "use", path),
        SidecarError::Unknown(what) => StoreError::Config(format!("{}: {what}", path.display())),
    }
}

fn describe(error: &io::Error, what: &str, path: &Path) -> StoreError {
    let text = match error.raw_os_error() {
        Some(libc::ELOOP) => "it is a symbolic link, which dlock does not follow".to_owned(),
        _ => io_text(error),
    };
    let message = format!("cannot {what} {}: {text}", path.display());
    match error.kind() {
        io::ErrorKind::PermissionDenied => StoreError::Denied(message),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => StoreError::Config(message),
        _ if error.raw_os_error() == Some(libc::ELOOP) => StoreError::Denied(message),
        _ => StoreError::unreachable(message),
    }
}

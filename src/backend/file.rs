//! Locks on this host: `flock(2)` on `DIRECTORY/NAME.lock`, so that `flock(1)` on the same file excludes dlock and is
//! excluded by it. The lock file's content is never touched. What dlock has to remember (fencing counter, holder) is in
//! a sidecar file beside it, under its own short lock.

mod sidecar;

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use self::sidecar::{Sidecar, SidecarError};
use super::locator::{Environment, Url, UrlError};
use super::{Attempt, Backend, Loss, Release, Renewal, Reply, StoreError};
use crate::lock::{Claim, FencingToken, Grant, Holder, LockName};

/// Which directory, and how its lock files are called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    directory: PathBuf,
    /// Made by dlock if it is missing; a directory that the user named is not.
    is_default: bool,
    suffix: String,
    display: String,
}

/// The directory of root's locks.
const SYSTEM_DIRECTORY: &str = "/var/lib/dlock";
/// The directory of other users' locks, below their home: the same from cron and from a terminal.
const USER_DIRECTORY: &str = ".local/state/dlock";
const SUFFIX: &str = ".lock";
const SIDECAR_SUFFIX: &str = ".dlock";
/// `NAME_MAX` of every file system that dlock is known to run on.
const LONGEST_FILE_NAME: usize = 255;

impl Location {
    /// The default directory of the current user.
    ///
    /// # Errors
    /// The user has no home.
    pub fn of_user(environment: Environment<'_>) -> Result<Location, UrlError> {
        let directory = if nix::unistd::geteuid().is_root() {
            PathBuf::from(SYSTEM_DIRECTORY)
        } else {
            home(environment)
                .ok_or_else(|| UrlError("file: needs a home directory, and this user has none: name a directory, as file:///var/lock/jobs".into()))?
                .join(USER_DIRECTORY)
        };
        Ok(Location::new(directory, true, SUFFIX.to_owned()))
    }

    /// `file:` or `file:///directory`, with `?suffix=`.
    ///
    /// # Errors
    /// A host, a relative path, an unknown option.
    pub fn from_url(url: &Url, environment: Environment<'_>) -> Result<Location, UrlError> {
        if !url.hosts.is_empty() || url.username.is_some() || url.password.is_some() {
            return Err(UrlError("file: has no host: write file:///directory with three slashes".into()));
        }
        let mut location = match url.path.as_str() {
            "" => Location::of_user(environment)?,
            path if path.starts_with('/') => Location::new(PathBuf::from(path), false, SUFFIX.to_owned()),
            _ => return Err(UrlError("file: takes an absolute directory, as file:///var/lock/jobs".into())),
        };
        for (name, value) in &url.query {
            match name.as_str() {
                "suffix" if value.contains('/') => {
                    return Err(UrlError("suffix= may not contain a slash".into()));
                }
                "suffix" => location = Location::new(location.directory, location.is_default, value.clone()),
                _ => return Err(UrlError(format!("unknown option '{name}' for file: (known: suffix)"))),
            }
        }
        Ok(location)
    }

    fn new(directory: PathBuf, is_default: bool, suffix: String) -> Location {
        let mut display = format!("file://{}", directory.display());
        if suffix != SUFFIX {
            display.push_str(&format!("?suffix={suffix}"));
        }
        Location { directory, is_default, suffix, display }
    }

    /// As messages name it.
    pub fn display(&self) -> &str {
        &self.display
    }

    /// Refuses a name whose lock file would be a sidecar file.
    ///
    /// # Errors
    /// It would be.
    pub fn check_name(&self, name: &LockName) -> Result<(), UrlError> {
        let file = format!("{}{}", encode(name, self.suffix.len()), self.suffix);
        if file.ends_with(SIDECAR_SUFFIX) {
            return Err(UrlError(format!("its file {file} would be one of dlock's own ({SIDECAR_SUFFIX})")));
        }
        if file == "." || file == ".." {
            return Err(UrlError("'.' and '..' are no files".into()));
        }
        Ok(())
    }

    fn lock_path(&self, name: &LockName) -> PathBuf {
        self.directory.join(OsString::from(format!("{}{}", encode(name, self.suffix.len()), self.suffix)))
    }

    fn sidecar_path(&self, name: &LockName) -> PathBuf {
        self.directory.join(OsString::from(format!("{}{SIDECAR_SUFFIX}", encode(name, self.suffix.len()))))
    }
}

fn home(environment: Environment<'_>) -> Option<PathBuf> {
    let from_environment = environment("HOME").filter(|home| home.starts_with('/')).map(PathBuf::from);
    from_environment.or_else(|| {
        let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).ok()??;
        Some(user.dir).filter(|home| home.is_absolute())
    })
}

/// A name as a file name: `/` and `%` percent-encoded, and a digest where that is too long. Two names never meet: a `%`
/// is followed by two hex digits in every encoded name, and by `s` in a digest.
fn encode(name: &LockName, suffix_length: usize) -> String {
    let encoded = name.as_str().replace('%', "%25").replace('/', "%2F");
    if encoded.len() + suffix_length.max(SIDECAR_SUFFIX.len()) <= LONGEST_FILE_NAME {
        return encoded;
    }
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(name.as_str().as_bytes());
    format!("%sha256-{}", digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

/// The store.
pub struct FileStore {
    location: Location,
    held: Option<File>,
}

impl FileStore {
    /// Names the store; touches nothing.
    pub fn new(location: Location) -> FileStore {
        FileStore { location, held: None }
    }

    fn prepare(&self) -> Result<(), StoreError> {
        let directory = &self.location.directory;
        if self.location.is_default && !directory.exists() {
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
        let file = loop {
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
        self.held = Some(file);
        Ok(Attempt::Granted(Grant { fencing: Some(FencingToken(fencing)), lease: None }))
    }
}

impl Backend for FileStore {
    fn display(&self) -> &str {
        self.location.display()
    }

    fn connect(&mut self) -> Reply<'_, Result<(), StoreError>> {
        Box::pin(std::future::ready(self.prepare()))
    }

    fn try_acquire<'a>(&'a mut self, claim: &'a Claim) -> Reply<'a, Result<Attempt, StoreError>> {
        Box::pin(std::future::ready(self.acquire_now(claim)))
    }

    /// There is no lease; the lock is lost when its file was unlinked or replaced, because others lock the new one.
    fn renew<'a>(&'a mut self, claim: &'a Claim) -> Reply<'a, Result<Renewal, StoreError>> {
        let path = self.location.lock_path(&claim.name);
        let held = self.held.as_ref().is_some_and(|file| is_at(file, &path));
        Box::pin(std::future::ready(Ok(if held { Renewal::Held(None) } else { Renewal::Lost(Loss::Gone) })))
    }

    fn release<'a>(&'a mut self, claim: &'a Claim) -> Reply<'a, Result<Release, StoreError>> {
        let Some(file) = self.held.take() else {
            return Box::pin(std::future::ready(Ok(Release::NotHeld)));
        };
        let sidecar_path = self.location.sidecar_path(&claim.name);
        // Who held it is news for `status`; that it is free is what matters, so nothing here keeps the lock.
        if let Ok(mut sidecar) = Sidecar::open(&sidecar_path) {
            let _ = sidecar.clear(claim.token.reveal());
        }
        // Explicitly, because the guarding process may still have its duplicate open for a moment.
        let unlocked = file.unlock().map(|()| Release::Released);
        let path = self.location.lock_path(&claim.name);
        Box::pin(std::future::ready(unlocked.map_err(|error| describe(&error, "unlock", &path))))
    }

    fn changed(&mut self) -> Reply<'_, ()> {
        Box::pin(std::future::pending())
    }

    fn kept_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.held.as_ref().map(AsFd::as_fd)
    }
}

/// Opens a lock file, or makes it. A file that others made is opened as far as its mode allows: `flock(2)` needs no
/// right to write. `O_CREAT` only for a missing one, because `fs.protected_regular` refuses it for others' files.
fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
    let mut rounds = 0;
    let file = loop {
        rounds += 1;
        match OpenOptions::new().read(true).write(true).custom_flags(flags).open(path) {
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
            Err(error) if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EISDIR | libc::EROFS)) => {
                break OpenOptions::new().read(true).custom_flags(flags).open(path)?;
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

/// Who holds the lock, as far as the sidecar knows: what it names counts only while that process lives.
fn busy(sidecar_path: &Path, claim: &Claim) -> Result<Holder, StoreError> {
    if !sidecar_path.exists() {
        return Ok(Holder::default());
    }
    let holder = Sidecar::open(sidecar_path)
        .and_then(|mut sidecar| sidecar.holder(&claim.identity))
        .map_err(|error| sidecar_failure(error, sidecar_path))?;
    Ok(holder.unwrap_or_default())
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
        Some(errno) => Errno::from_raw(errno).desc().to_lowercase(),
        None => error.to_string(),
    };
    let message = format!("cannot {what} {}: {text}", path.display());
    match error.kind() {
        io::ErrorKind::PermissionDenied => StoreError::Denied(message),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => StoreError::Config(message),
        _ if error.raw_os_error() == Some(libc::ELOOP) => StoreError::Denied(message),
        _ => StoreError::unreachable(message),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::random::Xorshift;

    fn name(text: &str) -> LockName {
        LockName::new(text).expect("good name")
    }

    #[test]
    fn names_become_file_names_without_meeting() {
        assert_eq!(encode(&name("nightly-job"), 5), "nightly-job");
        assert_eq!(encode(&name("a/b"), 5), "a%2Fb");
        assert_eq!(encode(&name("a%2Fb"), 5), "a%252Fb");
        let long = encode(&name(&"/".repeat(200)), 5);
        assert!(long.starts_with("%sha256-") && long.len() < 100, "{long}");
        assert_ne!(long, encode(&name(&"/".repeat(199)), 5));
    }

    #[test]
    fn no_two_names_share_a_file() {
        let alphabet: Vec<char> = "a%/2F5sh-\u{e9}".chars().collect();
        let mut random = Xorshift::new();
        let mut owner = HashMap::new();
        for _ in 0..50_000 {
            let Ok(name) = LockName::new(&random.text(&alphabet, 8)) else { continue };
            for name in [name.clone(), LockName::new(&name.as_str().repeat(12)).unwrap_or(name)] {
                let file = encode(&name, 5);
                assert!(!file.contains('/') && file.len() < LONGEST_FILE_NAME - 10, "{file}");
                assert_eq!(owner.entry(file).or_insert_with(|| name.clone()), &name);
            }
        }
    }

    #[test]
    fn a_name_that_is_a_sidecar_is_refused() {
        let url = |text: &str| Url::parse(text).expect("good URL");
        let exact = Location::from_url(&url("file:///srv?suffix="), &|_| None).expect("good location");
        assert!(exact.check_name(&name("a.dlock")).is_err());
        assert!(exact.check_name(&name("a")).is_ok());
        let usual = Location::from_url(&url("file:///srv"), &|_| None).expect("good location");
        assert!(usual.check_name(&name("a.dlock")).is_ok());
    }

    #[test]
    fn bad_locations_are_refused() {
        for bad in ["file://host/x", "file:x", "file:///x?prefix=a", "file:///x?suffix=a/b", "file://u:p@/x"]
        {
            let url = Url::parse(bad).expect("good URL");
            assert!(Location::from_url(&url, &|_| None).is_err(), "{bad}");
        }
    }
}

//! The location of the lock files, and their names.

use std::ffi::OsStr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::errors::describe;
use super::trust;
use crate::backend::StoreError;
use crate::backend::options::Value::Text;
use crate::backend::options::{Options, Table, of_lock};
use crate::backend::url::{Environment, Url, UrlError, encoded};
use crate::hex;
use crate::lock::LockName;

/// A directory, and the naming scheme of its lock files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    pub(super) directory: PathBuf,
    /// dlock creates the default directory if it is missing, but not one that the user named.
    pub(super) is_default: bool,
    pub(super) suffix: String,
    pub(super) display: String,
}

/// The directory of root's locks.
const SYSTEM_DIRECTORY: &str = "/var/lib/dlock";
/// The directory of other users' locks, below their home: the same from cron and from a terminal.
const USER_DIRECTORY: &str = ".local/state/dlock";
const SUFFIX: &str = ".lock";
const OPTIONS: Table = &[&[of_lock("suffix", Text(SUFFIX), "The suffix of the lock files.")]];
pub(super) const SIDECAR_SUFFIX: &str = ".dlock";
/// No encoded name has a sidecar of this name: in such names a `%` is followed by two hex digits.
const HISTORY_SUFFIX: &str = "%history.dlock";
const DIGEST_PREFIX: &str = "%sha256-";
/// Leaves room for a digest.
const LONGEST_SUFFIX: usize = 100;
/// `NAME_MAX` of every file system that dlock is known to run on.
const LONGEST_FILE_NAME: usize = 255;

impl Location {
    /// Returns the options of a `file:` URL.
    pub fn options(_scheme: &str) -> Table {
        OPTIONS
    }

    /// Returns the default directory of the current user.
    ///
    /// # Errors
    /// The user has no home directory.
    pub fn of_user(environment: Environment<'_>) -> Result<Location, UrlError> {
        let directory = if nix::unistd::geteuid().is_root() {
            PathBuf::from(SYSTEM_DIRECTORY)
        } else {
            crate::name_services::home(environment("HOME").as_deref().map(OsStr::new))
                .ok_or_else(|| UrlError::new("file: needs a home directory, and this user has none: name a directory, such as file:///var/lock/jobs"))?
                .join(USER_DIRECTORY)
        };
        Ok(Location::new(directory, true))
    }

    /// Parses `file:` or `file:///directory`, with `?suffix=`.
    ///
    /// # Errors
    /// The URL has a host, a relative path, or an unknown option.
    pub fn from_url(url: &Url, environment: Environment<'_>) -> Result<Location, UrlError> {
        if !url.hosts.is_empty() || url.username.is_some() || url.password.is_some() {
            return Err(UrlError::new("file: has no host: write file:///directory with three slashes"));
        }
        let location = match url.path.as_str() {
            "" => Location::of_user(environment)?,
            path if path.starts_with('/') => Location::new(PathBuf::from(path), false),
            _ => {
                return Err(UrlError::new(
                    "file: takes an absolute directory, such as file:///var/lock/jobs",
                ));
            }
        };
        let options = Options::of(url, OPTIONS)?;
        let suffix = options.parse("suffix", checked_suffix)?;
        Ok(Location { suffix, display: location.display.clone() + &options.query(), ..location })
    }

    fn new(directory: PathBuf, is_default: bool) -> Location {
        let display = format!("file://{}", encoded(&directory.to_string_lossy()));
        Location { directory, is_default, suffix: SUFFIX.to_owned(), display }
    }

    /// If the user named no directory, creates it, or checks that no other user can remove the locks of the one that is there.
    pub(super) fn prepare(&self) -> Result<(), StoreError> {
        if !self.is_default {
            return Ok(());
        }
        match fs::metadata(&self.directory) {
            Ok(found) => trust::check_default_directory(&found)
                .map_err(|error| describe(&error, "use the directory", &self.directory)),
            Err(_) => fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&self.directory)
                .map_err(|error| describe(&error, "make the directory", &self.directory)),
        }
    }

    /// Returns the directories that [`Location::prepare`] would create, the innermost first.
    pub(super) fn missing_directories(&self) -> Vec<PathBuf> {
        let missing = self.directory.ancestors().take_while(|path| self.is_default && !path.exists());
        missing.map(Path::to_owned).collect()
    }

    /// Checks that the directory exists, or will be created when it is needed. One that the user named and that does not
    /// exist is a mistake, not a store in which every lock is free.
    pub(super) fn check_directory(&self) -> Result<(), StoreError> {
        let error = match fs::metadata(&self.directory) {
            Ok(metadata) if metadata.is_dir() => return Ok(()),
            Ok(_) => io::ErrorKind::NotADirectory.into(),
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.is_default => return Ok(()),
            Err(error) => error,
        };
        Err(describe(&error, "read the directory", &self.directory))
    }

    pub(super) fn lock_path(&self, name: &LockName) -> PathBuf {
        self.directory.join(self.file_name(name, &self.suffix))
    }

    pub(super) fn sidecar_path(&self, name: &LockName) -> PathBuf {
        self.directory.join(self.file_name(name, SIDECAR_SUFFIX))
    }

    pub(super) fn history_path(&self, name: &LockName) -> PathBuf {
        self.directory.join(self.file_name(name, HISTORY_SUFFIX))
    }

    pub(super) fn file_name(&self, name: &LockName, suffix: &str) -> String {
        encode(name, self.suffix.len()) + suffix
    }

    /// Returns the name to record in the sidecar file, if the file's own name does not contain it.
    pub(super) fn name_in_sidecar(&self, name: &LockName) -> Option<String> {
        self.file_name(name, "").starts_with(DIGEST_PREFIX).then(|| name.as_str().to_owned())
    }

    /// Returns whether this is a sidecar file that is named by a digest of the lock's name.
    pub(super) fn is_digest(&self, file: &str) -> bool {
        file.starts_with(DIGEST_PREFIX) && file.ends_with(SIDECAR_SUFFIX) && !file.ends_with(HISTORY_SUFFIX)
    }

    /// Returns the sidecar file beside a history file; `None` for other files.
    pub(super) fn sidecar_of(&self, history: &Path) -> Option<PathBuf> {
        let encoded = history.file_name()?.to_str()?.strip_suffix(HISTORY_SUFFIX)?;
        Some(self.directory.join(format!("{encoded}{SIDECAR_SUFFIX}")))
    }

    /// Returns the name of the lock that this sidecar file belongs to; `None` for other files.
    pub(super) fn name_of(&self, file: &str) -> Option<LockName> {
        let encoded = file.strip_suffix(SIDECAR_SUFFIX)?;
        let name = percent_encoding::percent_decode_str(encoded).decode_utf8().ok()?;
        let name = LockName::new(&name).ok()?;
        (self.file_name(&name, "") == encoded).then_some(name)
    }
}

fn checked_suffix(suffix: &str) -> Result<String, UrlError> {
    match suffix {
        _ if suffix.contains('/') => Err(UrlError::new("suffix= may not contain a slash")),
        _ if suffix.len() > LONGEST_SUFFIX => {
            Err(UrlError::new(format!("suffix= may have at most {LONGEST_SUFFIX} bytes")))
        }
        _ => Ok(suffix.to_owned()),
    }
}

/// Magic numbers of file systems whose locks are managed elsewhere (`statfs(2)`, and the kernel's sources).
const NETWORK_FILE_SYSTEMS: &[(i64, &str)] = &[
    (0x6969, "NFS"),
    (0x517B, "SMB"),
    (0xFF53_4D42, "SMB (cifs)"),
    (0xFE53_4D42, "SMB"),
    (0x6573_5546, "FUSE"),
    (0x0102_1997, "9P"),
    (0x00C3_6400, "Ceph"),
    (0x7375_7245, "Coda"),
    (0x5346_414F, "AFS"),
    (0x0BD0_0BD0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x0116_1970, "GFS2"),
    (0x7461_636F, "OCFS2"),
];

pub(super) fn network_file_system(directory: &Path) -> Option<&'static str> {
    // The type of the field differs between architectures, and so does its sign.
    let magic = nix::sys::statfs::statfs(directory).ok()?.filesystem_type().0 as i64 & 0xFFFF_FFFF;
    NETWORK_FILE_SYSTEMS.iter().find(|(number, _)| *number == magic).map(|(_, name)| *name)
}

/// Encodes a name as a file name: `/` and `%` percent-encoded, or a digest if that is too long. Two names never
/// collide: a `%` is followed by two hex digits in every encoded name, and by `s` in a digest.
fn encode(name: &LockName, suffix_length: usize) -> String {
    let encoded = name.as_str().replace('%', "%25").replace('/', "%2F");
    // After the history's suffix comes the pid of a process that shortens it.
    if encoded.len() + suffix_length.max(HISTORY_SUFFIX.len() + 11) <= LONGEST_FILE_NAME {
        return encoded;
    }
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(name.as_str().as_bytes());
    format!("{DIGEST_PREFIX}{}", hex::encode(&digest))
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
    fn names_become_file_names_without_collision() {
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
}

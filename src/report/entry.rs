//! A file name in a directory that is kept open. Later changes of the path have no effect, and a symbolic link of that
//! name is never followed.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat, readlinkat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};
use nix::unistd::{AccessFlags, UnlinkatFlags, faccessat, unlinkat};

/// Opens a directory to create files in it, which needs no right to list it.
const DIRECTORY: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);
/// Opens a file without following a link, waiting for the other end of a FIFO, or acquiring a terminal.
const CAREFUL: OFlag =
    OFlag::O_NOFOLLOW.union(OFlag::O_NONBLOCK).union(OFlag::O_NOCTTY).union(OFlag::O_CLOEXEC);

/// A name in a directory; there may be a file of that name or not.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    directory: Arc<OwnedFd>,
    name: OsString,
    path: PathBuf,
}

/// Returns the directory of a file.
pub(super) fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

pub(super) fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT
}

impl Entry {
    /// Opens the directory of a path.
    ///
    /// # Errors
    /// It cannot be opened, or the path ends without a name.
    pub(super) fn at(path: &Path) -> io::Result<Entry> {
        let name = path.file_name().ok_or(Errno::EISDIR)?.to_owned();
        let directory = Arc::new(openat(AT_FDCWD, directory(path), DIRECTORY, Mode::empty())?);
        Ok(Entry { directory, name, path: path.to_owned() })
    }

    /// Returns the entry of another name in the same directory.
    pub(super) fn sibling(&self, name: OsString) -> Entry {
        Entry { directory: self.directory.clone(), path: self.path.with_file_name(&name), name }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn name(&self) -> &OsStr {
        &self.name
    }

    /// Returns the status of the file, if it exists; symbolic links are not followed.
    ///
    /// # Errors
    /// It cannot be inspected, or may be a trap set by another user.
    pub(super) fn look(&self) -> io::Result<Option<FileStat>> {
        match fstatat(&self.directory, self.name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => self.check(&stat).map(|()| Some(stat)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Checks that the file is not a trap set by another user. In a world-writable directory the kernel
    /// rejects such files as well, but only if the directory is sticky (`fs.protected_symlinks`,
    /// `fs.protected_regular` and `fs.protected_fifos` of `proc_sys_fs(5)`). A symbolic link must belong to
    /// root or to this user, because it names the file that is overwritten.
    fn check(&self, found: &FileStat) -> io::Result<()> {
        let owner = found.st_uid;
        if owner == 0 || owner == nix::unistd::geteuid().as_raw() {
            return Ok(());
        }
        let directory = fstat(&self.directory)?;
        if directory.st_mode & 0o002 != 0 && owner != directory.st_uid {
            return Err(io::Error::other("it belongs to another user, in a world-writable directory"));
        }
        match kind(found) {
            SFlag::S_IFLNK => Err(io::Error::other("it is a symbolic link that belongs to another user")),
            _ => Ok(()),
        }
    }

    /// Opens the file, and checks the opened one.
    ///
    /// # Errors
    /// It cannot be opened, is a symbolic link, or may be a trap set by another user.
    pub(super) fn open(&self, flags: OFlag) -> io::Result<(File, FileStat)> {
        let file = openat(&self.directory, self.name.as_os_str(), flags | CAREFUL, Mode::empty())?;
        let stat = fstat(&file)?;
        self.check(&stat)?;
        Ok((file.into(), stat))
    }

    /// Creates the file, which must not exist.
    pub(super) fn create(&self, mode: Mode) -> io::Result<File> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | CAREFUL;
        Ok(openat(&self.directory, self.name.as_os_str(), flags, mode)?.into())
    }

    pub(super) fn link(&self) -> io::Result<PathBuf> {
        let target = readlinkat(&self.directory, self.name.as_os_str())?;
        Ok(directory(&self.path).join(target))
    }

    /// Checks that this process may write to the file.
    pub(super) fn check_writable(&self) -> io::Result<()> {
        Ok(faccessat(&self.directory, self.name.as_os_str(), AccessFlags::W_OK, AtFlags::AT_EACCESS)?)
    }

    /// Renames the file over another name in the same directory.
    pub(super) fn rename(&self, to: &Entry) -> io::Result<()> {
        Ok(renameat(&self.directory, self.name.as_os_str(), &to.directory, to.name.as_os_str())?)
    }

    pub(super) fn remove(&self) {
        let _ = unlinkat(&self.directory, self.name.as_os_str(), UnlinkatFlags::NoRemoveDir);
    }

    /// Whether both are one name in one directory.
    pub(super) fn is_same(&self, other: &Entry) -> io::Result<bool> {
        let (one, two) = (fstat(self.directory.as_fd())?, fstat(other.directory.as_fd())?);
        Ok((one.st_dev, one.st_ino, &self.name) == (two.st_dev, two.st_ino, &other.name))
    }
}

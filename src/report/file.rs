//! Files that dlock writes for others: whole or not at all.

use std::fmt;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{AtFlags, FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{AccessFlags, faccessat};

use crate::backend::io_text;
use crate::clock::Moment;

/// What a path turned out to be, once symbolic links are followed.
#[derive(Debug)]
pub(super) enum Target {
    /// A regular file, there or not: replaced by another one.
    File(PathBuf),
    /// A descriptor that we were started with, as `/dev/stderr` names it: written to, whatever it is.
    Descriptor(OwnedFd),
    /// A FIFO or a character device: written to.
    Special(PathBuf),
}

/// How many symbolic links are followed (`path_resolution(7)`).
const MOST_LINKS: usize = 40;
/// What a pipe that is ready takes without blocking (`PIPE_BUF`).
const AT_ONCE: usize = 4096;

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::File(path) | Target::Special(path) => write!(f, "'{}'", path.display()),
            Target::Descriptor(_) => f.write_str("to the descriptor"),
        }
    }
}

impl Target {
    /// Follows the path to what is to be written, and makes sure that it can be. Nothing of it is changed.
    ///
    /// # Errors
    /// Why it cannot be written, naming the path.
    pub(super) fn find(path: &Path) -> Result<Target, String> {
        let cannot = |error: &io::Error| format!("cannot write '{}': {}", path.display(), io_text(error));
        let target = resolve(path).map_err(|error| cannot(&error))?;
        match &target {
            Target::File(file) => {
                let (temporary, _) = Temporary::beside(file, 0o600).map_err(|error| {
                    let directory = directory(file);
                    format!(
                        "cannot write '{}': cannot create a file in {}: {}",
                        path.display(),
                        directory.display(),
                        io_text(&error)
                    )
                })?;
                drop(temporary);
            }
            Target::Descriptor(descriptor) => {
                let flags = fcntl(descriptor, FcntlArg::F_GETFL).map_err(|errno| cannot(&errno.into()))?;
                if flags & libc::O_ACCMODE == libc::O_RDONLY {
                    return Err(format!("cannot write '{}': it is open for reading only", path.display()));
                }
            }
            // It is opened when there is something to write: to open and close a FIFO ends its reader.
            Target::Special(special) => {
                let here = nix::fcntl::AT_FDCWD;
                faccessat(here, special, AccessFlags::W_OK, AtFlags::AT_EACCESS)
                    .map_err(|errno| cannot(&errno.into()))?;
            }
        }
        Ok(target)
    }

    /// Writes all of it. A regular file is another one afterwards, with the old one's mode and owner, and is never seen
    /// half-written. A reader that has stopped, or has not come yet, is waited for so long.
    ///
    /// # Errors
    /// It could not be; then a regular file is what it was.
    pub(super) fn write(&self, content: &[u8], new_mode: u32, reader_within: Duration) -> io::Result<()> {
        // A limit on the size of files is a failure to tell of, not our end.
        let mut limit = SigSet::empty();
        limit.add(Signal::SIGXFSZ);
        limit.thread_block()?;
        match self {
            Target::File(path) => replace(path, content, new_mode),
            Target::Descriptor(descriptor) => write_in_time(descriptor.as_fd(), content, reader_within),
            Target::Special(path) => {
                write_in_time(open_special(path, reader_within)?.as_fd(), content, reader_within)
            }
        }
    }
}

/// The directory of a file.
pub(super) fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn resolve(path: &Path) -> io::Result<Target> {
    let mut path = path.to_owned();
    for _ in 0..=MOST_LINKS {
        if let Some(number) = descriptor_number(&path) {
            return own_descriptor(number).map(Target::Descriptor);
        }
        let metadata = match fs::symlink_metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound && path.file_name().is_some() => {
                return Ok(Target::File(path));
            }
            Err(error) => return Err(error),
        };
        if is_planted(&path, &metadata)? {
            return Err(io::Error::other("it belongs to somebody else, in a directory of everybody's"));
        }
        if !metadata.is_symlink() {
            return target(path, &metadata);
        }
        path = directory(&path).join(fs::read_link(&path)?);
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

/// Whether it may have been put there for us to fall into: the kernel does not open such files either
/// (`fs.protected_symlinks`, `fs.protected_regular` and `fs.protected_fifos` of `proc_sys_fs(5)`).
fn is_planted(path: &Path, metadata: &Metadata) -> io::Result<bool> {
    let directory = fs::metadata(directory(path))?;
    let owner = metadata.uid();
    let is_everybodys = directory.mode() & 0o1002 == 0o1002;
    Ok(is_everybodys && owner != nix::unistd::geteuid().as_raw() && owner != directory.uid())
}

fn target(path: PathBuf, metadata: &Metadata) -> io::Result<Target> {
    let kind = metadata.file_type();
    if kind.is_file() {
        Ok(Target::File(path))
    } else if kind.is_fifo() || kind.is_char_device() {
        Ok(Target::Special(path))
    } else if kind.is_dir() {
        Err(io::Error::from_raw_os_error(libc::EISDIR))
    } else {
        Err(io::Error::other("neither a file, a FIFO nor a character device"))
    }
}

/// The number of one of our own descriptors, if that is what the path names. Its link must not be followed: it leads to
/// whatever the descriptor was opened as, with another position.
fn descriptor_number(path: &Path) -> Option<i32> {
    let number = path.file_name()?.to_str()?.parse().ok()?;
    let parent = fs::canonicalize(directory(path)).ok()?;
    let ours =
        parent == Path::new(&format!("/proc/{}/fd", std::process::id())) || parent == Path::new("/dev/fd");
    ours.then_some(number)
}

fn own_descriptor(number: i32) -> io::Result<OwnedFd> {
    if number < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: the descriptor is only duplicated, which fails when there is none of that number.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    borrowed.try_clone_to_owned()
}

/// A file that is not yet where it belongs, and goes when it never gets there.
pub(super) struct Temporary(Option<PathBuf>);

impl Temporary {
    /// A new, empty file in the directory of `path`, hidden, and named unlike anything that is collected there.
    pub(super) fn beside(path: &Path, mode: u32) -> io::Result<(Temporary, File)> {
        let mut random = [0u8; 8];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let random = u64::from_ne_bytes(random);
        let name = directory(path).join(format!(".dlock-{}-{random:016x}.tmp", std::process::id()));
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(mode).open(&name)?;
        Ok((Temporary(Some(name)), file))
    }

    pub(super) fn rename(mut self, path: &Path) -> io::Result<()> {
        if let Some(name) = &self.0 {
            fs::rename(name, path)?;
        }
        self.0 = None;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(name) = &self.0 {
            let _ = fs::remove_file(name);
        }
    }
}

fn replace(path: &Path, content: &[u8], new_mode: u32) -> io::Result<()> {
    // What others are kept from reading is never open to them, not for a moment.
    let old = fs::metadata(path).ok();
    let mode = old.as_ref().map_or(new_mode, |old| old.mode() & 0o777);
    let (temporary, mut file) = Temporary::beside(path, mode)?;
    file.write_all(content)?;
    if let Some(old) = &old {
        let new = file.metadata()?;
        if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
            // Root writes for others; who may not give it away keeps it, and then its group is another one.
            let _ = fchown(&file, Some(old.uid()), Some(old.gid()));
        }
        let of_group = if file.metadata()?.gid() == old.gid() { 0o777 } else { 0o707 };
        // The umask has taken from it.
        file.set_permissions(fs::Permissions::from_mode(mode & of_group))?;
    }
    drop(file);
    temporary.rename(path)
}

/// Opens a device, or a FIFO as soon as somebody reads it.
fn open_special(path: &Path, reader_within: Duration) -> io::Result<File> {
    let until = Moment::now() + reader_within;
    loop {
        let mut options = OpenOptions::new();
        let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        match options.write(true).custom_flags(flags.bits()).open(path) {
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {
                if Moment::now() >= until {
                    return Err(io::Error::other("nobody reads it"));
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            result => return result,
        }
    }
}

/// Writes without ever waiting for a reader for longer than that.
pub(super) fn write_in_time(
    descriptor: BorrowedFd<'_>,
    content: &[u8],
    reader_within: Duration,
) -> io::Result<()> {
    let mut rest = content;
    while !rest.is_empty() {
        let mut fds = [PollFd::new(descriptor, PollFlags::POLLOUT)];
        let timeout = PollTimeout::try_from(reader_within).unwrap_or(PollTimeout::MAX);
        if poll(&mut fds, timeout)? == 0 {
            return Err(io::Error::other("nobody reads it"));
        }
        match nix::unistd::write(descriptor, &rest[..rest.len().min(AT_ONCE)]) {
            Ok(written) => rest = &rest[written..],
            Err(nix::errno::Errno::EINTR | nix::errno::Errno::EAGAIN) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

//! Output files, which are written completely or not at all.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::stat::{Mode, SFlag};

use super::entry::{Entry, directory, kind};
use crate::backend::registry;
use crate::child::sys;
use crate::clock::Moment;
use crate::random;

/// The target of a path, once symbolic links are followed.
#[derive(Debug)]
pub(super) enum Target {
    /// A regular file, which may not exist yet: it is replaced atomically.
    File(Entry),
    /// An inherited descriptor, such as `/dev/stderr` names it: written to, whatever its type.
    Descriptor(OwnedFd),
    /// A FIFO or a character device: written to.
    Special(Entry),
}

/// How many symbolic links are followed (`path_resolution(7)`).
const MOST_LINKS: usize = 40;
/// The size of a write that does not block on a ready pipe (`PIPE_BUF`).
const AT_ONCE: usize = 4096;

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::File(entry) | Target::Special(entry) => write!(f, "'{}'", entry.path().display()),
            Target::Descriptor(_) => f.write_str("to the descriptor"),
        }
    }
}

impl Target {
    /// Resolves the path, and checks that the target can be written. Nothing is changed.
    ///
    /// # Errors
    /// Why it cannot be written, naming the path.
    pub(super) fn find(path: &Path) -> Result<Target> {
        let found = resolve(path).and_then(|target| target.check().map(|()| target));
        found.with_context(|| format!("cannot write '{}'", repeatable(path)))
    }

    fn check(&self) -> Result<()> {
        match self {
            Target::File(file) => {
                Temporary::next_to(file, 0o600).with_context(|| not_created(file.path()))?;
            }
            Target::Descriptor(descriptor) => {
                let flags = fcntl(descriptor, FcntlArg::F_GETFL).map_err(io::Error::from)?;
                ensure!(flags & libc::O_ACCMODE != libc::O_RDONLY, "it is open for reading only");
            }
            // It is opened only to write: opening and closing a FIFO ends its reader.
            Target::Special(special) => special.check_writable()?,
        }
        Ok(())
    }

    /// Writes the whole content. A regular file is replaced, keeps its mode and owner, and is never seen
    /// half-written. A reader that has stopped, or has not opened the FIFO yet, is waited for up to
    /// `reader_within`.
    ///
    /// # Errors
    /// The write failed; then a regular file is unchanged.
    pub(super) fn write(&self, content: &[u8], new_mode: u32, reader_within: Duration) -> io::Result<()> {
        // Exceeding the file size limit must be an error, and not kill dlock.
        let mut limit = SigSet::empty();
        limit.add(Signal::SIGXFSZ);
        limit.thread_block()?;
        match self {
            // The command may have recreated the directory: then it is opened again by its path.
            Target::File(entry) => match replace(entry, content, new_mode) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => match Entry::at(entry.path()) {
                    Ok(entry) => replace(&entry, content, new_mode),
                    Err(_) => Err(error),
                },
                result => result,
            },
            Target::Descriptor(descriptor) => write_in_time(descriptor.as_fd(), content, Some(reader_within)),
            Target::Special(entry) => {
                write_in_time(open_special(entry, reader_within)?.as_fd(), content, Some(reader_within))
            }
        }
    }
}

fn not_created(path: &Path) -> String {
    format!("cannot create a file in {}", repeatable(directory(path)))
}

/// Returns a path as it may be repeated. What was taken for one may be a URL with a password.
pub(super) fn repeatable(path: &Path) -> String {
    registry::repeatable(&path.to_string_lossy())
}

fn resolve(path: &Path) -> Result<Target> {
    let mut path = path.to_owned();
    for _ in 0..=MOST_LINKS {
        if let Some(number) = descriptor_number(&path) {
            return Ok(Target::Descriptor(own_descriptor(number)?));
        }
        let entry = match Entry::at(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(error).with_context(|| not_created(&path));
            }
            entry => entry?,
        };
        let Some(found) = entry.look()? else { return Ok(Target::File(entry)) };
        match kind(&found) {
            SFlag::S_IFLNK => path = entry.link()?,
            SFlag::S_IFREG => return Ok(Target::File(entry)),
            SFlag::S_IFIFO | SFlag::S_IFCHR => return Ok(Target::Special(entry)),
            SFlag::S_IFDIR => return Err(io::Error::from_raw_os_error(libc::EISDIR).into()),
            _ => bail!("neither a file, a FIFO nor a character device"),
        }
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP).into())
}

/// Returns the number of an own descriptor, if the path names one. Its link must not be followed: that would
/// open the file again, with another position.
fn descriptor_number(path: &Path) -> Option<i32> {
    let number = path.file_name()?.to_str()?.parse().ok()?;
    let parent = fs::canonicalize(directory(path)).ok()?;
    let ours =
        parent == Path::new(&format!("/proc/{}/fd", std::process::id())) || parent == Path::new("/dev/fd");
    ours.then_some(number)
}

/// Duplicates a descriptor that dlock was started with. Those that dlock has opened close on exec, also those in place of a
/// closed standard descriptor.
fn own_descriptor(number: i32) -> io::Result<OwnedFd> {
    if sys::closes_on_exec(number) != Some(false) {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: the descriptor is only duplicated, which fails when there is none of that number.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    borrowed.try_clone_to_owned()
}

/// A temporary file, which is removed on drop unless it was renamed to its destination.
pub(super) struct Temporary(Option<Entry>);

impl Temporary {
    /// Creates an empty hidden file in the directory of `entry`, with a name that no collector of files there
    /// matches.
    pub(super) fn next_to(entry: &Entry, mode: u32) -> io::Result<(Temporary, File)> {
        let own = entry.sibling(format!(".dlock-{}-{}.tmp", std::process::id(), random::id()).into());
        let file = own.create(Mode::from_bits_truncate(mode))?;
        Ok((Temporary(Some(own)), file))
    }

    pub(super) fn rename(mut self, to: &Entry) -> io::Result<()> {
        if let Some(own) = &self.0 {
            own.rename(to)?;
        }
        self.0 = None;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(own) = &self.0 {
            own.remove();
        }
    }
}

fn replace(entry: &Entry, content: &[u8], new_mode: u32) -> io::Result<()> {
    let old = entry.look()?;
    // It was a regular file when it was checked, or did not exist; a file of another type was put there on purpose.
    if old.as_ref().is_some_and(|old| kind(old) != SFlag::S_IFREG) {
        return Err(io::Error::other("it is no longer a regular file"));
    }
    // The content must not be readable by others at any time if the old file was not.
    let mode = old.as_ref().map_or(new_mode, |old| old.st_mode & 0o777);
    let (temporary, mut file) = Temporary::next_to(entry, mode)?;
    file.write_all(content)?;
    if let Some(old) = &old {
        let new = file.metadata()?;
        if (new.uid(), new.gid()) != (old.st_uid, old.st_gid) {
            // Root writes for other users; another user may not change the owner, and then the group may differ.
            let _ = fchown(&file, Some(old.st_uid), Some(old.st_gid));
        }
        let of_group = if file.metadata()?.gid() == old.st_gid { 0o777 } else { 0o707 };
        // The umask has cleared bits.
        file.set_permissions(fs::Permissions::from_mode(mode & of_group))?;
    }
    drop(file);
    temporary.rename(entry)
}

/// Opens a device, or a FIFO as soon as it has a reader.
fn open_special(entry: &Entry, reader_within: Duration) -> io::Result<File> {
    let until = Moment::now() + reader_within;
    loop {
        match entry.open(OFlag::O_WRONLY) {
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {
                if Moment::now() >= until {
                    return Err(io::Error::other("it has no reader"));
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            Ok((_, found)) if !matches!(kind(&found), SFlag::S_IFIFO | SFlag::S_IFCHR) => {
                return Err(io::Error::other("it is no longer a FIFO or a character device"));
            }
            result => return result.map(|(file, _)| file),
        }
    }
}

/// Writes the requested output to standard output. `None` waits for a stopped reader without a limit.
///
/// # Errors
/// Not all of it was written: standard output is closed, full, or has no reader.
pub fn to_stdout(text: impl AsRef<[u8]>, reader_within: Option<Duration>) -> io::Result<()> {
    let written = write_in_time(io::stdout().as_fd(), text.as_ref(), reader_within);
    written.map_err(|error| match error.raw_os_error() {
        Some(libc::EBADF) => io::Error::other("it is closed"),
        _ => error,
    })
}

/// Returns whether a little can be written to standard output now, or the write fails at once.
pub fn is_stdout_writable() -> bool {
    let ready = poll(&mut [PollFd::new(io::stdout().as_fd(), PollFlags::POLLOUT)], PollTimeout::ZERO);
    ready.is_ok_and(|count| count > 0)
}

/// Writes without waiting for a reader for longer than `reader_within`.
fn write_in_time(
    descriptor: BorrowedFd<'_>,
    content: &[u8],
    reader_within: Option<Duration>,
) -> io::Result<()> {
    let timeout = reader_within
        .map_or(PollTimeout::NONE, |limit| PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX));
    let mut rest = content;
    while !rest.is_empty() {
        match poll(&mut [PollFd::new(descriptor, PollFlags::POLLOUT)], timeout) {
            Ok(0) => return Err(io::Error::other("it has no reader")),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        match nix::unistd::write(descriptor, &rest[..rest.len().min(AT_ONCE)]) {
            Ok(written) => rest = &rest[written..],
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

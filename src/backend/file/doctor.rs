//! Checks whether a directory is fit for locks, by means of two scratch files that are unlinked while they are used.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use super::errors::describe;
use super::lock_file::{self, try_lock};
use super::presence::{Role, announce, is_there, lock_content, unlock_content, withdraw};
use super::trust::{OTHERS_WRITE, user};
use super::{Location, sidecar};
use crate::backend::diagnosis::{Answer, Diagnosis, Finding, Level, Question, no_lock, p50_and_p99, short};
use crate::backend::ledger::GateMode;
use crate::backend::{io_text, race};
use crate::clock::Moment;
use crate::exit::FailureKind;

/// How often the scratch lock is taken and released.
const CYCLES: usize = 100;
/// Less free space than this is used up soon: some sidecar files.
const LOW_SPACE: u64 = 1 << 20;
/// Fewer free inodes than this are used up soon.
const LOW_INODES: u64 = 100;
/// The space that a sidecar takes on the disk.
const PAGE: usize = 4096;
/// In a sticky directory, only owners may remove their files (`chmod(1)`).
const STICKY: u32 = 0o1000;

/// The two files of a scratch lock, each open twice.
struct Scratch {
    locks: [File; 2],
    sidecars: [File; 2],
}

/// Examines a directory; blocks as long as its file system does. Returns whether locks can be taken there.
pub(super) fn examine(location: &Location, examination: &Diagnosis) -> bool {
    let found = |finding| examination.found(finding);
    examination.begin("directory");
    let directory = match directory(location) {
        Ok(directory) => directory,
        Err(finding) => {
            found(finding);
            return false;
        }
    };
    let file_system = file_system(&location.directory);
    answer(examination, &directory, &file_system);
    found(directory);
    found(file_system);
    examination.begin("room");
    let room = room(&location.directory);
    let is_full = room.as_ref().is_some_and(|finding| finding.consequence.is_some());
    examination.begin("writing");
    match Scratch::create(location) {
        Err((what, error)) => {
            let kind = describe(&error, &what, &location.directory).failure_kind();
            let remedy = match error.raw_os_error() {
                Some(libc::ENOSPC | libc::EDQUOT) => "make room, or name another directory",
                Some(libc::EROFS) => "mount the file system for writing, or name another directory",
                _ => "let this user write there, or name another directory",
            };
            found(unusable("writing", &format!("cannot {what}: {}", io_text(&error)), kind, remedy));
            if is_full {
                room.into_iter().for_each(found);
            }
            false
        }
        Ok(scratch) => {
            found(Finding::ok("writing", "lock files and sidecar files can be made and written"));
            room.into_iter().for_each(found);
            examination.begin("exclusion");
            found(exclusion(&scratch).unwrap_or_else(|error| no_exclusion(&io_text(&error))));
            examination.begin("latency");
            if let Ok(finding) = latency(&scratch) {
                found(finding);
            }
            true
        }
    }
}

/// Returns the finding about the directory, or the one for a directory that cannot be used.
fn directory(location: &Location) -> Result<Finding, Finding> {
    location.prepare().map_err(|error| {
        let remedy = "let this user make it, or name another directory";
        unusable("directory", &error.to_string(), error.failure_kind(), remedy)
    })?;
    let directory = &location.directory;
    match fs::metadata(directory) {
        Ok(metadata) if metadata.is_dir() => Ok(owner_and_mode(directory, &metadata)),
        Ok(_) => Err(unusable("directory", "it is not a directory", FailureKind::Config, "name a directory")),
        Err(error) => {
            let remedy = format!(
                "make {}, for this user or for a group: see dlock doctor --policy",
                directory.display()
            );
            let kind = describe(&error, "read the directory", directory).failure_kind();
            Err(unusable("directory", &io_text(&error), kind, &remedy))
        }
    }
}

/// Answers what follows from the directory and its file system. There is no lease on `file:`.
fn answer(examination: &Diagnosis, directory: &Finding, file_system: &Finding) {
    let server = match file_system.level {
        Level::Ok => Answer::new("yes", "the kernel of this host"),
        _ => Answer::new("unknown", &file_system.found),
    };
    let loss = match (&directory.consequence, file_system.level) {
        (Some(consequence), _) => Answer::new("yes", consequence),
        (None, Level::Ok) => Answer::new(
            "no",
            "the kernel keeps it until the holder's last process has ended, unless its lock file is removed or replaced",
        ),
        (None, _) => Answer::new("unknown", &file_system.found),
    };
    let clock = "there is no lease and --ttl means nothing here: the lock of a crashed holder is free as soon as the last \
                 process of that holder has ended";
    examination.answer(Question::Loss, loss);
    examination.answer(Question::OneServer, server);
    examination.answer(Question::LeaseClock, Answer::new("none", clock));
}

fn unusable(check: &'static str, found: &str, kind: FailureKind, remedy: &str) -> Finding {
    Finding::problem(check, found, no_lock(kind), remedy)
}

/// A user who may rename files in a directory, or in one above it, can replace the lock file of a lock that is held.
fn owner_and_mode(directory: &Path, metadata: &Metadata) -> Finding {
    let real = fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
    let led = if real == directory { String::new() } else { format!(", leads to {}", real.display()) };
    let owner = metadata.uid();
    let (shown, mode) = (directory.display(), metadata.mode() & 0o7777);
    let found = format!("{shown}, of {}, mode {mode:04o}{led}", user(owner));
    let open = real.ancestors().find(|above| {
        fs::metadata(above).is_ok_and(|metadata| metadata.mode() & (OTHERS_WRITE | STICKY) == OTHERS_WRITE)
    });
    if let Some(open) = open {
        let open = open.display();
        return Finding::problem(
            "directory",
            found,
            format!(
                "every user may replace what is in {open}, lock files too: then two commands run at once"
            ),
            format!("chmod o-w {open}, or chmod +t {open} if every user is to use it"),
        );
    }
    if metadata.mode() & OTHERS_WRITE != 0 {
        return Finding::warning(
            "directory",
            found,
            format!(
                "every user may make a file there before dlock does; dlock rejects such a file: {}",
                no_lock(FailureKind::Denied)
            ),
            format!("chmod o-w {shown}; users who share locks share it by a group: chmod 2770 {shown}"),
        );
    }
    if owner != 0 && owner != nix::unistd::geteuid().as_raw() {
        return Finding::warning(
            "directory",
            found,
            format!(
                "{} may replace lock files while they are held: then two commands run at once",
                user(owner)
            ),
            "use a directory of this user's own or of root's",
        );
    }
    Finding::ok("directory", found)
}

fn file_system(directory: &Path) -> Finding {
    match super::location::network_file_system(directory) {
        None => Finding::ok("file system", "local: its locks are those of this host's kernel"),
        Some(kind) => Finding::warning(
            "file system",
            format!("{kind}: locks are made elsewhere"),
            "the lock is only as good as the locks of that file system, and hosts may not see each other's",
            "use a directory of a local file system, or a store that is made for several hosts",
        ),
    }
}

/// Returns how much space is left; `None` if the file system does not report it.
fn room(directory: &Path) -> Option<Finding> {
    let stat = nix::sys::statvfs::statvfs(directory).ok()?;
    // The types differ between systems.
    #[allow(clippy::unnecessary_cast)]
    let (bytes, files, all_files) = (
        stat.blocks_available() as u64 * stat.fragment_size() as u64,
        stat.files_available() as u64,
        stat.files() as u64,
    );
    // Some file systems (btrfs) do not count inodes.
    let counts = all_files > 0;
    let of_files = if counts { format!(" and {files} files") } else { String::new() };
    let found = format!("room for {} KiB{of_files}", bytes / 1024);
    Some(match bytes < LOW_SPACE || counts && files < LOW_INODES {
        false => Finding::ok("room", found),
        true => Finding::warning(
            "room",
            found,
            format!(
                "when it is used up, under a name that was not used before {}",
                no_lock(FailureKind::Unavailable)
            ),
            "make room",
        ),
    })
}

impl Scratch {
    /// Creates the files in the same way as those of a lock, and unlinks them.
    fn create(location: &Location) -> Result<Scratch, (String, io::Error)> {
        let failed = |what: &str| {
            let what = what.to_owned();
            move |error: io::Error| (what, error)
        };
        let name = race::scratch_name();
        let twice = |path: &Path, open: fn(&Path) -> io::Result<File>| {
            let files = open(path).and_then(|file| Ok([file, open(path)?]));
            let _ = fs::remove_file(path);
            files
        };
        let locks = twice(&location.lock_path(&name), lock_file::open).map_err(failed("make a lock file"))?;
        let sidecars =
            twice(&location.sidecar_path(&name), sidecar::open).map_err(failed("make a sidecar file"))?;
        sidecars[0].write_all_at(&[b' '; PAGE], 0).map_err(failed("write a sidecar file"))?;
        Ok(Scratch { locks, sidecars })
    }
}

/// Checks whether the file system excludes a second descriptor, in both ways that dlock needs.
fn exclusion(scratch: &Scratch) -> io::Result<Finding> {
    let [ours, other] = &scratch.locks;
    if !try_lock(ours, GateMode::Exclusive)? {
        return Ok(no_exclusion("a new file with a random name is locked"));
    }
    if try_lock(other, GateMode::Exclusive)? || try_lock(other, GateMode::Shared)? {
        return Ok(no_exclusion("flock(2) grants an exclusive lock twice"));
    }
    ours.unlock()?;
    if !try_lock(other, GateMode::Exclusive)? {
        return Ok(no_exclusion("flock(2) keeps a lock after its release"));
    }
    other.unlock()?;
    let [ours, other] = &scratch.sidecars;
    announce(ours, Role::Holding, 1)?;
    let seen = is_there(other, Role::Holding, 1);
    withdraw(ours, Role::Holding, 1);
    let gone = !is_there(other, Role::Holding, 1);
    let content = lock_content(ours)? && !lock_content(other)?;
    unlock_content(ours);
    if !seen || !gone || !content {
        return Ok(no_exclusion("locks of single bytes (F_OFD_SETLK, fcntl(2)) do not exclude"));
    }
    Ok(Finding::ok("exclusion", "flock(2) and locks of single bytes keep two descriptors apart"))
}

fn no_exclusion(found: &str) -> Finding {
    Finding::problem(
        "exclusion",
        found,
        "two commands can hold the same lock at once",
        "use a directory of another file system",
    )
}

fn latency(scratch: &Scratch) -> io::Result<Finding> {
    let (lock, sidecar) = (&scratch.locks[0], &scratch.sidecars[0]);
    let mut times = Vec::with_capacity(CYCLES);
    for _ in 0..CYCLES {
        let begin = Moment::now();
        try_lock(lock, GateMode::Exclusive)?;
        lock_content(sidecar)?;
        sidecar.write_all_at(&[b' '; PAGE], 0)?;
        unlock_content(sidecar);
        lock.unlock()?;
        times.push(Moment::now() - begin);
    }
    let (p50, p99) = p50_and_p99(times);
    let found = format!("p50 {}, p99 {} of {CYCLES} locks taken and given back", short(p50), short(p99));
    Ok(Finding::ok("latency", found))
}

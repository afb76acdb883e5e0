//! A directory for one test: its HOME, its locks, its files, and the inherited lock of the processes it started.

use super::SOON;
use super::admission::await_admission;
use super::dlock::Dlock;
use super::inherited_lock::InheritedLock;
use super::process::Marker;
use super::running::Exit;
use super::wait::until;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use tempfile::TempDir;

/// A temporary directory that two runs of one test share; clones are the same place.
///
/// When the last clone is dropped, everything that was started in it is killed, so that a test that panics
/// leaves no process behind.
#[derive(Clone)]
pub struct Place(Arc<Inner>);

struct Inner {
    directory: TempDir,
    marker: Marker,
    started: AtomicU32,
    /// Something was told the marker, and may have started processes.
    is_marked: AtomicBool,
}

impl Place {
    /// Creates an empty one.
    pub fn new() -> Self {
        await_admission();
        watch_over_ourselves();
        let directory = tempfile::Builder::new().prefix("it-").tempdir().expect("a temporary directory");
        std::fs::create_dir(directory.path().join("home")).expect("a home");
        std::fs::create_dir(directory.path().join("locks")).expect("a directory for locks");
        let (marker, started, is_marked) = (Marker::unique(), AtomicU32::new(0), AtomicBool::new(false));
        Self(Arc::new(Inner { directory, marker, started, is_marked }))
    }

    /// `dlock run` in this place, on its own directory of locks.
    pub fn run(&self) -> Dlock {
        Dlock::in_place(self.clone(), Some("run"))
    }

    /// `dlock` without arguments, in this place.
    pub fn bare(&self) -> Dlock {
        Dlock::in_place(self.clone(), None)
    }

    /// A path below this place.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.directory.path().join(name)
    }

    /// A path below this place, as an argument.
    pub fn arg(&self, name: &str) -> String {
        self.path(name).into_os_string().into_string().expect("a path in UTF-8")
    }

    /// The value of HOME.
    pub fn home(&self) -> PathBuf {
        self.path("home")
    }

    /// The directory of the default backend.
    pub fn locks(&self) -> PathBuf {
        self.path("locks")
    }

    /// The URL of the default backend.
    pub fn url(&self) -> String {
        format!("file://{}", self.locks().display())
    }

    /// The file whose flock(2) is the lock `name` of the default backend.
    pub fn lock_file(&self, name: &str) -> PathBuf {
        self.locks().join(format!("{name}.lock"))
    }

    /// Whether flock(2) finds the lock `name` of the default backend free; also true when it never existed.
    pub fn lock_is_free(&self, name: &str) -> bool {
        flock_is_free(&self.lock_file(name))
    }

    /// Breaks the lock `x` of the default backend, which stops the command, and waits until it is free.
    #[track_caller]
    pub fn break_lock(&self) {
        let broken = self.bare().args(["break", "--yes", "--wait", "2m", "-b", &self.url(), "x"]).output();
        assert_eq!(broken.exit, Exit::Code(0), "{}", broken.stderr);
    }

    /// An inherited lock for a tree of processes.
    pub fn inherited_lock(&self) -> InheritedLock {
        InheritedLock::at(self.path("inherited_lock"))
    }

    /// The content of the file `name`, empty when it does not exist.
    pub fn read(&self, name: &str) -> String {
        read(&self.path(name))
    }

    /// The sidecar of the lock `name` of the default backend; null while it does not exist, or while it is being
    /// written.
    pub fn noted(&self, name: &str) -> serde_json::Value {
        let bytes = std::fs::read(self.locks().join(format!("{name}.dlock"))).unwrap_or_default();
        let first = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let noted: serde_json::Value = serde_json::from_slice(first).unwrap_or_default();
        let number = |key: &str| noted[key].as_u64().and_then(|number| usize::try_from(number).ok());
        // What does not fit into the first page is written after it.
        match (number("at"), number("length")) {
            (Some(at), Some(length)) => {
                let content = bytes.get(at..at + length).unwrap_or_default();
                serde_json::from_slice(content).unwrap_or_default()
            }
            _ => noted,
        }
    }

    /// Writes the file `name`.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).expect("a file can be written");
        path
    }

    /// Writes an executable file.
    pub fn script(&self, name: &str, text: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let path = self.write(name, text);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("chmod");
        // A process that another test has forked meanwhile has it open until its exec, and a file that is open for
        // writing cannot be executed (ETXTBSY).
        until(SOON, "a script that nobody writes", || !is_open_for_writing(&path));
        path
    }

    /// The marker that everything started here carries.
    pub fn marker(&self) -> &Marker {
        self.0.is_marked.store(true, Ordering::Relaxed);
        &self.0.marker
    }

    /// A marker for one more run in this place.
    pub(super) fn next_marker(&self) -> Marker {
        self.marker().child(self.0.started.fetch_add(1, Ordering::Relaxed))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.is_marked.load(Ordering::Relaxed) {
            self.marker.kill_all();
        }
    }
}

/// Starts, once, a process that outlives this one and then kills the started processes that are left: a test
/// process that is killed drops nothing.
fn watch_over_ourselves() {
    static REAPER: OnceLock<Child> = OnceLock::new();
    REAPER.get_or_init(|| {
        let mut reaper = Command::new(super::probe::path());
        // Ctrl-C at the terminal of `cargo test` is not for it. Its standard input ends with this process.
        reaper
            .args(["reap", &format!("{}.", std::process::id())])
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        reaper.process_group(0).spawn().expect("the probe can be started")
    });
}

/// The content of a file, empty when it does not exist.
pub fn read(path: &Path) -> String {
    std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// Whether flock(2) finds a file unlocked. Locks it for a moment, and creates it if it does not exist.
pub fn flock_is_free(path: &Path) -> bool {
    let file = std::fs::File::options().create(true).append(true).open(path).expect("a file to be locked");
    // SAFETY: flock(2) on a descriptor that is open.
    let flock = |operation| unsafe { libc::flock(file.as_raw_fd(), operation) == 0 };
    // To close the file is not enough: a process that another test has forked meanwhile has it open until its exec.
    flock(libc::LOCK_EX | libc::LOCK_NB) && flock(libc::LOCK_UN)
}

/// Whether a process has a file of ours open for writing: a lease for reading is refused then (fcntl(2), F_SETLEASE).
fn is_open_for_writing(path: &Path) -> bool {
    let file = std::fs::File::open(path).expect("our own file");
    // SAFETY: fcntl(2) on a descriptor that is open, with an integer.
    let lease = |kind: libc::c_int| unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) == 0 };
    if lease(libc::F_RDLCK) {
        lease(libc::F_UNLCK);
        return false;
    }
    // Not every file system has leases.
    std::io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN)
}

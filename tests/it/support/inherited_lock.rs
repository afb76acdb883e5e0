//! The inherited lock: a file that a whole tree of processes keeps locked, so that the end of the tree can be observed.

use super::SOON;
use super::wait::until;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::Duration;

/// A file that a probe started with `--inherited-lock FILE` locks (shared; an open file description lock, see `fcntl(2)`),
/// through a descriptor that everything it forks inherits. Unlike a scan of /proc this misses no process that forks or
/// moves meanwhile. It is queried without being locked, so two observers do not disturb each other.
#[derive(Debug, Clone)]
pub struct InheritedLock(PathBuf);

impl InheritedLock {
    /// An inherited lock on this file.
    pub fn at(path: PathBuf) -> Self {
        Self(path)
    }

    /// The file's path.
    pub fn path(&self) -> &str {
        self.0.to_str().expect("a path in UTF-8")
    }

    /// Whether every process that held it is dead.
    pub fn is_free(&self) -> bool {
        let file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&self.0)
            .expect("the inherited lock can be opened");
        let mut range = whole_file();
        // SAFETY: fcntl(2) on a descriptor that is open, with a pointer to a value that lives through the call.
        let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut range) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        range.l_type == libc::F_UNLCK as libc::c_short
    }

    /// Waits until every process that held it is dead.
    #[track_caller]
    pub fn await_free(&self) {
        self.await_free_within(SOON);
    }

    /// Waits until every process that held it is dead, for at most `deadline`.
    #[track_caller]
    pub fn await_free_within(&self, deadline: Duration) {
        until(deadline, "the death of the whole tree", || self.is_free());
    }

    /// Blocks until every process that held it is dead, and returns that moment by the clock of the store (microseconds
    /// since 1970, as `TIME` and `PEXPIRETIME` of a Redis on this host count).
    pub fn await_last_death(&self) -> i64 {
        let file =
            std::fs::File::options().append(true).open(&self.0).expect("the inherited lock can be opened");
        let mut range = whole_file();
        // SAFETY: fcntl(2) on a descriptor that is open, with a pointer to a value that lives through the call.
        while unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLKW, &raw const range) } == -1 {}
        let death = store_clock();
        // To close the file is not enough: a process that another test has forked meanwhile has it open until its exec.
        range.l_type = libc::F_UNLCK as libc::c_short;
        // SAFETY: as above.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) };
        death
    }
}

/// The clock of a store on this host, in microseconds since 1970.
pub fn store_clock() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    i64::try_from(now.expect("a clock after 1970").as_micros()).expect("microseconds")
}

/// An exclusive lock of the whole file.
fn whole_file() -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

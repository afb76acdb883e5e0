//! Detects which holders and waiters are alive, and waits for their end, by means of the kernel.
//!
//! Every holder and waiter has a byte of the sidecar file locked, far behind its content, by a separate descriptor
//! (open file description locks, `fcntl(2)`). The kernel drops that lock with the last duplicate of the descriptor, and
//! the guard keeps one: so a holder is present until its process tree is dead, however dlock ends. To wait for the end
//! of a holder or waiter, a thread waits for its byte; the kernel wakes only the waiters of that byte.

use std::fs::File;
use std::io;
use std::sync::mpsc;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use tokio::sync::mpsc::UnboundedSender;

use crate::backend::ledger::GateMode;
use crate::thread;

/// The role in which a process is present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Waits in the queue.
    Waiting,
    /// Holds the lock, or is inside another process's hold.
    Holding,
}

/// An event that can be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// The end of this holder or waiter.
    Gone(Role, u64),
    /// `flock(2)` on the lock file has been granted.
    Flock(GateMode),
}

/// The byte whose lock guards the content.
const CONTENT: i64 = 0;
/// Far behind any content, and far from each other.
const WAITING: i64 = 1 << 60;
const HOLDING: i64 = 1 << 61;
/// A thread that waits for a lock needs next to no stack.
const STACK: usize = 64 * 1024;
/// The limit of concurrent watches; the rest is found by checking.
const MAX_WATCHES: usize = 32;

/// Threads that wait for events on a file, one event each.
pub(super) struct Watches {
    pending: Vec<Target>,
    sender: mpsc::Sender<Target>,
    events: mpsc::Receiver<Target>,
    /// A further recipient of notifications of events.
    changes: UnboundedSender<()>,
}

impl Watches {
    pub(super) fn new(changes: UnboundedSender<()>) -> Watches {
        let (sender, events) = mpsc::channel();
        Watches { pending: Vec::new(), sender, events, changes }
    }

    /// Returns whether a thread waits for this already.
    pub(super) fn has(&self, target: Target) -> bool {
        self.pending.contains(&target)
    }

    /// Waits for `flock(2)` on the open file, which then belongs to every duplicate of the descriptor.
    pub(super) fn flock(&mut self, file: &File, mode: GateMode) -> bool {
        let Ok(file) = file.try_clone() else { return false };
        self.watch(Target::Flock(mode), move || match mode {
            GateMode::Exclusive => file.lock(),
            GateMode::Shared => file.lock_shared(),
        })
    }

    /// Waits for the end of a holder or waiter. `sidecar` must not be a descriptor that itself marks a process as
    /// present. Returns whether that is possible.
    pub(super) fn gone(&mut self, sidecar: File, role: Role, ticket: u64) -> bool {
        self.watch(Target::Gone(role, ticket), move || wait_for(&sidecar, role, ticket))
    }

    fn watch(&mut self, target: Target, wait: impl FnOnce() -> io::Result<()> + Send + 'static) -> bool {
        if self.has(target) {
            return true;
        }
        if self.pending.len() >= MAX_WATCHES {
            return false;
        }
        let (sender, changes) = (self.sender.clone(), self.changes.clone());
        let started = thread::spawn("lock-wait", STACK, move || {
            // A wait that failed has ended too: the next attempt then finds the reason.
            let _ = wait();
            let _ = sender.send(target);
            let _ = changes.send(());
        });
        if started.is_ok() {
            self.pending.push(target);
        }
        started.is_ok()
    }

    /// Returns an event that has happened.
    pub(super) fn ready(&mut self) -> Option<Target> {
        let target = self.events.try_recv().ok()?;
        self.pending.retain(|pending| *pending != target);
        Some(target)
    }
}

fn byte(role: Role, ticket: u64) -> i64 {
    let base = match role {
        Role::Waiting => WAITING,
        Role::Holding => HOLDING,
    };
    base + (ticket % (1 << 60)) as i64
}

fn range(kind: i32, byte: i64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte,
        l_len: 1,
        l_pid: 0,
    }
}

fn set(file: &File, kind: i32, byte: i64) -> io::Result<()> {
    fcntl(file, FcntlArg::F_OFD_SETLK(&range(kind, byte)))?;
    Ok(())
}

/// Takes the lock of the content if it is free.
pub(super) fn lock_content(file: &File) -> io::Result<bool> {
    match set(file, libc::F_WRLCK, CONTENT) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Releases the lock of the content.
pub(super) fn unlock_content(file: &File) {
    let _ = set(file, libc::F_UNLCK, CONTENT);
}

/// Marks this process as present, until this descriptor and its duplicates are closed.
pub(super) fn announce(file: &File, role: Role, ticket: u64) -> io::Result<()> {
    set(file, libc::F_WRLCK, byte(role, ticket))
}

/// Ends the presence, for all duplicates of this descriptor.
pub(super) fn withdraw(file: &File, role: Role, ticket: u64) {
    let _ = set(file, libc::F_UNLCK, byte(role, ticket));
}

/// Returns whether the byte is locked by another descriptor. A read lock belongs to a process that waits for the
/// byte, not to one that is present.
pub(super) fn is_there(file: &File, role: Role, ticket: u64) -> bool {
    let mut lock = range(libc::F_RDLCK, byte(role, ticket));
    match fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock)) {
        Ok(_) => i32::from(lock.l_type) != libc::F_UNLCK,
        // If that cannot be determined, assume it is present.
        Err(_) => true,
    }
}

/// Blocks until the holder or waiter has gone.
fn wait_for(file: &File, role: Role, ticket: u64) -> io::Result<()> {
    loop {
        match fcntl(file, FcntlArg::F_OFD_SETLKW(&range(libc::F_RDLCK, byte(role, ticket)))) {
            Ok(_) => return set(file, libc::F_UNLCK, byte(role, ticket)),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

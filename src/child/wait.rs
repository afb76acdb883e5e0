//! The state changes and the ends of children.

use std::time::Duration;

use super::sys::{ChildInfo, kill, waitid};
use crate::clock::Moment;

/// The pause between two looks whether a child has ended, without pidfds.
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

/// A state change of a child. Signals are plain numbers: no crate has names for real-time signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It exited with this status.
    Exited(i32),
    /// It was killed by this signal.
    Killed(i32),
    /// It was stopped by this signal.
    Stopped(i32),
    /// It was continued.
    Continued,
}

/// Returns the next state change of any child, if there is one.
///
/// # Errors
/// `ECHILD` if there is no child at all.
pub fn wait_any() -> nix::Result<Option<(i32, Change)>> {
    const ANY_CHANGE: i32 = libc::WEXITED | libc::WSTOPPED | libc::WCONTINUED | libc::WNOHANG;
    while let Some(ChildInfo { pid, code, status }) = waitid(libc::P_ALL, 0, ANY_CHANGE)? {
        let change = match code {
            libc::CLD_EXITED => Change::Exited(status),
            libc::CLD_KILLED | libc::CLD_DUMPED => Change::Killed(status),
            libc::CLD_STOPPED => Change::Stopped(status),
            libc::CLD_CONTINUED => Change::Continued,
            _ => continue,
        };
        return Ok(Some((pid, change)));
    }
    Ok(None)
}

/// Returns whether the calling process has children. Nothing is reaped.
pub fn has_children() -> bool {
    waitid(libc::P_ALL, 0, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT).is_ok()
}

/// The limit per call of [`pending_changes`]: while a tree dies, or forks without end, there may always be one more.
pub const MAX_CHANGES: usize = 1024;

/// Returns the pending state changes of all children, up to a limit, so that the caller can continue. Errors as for
/// [`wait_any`].
pub fn pending_changes() -> impl Iterator<Item = nix::Result<(i32, Change)>> {
    std::iter::from_fn(|| wait_any().transpose()).take(MAX_CHANGES)
}

/// The relation of a process to the calling one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnChild {
    /// A child that has not ended.
    Alive,
    /// A child that has ended and has not been reaped.
    Dead,
    /// Not a child of the calling process.
    No,
}

/// Returns whether this is a child of the calling process, without using `/proc`. Nothing is reaped.
pub fn own_child(pid: i32) -> OwnChild {
    match waitid(libc::P_PID, pid, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT) {
        Ok(None) => OwnChild::Alive,
        Ok(Some(_)) => OwnChild::Dead,
        Err(_) => OwnChild::No,
    }
}

/// Reaps this child; blocks until it has ended.
///
/// # Errors
/// `ECHILD` if it is not a child of this process.
pub fn reap(pid: i32) -> nix::Result<()> {
    waitid(libc::P_PID, pid, libc::WEXITED).map(drop)
}

/// Reaps a child that is exiting. If another process has just stopped it, it is killed.
pub fn reap_exiting(pid: i32) {
    if !has_ended(pid, Duration::from_millis(500)) {
        let _ = kill(pid, libc::SIGKILL);
        // While it sleeps in a hung disk operation, or is frozen, even SIGKILL takes effect only later.
        if !has_ended(pid, Duration::from_millis(100)) {
            return;
        }
    }
    let _ = reap(pid);
}

/// Returns whether a child ends within that time.
fn has_ended(pid: i32, within: Duration) -> bool {
    if let Ok(pidfd) = super::sys::pidfd_open(pid) {
        use std::os::fd::AsFd;

        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let mut fds = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(within.as_millis()).unwrap_or(PollTimeout::MAX);
        return poll(&mut fds, timeout) != Ok(0);
    }
    // Before Linux 5.3, or in a sandbox.
    let until = Moment::now() + within;
    while own_child(pid) == OwnChild::Alive && Moment::now() < until {
        std::thread::sleep(BETWEEN_LOOKS);
    }
    own_child(pid) != OwnChild::Alive
}

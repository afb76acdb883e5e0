//! The process of the command, as a child of the guard.

use std::io::{PipeReader, Read};
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{Pid, setpgid};

use super::protocol::{Ended, Group};
use super::sys;
use super::wait::Change;
use super::{procfs, signals};

/// The process of the command, parked or running.
pub(super) struct CommandProcess {
    pub(super) pid: i32,
    /// Receives the errno of its exec, if that fails.
    exec_result: PipeReader,
    group: Group,
    /// A signal that ends the command was forwarded.
    end_signalled: bool,
    /// It is stopped (SIGSTOP, SIGTSTP, ...).
    pub(super) is_stopped: bool,
    pub(super) is_reaped: bool,
}

impl CommandProcess {
    pub(super) fn parked(pid: i32, exec_result: PipeReader) -> CommandProcess {
        CommandProcess {
            pid,
            exec_result,
            group: Group::Shared,
            end_signalled: false,
            is_stopped: false,
            is_reaped: false,
        }
    }

    /// The first of two processes to do so creates the group (setpgid(2) fails harmlessly after exec): a signal must find
    /// it.
    pub(super) fn enter(&mut self, group: Group) {
        self.group = group;
        if self.has_own_group() {
            let pid = Pid::from_raw(self.pid);
            let _ = setpgid(pid, pid);
        }
    }

    pub(super) fn has_own_group(&self) -> bool {
        matches!(self.group, Group::Own { .. })
    }

    /// Notes a signal that dlock has received. One that was ignored at the start (nohup, a background job of a script)
    /// does not end the command.
    pub(super) fn note_end_signal(&mut self, signal: i32) {
        self.end_signalled |= signals::asks_to_end(signal);
    }

    /// Sends a signal to its process group, or to itself in a shared group. As a child that is not reaped it keeps its
    /// pid, and so does its group.
    ///
    /// # Errors
    /// `EPERM` if it may not be signalled.
    pub(super) fn signal(&self, signal: i32) -> nix::Result<()> {
        if self.is_reaped {
            return Ok(());
        }
        let target = if self.has_own_group() { -self.pid } else { self.pid };
        sys::kill(target, signal).or_else(|errno| match errno {
            // It was let go, and is not in its own group yet.
            Errno::ESRCH => sys::kill(self.pid, signal),
            _ => Err(errno),
        })
    }

    /// Returns whether a signal for its group has reached this process.
    pub(super) fn shares_group_with(&self, pid: i32) -> bool {
        pid == self.pid || procfs::group_of(pid) == Some(self.pid)
    }

    /// Notes a change of its state; returns how it has ended, if it has.
    pub(super) fn note(&mut self, change: Change) -> Option<Ended> {
        let ended = match change {
            Change::Stopped(_) | Change::Continued => {
                self.is_stopped = change != Change::Continued;
                return None;
            }
            Change::Exited(status) => match self.exec_error() {
                Some(errno) => Ended::NotExecuted(errno),
                None => Ended::Exited(status),
            },
            Change::Killed(signal) => Ended::Killed(signal),
        };
        self.is_reaped = true;
        Some(ended)
    }

    /// Returns whether it ended by itself, and not of a signal.
    pub(super) fn ended_by_itself(&self, ended: Ended) -> bool {
        !matches!(ended, Ended::Killed(_)) && !self.end_signalled
    }

    /// Returns whether it runs the program, and is parked no longer: its exec has closed the pipe.
    pub(super) fn is_executed(&self) -> bool {
        let mut pipe = [PollFd::new(self.exec_result.as_fd(), PollFlags::POLLIN)];
        poll(&mut pipe, PollTimeout::ZERO).is_ok() && pipe[0].revents() == Some(PollFlags::POLLHUP)
    }

    fn exec_error(&mut self) -> Option<i32> {
        let mut errno = [0u8; 4];
        self.exec_result.read_exact(&mut errno).ok().map(|()| i32::from_le_bytes(errno))
    }
}

//! The state changes of the guard's children: the command, and the orphans that the guard inherits.

use std::io;
use std::time::Duration;

use nix::errno::Errno;

use super::Guard;
use crate::child::protocol::Event;
use crate::child::stop::Input;
use crate::child::wait::{self, Change};
use crate::child::{procfs, signals, sys};
use crate::clock::Moment;

/// dlock notices within this time that the command was stopped, and stops itself.
const STOPS_WITHIN: Duration = Duration::from_millis(500);

impl Guard {
    /// Handles the state changes of every child: the command, and the orphans that the guard inherits. Returns whether
    /// there may be more: the limit per call has been reached, or a deadline is due.
    pub(super) fn reap(&mut self) -> bool {
        let due = self.stop.wake();
        let mut count = 0;
        for change in wait::pending_changes() {
            count += 1;
            match change {
                Ok((pid, change)) => {
                    if let Change::Exited(_) | Change::Killed(_) = change {
                        if let Some(terminating) = &mut self.terminating {
                            terminating.terminator.forget(pid);
                        }
                        if let Some(killing) = &mut self.killing {
                            killing.killer.forget(pid);
                        }
                        self.standby.note_reaped(pid);
                        self.terminal_witness.note_reaped(pid);
                    }
                    // Once it is reaped, another process may get its number.
                    if pid == self.command.pid && !self.command.is_reaped {
                        self.command_changed(change);
                    }
                    // If processes fork and exit without a pause, reaping them all would miss the deadline.
                    if due.is_some_and(|due| Moment::now() >= due) {
                        return true;
                    }
                }
                Err(Errno::ECHILD) => {
                    self.act(Input::TreeGone);
                    return false;
                }
                // A sandbox that does not allow the call: the state of the command cannot be determined.
                Err(errno) => {
                    self.failed = true;
                    let why = format!("cannot wait for the command: {}", io::Error::from(errno));
                    self.report(Event::GuardLost(why));
                    return false;
                }
            }
        }
        count == wait::MAX_CHANGES
    }

    pub(super) fn command_changed(&mut self, change: Change) {
        let ended = self.command.note(change);
        match change {
            // It was stopped while it was parked, which `start` did not know yet.
            Change::Stopped(_) if !self.stop.is_parked() && !self.command.is_executed() => {
                return self.signal_command(libc::SIGCONT);
            }
            Change::Stopped(signal) => return self.report(Event::Stopped(signal)),
            Change::Continued => {
                self.report(Event::Continued);
                self.wake_dlock_until = Some(Moment::now() + STOPS_WITHIN);
            }
            Change::Exited(_) | Change::Killed(_) => {}
        }
        self.wake_dlock();
        if let Some(ended) = ended {
            let is_interrupted = self.terminal_witness.has_seen_end_signal();
            if is_interrupted {
                self.report(Event::Interrupted);
            }
            self.report(Event::Ended(ended));
            self.terminal_witness.end();
            let by_itself =
                self.command.ended_by_itself(ended) && !is_interrupted && !self.dlock_has_unread_end();
            self.act(Input::CommandEnded { by_itself });
        }
    }

    /// Returns whether something is left of the tree, and dlock has received a signal that asks the command to end, but
    /// has not read it yet: what is left is still the command.
    fn dlock_has_unread_end(&self) -> bool {
        wait::has_children() && signals::is_end_pending_in(nix::unistd::getppid().as_raw())
    }

    /// On a terminal, dlock stops itself when the command is stopped, for the shell to see. If another process
    /// continues or ends only the command, dlock would stay stopped, so the guard continues it.
    fn wake_dlock(&self) {
        let dlock = nix::unistd::getppid().as_raw();
        let by_others = !self.stop.is_stopping() && !self.dlock.is_gone();
        if by_others && self.terminal.exists() && dlock > 1 && procfs::state_of(dlock) == Some('T') {
            let _ = sys::kill(dlock, libc::SIGCONT);
        }
    }

    /// Does so as well if dlock has stopped itself because of a stop that was over by then.
    pub(super) fn wake_late_dlock(&mut self) {
        self.wake_dlock_until.take_if(|until| Moment::now() >= *until);
        if self.wake_dlock_until.is_some() && !self.command.is_stopped && !self.command.is_reaped {
            self.wake_dlock();
        }
    }
}

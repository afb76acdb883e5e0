//! On a terminal, a process in the command's process group that blocks every signal and does nothing else: it shows whether the
//! group was sent a signal that ends the command. Ctrl-C reaches a command with a process group of its own, but neither dlock
//! nor the guard.

use crate::child::forwarder::fork_witness;
use crate::child::{signals, sys};

/// The witness, until it is reaped.
#[derive(Default)]
pub(super) struct TerminalWitness {
    pid: Option<i32>,
}

impl TerminalWitness {
    /// Forks the witness into this process group of the session, or into that of the calling process.
    pub(super) fn fork(&mut self, group: Option<i32>) {
        self.pid = fork_witness(sys::ArgvMemory::none(), group).ok();
    }

    /// Returns its pid: it does not belong to the tree.
    pub(super) fn pid(&self) -> Option<i32> {
        self.pid
    }

    /// Returns whether the group has been sent a signal that ends the command, unless it was ignored at the start.
    pub(super) fn has_seen_end_signal(&self) -> bool {
        self.pid.is_some_and(signals::is_end_pending_in)
    }

    /// Ends it: the command has ended.
    pub(super) fn end(&self) {
        if let Some(pid) = self.pid {
            let _ = sys::kill(pid, libc::SIGKILL);
        }
    }

    /// Notes that a child of the guard has ended.
    pub(super) fn note_reaped(&mut self, pid: i32) {
        if self.pid == Some(pid) {
            self.pid = None;
        }
    }
}

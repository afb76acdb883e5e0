//! What dlock orders the guard to do.

use nix::errno::Errno;

use super::{Guard, SETTLE_AFTER};
use crate::child::Deadlines;
use crate::child::protocol::{Event, FromGuard, Group, Received, ToGuard};
use crate::child::signals;
use crate::child::stop::{Input, Stop};
use crate::clock::Moment;

impl Guard {
    pub(super) fn read_messages(&mut self) {
        while !self.dlock.is_gone() {
            match self.dlock.receive() {
                Received::Message(message) => self.handle(message),
                Received::Nothing => return,
                Received::Closed => self.act(Input::PeerGone),
            }
        }
    }

    fn handle(&mut self, message: ToGuard) {
        match message {
            ToGuard::Keep => self.kept.extend(self.dlock.take_descriptor()),
            ToGuard::Start { group, until, stop, keeps } => {
                if keeps != self.kept.len() {
                    let why = "the guard process has no descriptor left for the lock";
                    self.report(Event::GuardLost(why.into()));
                    return self.act(Input::Kill);
                }
                self.options = stop;
                self.stop = Stop::new(stop.orphans, stop.grace);
                self.start(group, until);
            }
            ToGuard::Arm(until) => {
                self.act(Input::Arm(until));
                self.measure_at = self.stop.measure_from().map(|(from, _)| from);
            }
            ToGuard::Received(signal) => self.command.note_end_signal(signal),
            ToGuard::Forward(signal) => self.forward(signal),
            // The reply comes first: a large tree takes seconds to signal.
            ToGuard::Terminate { kill_at } => {
                self.reply();
                self.terminate_by = Some(self.terminate_by.map_or(kill_at, |before| before.min(kill_at)));
            }
            ToGuard::Kill => {
                self.reply();
                self.act(Input::Kill);
            }
            ToGuard::Ping => self.reply(),
            ToGuard::Continue { foreground } => {
                if foreground {
                    self.terminal.give_to(self.command.pid);
                }
                if self.command.is_stopped {
                    self.signal_command(libc::SIGCONT);
                }
            }
        }
    }

    fn reply(&mut self) {
        self.dlock.queue(&FromGuard::Pong);
        self.dlock.flush();
        self.standby.note_ping();
    }

    /// dlock lets the command run after sending this message, so that the guard has the deadline before the command's first
    /// instruction, and is there to see its end. It waits for more than that only on a terminal.
    fn start(&mut self, group: Group, until: Option<Deadlines>) {
        use nix::unistd::{Pid, setpgid, setsid};
        self.command.enter(group);
        if self.terminal.exists() {
            self.terminal_witness.fork(self.command.has_own_group().then_some(self.command.pid));
        }
        // Moves the guard out of reach of signals for dlock's process group. A new session is better still, but not
        // while the command has its own process group on a terminal: a group without a process whose parent is in the
        // same session is orphaned, and an orphaned group cannot be stopped by Ctrl-Z (setpgid(2), credentials(7)).
        if self.command.has_own_group() && self.terminal.exists() {
            let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
        } else {
            let _ = setsid();
        }
        // It was stopped while parked, together with dlock's process group: that was meant for dlock, which has been
        // continued. One that runs already has stopped itself: this process was late.
        if self.command.is_stopped && !self.command.is_executed() {
            self.signal_command(libc::SIGCONT);
        }
        self.settle_at = Some(Moment::now() + SETTLE_AFTER);
        self.standby.note_ping();
        self.act(Input::Start(until));
        self.measure_at = self.stop.measure_from().map(|(from, _)| from);
    }

    /// Forwards a signal to the command's process group, once.
    fn forward(&mut self, signal: i32) {
        self.command.note_end_signal(signal);
        if !self.command.is_reaped {
            // In a shared group, the shell's own SIGCONT has reached every process already.
            if signal == libc::SIGCONT && !self.command.has_own_group() && !self.command.is_stopped {
                return;
            }
            self.signal_command(signal);
        } else if signals::asks_to_end(signal) {
            // Only background processes are left (`--orphans wait`).
            self.act(Input::Terminate { kill_at: Moment::now() + self.options.grace });
        }
    }

    pub(super) fn signal_command(&mut self, signal: i32) {
        if self.command.signal(signal) == Err(Errno::EPERM) {
            self.report_once(self.command.pid, Event::NotPermitted);
        }
    }
}

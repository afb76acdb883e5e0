//! Decides which signals are forwarded to the command, so that it receives each one once.
//!
//! A signal sent to dlock alone has to be forwarded. One sent to dlock's whole process group (`kill -- -GROUP`,
//! `timeout(1)`), or to every process (systemd's `KillMode=control-group`, `kill -- -1`), has reached the command
//! already, and the kernel does not report the difference. So dlock checks other processes that are never signalled on
//! purpose: the guard, which is not in dlock's process group, and a witness, which is. If one of them received the same
//! signal at the same time, so did the command. A signal is held back for a moment, because the copies are sent one
//! after the other.
//!
//! Without such a copy the signal is forwarded: twice is better than never.

use std::time::Duration;

use nix::sys::signal::SigmaskHow;
use nix::unistd::{ForkResult, Pid, getpgrp, getpid, getppid, setpgid};

use super::protocol::Group;
use super::signals::{self, Arrival, Origin};
use super::{procfs, sys, wait};
use crate::clock::Moment;
use crate::signal_mask;

/// How long the copies of one signal may take to be sent.
const HOLD: Duration = Duration::from_millis(20);

/// The maximum age of a copy at the guard that still belongs to a signal that arrives now.
const OLDEST_COPY: Duration = Duration::from_millis(100);

/// How often the command is checked before the copy decides.
const MAX_CHECKS: u32 = 4;

/// How long the command runs before the witness is forked; a short command is spared it.
const WITNESS_AFTER: Duration = Duration::from_millis(3);

/// The name of the witness in `ps` and `pkill`; like the guard's, it does not contain "dlock".
const WITNESS_NAME: &std::ffi::CStr = c"lock-witness";

/// The highest number of a signal that is not queued when it is sent repeatedly (`signal(7)`).
const LAST_STANDARD: i32 = 31;

struct DelayedSignal {
    signal: i32,
    sender: i32,
    arrived: Moment,
    due: Moment,
    /// The number of checks of the command since a copy was found, none of which could determine whether the command
    /// received the signal too.
    checks: Option<u32>,
}

impl DelayedSignal {
    fn is_same(&self, signal: i32, sender: i32) -> bool {
        self.signal == signal && self.sender == sender
    }
}

struct Copy {
    signal: i32,
    sender: i32,
    seen: Moment,
}

/// The processes that are checked for copies.
#[derive(Clone, Copy)]
pub(super) struct Processes {
    pub(super) guard: i32,
    pub(super) command: Option<i32>,
}

/// The signals that are held back, and the evidence for forwarding them.
pub(super) struct Forwarder {
    held: Vec<DelayedSignal>,
    /// The signals that the guard received.
    copies: Vec<Copy>,
    witness: Option<i32>,
    /// The signals that the witness received and that are accounted for.
    seen: Vec<i32>,
    /// The signals that a former witness received and that are not accounted for, and until when they count.
    late: Option<(procfs::Signals, Moment)>,
    /// When the witness is to be forked, or replaced by one without pending signals.
    fork_at: Option<Moment>,
    argv: sys::ArgvMemory,
}

impl Forwarder {
    pub(super) fn new(argv: sys::ArgvMemory) -> Forwarder {
        Forwarder {
            held: Vec::new(),
            copies: Vec::new(),
            witness: None,
            seen: Vec::new(),
            late: None,
            fork_at: None,
            argv,
        }
    }

    /// Starts forwarding: the command has been started.
    pub(super) fn begin(&mut self, group: Group) {
        if group == Group::Shared {
            self.fork_at = Some(Moment::now() + WITNESS_AFTER);
        }
    }

    /// Holds a signal back if necessary. Returns false if it is to be forwarded at once.
    pub(super) fn hold(&mut self, arrival: Arrival) -> bool {
        let Origin::Process(sender) = arrival.origin else { return false };
        let signal = arrival.signal;
        let now = Moment::now();
        self.held.push(DelayedSignal { signal, sender, arrived: now, due: now + HOLD, checks: None });
        true
    }

    /// Notes a signal that the guard received.
    pub(super) fn note_copy(&mut self, signal: i32, sender: i32) {
        let now = Moment::now();
        self.copies.retain(|copy| now - copy.seen < OLDEST_COPY);
        self.copies.push(Copy { signal, sender, seen: now });
    }

    /// Notes that the terminal has signalled the group, and the witness with it.
    pub(super) fn note_terminal(&mut self) {
        if self.witness.is_some() {
            self.seen.extend(signals::OF_TERMINAL);
            self.fork_at = Some(Moment::now() + HOLD);
        }
    }

    /// Returns when [`Forwarder::due`] is to be called.
    pub(super) fn wake(&self) -> Option<Moment> {
        let held = self.held.iter().map(|held| held.due).min();
        [held, self.fork_at].into_iter().flatten().min()
    }

    /// Does what is due, and returns the signals to forward.
    pub(super) fn due(&mut self, processes: Processes) -> Vec<i32> {
        let now = Moment::now();
        self.check_witness(processes);
        let mut missed = Vec::new();
        let mut reached: Vec<DelayedSignal> = Vec::new();
        for mut held in std::mem::take(&mut self.held) {
            if now < held.due {
                self.held.push(held);
                continue;
            }
            match self.has_reached(&held, processes) {
                None if held.checks < Some(MAX_CHECKS) => {
                    let checks = held.checks.unwrap_or(0) + 1;
                    held.checks = Some(checks);
                    // Never in step with periodic actions of the command.
                    held.due = now + HOLD + Duration::from_millis(3) * checks;
                    self.held.push(held);
                }
                // In doubt the copy decides.
                Some(true) | None => reached.push(held),
                Some(false) => missed.push(held.signal),
            }
        }
        // `timeout` signals its child, and then the group that the child is in: one signal.
        self.held.retain(|held| {
            held.signal > LAST_STANDARD
                || !reached.iter().any(|reached| reached.is_same(held.signal, held.sender))
        });
        if self.fork_at.is_some_and(|at| now >= at) {
            self.fork_at = None;
            self.replace_witness();
        }
        missed
    }

    /// Stops holding signals back, because the command has ended, and returns those that are held. The witness is
    /// reaped when this is dropped: the release of the lock does not wait for its end.
    pub(super) fn finish(&mut self) -> Vec<i32> {
        self.fork_at = None;
        if let Some(witness) = self.witness {
            let _ = sys::kill(witness, libc::SIGKILL);
        }
        self.held.drain(..).map(|held| held.signal).collect()
    }

    /// Notes that a child of dlock is dead and reaped.
    pub(super) fn reaped(&mut self, pid: i32) {
        if self.witness == Some(pid) {
            self.witness = None;
        }
    }

    fn end_witness(&mut self) {
        if let Some(witness) = self.witness.take() {
            let _ = sys::kill(witness, libc::SIGKILL);
            let _ = wait::reap(witness);
        }
    }

    /// Returns whether the command has received the signal directly; `None` if that cannot be determined.
    fn has_reached(&mut self, held: &DelayedSignal, processes: Processes) -> Option<bool> {
        let Some(command) = processes.command else { return Some(false) };
        if !self.guard_received(held, processes.guard) && held.checks.is_none() {
            return Some(false);
        }
        has_missed(command, held.signal).map(|missed| !missed)
    }

    /// Returns whether the guard received the signal too, as every process does.
    fn guard_received(&mut self, held: &DelayedSignal, guard: i32) -> bool {
        let same = |copy: &Copy| copy.signal == held.signal && copy.sender == held.sender;
        match self.copies.iter().position(same) {
            Some(index) => {
                let copy = self.copies.remove(index);
                held.arrived < copy.seen + OLDEST_COPY
            }
            // The guard's message has not been read yet.
            None => procfs::signals_of(guard).is_some_and(|signals| signals.is_pending(held.signal)),
        }
    }

    /// Notes which of the held signals the process group received, if the command is still in it. What the witness
    /// received stays pending, so that another one replaces it.
    fn check_witness(&mut self, processes: Processes) {
        let now = Moment::now();
        let received = self.witness.and_then(procfs::signals_of).unwrap_or_default();
        let mut late = self.late.take().filter(|(_, until)| now < *until);
        let own_group = Some(getpgrp().as_raw());
        for held in &mut self.held {
            let late_received = late.as_mut().is_some_and(|(late, _)| late.take_pending(held.signal));
            let witness_received = received.is_pending(held.signal);
            if witness_received {
                self.fork_at = Some(now);
                self.seen.push(held.signal);
            }
            if (late_received || witness_received)
                && processes.command.and_then(procfs::group_of) == own_group
            {
                held.checks.get_or_insert(0);
            }
        }
        self.late = late;
    }

    /// Forks a new witness, and keeps the signals that the old one received and dlock has not read yet.
    fn replace_witness(&mut self) {
        let new_witness = fork_witness(self.argv, None).ok();
        if let Some(mut late) = self.witness.and_then(procfs::signals_of) {
            for signal in &self.seen {
                late.take_pending(*signal);
            }
            self.late = Some((late, Moment::now() + OLDEST_COPY));
        }
        self.end_witness();
        self.witness = new_witness;
        self.seen.clear();
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.end_witness();
    }
}

/// Forks a process that blocks every signal and does nothing else, so that others can see which signals it receives. It
/// dies with the calling thread. It enters this process group of the session, or stays in that of the calling process.
pub(super) fn fork_witness(argv: sys::ArgvMemory, group: Option<i32>) -> nix::Result<i32> {
    let parent = getpid();
    if let ForkResult::Parent { child } = sys::fork()? {
        // Whichever of the two is first.
        let _ = group.map(|group| setpgid(child, Pid::from_raw(group)));
        return Ok(child.as_raw());
    }
    let _ = group.map(|group| setpgid(Pid::from_raw(0), Pid::from_raw(group)));
    // Other threads may exist: only async-signal-safe calls, and nothing is allocated.
    let _ = signal_mask::change(SigmaskHow::SIG_SETMASK, &signal_mask::all());
    let _ = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL);
    argv.rename_process(WITNESS_NAME);
    if getppid() != parent {
        sys::exit_now(0);
    }
    // An open descriptor may be a lock, or may reveal the death of this process to another one.
    sys::sleep_without_descriptors()
}

/// Returns whether the command lives although the signal would have ended it; `None` if that cannot be determined now.
fn has_missed(command: i32, signal: i32) -> Option<bool> {
    let Some(signals) = procfs::signals_of(command) else { return Some(false) };
    let would_end = signals::ends_by_default(signal) && signals.is_default(signal);
    let is_ending = signals.is_pending(signal) || signals.is_pending(libc::SIGKILL);
    if !would_end || is_ending || procfs::is_zombie(command) {
        return Some(false);
    }
    // The signals that sigwait(3) waits for are unblocked meanwhile, and seem to have their default action.
    let is_awaiting = procfs::is_awaiting_signals(command)?;
    (procfs::signals_of(command) == Some(signals)).then_some(!is_awaiting)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forwarder() -> Forwarder {
        Forwarder::new(sys::ArgvMemory::none())
    }

    fn arrival(signal: i32, origin: Origin) -> Arrival {
        Arrival { signal, origin }
    }

    #[test]
    fn what_the_kernel_sends_to_dlock_alone_is_not_held_back() {
        assert!(!forwarder().hold(arrival(libc::SIGALRM, Origin::Kernel)));
    }

    #[test]
    fn a_copy_of_another_sender_is_ignored() {
        let mut forwarder = forwarder();
        forwarder.note_copy(libc::SIGINT, 8);
        let now = Moment::now();
        let held = DelayedSignal { signal: libc::SIGINT, sender: 7, arrived: now, due: now, checks: None };
        assert!(!forwarder.guard_received(&held, i32::MAX));
        forwarder.note_copy(libc::SIGINT, 7);
        assert!(forwarder.guard_received(&held, i32::MAX));
        assert!(!forwarder.guard_received(&held, i32::MAX), "each copy counts once");
    }
}

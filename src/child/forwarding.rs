//! Which signals are passed on to the command, so that it gets each one once.
//!
//! A signal for dlock alone has to be passed on. One for dlock's whole process group (`kill -- -GROUP`, `timeout(1)`), or
//! for every process (systemd's `KillMode=control-group`, `kill -- -1`), has reached the command already, and the kernel
//! does not tell the difference. So other processes are looked at, which nobody signals on purpose: the guarding process,
//! which is not in dlock's process group, and a witness, which is. If one of them got the same signal at the same time, so
//! did the command. A signal is held back for a moment, because the copies are sent one after the other.
//!
//! Without such a copy it is passed on: twice is better than never.

use std::time::Duration;

use super::protocol::Group;
use super::signals::{self, Arrival, Origin};
use super::{procfs, sys};
use crate::clock::Moment;

/// How long the copies of one signal may take to be sent.
const HOLD: Duration = Duration::from_millis(20);

/// How old a copy at the guarding process may be to belong to a signal that arrives now.
const OLDEST_COPY: Duration = Duration::from_millis(100);

/// How often the command is looked at before the copy decides.
const MOST_LOOKS: u32 = 4;

/// How long the command runs before the witness is forked; a short command is spared it.
const WITNESS_AFTER: Duration = Duration::from_millis(3);

/// What `ps` and `pkill` know the witness by: as the guarding process, not by "dlock".
const WITNESS_NAME: &std::ffi::CStr = c"lock-witness";

/// The highest number of a signal that is not queued when it is sent again (`signal(7)`).
const LAST_STANDARD: i32 = 31;

/// Signals that do not end a process by default.
const HARMLESS: &[i32] = &[
    libc::SIGCHLD,
    libc::SIGCONT,
    libc::SIGURG,
    libc::SIGWINCH,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
];

struct DelayedSignal {
    signal: i32,
    sender: i32,
    arrived: Moment,
    due: Moment,
    /// A copy has been found, and this many looks at the command have not told whether it has got one, too.
    looks: Option<u32>,
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

/// The processes that matter.
#[derive(Clone, Copy)]
pub(super) struct Processes {
    pub(super) guard: i32,
    pub(super) command: Option<i32>,
}

/// Signals that are held back, and what tells whether to pass them on.
pub(super) struct Forwarding {
    held: Vec<DelayedSignal>,
    /// What the guarding process got.
    copies: Vec<Copy>,
    witness: Option<i32>,
    /// What the witness has got and is accounted for.
    seen: Vec<i32>,
    /// What a former witness had got that was not accounted for, and until when that counts.
    late: Option<(procfs::Signals, Moment)>,
    /// When the witness has to be forked, or exchanged for one that has got nothing yet.
    fork_at: Option<Moment>,
    argv: sys::ArgvMemory,
}

impl Forwarding {
    pub(super) fn new(argv: sys::ArgvMemory) -> Forwarding {
        Forwarding {
            held: Vec::new(),
            copies: Vec::new(),
            witness: None,
            seen: Vec::new(),
            late: None,
            fork_at: None,
            argv,
        }
    }

    /// The command has been started.
    pub(super) fn begin(&mut self, group: Group) {
        if cfg!(target_os = "linux") && group == Group::Shared {
            self.fork_at = Some(Moment::now() + WITNESS_AFTER);
        }
    }

    /// Whether the signal is held back; it is to be passed on at once otherwise.
    pub(super) fn hold(&mut self, arrival: Arrival) -> bool {
        let Origin::Process(sender) = arrival.origin else { return false };
        let signal = arrival.signal;
        let now = Moment::now();
        self.held.push(DelayedSignal { signal, sender, arrived: now, due: now + HOLD, looks: None });
        true
    }

    /// The guarding process has got a signal.
    pub(super) fn note_copy(&mut self, signal: i32, sender: i32) {
        let now = Moment::now();
        self.copies.retain(|copy| now - copy.seen < OLDEST_COPY);
        self.copies.push(Copy { signal, sender, seen: now });
    }

    /// The terminal has signalled the group, and the witness with it.
    pub(super) fn note_terminal(&mut self) {
        if self.witness.is_some() {
            self.seen.extend(signals::OF_TERMINAL);
            self.fork_at = Some(Moment::now() + HOLD);
        }
    }

    /// When [`Forwarding::due`] is to be called.
    pub(super) fn wake(&self) -> Option<Moment> {
        let held = self.held.iter().map(|held| held.due).min();
        [held, self.fork_at].into_iter().flatten().min()
    }

    /// Does what is due, and returns the signals that have to be passed on.
    pub(super) fn due(&mut self, processes: Processes) -> Vec<i32> {
        let now = Moment::now();
        self.look_at_witness(processes);
        let mut missed = Vec::new();
        let mut reached: Vec<DelayedSignal> = Vec::new();
        for mut held in std::mem::take(&mut self.held) {
            if now < held.due {
                self.held.push(held);
                continue;
            }
            match self.has_reached(&held, processes) {
                None if held.looks < Some(MOST_LOOKS) => {
                    let looks = held.looks.unwrap_or(0) + 1;
                    held.looks = Some(looks);
                    // Never in step with what the command does in intervals.
                    held.due = now + HOLD + Duration::from_millis(3) * looks;
                    self.held.push(held);
                }
                // In doubt there is the copy.
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
            self.exchange_witness();
        }
        missed
    }

    /// The command has ended: nothing is held back any more, and returned.
    pub(super) fn finish(&mut self) -> Vec<i32> {
        self.fork_at = None;
        self.end_witness();
        self.held.drain(..).map(|held| held.signal).collect()
    }

    /// A child of ours is dead and reaped.
    pub(super) fn reaped(&mut self, pid: i32) {
        if self.witness == Some(pid) {
            self.witness = None;
        }
    }

    fn end_witness(&mut self) {
        if let Some(witness) = self.witness.take() {
            let _ = sys::kill(witness, libc::SIGKILL);
            let _ = sys::reap(witness);
        }
    }

    /// Whether the command has got the signal by itself, as far as that can be told.
    fn has_reached(&mut self, held: &DelayedSignal, processes: Processes) -> Option<bool> {
        let Some(command) = processes.command else { return Some(false) };
        if !self.guard_got(held, processes.guard) && held.looks.is_none() {
            return Some(false);
        }
        has_missed(command, held.signal).map(|missed| !missed)
    }

    /// Every process got it: the guarding process, too.
    fn guard_got(&mut self, held: &DelayedSignal, guard: i32) -> bool {
        let same = |copy: &Copy| copy.signal == held.signal && copy.sender == held.sender;
        match self.copies.iter().position(same) {
            Some(index) => {
                let copy = self.copies.remove(index);
                held.arrived < copy.seen + OLDEST_COPY
            }
            // Not read yet.
            None => procfs::signals_of(guard).is_some_and(|signals| signals.is_pending(held.signal)),
        }
    }

    /// Notes which of the held signals the process group got, if the command is still in it. What the witness has got stays
    /// pending, so another one takes its place.
    fn look_at_witness(&mut self, processes: Processes) {
        let now = Moment::now();
        let got = self.witness.and_then(procfs::signals_of).unwrap_or_default();
        let mut late = self.late.take().filter(|(_, until)| now < *until);
        let own_group = Some(nix::unistd::getpgrp().as_raw());
        for held in &mut self.held {
            let in_late = late.as_mut().is_some_and(|(late, _)| late.take_pending(held.signal));
            let in_got = got.is_pending(held.signal);
            if in_got {
                self.fork_at = Some(now);
                self.seen.push(held.signal);
            }
            if (in_late || in_got) && processes.command.and_then(procfs::group_of) == own_group {
                held.looks.get_or_insert(0);
            }
        }
        self.late = late;
    }

    /// Forks a new witness, and keeps in mind what the old one has got and dlock has not read yet.
    fn exchange_witness(&mut self) {
        let fresh = sys::fork_witness(WITNESS_NAME, self.argv).ok();
        if let Some(mut late) = self.witness.and_then(procfs::signals_of) {
            for signal in &self.seen {
                late.take_pending(*signal);
            }
            self.late = Some((late, Moment::now() + OLDEST_COPY));
        }
        self.end_witness();
        self.witness = fresh;
        self.seen.clear();
    }
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        self.end_witness();
    }
}

/// Whether the command lives although the signal would have ended it; `None` when that cannot be told now.
fn has_missed(command: i32, signal: i32) -> Option<bool> {
    let Some(signals) = procfs::signals_of(command) else { return Some(false) };
    let would_end = !HARMLESS.contains(&signal) && signals.is_default(signal);
    let is_ending = signals.is_pending(signal) || signals.is_pending(libc::SIGKILL);
    if !would_end || is_ending || procfs::is_zombie(command) {
        return Some(false);
    }
    // What sigwait(3) waits for is unblocked meanwhile, and seems to have its default action.
    let is_awaiting = procfs::is_awaiting_signals(command)?;
    (procfs::signals_of(command) == Some(signals)).then_some(!is_awaiting)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forwarding() -> Forwarding {
        Forwarding::new(sys::ArgvMemory::none())
    }

    fn arrival(signal: i32, origin: Origin) -> Arrival {
        Arrival { signal, origin }
    }

    #[test]
    fn what_the_kernel_sends_to_dlock_alone_is_not_held_back() {
        assert!(!forwarding().hold(arrival(libc::SIGALRM, Origin::Kernel)));
    }

    #[test]
    fn a_copy_of_another_sender_says_nothing() {
        let mut forwarding = forwarding();
        forwarding.note_copy(libc::SIGINT, 8);
        let now = Moment::now();
        let held = DelayedSignal { signal: libc::SIGINT, sender: 7, arrived: now, due: now, looks: None };
        assert!(!forwarding.guard_got(&held, i32::MAX));
        forwarding.note_copy(libc::SIGINT, 7);
        assert!(forwarding.guard_got(&held, i32::MAX));
        assert!(!forwarding.guard_got(&held, i32::MAX), "each copy counts once");
    }
}

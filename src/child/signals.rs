//! The signals that dlock handles, as one table, and their source for the event loop.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::sys::Disposition;
use crate::readiness::Readiness;

/// What a signal does to dlock before the command is started. While the command runs, every handled signal is forwarded
/// to it, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhileWaiting {
    /// dlock leaves the queue and dies of the signal, unless the signal was ignored when dlock started (as under
    /// nohup).
    End,
    /// dlock stops; after SIGCONT it is in the queue again.
    Stop,
    /// Nothing.
    Nothing,
}

/// The signals with another meaning than ending dlock while it waits. Every other catchable signal, including the
/// real-time ones, ends a waiting dlock and is forwarded to a running command. So does the signal of a fault when a process
/// sends it: a fault itself kills even if its signal is blocked (`signal(7)`).
const SPECIAL: &[(i32, WhileWaiting)] = &[
    (libc::SIGTSTP, WhileWaiting::Stop),
    (libc::SIGTTIN, WhileWaiting::Stop),
    (libc::SIGTTOU, WhileWaiting::Stop),
    (libc::SIGCONT, WhileWaiting::Nothing),
    (libc::SIGWINCH, WhileWaiting::Nothing),
    (libc::SIGURG, WhileWaiting::Nothing),
    (libc::SIGCHLD, WhileWaiting::Nothing),
    (libc::SIGPIPE, WhileWaiting::Nothing),
];

/// After one of these was forwarded, the processes that remain when the command ends still belong to the command.
pub const ENDING: &[i32] = &[libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];

/// Returns what the signal does to a waiting dlock.
pub fn while_waiting(signal: i32) -> WhileWaiting {
    SPECIAL.iter().find(|(special, _)| *special == signal).map_or(WhileWaiting::End, |(_, action)| *action)
}

/// Returns whether this process ignores the signal.
pub fn is_ignored(signal: i32) -> bool {
    Disposition::of(signal).is_ok_and(|disposition| disposition.is_ignore())
}

/// A signal that dlock received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its number.
    pub signal: i32,
    /// The sender.
    pub origin: Origin,
}

/// The sender of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The terminal, to its whole foreground process group.
    Terminal,
    /// The kernel, to this process alone: an alarm that was set before exec, for example.
    Kernel,
    /// The process with this id; 0 if it is outside dlock's PID namespace.
    Process(i32),
}

/// The signals that a terminal sends. The kernel sends every other one to a single process.
pub(super) const OF_TERMINAL: &[i32] = &[
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGCONT,
    libc::SIGWINCH,
];

impl Origin {
    /// Derives the origin from `si_code` and `si_pid` of `sigaction(2)`.
    fn of(signal: i32, code: i32, pid: i32) -> Origin {
        match code {
            libc::SI_KERNEL if OF_TERMINAL.contains(&signal) => Origin::Terminal,
            libc::SI_USER | libc::SI_QUEUE | libc::SI_TKILL => Origin::Process(pid),
            _ => Origin::Kernel,
        }
    }
}

/// Returns the signals that are blocked in every process of dlock, and read from a [`Source`] instead.
pub fn handled() -> SigSet {
    SigSet::all()
}

/// Blocks the handled signals in this thread and returns the previous mask.
///
/// # Errors
/// None known for valid sets.
pub fn block() -> io::Result<SigSet> {
    let mut before = SigSet::empty();
    pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&handled()), Some(&mut before))?;
    Ok(before)
}

/// Blocked signals as a descriptor (`signalfd(2)`).
pub struct Descriptor(SignalFd);

impl Descriptor {
    /// Opens the descriptor for the given signals, close-on-exec and non-blocking.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new(signals: &SigSet) -> io::Result<Descriptor> {
        Ok(Descriptor(SignalFd::with_flags(signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?))
    }

    /// Returns the next pending signal, except a SIGPIPE caused by this process's own writing.
    pub fn next(&self) -> Option<Arrival> {
        loop {
            let info = self.0.read_signal().ok()??;
            let signal = info.ssi_signo as i32;
            if signal == libc::SIGPIPE && info.ssi_pid == std::process::id() {
                continue;
            }
            let origin = Origin::of(signal, info.ssi_code, info.ssi_pid as i32);
            return Some(Arrival { signal, origin });
        }
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The handled signals, for the event loop.
pub struct Source {
    descriptor: Descriptor,
    readiness: Readiness,
}

impl Source {
    /// Starts to read the signals that [`block`] blocked.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Source> {
        let descriptor = Descriptor::new(&handled())?;
        Ok(Source { readiness: Readiness::of(&descriptor)?, descriptor })
    }

    /// Waits for the next signal. Dropping the future loses none.
    pub async fn next(&self) -> Arrival {
        loop {
            if let Some(arrival) = self.descriptor.next() {
                return arrival;
            }
            self.readiness.wait().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_is_not_of_the_terminal() {
        let kernel = |signal| Origin::of(signal, libc::SI_KERNEL, 0);
        assert_eq!(kernel(libc::SIGINT), Origin::Terminal);
        assert_eq!(kernel(libc::SIGALRM), Origin::Kernel);
        assert_eq!(Origin::of(libc::SIGINT, libc::SI_USER, 7), Origin::Process(7));
        // timer_create(2)
        assert_eq!(Origin::of(libc::SIGUSR1, libc::SI_TIMER, 7), Origin::Kernel);
    }

    #[test]
    fn the_table_defines_what_a_waiting_dlock_does() {
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2]
        {
            assert_eq!(while_waiting(signal), WhileWaiting::End, "{signal}");
        }
        assert_eq!(while_waiting(libc::SIGALRM), WhileWaiting::End);
        assert_eq!(while_waiting(libc::SIGTSTP), WhileWaiting::Stop);
        for signal in [libc::SIGCONT, libc::SIGWINCH, libc::SIGCHLD] {
            assert_eq!(while_waiting(signal), WhileWaiting::Nothing, "{signal}");
        }
    }
}

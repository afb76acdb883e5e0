//! The signals that dlock handles, as one table, and their source for the event loop.

use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use serde::{Deserialize, Serialize};

use super::procfs;
use super::sys::{self, Disposition};
use crate::clock::Moment;
use crate::readiness::Readiness;
use crate::signal_mask;

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

/// Returns whether the signal ends a process by default.
pub(super) fn ends_by_default(signal: i32) -> bool {
    signal == libc::SIGPIPE || while_waiting(signal) == WhileWaiting::End
}

/// Returns whether this process ignores the signal.
pub fn is_ignored(signal: i32) -> bool {
    Disposition::of(signal).is_ok_and(|disposition| disposition.is_ignore())
}

/// Returns whether the signal stops this process, unless it is handled.
pub fn stops(signal: i32) -> bool {
    while_waiting(signal) == WhileWaiting::Stop && !is_ignored(signal)
}

/// Returns whether the signal asks the command to end. One that was ignored when dlock started (as under nohup) does not: the
/// command ignores it, too.
pub fn asks_to_end(signal: i32) -> bool {
    ENDING.contains(&signal) && !is_ignored(signal)
}

/// Returns whether this process has received a signal that asks the command to end, and has not read it yet.
pub fn is_end_pending() -> bool {
    sys::pending(ENDING).any(asks_to_end)
}

/// Returns the same of another process that dlock has forked, or of the dlock that has forked this one.
pub fn is_end_pending_in(pid: i32) -> bool {
    let received = procfs::signals_of(pid).unwrap_or_default();
    ENDING.iter().any(|signal| received.is_pending(*signal) && asks_to_end(*signal))
}

/// The copies of one signal arrive within this time: a shell passes SIGHUP on to its jobs before the kernel sends it, and
/// `timeout(1)` signals its child before its own process group.
const COPIES_WITHIN: Duration = Duration::from_millis(200);

/// The signals by which dlock was asked to end.
#[derive(Default)]
pub struct EndRequests {
    first: Option<Moment>,
}

impl EndRequests {
    /// Notes such a signal. Returns whether it is a second request, and not a copy of the first one.
    pub fn note(&mut self) -> bool {
        let now = Moment::now();
        now - *self.first.get_or_insert(now) >= COPIES_WITHIN
    }

    /// Returns whether there was one.
    pub fn has_any(&self) -> bool {
        self.first.is_some()
    }
}

/// The signal that dlock sends first when it has to stop the command; SIGKILL follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopSignal(i32);

impl StopSignal {
    /// SIGTERM
    pub const TERM: StopSignal = StopSignal(libc::SIGTERM);

    /// Parses a name (`TERM`, `SIGTERM`, `RTMIN+3`, in any case) or a number.
    ///
    /// # Errors
    /// It is not a signal, or not one that asks a command to end.
    pub fn parse(text: &str) -> Result<StopSignal, &'static str> {
        let number = text.parse().ok().or_else(|| number_of(&text.to_ascii_uppercase()));
        match number {
            Some(libc::SIGKILL) => Err("KILL always follows, after --grace: name the signal before it"),
            Some(libc::SIGSTOP | libc::SIGCONT) => Err("STOP and CONT do not end a command"),
            Some(number) if (1..32).contains(&number) || REAL_TIME.contains(&number) => {
                Ok(StopSignal(number))
            }
            _ => Err("expected the name or the number of a signal, such as INT or 2"),
        }
    }

    /// Returns its number.
    pub fn number(self) -> i32 {
        self.0
    }

    /// Returns the names that [`parse`](StopSignal::parse) accepts, except those of real-time signals.
    pub fn names() -> impl Iterator<Item = String> {
        let signals = Signal::iterator().filter_map(|signal| StopSignal::parse(signal.as_str()).ok());
        signals.map(|signal| signal.to_string())
    }
}

/// Its name without `SIG`.
impl fmt::Display for StopSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Signal::try_from(self.0) {
            Ok(signal) => f.write_str(&signal.as_str()["SIG".len()..]),
            Err(_) => write!(f, "RTMIN+{}", self.0 - REAL_TIME.start()),
        }
    }
}

/// The real-time signals as shells and timeout(1) number them. glibc keeps the two before for itself (signal(7)); musl keeps the
/// first one as well, so that its SIGRTMIN is 35.
const REAL_TIME: RangeInclusive<i32> = 34..=64;

/// Returns the number of the signal with this name, in upper case.
fn number_of(name: &str) -> Option<i32> {
    let name = name.strip_prefix("SIG").unwrap_or(name);
    let offset = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<i32>().ok() };
    let real_time =
        |limit: &i32, rest| limit.checked_add(offset(rest)?).filter(|signal| REAL_TIME.contains(signal));
    if let Some(rest) = name.strip_prefix("RTMIN") {
        return real_time(REAL_TIME.start(), rest);
    }
    if let Some(rest) = name.strip_prefix("RTMAX") {
        return real_time(REAL_TIME.end(), rest);
    }
    format!("SIG{name}").parse().ok().map(|signal: Signal| signal as i32)
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
    signal_mask::all()
}

/// Blocks the handled signals in this thread and returns the previous mask.
///
/// # Errors
/// None known for valid sets.
pub fn block() -> io::Result<SigSet> {
    Ok(signal_mask::change(SigmaskHow::SIG_BLOCK, &handled())?)
}

/// Restores the mask that [`block`] has returned.
pub fn restore(before: &SigSet) {
    let _ = signal_mask::change(SigmaskHow::SIG_SETMASK, before);
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

    /// Returns the next pending signal, except SIGPIPE and SIGXFSZ caused by this process's own writing.
    pub fn next(&self) -> Option<Arrival> {
        loop {
            let info = self.0.read_signal().ok()??;
            let signal = info.ssi_signo as i32;
            if matches!(signal, libc::SIGPIPE | libc::SIGXFSZ) && info.ssi_pid == std::process::id() {
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

//! The sleep of the guard between events: a message, a signal (a child), or a moment.

use std::io;
#[cfg(target_os = "linux")]
use std::os::fd::AsFd;
#[cfg(not(target_os = "linux"))]
use std::time::Duration;

#[cfg(target_os = "linux")]
use nix::poll::PollFlags;
use nix::poll::{PollFd, PollTimeout, poll};

use super::mailbox::Mailbox;
use crate::child::signals::{self, Arrival};
use crate::clock::{self, Moment};

#[cfg(target_os = "linux")]
pub(super) struct EventWait {
    timer: clock::Timer,
    signals: signals::Descriptor,
}

#[cfg(target_os = "linux")]
impl EventWait {
    pub(super) fn new() -> io::Result<EventWait> {
        Ok(EventWait { timer: clock::Timer::new()?, signals: signals::Descriptor::new(&signals::handled())? })
    }

    /// Waits until something happens; with unsent messages, also until the socket takes more. Returns the signals that
    /// have come, except SIGCHLD.
    pub(super) fn wait(&self, dlock: &Mailbox, until: Option<Moment>) -> Vec<Arrival> {
        if self.timer.set(until).is_err() {
            return Vec::new();
        }
        let mut fds = vec![
            PollFd::new(self.timer.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
        ];
        fds.extend(dlock.poll_fd());
        let _ = poll(&mut fds, PollTimeout::NONE);
        self.timer.take_expiry();
        let arrivals = std::iter::from_fn(|| self.signals.next());
        arrivals.filter(|arrival| arrival.signal != libc::SIGCHLD).collect()
    }
}

/// Without signalfd and timerfd: checks for ended children every few milliseconds.
#[cfg(not(target_os = "linux"))]
pub(super) struct EventWait;

#[cfg(not(target_os = "linux"))]
impl EventWait {
    pub(super) fn new() -> io::Result<EventWait> {
        Ok(EventWait)
    }

    pub(super) fn wait(&self, dlock: &Mailbox, until: Option<Moment>) -> Vec<Arrival> {
        let most = Duration::from_millis(10);
        let wait = until.map_or(most, |until| (until - Moment::now()).min(most));
        let mut fds: Vec<PollFd> = dlock.poll_fd().into_iter().collect();
        let _ = poll(&mut fds, PollTimeout::from(wait.as_millis() as u16));
        Vec::new()
    }
}

//! The sleep of the guard between events: a message, a signal (a child), or a moment.

use std::io;
use std::os::fd::AsFd;

use nix::poll::PollFlags;
use nix::poll::{PollFd, PollTimeout, poll};

use super::mailbox::Mailbox;
use crate::child::signals::{self, Arrival};
use crate::clock::{self, Moment};

pub(super) struct EventWait {
    timer: clock::Timer,
    signals: signals::Descriptor,
}

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

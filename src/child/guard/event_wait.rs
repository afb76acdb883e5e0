//! The sleep of the guard between events.

use std::io;
use std::os::fd::AsFd;
#[cfg(not(target_os = "linux"))]
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::protocol::Channel;
#[cfg(target_os = "linux")]
use super::signals;
use super::signals::Arrival;
use crate::clock::Moment;

/// Waits for a message, a signal (a child), or a moment.
#[cfg(target_os = "linux")]
pub(super) struct Sleeper {
    timer: crate::clock::Timer,
    signals: signals::Descriptor,
}

#[cfg(target_os = "linux")]
impl Sleeper {
    pub(super) fn new() -> io::Result<Sleeper> {
        Ok(Sleeper {
            timer: crate::clock::Timer::new()?,
            signals: signals::Descriptor::new(&signals::handled())?,
        })
    }

    /// Sleeps until something happens; with `to_send`, also until the socket takes more. Returns the signals that have
    /// come, except SIGCHLD.
    pub(super) fn sleep(
        &self,
        control: Option<&Channel>,
        to_send: bool,
        until: Option<Moment>,
    ) -> Vec<Arrival> {
        if self.timer.set(until).is_err() {
            return Vec::new();
        }
        let mut fds = vec![
            PollFd::new(self.timer.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
        ];
        if let Some(control) = control {
            fds.push(PollFd::new(control.as_fd(), poll_flags(to_send)));
        }
        let _ = poll(&mut fds, PollTimeout::NONE);
        self.timer.take_expiry();
        let arrivals = std::iter::from_fn(|| self.signals.next());
        arrivals.filter(|arrival| arrival.signal != libc::SIGCHLD).collect()
    }
}

fn poll_flags(to_send: bool) -> PollFlags {
    if to_send { PollFlags::POLLIN | PollFlags::POLLOUT } else { PollFlags::POLLIN }
}

/// Without signalfd and timerfd: checks for ended children every few milliseconds.
#[cfg(not(target_os = "linux"))]
pub(super) struct Sleeper;

#[cfg(not(target_os = "linux"))]
impl Sleeper {
    pub(super) fn new() -> io::Result<Sleeper> {
        Ok(Sleeper)
    }

    pub(super) fn sleep(
        &self,
        control: Option<&Channel>,
        to_send: bool,
        until: Option<Moment>,
    ) -> Vec<Arrival> {
        let most = Duration::from_millis(10);
        let wait = until.map_or(most, |until| (until - Moment::now()).min(most));
        let mut fds: Vec<PollFd> =
            control.iter().map(|fd| PollFd::new(fd.as_fd(), poll_flags(to_send))).collect();
        let _ = poll(&mut fds, PollTimeout::from(wait.as_millis() as u16));
        Vec::new()
    }
}

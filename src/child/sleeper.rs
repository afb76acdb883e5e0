//! What the guarding process sleeps on.

use std::io;
use std::os::fd::AsFd;
#[cfg(not(target_os = "linux"))]
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::protocol::Channel;
#[cfg(target_os = "linux")]
use super::signals;
use crate::clock::Moment;

/// Waits for a message, a child, or a moment.
#[cfg(target_os = "linux")]
pub(super) struct Sleeper {
    timer: crate::clock::Timer,
    children: signals::Descriptor,
}

#[cfg(target_os = "linux")]
impl Sleeper {
    pub(super) fn new() -> io::Result<Sleeper> {
        let mut only_children = nix::sys::signal::SigSet::empty();
        only_children.add(nix::sys::signal::Signal::SIGCHLD);
        Ok(Sleeper {
            timer: crate::clock::Timer::new()?,
            children: signals::Descriptor::new(&only_children)?,
        })
    }

    /// `to_send`: also until the other end takes more.
    pub(super) fn sleep(&self, control: Option<&Channel>, to_send: bool, until: Option<Moment>) {
        if self.timer.set(until).is_err() {
            return;
        }
        let mut fds = vec![
            PollFd::new(self.timer.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.children.as_fd(), PollFlags::POLLIN),
        ];
        if let Some(control) = control {
            fds.push(PollFd::new(control.as_fd(), wanted(to_send)));
        }
        let _ = poll(&mut fds, PollTimeout::NONE);
        self.timer.take_expiry();
        while self.children.next().is_some() {}
    }
}

fn wanted(to_send: bool) -> PollFlags {
    if to_send { PollFlags::POLLIN | PollFlags::POLLOUT } else { PollFlags::POLLIN }
}

/// Without signalfd and timerfd: looks for ended children every few milliseconds.
#[cfg(not(target_os = "linux"))]
pub(super) struct Sleeper;

#[cfg(not(target_os = "linux"))]
impl Sleeper {
    pub(super) fn new() -> io::Result<Sleeper> {
        Ok(Sleeper)
    }

    /// `to_send`: also until the other end takes more.
    pub(super) fn sleep(&self, control: Option<&Channel>, to_send: bool, until: Option<Moment>) {
        let most = Duration::from_millis(10);
        let wait = until.map_or(most, |until| (until - Moment::now()).min(most));
        let mut fds: Vec<PollFd> =
            control.iter().map(|fd| PollFd::new(fd.as_fd(), wanted(to_send))).collect();
        let _ = poll(&mut fds, PollTimeout::from(wait.as_millis() as u16));
    }
}

//! The guard's end of the socket to dlock. While dlock is stopped it reads nothing, and its socket fills up; the messages
//! wait here, because they must still reach it when it is continued.

use std::os::fd::{AsFd, OwnedFd};

use nix::poll::{PollFd, PollFlags, PollTimeout};

use crate::child::protocol::{Channel, Event, FromGuard, Received, ToGuard, frame};

/// Keeps messages until the socket takes them.
pub(super) struct Mailbox {
    channel: Channel,
    /// Whole frames, except that the first may have been sent in part.
    unsent: Vec<u8>,
    /// Where the last frame begins, if it reports that the command was stopped or continued and none of it has been
    /// sent.
    last_state: Option<usize>,
    is_gone: bool,
}

impl Mailbox {
    pub(super) fn new(channel: Channel) -> Mailbox {
        Mailbox { channel, unsent: Vec::new(), last_state: None, is_gone: false }
    }

    /// Queues a message; [`Mailbox::flush`] sends all of them together, so that dlock wakes once. Of consecutive stops and
    /// continuations only the last is kept, which bounds the memory: nothing else is reported more than once for each
    /// process.
    pub(super) fn queue(&mut self, message: &FromGuard) {
        let Ok(frame) = frame(message) else { return };
        let is_state = matches!(message, FromGuard::Event(Event::Stopped(_) | Event::Continued));
        match self.last_state {
            Some(begin) if is_state => self.unsent.truncate(begin),
            _ => self.last_state = is_state.then_some(self.unsent.len()),
        }
        self.unsent.extend(frame);
    }

    /// Sends what the socket takes; the rest when dlock reads again.
    pub(super) fn flush(&mut self) {
        if self.unsent.is_empty() {
            return;
        }
        // If dlock is gone, reading detects it.
        let sent = self.channel.send_some(&self.unsent).unwrap_or(self.unsent.len());
        self.unsent.drain(..sent);
        self.last_state = self.last_state.and_then(|begin| begin.checked_sub(sent));
    }

    /// Sends the rest, however long dlock is stopped: it has no other way to learn how the command ended.
    pub(super) fn flush_all(&mut self) {
        self.flush();
        while !self.unsent.is_empty() && self.channel.is_writable_within(PollTimeout::NONE).is_ok() {
            self.flush();
        }
    }

    pub(super) fn receive(&mut self) -> Received<ToGuard> {
        let received = self.channel.receive();
        self.is_gone |= received == Received::Closed;
        received
    }

    /// Returns the descriptor that came with the last message that had one.
    pub(super) fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.channel.take_descriptor()
    }

    /// Returns whether dlock is dead.
    pub(super) fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Returns what to wait for: a message, and space for those that wait here. `None` if dlock is dead.
    pub(super) fn poll_fd(&self) -> Option<PollFd<'_>> {
        let mut flags = PollFlags::POLLIN;
        flags.set(PollFlags::POLLOUT, !self.unsent.is_empty());
        (!self.is_gone).then(|| PollFd::new(self.channel.as_fd(), flags))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_socket_loses_no_message() {
        let (mut dlock, guard) = Channel::pair().expect("socket pair");
        let mut mailbox = Mailbox::new(guard);
        let count = 20_000;
        for pid in 0..count {
            mailbox.queue(&FromGuard::Event(Event::StillAlive(pid)));
            mailbox.flush();
        }
        assert!(!mailbox.unsent.is_empty());
        let mut next = 0;
        while next < count {
            mailbox.flush();
            while let Received::Message(message) = dlock.receive::<FromGuard>() {
                assert_eq!(message, FromGuard::Event(Event::StillAlive(next)));
                next += 1;
            }
        }
    }

    #[test]
    fn only_the_last_of_consecutive_stops_and_continuations_is_sent() {
        let (mut dlock, guard) = Channel::pair().expect("socket pair");
        let mut mailbox = Mailbox::new(guard);
        for _ in 0..1000 {
            mailbox.queue(&FromGuard::Event(Event::Continued));
            mailbox.queue(&FromGuard::Event(Event::Stopped(19)));
        }
        mailbox.queue(&FromGuard::Event(Event::DeadlineReached));
        mailbox.queue(&FromGuard::Event(Event::Continued));
        mailbox.flush();
        assert!(mailbox.unsent.is_empty());
        for expected in [Event::Stopped(19), Event::DeadlineReached, Event::Continued] {
            assert_eq!(dlock.receive(), Received::Message(FromGuard::Event(expected)));
        }
    }
}

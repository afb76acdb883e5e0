//! The messages of the guard that dlock has not read yet. While dlock is stopped it reads nothing, and its socket fills
//! up; these messages must still reach it when it is continued.

use std::io;

use super::protocol::{Channel, Event, FromGuard, frame};

/// Keeps messages until the socket takes them.
#[derive(Default)]
pub(super) struct Outbox {
    /// Whole frames, except that the first may have been sent in part.
    bytes: Vec<u8>,
    /// Where the last frame begins, if it reports that the command was stopped or continued and none of it has been
    /// sent.
    last_state: Option<usize>,
}

impl Outbox {
    /// Adds a message. Of consecutive stops and continuations only the last is kept, which bounds the memory: nothing
    /// else is reported more than once for each process.
    pub(super) fn push(&mut self, message: &FromGuard) {
        let Ok(frame) = frame(message) else { return };
        let is_state = matches!(message, FromGuard::Event(Event::Stopped(_) | Event::Continued));
        match self.last_state {
            Some(begin) if is_state => self.bytes.truncate(begin),
            _ => self.last_state = is_state.then_some(self.bytes.len()),
        }
        self.bytes.extend(frame);
    }

    /// Returns whether everything has been sent.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Sends as much as the socket takes now.
    ///
    /// # Errors
    /// The other end is gone.
    pub(super) fn flush(&mut self, channel: &Channel) -> io::Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let sent = channel.send_some(&self.bytes)?;
        self.bytes.drain(..sent);
        self.last_state = self.last_state.and_then(|begin| begin.checked_sub(sent));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::protocol::Received;
    use super::*;

    #[test]
    fn a_full_socket_loses_no_message() {
        let (mut dlock, guard) = Channel::pair().expect("socket pair");
        let mut outbox = Outbox::default();
        let count = 20_000;
        for pid in 0..count {
            outbox.push(&FromGuard::Event(Event::StillAlive(pid)));
            outbox.flush(&guard).expect("open");
        }
        assert!(!outbox.is_empty());
        let mut next = 0;
        while next < count {
            outbox.flush(&guard).expect("open");
            while let Received::Message(message) = dlock.receive::<FromGuard>() {
                assert_eq!(message, FromGuard::Event(Event::StillAlive(next)));
                next += 1;
            }
        }
    }

    #[test]
    fn stops_and_continuations_in_a_row_count_once() {
        let (mut dlock, guard) = Channel::pair().expect("socket pair");
        let mut outbox = Outbox::default();
        for _ in 0..1000 {
            outbox.push(&FromGuard::Event(Event::Continued));
            outbox.push(&FromGuard::Event(Event::Stopped(19)));
        }
        outbox.push(&FromGuard::Event(Event::DeadlineReached));
        outbox.push(&FromGuard::Event(Event::Continued));
        outbox.flush(&guard).expect("open");
        assert!(outbox.is_empty());
        for expected in [Event::Stopped(19), Event::DeadlineReached, Event::Continued] {
            assert_eq!(dlock.receive(), Received::Message(FromGuard::Event(expected)));
        }
    }
}

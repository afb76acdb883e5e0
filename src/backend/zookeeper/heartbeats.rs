//! When a session ends at the earliest: pure.
//!
//! Only the leader ends sessions. It counts from the last request that it knows of, and a new leader from its own start.
//! The other servers tell it in every half tick which of their sessions have sent something.
//!
//! A server answers pings, reads and `sync` and continues sessions without a majority behind it, until it notices: a
//! leader that was stopped or cut off, and those that still follow it. Only a write is committed by a leader that has a
//! majority, so an answer extends nothing by itself. As long as a connection lasts, its server has one leader, or is it;
//! what was sent there before a write counts, from its sending, once the write is committed:
//!
//! - what has begun the session or continued it there, because the server has asked the leader;
//! - what was answered half a tick before the write was sent, because the leader has asked the server since. Half a tick
//!   is at most a quarter of a session, because the shortest one has two ticks. If the write itself takes longer than
//!   that, the leader may not have asked any server meanwhile.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Moment;

/// How often a session sends something during its time-out.
pub(super) const PINGS: u32 = 12;
/// The part of the time-out after which the leader knows of a request.
const KNOWN_AFTER: u32 = 4;
/// The part of the time-out that separates the requests which are remembered.
const PRECISION: u32 = 1000;

/// Returns the time-out of a session that has a lease of this length: what is known to the leader is at most a quarter
/// and the time between two pings old.
pub(super) fn session_for(lease: Duration) -> Duration {
    lease.saturating_mul(3) / 2
}

/// Returns the lease of a session with this time-out, in the long run.
pub(super) fn lease_of(timeout: Duration) -> Duration {
    timeout * 2 / 3
}

/// A request that was answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    pub sent: Moment,
    pub at: Moment,
}

/// The requests of a session that were answered on one connection.
#[derive(Debug)]
pub(super) struct Heartbeats {
    timeout: Duration,
    /// When the request was sent that has begun the session, or continued it there.
    begun: Moment,
    /// The others, as far back as they matter, in their order.
    answered: VecDeque<Answered>,
}

impl Heartbeats {
    /// Returns those of a session with this time-out that is begun, or continued on another connection, by a request that
    /// was sent at this moment.
    pub fn since(begun: Moment, timeout: Duration) -> Heartbeats {
        Heartbeats { timeout, begun, answered: VecDeque::new() }
    }

    /// A request was answered.
    pub fn answered(&mut self, request: Answered) {
        if self.answered.back().is_some_and(|last| request.sent - last.sent < self.timeout / PRECISION) {
            return;
        }
        self.answered.push_back(request);
        // Twice as long: a write may take as long.
        let is_old = |second: &Answered| request.at - second.at >= self.timeout * 2 / KNOWN_AFTER;
        while self.answered.get(1).is_some_and(is_old) {
            self.answered.pop_front();
        }
    }

    /// A write was committed. Returns the sending of the last request that the leader knew of then.
    pub fn known(&self, write: Answered) -> Moment {
        let span = self.timeout / KNOWN_AFTER;
        if write.at - write.sent > span {
            return self.begun;
        }
        let is_known = |request: &&Answered| request.at + span <= write.sent;
        let known = self.answered.iter().rev().find(is_known).map(|request| request.sent);
        known.map_or(self.begun, |known| known.max(self.begun))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::from_boot(Duration::from_millis(ms))
    }

    fn answered(sent: u64, took: u64) -> Answered {
        Answered { sent: at(sent), at: at(sent + took) }
    }

    #[test]
    fn a_request_counts_once_a_later_write_is_committed() {
        let timeout = session_for(Duration::from_millis(8000));
        assert_eq!(timeout, Duration::from_secs(12));
        let mut heartbeats = Heartbeats::since(at(0), timeout);
        for sent in (1..=20).map(|second| second * 1000) {
            heartbeats.answered(answered(sent, 10));
        }
        for (write, known) in [
            (answered(3000, 10), 0),
            // Its answer came at 1,010.
            (answered(4009, 10), 0),
            (answered(4010, 10), 1000),
            (answered(20_500, 10), 17_000),
            (answered(20_500, 3000), 17_000),
            (answered(20_500, 3001), 0),
        ] {
            // Those that matter for the later ones are remembered.
            let mut heartbeats = Heartbeats::since(at(0), timeout);
            for sent in (1..=20).map(|second| second * 1000).filter(|sent| at(*sent) < write.sent) {
                heartbeats.answered(answered(sent, 10));
            }
            assert_eq!(heartbeats.known(write), at(known), "{write:?}");
        }
    }

    #[test]
    fn few_requests_are_remembered() {
        let mut heartbeats = Heartbeats::since(at(0), Duration::from_secs(12));
        (0..100_000).for_each(|sent| heartbeats.answered(answered(sent, 1)));
        assert!(heartbeats.answered.len() <= 501 + 1, "{}", heartbeats.answered.len());
        assert!(at(97_000) - heartbeats.known(answered(100_000, 1)) <= Duration::from_millis(12 + 1));
    }
}

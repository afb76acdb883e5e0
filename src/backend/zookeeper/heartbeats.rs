//! When a session ends at the earliest: pure.
//!
//! A server tells the leader in every half tick which of its sessions have sent something, and only the leader ends
//! sessions. A server that dies after it has answered takes that with it. A request counts from its sending only once a
//! later one was answered that was sent half a tick after it; half a tick is at most a quarter of a session, because the
//! shortest one has two ticks.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Moment;

/// How often a session sends something during its time-out.
pub(super) const PINGS: u32 = 12;
/// The part of the time-out after which the leader knows of a request.
const KNOWN_AFTER: u32 = 4;

/// Returns the time-out of a session that has a lease of this length: what is known to the leader is at most a quarter
/// and the time between two pings old.
pub(super) fn session_for(lease: Duration) -> Duration {
    lease.saturating_mul(3) / 2
}

/// Returns the lease of a session with this time-out, in the long run.
pub(super) fn lease_of(timeout: Duration) -> Duration {
    timeout * 2 / 3
}

/// When the requests of a session were sent that have been answered.
#[derive(Debug, Default)]
pub(super) struct Heartbeats {
    /// Known to the leader, such as the request that has begun the session, or continued it at this server.
    known: Option<Moment>,
    /// In their order.
    answered: VecDeque<Moment>,
}

impl Heartbeats {
    /// Returns those of a session that is begun, or continued at another server, by a request that is sent at this moment.
    pub fn since(sent: Moment) -> Heartbeats {
        Heartbeats { known: Some(sent), answered: VecDeque::from([sent]) }
    }

    /// A request was answered.
    pub fn answered(&mut self, sent: Moment) {
        self.answered.push_back(sent);
        while self.answered.len() > 2 * PINGS as usize {
            self.known = self.known.max(self.answered.pop_front());
        }
    }

    /// Returns the length of the lease, from the sending of the last request that was answered, in a session with this
    /// time-out.
    pub fn lease(&self, timeout: Duration) -> Duration {
        let Some(last) = self.answered.back() else { return timeout };
        let is_known = |sent: &&Moment| last.saturating_since(**sent) >= timeout / KNOWN_AFTER;
        let known = self.answered.iter().rev().find(is_known).copied().max(self.known);
        timeout.saturating_sub(known.map_or(timeout, |known| last.saturating_since(known)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_counts_once_the_leader_must_know_of_it() {
        let at = |ms| Moment::from_boot(Duration::from_millis(ms));
        let timeout = session_for(Duration::from_millis(8000));
        assert_eq!(timeout, Duration::from_secs(12));
        let mut heartbeats = Heartbeats::since(at(0));
        for (sent, lease) in [
            // The session was begun at 0.
            (1000, 11_000),
            (2000, 10_000),
            (2900, 9100),
            // Those at 0 and at 1,000.
            (3000, 9000),
            (4000, 9000),
            (4999, 8001),
            // Nothing was answered for a while: the one at 4,999.
            (9000, 12_000 - 4001),
            // 1 ms later the leader need not know of the one before.
            (9001, 12_000 - 4002),
            (12_000, 9000),
        ] {
            heartbeats.answered(at(sent));
            assert_eq!(heartbeats.lease(timeout), Duration::from_millis(lease), "at {sent}");
        }
    }
}

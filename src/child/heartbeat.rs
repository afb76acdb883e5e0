//! Detects whether the guard still does its work. The kernel reports its death, and a stop by a signal, but neither a
//! stop by a tracer (`ptrace(2)`) nor an endless loop.

use std::time::Duration;

use crate::clock::Moment;

/// The interval between two pings.
const INTERVAL: Duration = Duration::from_secs(1);

/// How many pings in a row may have no reply before the guard is considered hung, if the kernel shows it as stopped and
/// the tree need not be stopped yet. A debugger may stop it for a moment. Pings, not time: a suspended host sends none.
const PATIENCE_WITH_STOPPED: u32 = 3;

/// The same if the guard may be running: on a busy host, whose disk is slow too, its replies are late.
const PATIENCE_WITH_RUNNING: u32 = 20;

/// The limit of the reply once the tree is to be stopped, if the guard may be running.
const URGENT: Duration = Duration::from_secs(2);

/// The state of the guard, according to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GuardState {
    /// Stopped, by a signal or by a tracer.
    Stopped,
    /// Any other state, or unknown.
    Running,
}

/// The pings from dlock to its guard, and their replies.
#[derive(Debug, Default)]
pub(super) struct Heartbeat {
    due: Option<Moment>,
    unanswered: u32,
    sent: u64,
    replies: u64,
    /// When this many replies must have come, because the tree is to be stopped.
    urgent: Option<(Moment, u64)>,
    /// A message that must not be lost could not be sent. No later reply makes up for it.
    given_up: bool,
}

impl Heartbeat {
    /// Starts the pings: the command runs.
    pub(super) fn begin(&mut self, now: Moment) {
        self.due = Some(now + INTERVAL);
    }

    /// Returns when the next ping is due.
    pub(super) fn due(&self) -> Option<Moment> {
        if self.given_up {
            return Some(Moment::from_boot(Duration::ZERO));
        }
        [self.due, self.urgent.map(|(urgent, _)| urgent)].into_iter().flatten().min()
    }

    /// Called when a ping is due. Returns true if replies have been missing for too long; otherwise a ping is to be
    /// sent.
    pub(super) fn is_missed(&mut self, now: Moment, guard: GuardState) -> bool {
        let patience = match guard {
            GuardState::Stopped => PATIENCE_WITH_STOPPED,
            GuardState::Running => PATIENCE_WITH_RUNNING,
        };
        if self.given_up
            || self.urgent.is_some_and(|(urgent, _)| now >= urgent)
            || self.unanswered >= patience
        {
            return true;
        }
        if self.due.is_some_and(|due| now >= due) {
            self.due = Some(now + INTERVAL);
            self.unanswered += 1;
        }
        false
    }

    /// Notes that a message was sent to which the guard replies.
    pub(super) fn note_request(&mut self) {
        self.sent += 1;
    }

    /// Notes that the next such message needs a prompt reply; a stopped guard will not reply.
    pub(super) fn expect_soon(&mut self, now: Moment, guard: GuardState) {
        let limit = match guard {
            GuardState::Stopped => Duration::ZERO,
            GuardState::Running => URGENT,
        };
        self.urgent.get_or_insert((now + limit, self.sent + 1));
    }

    /// Notes that the order to stop the tree could not be sent to the guard.
    pub(super) fn give_up(&mut self) {
        self.given_up = true;
    }

    /// Notes a reply.
    pub(super) fn note_reply(&mut self) {
        self.unanswered = 0;
        self.replies += 1;
        self.urgent.take_if(|(_, needed)| self.replies >= *needed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_boot(Duration::from_millis(millis))
    }

    #[test]
    fn a_stopped_guard_is_lost_after_three_pings() {
        let mut heartbeat = Heartbeat::default();
        assert_eq!(heartbeat.due(), None, "no ping is sent before the command runs");
        heartbeat.begin(at(0));
        for second in 1..=2 {
            assert!(!heartbeat.is_missed(at(second * 1000), GuardState::Stopped));
        }
        heartbeat.note_reply();
        for second in 3..=5 {
            assert!(!heartbeat.is_missed(at(second * 1000), GuardState::Stopped));
        }
        assert!(!heartbeat.is_missed(at(6000), GuardState::Running), "a busy host");
        assert!(heartbeat.is_missed(at(7000), GuardState::Stopped));
    }

    #[test]
    fn a_suspended_host_sends_no_pings() {
        let mut heartbeat = Heartbeat::default();
        heartbeat.begin(at(0));
        assert!(!heartbeat.is_missed(at(1000), GuardState::Running));
        assert!(!heartbeat.is_missed(at(9_000_000), GuardState::Running));
        assert_eq!(heartbeat.due(), Some(at(9_001_000)));
    }

    #[test]
    fn a_reply_does_not_make_up_for_a_stop_that_could_not_be_sent() {
        let mut heartbeat = Heartbeat::default();
        heartbeat.begin(at(0));
        heartbeat.give_up();
        heartbeat.note_reply();
        assert_eq!(heartbeat.due(), Some(at(0)));
        assert!(heartbeat.is_missed(at(1), GuardState::Running));
    }

    #[test]
    fn a_guard_that_has_to_stop_the_tree_replies_promptly() {
        let mut heartbeat = Heartbeat::default();
        heartbeat.begin(at(0));
        heartbeat.note_request();
        heartbeat.expect_soon(at(500), GuardState::Running);
        heartbeat.note_request();
        heartbeat.note_reply();
        assert!(!heartbeat.is_missed(at(1000), GuardState::Running));
        assert!(!heartbeat.is_missed(at(2000), GuardState::Running));
        assert!(heartbeat.is_missed(at(2500), GuardState::Running));
        heartbeat.note_reply();
        heartbeat.expect_soon(at(2600), GuardState::Stopped);
        assert!(heartbeat.is_missed(at(2600), GuardState::Stopped));
    }
}

//! Whether the guarding process still does its work. Its death, and a stop by a signal, are told by the kernel; a stop by a
//! tracer (`ptrace(2)`) or a loop are not.

use std::time::Duration;

use crate::clock::Moment;

/// Between two questions.
const INTERVAL: Duration = Duration::from_secs(1);

/// So many questions in a row may go without an answer while there is nothing to do, if the kernel says that the guarding
/// process is stopped. A debugger may look at it for a moment. Questions, not time: a host that was suspended has asked none.
const PATIENCE_WITH_STOPPED: u32 = 3;

/// So many, if it may be running: on a busy host, whose disk is slow too, it is late.
const PATIENCE_WITH_RUNNING: u32 = 20;

/// The tree is to be stopped: so long may one that seems to be running take to answer.
const URGENT: Duration = Duration::from_secs(2);

/// What the kernel shows of the guarding process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seems {
    /// Stopped, by a signal or by a tracer.
    Stopped,
    /// Anything else, or nothing.
    Running,
}

/// Questions and answers between dlock and its guarding process.
#[derive(Debug, Default)]
pub(super) struct Heartbeat {
    due: Option<Moment>,
    unanswered: u32,
    /// The tree is to be stopped, and one question has to be answered by then.
    urgent: Option<Moment>,
    /// A message that must not be lost was not sent. No later answer makes up for it.
    given_up: bool,
}

impl Heartbeat {
    /// The command runs.
    pub(super) fn begin(&mut self, now: Moment) {
        self.due = Some(now + INTERVAL);
    }

    /// When the next question is due.
    pub(super) fn due(&self) -> Option<Moment> {
        if self.given_up {
            return Some(Moment::from_boot(Duration::ZERO));
        }
        [self.due, self.urgent].into_iter().flatten().min()
    }

    /// Called when one is due. Answers whether there has been no answer for too long; otherwise a question is to be asked.
    pub(super) fn is_missed(&mut self, now: Moment, guard: Seems) -> bool {
        let patience = match guard {
            Seems::Stopped => PATIENCE_WITH_STOPPED,
            Seems::Running => PATIENCE_WITH_RUNNING,
        };
        if self.given_up || self.urgent.is_some_and(|urgent| now >= urgent) || self.unanswered >= patience {
            return true;
        }
        if self.due.is_some_and(|due| now >= due) {
            self.due = Some(now + INTERVAL);
            self.unanswered += 1;
        }
        false
    }

    /// A question is asked that has to be answered soon; one that is stopped will not.
    pub(super) fn expect_soon(&mut self, now: Moment, guard: Seems) {
        let limit = match guard {
            Seems::Stopped => Duration::ZERO,
            Seems::Running => URGENT,
        };
        self.urgent.get_or_insert(now + limit);
    }

    /// The guarding process could not be told to stop the tree.
    pub(super) fn give_up(&mut self) {
        self.given_up = true;
    }

    /// An answer came.
    pub(super) fn answered(&mut self) {
        self.unanswered = 0;
        self.urgent = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_boot(Duration::from_millis(millis))
    }

    #[test]
    fn one_that_is_stopped_is_lost_after_three_questions() {
        let mut heartbeat = Heartbeat::default();
        assert_eq!(heartbeat.due(), None, "nothing is asked before the command runs");
        heartbeat.begin(at(0));
        for second in 1..=2 {
            assert!(!heartbeat.is_missed(at(second * 1000), Seems::Stopped));
        }
        heartbeat.answered();
        for second in 3..=5 {
            assert!(!heartbeat.is_missed(at(second * 1000), Seems::Stopped));
        }
        assert!(!heartbeat.is_missed(at(6000), Seems::Running), "a busy host");
        assert!(heartbeat.is_missed(at(7000), Seems::Stopped));
    }

    #[test]
    fn a_suspended_host_asks_no_questions() {
        let mut heartbeat = Heartbeat::default();
        heartbeat.begin(at(0));
        assert!(!heartbeat.is_missed(at(1000), Seems::Running));
        assert!(!heartbeat.is_missed(at(9_000_000), Seems::Running));
        assert_eq!(heartbeat.due(), Some(at(9_001_000)));
    }

    #[test]
    fn a_stop_that_could_not_be_sent_is_not_made_up_for_by_an_answer() {
        let mut heartbeat = Heartbeat::default();
        heartbeat.begin(at(0));
        heartbeat.give_up();
        heartbeat.answered();
        assert_eq!(heartbeat.due(), Some(at(0)));
        assert!(heartbeat.is_missed(at(1), Seems::Running));
    }

    #[test]
    fn one_that_has_to_stop_the_tree_answers_soon() {
        let mut heartbeat = Heartbeat::default();
        heartbeat.begin(at(0));
        heartbeat.expect_soon(at(500), Seems::Running);
        assert!(!heartbeat.is_missed(at(1000), Seems::Running));
        assert!(!heartbeat.is_missed(at(2000), Seems::Running));
        assert!(heartbeat.is_missed(at(2500), Seems::Running));
        heartbeat.answered();
        heartbeat.expect_soon(at(2600), Seems::Stopped);
        assert!(heartbeat.is_missed(at(2600), Seems::Stopped));
    }
}

//! Whether the guarding process still does its work. Its death, and a stop by a signal, are told by the kernel; a stop by a
//! tracer (`ptrace(2)`) or a loop are not.

use std::time::Duration;

use crate::clock::Moment;

/// Between two questions.
const INTERVAL: Duration = Duration::from_secs(1);

/// So many questions in a row may go without an answer while there is nothing to do: a busy host is no reason to end a
/// command, nor is a debugger that looks at the guarding process for a moment. Questions, not time: a host that was
/// suspended has asked none.
const PATIENCE: u32 = 3;

/// Questions and answers between dlock and its guarding process.
#[derive(Debug, Default)]
pub(super) struct Heartbeat {
    due: Option<Moment>,
    unanswered: u32,
    /// The tree is to be stopped, and one question has to be answered by then.
    urgent: Option<Moment>,
}

impl Heartbeat {
    /// The command runs.
    pub(super) fn begin(&mut self, now: Moment) {
        self.due = Some(now + INTERVAL);
    }

    /// When the next question is due.
    pub(super) fn due(&self) -> Option<Moment> {
        [self.due, self.urgent].into_iter().flatten().min()
    }

    /// Called when one is due. Answers whether there has been no answer for too long; otherwise a question is to be asked.
    pub(super) fn is_missed(&mut self, now: Moment) -> bool {
        if self.urgent.is_some_and(|urgent| now >= urgent) || self.unanswered >= PATIENCE {
            return true;
        }
        if self.due.is_some_and(|due| now >= due) {
            self.due = Some(now + INTERVAL);
            self.unanswered += 1;
        }
        false
    }

    /// A question is asked that has to be answered within a second; or at once, by one that is known to be stopped.
    pub(super) fn expect_soon(&mut self, now: Moment, is_stopped: bool) {
        let soon = now + if is_stopped { Duration::ZERO } else { INTERVAL };
        self.urgent.get_or_insert(soon);
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
    fn three_questions_in_a_row_may_go_unanswered() {
        let mut heartbeat = Heartbeat::default();
        assert_eq!(heartbeat.due(), None, "nothing is asked before the command runs");
        heartbeat.begin(at(0));
        for second in 1..=2 {
            assert!(!heartbeat.is_missed(at(second * 1000)));
        }
        heartbeat.answered();
        for second in 3..=5 {
            assert!(!heartbeat.is_missed(at(second * 1000)));
        }
        assert!(heartbeat.is_missed(at(6000)));
    }

    #[test]
    fn a_suspended_host_asks_no_questions() {
        let mut heartbeat = Heartbeat::default();
        heartbeat.begin(at(0));
        assert!(!heartbeat.is_missed(at(1000)));
        assert!(!heartbeat.is_missed(at(9_000_000)));
        assert_eq!(heartbeat.due(), Some(at(9_001_000)));
    }

    #[test]
    fn one_that_has_to_stop_the_tree_answers_within_a_second() {
        let mut heartbeat = Heartbeat::default();
        heartbeat.begin(at(0));
        heartbeat.expect_soon(at(500), false);
        assert!(!heartbeat.is_missed(at(1000)));
        assert_eq!(heartbeat.due(), Some(at(1500)));
        assert!(heartbeat.is_missed(at(1500)));
        heartbeat.answered();
        heartbeat.expect_soon(at(1600), true);
        assert!(heartbeat.is_missed(at(1600)));
    }
}

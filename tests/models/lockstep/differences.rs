//! Compares what both renderings show. Where they differ, the difference stands in the table with its reason.

use std::cmp::Reverse;
use std::time::Duration;

use dlock::backend::ledger::HolderEntry;

use super::answers::{Answer, Sight};
use super::model::{Action, Case, Request, State};
use super::script::LOCK;

/// What was done, and in which state.
pub(super) struct Facts<'a> {
    pub(super) case: &'a Case,
    pub(super) before: &'a State,
    pub(super) action: Action,
}

/// What both show: that of the script first.
pub(super) type Both<T> = (T, T);

/// A difference that is intended.
pub(super) struct Difference {
    pub(super) name: &'static str,
    /// Why both are right.
    pub(super) reason: &'static str,
    /// Whether what is stored differs too, so that nothing can be compared afterwards.
    lasts: bool,
    /// Makes answers equal that differ by it.
    of_answers: fn(&Facts<'_>, &mut Both<Answer>),
    /// The same for what is seen.
    of_sights: fn(&Facts<'_>, &mut Both<Sight>),
}

pub(super) const ORDER_OF_OUTCOMES: &str = "outcomes of one millisecond are in another order";

pub(super) const KEPT_BY_ITS_KEY: &str =
    "an exclusive lock that a nested run has entered lasts as long as its key";

pub(super) const CALLED_TOGETHER: &str = "waiters are called although it is not their turn";

pub(super) const DEAD_WAITERS_FORGOTTEN: &str = "waiters that have all died during a freeze are not counted";

pub(super) const LEASE_OF_MINIMUM_TIME: &str =
    "a minimum hold time longer than the lease is recorded as the lease";

/// The differences.
pub(super) const DIFFERENCES: &[Difference] = &[
    Difference {
        name: ORDER_OF_OUTCOMES,
        reason: "Redis keeps runs that succeeded, other holds and runs that did not get the lock in a list each, so that one \
                 LTRIM applies the quota of each kind; they are merged by their times, which are in ms.",
        lasts: false,
        of_answers: |_, _| (),
        of_sights: |_, both| {
            for sight in [&mut both.0, &mut both.1] {
                sight.history.sort_by_key(|(at, record)| (Reverse(*at), record.kind() as u8));
            }
        },
    },
    Difference {
        name: LEASE_OF_MINIMUM_TIME,
        reason: "A node of a Redlock that has lost its data counts again when every hold that it may have lost has ended, \
                 which the other nodes show by these records. What the holder relies on is the lease in the grant.",
        lasts: false,
        of_answers: |_, _| (),
        of_sights: |facts, both| {
            let holders = both.0.state.holders.iter_mut().zip(&both.1.state.holders);
            for (script, ledger) in holders.filter(|(script, _)| script.lease == Some(facts.case.min_hold)) {
                script.lease = ledger.lease;
            }
        },
    },
    Difference {
        name: KEPT_BY_ITS_KEY,
        reason: "To clients of plain keys the key is the lock, and its value proves the hold. While several runs are inside, \
                 its expiry is moved seldom, because each change notifies all who track it, and by up to a third of a lease \
                 further than the last lease. Until it expires, nobody else is granted the lock, and the outer hold can be \
                 renewed even if only the nested one was.",
        lasts: true,
        of_answers: |facts, both| {
            if facts.is_kept_by_its_key() {
                both.1 = both.0.clone();
            }
        },
        of_sights: |facts, both| {
            if facts.is_kept_by_its_key() {
                both.1 = both.0.clone();
            }
        },
    },
    Difference {
        name: DEAD_WAITERS_FORGOTTEN,
        reason: "Nobody is removed from the queue of a frozen lock who does not leave. In Redis the key of the queue expires some \
                 time after the last one of those in it has asked; a ledger keeps them until the lock is thawed.",
        lasts: true,
        of_answers: |facts, both| {
            if let (Answer::Busy(script), Answer::Busy(ledger)) = (&both.0, &mut both.1)
                && script.freeze.is_some()
                && facts.are_all_waiters_dead()
            {
                ledger.position = script.position;
            }
        },
        of_sights: |_, _| (),
    },
    Difference {
        name: CALLED_TOGETHER,
        reason: "The holder and the first waiters may have died together. Redis then calls up to 32 waiters at once, so that \
                 the dead ones cost one claim together. On the databases each of them would read and swap the same document \
                 at the same moment, and all but one in vain; there each dead waiter costs 500 ms, which is the bound for \
                 both.",
        lasts: true,
        of_answers: |_, _| (),
        of_sights: |facts, both| {
            let claims = facts.is(Request::Claim) || facts.is(Request::Try);
            let queues = both.0.queue.iter().zip(&mut both.1.queue);
            for (script, ledger) in queues.filter(|(script, ledger)| claims && script.0 == ledger.0) {
                ledger.1 = script.1.filter(|_| ledger.1.is_none()).or(ledger.1);
            }
        },
    },
];

impl Facts<'_> {
    /// Returns whether the key of an exclusive lock has outlived the lease of the hold that it belongs to.
    fn is_kept_by_its_key(&self) -> bool {
        let now = Duration::from_micros(self.before.now);
        let is_alive = |holder: &&HolderEntry| holder.lease_ends.is_none_or(|ends| now < ends);
        let mut holders = self.before.ledger.holders.iter().filter(is_alive);
        let owner = self.before.server.text(LOCK).filter(|value| value.starts_with("token-"));
        owner.is_some_and(|owner| !holders.any(|holder| holder.token == *owner))
    }

    fn are_all_waiters_dead(&self) -> bool {
        let (waiters, now) = (&self.before.ledger.waiters, Duration::from_micros(self.before.now));
        !waiters.is_empty() && waiters.iter().all(|waiter| waiter.lease_ends.is_some_and(|ends| now >= ends))
    }

    fn is(&self, request: Request) -> bool {
        matches!(self.action, Action::Request(_, requested) if requested == request)
    }
}

/// Which differences have occurred, and whether one of them lasts.
pub(super) struct Compared {
    pub(super) differences: Vec<&'static str>,
    pub(super) lasts: bool,
}

/// Compares what the table allows to differ.
fn compare<T: PartialEq + Clone>(
    mut both: Both<T>,
    erase: impl Fn(&Difference, &mut Both<T>),
    describe: impl Fn(&Both<T>) -> String,
) -> Result<Compared, String> {
    let mut compared = Compared { differences: Vec::new(), lasts: false };
    for difference in DIFFERENCES {
        let before = both.clone();
        if both.0 == both.1 {
            break;
        }
        erase(difference, &mut both);
        if both != before {
            compared.differences.push(difference.name);
            compared.lasts |= difference.lasts;
        }
    }
    if both.0 == both.1 { Ok(compared) } else { Err(describe(&both)) }
}

/// Compares the replies to a request.
pub(super) fn compare_answers(facts: &Facts<'_>, both: Both<Answer>) -> Result<Compared, String> {
    compare(
        both,
        |difference, both| (difference.of_answers)(facts, both),
        |both| format!("\n  script answers {:?}\n  ledger answers {:?}", both.0, both.1),
    )
}

/// Compares what is seen afterwards.
pub(super) fn compare_sights(facts: &Facts<'_>, both: Both<Sight>) -> Result<Compared, String> {
    let parts: [fn(&Sight) -> String; 9] = [
        |sight| format!("mode {:?}", sight.state.mode),
        |sight| format!("holders {:?}", sight.state.holders),
        |sight| format!("waiters {:?}", sight.state.waiters),
        |sight| format!("freeze {:?}", sight.state.freeze),
        |sight| format!("success {:?}", sight.state.last_success),
        |sight| format!("queue {:?}", sight.queue),
        |sight| format!("token {}", sight.last_fencing_token),
        |sight| format!("history {:?}", sight.history),
        |sight| format!("unknown {:?}", sight.state.unknown),
    ];
    let describe = |both: &Both<Sight>| {
        let parts = parts.iter().map(|part| (part(&both.0), part(&both.1)));
        let differing = parts.filter(|(script, ledger)| script != ledger);
        differing.map(|(script, ledger)| format!("\n  script: {script}\n  ledger: {ledger}")).collect()
    };
    compare(both, |difference, both| (difference.of_sights)(facts, both), describe)
}

//! Whether a majority has granted a lock: pure.
//!
//! A node that was restarted may have forgotten a hold, and would grant it to somebody else. So each node says for how long
//! it has remembered all that it was told, its age, and what it grants counts only if it is older than every lease that it
//! may have forgotten: that of the claim, because most who share a lock ask for the same, and those of all who hold the
//! lock at other nodes. A hold is at more than half of the nodes; so as long as those that are down and those that have
//! forgotten it are less than half, one that knows of it is asked.

use std::time::Duration;

/// No lease is longer, nor any least time that a lock is kept, so a node of this age need not be compared with the others.
const LONGEST_LEASE: Duration = Duration::from_secs(31 * 24 * 3600);
/// Nodes that were all asked for the first time within so long of each other are new.
pub(super) const SAME_AGE: Duration = Duration::from_secs(5);

/// What a node says to a claim, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeVote {
    /// Granted. New is one that nobody had asked before it was of this age.
    Granted { age: Duration, is_new: bool },
    /// Not granted, because of holds of which the longest lease is this.
    Refused { age: Duration, is_new: bool, lease: Duration },
    /// It cannot be asked.
    Failed,
}

/// What the answers come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// These nodes have granted it, and count.
    Granted(Vec<usize>),
    /// There is no majority, whatever is still to come.
    Refused {
        /// What these have granted does not count before this time is over.
        forgetful: Vec<(usize, Duration)>,
    },
}

/// Decides on the answers so far, `None` for a node that has not answered yet. `None`: more of them are needed.
pub(super) fn verdict(answers: &[Option<NodeVote>], quorum: usize, lease: Duration) -> Option<Verdict> {
    let ages = |least: Duration| {
        answers.iter().enumerate().filter_map(move |(node, answer)| match answer {
            Some(NodeVote::Granted { age, .. }) if *age >= least => Some(node),
            _ => None,
        })
    };
    let old: Vec<usize> = ages(LONGEST_LEASE).collect();
    if old.len() >= quorum {
        return Some(Verdict::Granted(old));
    }
    let open = answers.iter().filter(|answer| answer.is_none()).count();
    if ages(Duration::ZERO).count() + open < quorum {
        return Some(Verdict::Refused { forgetful: Vec::new() });
    }
    if open > 0 {
        return None;
    }
    let needed = if are_new(answers) { Duration::ZERO } else { needed(answers, lease) };
    let counted: Vec<usize> = ages(needed).collect();
    if counted.len() >= quorum {
        return Some(Verdict::Granted(counted));
    }
    let forgetful = answers.iter().enumerate().filter_map(|(node, answer)| match answer {
        Some(NodeVote::Granted { age, .. }) if *age < needed => Some((node, needed - *age)),
        _ => None,
    });
    Some(Verdict::Refused { forgetful: forgetful.collect() })
}

/// How old a node has to be.
fn needed(answers: &[Option<NodeVote>], lease: Duration) -> Duration {
    let others = answers.iter().filter_map(|answer| match answer {
        Some(NodeVote::Refused { lease, .. }) => Some((*lease).min(LONGEST_LEASE)),
        _ => None,
    });
    others.chain([lease]).max().unwrap_or(lease)
}

/// Whether all nodes are there and were asked for the first time ever at the same time: nobody can have held anything before.
/// Those that were started again together have held what they do not know.
fn are_new(answers: &[Option<NodeVote>]) -> bool {
    let ages: Option<Vec<Duration>> = answers
        .iter()
        .map(|answer| match answer {
            Some(NodeVote::Granted { age, is_new: true } | NodeVote::Refused { age, is_new: true, .. }) => {
                Some(*age)
            }
            Some(_) | None => None,
        })
        .collect();
    let Some(ages) = ages else { return false };
    let span = ages.iter().max().zip(ages.iter().min());
    span.is_some_and(|(oldest, youngest)| *oldest - *youngest <= SAME_AGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    fn granted(seconds: u64) -> Option<NodeVote> {
        Some(NodeVote::Granted { age: Duration::from_secs(seconds), is_new: true })
    }

    fn refused(lease: u64) -> Option<NodeVote> {
        let (age, lease) = (Duration::from_secs(OLD), Duration::from_secs(lease));
        Some(NodeVote::Refused { age, is_new: true, lease })
    }

    const FAILED: Option<NodeVote> = Some(NodeVote::Failed);
    const OLD: u64 = 31 * 24 * 3600;

    fn of(answers: [Option<NodeVote>; 5]) -> Option<Verdict> {
        verdict(&answers, 3, LEASE)
    }

    fn nobody() -> Option<Verdict> {
        Some(Verdict::Refused { forgetful: vec![] })
    }

    #[test]
    fn a_majority_of_old_nodes_decides_at_once() {
        assert_eq!(
            of([granted(OLD), None, granted(OLD), None, granted(OLD)]),
            Some(Verdict::Granted(vec![0, 2, 4]))
        );
        assert_eq!(of([granted(OLD), None, granted(OLD), None, refused(30)]), None);
        assert_eq!(of([refused(30), None, refused(30), granted(OLD), refused(30)]), nobody());
        assert_eq!(of([FAILED, FAILED, FAILED, None, None]), nobody());
        assert_eq!(of([granted(OLD), granted(OLD), refused(30), refused(30), FAILED]), nobody());
    }

    #[test]
    fn a_node_that_has_forgotten_counts_after_the_longest_lease_that_is_known() {
        let young = [FAILED, FAILED, granted(OLD), granted(OLD), granted(29)];
        let second = Duration::from_secs(1);
        assert_eq!(of(young), Some(Verdict::Refused { forgetful: vec![(4, second)] }));
        let older = [FAILED, FAILED, granted(OLD), granted(OLD), granted(30)];
        assert_eq!(of(older), Some(Verdict::Granted(vec![2, 3, 4])));
        let long_lease = [refused(3600), refused(3600), granted(OLD), granted(OLD), granted(3599)];
        assert_eq!(of(long_lease), Some(Verdict::Refused { forgetful: vec![(4, second)] }));
    }

    #[test]
    fn nobody_decides_on_young_nodes_before_all_have_answered() {
        assert_eq!(of([None, granted(40), granted(40), granted(40), granted(40)]), None);
        assert_eq!(of([FAILED, granted(40), granted(40), granted(40), None]), None);
        let all = [FAILED, granted(40), granted(40), granted(40), granted(3)];
        assert_eq!(of(all), Some(Verdict::Granted(vec![1, 2, 3])));
    }

    #[test]
    fn nodes_that_are_all_new_count_if_all_are_there() {
        let new = [granted(0), granted(5), granted(1), granted(2), granted(3)];
        assert_eq!(of(new), Some(Verdict::Granted(vec![0, 1, 2, 3, 4])));
        let one_is_older = [granted(0), granted(6), granted(1), granted(2), granted(3)];
        assert!(matches!(of(one_is_older), Some(Verdict::Refused { .. })));
        let one_is_missing = [granted(0), granted(1), granted(1), granted(1), FAILED];
        assert!(matches!(of(one_is_missing), Some(Verdict::Refused { .. })));
    }

    #[test]
    fn nodes_that_were_started_again_together_are_not_new() {
        let again = |seconds| Some(NodeVote::Granted { age: Duration::from_secs(seconds), is_new: false });
        let all = [again(0), again(1), again(0), again(2), again(0)];
        assert!(matches!(of(all), Some(Verdict::Refused { forgetful }) if forgetful.len() == 5));
        let one_was_asked_before = [granted(0), granted(1), again(0), granted(2), granted(0)];
        assert!(matches!(of(one_was_asked_before), Some(Verdict::Refused { .. })));
        let refusing = Some(NodeVote::Refused { age: Duration::ZERO, is_new: false, lease: LEASE });
        let one_refuses = [granted(0), granted(1), refusing, granted(2), granted(0)];
        assert!(matches!(of(one_refuses), Some(Verdict::Refused { .. })));
        assert_eq!(
            of([again(30), again(30), again(31), FAILED, FAILED]),
            Some(Verdict::Granted(vec![0, 1, 2]))
        );
    }

    #[test]
    fn a_foreign_hold_may_have_any_lease() {
        let age = Duration::from_secs(OLD);
        let foreign = Some(NodeVote::Refused { age, is_new: true, lease: Duration::MAX });
        let answers = [foreign, FAILED, granted(OLD), granted(OLD), granted(40)];
        assert!(matches!(of(answers), Some(Verdict::Refused { .. })));
    }
}

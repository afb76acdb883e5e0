//! Whether a majority has granted a lock: pure.
//!
//! A node that was restarted may have lost a hold, and would grant the lock to another client. Each node therefore
//! reports its age: how long it has remembered everything written to it. Its grant counts only if it is older than
//! every lease that it may have lost: the lease of the claim, because most clients of a lock use the same lease, and
//! the leases of all clients that hold the lock at other nodes. A hold is at more than half of the nodes. So while the
//! nodes that are down and the nodes that have lost the hold are together less than half, at least one node that has
//! the hold replies.

use std::time::Duration;

/// The longest possible lease and minimum hold: a node of this age need not be compared with the others.
const LONGEST_LEASE: Duration = Duration::from_secs(31 * 24 * 3600);
/// Nodes are new if all of them received their first request within this time.
pub(super) const SAME_AGE: Duration = Duration::from_secs(5);

/// The vote of a node on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeVote {
    /// Granted. A new node had never received a request before it began to count its age.
    Granted { age: Duration, is_new: bool },
    /// Not granted; `lease` is the longest lease among the holds that exclude the claim.
    Refused { age: Duration, is_new: bool, lease: Duration },
    /// The request failed.
    Failed,
}

/// The outcome of a vote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// These nodes have granted the claim, and count.
    Granted(Vec<usize>),
    /// There is no majority, whatever the missing votes are.
    Refused {
        /// Nodes whose grants do not count yet, and for how much longer.
        too_young: Vec<(usize, Duration)>,
    },
}

/// Decides on the votes so far; a missing vote is `None`. Returns `None` if more votes are needed.
pub(super) fn verdict(votes: &[Option<NodeVote>], quorum: usize, lease: Duration) -> Option<Verdict> {
    let ages = |least: Duration| {
        votes.iter().enumerate().filter_map(move |(node, vote)| match vote {
            Some(NodeVote::Granted { age, .. }) if *age >= least => Some(node),
            _ => None,
        })
    };
    let old: Vec<usize> = ages(LONGEST_LEASE).collect();
    if old.len() >= quorum {
        return Some(Verdict::Granted(old));
    }
    let missing = votes.iter().filter(|vote| vote.is_none()).count();
    if ages(Duration::ZERO).count() + missing < quorum {
        return Some(Verdict::Refused { too_young: Vec::new() });
    }
    if missing > 0 {
        return None;
    }
    let needed = if are_new(votes) { Duration::ZERO } else { needed(votes, lease) };
    let counted: Vec<usize> = ages(needed).collect();
    if counted.len() >= quorum {
        return Some(Verdict::Granted(counted));
    }
    let too_young = votes.iter().enumerate().filter_map(|(node, vote)| match vote {
        Some(NodeVote::Granted { age, .. }) if *age < needed => Some((node, needed - *age)),
        _ => None,
    });
    Some(Verdict::Refused { too_young: too_young.collect() })
}

/// The age from which on the grant of a node counts.
fn needed(votes: &[Option<NodeVote>], lease: Duration) -> Duration {
    let others = votes.iter().filter_map(|vote| match vote {
        Some(NodeVote::Refused { lease, .. }) => Some((*lease).min(LONGEST_LEASE)),
        _ => None,
    });
    others.chain([lease]).max().unwrap_or(lease)
}

/// Whether all nodes have replied and received their first request ever at the same time: no client can have held a
/// lock before. This does not hold for nodes that were restarted together: they may have lost holds.
fn are_new(votes: &[Option<NodeVote>]) -> bool {
    let ages: Option<Vec<Duration>> = votes
        .iter()
        .map(|vote| match vote {
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

    fn of(votes: [Option<NodeVote>; 5]) -> Option<Verdict> {
        verdict(&votes, 3, LEASE)
    }

    fn no_majority() -> Option<Verdict> {
        Some(Verdict::Refused { too_young: vec![] })
    }

    #[test]
    fn a_majority_of_old_nodes_decides_at_once() {
        assert_eq!(
            of([granted(OLD), None, granted(OLD), None, granted(OLD)]),
            Some(Verdict::Granted(vec![0, 2, 4]))
        );
        assert_eq!(of([granted(OLD), None, granted(OLD), None, refused(30)]), None);
        assert_eq!(of([refused(30), None, refused(30), granted(OLD), refused(30)]), no_majority());
        assert_eq!(of([FAILED, FAILED, FAILED, None, None]), no_majority());
        assert_eq!(of([granted(OLD), granted(OLD), refused(30), refused(30), FAILED]), no_majority());
    }

    #[test]
    fn a_node_that_lost_its_data_counts_after_the_longest_known_lease() {
        let young = [FAILED, FAILED, granted(OLD), granted(OLD), granted(29)];
        let second = Duration::from_secs(1);
        assert_eq!(of(young), Some(Verdict::Refused { too_young: vec![(4, second)] }));
        let older = [FAILED, FAILED, granted(OLD), granted(OLD), granted(30)];
        assert_eq!(of(older), Some(Verdict::Granted(vec![2, 3, 4])));
        let long_lease = [refused(3600), refused(3600), granted(OLD), granted(OLD), granted(3599)];
        assert_eq!(of(long_lease), Some(Verdict::Refused { too_young: vec![(4, second)] }));
    }

    #[test]
    fn young_nodes_are_decided_on_only_when_all_have_voted() {
        assert_eq!(of([None, granted(40), granted(40), granted(40), granted(40)]), None);
        assert_eq!(of([FAILED, granted(40), granted(40), granted(40), None]), None);
        let all = [FAILED, granted(40), granted(40), granted(40), granted(3)];
        assert_eq!(of(all), Some(Verdict::Granted(vec![1, 2, 3])));
    }

    #[test]
    fn nodes_that_are_all_new_count_if_all_have_voted() {
        let new = [granted(0), granted(5), granted(1), granted(2), granted(3)];
        assert_eq!(of(new), Some(Verdict::Granted(vec![0, 1, 2, 3, 4])));
        let one_is_older = [granted(0), granted(6), granted(1), granted(2), granted(3)];
        assert!(matches!(of(one_is_older), Some(Verdict::Refused { .. })));
        let one_is_missing = [granted(0), granted(1), granted(1), granted(1), FAILED];
        assert!(matches!(of(one_is_missing), Some(Verdict::Refused { .. })));
    }

    #[test]
    fn nodes_that_were_restarted_together_are_not_new() {
        let restarted =
            |seconds| Some(NodeVote::Granted { age: Duration::from_secs(seconds), is_new: false });
        let all = [restarted(0), restarted(1), restarted(0), restarted(2), restarted(0)];
        assert!(matches!(of(all), Some(Verdict::Refused { too_young }) if too_young.len() == 5));
        let one_is_not_new = [granted(0), granted(1), restarted(0), granted(2), granted(0)];
        assert!(matches!(of(one_is_not_new), Some(Verdict::Refused { .. })));
        let refusing = Some(NodeVote::Refused { age: Duration::ZERO, is_new: false, lease: LEASE });
        let one_refuses = [granted(0), granted(1), refusing, granted(2), granted(0)];
        assert!(matches!(of(one_refuses), Some(Verdict::Refused { .. })));
        assert_eq!(
            of([restarted(30), restarted(30), restarted(31), FAILED, FAILED]),
            Some(Verdict::Granted(vec![0, 1, 2]))
        );
    }

    #[test]
    fn a_foreign_hold_may_have_any_lease() {
        let age = Duration::from_secs(OLD);
        let foreign = Some(NodeVote::Refused { age, is_new: true, lease: Duration::MAX });
        let votes = [foreign, FAILED, granted(OLD), granted(OLD), granted(40)];
        assert!(matches!(of(votes), Some(Verdict::Refused { .. })));
    }
}

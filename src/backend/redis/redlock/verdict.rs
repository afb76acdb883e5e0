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
pub(super) struct NodeVote {
    pub(super) age: Duration,
    /// The node had never received a request before it began to count its age.
    pub(super) is_new: bool,
    /// The longest lease among the holds that exclude the claim; `None` if the claim is granted.
    pub(super) excluded_for: Option<Duration>,
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

/// Decides on the votes so far of `count` nodes, of which `pending` have not voted yet. A node that failed has no vote.
/// Returns `None` if more votes are needed.
pub(super) fn verdict(
    votes: &[(usize, NodeVote)],
    pending: usize,
    count: usize,
    quorum: usize,
    lease: Duration,
) -> Option<Verdict> {
    let granted: Vec<(usize, Duration)> = votes
        .iter()
        .filter(|(_, vote)| vote.excluded_for.is_none())
        .map(|(node, vote)| (*node, vote.age))
        .collect();
    let of_age = |least: Duration| -> Vec<usize> {
        granted.iter().filter(|(_, age)| *age >= least).map(|(node, _)| *node).collect()
    };
    if of_age(LONGEST_LEASE).len() >= quorum {
        return Some(Verdict::Granted(of_age(LONGEST_LEASE)));
    }
    if granted.len() + pending < quorum {
        return Some(Verdict::Refused { too_young: Vec::new() });
    }
    if pending > 0 {
        return None;
    }
    // The age from which on a grant counts.
    let excluded_for = votes.iter().filter_map(|(_, vote)| vote.excluded_for);
    let needed = match are_new(votes, count) {
        true => Duration::ZERO,
        false => excluded_for.map(|lease| lease.min(LONGEST_LEASE)).fold(lease, Duration::max),
    };
    if of_age(needed).len() >= quorum {
        return Some(Verdict::Granted(of_age(needed)));
    }
    let too_young = granted.iter().filter(|(_, age)| *age < needed);
    Some(Verdict::Refused { too_young: too_young.map(|(node, age)| (*node, needed - *age)).collect() })
}

/// Whether all nodes have replied and received their first request ever at the same time: no client can have held a
/// lock before. This does not hold for nodes that were restarted together: they may have lost holds.
fn are_new(votes: &[(usize, NodeVote)], count: usize) -> bool {
    let ages = || votes.iter().map(|(_, vote)| vote.age);
    let span = ages().max().zip(ages().min());
    votes.len() == count
        && votes.iter().all(|(_, vote)| vote.is_new)
        && span.is_some_and(|(oldest, youngest)| oldest - youngest <= SAME_AGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);
    const OLD: u64 = 31 * 24 * 3600;

    /// The verdict on the votes of five nodes: `g AGE` granted by a new node of that age in seconds, `r AGE` by one that
    /// was restarted, `x LEASE` excluded by a hold with that lease, `f` failed, `?` pending.
    fn of(votes: &str) -> Option<Verdict> {
        let mut pending = 0;
        let vote = |(node, vote): (usize, &str)| {
            let (kind, number) = vote.split_at(1);
            let time = Duration::from_secs(number.replace("old", &OLD.to_string()).parse().unwrap_or(0));
            let granted = NodeVote { age: time, is_new: kind == "g", excluded_for: None };
            match kind {
                "g" | "r" => Some((node, granted)),
                "x" => {
                    let age = Duration::from_secs(OLD);
                    Some((node, NodeVote { age, is_new: true, excluded_for: Some(time) }))
                }
                _ => {
                    pending += usize::from(kind == "?");
                    None
                }
            }
        };
        let votes: Vec<(usize, NodeVote)> = votes.split(' ').enumerate().filter_map(vote).collect();
        verdict(&votes, pending, 5, 3, LEASE)
    }

    #[test]
    fn a_majority_of_nodes_that_count_decides() {
        for (votes, nodes) in [
            ("gold ? gold ? gold", &[0, 2, 4][..]),
            // A node that lost its data counts after the longest known lease.
            ("f f gold gold g30", &[2, 3, 4]),
            ("f g40 g40 g40 g3", &[1, 2, 3]),
            ("r30 r30 r31 f f", &[0, 1, 2]),
            // All are new.
            ("g0 g5 g1 g2 g3", &[0, 1, 2, 3, 4]),
        ] {
            assert_eq!(of(votes), Some(Verdict::Granted(nodes.to_vec())), "{votes}");
        }
    }

    #[test]
    fn more_votes_are_waited_for_if_they_matter() {
        for (votes, is_decided) in [
            ("gold ? gold ? x30", false),
            ("? g40 g40 g40 g40", false),
            ("x30 ? x30 gold x30", true),
            ("f f f ? ?", true),
            ("gold gold x30 x30 f", true),
        ] {
            let refused = Some(Verdict::Refused { too_young: Vec::new() });
            assert_eq!(of(votes), refused.filter(|_| is_decided), "{votes}");
        }
    }

    #[test]
    fn the_grant_of_a_node_that_may_have_lost_a_hold_does_not_count() {
        for (votes, young) in [
            ("f f gold gold g29", &[(4, 1)][..]),
            ("x3600 x3600 gold gold g3599", &[(4, 1)]),
            // A foreign hold may have any lease.
            ("xold f gold gold g40", &[(4, OLD - 40)]),
            // They were restarted together, ...
            ("r0 r1 r0 r2 r0", &[(0, 30), (1, 29), (2, 30), (3, 28), (4, 30)]),
            ("g0 g1 r0 g2 g0", &[(0, 30), (1, 29), (2, 30), (3, 28), (4, 30)]),
            // ... one is older, or one has not voted.
            ("g0 g6 g1 g2 g3", &[(0, 30), (1, 24), (2, 29), (3, 28), (4, 27)]),
            ("g0 g1 g1 g1 f", &[(0, 30), (1, 29), (2, 29), (3, 29)]),
        ] {
            let too_young = young.iter().map(|(node, rest)| (*node, Duration::from_secs(*rest))).collect();
            assert_eq!(of(votes), Some(Verdict::Refused { too_young }), "{votes}");
        }
    }
}

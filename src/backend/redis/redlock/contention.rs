//! Which clients prevent the lock from being granted, merged from the replies of several nodes: pure.

use std::time::Duration;

use super::merge;
use crate::backend::{Again, Busy, Refusal};
use crate::lock::{Freeze, Holder};

/// A hold at a node that is older than this is not an attempt in progress: a failed attempt is released sooner.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(1);

/// Why no majority of nodes grants a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Contention {
    /// Another client holds the lock, or it is frozen.
    Held(Busy),
    /// Concurrent claims have split the nodes between them, or it is another waiter's turn.
    Split(Busy),
    /// The claim cannot be granted in the current state.
    Refused(Refusal),
}

impl Contention {
    /// Whether no other client is known to want the lock.
    pub(super) fn is_free(&self) -> bool {
        matches!(self, Contention::Split(busy) if busy.holders.is_empty() && !busy.promised && busy.position.is_none())
    }
}

/// Merges the replies of the nodes that did not grant the lock; `granted` other nodes did. `freeze` keeps the claim out at
/// too many nodes for a majority.
pub(super) fn contention(
    replies: &[Busy],
    granted: usize,
    quorum: usize,
    freeze: Option<Freeze>,
) -> Contention {
    let seen = merge::holders(replies.iter().map(|busy| busy.holders.as_slice()));
    let holds = |reports: &&Vec<&Holder>| {
        let is_old =
            |holder: &&Holder| holder.ended.is_some() || holder.age.is_some_and(|age| age >= LONGEST_ATTEMPT);
        reports.len() >= quorum || reports.iter().any(is_old)
    };
    let has_holder = seen.iter().any(|reports| holds(&reports));
    let is_attempt_shown = !has_holder && freeze.is_none();
    let shown = seen.iter().filter(|reports| is_attempt_shown || holds(reports));
    let mut holders: Vec<Holder> = shown.filter_map(|reports| merge::holder(reports, quorum)).collect();
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.age));
    // With many holders each node lists only some of them, and not the same ones.
    let has_many = replies.iter().filter(|busy| busy.more > 0).count() >= quorum;
    let mut more = 0;
    if has_many {
        let all = replies.iter().map(|busy| busy.holders.len() + busy.more).max().unwrap_or(0);
        holders.truncate(replies.iter().map(|busy| busy.holders.len()).max().unwrap_or(0));
        more = all.saturating_sub(holders.len());
    }
    let mut positions: Vec<u32> = replies.iter().filter_map(|busy| busy.position).collect();
    positions.sort_unstable();
    let position = positions.len().checked_sub(1).map(|last| positions[last / 2]);
    let again = again(replies, quorum.saturating_sub(granted).max(1), quorum);
    let is_held = has_holder || has_many || freeze.is_some();
    let busy = Busy {
        holders,
        more,
        position,
        ticket: None,
        is_outside_queue: false,
        promised: false,
        freeze: freeze.map(Box::new),
        again,
    };
    match is_held {
        true => Contention::Held(busy),
        false => Contention::Split(Busy { promised: replies.iter().any(|busy| busy.promised), ..busy }),
    }
}

/// Returns when `missing` of the busy nodes may be free.
fn again(replies: &[Busy], missing: usize, quorum: usize) -> Again {
    let time = |busy: &Busy| match busy.again {
        Again::Within(time) => Some(time),
        Again::Poll => None,
    };
    let mut times: Vec<Duration> = replies.iter().filter_map(time).collect();
    times.sort_unstable();
    match times.get(missing - 1) {
        Some(time) => Again::Within(*time),
        None if replies.len() >= quorum => Again::Poll,
        // Too few nodes have replied for the lock to be available at all.
        None => times.first().map_or(Again::Poll, |time| Again::Within(*time)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Identity;

    /// The reply of a node that holds for these clients: process id and age in ms.
    fn busy(holders: &[(u32, u64)], again: u64) -> Busy {
        let holder = |(pid, age): &(u32, u64)| Holder {
            identity: Some(Identity { pid: *pid, ..Identity::default() }),
            age: Some(Duration::from_millis(*age)),
            ..Holder::default()
        };
        let (holders, again) =
            (holders.iter().map(holder).collect(), Again::Within(Duration::from_secs(again)));
        Busy { holders, again, ..Busy::default() }
    }

    fn of(replies: &[Busy], granted: usize) -> (bool, Busy) {
        match contention(replies, granted, 3, None) {
            Contention::Held(busy) => (true, busy),
            Contention::Split(busy) => (false, busy),
            Contention::Refused(refusal) => panic!("{refusal:?}"),
        }
    }

    #[test]
    fn a_client_at_a_majority_of_nodes_or_of_some_age_is_the_holder() {
        let [a, b, old] = [(1, 10), (2, 10), (3, 2_000)].map(|holder| busy(&[holder], 9));
        let twice = busy(&[(1, 10), (1, 10), (2, 10)], 9);
        for (replies, granted, is_held, pids) in [
            ([&a, &b, &a, &a], 0, true, &[1][..]),
            ([&a, &b, &a, &b], 0, false, &[1, 2]),
            ([&old, &a, &a, &b], 1, true, &[3]),
            ([&twice, &twice, &twice, &b], 0, true, &[1, 1, 2]),
        ] {
            let (held, merged) = of(&replies.map(Busy::clone), granted);
            let identities = merged.holders.into_iter().filter_map(|holder| holder.identity);
            assert_eq!((held, identities.map(|identity| identity.pid).collect()), (is_held, pids.to_vec()));
        }
    }

    #[test]
    fn a_frozen_lock_is_held_by_nobody_whose_attempt_is_in_progress() {
        let [attempt, old] = [(1, 10), (3, 2_000)].map(|holder| busy(&[holder], 9));
        let freeze = Freeze { id: "a".into(), by: "root@here".into(), reason: None, since: 1, until: None };
        for (replies, shown) in [([&attempt, &attempt], 0), ([&old, &attempt], 1)] {
            let merged = contention(&replies.map(Busy::clone), 0, 3, Some(freeze.clone()));
            let Contention::Held(busy) = merged else { panic!("{merged:?}") };
            assert_eq!((busy.holders.len(), busy.freeze.as_deref()), (shown, Some(&freeze)));
        }
    }

    #[test]
    fn the_lock_may_be_free_when_enough_nodes_are() {
        let mut replies = [7, 3, 5].map(|again| busy(&[(1, 10)], again));
        assert_eq!(of(&replies, 0).1.again, Again::Within(Duration::from_secs(7)));
        assert_eq!(of(&replies, 2).1.again, Again::Within(Duration::from_secs(3)));
        replies[0].again = Again::Poll;
        assert_eq!(of(&replies, 0).1.again, Again::Poll);
    }
}

//! Which clients prevent the lock from being granted, merged from the replies of several nodes: pure.

use std::time::Duration;

use crate::backend::{Again, Busy};
use crate::lock::Holder;

/// A hold at a node that is older than this is not an attempt in progress: a failed attempt is released sooner.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(1);

/// The merged replies of the nodes that did not grant the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contention {
    /// The replies merged into one.
    pub(super) busy: Busy,
    /// Another client holds the lock. Otherwise concurrent claims have split the nodes between them, or it is another
    /// waiter's turn.
    pub(super) is_held: bool,
}

/// Merges the replies of the nodes that did not grant the lock; `granted` other nodes did.
pub(super) fn contention(replies: &[&Busy], granted: usize, quorum: usize) -> Contention {
    let seen = joined(replies.iter().map(|busy| busy.holders.as_slice()));
    let holds = |holders: &&Vec<&Holder>| {
        holders.len() >= quorum
            || holders
                .iter()
                .any(|holder| holder.ended.is_some() || holder.age.is_some_and(|age| age >= LONGEST_ATTEMPT))
    };
    // With many holders each node lists only some of them, and not the same ones.
    let many = replies.iter().filter(|busy| busy.more > 0).count() >= quorum;
    let has_holder = seen.iter().any(|holders| holds(&holders));
    let shown = seen.iter().filter(|holders| !has_holder || holds(holders));
    let mut holders: Vec<Holder> = shown.filter_map(|holders| merged(holders, quorum)).collect();
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.age));
    let most = replies.iter().map(|busy| busy.holders.len()).max().unwrap_or(0);
    let all = replies.iter().map(|busy| busy.holders.len() + busy.more).max().unwrap_or(0);
    if many {
        holders.truncate(most);
    }
    let more = if many { all.saturating_sub(holders.len()) } else { 0 };
    let is_held = has_holder || many;
    let mut positions: Vec<u32> = replies.iter().filter_map(|busy| busy.position).collect();
    positions.sort_unstable();
    let position = positions.len().checked_sub(1).map(|last| positions[last / 2]);
    let promised = !is_held && replies.iter().any(|busy| busy.promised);
    let again = again(replies, quorum.saturating_sub(granted).max(1), quorum);
    Contention { busy: Busy { holders, more, position, promised, again }, is_held }
}

/// Groups the holders that several nodes report by identity and digest. Two equal holders at one node are two holders.
pub(super) fn joined<'a>(nodes: impl Iterator<Item = &'a [Holder]>) -> Vec<Vec<&'a Holder>> {
    let mut seen: Vec<Vec<&Holder>> = Vec::new();
    for holders in nodes {
        let mut holders: Vec<&Holder> = holders.iter().collect();
        holders.sort_by_key(|holder| std::cmp::Reverse(holder.age));
        let mut matched = vec![false; seen.len()];
        for holder in holders {
            let same = |group: &usize| {
                !matched[*group]
                    && seen[*group].first().is_some_and(|other| {
                        other.identity == holder.identity && other.digest == holder.digest
                    })
            };
            match (0..matched.len()).find(same) {
                Some(group) => {
                    matched[group] = true;
                    seen[group].push(holder);
                }
                None => seen.push(vec![holder]),
            }
        }
    }
    seen
}

/// Merges the reports of several nodes about one holder.
fn merged(holders: &[&Holder], quorum: usize) -> Option<Holder> {
    let mut holder = (*holders.first()?).clone();
    holder.age = holders.iter().filter_map(|holder| holder.age).max();
    holder.remaining = remaining(holders, quorum);
    holder.ended = holders.iter().filter_map(|holder| holder.ended).max();
    Some(holder)
}

/// Returns the remaining lease of a hold, which lasts as long as it does at a majority of nodes.
pub(super) fn remaining(holders: &[&Holder], quorum: usize) -> Option<Duration> {
    let mut rest: Vec<Duration> = holders.iter().filter_map(|holder| holder.remaining).collect();
    rest.sort_unstable_by_key(|rest| std::cmp::Reverse(*rest));
    rest.get(quorum - 1).or(rest.last()).copied()
}

/// Returns when `missing` of the busy nodes may be free.
fn again(replies: &[&Busy], missing: usize, quorum: usize) -> Again {
    let mut times: Vec<Duration> = replies
        .iter()
        .filter_map(|busy| match busy.again {
            Again::Within(time) => Some(time),
            Again::Poll => None,
        })
        .collect();
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

    fn holder(pid: u32, age: u64) -> Holder {
        let identity = Identity { host: "h".into(), pid, ..Identity::default() };
        let age = Some(Duration::from_millis(age));
        Holder { identity: Some(identity), age, remaining: Some(Duration::from_secs(9)), ..Holder::default() }
    }

    fn busy(holders: Vec<Holder>, again: u64) -> Busy {
        let again = Again::Within(Duration::from_secs(again));
        Busy { holders, more: 0, position: None, promised: false, again }
    }

    fn pids(contention: &Contention) -> Vec<u32> {
        let identities = contention.busy.holders.iter().filter_map(|holder| holder.identity.as_ref());
        identities.map(|identity| identity.pid).collect()
    }

    #[test]
    fn a_client_at_a_majority_of_nodes_is_the_holder() {
        let (a, b) = (busy(vec![holder(1, 10)], 9), busy(vec![holder(2, 10)], 9));
        let held = contention(&[&a, &a, &b, &a], 0, 3);
        assert_eq!((held.is_held, pids(&held)), (true, vec![1]));
        let split = contention(&[&a, &b, &a, &b], 0, 3);
        assert_eq!((split.is_held, pids(&split)), (false, vec![1, 2]));
        let old = busy(vec![holder(3, 2_000)], 9);
        let held = contention(&[&old, &a], 2, 3);
        assert_eq!((held.is_held, pids(&held)), (true, vec![3]), "no attempt takes that long");
    }

    #[test]
    fn many_holders_are_counted_even_if_they_look_alike() {
        let three = busy(vec![holder(1, 10), holder(1, 10), holder(2, 10)], 9);
        let held = contention(&[&three, &three, &three], 0, 3);
        assert_eq!((pids(&held), held.busy.more), (vec![1, 1, 2], 0));
        let some = |pid| Busy { more: 38, ..busy(vec![holder(pid, 10), holder(pid + 1, 10)], 9) };
        let (one, other, third) = (some(1), some(3), some(5));
        let held = contention(&[&one, &other, &third], 0, 3);
        assert_eq!((held.is_held, held.busy.holders.len(), held.busy.more), (true, 2, 38));
    }

    #[test]
    fn the_lock_may_be_free_when_enough_nodes_are() {
        let replies: Vec<Busy> =
            [7, 3, 5].into_iter().map(|again| busy(vec![holder(1, 10)], again)).collect();
        let replies: Vec<&Busy> = replies.iter().collect();
        let within = |granted| contention(&replies, granted, 3).busy.again;
        assert_eq!(within(0), Again::Within(Duration::from_secs(7)));
        assert_eq!(within(2), Again::Within(Duration::from_secs(3)));
        let polling = Busy { again: Again::Poll, ..replies[0].clone() };
        assert_eq!(contention(&[&polling, replies[1], replies[2]], 0, 3).busy.again, Again::Poll);
    }

    #[test]
    fn the_position_is_the_median_of_all_queues() {
        let replies: Vec<Busy> = [4, 1, 2]
            .into_iter()
            .map(|position| Busy { position: Some(position), ..busy(vec![], 1) })
            .collect();
        assert_eq!(contention(&replies.iter().collect::<Vec<_>>(), 0, 3).busy.position, Some(2));
        assert_eq!(contention(&[&busy(vec![], 1)], 0, 3).busy.position, None);
    }
}

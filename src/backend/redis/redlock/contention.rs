//! Who keeps us from the lock, as several nodes see it: pure.

use std::time::Duration;

use crate::backend::{Again, Busy};
use crate::lock::Holder;

/// Who is at a node for longer than this is not there in passing: an attempt that fails is taken back sooner.
const PASSING: Duration = Duration::from_secs(1);

/// What the nodes that did not grant the lock say together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contention {
    /// As one.
    pub(super) busy: Busy,
    /// Somebody holds the lock. Otherwise those who ask at the same time have parted the nodes among them, or it is
    /// somebody else's turn.
    pub(super) is_held: bool,
}

/// Joins what they say. `granted` others have granted us the lock.
pub(super) fn contention(said: &[&Busy], granted: usize, quorum: usize) -> Contention {
    let seen = joined(said.iter().map(|busy| busy.holders.as_slice()));
    let holds = |holders: &&Vec<&Holder>| {
        holders.len() >= quorum
            || holders
                .iter()
                .any(|holder| holder.ended.is_some() || holder.age.is_some_and(|age| age >= PASSING))
    };
    // Where there are many, not every node names the same.
    let many = said.iter().filter(|busy| busy.more > 0).count() >= quorum;
    let has_holder = seen.iter().any(|holders| holds(&holders));
    let shown = seen.iter().filter(|holders| !has_holder || holds(holders));
    let mut holders: Vec<Holder> = shown.filter_map(|holders| one_of(holders, quorum)).collect();
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.age));
    let most = said.iter().map(|busy| busy.holders.len()).max().unwrap_or(0);
    let all = said.iter().map(|busy| busy.holders.len() + busy.more).max().unwrap_or(0);
    if many {
        holders.truncate(most);
    }
    let more = if many { all.saturating_sub(holders.len()) } else { 0 };
    let is_held = has_holder || many;
    let mut places: Vec<u32> = said.iter().filter_map(|busy| busy.position).collect();
    places.sort_unstable();
    let position = places.len().checked_sub(1).map(|last| places[last / 2]);
    let promised = !is_held && said.iter().any(|busy| busy.promised);
    let again = again(said, quorum.saturating_sub(granted).max(1), quorum);
    Contention { busy: Busy { holders, more, position, promised, again }, is_held }
}

/// What several nodes say of their holders, put together by who it is: what one node says twice is of two.
pub(super) fn joined<'a>(nodes: impl Iterator<Item = &'a [Holder]>) -> Vec<Vec<&'a Holder>> {
    let mut seen: Vec<Vec<&Holder>> = Vec::new();
    for holders in nodes {
        let mut holders: Vec<&Holder> = holders.iter().collect();
        holders.sort_by_key(|holder| std::cmp::Reverse(holder.age));
        let mut told = vec![false; seen.len()];
        for holder in holders {
            let same = |group: &usize| {
                !told[*group]
                    && seen[*group].first().is_some_and(|other| {
                        other.identity == holder.identity && other.digest == holder.digest
                    })
            };
            match (0..told.len()).find(same) {
                Some(group) => {
                    told[group] = true;
                    seen[group].push(holder);
                }
                None => seen.push(vec![holder]),
            }
        }
    }
    seen
}

/// What they say of the same one.
fn one_of(holders: &[&Holder], quorum: usize) -> Option<Holder> {
    let mut holder = (*holders.first()?).clone();
    holder.age = holders.iter().filter_map(|holder| holder.age).max();
    holder.remaining = remaining(holders, quorum);
    holder.ended = holders.iter().filter_map(|holder| holder.ended).max();
    Some(holder)
}

/// What is left of a hold, which lasts as long as a majority of nodes says so.
pub(super) fn remaining(holders: &[&Holder], quorum: usize) -> Option<Duration> {
    let mut rest: Vec<Duration> = holders.iter().filter_map(|holder| holder.remaining).collect();
    rest.sort_unstable_by_key(|rest| std::cmp::Reverse(*rest));
    rest.get(quorum - 1).or(rest.last()).copied()
}

/// When so many of the nodes that are busy may be free.
fn again(said: &[&Busy], missing: usize, quorum: usize) -> Again {
    let mut times: Vec<Duration> = said
        .iter()
        .filter_map(|busy| match busy.again {
            Again::Within(time) => Some(time),
            Again::Poll => None,
        })
        .collect();
    times.sort_unstable();
    match times.get(missing - 1) {
        Some(time) => Again::Within(*time),
        None if said.len() >= quorum => Again::Poll,
        // Too few nodes can be asked for the lock to be had at all.
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
    fn who_is_at_a_majority_holds_it() {
        let (a, b) = (busy(vec![holder(1, 10)], 9), busy(vec![holder(2, 10)], 9));
        let held = contention(&[&a, &a, &b, &a], 0, 3);
        assert_eq!((held.is_held, pids(&held)), (true, vec![1]));
        let split = contention(&[&a, &b, &a, &b], 0, 3);
        assert_eq!((split.is_held, pids(&split)), (false, vec![1, 2]));
        let old = busy(vec![holder(3, 2_000)], 9);
        let held = contention(&[&old, &a], 2, 3);
        assert_eq!((held.is_held, pids(&held)), (true, vec![3]), "nobody passes so slowly");
    }

    #[test]
    fn many_are_counted_and_those_who_look_alike_too() {
        let three = busy(vec![holder(1, 10), holder(1, 10), holder(2, 10)], 9);
        let held = contention(&[&three, &three, &three], 0, 3);
        assert_eq!((pids(&held), held.busy.more), (vec![1, 1, 2], 0));
        let some = |pid| Busy { more: 38, ..busy(vec![holder(pid, 10), holder(pid + 1, 10)], 9) };
        let (one, other, third) = (some(1), some(3), some(5));
        let held = contention(&[&one, &other, &third], 0, 3);
        assert_eq!((held.is_held, held.busy.holders.len(), held.busy.more), (true, 2, 38));
    }

    #[test]
    fn it_may_be_free_when_enough_nodes_are() {
        let said: Vec<Busy> = [7, 3, 5].into_iter().map(|again| busy(vec![holder(1, 10)], again)).collect();
        let said: Vec<&Busy> = said.iter().collect();
        let within = |granted| contention(&said, granted, 3).busy.again;
        assert_eq!(within(0), Again::Within(Duration::from_secs(7)));
        assert_eq!(within(2), Again::Within(Duration::from_secs(3)));
        let deaf = Busy { again: Again::Poll, ..said[0].clone() };
        assert_eq!(contention(&[&deaf, said[1], said[2]], 0, 3).busy.again, Again::Poll);
    }

    #[test]
    fn the_place_is_that_in_most_lines() {
        let places: Vec<Busy> =
            [4, 1, 2].into_iter().map(|place| Busy { position: Some(place), ..busy(vec![], 1) }).collect();
        assert_eq!(contention(&places.iter().collect::<Vec<_>>(), 0, 3).busy.position, Some(2));
        assert_eq!(contention(&[&busy(vec![], 1)], 0, 3).busy.position, None);
    }
}

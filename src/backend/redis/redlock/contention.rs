//! Who keeps us from the lock, as several nodes see it: pure.

use std::time::Duration;

use crate::backend::{Again, Busy};
use crate::lock::{Holder, Identity};

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
    let mut seen: Vec<(Holder, usize)> = Vec::new();
    for holder in said.iter().flat_map(|busy| &busy.holders) {
        match seen.iter_mut().find(|(known, _)| is_same(known.identity.as_ref(), holder.identity.as_ref())) {
            Some((known, nodes)) => {
                *nodes += 1;
                join(known, holder);
            }
            None => seen.push((holder.clone(), 1)),
        }
    }
    let holds = |(holder, nodes): &(Holder, usize)| {
        *nodes >= quorum || holder.age.is_some_and(|age| age >= PASSING) || holder.ended.is_some()
    };
    let is_held = seen.iter().any(holds);
    if is_held {
        seen.retain(holds);
    }
    let more = if is_held { said.iter().map(|busy| busy.more).max().unwrap_or(0) } else { 0 };
    let mut places: Vec<u32> = said.iter().filter_map(|busy| busy.position).collect();
    places.sort_unstable();
    let position = places.len().checked_sub(1).map(|last| places[last / 2]);
    let promised = !is_held && said.iter().any(|busy| busy.promised);
    let holders = seen.into_iter().map(|(holder, _)| holder).collect();
    let again = again(said, quorum.saturating_sub(granted).max(1), quorum);
    Contention { busy: Busy { holders, more, position, promised, again }, is_held }
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

/// Whether it is the same dlock, or a foreign client, of which nothing is known.
pub(super) fn is_same(one: Option<&Identity>, other: Option<&Identity>) -> bool {
    let who =
        |identity: &Identity| (identity.host.clone(), identity.pid, identity.start, identity.boot.clone());
    one.map(who) == other.map(who)
}

fn join(known: &mut Holder, other: &Holder) {
    known.age = known.age.max(other.age);
    known.remaining = known.remaining.max(other.remaining);
    known.ended = known.ended.max(other.ended);
    known.fencing = known.fencing.max(other.fencing);
    known.immortal |= other.immortal;
}

#[cfg(test)]
mod tests {
    use super::*;

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

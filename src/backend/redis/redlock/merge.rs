//! What several nodes report about the same holders and waiters, merged: pure.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::lock::{Freeze, Holder, Waiter};

/// Groups the reports of several nodes about the same holder, by identity and digest.
pub(super) fn holders<'a>(nodes: impl Iterator<Item = &'a [Holder]>) -> Vec<Vec<&'a Holder>> {
    let is_same = |one: &Holder, other: &Holder| one.identity == other.identity && one.digest == other.digest;
    groups(nodes, |holder| Reverse(holder.age), is_same)
}

/// Merges the reports of several nodes about one holder.
pub(super) fn holder(reports: &[&Holder], quorum: usize) -> Option<Holder> {
    let (fencing, _) = most_frequent(reports.iter().map(|report| report.fencing))?;
    Some(Holder {
        fencing,
        age: reports.iter().filter_map(|report| report.age).max(),
        acquired_at: reports.iter().filter_map(|report| report.acquired_at).min(),
        remaining: remaining(reports, quorum),
        ended: reports.iter().filter_map(|report| report.ended).max(),
        immortal: reports.iter().filter(|report| report.immortal).count() >= quorum,
        revoked: reports.iter().find_map(|report| report.revoked.clone()),
        ours: reports.iter().any(|report| report.ours),
        ..(*reports.first()?).clone()
    })
}

/// Merges the freezes of several nodes, if there are at least so many: the one that most of them have.
pub(super) fn freeze<'a>(nodes: impl Iterator<Item = &'a Freeze>, least: usize) -> Option<Freeze> {
    let all: Vec<&Freeze> = nodes.collect();
    let (id, _) = most_frequent(all.iter().map(|freeze| freeze.id.as_str()))?;
    let reports = || all.iter().filter(|freeze| freeze.id == id);
    let endless = reports().any(|freeze| freeze.until.is_none());
    (all.len() >= least).then_some(Freeze {
        since: reports().map(|freeze| freeze.since).min()?,
        until: reports().filter_map(|freeze| freeze.until).max().filter(|_| !endless),
        ..Freeze::clone(reports().next()?)
    })
}

/// Returns the most frequent value, the largest of several, and how often it occurs.
pub(super) fn most_frequent<T: Ord>(values: impl Iterator<Item = T>) -> Option<(T, usize)> {
    let mut counts = BTreeMap::new();
    values.for_each(|value| *counts.entry(value).or_default() += 1);
    counts.into_iter().max_by_key(|(_, count)| *count)
}

/// Merges the queues of several nodes.
pub(super) fn waiters<'a>(nodes: impl Iterator<Item = &'a [Waiter]>) -> Vec<Waiter> {
    let is_same = |one: &Waiter, other: &Waiter| one.identity == other.identity && one.mode == other.mode;
    let merged = |reports: Vec<&Waiter>| {
        let waiting = reports.iter().map(|report| report.waiting).min()?;
        Some(Waiter { waiting, ..(*reports.first()?).clone() })
    };
    let groups = groups(nodes, |waiter| Reverse(waiter.waiting), is_same);
    let mut waiters: Vec<Waiter> = groups.into_iter().filter_map(merged).collect();
    waiters.sort_by_key(|waiter| Reverse(waiter.waiting));
    waiters
}

/// Groups equal entries of several nodes, in this order. Two equal entries of one node are in two groups.
fn groups<'a, T, K: Ord>(
    nodes: impl Iterator<Item = &'a [T]>,
    order: impl Fn(&T) -> K,
    is_same: impl Fn(&T, &T) -> bool,
) -> Vec<Vec<&'a T>> {
    let mut groups: Vec<Vec<&T>> = Vec::new();
    for entries in nodes {
        let mut entries: Vec<&T> = entries.iter().collect();
        entries.sort_by_key(|entry| order(entry));
        let mut is_matched = vec![false; groups.len()];
        for entry in entries {
            let fits = |group: &usize| !is_matched[*group] && is_same(groups[*group][0], entry);
            match (0..is_matched.len()).find(fits) {
                Some(group) => {
                    is_matched[group] = true;
                    groups[group].push(entry);
                }
                None => groups.push(vec![entry]),
            }
        }
    }
    groups
}

/// Returns the remaining lease of a hold, which lasts as long as it does at a majority of nodes.
fn remaining(reports: &[&Holder], quorum: usize) -> Option<Duration> {
    let mut rest: Vec<Duration> = reports.iter().filter_map(|report| report.remaining).collect();
    rest.sort_unstable_by_key(|rest| Reverse(*rest));
    rest.get(quorum - 1).or(rest.last()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_freeze_of_most_nodes_is_shown_by_their_clocks() {
        let freeze = |id: &str, since, until| {
            let id = id.to_owned();
            Freeze { id, by: "root@here".to_owned(), reason: None, since, until }
        };
        let seen = [
            freeze("b", 1, Some(90)),
            freeze("a", 7, Some(70)),
            freeze("a", 5, Some(71)),
            freeze("a", 6, Some(69)),
        ];
        assert_eq!(super::freeze(seen.iter(), 4), Some(freeze("a", 5, Some(71))));
        assert_eq!(super::freeze(seen.iter(), 5), None);
        assert_eq!(super::freeze([].iter(), 0), None);
    }
}

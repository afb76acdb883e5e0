//! The findings about all nodes together.

use std::time::Duration;

use super::{Memory, NodeInfo};
use crate::backend::diagnosis::{Finding, no_lock, short};
use crate::backend::redis::doctor::clock::CLOCK_WARNING;
use crate::backend::redis::redlock::verdict::SAME_AGE;
use crate::duration::show;
use crate::exit::FailureKind;
use crate::lock::DEFAULT_TTL;

/// `failure` is how a run fails without a majority.
pub(super) fn quorum_of(reached: usize, count: usize, quorum: usize, failure: FailureKind) -> Finding {
    let found = format!("{reached} of {count} nodes are available, and a lock needs {quorum}");
    match reached.checked_sub(quorum) {
        Some(spare) if reached == count => {
            Finding::ok("quorum", format!("{found}: {spare} may fail without a lock being lost"))
        }
        Some(spare) => Finding::warning(
            "quorum",
            format!("{found}: {spare} more may fail"),
            "with one node too few no lock can be taken, and running commands are stopped",
            "restore the other nodes; they count for new locks once the longest lease has expired",
        ),
        None => Finding::problem(
            "quorum",
            found,
            no_lock(failure),
            "restore the other nodes; they count for new locks once the longest lease has expired",
        ),
    }
}

/// Says what all nodes have in common, or what those have that were reached. The subject of the sentence is `all` if none
/// is missing, and `these` otherwise.
fn of_reached(nodes: &[NodeInfo], missing: usize, all: &str, these: &str, what: &str) -> String {
    match (missing, nodes.len()) {
        (0, _) => format!("{all} {what}"),
        (_, 1) => format!("only one node was reached; {missing} were not"),
        (1, reached) => format!("{these} of the {reached} nodes that were reached {what}; 1 was not reached"),
        (_, reached) => {
            format!("{these} of the {reached} nodes that were reached {what}; {missing} were not reached")
        }
    }
}

pub(super) fn independence(nodes: &[NodeInfo], missing: usize) -> Finding {
    let problem = |found: String| {
        Finding::problem(
            "independence",
            found,
            "both fail together, so fewer failures are tolerated than the number of nodes suggests",
            "name independent servers: masters, each once, no load balancer and no replica",
        )
    };
    if let Some((one, other)) = pair_with_same(nodes, |node| node.run.as_deref()) {
        return problem(format!("{one} and {other} are the same server"));
    }
    if let Some(replica) = nodes.iter().find(|node| node.is_replica) {
        return problem(format!("{} is a replica", replica.name));
    }
    if let Some((one, other)) = pair_with_same(nodes, |node| node.history.as_deref()) {
        return problem(format!("{one} and {other} have the same replication history"));
    }
    match nodes.iter().find(|node| node.run.is_none()) {
        Some(unknown) => Finding::warning(
            "independence",
            format!("{} does not report its run_id (INFO)", unknown.name),
            "two nodes that are the same server would go unnoticed",
            "let this user run INFO",
        ),
        None => Finding::ok(
            "independence",
            of_reached(nodes, missing, "each node", "each", "is a separate server"),
        ),
    }
}

fn pair_with_same(nodes: &[NodeInfo], what: impl Fn(&NodeInfo) -> Option<&str>) -> Option<(&str, &str)> {
    nodes.iter().enumerate().find_map(|(index, one)| {
        let is_same = |other: &&NodeInfo| what(one).is_some() && what(one) == what(other);
        Some((one.name.as_str(), nodes[index + 1..].iter().find(is_same)?.name.as_str()))
    })
}

/// Compares the clocks of the nodes. Each node measures leases by its own clock, and seeds new fencing counters from
/// it.
pub(super) fn clocks(nodes: &[NodeInfo], missing: usize) -> Finding {
    let known = || nodes.iter().filter_map(|node| Some((node.offset?, node)));
    let first = known().min_by_key(|(offset, _)| *offset);
    let last = known().max_by_key(|(offset, _)| *offset);
    let Some(((slow, behind), (fast, ahead))) = first.zip(last) else {
        return Finding::ok("clocks", "no node has reported its time");
    };
    let apart = Duration::from_micros(u64::try_from(fast - slow).unwrap_or(u64::MAX));
    if apart < CLOCK_WARNING {
        let apart = format!("are {} apart", short(apart));
        return Finding::ok("clocks", of_reached(nodes, missing, "the nodes' clocks", "the clocks", &apart));
    }
    Finding::warning(
        "clocks",
        format!("the clock of {} is {} ahead of that of {}", ahead.name, show(apart), behind.name),
        "fencing tokens may not grow when a node comes back empty within that time; when a clock is set, leases there end \
         that much sooner or later",
        "synchronize the clocks of all nodes by NTP",
    )
}

/// Checks that each node has remembered its locks for long enough to count.
pub(super) fn memory(nodes: &[NodeInfo], missing: usize) -> Finding {
    let count = nodes.len() + missing;
    let known = || nodes.iter().filter_map(|node| Some((node.memory?, node)));
    let ages = || known().map(|(memory, _)| memory.age);
    let span = ages().max().unwrap_or_default() - ages().min().unwrap_or_default();
    let are_new = known().filter(|(memory, _)| memory.is_new).count() == count && span <= SAME_AGE;
    let young = |(memory, _): &(Memory, &NodeInfo)| memory.age < DEFAULT_TTL;
    match known().filter(young).min_by_key(|(memory, _)| memory.age) {
        Some((youngest, node)) if !are_new => Finding::warning(
            "age",
            format!(
                "{} of {count} nodes may have lost locks, or are new: {} remembers the last {}",
                known().filter(young).count(),
                node.name,
                show(Duration::from_secs(youngest.age.as_secs().max(1)))
            ),
            format!(
                "with the default lease of {} it does not count for another {}",
                show(DEFAULT_TTL),
                show(Duration::from_secs((DEFAULT_TTL - youngest.age).as_secs().max(1)))
            ),
            "wait that long after starting a node; do not restart several nodes at once",
        ),
        _ => Finding::ok("age", of_reached(nodes, missing, "every node", "each", "counts for new locks")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::diagnosis::Level;
    use crate::backend::redis::redlock::doctor::memory_of;

    fn node(name: &str) -> NodeInfo {
        let unique = |what: &str| Some(format!("{what} of {name}"));
        NodeInfo { name: name.into(), run: unique("run"), history: unique("history"), ..NodeInfo::default() }
    }

    #[test]
    fn servers_that_are_not_independent_are_named() {
        let (a, b, c) = (node("a"), node("b"), node("c"));
        for (other, level, expected) in [
            (c.clone(), Level::Ok, "each node is a separate server"),
            (NodeInfo { run: a.run.clone(), ..c.clone() }, Level::Problem, "a and c are the same server"),
            (
                NodeInfo { history: b.history.clone(), ..c.clone() },
                Level::Problem,
                "b and c have the same replication history",
            ),
            (NodeInfo { run: None, ..c }, Level::Warning, "c does not report its run_id (INFO)"),
        ] {
            let finding = independence(&[a.clone(), b.clone(), other], 0);
            assert_eq!((finding.level, finding.found.as_str()), (level, expected));
        }
    }

    #[test]
    fn a_node_that_does_not_count_yet_is_named() {
        let ok = (Level::Ok, "every node counts for new locks");
        let one = (Level::Warning, "1 of 3 nodes may have lost locks, or are new: c remembers the last 1s");
        let two = (Level::Warning, "2 of 3 nodes may have lost locks, or are new: c remembers the last 1s");
        for (a, b, c, (level, expected)) in [
            ("0 a run", "-70000 b run", "60000 c", ok),
            ("", "", "", ok),
            ("99000 a run", "98000 b run", "99000 c run", ok),
            ("0 a run", "80000 b run", "0 c earlier", two),
            ("0 a run", "0 b run", "", one),
        ] {
            let nodes = [("a", a), ("b", b), ("c", c)].map(|(name, since)| {
                let since = Some(since).filter(|since| !since.is_empty());
                NodeInfo { memory: memory_of(since, 100_000_000, Some("run")), ..node(name) }
            });
            let finding = memory(&nodes, 0);
            assert_eq!((finding.level, finding.found.as_str()), (level, expected));
        }
    }

    #[test]
    fn nothing_is_said_of_a_node_that_was_not_reached() {
        let (a, b) = (node("a"), node("b"));
        let nodes = [a.clone(), NodeInfo { offset: Some(0), ..b }];
        for (missing, reached) in [(0, ""), (1, "; 1 was not reached"), (3, "; 3 were not reached")] {
            for finding in [independence(&nodes, missing), clocks(&nodes, missing), memory(&nodes, missing)] {
                assert!(finding.found.ends_with(reached) && finding.level == Level::Ok, "{finding:?}");
                assert_eq!(finding.found.contains("reached"), missing > 0, "{finding:?}");
            }
        }
        assert_eq!(independence(&[a], 2).found, "only one node was reached; 2 were not");
    }

    #[test]
    fn clocks_may_be_a_second_apart() {
        let at = |name: &str, offset: i128| NodeInfo { offset: Some(offset), ..node(name) };
        assert_eq!(clocks(&[at("a", -400_000), at("b", 500_000)], 0).level, Level::Ok);
        let apart = clocks(&[at("a", -1_000_000), at("b", 0), at("c", 4_000_000)], 0);
        assert_eq!(apart.level, Level::Warning);
        assert_eq!(apart.found, "the clock of c is 5s ahead of that of a");
    }
}

//! `dlock doctor` for a Redlock: checks each node, and all nodes together.

mod answers;

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::timeout;

use self::answers::{NodeAnswer, atomic_grant, lease_clock, losses, one_server};
use super::RedlockStore;
use super::node::{NodeClient, Purpose};
use super::verdict::SAME_AGE;
use crate::backend::diagnosis::{AVAILABILITY, Diagnosis, Finding, Level, Note, Question, short};
use crate::backend::redis::doctor::clock::{self, CLOCK_WARNING};
use crate::backend::redis::doctor::info::Info;
use crate::backend::redis::location::Location;
use crate::backend::redis::reply::text;
use crate::backend::redis::store::RedisStore;
use crate::backend::{Location as _, StoreError};
use crate::duration::show;

/// The time without progress after which a node is given up.
const SILENCE: Duration = Duration::from_secs(4);
/// The interval at which the listener is notified that a node is still being checked.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(400);
/// The default lease, for which a node that has lost its data does not count.
const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// What a node reports about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Facts {
    name: String,
    /// `run_id`: which process it is.
    run: Option<String>,
    /// `master_replid`: which replication history it has.
    history: Option<String>,
    is_replica: bool,
    /// Its clock minus the clock of this host, in microseconds.
    offset: Option<i128>,
    /// How long it has remembered everything written to it, if it reports that.
    memory: Option<Memory>,
}

/// How long a node has remembered everything written to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Memory {
    age: Duration,
    /// The node had received no request before.
    is_new: bool,
}

impl RedlockStore {
    /// Checks each node, then all nodes together.
    ///
    /// # Errors
    /// A configured file cannot be used.
    pub(super) async fn examine_nodes(&mut self, diagnosis: &Diagnosis) -> Result<(), StoreError> {
        if let Some(warning) = self.location.warning() {
            diagnosis.found(Finding::warning(
                "nodes",
                warning,
                "a majority is needed, so an even number costs one node more and tolerates no more losses",
                "name 3 or 5 independent masters",
            ));
        }
        // Side by side: hung nodes together take as long as one.
        let examined = self.all().map(|node| examine_node(self.nodes.location(node), diagnosis));
        let (mut ttl, mut answers) = (Duration::ZERO, Vec::new());
        for examined in join_all(examined).await {
            let examined = examined?;
            examined.findings.into_iter().for_each(|finding| diagnosis.found(finding));
            answers.extend(examined.answers);
            ttl = ttl.max(examined.ttl);
        }
        diagnosis.begin("independence");
        let replies = self.nodes.request(self.all(), Purpose::Other, SILENCE, facts_of);
        self.nodes.complete_within(SILENCE, &replies).await;
        let facts: Vec<Facts> = replies.succeeded().into_iter().map(|(_, facts)| facts).collect();
        if !ttl.is_zero() {
            diagnosis.recommend_ttl(ttl);
        }
        let (count, quorum) = (self.nodes.count(), self.nodes.quorum());
        if facts.is_empty() {
            // Nothing is known of the nodes.
            diagnosis.found(quorum_of(0, count, quorum));
            return Ok(());
        }
        let missing = count - facts.len();
        let (independence, clocks) = (independence(&facts, missing), clocks(&facts, missing));
        diagnosis.answer(Question::AtomicGrant, atomic_grant(&answers, count, quorum));
        diagnosis.answer(Question::Loss, losses(count, quorum));
        diagnosis.answer(Question::OneServer, one_server(&answers, &independence, missing));
        diagnosis.answer(Question::LeaseClock, lease_clock(&clocks));
        let together = [quorum_of(facts.len(), count, quorum), independence, clocks, memory(&facts, missing)];
        together.into_iter().for_each(|finding| diagnosis.found(finding));
        Ok(())
    }
}

/// What was found out about one node.
#[derive(Default)]
struct Examined {
    findings: Vec<Finding>,
    answers: Vec<NodeAnswer>,
    /// The recommended lease.
    ttl: Duration,
}

/// Checks one node, and reports to the `diagnosis` that it goes on.
async fn examine_node(location: &Location, diagnosis: &Diagnosis) -> Result<Examined, StoreError> {
    let mut store = RedisStore::new(location.clone());
    let (node_diagnosis, mut notes) = Diagnosis::new();
    let mut outcome = Err(StoreError::unanswered(format!("no answer within {}", show(SILENCE))));
    let examine = async {
        outcome = store.examine_server(&node_diagnosis).await;
        drop(node_diagnosis);
        // The remaining notes are relayed.
        std::future::pending().await
    };
    let (mut examined, mut step) = (Examined::default(), "reachability");
    let relay = async {
        let mut silence = Duration::ZERO;
        while silence < SILENCE {
            let Ok(note) = timeout(PROGRESS_INTERVAL, notes.recv()).await else {
                silence += PROGRESS_INTERVAL;
                diagnosis.begin(step);
                continue;
            };
            silence = Duration::ZERO;
            match note {
                Some(Note::Begins(begins)) => {
                    step = begins;
                    diagnosis.begin(step);
                }
                Some(Note::Found(finding)) if finding.check == AVAILABILITY => {}
                Some(Note::Found(finding)) => examined.findings.push(of_node(location.display(), finding)),
                Some(Note::Answered(question, answer)) => {
                    examined.answers.push((location.display().to_owned(), question, answer));
                }
                Some(Note::Ttl(recommended)) => examined.ttl = recommended,
                None => break,
            }
        }
    };
    tokio::select! {
        () = examine => {}
        () = relay => {}
    }
    match outcome {
        Ok(()) => {}
        Err(StoreError::Config(text)) => return Err(StoreError::Config(text)),
        Err(error) => {
            examined.findings.push(of_node(location.display(), Finding::failure(step, &error)));
        }
    }
    Ok(examined)
}

/// Adapts a finding to one node of several: a node that cannot be used does not make the store unusable.
fn of_node(name: &str, finding: Finding) -> Finding {
    let found = format!("{name}: {}", finding.found);
    match (finding.level, finding.check) {
        (Level::Problem, "reachability" | "tls" | "authentication" | "protocol" | "database") => Finding {
            level: Level::Warning,
            found,
            consequence: Some("this node is unavailable, and counts as down".into()),
            ..finding
        },
        // A single server would lose its locks; here the other nodes keep them.
        (Level::Warning, "persistence") => Finding::ok(
            finding.check,
            format!("{found}; a node that was restarted counts again after a lease"),
        ),
        (Level::Problem, _) => Finding {
            found,
            consequence: Some("this node does not work properly, and may count as down".into()),
            ..finding
        },
        _ => Finding { found, ..finding },
    }
}

async fn facts_of(node: &mut NodeClient) -> Result<Facts, StoreError> {
    let reading = clock::read(node.store.request_one("", redis::cmd("TIME"))).await?;
    let name = node.store.location.display().to_owned();
    let mut facts = Facts { name, offset: reading.as_ref().map(|read| read.offset), ..Facts::default() };
    // Without the right to run INFO the identity of the server remains unknown.
    let Ok(info) = node.store.request_one("", redis::cmd("INFO")).await else { return Ok(facts) };
    let info = Info::of(&info);
    facts.run = info.field("run_id").map(str::to_owned);
    facts.history = info.field("master_replid").map(str::to_owned);
    facts.is_replica = info.field("role") == Some("slave");
    let since = node.store.request_one("", redis::cmd("GET").arg("dlock#since").clone()).await;
    let now = reading.map(|read| read.server_time);
    facts.memory = since.ok().and_then(|since| memory_of(text(Some(&since)), now?, facts.run.as_deref()));
    Ok(facts)
}

/// Reads a node's marker `dlock#since` at the time `now`, in microseconds. After a restart the marker is outdated until
/// the next claim; that shows in its run id.
fn memory_of(since: Option<&str>, now: u64, run: Option<&str>) -> Option<Memory> {
    let Some(since) = since else { return Some(Memory { age: Duration::ZERO, is_new: true }) };
    let mut fields = since.split(' ');
    let since = fields.next()?;
    let at: u64 = since.trim_start_matches('-').parse().ok()?;
    let recorded_run = fields.nth(1).filter(|run| !run.is_empty());
    if recorded_run.zip(run).is_some_and(|(recorded, run)| recorded != run) {
        return Some(Memory { age: Duration::ZERO, is_new: false });
    }
    let age = Duration::from_millis((now / 1000).saturating_sub(at));
    Some(Memory { age, is_new: !since.starts_with('-') })
}

fn quorum_of(reached: usize, count: usize, quorum: usize) -> Finding {
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
            "no lock can be taken: dlock run ends with 69, or keeps trying with --retry",
            "restore the other nodes; they count for new locks once the longest lease has expired",
        ),
    }
}

/// Says something of every node, or of those that were reached alone: how the subject is called for all of them, and for these.
fn of_reached(facts: &[Facts], missing: usize, all: &str, these: &str, what: &str) -> String {
    match (missing, facts.len()) {
        (0, _) => format!("{all} {what}"),
        (_, 1) => format!("only one node was reached; {missing} were not"),
        (1, reached) => format!("{these} of the {reached} nodes that were reached {what}; 1 was not reached"),
        (_, reached) => {
            format!("{these} of the {reached} nodes that were reached {what}; {missing} were not reached")
        }
    }
}

fn independence(facts: &[Facts], missing: usize) -> Finding {
    let problem = |found: String| {
        Finding::problem(
            "independence",
            found,
            "both fail together, so fewer failures are tolerated than the number of nodes suggests",
            "name independent servers: masters, each once, no load balancer and no replica",
        )
    };
    if let Some((one, other)) = pair_with_same(facts, |facts| facts.run.as_deref()) {
        return problem(format!("{one} and {other} are the same server"));
    }
    if let Some(replica) = facts.iter().find(|facts| facts.is_replica) {
        return problem(format!("{} is a replica", replica.name));
    }
    if let Some((one, other)) = pair_with_same(facts, |facts| facts.history.as_deref()) {
        return problem(format!("{one} and {other} have the same replication history"));
    }
    match facts.iter().find(|facts| facts.run.is_none()) {
        Some(unknown) => Finding::warning(
            "independence",
            format!("{} does not report its run_id (INFO)", unknown.name),
            "two nodes that are the same server would go unnoticed",
            "let this user run INFO",
        ),
        None => Finding::ok(
            "independence",
            of_reached(facts, missing, "each node", "each", "is a separate server"),
        ),
    }
}

fn pair_with_same(facts: &[Facts], what: impl Fn(&Facts) -> Option<&str>) -> Option<(&str, &str)> {
    facts.iter().enumerate().find_map(|(index, one)| {
        let is_same = |other: &&Facts| what(one).is_some() && what(one) == what(other);
        Some((one.name.as_str(), facts[index + 1..].iter().find(is_same)?.name.as_str()))
    })
}

/// Compares the clocks of the nodes. Each node measures leases by its own clock, and seeds new fencing counters from
/// it.
fn clocks(facts: &[Facts], missing: usize) -> Finding {
    let known = || facts.iter().filter_map(|facts| Some((facts.offset?, facts)));
    let first = known().min_by_key(|(offset, _)| *offset);
    let last = known().max_by_key(|(offset, _)| *offset);
    let Some(((slow, behind), (fast, ahead))) = first.zip(last) else {
        return Finding::ok("clocks", "no node has reported its time");
    };
    let apart = Duration::from_micros(u64::try_from(fast - slow).unwrap_or(u64::MAX));
    if apart < CLOCK_WARNING {
        let apart = format!("are {} apart", short(apart));
        return Finding::ok("clocks", of_reached(facts, missing, "the nodes' clocks", "the clocks", &apart));
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
fn memory(facts: &[Facts], missing: usize) -> Finding {
    let count = facts.len() + missing;
    let known = || facts.iter().filter_map(|facts| Some((facts.memory?, facts)));
    let ages = || known().map(|(memory, _)| memory.age);
    let span = ages().max().unwrap_or_default() - ages().min().unwrap_or_default();
    let are_new = known().filter(|(memory, _)| memory.is_new).count() == count && span <= SAME_AGE;
    let young = |(memory, _): &(Memory, &Facts)| memory.age < DEFAULT_LEASE;
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
                show(DEFAULT_LEASE),
                show(Duration::from_secs((DEFAULT_LEASE - youngest.age).as_secs().max(1)))
            ),
            "wait that long after starting a node; do not restart several nodes at once",
        ),
        _ => Finding::ok("age", of_reached(facts, missing, "every node", "each", "counts for new locks")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> Facts {
        let unique = |what: &str| Some(format!("{what} of {name}"));
        Facts { name: name.into(), run: unique("run"), history: unique("history"), ..Facts::default() }
    }

    #[test]
    fn servers_that_are_not_independent_are_named() {
        let (a, b, c) = (node("a"), node("b"), node("c"));
        for (other, level, expected) in [
            (c.clone(), Level::Ok, "each node is a separate server"),
            (Facts { run: a.run.clone(), ..c.clone() }, Level::Problem, "a and c are the same server"),
            (
                Facts { history: b.history.clone(), ..c.clone() },
                Level::Problem,
                "b and c have the same replication history",
            ),
            (Facts { run: None, ..c }, Level::Warning, "c does not report its run_id (INFO)"),
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
            let facts = [("a", a), ("b", b), ("c", c)].map(|(name, since)| {
                let since = Some(since).filter(|since| !since.is_empty());
                Facts { memory: memory_of(since, 100_000_000, Some("run")), ..node(name) }
            });
            let finding = memory(&facts, 0);
            assert_eq!((finding.level, finding.found.as_str()), (level, expected));
        }
    }

    #[test]
    fn nothing_is_said_of_a_node_that_was_not_reached() {
        let (a, b) = (node("a"), node("b"));
        let facts = [a.clone(), Facts { offset: Some(0), ..b }];
        for (missing, reached) in [(0, ""), (1, "; 1 was not reached"), (3, "; 3 were not reached")] {
            for finding in [independence(&facts, missing), clocks(&facts, missing), memory(&facts, missing)] {
                assert!(finding.found.ends_with(reached) && finding.level == Level::Ok, "{finding:?}");
                assert_eq!(finding.found.contains("reached"), missing > 0, "{finding:?}");
            }
        }
        assert_eq!(independence(&[a], 2).found, "only one node was reached; 2 were not");
    }

    #[test]
    fn clocks_may_be_a_second_apart() {
        let at = |name: &str, offset: i128| Facts { offset: Some(offset), ..node(name) };
        assert_eq!(clocks(&[at("a", -400_000), at("b", 500_000)], 0).level, Level::Ok);
        let apart = clocks(&[at("a", -1_000_000), at("b", 0), at("c", 4_000_000)], 0);
        assert_eq!(apart.level, Level::Warning);
        assert_eq!(apart.found, "the clock of c is 5s ahead of that of a");
    }
}

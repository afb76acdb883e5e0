//! `dlock doctor` for a Redlock: checks each node, and all nodes together.

use std::time::Duration;

use redis::Value;
use tokio::time::{Instant, sleep_until, timeout};

use super::RedlockStore;
use super::verdict::SAME_AGE;
use crate::backend::StoreError;
use crate::backend::diagnosis::{Diagnosis, Finding, Level, Note, short};
use crate::backend::redis::RedisStore;
use crate::backend::redis::answers::text;
use crate::clock::{Moment, wall_micros};
use crate::duration::show;

/// The time without progress after which a node is given up.
const SILENCE: Duration = Duration::from_secs(4);
/// The interval at which the listener is notified that a node is still being checked.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(400);
/// The difference between the clocks of two nodes from which on a warning is given.
const CLOCK_WARNING: Duration = Duration::from_secs(1);
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
        let mut facts = Vec::new();
        let mut ttl = Duration::ZERO;
        for node in self.all() {
            let name = self.nodes.name(node).to_owned();
            let mut store = RedisStore::new(self.nodes.location(node).clone());
            let recommended = examine_node(&mut store, &name, diagnosis).await?;
            ttl = ttl.max(recommended);
            diagnosis.begin("independence");
            if let Ok(Ok(known)) = timeout(SILENCE, facts_of(&mut store, name)).await {
                facts.push(known);
            }
        }
        if !ttl.is_zero() {
            diagnosis.recommend_ttl(ttl);
        }
        let (count, quorum) = (self.nodes.count(), self.nodes.quorum());
        let together = [
            quorum_of(facts.len(), count, quorum),
            independence(&facts),
            clocks(&facts),
            memory(&facts, count),
        ];
        together.into_iter().for_each(|finding| diagnosis.found(finding));
        Ok(())
    }
}

/// Checks one node, and reports the findings with its name. Returns the recommended lease.
async fn examine_node(
    store: &mut RedisStore,
    name: &str,
    diagnosis: &Diagnosis,
) -> Result<Duration, StoreError> {
    let (node_diagnosis, mut notes) = Diagnosis::new();
    let mut examined = Box::pin(store.examine_server(&node_diagnosis));
    let mut ttl = Duration::ZERO;
    let mut step = "reachability";
    let mut last_note = Instant::now();
    let outcome = loop {
        let wake = (Instant::now() + PROGRESS_INTERVAL).min(last_note + SILENCE);
        tokio::select! {
            biased;
            Some(note) = notes.recv() => {
                last_note = Instant::now();
                match note {
                    Note::Begins(begins) => {
                        step = begins;
                        diagnosis.begin(begins);
                    }
                    Note::Found(finding) => diagnosis.found(of_node(name, finding)),
                    Note::Ttl(recommended) => ttl = recommended,
                }
            }
            outcome = &mut examined => break outcome,
            () = sleep_until(wake) => {
                diagnosis.begin(step);
                if last_note.elapsed() >= SILENCE {
                    break Err(StoreError::unanswered(format!("no answer within {}", show(SILENCE))));
                }
            }
        }
    };
    while let Ok(note) = notes.try_recv() {
        match note {
            Note::Found(finding) => diagnosis.found(of_node(name, finding)),
            Note::Ttl(recommended) => ttl = recommended,
            Note::Begins(begins) => step = begins,
        }
    }
    match outcome {
        Ok(()) => Ok(ttl),
        Err(StoreError::Config(text)) => Err(StoreError::Config(text)),
        Err(error) => {
            let remedy = "check that the server runs and that nothing in between drops packets";
            diagnosis.found(of_node(name, Finding::problem(step, error.to_string(), "", remedy)));
            Ok(ttl)
        }
    }
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

async fn facts_of(store: &mut RedisStore, name: String) -> Result<Facts, StoreError> {
    use crate::backend::Backend;
    store.connect().await?;
    let (start, before) = (Moment::now(), wall_micros());
    let time = store.request_one("", redis::cmd("TIME")).await?;
    let took = Moment::now() - start;
    let host_time = i128::from(before) + (took / 2).as_micros() as i128;
    let mut facts =
        Facts { name, offset: time_of(&time).map(|node_time| node_time - host_time), ..Facts::default() };
    // Without the right to run INFO the identity of the server remains unknown.
    let Ok(info) = store.request_one("", redis::cmd("INFO")).await else { return Ok(facts) };
    let info = match &info {
        Value::VerbatimString { text, .. } => text,
        other => text(Some(other)).unwrap_or_default(),
    };
    let field = |name: &str| {
        let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.map(|value| value.trim().to_owned())
    };
    facts.run = field("run_id");
    facts.history = field("master_replid");
    facts.is_replica = field("role").is_some_and(|role| role == "slave");
    let since = store.request_one("", redis::cmd("GET").arg("dlock#since").clone()).await;
    facts.memory =
        since.ok().and_then(|since| memory_of(text(Some(&since)), time_of(&time)?, facts.run.as_deref()));
    Ok(facts)
}

/// Reads a node's marker `dlock#since` at the time `now`, in microseconds. After a restart the marker is outdated until
/// the next claim; that shows in its run id.
fn memory_of(since: Option<&str>, now: i128, run: Option<&str>) -> Option<Memory> {
    let Some(since) = since else { return Some(Memory { age: Duration::ZERO, is_new: true }) };
    let mut fields = since.split(' ');
    let since = fields.next()?;
    let at: i128 = since.trim_start_matches('-').parse().ok()?;
    let recorded_run = fields.nth(1).filter(|run| !run.is_empty());
    if recorded_run.zip(run).is_some_and(|(recorded, run)| recorded != run) {
        return Some(Memory { age: Duration::ZERO, is_new: false });
    }
    let age = Duration::from_millis(u64::try_from(now / 1000 - at).unwrap_or_default());
    Some(Memory { age, is_new: !since.starts_with('-') })
}

/// Reads the reply to `TIME`, in microseconds since 1970.
fn time_of(reply: &Value) -> Option<i128> {
    let Value::Array(parts) = reply else { return None };
    let part = |index: usize| text(parts.get(index))?.parse::<i128>().ok();
    Some(part(0)? * 1_000_000 + part(1)?)
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

/// Checks that each node is a separate server.
fn independence(facts: &[Facts]) -> Finding {
    let problem = |found: String| {
        Finding::problem(
            "independence",
            found,
            "both fail together, so fewer failures are tolerated than the number of nodes suggests",
            "name independent servers: masters, each once, no load balancer and no replica",
        )
    };
    let pairs = || {
        let later = |one: usize| facts[one + 1..].iter().map(move |other| (&facts[one], other));
        (0..facts.len()).flat_map(later)
    };
    let same = |one: &Option<String>, other: &Option<String>| one.is_some() && one == other;
    if let Some((one, other)) = pairs().find(|(one, other)| same(&one.run, &other.run)) {
        return problem(format!("{} and {} are the same server", one.name, other.name));
    }
    if let Some(replica) = facts.iter().find(|facts| facts.is_replica) {
        return problem(format!("{} is a replica", replica.name));
    }
    if let Some((one, other)) = pairs().find(|(one, other)| same(&one.history, &other.history)) {
        return problem(format!("{} and {} have the same replication history", one.name, other.name));
    }
    match facts.iter().find(|facts| facts.run.is_none()) {
        Some(unknown) => Finding::warning(
            "independence",
            format!("{} does not report its run_id (INFO)", unknown.name),
            "two nodes that are the same server would go unnoticed",
            "let this user run INFO",
        ),
        None => Finding::ok("independence", "each node is a separate server"),
    }
}

/// Compares the clocks of the nodes. Each node measures leases by its own clock, and seeds new fencing counters from
/// it.
fn clocks(facts: &[Facts]) -> Finding {
    let known = || facts.iter().filter_map(|facts| Some((facts.offset?, facts)));
    let first = known().min_by_key(|(offset, _)| *offset);
    let last = known().max_by_key(|(offset, _)| *offset);
    let Some(((slow, behind), (fast, ahead))) = first.zip(last) else {
        return Finding::ok("clocks", "no node has reported its time");
    };
    let apart = Duration::from_micros(u64::try_from(fast - slow).unwrap_or(u64::MAX));
    if apart < CLOCK_WARNING {
        return Finding::ok("clocks", format!("the nodes' clocks are {} apart", short(apart)));
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
fn memory(facts: &[Facts], count: usize) -> Finding {
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
        _ => Finding::ok("age", "every node counts for new locks"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> Facts {
        let unique = |what: &str| Some(format!("{what} of {name}"));
        Facts {
            name: name.into(),
            run: unique("run"),
            history: unique("history"),
            is_replica: false,
            offset: Some(0),
            memory: None,
        }
    }

    #[test]
    fn servers_that_are_not_independent_are_named() {
        let (a, b, c) = (node("a"), node("b"), node("c"));
        assert_eq!(independence(&[a.clone(), b.clone(), c.clone()]).level, Level::Ok);
        for (other, expected) in [
            (Facts { run: a.run.clone(), ..c.clone() }, "a and c are the same server"),
            (Facts { is_replica: true, ..c.clone() }, "c is a replica"),
            (Facts { history: b.history.clone(), ..c.clone() }, "b and c have the same replication history"),
            (Facts { run: None, history: None, ..c.clone() }, "c does not report its run_id (INFO)"),
        ] {
            let finding = independence(&[a.clone(), b.clone(), other]);
            assert_ne!(finding.level, Level::Ok);
            assert_eq!(finding.found, expected);
        }
    }

    #[test]
    fn failures_are_counted() {
        for (reached, level, expected) in [
            (
                5,
                Level::Ok,
                "5 of 5 nodes are available, and a lock needs 3: 2 may fail without a lock being lost",
            ),
            (4, Level::Warning, "4 of 5 nodes are available, and a lock needs 3: 1 more may fail"),
            (2, Level::Problem, "2 of 5 nodes are available, and a lock needs 3"),
        ] {
            let finding = quorum_of(reached, 5, 3);
            assert_eq!((finding.level, finding.found.as_str()), (level, expected));
        }
    }

    #[test]
    fn a_node_that_does_not_count_yet_is_named() {
        let of = |name: &str, since: &str| {
            let memory = memory_of(Some(since).filter(|since| !since.is_empty()), 100_000_000, Some("run"));
            Facts { memory, ..node(name) }
        };
        let found = |facts: &[Facts]| {
            let finding = memory(facts, 3);
            (finding.level, finding.found)
        };
        let ok = || (Level::Ok, "every node counts for new locks".to_owned());
        assert_eq!(found(&[of("a", "0 a run"), of("b", "-70000 b run"), of("c", "60000 c")]), ok());
        assert_eq!(found(&[of("a", ""), of("b", ""), of("c", "")]), ok());
        assert_eq!(found(&[of("a", "99000 a run"), of("b", "98000 b run"), of("c", "99000 c run")]), ok());
        let expected = |some: &str| {
            (
                Level::Warning,
                format!("{some} of 3 nodes may have lost locks, or are new: c remembers the last 1s"),
            )
        };
        assert_eq!(
            found(&[of("a", "0 a run"), of("b", "80000 b run"), of("c", "0 c earlier")]),
            expected("2")
        );
        assert_eq!(found(&[of("a", "0 a run"), of("b", "0 b run"), of("c", "")]), expected("1"));
    }

    #[test]
    fn clocks_may_be_a_second_apart() {
        let at = |name: &str, offset: i128| Facts { offset: Some(offset), ..node(name) };
        assert_eq!(clocks(&[at("a", -400_000), at("b", 500_000)]).level, Level::Ok);
        let apart = clocks(&[at("a", -1_000_000), at("b", 0), at("c", 4_000_000)]);
        assert_eq!(apart.level, Level::Warning);
        assert_eq!(apart.found, "the clock of c is 5s ahead of that of a");
    }
}

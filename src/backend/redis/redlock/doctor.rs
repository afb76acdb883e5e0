//! Whether the nodes are fit to hold locks: each by itself, and all of them together.

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

/// A node that has said nothing for so long is not waited for any more.
const SILENCE: Duration = Duration::from_secs(4);
/// Whoever listens is told so often that a node is still being asked.
const SIGN_OF_LIFE: Duration = Duration::from_millis(400);
/// How far the clocks of two nodes may be apart before anybody cares.
const CLOCK_WARNING: Duration = Duration::from_secs(1);
/// Most leases are so long, before which a node that has forgotten does not count.
const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// What a node says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Facts {
    name: String,
    /// Which process it is.
    run: Option<String>,
    /// Which history of changes it has.
    history: Option<String>,
    is_replica: bool,
    /// Its clock beside ours, in microseconds.
    offset: Option<i128>,
    /// For how long it has known what it was told, as far as it says.
    memory: Option<Memory>,
}

/// For how long a node has known what it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Memory {
    age: Duration,
    /// Nobody had asked it before.
    is_new: bool,
}

impl RedlockStore {
    /// Examines each node, and then what matters of all of them.
    ///
    /// # Errors
    /// A file that was configured cannot be used.
    pub(super) async fn examine_nodes(&mut self, examination: &Diagnosis) -> Result<(), StoreError> {
        if let Some(warning) = self.location.warning() {
            examination.found(Finding::warning(
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
            let recommended = examine_node(&mut store, &name, examination).await?;
            ttl = ttl.max(recommended);
            examination.begin("independence");
            if let Ok(Ok(known)) = timeout(SILENCE, facts_of(&mut store, name)).await {
                facts.push(known);
            }
        }
        if !ttl.is_zero() {
            examination.recommend_ttl(ttl);
        }
        let (count, quorum) = (self.nodes.count(), self.nodes.quorum());
        let together = [
            quorum_of(facts.len(), count, quorum),
            independence(&facts),
            clocks(&facts),
            memory(&facts, count),
        ];
        together.into_iter().for_each(|finding| examination.found(finding));
        Ok(())
    }
}

/// Examines one node, and tells what is found under its name. Returns the recommended lease.
async fn examine_node(
    store: &mut RedisStore,
    name: &str,
    examination: &Diagnosis,
) -> Result<Duration, StoreError> {
    let (own, mut notes) = Diagnosis::new();
    let mut examined = Box::pin(store.examine_server(&own));
    let mut ttl = Duration::ZERO;
    let mut step = "reachability";
    let mut heard = Instant::now();
    let outcome = loop {
        let sign = (Instant::now() + SIGN_OF_LIFE).min(heard + SILENCE);
        tokio::select! {
            biased;
            Some(note) = notes.recv() => {
                heard = Instant::now();
                match note {
                    Note::Begins(begun) => {
                        step = begun;
                        examination.begin(begun);
                    }
                    Note::Found(finding) => examination.found(of_node(name, finding)),
                    Note::Ttl(recommended) => ttl = recommended,
                }
            }
            outcome = &mut examined => break outcome,
            () = sleep_until(sign) => {
                examination.begin(step);
                if heard.elapsed() >= SILENCE {
                    break Err(StoreError::unanswered(format!("no answer within {}", show(SILENCE))));
                }
            }
        }
    };
    while let Ok(note) = notes.try_recv() {
        match note {
            Note::Found(finding) => examination.found(of_node(name, finding)),
            Note::Ttl(recommended) => ttl = recommended,
            Note::Begins(begun) => step = begun,
        }
    }
    match outcome {
        Ok(()) => Ok(ttl),
        Err(StoreError::Config(text)) => Err(StoreError::Config(text)),
        Err(error) => {
            let remedy = "see that the server runs and that nothing in between drops what is sent";
            examination.found(of_node(name, Finding::problem(step, error.to_string(), "", remedy)));
            Ok(ttl)
        }
    }
}

/// What is found at one node. One that cannot be used is not yet a store that cannot.
fn of_node(name: &str, finding: Finding) -> Finding {
    let found = format!("{name}: {}", finding.found);
    match (finding.level, finding.check) {
        (Level::Problem, "reachability" | "tls" | "authentication" | "protocol" | "database") => Finding {
            level: Level::Warning,
            found,
            consequence: Some("this node cannot be asked, and counts as one that is down".into()),
            ..finding
        },
        // A single server would lose its locks; here the others have them.
        (Level::Warning, "persistence") => Finding::ok(
            finding.check,
            format!("{found}; a node that was restarted counts again after a lease"),
        ),
        (Level::Problem, _) => Finding {
            found,
            consequence: Some("this node does not do its part, and may count as one that is down".into()),
            ..finding
        },
        _ => Finding { found, ..finding },
    }
}

async fn facts_of(store: &mut RedisStore, name: String) -> Result<Facts, StoreError> {
    use crate::backend::Backend;
    store.connect().await?;
    let (begun, before) = (Moment::now(), wall_micros());
    let time = store.ask_one("", redis::cmd("TIME")).await?;
    let took = Moment::now() - begun;
    let ours = i128::from(before) + (took / 2).as_micros() as i128;
    let mut facts = Facts { name, offset: time_of(&time).map(|theirs| theirs - ours), ..Facts::default() };
    // Some users may not ask this; then nothing is known of who it is.
    let Ok(info) = store.ask_one("", redis::cmd("INFO")).await else { return Ok(facts) };
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
    let since = store.ask_one("", redis::cmd("GET").arg("dlock#since").clone()).await;
    facts.memory =
        since.ok().and_then(|since| memory_of(text(Some(&since)), time_of(&time)?, facts.run.as_deref()));
    Ok(facts)
}

/// What a node's marker tells of its memory at this time, in microseconds; it is told with the next claim that a node was
/// started again.
fn memory_of(since: Option<&str>, now: i128, run: Option<&str>) -> Option<Memory> {
    let Some(since) = since else { return Some(Memory { age: Duration::ZERO, is_new: true }) };
    let mut words = since.split(' ');
    let since = words.next()?;
    let at: i128 = since.trim_start_matches('-').parse().ok()?;
    let ran = words.nth(1).filter(|ran| !ran.is_empty());
    if ran.zip(run).is_some_and(|(ran, run)| ran != run) {
        return Some(Memory { age: Duration::ZERO, is_new: false });
    }
    let age = Duration::from_millis(u64::try_from(now / 1000 - at).unwrap_or_default());
    Some(Memory { age, is_new: !since.starts_with('-') })
}

/// Microseconds since 1970.
fn time_of(answer: &Value) -> Option<i128> {
    let Value::Array(parts) = answer else { return None };
    let part = |index: usize| text(parts.get(index))?.parse::<i128>().ok();
    Some(part(0)? * 1_000_000 + part(1)?)
}

fn quorum_of(reached: usize, count: usize, quorum: usize) -> Finding {
    let found = format!("{reached} of {count} nodes can be asked, and a lock needs {quorum}");
    match reached.checked_sub(quorum) {
        Some(spare) if reached == count => {
            Finding::ok("quorum", format!("{found}: {spare} may be lost without a lock being lost"))
        }
        Some(spare) => Finding::warning(
            "quorum",
            format!("{found}: {spare} more may be lost"),
            "with one node too few no lock can be taken, and running commands are stopped",
            "bring the others back; they count for new locks when the longest lease is over",
        ),
        None => Finding::problem(
            "quorum",
            found,
            "no lock can be taken: dlock run ends with 69, or keeps trying with --retry",
            "bring the others back; they count for new locks when the longest lease is over",
        ),
    }
}

/// Whether each node is a server of its own.
fn independence(facts: &[Facts]) -> Finding {
    let problem = |found: String| {
        Finding::problem(
            "independence",
            found,
            "what is lost there is lost at both, so fewer losses are tolerated than there seem to be",
            "name servers that know nothing of each other: masters, each once, no load balancer and no replica",
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
        return problem(format!("{} and {} have the same history of changes", one.name, other.name));
    }
    match facts.iter().find(|facts| facts.run.is_none()) {
        Some(silent) => Finding::warning(
            "independence",
            format!("{} does not say who it is (INFO)", silent.name),
            "two nodes that are one server would not be noticed here",
            "give the user the right to ask INFO",
        ),
        None => Finding::ok("independence", "each node is a server of its own"),
    }
}

/// The nodes' clocks beside each other. Each counts its leases by its own, and seeds new fencing counters with it.
fn clocks(facts: &[Facts]) -> Finding {
    let known = || facts.iter().filter_map(|facts| Some((facts.offset?, facts)));
    let first = known().min_by_key(|(offset, _)| *offset);
    let last = known().max_by_key(|(offset, _)| *offset);
    let Some(((slow, behind), (fast, ahead))) = first.zip(last) else {
        return Finding::ok("clocks", "no clock was seen");
    };
    let apart = Duration::from_micros(u64::try_from(fast - slow).unwrap_or(u64::MAX));
    if apart < CLOCK_WARNING {
        return Finding::ok("clocks", format!("the nodes' clocks are {} apart", short(apart)));
    }
    Finding::warning(
        "clocks",
        format!("the clock of {} is {} ahead of that of {}", ahead.name, show(apart), behind.name),
        "fencing tokens may not grow when a node comes back empty within that time; when a clock is set, leases there end \
         sooner or later by as much",
        "let all nodes keep their clocks by NTP",
    )
}

/// Whether each node has known for long enough what is held.
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
                "{} of {count} nodes may have forgotten locks, or are new: {} remembers the last {}",
                known().filter(young).count(),
                node.name,
                show(Duration::from_secs(youngest.age.as_secs().max(1)))
            ),
            format!(
                "with the usual lease of {} it does not count before {} are over",
                show(DEFAULT_LEASE),
                show(Duration::from_secs((DEFAULT_LEASE - youngest.age).as_secs().max(1)))
            ),
            "wait for so long after a node was started; see that nodes are not restarted together",
        ),
        _ => Finding::ok("age", "no node has to wait until it counts"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> Facts {
        let own = |what: &str| Some(format!("{what} of {name}"));
        Facts {
            name: name.into(),
            run: own("run"),
            history: own("history"),
            is_replica: false,
            offset: Some(0),
            memory: None,
        }
    }

    #[test]
    fn servers_that_are_not_independent_are_named() {
        let (a, b, c) = (node("a"), node("b"), node("c"));
        assert_eq!(independence(&[a.clone(), b.clone(), c.clone()]).level, Level::Ok);
        for (other, says) in [
            (Facts { run: a.run.clone(), ..c.clone() }, "a and c are the same server"),
            (Facts { is_replica: true, ..c.clone() }, "c is a replica"),
            (Facts { history: b.history.clone(), ..c.clone() }, "b and c have the same history of changes"),
            (Facts { run: None, history: None, ..c.clone() }, "c does not say who it is (INFO)"),
        ] {
            let finding = independence(&[a.clone(), b.clone(), other]);
            assert_ne!(finding.level, Level::Ok);
            assert_eq!(finding.found, says);
        }
    }

    #[test]
    fn losses_are_counted() {
        for (reached, level, says) in [
            (
                5,
                Level::Ok,
                "5 of 5 nodes can be asked, and a lock needs 3: 2 may be lost without a lock being lost",
            ),
            (4, Level::Warning, "4 of 5 nodes can be asked, and a lock needs 3: 1 more may be lost"),
            (2, Level::Problem, "2 of 5 nodes can be asked, and a lock needs 3"),
        ] {
            let finding = quorum_of(reached, 5, 3);
            assert_eq!((finding.level, finding.found.as_str()), (level, says));
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
        let well = || (Level::Ok, "no node has to wait until it counts".to_owned());
        assert_eq!(found(&[of("a", "0 a run"), of("b", "-70000 b run"), of("c", "60000 c")]), well());
        assert_eq!(found(&[of("a", ""), of("b", ""), of("c", "")]), well());
        assert_eq!(found(&[of("a", "99000 a run"), of("b", "98000 b run"), of("c", "99000 c run")]), well());
        let says = |some: &str| {
            (
                Level::Warning,
                format!("{some} of 3 nodes may have forgotten locks, or are new: c remembers the last 1s"),
            )
        };
        assert_eq!(found(&[of("a", "0 a run"), of("b", "80000 b run"), of("c", "0 c earlier")]), says("2"));
        assert_eq!(found(&[of("a", "0 a run"), of("b", "0 b run"), of("c", "")]), says("1"));
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

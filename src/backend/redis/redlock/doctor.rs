//! `dlock doctor` for a Redlock: checks each node, and all nodes together.
//!
//! Called for `dlock doctor`. What always holds: it changes only keys of its own scratch lock.

mod answers;
mod together;

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::timeout;

use self::answers::{NodeAnswer, atomic_grant, lease_clock, losses, one_server};
use self::together::{clocks, independence, memory, quorum_of};
use super::RedlockStore;
use super::node::{NodeClient, Purpose};
use crate::backend::diagnosis::{AVAILABILITY, Diagnosis, Finding, Level, Note, Question};
use crate::backend::redis::doctor::clock;
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

/// What a node reports about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct NodeInfo {
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
        let replies = self.nodes.request(self.all(), Purpose::Other, SILENCE, info_of);
        self.nodes.complete_within(SILENCE, &replies).await;
        let nodes: Vec<NodeInfo> = replies.succeeded().into_iter().map(|(_, node)| node).collect();
        if !ttl.is_zero() {
            diagnosis.recommend_ttl(ttl);
        }
        let (count, quorum) = (self.nodes.count(), self.nodes.quorum());
        let error_of = |node| match replies.of(node) {
            Some(reply) => reply.err(),
            None => Some(StoreError::unanswered("no answer")),
        };
        let failed: Vec<_> = self.all().filter_map(|node| Some((node, error_of(node)?))).collect();
        let available = quorum_of(nodes.len(), count, quorum, self.nodes.unavailable(&failed).failure_kind());
        if nodes.is_empty() {
            // Nothing is known of the nodes.
            diagnosis.found(available);
            return Ok(());
        }
        let missing = count - nodes.len();
        let (independence, clocks) = (independence(&nodes, missing), clocks(&nodes, missing));
        diagnosis.answer(Question::AtomicGrant, atomic_grant(&answers, count, quorum));
        diagnosis.answer(Question::Loss, losses(count, quorum));
        diagnosis.answer(Question::OneServer, one_server(&answers, &independence, missing));
        diagnosis.answer(Question::LeaseClock, lease_clock(&clocks));
        let together = [available, independence, clocks, memory(&nodes, missing)];
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
    let finding = finding.about(&name);
    match (finding.level, finding.check) {
        (Level::Problem, "reachability" | "tls" | "authentication" | "protocol" | "database") => Finding {
            level: Level::Warning,
            consequence: Some("this node is unavailable, and counts as down".into()),
            ..finding
        },
        // A single server would lose its locks; here the other nodes keep them.
        (Level::Warning, "persistence") => Finding::ok(
            finding.check,
            format!("{}; a node that was restarted counts again after a lease", finding.found),
        ),
        (Level::Problem, _) => Finding {
            consequence: Some("this node does not work properly, and may count as down".into()),
            ..finding
        },
        _ => finding,
    }
}

async fn info_of(node: &mut NodeClient) -> Result<NodeInfo, StoreError> {
    let reading = clock::read(node.store.request_one("", redis::cmd("TIME"))).await?;
    let name = node.store.location.display().to_owned();
    let mut node_info =
        NodeInfo { name, offset: reading.as_ref().map(|read| read.offset), ..NodeInfo::default() };
    // Without the right to run INFO the identity of the server remains unknown.
    let Ok(info) = node.store.request_one("", redis::cmd("INFO")).await else { return Ok(node_info) };
    let info = Info::of(&info);
    node_info.run = info.field("run_id").map(str::to_owned);
    node_info.history = info.field("master_replid").map(str::to_owned);
    node_info.is_replica = info.field("role") == Some("slave");
    let since = node.store.request_one("", redis::cmd("GET").arg("dlock#since").clone()).await;
    let now = reading.map(|read| read.server_time);
    node_info.memory =
        since.ok().and_then(|since| memory_of(text(Some(&since)), now?, node_info.run.as_deref()));
    Ok(node_info)
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

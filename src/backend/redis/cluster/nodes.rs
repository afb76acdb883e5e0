//! The nodes that are known, and which of them to ask.

use std::time::Duration;

use redis::{Cmd, Value};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::super::answers::text;
use super::super::connection::{Asking, Connection};
use super::super::location::{Address, Location};
use super::at;
use super::pool::Pool;
use super::redirect::address;
use crate::backend::StoreError;

/// The node that is asked first has so long to take a connection before the others are tried as well.
const HEAD_START: Duration = Duration::from_millis(250);
/// More nodes than these are not remembered.
const MOST_NODES: usize = 256;

/// The nodes of a cluster.
pub(in super::super) struct ClusterNodes {
    /// Those that are known; the first is the one that is asked. Never empty.
    known: Vec<Address>,
    /// The first answers for us only what it is asked for as a slot that is on its way to it.
    asking: Asking,
    /// The first has not answered what it was asked last.
    is_silent: bool,
    /// The first has answered for the lock, so a slow answer of it is worth waiting for.
    is_proven: bool,
    /// All nodes there are have been asked for.
    is_complete: bool,
    /// Connections to all of them that have been asked about many locks.
    pub(super) pool: Pool,
}

impl ClusterNodes {
    /// Names some of them; contacts nobody.
    pub(in super::super) fn new(known: Vec<Address>) -> ClusterNodes {
        let pool = Pool::default();
        ClusterNodes {
            known,
            asking: Asking::No,
            is_silent: false,
            is_proven: false,
            is_complete: false,
            pool,
        }
    }

    /// How many are known.
    pub(in super::super) fn count(&self) -> usize {
        self.known.len()
    }

    /// The one that is asked.
    pub(in super::super) fn current(&self) -> &Address {
        &self.known[0]
    }

    /// Makes this the one that is asked.
    pub(super) fn prefer(&mut self, node: Address) {
        self.is_proven &= node == *self.current();
        self.known.retain(|known| *known != node);
        self.known.insert(0, node);
        self.known.truncate(MOST_NODES);
        self.is_silent = false;
        self.asking = Asking::No;
    }

    pub(super) fn set_asking(&mut self, asking: Asking) {
        self.asking = asking;
    }

    /// A question is sent to the first. If nothing more is said of it, another one is asked the next time.
    pub(super) fn begin(&mut self) {
        self.is_silent = true;
    }

    pub(super) fn has_answered(&mut self) {
        self.is_silent = false;
    }

    /// The first has the lock, as far as is known.
    pub(super) fn has_proven(&mut self) {
        self.is_proven = true;
    }

    pub(super) fn is_proven(&self) -> bool {
        self.is_proven
    }

    /// Asks another one the next time.
    pub(super) fn pass_over(&mut self) {
        self.known.rotate_left(1);
        self.is_proven = false;
        self.is_silent = false;
        self.asking = Asking::No;
    }

    /// Whether there may be more than are known.
    pub(super) fn knows_few(&self) -> bool {
        !self.is_complete
    }

    /// Whatever comes of it.
    pub(super) fn has_asked_for_all(&mut self) {
        self.is_complete = true;
    }

    /// Takes the nodes from an answer to `CLUSTER SLOTS`.
    pub(super) fn learn(&mut self, answer: &Value) {
        for range in ranges(answer, self.current()) {
            for node in range.nodes {
                if self.known.len() < MOST_NODES && !self.known.contains(&node) {
                    self.known.push(node);
                }
            }
        }
    }

    /// A connection to the node that was asked last, or if that takes long or does not work, to any other one that is
    /// known; nothing has been said over it yet. One that does not answer holds up nobody.
    ///
    /// # Errors
    /// None of them can be reached.
    pub(in super::super) async fn open(
        &mut self,
        location: &Location,
        old_protocol: bool,
    ) -> Result<Connection, StoreError> {
        if self.is_silent {
            self.pass_over();
        }
        let attempt = |node: Address| {
            let location = location.clone();
            async move {
                let opened = Connection::open(&location, &node, old_protocol).await;
                (node, opened)
            }
        };
        let mut attempts = JoinSet::new();
        attempts.spawn(attempt(self.current().clone()));
        let mut others = self.known[1..].to_vec();
        let mut failures = Vec::new();
        loop {
            let result = tokio::select! {
                result = attempts.join_next() => result,
                () = sleep(HEAD_START), if !others.is_empty() => None,
            };
            match result {
                Some(Ok((node, Ok(mut connection)))) => {
                    if node != *self.current() {
                        self.prefer(node);
                    }
                    connection.set_asking(self.asking);
                    return Ok(connection);
                }
                Some(Ok((_, Err(error @ (StoreError::Config(_) | StoreError::Denied(_)))))) => {
                    return Err(error);
                }
                Some(Ok((node, Err(error)))) => failures.push(at(&node, error)),
                Some(Err(_)) | None => {}
            }
            for node in others.drain(..) {
                attempts.spawn(attempt(node));
            }
            if attempts.is_empty() {
                return Err(unreachable(&failures));
            }
        }
    }
}

fn unreachable(failures: &[StoreError]) -> StoreError {
    match failures {
        [] => StoreError::unreachable("no node is known"),
        [only] => only.clone(),
        [first, others @ ..] => {
            let also = match others.len() {
                1 => "the other known node neither".to_owned(),
                count => format!("none of the other {count} known nodes either"),
            };
            StoreError::unreachable(format!("{first}; {also}"))
        }
    }
}

/// Some slots, and who has them.
pub(in super::super) struct Range {
    pub(super) first: u16,
    pub(super) last: u16,
    /// The master, and its replicas.
    pub(in super::super) nodes: Vec<Address>,
}

/// The question for all slots and nodes.
pub(in super::super) fn slots_command() -> Cmd {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    command
}

/// The answer to it, given by `from`, as far as it makes sense: `{first, last, {host, port, ...}, ...}` for each range.
pub(in super::super) fn ranges(answer: &Value, from: &Address) -> Vec<Range> {
    let Value::Array(ranges) = answer else { return Vec::new() };
    let range = |range: &Value| {
        let Value::Array(parts) = range else { return None };
        let [Value::Int(first), Value::Int(last), nodes @ ..] = parts.as_slice() else { return None };
        let nodes = nodes.iter().filter_map(|node| {
            let Value::Array(node) = node else { return None };
            let Some(Value::Int(port)) = node.get(1) else { return None };
            address(text(node.first()).unwrap_or_default(), u16::try_from(*port).ok()?, from)
        });
        let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
        Some(Range { first, last, nodes: nodes.collect() })
    };
    ranges.iter().filter_map(range).collect()
}

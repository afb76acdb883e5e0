//! The known nodes of a cluster, and which of them to use.
//!
//! Used by [`cluster`](super::cluster). What always holds: what a node says of others is a hint, which the node that has the
//! lock confirms or refuses.

mod pool;

use std::cell::RefCell;
use std::time::Duration;

use redis::{Cmd, Value};

use self::pool::Pool;
use super::connection::Connection;
use super::location::Location;
use super::redirect::{Asking, address};
use super::reply::text;
use crate::backend::StoreError;
use crate::backend::net::{Address, first_server};

/// How long a node has to accept a connection before the next one is tried as well.
const HEAD_START: Duration = Duration::from_millis(250);
/// The maximum number of redirections of a request before the nodes are considered inconsistent.
pub(super) const MAX_REDIRECTIONS: usize = 5;
const MAX_NODES: usize = 256;
/// How often the nodes of a cluster are queried if no node replies in time: each such query costs a connection.
const MAX_QUERIES: u8 = 3;

pub(super) struct ClusterNodes {
    /// The known nodes; the first is the current one. Never empty.
    pub(super) known: Vec<Address>,
    /// Whether the slot is being migrated to the current node, so that requests need `ASKING`.
    pub(super) asking: Asking,
    /// The current node has not replied to the last request, so the next one is sent to another node.
    pub(super) is_silent: bool,
    /// The current node has served the lock, so it is worth waiting for a slow reply.
    pub(super) is_proven: bool,
    /// How often the nodes of the cluster may still be queried: no more once there was a reply.
    pub(super) queries_left: u8,
    /// Connections to the nodes that requests for many locks were sent to.
    pub(super) pool: Pool,
}

impl ClusterNodes {
    /// Returns the nodes of a URL; does not connect.
    pub(super) fn new(known: Vec<Address>) -> ClusterNodes {
        let pool = Pool::default();
        ClusterNodes {
            known,
            asking: Asking::No,
            is_silent: false,
            is_proven: false,
            queries_left: MAX_QUERIES,
            pool,
        }
    }

    pub(super) fn current(&self) -> &Address {
        &self.known[0]
    }

    pub(super) fn prefer(&mut self, node: Address) {
        self.is_proven &= node == *self.current();
        self.known.retain(|known| *known != node);
        self.known.insert(0, node);
        self.known.truncate(MAX_NODES);
        self.is_silent = false;
        self.asking = Asking::No;
    }

    pub(super) fn skip_current(&mut self) {
        self.known.rotate_left(1);
        self.is_proven = false;
        self.is_silent = false;
        self.asking = Asking::No;
    }

    pub(super) fn add_nodes(&mut self, reply: &Value) {
        for range in ranges(reply, self.current()) {
            for node in range.nodes {
                if self.known.len() < MAX_NODES && !self.known.contains(&node) {
                    self.known.push(node);
                }
            }
        }
    }

    /// Connects to the current node or, if that takes long or fails, to another known node; sends nothing yet. A node that
    /// does not respond does not delay the others for long.
    ///
    /// # Errors
    /// None of them can be reached.
    pub(super) async fn open(
        &mut self,
        location: &Location,
        old_protocol: bool,
    ) -> Result<Connection, StoreError> {
        if self.is_silent {
            self.skip_current();
        }
        // Dropped halfway, the next attempt begins with the next node.
        self.is_silent = true;
        let (known, failures) = (&self.known, RefCell::new(Vec::new()));
        let open = async |node: usize| {
            let opened = Connection::open(location, &known[node], old_protocol).await;
            opened.inspect_err(|error| failures.borrow_mut().push(at(&known[node], error.clone())))
        };
        // The first is the current one.
        let mut node = 0;
        let opened = first_server(&mut node, known.len(), HEAD_START, open).await;
        self.is_silent = false;
        let mut connection = match opened {
            Ok(connection) => connection,
            Err(StoreError::Unavailable { .. }) => return Err(unreachable(&failures.into_inner())),
            Err(error) => return Err(error),
        };
        if node != 0 {
            self.prefer(self.known[node].clone());
        }
        connection.asking = self.asking;
        Ok(connection)
    }
}

fn unreachable(failures: &[StoreError]) -> StoreError {
    match failures {
        [] => StoreError::unreachable("no node is known"),
        [only] => only.clone(),
        [first, others @ ..] => {
            let also = match others.len() {
                1 => "nor can the other known node be reached".to_owned(),
                count => format!("nor can any of the other {count} known nodes be reached"),
            };
            StoreError::unreachable(format!("{first}; {also}"))
        }
    }
}

/// A range of slots, and the nodes that have it.
pub(super) struct Range {
    pub(super) first: u16,
    pub(super) last: u16,
    /// The master, and its replicas.
    pub(super) nodes: Vec<Address>,
}

pub(super) fn slots_command() -> Cmd {
    redis::cmd("CLUSTER").arg("SLOTS").clone()
}

/// Parses its reply, sent by `from`, and skips invalid parts: `{first, last, {host, port, ...}, ...}` for each range.
pub(super) fn ranges(reply: &Value, from: &Address) -> Vec<Range> {
    let Value::Array(ranges) = reply else { return Vec::new() };
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

/// Adds the node to an error about it; an error in the configuration is not about one node.
pub(super) fn at(node: &Address, error: StoreError) -> StoreError {
    match error {
        StoreError::Config(_) => error,
        error => error.map_text(|text| format!("{node}: {text}")),
    }
}

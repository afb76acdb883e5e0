//! The nodes of a lock, as a server shows them.

use super::connection::Reply;
use super::errors::Code;
use super::message::Stat;
use super::recipe::parse;
use crate::backend::StoreError;
use crate::backend::ledger::{Ledger, Unreadable, WaiterEntry};
use crate::lock::{LockName, Mode};

/// The most nodes below a lock: with more, a claim would need too much memory.
const MOST_NODES: usize = 10_000;

/// A node that was read.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) stat: Stat,
    /// `None` if a foreign client has written it.
    pub(super) value: Option<Ledger>,
}

/// A node of which it is not known that a dlock has written it.
pub(super) struct Document {
    pub(super) stat: Stat,
    pub(super) value: Result<Ledger, Unreadable>,
}

/// A node below a lock, by its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Node {
    /// The number that the server has added.
    pub(super) number: i64,
    pub(super) name: String,
}

/// A node of a client that holds a lock or waits for it.
pub(super) struct Candidate {
    pub(super) node: Node,
    pub(super) mode: Mode,
}

/// Returns the version of a node in a listing, where 0 is that of none.
pub(super) fn version(stat: &Stat) -> u64 {
    u64::from(stat.version.unsigned_abs()) + 1
}

/// Parses the node in a reply. Returns `None` if the node does not exist.
pub(super) fn stored(name: &LockName, path: &str, reply: &Reply) -> Result<Option<Stored>, StoreError> {
    let Some(Document { stat, value }) = document(path, reply)? else { return Ok(None) };
    match value {
        Ok(value) if !value.is_idle() => Ok(Some(Stored { stat, value: Some(value) })),
        // A dlock holds or waits with its node, or removes it.
        Ok(_) | Err(Unreadable::Damaged) => Ok(Some(Stored { stat, value: None })),
        Err(format) => Err(StoreError::Config(format!("{name}: {format}"))),
    }
}

/// Likewise, whatever its value is.
pub(super) fn document(path: &str, reply: &Reply) -> Result<Option<Document>, StoreError> {
    match reply.code {
        Code::OK => {
            let mut reader = reply.reader();
            let (data, stat) = (reader.bytes()?, reader.stat()?);
            Ok(Some(Document { stat, value: Ledger::parse(data) }))
        }
        Code::NO_NODE => Ok(None),
        code => Err(code.error(path)),
    }
}

/// Returns the nodes below a lock, in their order.
pub(super) fn candidates(lock: &str, reply: &Reply) -> Result<Vec<Candidate>, StoreError> {
    let names = match reply.code {
        Code::OK => reply.reader().texts()?,
        Code::NO_NODE => Vec::new(),
        code => return Err(code.error(lock)),
    };
    if names.len() > MOST_NODES {
        return Err(StoreError::unanswered(format!(
            "{lock} has more than {MOST_NODES} nodes: does one lock have too many waiters?"
        )));
    }
    let candidate = |name: String| {
        let (number, mode) = parse(&name)?;
        Some(Candidate { node: Node { number, name }, mode })
    };
    let mut candidates: Vec<Candidate> = names.into_iter().filter_map(candidate).collect();
    candidates.sort_unstable_by(|one, other| one.node.cmp(&other.node));
    Ok(candidates)
}

/// Returns how many of the first nodes may hold the lock together, judged by their modes alone.
pub(super) fn entitled(candidates: &[Candidate]) -> usize {
    let Some(first) = candidates.first().map(|one| one.mode) else { return 0 };
    let alike = candidates.iter().take_while(|one| one.mode == first).count();
    match first {
        Mode::Exclusive => 1,
        Mode::Shared => alike,
        Mode::Slots(slots) => alike.min(slots as usize),
    }
}

/// Turns the holders of an entry into waiters.
pub(super) fn wait_instead(value: &mut Ledger) {
    value.waiters.extend(value.holders.drain(..).map(|holder| WaiterEntry {
        ticket: 0,
        token: holder.token,
        mode: holder.mode,
        since: holder.acquired_at,
        called: None,
        lease_ends: None,
        identity: holder.identity,
    }));
}

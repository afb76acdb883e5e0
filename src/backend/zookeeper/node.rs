//! The nodes of a lock, as a server shows them.

use std::collections::HashSet;

use super::connection::Reply;
use super::message::Stat;
use super::recipe::parse;
use crate::backend::StoreError;
use crate::backend::ledger::{Ledger, Unreadable, WaiterEntry};
use crate::lock::{LockName, Mode};

/// The most nodes below a lock: with more, a claim would need too much memory.
const MOST_NODES: usize = 10_000;

/// The data by which a client of Curator asks for the end of a hold, in the node of the holder (`Revoker.attemptRevoke`).
const REVOKE: &[u8] = b"__REVOKE__";

/// A node that was read.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) stat: Stat,
    /// `None` if a foreign client has written it.
    pub(super) value: Option<Ledger>,
    /// A client of Curator asks the owner to end its hold.
    pub(super) is_revocation: bool,
}

/// A node below a lock, of a client that holds the lock or waits for it.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// The number that the server has added to the name.
    pub(super) number: i64,
    pub(super) name: String,
    /// The requested mode, by the name.
    pub(super) mode: Mode,
    /// The order of its entry, see [`set_orders`]; 0 until it is set.
    pub(super) order: u64,
    /// What was read of it; `None` if it was not read, as most of thousands are.
    pub(super) stored: Option<Box<Stored>>,
}

impl Node {
    /// Returns the node of this name, which was not read; `None` if the name has no number.
    pub(super) fn named(name: &str) -> Option<Node> {
        let (number, mode) = parse(name)?;
        Some(Node { number, name: name.to_owned(), mode, order: 0, stored: None })
    }

    /// Returns the transaction that has created it, if it was read.
    fn creation(&self) -> Option<u64> {
        self.stored.as_ref().map(|stored| stored.stat.czxid as u64)
    }
}

/// Sets the order of each node: the transaction that has created it, or, where that is unknown, a number between those
/// of its neighbours, if the server has numbered them. No two have the same.
pub(super) fn set_orders(nodes: &mut [Node]) {
    let mut used: HashSet<u64> = nodes.iter().filter_map(Node::creation).collect();
    let first = nodes.iter().find_map(|node| Some((node.number, node.creation()?)));
    let (mut number, mut order) = first.unwrap_or((0, u64::from(u32::MAX)));
    for node in nodes {
        order = node.creation().unwrap_or_else(|| {
            // Each node has a transaction of its own, and a number that is larger by one than the last one.
            let mut order = order.saturating_add_signed(node.number.saturating_sub(number));
            while !used.insert(order) {
                order = order.wrapping_add(1);
            }
            order
        });
        (number, node.order) = (node.number, order);
    }
}

/// Returns the version of a node in a listing, where 0 is that of none.
pub(super) fn version(stat: &Stat) -> u64 {
    u64::from(stat.version.unsigned_abs()) + 1
}

/// Parses the node in a reply. Returns `None` if the node does not exist.
pub(super) fn stored(name: &LockName, path: &str, reply: &Reply) -> Result<Option<Stored>, StoreError> {
    let Some((data, stat)) = content(path, reply)? else { return Ok(None) };
    let value = match Ledger::parse(data) {
        Ok(value) if !value.is_idle() => Some(value),
        // A dlock holds or waits with its node, or removes it.
        Ok(_) | Err(Unreadable::Damaged) => None,
        Err(format) => return Err(StoreError::Config(format!("{name}: {format}"))),
    };
    Ok(Some(Stored { stat, value, is_revocation: data == REVOKE }))
}

/// A node, and the ledger in it if it can be read.
pub(super) type Document = (Stat, Result<Ledger, Unreadable>);

/// Likewise, whatever its value is: it is not known that a dlock has written it.
pub(super) fn document(path: &str, reply: &Reply) -> Result<Option<Document>, StoreError> {
    Ok(content(path, reply)?.map(|(data, stat)| (stat, Ledger::parse(data))))
}

/// Returns the data and the metadata of the node in a reply. Returns `None` if the node does not exist.
fn content<'a>(path: &str, reply: &'a Reply) -> Result<Option<(&'a [u8], Stat)>, StoreError> {
    let Some(mut reader) = reply.found(path)? else { return Ok(None) };
    Ok(Some((reader.bytes()?, reader.stat()?)))
}

/// Returns the nodes below a lock, in the order of their numbers.
pub(super) fn nodes(lock: &str, reply: &Reply) -> Result<Vec<Node>, StoreError> {
    let Some(mut reader) = reply.found(lock)? else { return Ok(Vec::new()) };
    let names = reader.texts()?;
    if names.len() > MOST_NODES {
        return Err(StoreError::unanswered(format!(
            "{lock} has more than {MOST_NODES} nodes: does one lock have too many waiters?"
        )));
    }
    let mut nodes: Vec<Node> = names.iter().filter_map(|name| Node::named(name)).collect();
    nodes.sort_unstable_by(|one, other| (one.number, &one.name).cmp(&(other.number, &other.name)));
    Ok(nodes)
}

/// Returns how many of the first nodes may hold the lock together, judged by their modes alone.
pub(super) fn entitled(nodes: &[Node]) -> usize {
    let Some(first) = nodes.first().map(|node| node.mode) else { return 0 };
    let alike = nodes.iter().take_while(|node| node.mode == first).count();
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

//! The entries that the nodes of a lock stand for.

use super::ZooKeeperStore;
use crate::backend::ledger::entries::Entry;
use crate::backend::ledger::{Ledger, Purpose};
use crate::backend::zookeeper::message::Stat;
use crate::backend::zookeeper::node::{Node, Stored, entitled, set_orders, version, wait_instead};
use crate::lock::{Mode, Revocation};

/// The author of a revocation that does not name one.
const REVOKER: &str = "a client of Curator";

impl ZooKeeperStore {
    /// Returns the entries of the nodes that were listed.
    pub(super) fn entries(&mut self, purpose: &Purpose) -> Vec<Entry> {
        self.restore_own();
        set_orders(&mut self.nodes);
        let entitled = entitled(&self.nodes);
        (0..self.nodes.len()).map(|index| self.entry(purpose, index, entitled)).collect()
    }

    /// Returns the entry of a node; the first `entitled` ones may hold the lock.
    fn entry(&self, purpose: &Purpose, index: usize, entitled: usize) -> Entry {
        let node = &self.nodes[index];
        let (mut value, granted) = match node.stored.as_deref() {
            Some(Stored { stat, value: Some(value), .. }) => {
                let mut value = value.clone();
                // A node is created with the value that it has if it is the first one.
                if self.was_created_behind(index, stat) {
                    wait_instead(&mut value);
                }
                if Some(stat.owner) != self.client.session() {
                    disown(&mut value, purpose, &node.name);
                }
                // The versions of nodes are no revisions.
                (value, stat.mzxid as u64)
            }
            _ => (foreign(node, index < entitled), node.order),
        };
        set_tokens_of_readers(&mut value, granted);
        let version = node.stored.as_ref().map_or(0, |stored| version(&stored.stat));
        Entry { order: node.order, version, lease_ends: None, value }
    }

    /// Notes the value of the own node, or, if a client of Curator has overwritten it to ask for its end, restores the one
    /// that was noted, with a revocation: the node still belongs to this session.
    pub(super) fn restore_own(&mut self) {
        let session = self.client.session();
        let Some(own) = &mut self.own else { return };
        let mut nodes = self.nodes.iter_mut().filter(|node| Some(&node.name) == own.name.as_ref());
        let stored = nodes.find_map(|node| node.stored.as_deref_mut());
        let Some(stored) = stored.filter(|stored| Some(stored.stat.owner) == session) else { return };
        if stored.value.is_some() {
            own.value.clone_from(&stored.value);
            return;
        }
        if !stored.is_revocation {
            return;
        }
        stored.value.clone_from(&own.value);
        let holders = stored.value.iter_mut().flat_map(|value| &mut value.holders);
        // Those inside the hold end with its owner.
        for holder in holders.filter(|holder| holder.ticket == 0) {
            holder.revoked.get_or_insert_with(|| Revocation { by: REVOKER.to_owned(), reason: None });
        }
    }

    /// Returns whether a node still has the value that it was created with, and was not the first one then: its client
    /// waits.
    pub(super) fn was_created_behind(&self, index: usize, stat: &Stat) -> bool {
        let own = self.own.as_ref().filter(|own| own.name.as_ref() == Some(&self.nodes[index].name));
        stat.version == 0 && own.map_or(index > 0, |own| !own.is_first)
    }
}

/// Returns the value of a node that a foreign client has written, or that was not read: then it may be that of a dlock.
fn foreign(node: &Node, is_entitled: bool) -> Ledger {
    let created = node.stored.as_ref().map_or(0, |stored| stored.stat.ctime);
    let since = created.unsigned_abs().saturating_mul(1000);
    let mut value = match is_entitled {
        true => Ledger::of_foreign_holder(since),
        false => Ledger::of_foreign_waiter(since),
    };
    let token = if node.stored.is_none() { node.name.as_str() } else { "" };
    let holders = value.holders.iter_mut().map(|holder| (&mut holder.mode, &mut holder.token));
    let waiters = value.waiters.iter_mut().map(|waiter| (&mut waiter.mode, &mut waiter.token));
    for (its_mode, its_token) in holders.chain(waiters) {
        (*its_mode, *its_token) = (node.mode, token.to_owned());
    }
    value
}

/// What another session has created with the token of the claim was created in a session of this client that has
/// expired, and is lost, even if a server still shows it.
fn disown(value: &mut Ledger, purpose: &Purpose, node: &str) {
    // The owner of an entry is stored without a ticket; others are inside its hold.
    let owner = value.holders.iter_mut().filter(|holder| holder.ticket == 0).map(|holder| &mut holder.token);
    let tokens = owner.chain(value.waiters.iter_mut().map(|waiter| &mut waiter.token));
    tokens.filter(|token| purpose.is_of(token)).for_each(|token| node.clone_into(token));
}

/// Sets the fencing tokens of readers that are not stored, because they are those of the writes that have granted the lock.
fn set_tokens_of_readers(value: &mut Ledger, granted: u64) {
    for holder in &mut value.holders {
        if holder.mode == Mode::Shared && holder.fencing_token == 0 {
            holder.fencing_token = granted;
        }
    }
}

//! The entries that the nodes of a lock stand for.

use std::collections::HashSet;

use super::ZooKeeperStore;
use crate::backend::ledger::Ledger;
use crate::backend::ledger::entries::Entry;
use crate::backend::zookeeper::node::{Candidate, version, wait_instead};
use crate::lock::Mode;

impl ZooKeeperStore {
    /// Returns the order of each node: the transaction that has created it, or, where that is unknown, a number between
    /// those of its neighbours, if the server has numbered them. No two have the same.
    pub(super) fn orders(&self, candidates: &[Candidate]) -> Vec<u64> {
        let known = |one: &Candidate| self.cache.get(&one.node.name).map(|stored| stored.stat.czxid as u64);
        let mut used: HashSet<u64> = candidates.iter().filter_map(known).collect();
        let first = candidates.iter().find_map(|one| Some((one.node.number, known(one)?)));
        let (mut number, mut order) = first.unwrap_or((0, u64::from(u32::MAX)));
        let mut orders = Vec::with_capacity(candidates.len());
        for one in candidates {
            order = known(one).unwrap_or_else(|| {
                // Each node has a transaction of its own, and a number that is larger by one than the last one.
                let mut order = order.saturating_add_signed(one.node.number.saturating_sub(number));
                while !used.insert(order) {
                    order = order.wrapping_add(1);
                }
                order
            });
            number = one.node.number;
            orders.push(order);
        }
        orders
    }

    /// Returns the entry of a node; the first `entitled` ones may hold the lock.
    pub(super) fn entry(&self, node: &str, order: u64, index: usize, entitled: usize, mode: Mode) -> Entry {
        let stored = self.cache.get(node);
        let since = stored.map_or(0, |stored| stored.stat.ctime.unsigned_abs().saturating_mul(1000));
        let value = match stored.and_then(|stored| stored.value.clone()) {
            Some(mut value) => {
                // A node is created with the value that it has if it is the first one.
                if stored.is_some_and(|stored| self.was_created_behind(node, &stored.stat, index)) {
                    wait_instead(&mut value);
                }
                if stored.is_some_and(|stored| Some(stored.stat.owner) != self.client.session()) {
                    self.disown(&mut value, node);
                }
                // The versions of nodes are no revisions.
                let granted = stored.map_or(0, |stored| stored.stat.mzxid as u64);
                set_tokens_of_readers(&mut value, granted);
                value
            }
            None => {
                let mut value = match index < entitled {
                    true => Ledger::of_foreign_holder(since),
                    false => Ledger::of_foreign_waiter(since),
                };
                // One that was not read may be a dlock.
                let token = if stored.is_none() { node } else { "" };
                value
                    .holders
                    .iter_mut()
                    .for_each(|holder| (holder.mode, holder.token) = (mode, token.to_owned()));
                value
                    .waiters
                    .iter_mut()
                    .for_each(|waiter| (waiter.mode, waiter.token) = (mode, token.to_owned()));
                set_tokens_of_readers(&mut value, order);
                value
            }
        };
        Entry { order, version: stored.map_or(0, |stored| version(&stored.stat)), lease_ends: None, value }
    }

    /// What another session has created with the token of the claim was created in a session of this client that has
    /// expired, and is lost, even if a server still shows it.
    fn disown(&self, value: &mut Ledger, node: &str) {
        // The owner of an entry is stored without a ticket; others are inside its hold.
        let owner =
            value.holders.iter_mut().filter(|holder| holder.ticket == 0).map(|holder| &mut holder.token);
        let tokens = owner.chain(value.waiters.iter_mut().map(|waiter| &mut waiter.token));
        tokens.filter(|token| **token == self.token).for_each(|token| node.clone_into(token));
    }
}

/// Sets the fencing tokens of readers that are not stored, because they are those of the writes that have granted the lock.
fn set_tokens_of_readers(value: &mut Ledger, granted: u64) {
    for holder in &mut value.holders {
        if holder.mode == Mode::Shared && holder.fencing_token == 0 {
            holder.fencing_token = granted;
        }
    }
}

//! One question to all nodes, and what they have answered so far.

use std::rc::Rc;
use std::time::Duration;

use super::asking::NodeReply;
use super::nodes::PendingReply;
use super::verdict::NodeVote;
use crate::backend::{Attempt, StoreError};
use crate::lock::Claim;

/// One question to all nodes, and what they have answered so far.
pub(super) struct Round {
    pub(super) claim: Rc<Claim>,
    /// The latest of each.
    pub(super) slots: Vec<PendingReply<NodeReply>>,
}

impl Round {
    /// As far as they matter for who gets the lock.
    pub(super) fn answers(&self) -> Vec<Option<NodeVote>> {
        let answer = |said: &Result<NodeReply, StoreError>| match said {
            // The hold that is entered is there, however long the node has known it.
            Ok(NodeReply { attempt: Attempt::Granted(_), .. }) if self.claim.requires_outer_hold => {
                NodeVote::Granted { age: Duration::MAX, is_new: false }
            }
            Ok(said) => said.answer(),
            Err(_) => NodeVote::Failed,
        };
        self.slots.iter().map(|slot| slot.borrow().as_ref().map(answer)).collect()
    }

    /// Whether all have answered.
    pub(super) fn is_answered(&self) -> bool {
        self.slots.iter().all(|slot| slot.borrow().is_some())
    }

    /// The nodes that have said this.
    pub(super) fn nodes(&self, says: impl Fn(&NodeReply) -> bool) -> Vec<usize> {
        let is = |slot: &PendingReply<NodeReply>| matches!(&*slot.borrow(), Some(Ok(said)) if says(said));
        (0..self.slots.len()).filter(|node| is(&self.slots[*node])).collect()
    }

    /// The nodes that have granted the claim.
    pub(super) fn granted(&self) -> Vec<usize> {
        self.nodes(|said| matches!(said.attempt, Attempt::Granted(_)))
    }

    /// The nodes at which the claim is in line.
    pub(super) fn in_line(&self) -> Vec<usize> {
        self.nodes(|said| said.number.is_some())
    }

    /// The claim's number in the line of each node.
    pub(super) fn numbers(&self) -> Vec<Option<u64>> {
        let number = |slot: &PendingReply<NodeReply>| {
            slot.borrow().as_ref().and_then(|said| said.as_ref().ok()?.number)
        };
        self.slots.iter().map(number).collect()
    }

    /// Whether the claim is first in line at a majority of the nodes, or at all where it is in line.
    pub(super) fn is_first(&self, quorum: usize) -> bool {
        let first =
            self.nodes(|said| matches!(&said.attempt, Attempt::Busy(busy) if busy.position == Some(1)));
        !first.is_empty() && first.len() >= quorum.min(self.in_line().len())
    }

    /// The number that a node gave the hold.
    pub(super) fn fencing(&self, node: usize) -> Option<u64> {
        self.slots[node].borrow().as_ref().and_then(|said| said.as_ref().ok()?.fencing())
    }

    /// Two nodes that are one.
    pub(super) fn twins(&self) -> Option<(usize, usize)> {
        let id = |node: usize| {
            self.slots[node].borrow().as_ref().and_then(|said| said.as_ref().ok().map(|said| said.id.clone()))
        };
        let all = 0..self.slots.len();
        all.clone().find_map(|one| {
            let name = id(one)?;
            (one + 1..all.end).find(|other| id(*other).as_ref() == Some(&name)).map(|other| (one, other))
        })
    }
}

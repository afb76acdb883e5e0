//! One claim sent to all nodes, and the replies so far.

use std::rc::Rc;
use std::time::Duration;

use super::asking::NodeReply;
use super::nodes::PendingReply;
use super::verdict::NodeVote;
use crate::backend::{Attempt, StoreError};
use crate::lock::Claim;

/// One claim sent to all nodes, and the replies so far.
pub(super) struct Round {
    pub(super) claim: Rc<Claim>,
    /// The latest reply of each node.
    pub(super) replies: Vec<PendingReply<NodeReply>>,
}

impl Round {
    /// The replies, reduced to what decides whether the claim is granted.
    pub(super) fn votes(&self) -> Vec<Option<NodeVote>> {
        let vote = |reply: &Result<NodeReply, StoreError>| match reply {
            // A nested claim is granted only where the outer hold is present, so the node's age does not matter.
            Ok(NodeReply { attempt: Attempt::Granted(_), .. }) if self.claim.requires_outer_hold => {
                NodeVote::Granted { age: Duration::MAX, is_new: false }
            }
            Ok(reply) => reply.vote(),
            Err(_) => NodeVote::Failed,
        };
        self.replies.iter().map(|reply| reply.borrow().as_ref().map(vote)).collect()
    }

    /// Whether all replies have arrived.
    pub(super) fn is_complete(&self) -> bool {
        self.replies.iter().all(|reply| reply.borrow().is_some())
    }

    /// The nodes whose replies satisfy this condition.
    pub(super) fn nodes(&self, satisfies: impl Fn(&NodeReply) -> bool) -> Vec<usize> {
        let is =
            |reply: &PendingReply<NodeReply>| matches!(&*reply.borrow(), Some(Ok(reply)) if satisfies(reply));
        (0..self.replies.len()).filter(|node| is(&self.replies[*node])).collect()
    }

    /// The nodes that have granted the claim.
    pub(super) fn granted(&self) -> Vec<usize> {
        self.nodes(|reply| matches!(reply.attempt, Attempt::Granted(_)))
    }

    /// The nodes at which the claim is queued.
    pub(super) fn queued(&self) -> Vec<usize> {
        self.nodes(|reply| reply.number.is_some())
    }

    /// The claim's number in the queue of each node.
    pub(super) fn numbers(&self) -> Vec<Option<u64>> {
        let number = |reply: &PendingReply<NodeReply>| {
            reply.borrow().as_ref().and_then(|reply| reply.as_ref().ok()?.number)
        };
        self.replies.iter().map(number).collect()
    }

    /// Whether the claim is first in the queues of a majority of the nodes, or in all queues that it is in.
    pub(super) fn is_first(&self, quorum: usize) -> bool {
        let first =
            self.nodes(|reply| matches!(&reply.attempt, Attempt::Busy(busy) if busy.position == Some(1)));
        !first.is_empty() && first.len() >= quorum.min(self.queued().len())
    }

    /// The number that a node gave the hold.
    pub(super) fn fencing(&self, node: usize) -> Option<u64> {
        self.replies[node].borrow().as_ref().and_then(|reply| reply.as_ref().ok()?.fencing())
    }

    /// Two nodes with the same id, if there are any: the same server, or one a copy of the other.
    pub(super) fn duplicates(&self) -> Option<(usize, usize)> {
        let id = |node: usize| {
            let reply = self.replies[node].borrow();
            reply.as_ref().and_then(|reply| reply.as_ref().ok().map(|reply| reply.id.clone()))
        };
        let all = 0..self.replies.len();
        all.clone().find_map(|one| {
            let name = id(one)?;
            (one + 1..all.end).find(|other| id(*other).as_ref() == Some(&name)).map(|other| (one, other))
        })
    }
}

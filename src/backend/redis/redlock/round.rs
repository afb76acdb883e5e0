//! One claim sent to all nodes, and their replies.

use std::rc::Rc;
use std::time::Duration;

use redis::Value;

use super::quorum::Replies;
use super::verdict::NodeVote;
use crate::backend::redis::recipe::Recipe;
use crate::backend::redis::reply::{attempt, nonsense, number, of_lock, text};
use crate::backend::{Attempt, StoreError};
use crate::lock::{Claim, FencingToken};

/// The reply of a node to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeReply {
    /// How long the node has remembered everything written to it.
    pub(super) age: Duration,
    /// The node had received no request before that.
    pub(super) is_new: bool,
    /// The node's unique id.
    pub(super) id: String,
    /// The claim's number in the node's queue.
    pub(super) number: Option<u64>,
    pub(super) attempt: Attempt,
}

impl NodeReply {
    pub(super) fn read(reply: &[Value]) -> Result<NodeReply, StoreError> {
        let age = number(reply.first()).and_then(|ms| u64::try_from(ms).ok());
        let ticket: Option<f64> = text(reply.get(2)).and_then(|ticket| ticket.parse().ok());
        let (Some(age), Some(id), Some(ticket)) = (age, text(reply.get(1)), ticket) else {
            return Err(nonsense());
        };
        Ok(NodeReply {
            age: Duration::from_millis(age),
            is_new: number(reply.get(3)) == Some(1),
            id: id.to_owned(),
            number: (ticket > 0.0).then_some(ticket as u64),
            attempt: attempt(of_lock(reply), Recipe::Plain)?,
        })
    }

    /// The number that the node gave the hold.
    pub(super) fn fencing(&self) -> Option<u64> {
        match &self.attempt {
            Attempt::Granted(grant) => grant.fencing.map(FencingToken::number),
            Attempt::Busy(_) | Attempt::Refused(_) => None,
        }
    }

    pub(super) fn is_granted(&self) -> bool {
        matches!(self.attempt, Attempt::Granted(_))
    }

    /// The reply, reduced to what decides whether the claim is granted.
    fn vote(&self, claim: &Claim) -> NodeVote {
        let (age, is_new) = (self.age, self.is_new);
        match &self.attempt {
            // A nested claim is granted only where the outer hold is present, so the node's age does not matter.
            Attempt::Granted(_) if claim.requires_outer_hold => {
                NodeVote::Granted { age: Duration::MAX, is_new: false }
            }
            Attempt::Granted(_) => NodeVote::Granted { age, is_new },
            Attempt::Busy(busy) => {
                let leases = busy.holders.iter().map(|holder| holder.lease.unwrap_or(Duration::MAX));
                // Holders that are not listed may have any lease.
                let unlisted = (busy.more > 0).then_some(Duration::MAX);
                NodeVote::Refused { age, is_new, lease: leases.chain(unlisted).max().unwrap_or_default() }
            }
            Attempt::Refused(_) => NodeVote::Refused { age, is_new, lease: Duration::MAX },
        }
    }
}

/// One claim sent to all nodes, and the latest reply of each.
pub(super) struct Round {
    pub(super) claim: Rc<Claim>,
    pub(super) replies: Replies<NodeReply>,
}

impl Round {
    /// The replies of all nodes, reduced to what decides whether the claim is granted.
    pub(super) fn votes(&self, count: usize) -> Vec<Option<NodeVote>> {
        let vote = |reply: Result<NodeReply, StoreError>| match reply {
            Ok(reply) => reply.vote(&self.claim),
            Err(_) => NodeVote::Failed,
        };
        (0..count).map(|node| self.replies.of(node).map(vote)).collect()
    }

    /// The nodes at which the claim is queued.
    pub(super) fn queued(&self) -> Vec<usize> {
        self.replies.nodes(|reply| reply.number.is_some())
    }

    /// Whether the claim is first in the queues of a majority of the nodes, or in all queues that it is in.
    pub(super) fn is_first(&self, quorum: usize) -> bool {
        let is_first =
            |reply: &NodeReply| matches!(&reply.attempt, Attempt::Busy(busy) if busy.position == Some(1));
        let first = self.replies.nodes(is_first).len();
        first > 0 && first >= quorum.min(self.queued().len())
    }

    /// Two nodes with the same id, if there are any: the same server, or one a copy of the other.
    pub(super) fn duplicates(&self) -> Option<(usize, usize)> {
        let replies = self.replies.succeeded();
        replies.iter().enumerate().find_map(|(index, (one, reply))| {
            let same = replies[index + 1..].iter().find(|(_, other)| other.id == reply.id);
            same.map(|(other, _)| (*one, *other))
        })
    }
}

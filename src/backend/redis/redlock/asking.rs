//! The requests to one node, and its replies.

use std::rc::Rc;
use std::time::Duration;

use redis::Value;
use tokio::time::timeout;

use super::verdict::NodeVote;
use crate::backend::redis::acquiring::AsNode;
use crate::backend::redis::answers::{attempt, nonsense, number, of_lock, text};
use crate::backend::redis::connection::{Asking, Cancel, ReplyLimit, RequestOptions};
use crate::backend::redis::recipe::Recipe;
use crate::backend::redis::releasing::release;
use crate::backend::redis::script::{By, Operation, ScriptRequest};
use crate::backend::redis::{COUNTER_TTL, RedisStore};
use crate::backend::{Attempt, Intent, Reply, StoreError};
use crate::lock::{Claim, FencingToken};

/// A node may take this fraction of the lease to reply to a claim ...
const PART_OF_LEASE: u32 = 20;
/// ... but not less than this, which a busy host may need, ...
const SHORTEST_LIMIT: Duration = Duration::from_millis(250);
/// ... and not more than this: a failed attempt has to be undone at the nodes before this client's caller gives up.
const LONGEST_LIMIT: Duration = Duration::from_millis(500);

/// Returns how long a node may take to reply; after that it counts as down.
pub(super) fn limit(lease: Duration) -> Duration {
    (lease / PART_OF_LEASE).clamp(SHORTEST_LIMIT, LONGEST_LIMIT)
}

/// A claim as it is sent to one node.
#[derive(Clone)]
pub(super) struct NodeClaim {
    pub(super) claim: Rc<Claim>,
    pub(super) intent: Intent,
    /// The claim's number in the queue, once the nodes have agreed on one.
    pub(super) ticket: Option<u64>,
    /// The node reports changes of the lock's key.
    pub(super) tracking: bool,
    /// The id assigned to the node if it does not have one yet.
    pub(super) id: Rc<str>,
}

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
    /// The reply, reduced to what decides whether the claim is granted.
    pub(super) fn vote(&self) -> NodeVote {
        match &self.attempt {
            Attempt::Granted(_) => NodeVote::Granted { age: self.age, is_new: self.is_new },
            Attempt::Busy(busy) => {
                let leases = busy.holders.iter().map(|holder| holder.lease.unwrap_or(Duration::MAX));
                // Holders that are not listed may have any lease.
                let unnamed = (busy.more > 0).then_some(Duration::MAX);
                let lease = leases.chain(unnamed).max().unwrap_or_default();
                NodeVote::Refused { age: self.age, is_new: self.is_new, lease }
            }
            Attempt::Refused(_) => {
                NodeVote::Refused { age: self.age, is_new: self.is_new, lease: Duration::MAX }
            }
        }
    }

    /// The number that the node gave the hold.
    pub(super) fn fencing(&self) -> Option<u64> {
        match &self.attempt {
            Attempt::Granted(grant) => grant.fencing.map(FencingToken::number),
            Attempt::Busy(_) | Attempt::Refused(_) => None,
        }
    }
}

fn read(reply: &[Value]) -> Result<NodeReply, StoreError> {
    let age = number(reply.first()).and_then(|ms| u64::try_from(ms).ok());
    let ticket: Option<f64> = text(reply.get(2)).and_then(|ticket| ticket.parse().ok());
    let (Some(age), Some(id), Some(ticket)) = (age, text(reply.get(1)), ticket) else {
        return Err(nonsense());
    };
    let id = id.to_owned();
    Ok(NodeReply {
        age: Duration::from_millis(age),
        is_new: number(reply.get(3)) == Some(1),
        id,
        number: (ticket > 0.0).then_some(ticket as u64),
        attempt: attempt(of_lock(reply), Recipe::Plain)?,
    })
}

impl RedisStore {
    /// Sends a claim. If the reply does not arrive in time, the claim is released.
    pub(super) fn claim_as_node(
        &mut self,
        node_claim: NodeClaim,
        cancel: Cancel,
    ) -> Reply<'_, Result<NodeReply, StoreError>> {
        Box::pin(async move {
            let NodeClaim { claim, intent, ticket, tracking, id } = node_claim;
            let ticket = ticket.map(|ticket| ticket.to_string()).unwrap_or_default();
            let as_node = AsNode { ticket, id: &id, mends: false };
            self.request_as_node(&claim, intent, tracking, as_node, cancel).await
        })
    }

    /// Restores a hold that the node has lost, unless another client holds the lock there.
    pub(super) fn restore_hold(
        &mut self,
        claim: Rc<Claim>,
        fencing: u64,
        id: Rc<str>,
        cancel: Cancel,
    ) -> Reply<'_, Result<NodeReply, StoreError>> {
        Box::pin(async move {
            let as_node = AsNode { ticket: fencing.to_string(), id: &id, mends: true };
            self.request_as_node(&claim, Intent::TakeNow, true, as_node, cancel).await
        })
    }

    async fn request_as_node(
        &mut self,
        claim: &Claim,
        intent: Intent,
        tracking: bool,
        as_node: AsNode<'_>,
        cancel: Cancel,
    ) -> Result<NodeReply, StoreError> {
        let limit = limit(claim.ttl);
        let keys = self.keys(&claim.name);
        let on_timeout = release(&keys, claim, Duration::ZERO, None).command(By::Digest, Asking::No);
        if let Some(connection) = &mut self.connection {
            connection.set_reply_limit(ReplyLimit { limit, cancel, on_timeout });
        }
        // The request is sent twice if the node does not have the script cached any more.
        let reply = timeout(limit * 2, self.request_lock(claim, intent, tracking, as_node)).await;
        read(&reply.unwrap_or_else(|_| Err(timed_out(limit * 2)))?)
    }

    /// Has the node give the hold this fencing token, or only record that a majority has given it. Returns the token
    /// that the hold has afterwards, or `None` if the node does not have the hold.
    pub(super) fn fence(
        &mut self,
        claim: Rc<Claim>,
        fencing: u64,
        fenced: Fenced,
        id: Rc<str>,
    ) -> Reply<'_, Result<Option<u64>, StoreError>> {
        Box::pin(async move {
            let keys = self.keys(&claim.name);
            let mode = match fenced {
                Fenced::Here => "give",
                Fenced::Elsewhere => "note",
            };
            let arguments =
                vec![fencing.to_string(), COUNTER_TTL.as_millis().to_string(), mode.into(), id.to_string()];
            let question = ScriptRequest {
                operation: Operation::Fence,
                keys: &keys,
                token: claim.token.reveal(),
                arguments,
                history: &keys.history,
            };
            let limit = limit(claim.ttl);
            let reply = timeout(limit, self.request(&question, RequestOptions::default())).await;
            let reply = reply.unwrap_or_else(|_| Err(timed_out(limit)))?;
            let given: u64 =
                text(reply.first()).and_then(|number| number.parse().ok()).ok_or_else(nonsense)?;
            Ok((given > 0).then_some(given))
        })
    }
}

/// Where a fencing token is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fenced {
    /// At this node, which gives this token or a larger one.
    Here,
    /// At a majority of the nodes already.
    Elsewhere,
}

/// The error of a node that has not replied in time.
pub(super) fn timed_out(limit: Duration) -> StoreError {
    StoreError::unanswered(format!("no answer within {} ms", limit.as_millis()))
}

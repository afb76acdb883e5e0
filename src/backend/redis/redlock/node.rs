//! The requests to one node of a Redlock, and its replies.

use std::time::Duration;

use tokio::time::timeout;

use super::verdict::NodeVote;
use crate::backend::redis::claim::release;
use crate::backend::redis::connection::{Cancel, ReplyLimit, RequestOptions};
use crate::backend::redis::errors::DependentRole;
use crate::backend::redis::location::Location;
use crate::backend::redis::redirect::Asking;
use crate::backend::redis::reply::{LockReply, NodeMark, Outcome, nonsense};
use crate::backend::redis::result::{attempt, unexpected};
use crate::backend::redis::script::{AsNode, By, Operation, ScriptRequest, millis};
use crate::backend::redis::store::{COUNTER_TTL, RedisStore};
use crate::backend::{Attempt, Backend, Ending, Intent, StoreError};
use crate::lock::{Claim, FencingToken};
use crate::random;

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

pub(super) struct NodeClient {
    pub(super) node: usize,
    pub(super) store: RedisStore,
    /// Ends the wait for the reply to a claim.
    cancel: Cancel,
}

/// What a request is for. Determines how it waits for earlier requests to the same node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Only to connect, for which a later request waits no longer than its own limit.
    Connect,
    /// To claim the lock. Waits for at most one request; fails at once if another one is waiting already.
    Claim,
    /// To renew the hold. Waits like a claim.
    Renewal,
    /// Anything else. Waits for all earlier requests: it has to be sent.
    Other,
}

impl NodeClient {
    /// Creates the client without connecting.
    pub(super) fn new(node: usize, location: Location, cancel: Cancel) -> NodeClient {
        NodeClient { node, store: RedisStore::new(location), cancel }
    }

    /// Connects the node if it is not connected, and sends it a request.
    ///
    /// # Errors
    /// The node could not be connected, or did not reply, within the limit; or the request failed.
    pub(super) async fn process<A>(
        &mut self,
        purpose: Purpose,
        limit: Duration,
        request: &impl AsyncFn(&mut NodeClient) -> Result<A, StoreError>,
    ) -> Result<A, StoreError> {
        let no_connection =
            || StoreError::unreachable(format!("no connection within {} ms", limit.as_millis()));
        timeout(limit, self.store.connect()).await.unwrap_or_else(|_| Err(no_connection()))?;
        // A claim is sent twice if the node does not have the script cached. The connection limits the wait
        // for each of the two replies, and releases the claim if one does not arrive in time.
        let limit = if purpose == Purpose::Claim { limit * 2 } else { limit };
        let no_reply = || StoreError::unanswered(format!("no answer within {} ms", limit.as_millis()));
        let reply = timeout(limit, request(self)).await.unwrap_or_else(|_| Err(no_reply()));
        match (reply, self.dependent_role()) {
            (Err(StoreError::Unavailable { maybe_applied, outlook, .. }), Some(DependentRole::Replica)) => {
                let reason = "it is a replica, and Redlock needs independent masters".to_owned();
                Err(match purpose {
                    // Repeating the claim would not help.
                    Purpose::Claim => StoreError::Config(reason),
                    _ => StoreError::Unavailable { reason, maybe_applied, outlook },
                })
            }
            (reply, _) => reply,
        }
    }

    fn dependent_role(&self) -> Option<DependentRole> {
        self.store.connection.as_ref().and_then(|connection| connection.role)
    }

    /// What the node is instead of an independent master, if its last reply reveals that.
    pub(super) fn role(&self) -> Option<&'static str> {
        self.dependent_role().map(|role| match role {
            DependentRole::Replica => "a replica",
            DependentRole::ClusterNode => "a node of a Redis Cluster",
        })
    }

    /// Sends a claim.
    pub(super) async fn claim(
        &mut self,
        claim: &Claim,
        intent: Intent,
        tracking: bool,
        as_node: AsNode,
    ) -> Result<NodeReply, StoreError> {
        let keys = self.store.keys(&claim.name);
        // By its text: its reply, which may be NOSCRIPT, is not read.
        self.store.count_attempt();
        let release = release(&keys, claim, self.store.attempt, Duration::ZERO, Ending::default());
        let on_timeout = release.command(By::Text, Asking::No);
        if let Some(connection) = &mut self.store.connection {
            let (limit, cancel) = (limit(claim.ttl), self.cancel.clone());
            connection.reply_limit = Some(ReplyLimit { limit, cancel, on_timeout });
        }
        let reply = self.store.request_lock(claim, intent, tracking, as_node).await?;
        NodeReply::of(reply, claim, &self.store.location)
    }

    /// Has the node give the hold this fencing token or a larger one; or, if the token `is_established`, only record that a
    /// majority has given it. Returns the token that the hold has afterwards, or `None` if the node does not have the hold.
    pub(super) async fn fence(
        &mut self,
        claim: &Claim,
        fencing: u64,
        is_established: bool,
    ) -> Result<Option<u64>, StoreError> {
        let keys = self.store.keys(&claim.name);
        let fence = Operation::Fence {
            fencing: fencing.to_string(),
            counter_life: millis(COUNTER_TTL),
            is_established,
            node: random::id(),
        };
        let request = ScriptRequest::new(fence, &keys, claim.token.reveal());
        match self.store.request(&request, RequestOptions::default()).await?.outcome {
            Outcome::Fenced { fencing } => fencing.parse().map(Some).map_err(|_| nonsense()),
            Outcome::Gone => Ok(None),
            other => Err(unexpected(&other)),
        }
    }
}

/// The reply of a node to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeReply {
    pub(super) mark: NodeMark,
    pub(super) attempt: Attempt,
}

impl NodeReply {
    fn of(reply: LockReply, claim: &Claim, location: &Location) -> Result<NodeReply, StoreError> {
        let attempt = attempt(reply.outcome, claim.once_per, location)?;
        Ok(NodeReply { mark: reply.node.ok_or_else(nonsense)?, attempt })
    }

    /// The claim's number in the node's queue.
    pub(super) fn number(&self) -> Option<u64> {
        self.mark.number.as_ref()?.parse().ok()
    }

    /// The number that the node gave the hold.
    pub(super) fn fencing(&self) -> Option<u64> {
        match &self.attempt {
            Attempt::Granted(grant) => grant.fencing.map(FencingToken::number),
            Attempt::Busy(_) | Attempt::Refused(_) | Attempt::NotDue(_) => None,
        }
    }

    pub(super) fn is_granted(&self) -> bool {
        matches!(self.attempt, Attempt::Granted(_))
    }

    /// The reply, reduced to what decides whether the claim is granted.
    pub(super) fn vote(&self, claim: &Claim) -> NodeVote {
        let excluded_for = match &self.attempt {
            // A nested claim is granted only where the outer hold is present, so the node's age does not matter.
            Attempt::Granted(_) if claim.requires_outer_hold => {
                return NodeVote { age: Duration::MAX, is_new: false, excluded_for: None };
            }
            // It would be granted if it were due.
            Attempt::Granted(_) | Attempt::NotDue(_) => None,
            Attempt::Busy(busy) => {
                let leases = busy.holders.iter().map(|holder| holder.lease.unwrap_or(Duration::MAX));
                // Holders that are not listed may have any lease.
                let unlisted = (busy.more > 0).then_some(Duration::MAX);
                Some(leases.chain(unlisted).max().unwrap_or_default())
            }
            Attempt::Refused(_) => Some(Duration::MAX),
        };
        NodeVote { age: Duration::from_millis(self.mark.age), is_new: self.mark.is_new, excluded_for }
    }
}

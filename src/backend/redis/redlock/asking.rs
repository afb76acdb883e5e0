//! What one node is asked, and what it answers.

use std::rc::Rc;
use std::time::Duration;

use redis::Value;
use tokio::time::timeout;

use super::verdict::NodeVote;
use crate::backend::redis::acquiring::AsNode;
use crate::backend::redis::answers::{attempt, nonsense, number, of_lock, text};
use crate::backend::redis::connection::{Asking, Cancel, Patience, RequestOptions};
use crate::backend::redis::recipe::Recipe;
use crate::backend::redis::releasing::release;
use crate::backend::redis::script::{By, Operation, Question};
use crate::backend::redis::{COUNTER_LIFE, RedisStore};
use crate::backend::{Attempt, Intent, Reply, StoreError};
use crate::lock::{Claim, FencingToken};

/// A node gets this part of the lease to answer a claim ...
const PART_OF_LEASE: u32 = 20;
/// ... but not less than this, which a busy host may need, ...
const SHORTEST_LIMIT: Duration = Duration::from_millis(250);
/// ... and not more than this: what is left of an attempt has to be taken back before those who wait for us give up.
const LONGEST_LIMIT: Duration = Duration::from_millis(500);

/// How long a node may take to answer; after that it counts as one that is down.
pub(super) fn limit(lease: Duration) -> Duration {
    (lease / PART_OF_LEASE).clamp(SHORTEST_LIMIT, LONGEST_LIMIT)
}

/// A claim as one node is asked for it.
#[derive(Clone)]
pub(super) struct NodeClaim {
    pub(super) claim: Rc<Claim>,
    pub(super) intent: Intent,
    /// Its number in the line, once the nodes have agreed on it.
    pub(super) ticket: Option<u64>,
    /// The node tells of whoever touches the lock.
    pub(super) tracking: bool,
    /// What the node is called if it has no name of its own yet.
    pub(super) id: Rc<str>,
}

/// What a node says to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeReply {
    /// For how long it has known all that it was told.
    pub(super) age: Duration,
    /// Before that, nobody had asked it.
    pub(super) is_new: bool,
    /// No other server is called so.
    pub(super) id: String,
    /// The claim's number in its line.
    pub(super) number: Option<u64>,
    pub(super) attempt: Attempt,
}

impl NodeReply {
    /// As far as it matters for who gets the lock.
    pub(super) fn answer(&self) -> NodeVote {
        match &self.attempt {
            Attempt::Granted(_) => NodeVote::Granted { age: self.age, is_new: self.is_new },
            Attempt::Busy(busy) => {
                let leases = busy.holders.iter().map(|holder| holder.lease.unwrap_or(Duration::MAX));
                // Who is not named may have asked for any.
                let unnamed = (busy.more > 0).then_some(Duration::MAX);
                let lease = leases.chain(unnamed).max().unwrap_or_default();
                NodeVote::Refused { age: self.age, is_new: self.is_new, lease }
            }
            Attempt::Refused(_) => {
                NodeVote::Refused { age: self.age, is_new: self.is_new, lease: Duration::MAX }
            }
        }
    }

    /// The number that it gave the hold.
    pub(super) fn fencing(&self) -> Option<u64> {
        match &self.attempt {
            Attempt::Granted(grant) => grant.fencing.map(FencingToken::number),
            Attempt::Busy(_) | Attempt::Refused(_) => None,
        }
    }
}

fn read(answer: &[Value]) -> Result<NodeReply, StoreError> {
    let age = number(answer.first()).and_then(|ms| u64::try_from(ms).ok());
    let place: Option<f64> = text(answer.get(2)).and_then(|place| place.parse().ok());
    let (Some(age), Some(id), Some(place)) = (age, text(answer.get(1)), place) else {
        return Err(nonsense());
    };
    let in_line = (place > 0.0).then_some(place as u64);
    let id = id.to_owned();
    Ok(NodeReply {
        age: Duration::from_millis(age),
        is_new: number(answer.get(3)) == Some(1),
        id,
        number: in_line,
        attempt: attempt(of_lock(answer), Recipe::Plain)?,
    })
}

impl RedisStore {
    /// Asks for a claim. Without an answer in time the claim is taken back.
    pub(super) fn claim_as_node(
        &mut self,
        asked: NodeClaim,
        cancel: Cancel,
    ) -> Reply<'_, Result<NodeReply, StoreError>> {
        Box::pin(async move {
            let NodeClaim { claim, intent, ticket, tracking, id } = asked;
            let ticket = ticket.map(|ticket| ticket.to_string()).unwrap_or_default();
            let as_node = AsNode { ticket, id: &id, mends: false };
            self.ask_as_node(&claim, intent, tracking, as_node, cancel).await
        })
    }

    /// Has the node hold again what it has forgotten, if nobody else holds it there.
    pub(super) fn mend(
        &mut self,
        claim: Rc<Claim>,
        fencing: u64,
        id: Rc<str>,
        cancel: Cancel,
    ) -> Reply<'_, Result<NodeReply, StoreError>> {
        Box::pin(async move {
            let as_node = AsNode { ticket: fencing.to_string(), id: &id, mends: true };
            self.ask_as_node(&claim, Intent::TakeNow, true, as_node, cancel).await
        })
    }

    async fn ask_as_node(
        &mut self,
        claim: &Claim,
        intent: Intent,
        tracking: bool,
        as_node: AsNode<'_>,
        cancel: Cancel,
    ) -> Result<NodeReply, StoreError> {
        let limit = limit(claim.ttl);
        let keys = self.keys(&claim.name);
        let last_words = release(&keys, claim, Duration::ZERO, None).command(By::Digest, Asking::No);
        if let Some(connection) = &mut self.connection {
            connection.set_patience(Patience { limit, cancel, last_words });
        }
        // It may have to be asked twice, when it does not know the script any more.
        let asked = timeout(limit * 2, self.ask_for(claim, intent, tracking, as_node)).await;
        read(&asked.unwrap_or_else(|_| Err(no_answer(limit * 2)))?)
    }

    /// Has the node give the hold this number, or only note that others have. `None`: there is no such hold.
    pub(super) fn fence(
        &mut self,
        claim: Rc<Claim>,
        fencing: u64,
        fenced: Fenced,
        id: Rc<str>,
    ) -> Reply<'_, Result<Option<u64>, StoreError>> {
        Box::pin(async move {
            let keys = self.keys(&claim.name);
            let manner = match fenced {
                Fenced::Here => "give",
                Fenced::Elsewhere => "note",
            };
            let arguments = vec![
                fencing.to_string(),
                COUNTER_LIFE.as_millis().to_string(),
                manner.into(),
                id.to_string(),
            ];
            let question = Question {
                operation: Operation::Fence,
                keys: &keys,
                token: claim.token.reveal(),
                arguments,
                history: &keys.history,
            };
            let limit = limit(claim.ttl);
            let answer = timeout(limit, self.ask(&question, RequestOptions::default())).await;
            let answer = answer.unwrap_or_else(|_| Err(no_answer(limit)))?;
            let given: u64 =
                text(answer.first()).and_then(|number| number.parse().ok()).ok_or_else(nonsense)?;
            Ok((given > 0).then_some(given))
        })
    }
}

/// Who gave a fencing token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fenced {
    /// This node is to give it, or a larger one.
    Here,
    /// A majority has given it.
    Elsewhere,
}

pub(super) fn no_answer(limit: Duration) -> StoreError {
    StoreError::unanswered(format!("no answer within {} ms", limit.as_millis()))
}

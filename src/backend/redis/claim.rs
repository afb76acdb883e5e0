//! Acquiring a lock from a server: one request, and the steps that may follow its reply.

use std::time::Duration;

use redis::Value;

use super::connection::RequestOptions;
use super::reply;
use super::rights::{missing, trials};
use super::script::{Operation, ScriptRequest};
use super::store::RedisStore;
use crate::backend::{Again, Attempt, Backend, Busy, Intent, StoreError};
use crate::lock::{Claim, Mode};
use crate::random::jitter;

/// Additional arguments for a node of a Redlock; the default is for a server that is not one.
#[derive(Default)]
pub(super) struct AsNode<'a> {
    /// The number in the queue that the nodes have agreed on, or the fencing token of the hold to restore; empty if
    /// there is none.
    pub(super) ticket: String,
    /// The id of the node if it has none yet; empty for a server that is not a node of a Redlock.
    pub(super) id: &'a str,
    /// The node has lost the hold, which is to be restored.
    pub(super) mends: bool,
}

impl RedisStore {
    /// Takes the lock, or returns its holders. One round trip; two for a waiter that finds itself at the head of the
    /// queue, which enables client tracking to be notified of every change of the lock. Other waiters must not, or each
    /// change would be sent to all of them.
    pub(super) async fn acquire(&mut self, claim: &Claim, intent: Intent) -> Result<Attempt, StoreError> {
        let mut tracking = intent == Intent::TakeNow || self.is_tracking();
        loop {
            let reply = self.request_lock(claim, intent, tracking, AsNode::default()).await?;
            let attempt = reply::attempt(&reply, self.location.recipe)?;
            if let Attempt::Granted(_) = attempt {
                self.await_replicas(claim).await?;
            }
            match attempt {
                Attempt::Busy(busy) if busy.position == Some(1) && !tracking && !self.pubsub_denied => {
                    tracking = true
                }
                Attempt::Busy(busy) => {
                    return Ok(Attempt::Busy(self.with_next_request(busy, claim)));
                }
                Attempt::Granted(_) if !self.route.confirm_server(&self.location).await => {
                    // Granted by a server that may not be the master any more: find the master.
                    if let Some(connection) = self.connection.take() {
                        let _ = self.take_back(connection, claim).await;
                    }
                    self.connect().await?;
                }
                Attempt::Granted(grant) => {
                    self.untracked = !tracking && !self.pubsub_denied;
                    self.held_on = self.route.server().cloned();
                    return Ok(Attempt::Granted(grant));
                }
                refused => return Ok(refused),
            }
        }
    }

    /// Sends one request for the lock and returns its reply unchanged. Sends it again, as a client that cannot be
    /// notified, if the subscription turns out to be denied.
    pub(super) async fn request_lock(
        &mut self,
        claim: &Claim,
        intent: Intent,
        tracking: bool,
        as_node: AsNode<'_>,
    ) -> Result<Vec<Value>, StoreError> {
        let keys = self.keys(&claim.name);
        let identity = serde_json::to_string(&claim.identity)
            .map_err(|error| StoreError::Config(format!("cannot describe the holder: {error}")))?;
        let (mode, slots) = match claim.mode {
            Mode::Exclusive => ("x", 1),
            Mode::Shared => ("s", 1),
            Mode::Slots(slots) => ("c", slots),
        };
        let waits = intent == Intent::Enqueue;
        let can_be_notified = waits && !self.pubsub_denied;
        let claim_kind = match (as_node.mends, waits) {
            (true, _) => "mend",
            (false, true) => "wait",
            (false, false) => "now",
        };
        let mut arguments = vec![
            claim.ttl.max(claim.min_hold).as_millis().to_string(),
            identity,
            self.counter_ttl().as_millis().to_string(),
            mode.to_owned(),
            slots.to_string(),
            claim_kind.to_owned(),
            match (can_be_notified, self.location.has_several_servers()) {
                (false, _) => "0",
                (true, false) => "1",
                (true, true) => "2",
            }
            .to_owned(),
            // How long a queue entry lives unless its waiter refreshes it, which it does every ttl.
            (claim.ttl + claim.ttl / 2).as_millis().to_string(),
            u8::from(claim.requires_outer_hold).to_string(),
            match (self.examined, self.location.security.credentials.has_password()) {
                (true, _) => "0".to_owned(),
                (false, false) => "1".to_owned(),
                (false, true) => trials(),
            },
            as_node.ticket.clone(),
            as_node.id.to_owned(),
        ];
        arguments.extend(claim.outer.iter().map(|token| token.reveal().to_owned()));
        let token = claim.token.reveal();
        let request = ScriptRequest::new(Operation::Acquire, &keys, token, arguments);
        let channel = format!("{}{token}", keys.channels);
        let wait = self.wait_for_replicas(claim);
        let options = RequestOptions {
            tracking,
            channel: can_be_notified.then_some(&channel),
            trailing: wait.as_ref(),
        };
        let reply = self.request(&request, options).await;
        if let Some(connection) = self.misrouted.take() {
            // It may have been granted to the wrong user or in the wrong database. If the release is rejected, so was
            // the claim.
            let _ = self.take_back(connection, claim).await;
        }
        let reply = reply?;
        if let Some(error) = missing(&reply, &self.location) {
            return Err(error);
        }
        let of_lock = reply::of_lock(&reply);
        self.eviction = self.eviction.take().or(reply::eviction(of_lock));
        if can_be_notified && self.pubsub_denied && reply::number(of_lock.first()) == Some(0) {
            // Otherwise the client that frees the lock would take the missing subscriber for a dead waiter.
            return Box::pin(self.request_lock(claim, intent, tracking, as_node)).await;
        }
        Ok(reply)
    }

    /// Returns when to send the next request, depending on whether this connection can be notified.
    fn with_next_request(&self, busy: Busy, claim: &Claim) -> Busy {
        let Again::Within(within) = busy.again else {
            let slow_interval = busy.position.and_then(slow_poll);
            return Busy { again: slow_interval.map_or(Again::Poll, Again::Within), ..busy };
        };
        let first = busy.position == Some(1);
        let foreign = busy.holders.iter().any(|holder| holder.identity.is_none());
        // Only client tracking reports what a foreign client does.
        let is_notified = !foreign || !first || self.is_tracking();
        let again = match (busy.position, is_notified && !self.pubsub_denied) {
            (Some(_), false) => Again::Poll,
            _ => Again::Within(within.min(claim.ttl)),
        };
        Busy { again, ..busy }
    }
}

/// The pause of a waiter that cannot be notified and is not one of the first two in the queue: the longer the further back
/// it stands. If it is called it has 2 s to claim (`slow_claim_ms` in lock.lua).
fn slow_poll(position: u32) -> Option<Duration> {
    const SHORTEST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_millis(1500);
    let most = (SHORTEST * 2 * position.checked_sub(1)?).min(LONGEST);
    (position > 2).then(|| most / 3 + jitter(most * 2 / 3))
}

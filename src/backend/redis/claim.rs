//! Acquiring a lock from a server: one request, the steps that may follow its reply, and the release.

use std::time::Duration;

use redis::Cmd;
use serde_json::json;

use super::connection::{Connection, RequestOptions, server_error};
use super::errors::refusal;
use super::keys::Keys;
use super::redirect::Asking;
use super::reply::{LockReply, Outcome, nonsense, number};
use super::result;
use super::script::{Acquire, AsNode, Operation, ScriptRequest, ScriptSuccess, json, millis};
use super::store::RedisStore;
use crate::backend::{Again, Attempt, Backend, Busy, Ending, Intent, StoreError};
use crate::clock::wall_micros;
use crate::lock::{Claim, Identity, Mode, Token};
use crate::random::jitter;
use crate::secret;

/// The maximum wait for the replicas.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// And at most this fraction of the lease: the rest is needed to stop the command in good order.
const LEASE_FRACTION: u32 = 4;

fn wait_limit(claim: &Claim) -> Duration {
    MAX_WAIT.min(claim.ttl / LEASE_FRACTION)
}

impl RedisStore {
    /// Takes the lock, or returns its holders. One round trip; two for a waiter that finds itself at the head of the
    /// queue, which enables client tracking to be notified of every change of the lock. Other waiters must not, or each
    /// change would be sent to all of them.
    pub(super) async fn acquire(&mut self, claim: &Claim, intent: Intent) -> Result<Attempt, StoreError> {
        let mut tracking = intent == Intent::TakeNow || self.is_tracking();
        loop {
            self.count_attempt();
            // On the heap, for the sake of a small stack, see `request`.
            let request = Box::pin(self.request_lock(claim, intent, tracking, AsNode::default()));
            let reply = request.await?;
            let attempt = result::attempt(reply.outcome, claim.once_per, &self.location)?;
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

    /// Begins another attempt. What an earlier one has left on its way, such as its release, does not concern this one.
    pub(super) fn count_attempt(&mut self) {
        self.attempt = Some(self.attempt.map_or_else(wall_micros, |last| last + 1));
    }

    /// Sends one request for the lock, by this attempt, and returns its reply unchanged. Sends it again, as a client that cannot be
    /// notified, if the subscription turns out to be denied.
    pub(super) async fn request_lock(
        &mut self,
        claim: &Claim,
        intent: Intent,
        tracking: bool,
        as_node: AsNode,
    ) -> Result<LockReply, StoreError> {
        let keys = self.keys(&claim.name);
        let (mode, slots) = match claim.mode {
            Mode::Exclusive => ("x", 1),
            Mode::Shared => ("s", 1),
            Mode::Slots(slots) => ("c", slots),
        };
        let waits = intent == Intent::Enqueue;
        let can_be_notified = waits && !self.pubsub_denied;
        let acquire = Acquire {
            lease: millis(claim.ttl.max(claim.min_hold)),
            ttl: millis(claim.ttl),
            attempt: self.attempt.unwrap_or_default(),
            identity: json(&claim.identity),
            counter_life: millis(self.counter_ttl()),
            mode,
            slots,
            waits,
            delivery: match (can_be_notified, self.location.has_several_servers()) {
                (false, _) => "0",
                (true, false) => "1",
                (true, true) => "2",
            },
            // The waiter refreshes it every ttl.
            entry_ttl: millis(claim.ttl + claim.ttl / 2),
            outer: claim.outer.iter().map(Token::reveal).collect(),
            must_nest: claim.requires_outer_hold,
            once_per: claim.once_per.map(millis),
            supersedes: claim.identity.supersedes,
            eviction: !self.examined,
            tries_rights: !self.examined && self.location.security.credentials.has_password(),
            as_node: as_node.clone(),
        };
        let token = claim.token.reveal();
        let request = ScriptRequest::new(Operation::Acquire(acquire), &keys, token);
        let channel = keys.channel(token);
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
        let eviction = || Some(secret::scrubbed(reply.eviction.as_ref()?).into_owned());
        self.eviction = self.eviction.take().or_else(eviction);
        if can_be_notified && self.pubsub_denied && matches!(reply.outcome, Outcome::Busy(_)) {
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

    /// Returns the command that waits for the replicas after a claim, if any are required. It is sent with the claim, so it
    /// costs no round trip. It does not give consensus (Redis, "WAIT"): a replica that has not confirmed can still be
    /// promoted, and a master that is cut off with its replicas can confirm what the others never receive.
    fn wait_for_replicas(&self, claim: &Claim) -> Option<Cmd> {
        let count = self.location.wait_replicas;
        let wait = redis::cmd("WAIT").arg(count).arg(wait_limit(claim).as_millis() as u64).clone();
        (count > 0).then_some(wait)
    }

    /// Waits until the required number of replicas have confirmed the grant, or releases the lock.
    ///
    /// # Errors
    /// Too few replicas confirmed, or the server did not report how many. Nothing is left of the claim if the server
    /// replies.
    async fn await_replicas(&mut self, claim: &Claim) -> Result<(), StoreError> {
        let Some(wait) = self.wait_for_replicas(claim) else { return Ok(()) };
        let mut connection = self.take_connection()?;
        let reply = connection.trailing_reply(&wait).await?;
        let required = self.location.wait_replicas;
        let error = match (number(Some(&reply)), server_error(&reply)) {
            (Some(count), _) if count >= i64::from(required) => {
                self.connection = Some(connection);
                return Ok(());
            }
            (Some(count), _) => StoreError::unreachable(format!(
                "only {count} of {required} replicas have confirmed the lock within {} ms (wait_replicas)",
                wait_limit(claim).as_millis()
            )),
            (None, Some(error)) => refusal(error, false),
            (None, None) => nonsense(),
        };
        match self.take_back(connection, claim).await {
            Ok(()) => Err(error),
            // The lock may still be held, which the caller has to know.
            Err(_) => Err(StoreError::unanswered(error.to_string())),
        }
    }

    /// Releases a lock over the connection that it was granted on, even if another server has become the one to use.
    async fn take_back(&self, mut connection: Connection, claim: &Claim) -> Result<(), StoreError> {
        let keys = self.keys(&claim.name);
        connection.asking = Asking::No;
        let release = release(&keys, claim, self.attempt, Duration::ZERO, Ending::default());
        connection.run_script(&release, RequestOptions::default()).await.map(drop)
    }
}

/// The pause of a waiter that cannot be notified and is not one of the first two in the queue: the longer the further back
/// it stands. If it is called it has 2 s to claim (`slow_claim_ms` in script/lock.lua).
fn slow_poll(position: u32) -> Option<Duration> {
    const SHORTEST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_millis(1500);
    let most = (SHORTEST * 2 * position.checked_sub(1)?).min(LONGEST);
    (position > 2).then(|| most / 3 + jitter(most * 2 / 3))
}

/// Returns the request that releases a lock, unless a later attempt than this has been granted it, and stores its ending; the
/// lock is kept without its owner for the `rest`.
pub(super) fn release<'a>(
    keys: &'a Keys,
    claim: &'a Claim,
    attempt: Option<u64>,
    rest: Duration,
    ending: Ending<'_>,
) -> ScriptRequest<'a> {
    let success = ending.success.map(|held| {
        let Identity { host, pid, user, .. } = &claim.identity;
        ScriptSuccess { by: json(&json!({"host": host, "pid": pid, "user": user})), held: millis(held) }
    });
    let (record, history) = (ending.record.map(json), keys.history_of(ending.record));
    let (rest, is_repeated) = (millis(rest), ending.is_repeated);
    let release = Operation::Release { rest, record, history, attempt, is_repeated, success };
    ScriptRequest::new(release, keys, claim.token.reveal())
}

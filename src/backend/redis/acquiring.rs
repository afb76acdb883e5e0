//! Asking a server for a lock: one question, and what may have to follow its answer.

use std::time::Duration;

use redis::Value;

use super::connection::RequestOptions;
use super::doctor::acl_probe;
use super::redlock::share_of;
use super::script::{Operation, Question};
use super::{RedisStore, answers};
use crate::backend::{Again, Attempt, Backend, Busy, Intent, StoreError};
use crate::lock::{Claim, Mode};

/// What a node of a Redlock is asked besides.
pub(super) struct AsNode<'a> {
    /// The number in the line that the nodes have agreed on, or of the hold that is mended; empty if there is none.
    pub(super) ticket: String,
    /// Who it is from now on if it does not know that yet; empty for a server that is no node.
    pub(super) id: &'a str,
    /// It has forgotten a hold that is ours.
    pub(super) mends: bool,
}

impl RedisStore {
    /// Takes the lock, or says who has it. One flight; two for one that finds itself at the head of the line, who from then on hears of everybody that
    /// touches the lock. The others must not, or each change would be told to all of them.
    pub(super) async fn acquire(&mut self, claim: &Claim, intent: Intent) -> Result<Attempt, StoreError> {
        let mut tracking = intent == Intent::TakeNow || self.is_tracking();
        loop {
            match self.acquire_once(claim, intent, tracking).await? {
                Attempt::Busy(busy) if busy.position == Some(1) && !tracking && !self.pubsub_denied => {
                    tracking = true
                }
                Attempt::Busy(busy) => {
                    return Ok(Attempt::Busy(self.ask_again(busy, claim)));
                }
                Attempt::Granted(_) if !self.route.is_confirmed(&self.location).await => {
                    // By a master that may be none any more. Which one is it now?
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

    /// One question for the lock.
    async fn acquire_once(
        &mut self,
        claim: &Claim,
        intent: Intent,
        tracking: bool,
    ) -> Result<Attempt, StoreError> {
        let as_node = AsNode { ticket: String::new(), id: "", mends: false };
        let answer = match self.ask_for(claim, intent, tracking, as_node).await {
            Err(error) if self.is_moving(&error) => {
                return self.find_held(claim).await?.map(Attempt::Busy).ok_or(error);
            }
            answer => answers::attempt(&answer?, self.location.recipe())?,
        };
        if let Attempt::Granted(_) = answer {
            self.await_replicas(claim).await?;
        }
        Ok(answer)
    }

    /// One question for the lock, and the answer as it is; asked again as one who does not hear if that is found out.
    pub(super) async fn ask_for(
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
        let waits = intent == Intent::WaitInLine;
        let hears = waits && !self.pubsub_denied;
        let manner = match (as_node.mends, waits) {
            (true, _) => "mend",
            (false, true) => "wait",
            (false, false) => "now",
        };
        let mut arguments = vec![
            claim.ttl.max(claim.min_hold).as_millis().to_string(),
            identity,
            self.counter_life().as_millis().to_string(),
            mode.to_owned(),
            slots.to_string(),
            manner.to_owned(),
            match (hears, self.location.has_several_servers()) {
                (false, _) => "0",
                (true, false) => "1",
                (true, true) => "2",
            }
            .to_owned(),
            place_life(claim).as_millis().to_string(),
            u8::from(claim.requires_outer_hold).to_string(),
            match (self.examined, self.location.has_identity()) {
                (true, _) => "0".to_owned(),
                (false, false) => "1".to_owned(),
                (false, true) => acl_probe::trials(),
            },
            as_node.ticket.clone(),
            as_node.id.to_owned(),
        ];
        arguments.extend(claim.outer.iter().map(|token| token.reveal().to_owned()));
        let token = claim.token.reveal();
        let question =
            Question { operation: Operation::Acquire, keys: &keys, token, arguments, history: &keys.history };
        let channel = format!("{}{}", keys.channels, claim.token.reveal());
        let wait = self.wait_for_replicas(claim);
        let wishes = RequestOptions { tracking, channel: hears.then_some(&channel), behind: wait.as_ref() };
        let answer = self.ask(&question, wishes).await;
        self.undo(claim).await;
        let answer = answer?;
        if let Some(missing) = acl_probe::missing(&answer, &keys, &self.location) {
            return Err(missing);
        }
        let of_lock = answers::of_lock(&answer);
        self.eviction = self.eviction.take().or(answers::eviction(of_lock));
        if hears && self.pubsub_denied && answers::number(of_lock.first()) == Some(0) {
            // Whoever frees the lock must not think that nobody is there because nobody hears.
            return Box::pin(self.ask_for(claim, intent, tracking, as_node)).await;
        }
        Ok(answer)
    }

    /// When to ask again, as far as this connection can hear.
    fn ask_again(&self, busy: Busy, claim: &Claim) -> Busy {
        let Again::Within(within) = busy.again else {
            let slow = busy.position.and_then(slow_poll);
            return Busy { again: slow.map_or(Again::Poll, Again::Within), ..busy };
        };
        let first = busy.position == Some(1);
        let foreign = busy.holders.iter().any(|holder| holder.identity.is_none());
        // Only the server itself can tell what a foreign client does.
        let told = !foreign || !first || self.is_tracking();
        let again = match (busy.position, told && !self.pubsub_denied) {
            (Some(_), false) => Again::Poll,
            _ => Again::Within(within.min(claim.ttl)),
        };
        Busy { again, ..busy }
    }
}

/// The pause of a waiter that cannot be notified and is not one of the first two in the queue: the longer the further back
/// it stands. If it is called it has 2 s to claim (`slow_claim` in lock.lua).
fn slow_poll(position: u32) -> Option<Duration> {
    const LEAST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_millis(1500);
    let most = (LEAST * 2 * position.checked_sub(1)?).min(LONGEST);
    (position > 2).then(|| most / 3 + share_of(most * 2 / 3))
}

/// How long a place in the line lives without word from its owner, who asks every ttl.
fn place_life(claim: &Claim) -> Duration {
    claim.ttl + claim.ttl / 2
}

//! The attempts to acquire one lock: which reply ends them, and how long the pause is after each of the others.

use std::time::Duration;

use super::patience::Limits;
use super::validity::{Terms, Validity};
use crate::backend::{Again, Busy, CLAIM_WITHIN, Intent, Refusal, StoreError};
use crate::clock::Moment;
use crate::lock::{Claim, NotDue, Revocation};
use crate::random::jitter;

/// Why a lock was not granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotGranted {
    /// Another client holds the lock and the wait limit has been reached, or waiting is hopeless.
    Contended(Busy),
    /// The lock cannot be granted in the current state.
    Refused(Refusal),
    /// The lock is free, but the claim is not due.
    NotDue(NotDue),
    /// The lock was held while waiting for another one, and was revoked.
    Revoked(Revocation),
    /// The store failed, or gave no usable reply.
    Failed(StoreError),
    /// The acquisition was cancelled. Nothing of the claim is left in the store, unless the store did not reply.
    GivenUp,
}

/// What to do about a busy lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Wait within the limits.
    Wait,
    /// Stop waiting: the lock will not become free meanwhile.
    Leave,
}

/// Is told how an acquisition goes on, and decides whether it does.
pub trait Observer {
    /// An attempt has found the lock busy.
    fn busy(&self, _: &Claim, _: &Busy) -> Advice {
        Advice::Wait
    }

    /// The claim was refused, and is tried again.
    fn refused(&self, _: &Claim, _: &Refusal) {}

    /// The store failed, and is tried again: until this moment, if there is one.
    fn failed(&self, _: &Claim, _: &StoreError, _until: Option<Moment>) {}
}

/// The base of the pause between two attempts on a store that cannot notify; the average is twice this.
const POLL: Duration = Duration::from_millis(100);
/// The first retry after a failure comes after a random part of this, the following ones after at least half of it: a
/// thousand clients that lost the store together do not return together, and none retries more than twice a second.
const RECONNECT: Duration = Duration::from_secs(1);
/// The average pause after a transient error, which doubles with each failure in a row ...
const TRANSIENT_PAUSE: Duration = Duration::from_millis(50);
/// ... this often.
const TRANSIENT_DOUBLED: u32 = 3;
/// The largest random part of the pause after repeated failures.
const LONGEST_RECONNECT_JITTER: Duration = Duration::from_secs(4);
/// The average pause before a lock is tried again that is in use with another number of slots: such a claim has no place
/// in the queue.
const SLOTS_PAUSE: Duration = Duration::from_millis(500);
/// With `--no-wait`, a lock whose turn is another waiter's is tried again after this, then half as often each time ...
const FIRST_TURN_PAUSE: Duration = Duration::from_millis(5);
/// ... until that waiter must have claimed the lock or missed its turn. Other waiters may have been notified meanwhile.
const LONGEST_TURN: Duration = CLAIM_WITHIN.saturating_mul(2);
/// Where waiters have longer to claim it, it is tried again this often at least.
const TURN_LOOKS: u32 = 8;

/// The attempts of one acquisition so far.
pub(super) struct Attempts<'a> {
    /// What is sent.
    pub(super) claim: Claim,
    limits: &'a Limits,
    terms: &'a Terms,
    observer: &'a dyn Observer,
    begin: Moment,
    is_first: bool,
    /// The failures in a row.
    failures: u32,
    /// With `--no-wait`: the last pause while the turn is another waiter's, and when that ends.
    turn_pause: Duration,
    turn_ends: Option<Moment>,
}

/// When the next attempt is due.
pub(super) struct Next {
    /// The pause before it.
    pub(super) after: Duration,
    /// The pause ends then, even if it has just begun.
    pub(super) by: Option<Moment>,
}

impl<'a> Attempts<'a> {
    /// None was made yet. The time counts from now.
    pub(super) fn new(
        claim: &Claim,
        limits: &'a Limits,
        terms: &'a Terms,
        observer: &'a dyn Observer,
    ) -> Attempts<'a> {
        Attempts {
            claim: claim.clone(),
            limits,
            terms,
            observer,
            begin: Moment::now(),
            is_first: true,
            failures: 0,
            turn_pause: FIRST_TURN_PAUSE,
            turn_ends: None,
        }
    }

    /// Returns how long the attempt may take that begins now.
    pub(super) fn budget(&self) -> Duration {
        let since = (!self.is_first).then_some(self.begin);
        self.limits.attempt(since, self.terms.connect_timeout)
    }

    /// Notes that an attempt was made and is to be followed by another one. Returns whether the store can notify meanwhile.
    pub(super) fn note_made(&mut self) -> bool {
        self.is_first = false;
        self.failures == 0
    }

    /// The grant came too late to stop the command in good order before the lease ends, and is given back.
    ///
    /// # Errors
    /// The retry limit has been reached.
    pub(super) fn late(&mut self, sent: Moment, validity: Validity) -> Result<Next, NotGranted> {
        if self.limits.is_retry_expired() {
            return Err(NotGranted::Failed(too_late(sent, validity)));
        }
        Ok(Next { after: jitter(RECONNECT), by: self.limits.wait_until })
    }

    /// The claim was refused.
    ///
    /// # Errors
    /// The refusal is final, or the wait limit has been reached.
    pub(super) fn refused(&mut self, refusal: Refusal) -> Result<Next, NotGranted> {
        let may_change = matches!(refusal, Refusal::Slots(_)) && !self.claim.requires_outer_hold;
        if !may_change || self.limits.intent == Intent::TakeNow || is_past(self.limits.wait_until) {
            return Err(NotGranted::Refused(refusal));
        }
        self.failures = 0;
        self.observer.refused(&self.claim, &refusal);
        Ok(Next { after: SLOTS_PAUSE / 2 + jitter(SLOTS_PAUSE), by: self.limits.wait_until })
    }

    /// Another client has the lock, or its turn.
    ///
    /// # Errors
    /// The wait limit has been reached, or waiting is hopeless.
    pub(super) fn busy(&mut self, busy: Busy) -> Result<Next, NotGranted> {
        self.failures = 0;
        if self.claim.identity.supersedes {
            self.claim.identity.first_ticket = self.claim.identity.first_ticket.or(busy.ticket);
        }
        let advice = self.observer.busy(&self.claim, &busy);
        let turn = match busy.again {
            Again::Within(left) if busy.promised => left,
            _ => Duration::ZERO,
        };
        let longest = LONGEST_TURN.max(turn + CLAIM_WITHIN);
        let not_our_turn = busy.promised
            && self.limits.intent == Intent::TakeNow
            && Moment::now() < *self.turn_ends.get_or_insert_with(|| Moment::now() + longest);
        if advice == Advice::Leave || is_past(self.limits.wait_until) && !not_our_turn {
            return Err(NotGranted::Contended(busy));
        }
        if not_our_turn {
            // The store notifies only the waiters in its queue.
            self.turn_pause = (self.turn_pause * 2).min(POLL.max(turn / TURN_LOOKS));
        }
        let after = match busy.again {
            Again::Within(within) if not_our_turn => within.min(self.turn_pause),
            Again::Within(within) => within,
            Again::Poll => POLL + jitter(POLL * 2),
        };
        Ok(Next { after, by: self.limits.wait_until.filter(|_| !not_our_turn) })
    }

    /// The store failed, in an attempt that began then.
    ///
    /// # Errors
    /// The error is permanent, or the retry limit has been reached.
    pub(super) fn failed(&mut self, error: StoreError, began: Moment) -> Result<Next, NotGranted> {
        let StoreError::Unavailable { maybe_applied, .. } = error else {
            return Err(NotGranted::Failed(error));
        };
        self.failures += 1;
        let connect_timeout = self.terms.connect_timeout;
        if error.is_transient() && Moment::now() < self.begin + connect_timeout {
            return Ok(Next { after: transient_pause(self.failures), by: None });
        }
        // A connection that failed quickly leaves time to ask whether the lock was granted.
        if self.is_first && maybe_applied && Moment::now() - began < connect_timeout / 2 {
            return Ok(Next { after: Duration::ZERO, by: None });
        }
        if self.limits.is_retry_expired() {
            return Err(NotGranted::Failed(error));
        }
        self.observer.failed(&self.claim, &error, self.limits.retry_until);
        Ok(Next { after: reconnect_pause(self.failures), by: self.limits.retry_until })
    }
}

fn is_past(until: Option<Moment>) -> bool {
    until.is_some_and(|until| Moment::now() >= until)
}

/// Returns the pause after this many failures in a row.
pub(super) fn reconnect_pause(failures: u32) -> Duration {
    match failures {
        0 | 1 => jitter(RECONNECT),
        more => RECONNECT / 2 + jitter((RECONNECT / 2 * more).min(LONGEST_RECONNECT_JITTER)),
    }
}

/// Returns the pause after this many failures in a row, the last of which was transient. A deadlock is over at once, and a slot
/// has soon migrated; a server that is overloaded must not be asked more often because of that.
fn transient_pause(failures: u32) -> Duration {
    let pause = TRANSIENT_PAUSE * (1 << failures.saturating_sub(1).min(TRANSIENT_DOUBLED));
    pause / 2 + jitter(pause)
}

fn too_late(sent: Moment, validity: Validity) -> StoreError {
    StoreError::unreachable(format!(
        "the grant took {} ms of a lease of {} ms: too late to be used safely, give a longer --ttl",
        (Moment::now() - sent).as_millis(),
        (validity.ends - sent).as_millis()
    ))
}

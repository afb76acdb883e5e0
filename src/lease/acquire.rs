//! Acquires one lock, retrying as long as the wait and retry limits allow.

use std::cell::Cell;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::SHORTEST_INTERVAL;
pub use super::patience::{Limits, Patience, Wait};
use super::validity::{Terms, Validity};
use crate::backend::{
    Again, Attempt, Backend, Busy, CLAIM_WITHIN, Change, Ending, Intent, Refusal, StoreError,
};
use crate::clock::{Alarm, Moment};
use crate::lock::{Claim, Grant, NotDue, Revocation};
use crate::random::jitter;

/// How an acquisition ended. With the store's reply comes the validity of the lease, if there is one.
pub type Granted = Result<(Grant, Option<Validity>), NotGranted>;

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

/// What an acquisition shares with its caller.
pub struct WaitContext<'a> {
    /// Cancels the acquisition.
    pub give_up: &'a CancellationToken,
    /// Requests an immediate check of the locks that are held already.
    pub check_held: &'a watch::Sender<()>,
    /// A timer for the pauses.
    pub alarm: &'a Alarm,
    /// Called with the holders after each attempt that finds the lock busy.
    pub on_busy: &'a mut dyn FnMut(&Claim, &Busy) -> Advice,
    /// Called with each refusal that is followed by another attempt.
    pub on_refused: &'a mut dyn FnMut(&Claim, &Refusal),
    /// Called with each failure of the store that is followed by another attempt, and with the end of these attempts,
    /// if they have one.
    pub on_failure: &'a mut dyn FnMut(&Claim, &StoreError, Option<Moment>),
}

/// How long to wait for the reply to a request in flight after a cancellation.
const CANCEL_GRACE: Duration = Duration::from_millis(700);
/// How long the removal of a claim may take if it is unknown whether the store has it.
const CLEAN_UP: Duration = Duration::from_millis(400);
/// Likewise, if the store has it: what is left behind would exclude everybody until its lease ends.
const GIVE_BACK: Duration = Duration::from_secs(2);
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

/// Tries to acquire the lock until it is granted, a limit is reached, or the acquisition is cancelled.
///
/// The lease counts from the moment the successful request was sent. A grant that arrives too late to stop the command
/// in good order before the lease ends is given back. A request whose reply was lost is repeated with the same token,
/// or its claim is removed. An acquisition that fails leaves the queue.
///
/// Dropping the future may leave a claim or a queue position behind, which expires with its lease; a cancellation
/// removes both.
pub async fn acquire(
    backend: &mut dyn Backend,
    claim: &Claim,
    limits: &Limits,
    terms: &Terms,
    context: &mut WaitContext<'_>,
) -> Granted {
    let mut left = Left::Nothing;
    let granted = acquire_with_retries(backend, claim, limits, terms, context, &mut left).await;
    // A store that hangs is not asked again: dlock is about to end.
    if left == Left::Perhaps {
        clean_up(backend, claim).await;
    }
    granted
}

/// What the attempts for a lock that was not granted have left in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    Nothing,
    /// A queue position, or perhaps the lock.
    Perhaps,
    /// The same, on a store that did not reply to the last request before the acquisition was cancelled.
    Unanswered,
}

impl Left {
    fn add(&mut self, maybe_applied: bool) {
        if maybe_applied {
            *self = Left::Perhaps;
        }
    }
}

/// Does the same, and leaves it to the caller to remove what is `left` of a claim that was not granted.
pub(super) async fn acquire_with_retries(
    backend: &mut dyn Backend,
    claim: &Claim,
    limits: &Limits,
    terms: &Terms,
    context: &mut WaitContext<'_>,
    left: &mut Left,
) -> Granted {
    let mut claim = claim.clone();
    let begin = Moment::now();
    let mut is_first = true;
    let mut failures = 0;
    let mut turn_pause = FIRST_TURN_PAUSE;
    let mut next_turn_at = begin;
    let mut turn_ends = None;
    loop {
        let budget = limits.attempt((!is_first).then_some(begin), terms.connect_timeout);
        let attempt_began = Moment::now();
        let mut end = limits.wait_until;
        let again = match attempt(backend, &claim, limits.intent, budget, context.give_up).await {
            Err(NoReply::GivenUp { maybe_applied }) => {
                left.add(maybe_applied);
                return Err(NotGranted::GivenUp);
            }
            Err(NoReply::Hangs) => {
                *left = Left::Unanswered;
                return Err(NotGranted::GivenUp);
            }
            Ok((sent, Attempt::Granted(grant))) => {
                let validity = grant.lease.map(|lease| terms.validity(sent, lease));
                *left = Left::Nothing;
                let Some(late) = validity.filter(|validity| Moment::now() >= validity.start_before) else {
                    return Ok((grant, validity));
                };
                clean_up(backend, &claim).await;
                if limits.is_retry_expired() {
                    return Err(NotGranted::Failed(too_late(sent, late)));
                }
                jitter(RECONNECT)
            }
            Ok((_, Attempt::Refused(refusal))) => {
                *left = Left::Nothing;
                let may_change = matches!(refusal, Refusal::Slots(_)) && !claim.requires_outer_hold;
                if !may_change || limits.intent == Intent::TakeNow || is_past(limits.wait_until) {
                    return Err(NotGranted::Refused(refusal));
                }
                failures = 0;
                (context.on_refused)(&claim, &refusal);
                SLOTS_PAUSE / 2 + jitter(SLOTS_PAUSE)
            }
            Ok((_, Attempt::NotDue(not_due))) => {
                *left = Left::Nothing;
                return Err(NotGranted::NotDue(not_due));
            }
            Ok((_, Attempt::Busy(busy))) => {
                *left = match limits.intent {
                    Intent::Enqueue => Left::Perhaps,
                    Intent::TakeNow => Left::Nothing,
                };
                failures = 0;
                if claim.identity.supersedes {
                    claim.identity.first_ticket = claim.identity.first_ticket.or(busy.ticket);
                }
                let advice = (context.on_busy)(&claim, &busy);
                let turn = match busy.again {
                    Again::Within(left) if busy.promised => left,
                    _ => Duration::ZERO,
                };
                let longest = LONGEST_TURN.max(turn + CLAIM_WITHIN);
                let not_our_turn = busy.promised
                    && limits.intent == Intent::TakeNow
                    && Moment::now() < *turn_ends.get_or_insert_with(|| Moment::now() + longest);
                if advice == Advice::Leave || is_past(limits.wait_until) && !not_our_turn {
                    return Err(NotGranted::Contended(busy));
                }
                if not_our_turn {
                    // The store notifies only the waiters in its queue.
                    end = None;
                    turn_pause = (turn_pause * 2).min(POLL.max(turn / TURN_LOOKS));
                }
                match busy.again {
                    Again::Within(within) if not_our_turn => within.min(turn_pause),
                    Again::Within(within) => within,
                    Again::Poll => POLL + jitter(POLL * 2),
                }
            }
            Err(NoReply::Failed(error)) => {
                let StoreError::Unavailable { maybe_applied, .. } = error else {
                    return Err(NotGranted::Failed(error));
                };
                left.add(maybe_applied);
                // A connection that failed quickly leaves time to ask whether the lock was granted.
                let ask_again =
                    is_first && maybe_applied && Moment::now() - attempt_began < terms.connect_timeout / 2;
                let transient = error.is_transient() && Moment::now() < begin + terms.connect_timeout;
                if !ask_again && !transient && limits.is_retry_expired() {
                    return Err(NotGranted::Failed(error));
                }
                failures += 1;
                if !ask_again && !transient {
                    (context.on_failure)(&claim, &error, limits.retry_until);
                }
                end = limits.retry_until.filter(|_| !transient);
                match (ask_again, transient) {
                    (_, true) => transient_pause(failures),
                    (true, false) => Duration::ZERO,
                    (false, false) => reconnect_pause(failures),
                }
            }
        };
        is_first = false;
        if !pause(backend, again, end, failures == 0, &mut next_turn_at, context).await {
            return Err(NotGranted::GivenUp);
        }
    }
}

/// Waits until the next attempt is due: after `again`, or sooner if the store notifies or `end` comes. Returns false
/// when the acquisition was cancelled.
async fn pause(
    backend: &mut dyn Backend,
    again: Duration,
    end: Option<Moment>,
    mut listening: bool,
    next_turn_at: &mut Moment,
    context: &mut WaitContext<'_>,
) -> bool {
    let begin = Moment::now();
    let mut until = begin + again;
    if let Some(end) = end {
        until = until.min(end.max(begin));
    }
    let latest = until;
    // Limits the rate of attempts if the notifications do not lead to a grant.
    let soonest = begin + SHORTEST_INTERVAL / 2 + jitter(SHORTEST_INTERVAL);
    loop {
        tokio::select! {
            biased;
            () = context.give_up.cancelled() => return false,
            () = context.alarm.until(until) => return true,
            change = backend.changed(), if listening => match change {
                Change::OurTurn if Moment::now() >= *next_turn_at => {
                    *next_turn_at = Moment::now() + SHORTEST_INTERVAL;
                    return true;
                }
                // Limits the rate of attempts if a server repeats this and grants nothing.
                Change::OurTurn => until = until.min(*next_turn_at),
                // Each such notification means that the queue moves.
                Change::Soon(within) => until = latest.min(Moment::now() + within),
                Change::Touched => until = until.min(soonest.max(Moment::now())),
                Change::Disconnected => {
                    listening = false;
                    until = until.min(Moment::now() + reconnect_pause(1));
                }
            },
        }
    }
}

fn is_past(until: Option<Moment>) -> bool {
    until.is_some_and(|until| Moment::now() >= until)
}

/// Returns the pause after this many failures in a row.
fn reconnect_pause(failures: u32) -> Duration {
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

/// Why an attempt has no reply.
enum NoReply {
    Failed(StoreError),
    /// The acquisition was cancelled.
    GivenUp {
        maybe_applied: bool,
    },
    /// Cancelled, and the store does not reply: what may be left there expires with its lease.
    Hangs,
}

/// Makes one attempt within its budget, and returns the reply with the time at which the request was sent. When
/// cancelled, it waits a little longer for a request in flight, so that a grant which arrives in that moment is given
/// back.
async fn attempt(
    backend: &mut dyn Backend,
    claim: &Claim,
    intent: Intent,
    budget: Duration,
    give_up: &CancellationToken,
) -> Result<(Moment, Attempt), NoReply> {
    let sent = Cell::new(None);
    let result = {
        let work = async {
            backend.connect().await?;
            let now = Moment::now();
            sent.set(Some(now));
            backend.try_acquire(claim, intent).await.map(|attempt| (now, attempt))
        };
        tokio::pin!(work);
        let limit = tokio::time::sleep(budget);
        tokio::pin!(limit);
        tokio::select! {
            result = &mut work => result.map_err(Some),
            () = &mut limit => Err(None),
            () = give_up.cancelled() => {
                let given_up = |maybe_applied| Err(NoReply::GivenUp { maybe_applied });
                if sent.get().is_none() {
                    return given_up(false);
                }
                return match timeout(CANCEL_GRACE, &mut work).await {
                    Ok(Ok((_, Attempt::Granted(_)))) => given_up(true),
                    Ok(Ok((_, Attempt::Busy(busy)))) => given_up(busy.position.is_some()),
                    Ok(Err(StoreError::Unavailable { maybe_applied, .. })) => given_up(maybe_applied),
                    Ok(_) => given_up(false),
                    Err(_) => Err(NoReply::Hangs),
                };
            }
        }
    };
    result.map_err(|error| match error {
        Some(error) => NoReply::Failed(error),
        None => NoReply::Failed(backend.explained(timed_out(sent.get(), budget))),
    })
}

/// Returns the error of a timeout: a request that was sent may have been carried out.
pub(super) fn timed_out(sent: Option<Moment>, budget: Duration) -> StoreError {
    match sent {
        Some(_) => StoreError::unanswered(format!("no answer within {} ms", budget.as_millis())),
        None => StoreError::unreachable(format!("no connection within {} ms", budget.as_millis())),
    }
}

/// Removes a claim, or its queue position, that may be in the store. Some nodes of a store of several can be reached
/// even if the connection as a whole fails.
pub(super) async fn clean_up(backend: &mut dyn Backend, claim: &Claim) {
    remove(backend, claim, CLEAN_UP).await;
}

/// Removes a claim that was granted. Returns whether the store has confirmed that.
pub(super) async fn give_back(backend: &mut dyn Backend, claim: &Claim) -> bool {
    remove(backend, claim, GIVE_BACK).await
}

async fn remove(backend: &mut dyn Backend, claim: &Claim, limit: Duration) -> bool {
    let removed = timeout(limit, async {
        let _ = timeout(limit * 3 / 4, backend.connect()).await;
        backend.release(claim, Duration::ZERO, Ending::default()).await
    });
    matches!(removed.await, Ok(Ok(_)))
}

//! Acquires one lock, retrying as long as the wait and retry limits allow.

use std::cell::Cell;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::SHORTEST_INTERVAL;
pub use super::attempts::{Advice, NotGranted, Observer};
use super::attempts::{Attempts, Next, reconnect_pause};
pub use super::patience::{Limits, Patience, Wait};
use super::validity::{Terms, Validity};
use crate::backend::{Attempt, Backend, Change, Ending, Intent, StoreError};
use crate::clock::{Alarm, Moment};
use crate::lock::{Claim, Grant};
use crate::random::jitter;

/// How an acquisition ended. With the store's reply comes the validity of the lease, if there is one.
pub type Granted = Result<(Grant, Option<Validity>), NotGranted>;

/// What an acquisition shares with its caller.
#[derive(Clone, Copy)]
pub struct WaitContext<'a> {
    /// Cancels the acquisition.
    pub give_up: &'a CancellationToken,
    /// Requests an immediate check of the locks that are held already.
    pub check_held: &'a watch::Sender<()>,
    /// A timer for the pauses.
    pub alarm: &'a Alarm,
    /// Is told how it goes on.
    pub observer: &'a dyn Observer,
}

/// How long to wait for the reply to a request in flight after a cancellation.
const CANCEL_GRACE: Duration = Duration::from_millis(700);
/// How long the removal of a claim may take if it is unknown whether the store has it.
const CLEAN_UP: Duration = Duration::from_millis(400);
/// Likewise, if the store has it: what is left behind would exclude everybody until its lease ends.
const GIVE_BACK: Duration = Duration::from_secs(2);

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
    context: &WaitContext<'_>,
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
    /// Returns what is left after a reply to another attempt.
    fn after(self, reply: &Result<(Moment, Attempt), NoReply>, intent: Intent) -> Left {
        match reply {
            Ok((_, Attempt::Busy(_))) if intent == Intent::Enqueue => Left::Perhaps,
            Ok(_) => Left::Nothing,
            Err(NoReply::Hangs) => Left::Unanswered,
            Err(
                NoReply::GivenUp { maybe_applied: true }
                | NoReply::Failed(StoreError::Unavailable { maybe_applied: true, .. }),
            ) => Left::Perhaps,
            Err(_) => self,
        }
    }
}

/// Does the same, and leaves it to the caller to remove what is `left` of a claim that was not granted.
pub(super) async fn acquire_with_retries(
    backend: &mut dyn Backend,
    claim: &Claim,
    limits: &Limits,
    terms: &Terms,
    context: &WaitContext<'_>,
    left: &mut Left,
) -> Granted {
    let mut attempts = Attempts::new(claim, limits, terms, context.observer);
    let mut next_turn_at = Moment::now();
    loop {
        let (budget, began) = (attempts.budget(), Moment::now());
        let reply = attempt(backend, &attempts.claim, limits.intent, budget, context.give_up).await;
        *left = left.after(&reply, limits.intent);
        let next = match reply {
            Ok((sent, Attempt::Granted(grant))) => {
                let validity = grant.lease.map(|lease| terms.validity(sent, lease));
                let Some(late) = validity.filter(|validity| Moment::now() >= validity.start_before) else {
                    return Ok((grant, validity));
                };
                if !clean_up(backend, &attempts.claim).await {
                    *left = Left::Perhaps;
                }
                attempts.late(sent, late)?
            }
            Ok((_, Attempt::Busy(busy))) => attempts.busy(busy)?,
            Ok((_, Attempt::Refused(refusal))) => attempts.refused(refusal)?,
            Ok((_, Attempt::NotDue(not_due))) => return Err(NotGranted::NotDue(not_due)),
            Err(NoReply::Failed(error)) => attempts.failed(error, began)?,
            Err(NoReply::GivenUp { .. } | NoReply::Hangs) => return Err(NotGranted::GivenUp),
        };
        let can_notify = attempts.note_made();
        if !pause(backend, &next, can_notify, &mut next_turn_at, context).await {
            return Err(NotGranted::GivenUp);
        }
    }
}

/// Waits until the next attempt is due, or the store notifies of something sooner. Returns false when the acquisition was
/// cancelled.
async fn pause(
    backend: &mut dyn Backend,
    next: &Next,
    mut can_notify: bool,
    next_turn_at: &mut Moment,
    context: &WaitContext<'_>,
) -> bool {
    let begin = Moment::now();
    let mut until = begin + next.after;
    if let Some(by) = next.by {
        until = until.min(by.max(begin));
    }
    let latest = until;
    // Limits the rate of attempts if the notifications do not lead to a grant.
    let soonest = begin + SHORTEST_INTERVAL / 2 + jitter(SHORTEST_INTERVAL);
    loop {
        tokio::select! {
            biased;
            () = context.give_up.cancelled() => return false,
            () = context.alarm.until(until) => return true,
            change = backend.changed(), if can_notify => match change {
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
                    can_notify = false;
                    until = until.min(Moment::now() + reconnect_pause(1));
                }
            },
        }
    }
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
pub fn timed_out(sent: Option<Moment>, budget: Duration) -> StoreError {
    match sent {
        Some(_) => StoreError::unanswered(format!("no answer within {} ms", budget.as_millis())),
        None => StoreError::unreachable(format!("no connection within {} ms", budget.as_millis())),
    }
}

/// Removes a claim, or its queue position, that may be in the store. Some nodes of a store of several can be reached
/// even if the connection as a whole fails. Returns whether the store has confirmed that.
pub(super) async fn clean_up(backend: &mut dyn Backend, claim: &Claim) -> bool {
    remove(backend, claim, CLEAN_UP).await
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

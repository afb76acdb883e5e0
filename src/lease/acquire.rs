//! Getting the lock: one attempt, or as many as the user's patience allows.

use std::cell::Cell;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::jitter;
use super::validity::{Terms, Validity};
use crate::backend::{Attempt, Backend, StoreError};
use crate::clock::{Alarm, Moment};
use crate::lock::{Claim, Grant, Holder};

/// How long to wait for a lock that somebody else holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// At most so long.
    For(Duration),
    /// Until it is ours.
    Forever,
}

/// The user's patience.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// With a holder.
    pub wait: Wait,
    /// With a store that cannot be reached, even without waiting for a holder.
    pub retry: Duration,
}

/// How the attempt to get the lock ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is ours.
    Granted {
        /// What the store gave.
        grant: Grant,
        /// Until when; `None` where there is no lease.
        validity: Option<Validity>,
    },
    /// Somebody else holds it and our patience is over.
    Contended(Holder),
    /// The store gave no answer that helps.
    Failed(StoreError),
    /// We were told to give up. Nothing of ours is left in the store, unless it did not answer.
    GivenUp,
}

/// While somebody else holds the lock, pauses between two questions grow from this ...
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// ... to this.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// However little is left of the wait, an attempt gets so long: the answer is worth more than a punctual "unknown".
const LAST_ATTEMPT: Duration = Duration::from_millis(800);
/// How long a store may take to answer for what is already on its way when we give up.
const FAREWELL: Duration = Duration::from_secs(1);
/// Word of a change is followed up no sooner than about so long after the last answer.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
/// How long the removal of a claim may take whose fate is unknown.
const CLEAN_UP: Duration = Duration::from_millis(400);

/// Asks for the lock until it is ours, patience is over, or `give_up` becomes true. `on_busy` hears of the holder each
/// time.
///
/// The lease counts from the moment the successful request was sent. A grant that took so long that the command could
/// not be stopped in good order any more is given back. A request whose reply was lost is repeated with the same token,
/// or its claim removed.
///
/// Dropping the future may leave a claim behind, which ends with its lease; `give_up` is the way that does not.
pub async fn acquire(
    backend: &mut dyn Backend,
    claim: &Claim,
    terms: &Terms,
    patience: Patience,
    give_up: &mut watch::Receiver<bool>,
    alarm: &Alarm,
    on_busy: &mut dyn FnMut(&Holder),
) -> Outcome {
    let begin = Moment::now();
    let wait_until = match patience.wait {
        Wait::No => Some(begin),
        Wait::For(duration) => Some(begin + duration),
        Wait::Forever => None,
    };
    let retry_until = wait_until.map(|until| until.max(begin + patience.retry));
    let over = |until: Option<Moment>| until.is_some_and(|until| Moment::now() >= until);
    let mut first = true;
    // An earlier attempt of ours may hold the lock without our knowing.
    let mut uncertain = false;
    let mut pause = FIRST_PAUSE;
    loop {
        // Whatever the patience, the store gets its connect time-out once.
        let attempts_until = retry_until.map(|until| until.max(begin + terms.connect_timeout));
        let budget = attempts_until.filter(|_| !first).map_or(terms.connect_timeout, |until| {
            terms.connect_timeout.min((until - Moment::now()).max(LAST_ATTEMPT))
        });
        let attempt_began = Moment::now();
        let pushed = match attempt(backend, claim, budget, give_up).await {
            Tried::GivenUp { uncertain: maybe } => {
                if maybe || uncertain {
                    clean_up(backend, claim).await;
                }
                return Outcome::GivenUp;
            }
            Tried::Answered(sent, Attempt::Granted(grant)) => {
                let validity = grant.lease.map(|lease| terms.validity(sent, lease));
                match validity {
                    Some(validity) if Moment::now() >= validity.start_before => {
                        clean_up(backend, claim).await;
                        uncertain = false;
                        let late = Moment::now() - sent;
                        let error = StoreError::unreachable(format!(
                            "the grant took {} ms of a lease of {} ms: too late to run a command safely",
                            late.as_millis(),
                            (validity.ends - sent).as_millis()
                        ));
                        if over(retry_until) {
                            return Outcome::Failed(error);
                        }
                    }
                    validity => return Outcome::Granted { grant, validity },
                }
                None
            }
            Tried::Answered(_, Attempt::Busy(holder)) => {
                uncertain = false;
                on_busy(&holder);
                if over(wait_until) {
                    return Outcome::Contended(holder);
                }
                holder.remaining
            }
            Tried::Failed(error) => {
                let StoreError::Unavailable { maybe_applied, .. } = error else {
                    if uncertain {
                        clean_up(backend, claim).await;
                    }
                    return Outcome::Failed(error);
                };
                uncertain |= maybe_applied;
                // A connection that broke at once leaves time to ask again whether the lock is ours.
                let ask_again =
                    first && maybe_applied && Moment::now() - attempt_began < terms.connect_timeout / 2;
                if !ask_again && over(retry_until) {
                    if uncertain {
                        clean_up(backend, claim).await;
                    }
                    return Outcome::Failed(error);
                }
                None
            }
        };
        if !(first && uncertain) {
            let soonest = Moment::now() + SHORTEST_INTERVAL / 2 + jitter(SHORTEST_INTERVAL);
            let mut until = Moment::now() + FIRST_PAUSE / 2 + jitter(pause);
            // The moment the holder's lease ends is known; nobody is told of it.
            if let Some(remaining) = pushed {
                until = until.min(Moment::now() + remaining + Duration::from_millis(1));
            }
            if let Some(end) = retry_until {
                until = until.min(end.max(Moment::now()));
            }
            tokio::select! {
                _ = give_up.wait_for(|given_up| *given_up) => {
                    if uncertain {
                        clean_up(backend, claim).await;
                    }
                    return Outcome::GivenUp;
                }
                () = alarm.until(until) => {}
                () = async {
                    backend.changed().await;
                    // A server that ends every connection must not be asked without a pause.
                    alarm.until(soonest).await;
                } => {}
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        first = false;
    }
}

enum Tried {
    Answered(Moment, Attempt),
    Failed(StoreError),
    GivenUp { uncertain: bool },
}

/// One attempt within its budget. Told to give up, it waits a little longer for what is on its way, so as to give a
/// lock back that arrives in that moment.
async fn attempt(
    backend: &mut dyn Backend,
    claim: &Claim,
    budget: Duration,
    give_up: &mut watch::Receiver<bool>,
) -> Tried {
    let sent = Cell::new(None);
    let result = {
        let work = async {
            backend.connect().await?;
            let now = Moment::now();
            sent.set(Some(now));
            backend.try_acquire(claim).await.map(|attempt| (now, attempt))
        };
        tokio::pin!(work);
        let limit = tokio::time::sleep(budget);
        tokio::pin!(limit);
        tokio::select! {
            result = &mut work => result,
            () = &mut limit => Err(timed_out(sent.get(), budget)),
            _ = give_up.wait_for(|given_up| *given_up) => {
                if sent.get().is_none() {
                    return Tried::GivenUp { uncertain: false };
                }
                match timeout(FAREWELL, &mut work).await {
                    Ok(Ok((_, Attempt::Granted(_)))) => return Tried::GivenUp { uncertain: true },
                    Ok(Err(StoreError::Unavailable { maybe_applied: true, .. })) => {
                        return Tried::GivenUp { uncertain: true };
                    }
                    // Not ours, or a store that does not answer: what may be left ends by its own lease.
                    _ => return Tried::GivenUp { uncertain: false },
                }
            }
        }
    };
    match result {
        Ok((sent, answer)) => Tried::Answered(sent, answer),
        Err(error) => Tried::Failed(error),
    }
}

/// What a time-out means: with a request on its way it may have been carried out.
pub(super) fn timed_out(sent: Option<Moment>, budget: Duration) -> StoreError {
    match sent {
        Some(_) => StoreError::unanswered(format!("no answer within {} ms", budget.as_millis())),
        None => StoreError::unreachable(format!("no connection within {} ms", budget.as_millis())),
    }
}

/// Removes a claim that may or may not be in the store.
async fn clean_up(backend: &mut dyn Backend, claim: &Claim) {
    let _ = timeout(CLEAN_UP, async {
        backend.connect().await?;
        backend.release(claim).await
    })
    .await;
}

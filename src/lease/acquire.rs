//! Getting one lock: one attempt, or as many as the user's patience allows.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::timeout;

use super::validity::{Terms, Validity};
use super::wakeup::{Cancellation, Prompt};
use super::{SHORTEST_INTERVAL, jitter};
use crate::backend::{Again, Attempt, Backend, Busy, CLAIM_WITHIN, Change, Intent, Refusal, StoreError};
use crate::clock::{Alarm, Moment};
use crate::lock::{Claim, Grant};

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

/// Until when there is patience.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    intent: Intent,
    /// With a holder; `None` is for ever.
    wait_until: Option<Moment>,
    /// With a store that cannot be reached.
    retry_until: Option<Moment>,
}

impl Patience {
    /// The limits of one that begins now.
    pub fn from(self, begin: Moment) -> Limits {
        let (intent, wait_until) = match self.wait {
            Wait::No => (Intent::TakeNow, Some(begin)),
            Wait::For(duration) => (Intent::WaitInLine, Some(begin + duration)),
            Wait::Forever => (Intent::WaitInLine, None),
        };
        let retry_until = wait_until.map(|until| until.max(begin + self.retry));
        Limits { intent, wait_until, retry_until }
    }
}

impl Limits {
    /// Whether there is no patience left with a store that does not work.
    pub fn is_over(&self) -> bool {
        is_past(self.retry_until)
    }
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
    /// Somebody else holds it and our patience is over, or waiting is hopeless.
    Contended(Busy),
    /// It cannot be had as things are.
    Refused(Refusal),
    /// The store gave no answer that helps.
    Failed(StoreError),
    /// We were told to give up. Nothing of ours is left in the store, unless it did not answer.
    GivenUp,
}

/// What is to be done about a lock that is busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// What our patience says.
    Wait,
    /// Leave: it will not become free while we wait.
    Leave,
}

/// What the attempts are told, and tell.
pub struct WaitContext<'a> {
    /// Tells us to give up.
    pub give_up: &'a Cancellation,
    /// Asks us to check the locks that are ours already at once.
    pub look_again: &'a Prompt,
    /// A timer for the pauses.
    pub alarm: &'a Alarm,
    /// Hears of the holders each time.
    pub on_busy: &'a mut dyn FnMut(&Claim, &Busy) -> Advice,
}

/// However little is left of the wait, an attempt gets so long: the answer is worth more than a punctual "unknown".
const LAST_ATTEMPT: Duration = Duration::from_millis(800);
/// How long a store may take to answer for what is already on its way when we give up.
const FAREWELL: Duration = Duration::from_secs(1);
/// How long the removal of a claim may take whose fate is unknown.
const CLEAN_UP: Duration = Duration::from_millis(400);
/// Between two questions to a store that cannot tell, twice this on average.
const POLL: Duration = Duration::from_millis(100);
/// A store that could not be asked is asked again after a random part of this, and then after at least half of it:
/// a thousand who lost it together do not come back together, and nobody comes more than twice a second.
const RECONNECT: Duration = Duration::from_secs(1);
/// What passes within moments is asked about again after this on average.
const PASSING: Duration = Duration::from_millis(50);
/// Up to so much longer, when that goes on.
const LONGEST_RECONNECT: Duration = Duration::from_secs(4);
/// With `--no-wait`, a lock that is promised to another is asked for again after this, and then half as often each time ...
const PROMISE: Duration = Duration::from_millis(5);
/// ... until the promise must have been kept or broken. The others may be called again meanwhile.
const LONGEST_PROMISE: Duration = CLAIM_WITHIN.saturating_mul(2);

/// Asks for the lock until it is ours, patience is over, or we are told to give up.
///
/// The lease counts from the moment the successful request was sent. A grant that took so long that the command could
/// not be stopped in good order any more is given back. A request whose reply was lost is repeated with the same token,
/// or its claim removed. Whoever does not get the lock in the end leaves the line.
///
/// Dropping the future may leave a claim or a place in the line behind, which ends with its lease; to be told to give up
/// is the way that does not.
pub async fn acquire(
    backend: &mut dyn Backend,
    claim: &Claim,
    limits: &Limits,
    terms: &Terms,
    around: &mut WaitContext<'_>,
) -> Outcome {
    let mut traces = false;
    let outcome = ask_until_decided(backend, claim, limits, terms, around, &mut traces).await;
    if traces {
        clean_up(backend, claim).await;
    }
    outcome
}

/// `traces` tells whether an attempt of ours has left a place in the line, or perhaps the lock without our knowing.
async fn ask_until_decided(
    backend: &mut dyn Backend,
    claim: &Claim,
    limits: &Limits,
    terms: &Terms,
    around: &mut WaitContext<'_>,
    traces: &mut bool,
) -> Outcome {
    let begin = Moment::now();
    let mut first = true;
    let mut failures = 0;
    let mut promise = PROMISE;
    let mut next_call = begin;
    let mut promised_until = None;
    loop {
        // Whatever the patience, the store gets its connect time-out once.
        let attempts_until = limits.retry_until.map(|until| until.max(begin + terms.connect_timeout));
        let budget = attempts_until.filter(|_| !first).map_or(terms.connect_timeout, |until| {
            terms.connect_timeout.min((until - Moment::now()).max(LAST_ATTEMPT))
        });
        let attempt_began = Moment::now();
        let mut end = limits.wait_until;
        let again = match attempt(backend, claim, limits.intent, budget, around.give_up).await {
            Tried::GivenUp { uncertain } => {
                *traces |= uncertain;
                return Outcome::GivenUp;
            }
            Tried::Hangs => {
                *traces = false;
                return Outcome::GivenUp;
            }
            Tried::Answered(sent, Attempt::Granted(grant)) => {
                let validity = grant.lease.map(|lease| terms.validity(sent, lease));
                *traces = false;
                let Some(late) = validity.filter(|validity| Moment::now() >= validity.start_before) else {
                    return Outcome::Granted { grant, validity };
                };
                clean_up(backend, claim).await;
                if limits.is_over() {
                    return Outcome::Failed(too_late(sent, late));
                }
                jitter(RECONNECT)
            }
            Tried::Answered(_, Attempt::Refused(refusal)) => return Outcome::Refused(refusal),
            Tried::Answered(_, Attempt::Busy(busy)) => {
                *traces = limits.intent == Intent::WaitInLine;
                failures = 0;
                let advice = (around.on_busy)(claim, &busy);
                let others_turn = busy.promised
                    && limits.intent == Intent::TakeNow
                    && Moment::now() < *promised_until.get_or_insert_with(|| Moment::now() + LONGEST_PROMISE);
                if advice == Advice::Leave || is_past(limits.wait_until) && !others_turn {
                    return Outcome::Contended(busy);
                }
                if others_turn {
                    // Nobody calls one who is not in line.
                    end = None;
                    promise = (promise * 2).min(POLL);
                }
                match busy.again {
                    Again::Within(within) if others_turn => within.min(promise),
                    Again::Within(within) => within,
                    Again::Poll => POLL + jitter(POLL * 2),
                }
            }
            Tried::Failed(error) => {
                let StoreError::Unavailable { maybe_applied, transient, .. } = error else {
                    return Outcome::Failed(error);
                };
                *traces |= maybe_applied;
                // A connection that broke at once leaves time to ask again whether the lock is ours.
                let ask_again =
                    first && maybe_applied && Moment::now() - attempt_began < terms.connect_timeout / 2;
                let transient = transient && Moment::now() < begin + terms.connect_timeout;
                if !ask_again && !transient && limits.is_over() {
                    return Outcome::Failed(error);
                }
                failures += 1;
                end = limits.retry_until.filter(|_| !transient);
                match (ask_again, transient) {
                    (_, true) => PASSING / 2 + jitter(PASSING),
                    (true, false) => Duration::ZERO,
                    (false, false) => reconnect_after(failures),
                }
            }
        };
        first = false;
        if !pause(backend, again, end, failures == 0, &mut next_call, around).await {
            return Outcome::GivenUp;
        }
    }
}

/// Waits until it is time to ask again: after so long, or sooner if the store says so or `end` comes. Returns false when
/// we are to give up.
async fn pause(
    backend: &mut dyn Backend,
    again: Duration,
    end: Option<Moment>,
    mut listening: bool,
    next_call: &mut Moment,
    around: &mut WaitContext<'_>,
) -> bool {
    let begin = Moment::now();
    let mut until = begin + again;
    if let Some(end) = end {
        until = until.min(end.max(begin));
    }
    let latest = until;
    // An answer that promises nothing must not make us ask without end.
    let soonest = begin + SHORTEST_INTERVAL / 2 + jitter(SHORTEST_INTERVAL);
    loop {
        tokio::select! {
            biased;
            () = around.give_up.cancelled() => return false,
            () = around.alarm.until(until) => return true,
            change = backend.changed(), if listening => match change {
                Change::OurTurn if Moment::now() >= *next_call => {
                    *next_call = Moment::now() + SHORTEST_INTERVAL;
                    return true;
                }
                // A server that says so again and again, and grants nothing, must not make us ask without end.
                Change::OurTurn => until = until.min(*next_call),
                // Each such word says that the line moves.
                Change::Soon(within) => until = latest.min(Moment::now() + within),
                Change::Touched => until = until.min(soonest.max(Moment::now())),
                Change::Disconnected => {
                    listening = false;
                    until = until.min(Moment::now() + reconnect_after(1));
                }
            },
        }
    }
}

fn is_past(until: Option<Moment>) -> bool {
    until.is_some_and(|until| Moment::now() >= until)
}

/// The pause after so many failures in a row.
fn reconnect_after(failures: u32) -> Duration {
    match failures {
        0 | 1 => jitter(RECONNECT),
        more => RECONNECT / 2 + jitter((RECONNECT / 2 * more).min(LONGEST_RECONNECT)),
    }
}

fn too_late(sent: Moment, validity: Validity) -> StoreError {
    StoreError::unreachable(format!(
        "the grant took {} ms of a lease of {} ms: too late to be used safely",
        (Moment::now() - sent).as_millis(),
        (validity.ends - sent).as_millis()
    ))
}

enum Tried {
    Answered(Moment, Attempt),
    Failed(StoreError),
    GivenUp {
        uncertain: bool,
    },
    /// Given up, and the store has nothing to say about it: what may be left ends by its own lease.
    Hangs,
}

/// One attempt within its budget. Told to give up, it waits a little longer for what is on its way, so as to give back
/// what arrives in that moment.
async fn attempt(
    backend: &mut dyn Backend,
    claim: &Claim,
    intent: Intent,
    budget: Duration,
    give_up: &Cancellation,
) -> Tried {
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
            result = &mut work => result,
            () = &mut limit => Err(timed_out(sent.get(), budget)),
            () = give_up.cancelled() => {
                if sent.get().is_none() {
                    return Tried::GivenUp { uncertain: false };
                }
                return match timeout(FAREWELL, &mut work).await {
                    Ok(Ok((_, Attempt::Granted(_)))) => Tried::GivenUp { uncertain: true },
                    Ok(Ok((_, Attempt::Busy(busy)))) => Tried::GivenUp { uncertain: busy.position.is_some() },
                    Ok(Err(StoreError::Unavailable { maybe_applied: true, .. })) => {
                        Tried::GivenUp { uncertain: true }
                    }
                    Ok(_) => Tried::GivenUp { uncertain: false },
                    Err(_) => Tried::Hangs,
                };
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

/// Removes a claim that may or may not be in the store, or its place in the line. Of a store of several nodes some may be
/// asked although it cannot be connected as a whole.
pub(super) async fn clean_up(backend: &mut dyn Backend, claim: &Claim) {
    let _ = timeout(CLEAN_UP, async {
        let _ = timeout(CLEAN_UP * 3 / 4, backend.connect()).await;
        backend.release(claim, Duration::ZERO, None).await
    })
    .await;
}

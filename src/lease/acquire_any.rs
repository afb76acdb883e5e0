//! Acquires one of several locks: the first that becomes free.
//!
//! They are tried one after the other, without waiting, and the first one that is granted is the only one that was ever
//! held. If all of them are busy, there is a waiter in the queue of each. The waiter that is granted its lock first
//! cancels the others; what one of those is granted in the same moment is given back at once.

use futures_util::StreamExt;
use futures_util::future::join;
use futures_util::stream::FuturesUnordered;
use tokio_util::sync::CancellationToken;

use super::acquire::{
    Advice, Granted, Left, Limits, NotGranted, Observer, WaitContext, acquire, acquire_with_retries,
    give_back,
};
use super::acquire_all::{self, HeldLock, Keepers, Lock};
use super::keeper::Event;
use super::validity::Terms;
use crate::backend::{Busy, Intent, StoreError};
use crate::clock::{Alarm, Moment};
use crate::lock::Claim;

/// Which of several locks are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// All of them, or none.
    All,
    /// The first that becomes free.
    Any,
}

/// How the acquisition of one of several locks ended: it is held and has a keeper, or none is held.
pub type AnyGranted<'a> = Result<(HeldLock<'a>, Keepers<'a>), NoneGranted<'a>>;

/// Why none of several locks was granted.
pub struct NoneGranted<'a> {
    /// The lock because of which the acquisition ended: if all are busy, the first of them.
    pub lock: &'a Lock,
    /// What was found there.
    pub why: NotGranted,
    /// All locks, in the order given, if `why` is that they are busy.
    pub busy: Vec<(&'a Lock, Busy)>,
}

/// Acquires the first of these locks that becomes free.
///
/// A store that fails for one of them is retried for that one as long as the limits allow, while the others are waited
/// for; when they no longer allow it, the acquisition ends, and so it does when one of the locks is refused.
///
/// If the lock that was granted is lost while the queues of the others are left, the acquisition starts over, as long as the
/// limits allow.
///
/// When it returns, every queue has been left, except on a store that did not reply. Dropping the future may leave
/// claims and queue positions behind, which expire with their leases; a cancellation removes them.
pub async fn acquire_any<'a>(
    locks: &'a [Lock],
    limits: &Limits,
    terms: &'a Terms,
    context: &WaitContext<'_>,
) -> AnyGranted<'a> {
    loop {
        match attempt_any(locks, limits, terms, context).await {
            Ok(granted) => return granted,
            Err(Lost(lock)) if limits.is_retry_expired() => {
                let error = StoreError::unreachable("was lost before the command could start");
                return Err(NoneGranted { lock, why: NotGranted::Failed(error), busy: Vec::new() });
            }
            Err(Lost(_)) => {}
        }
    }
}

/// This lock was granted, and was lost before the queues of the others had been left.
struct Lost<'a>(&'a Lock);

/// Acquires one of the locks, once.
async fn attempt_any<'a>(
    locks: &'a [Lock],
    limits: &Limits,
    terms: &'a Terms,
    context: &WaitContext<'_>,
) -> Result<AnyGranted<'a>, Lost<'a>> {
    let mut ends: Vec<Option<NotGranted>> = locks.iter().map(|_| None).collect();
    match first_free(locks, limits, terms, context, &mut ends).await {
        Some(Ok(held)) => {
            let mut keepers = Keepers::empty();
            keepers.add(0, &held, terms);
            return Ok(Ok((held, keepers)));
        }
        Some(Err(none)) => return Ok(Err(none)),
        None => {}
    }
    let candidates: Vec<usize> =
        (0..locks.len()).filter(|index| may_be_granted(limits.intent, ends[*index].as_ref())).collect();
    candidates.iter().for_each(|index| ends[*index] = None);
    match first_granted(locks, &candidates, limits, terms, context, &mut ends).await {
        Some(ended) => ended,
        None => Ok(Err(none_granted(locks, ends))),
    }
}

/// The first look at several locks: nothing is said of one that is busy before all are.
struct FirstLook;

impl Observer for FirstLook {
    fn busy(&self, _: &Claim, _: &Busy) -> Advice {
        Advice::Leave
    }
}

/// Tries the locks one after the other, each once, and notes why each was not granted. `None` if none was, and each may
/// be tried again as far as the limits allow.
async fn first_free<'a>(
    locks: &'a [Lock],
    limits: &Limits,
    terms: &Terms,
    context: &WaitContext<'_>,
    ends: &mut [Option<NotGranted>],
) -> Option<Result<HeldLock<'a>, NoneGranted<'a>>> {
    // One attempt gets as long as the first of several would.
    let once = Terms { connect_timeout: limits.attempt(None, terms.connect_timeout), ..*terms };
    for (lock, end) in locks.iter().zip(ends) {
        let context = WaitContext { observer: &FirstLook, ..*context };
        let limits_now = Limits::once();
        let granted = {
            let mut backend = lock.backend();
            acquire(&mut **backend, &lock.claim, &limits_now, &once, &context).await
        };
        let why = match granted {
            Ok((grant, validity)) => match HeldLock::new(lock, grant, validity).await {
                Ok(held) => return Some(Ok(held)),
                Err(error) => NotGranted::Failed(error),
            },
            Err(why @ NotGranted::Contended(_)) => {
                *end = Some(why);
                // With a slow store and many locks; the rest are asked all at once.
                let has_waited = limits.wait_until.is_some_and(|until| Moment::now() >= until);
                match limits.intent == Intent::Enqueue && has_waited {
                    true => return None,
                    false => continue,
                }
            }
            // It may be available for the others.
            Err(NotGranted::Failed(StoreError::Unavailable { .. })) if !limits.is_retry_expired() => {
                return None;
            }
            Err(why) => why,
        };
        return Some(Err(NoneGranted { lock, why, busy: Vec::new() }));
    }
    None
}

/// Waits for these locks at the same time, until one is granted or it is known why none is; notes the locks that are
/// busy. `None` if all are, or if the acquisition was cancelled.
async fn first_granted<'a>(
    locks: &'a [Lock],
    candidates: &[usize],
    limits: &Limits,
    terms: &'a Terms,
    context: &WaitContext<'_>,
    ends: &mut [Option<NotGranted>],
) -> Option<Result<AnyGranted<'a>, Lost<'a>>> {
    let give_up = context.give_up;
    let decided = give_up.child_token();
    let mut check_held = context.check_held.subscribe();
    let mut waits: FuturesUnordered<_> = candidates
        .iter()
        .map(|index| {
            let (lock, decided) = (&locks[*index], &decided);
            async move { (*index, wait_for(lock, limits, terms, context, decided).await) }
        })
        .collect();
    let mut keepers = Keepers::empty();
    let mut held: Option<HeldLock<'a>> = None;
    // The lock because of which none is granted, and why; without a reason it was lost.
    let mut failed: Option<(&Lock, Option<NotGranted>)> = None;
    loop {
        tokio::select! {
            biased;
            // The rest of the waits may take longer than dlock has left.
            () = give_up.cancelled(), if held.is_some() => break,
            ended = waits.next() => match ended {
                None => break,
                Some((index, Ok((grant, validity)))) => {
                    match HeldLock::new(&locks[index], grant, validity).await {
                        Ok(granted) => {
                            keepers.add(0, &granted, terms);
                            held = Some(granted);
                        }
                        Err(error) => failed = Some((&locks[index], Some(NotGranted::Failed(error)))),
                    }
                }
                Some((index, Err(why))) if decides(&why) => failed = Some((&locks[index], Some(why))),
                Some((index, Err(why))) => ends[index] = Some(why),
            },
            // The first lock must be kept while the queues of the others are left.
            _ = check_held.changed() => keepers.check_now(),
            (_, event) = keepers.next(), if held.is_some() => match (&mut held, event) {
                (Some(held), Event::Renewed { validity, .. }) => held.lease_state.validity = validity,
                (Some(held), Event::Lost(_)) => {
                    failed.get_or_insert((held.lock, None));
                }
                (Some(held), Event::Revoked(revocation)) => {
                    failed = Some((held.lock, Some(NotGranted::Revoked(revocation))));
                }
                _ => {}
            },
        }
    }
    let held = match (held, failed.is_some() || give_up.is_cancelled()) {
        (Some(held), false) => return Some(Ok(Ok((held, keepers)))),
        (held, _) => held,
    };
    drop(keepers);
    // None of these is granted any more: that is decided.
    let rest = waits.for_each(|_| std::future::ready(()));
    join(acquire_all::give_back(held.map(|held| held.lock)), rest).await;
    match failed {
        Some((lock, Some(why))) => Some(Ok(Err(NoneGranted { lock, why, busy: Vec::new() }))),
        Some((lock, None)) if !give_up.is_cancelled() => Some(Err(Lost(lock))),
        _ => None,
    }
}

/// Waits for one of the locks until it is granted, or the acquisition is decided: this one decides it if it is granted,
/// or if why it is not concerns them all.
async fn wait_for(
    lock: &Lock,
    limits: &Limits,
    terms: &Terms,
    context: &WaitContext<'_>,
    decided: &CancellationToken,
) -> Granted {
    let alarm = Alarm::new().unwrap_or_else(|_| Alarm::without_descriptor());
    let own = WaitContext { give_up: decided, alarm: &alarm, ..*context };
    let give_up = context.give_up;
    let mut backend = lock.backend();
    let (claim, mut left) = (&lock.claim, Left::Nothing);
    let mut granted = acquire_with_retries(&mut **backend, claim, limits, terms, &own, &mut left).await;
    if decided.is_cancelled() {
        if granted.is_ok() {
            left = Left::Perhaps;
        }
        // Whatever came now: another lock is held, or it is known why none is.
        granted = Err(NotGranted::GivenUp);
    }
    // Before anything else is done: of two that are granted in the same moment, the second one has to see it.
    if granted.as_ref().map_or_else(decides, |_| true) {
        decided.cancel();
    }
    let is_to_be_removed = match left {
        Left::Nothing => false,
        Left::Perhaps => true,
        Left::Unanswered => !give_up.is_cancelled(),
    };
    // A run goes on meanwhile that holds another lock, so that this may take longer than the end of a wait.
    if is_to_be_removed && !give_back(&mut **backend, claim).await && !give_up.is_cancelled() {
        give_back(&mut **backend, claim).await;
    }
    granted
}

/// Returns whether a lock that was tried once, and not granted for this reason, is to be tried again, within the limits.
/// `None`: it was not tried, or the store failed.
fn may_be_granted(intent: Intent, end: Option<&NotGranted>) -> bool {
    match (intent, end) {
        (Intent::Enqueue, _) | (Intent::TakeNow, None) => true,
        // Its turn is another waiter's, who may not take it.
        (Intent::TakeNow, Some(NotGranted::Contended(busy))) => busy.promised,
        (Intent::TakeNow, Some(_)) => false,
    }
}

/// Returns whether an acquisition of one of several locks ends if one of them is not granted for this reason.
fn decides(why: &NotGranted) -> bool {
    match why {
        NotGranted::Contended(_) | NotGranted::GivenUp => false,
        NotGranted::Refused(_) | NotGranted::NotDue(_) | NotGranted::Revoked(_) | NotGranted::Failed(_) => {
            true
        }
    }
}

/// Returns why none was granted, if no single lock decided that.
fn none_granted(locks: &[Lock], ends: Vec<Option<NotGranted>>) -> NoneGranted<'_> {
    let found = locks.iter().zip(ends).map(|(lock, end)| match end {
        Some(NotGranted::Contended(busy)) => Some((lock, busy)),
        _ => None,
    });
    match found.collect::<Option<Vec<_>>>() {
        Some(busy) if !busy.is_empty() => {
            NoneGranted { lock: busy[0].0, why: NotGranted::Contended(busy[0].1.clone()), busy }
        }
        _ => NoneGranted { lock: &locks[0], why: NotGranted::GivenUp, busy: Vec::new() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Refusal;

    fn busy(promised: bool) -> NotGranted {
        NotGranted::Contended(Busy { promised, ..Busy::default() })
    }

    #[test]
    fn without_waiting_a_lock_is_tried_again_only_if_it_may_become_free_at_once() {
        let refused = NotGranted::Refused(Refusal::OuterLost);
        for (intent, end, expected) in [
            (Intent::TakeNow, None, true),
            (Intent::TakeNow, Some(busy(false)), false),
            (Intent::TakeNow, Some(busy(true)), true),
            (Intent::TakeNow, Some(refused), false),
            (Intent::Enqueue, None, true),
            (Intent::Enqueue, Some(busy(false)), true),
            (Intent::Enqueue, Some(busy(true)), true),
        ] {
            assert_eq!(may_be_granted(intent, end.as_ref()), expected, "{intent:?} {end:?}");
        }
    }

    #[test]
    fn a_busy_lock_ends_nothing_for_the_others() {
        for (end, expected) in [
            (busy(false), false),
            (busy(true), false),
            (NotGranted::GivenUp, false),
            (NotGranted::Refused(Refusal::OuterLost), true),
            (NotGranted::Failed(StoreError::unreachable("down")), true),
            (NotGranted::Failed(StoreError::Denied("no".to_owned())), true),
        ] {
            assert_eq!(decides(&end), expected, "{end:?}");
        }
    }
}

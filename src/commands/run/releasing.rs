//! The last phase: every lock is given back, or left to the store for the rest of `--min-hold`.

use std::cell::Cell;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use super::Session;
use super::running::{End, Stopped};
use crate::backend::{Release, StoreError};
use crate::child::signals;
use crate::clock::Moment;
use crate::lease::together::{Held, Lock, all};

/// One try to release it always gets.
const SHORTEST_TRY: Duration = Duration::from_millis(500);

impl Session<'_> {
    /// Frees the locks, once and all at a time, each within a bounded time; a second fatal signal cuts that short. Where
    /// only we can keep a lock that has to be kept, or that others are inside of, this stays until that is over or a
    /// fatal signal comes.
    pub(super) async fn release_all(
        &self,
        locks: &[Lock],
        held: &[Held],
        end: &End,
    ) -> Vec<Result<Release, StoreError>> {
        let look_again = Notify::new();
        let stays: Vec<Cell<bool>> = locks.iter().map(|_| Cell::new(false)).collect();
        let one =
            |index: usize| self.release(&locks[index], &held[index], index, end, &stays[index], &look_again);
        let releases = all((0..held.len()).map(one).collect());
        tokio::pin!(releases);
        let mut fatal_signals = 0;
        loop {
            tokio::select! {
                biased;
                results = &mut releases => return results,
                arrival = self.signals.next() => {
                    if arrival.signal == libc::SIGCONT {
                        // Somebody may have revoked what we stay for.
                        look_again.notify_waiters();
                    }
                    fatal_signals += usize::from(signals::ENDING.contains(&arrival.signal));
                    let stays_on = stays.iter().any(Cell::get);
                    if fatal_signals == 2 || fatal_signals == 1 && stays_on {
                        return held.iter().zip(&stays).map(|(_, stays)| match stays.get() {
                            true => Ok(Release::Kept),
                            false => Err(StoreError::unanswered("interrupted by a signal")),
                        }).collect();
                    }
                }
            }
        }
    }

    async fn release(
        &self,
        lock: &Lock,
        held: &Held,
        index: usize,
        end: &End,
        stays: &Cell<bool>,
        look_again: &Notify,
    ) -> Result<Release, StoreError> {
        if matches!(end.stopped, Some(Stopped::Lost(lost, _)) if lost == index) {
            // The store itself has said that it is not ours any more.
            return Ok(Release::NotHeld);
        }
        let mut backend = lock.backend();
        loop {
            let rest = if end.ran { held.standing.rest() } else { Duration::ZERO };
            let mut bound = self.plan.terms.connect_timeout;
            if let Some(ends) = end.lease_ends[index] {
                // Beyond the end of the lease there is nothing to release.
                bound = bound.min((ends - Moment::now()).max(SHORTEST_TRY));
            }
            let attempt = async {
                backend.connect().await?;
                match backend.release(&lock.claim, rest, None).await {
                    // The connection broke: whether the lock was freed is unknown, and asking again changes nothing
                    // then.
                    Err(StoreError::Unavailable { maybe_applied, .. }) => {
                        backend.connect().await?;
                        match backend.release(&lock.claim, rest, None).await? {
                            Release::NotHeld if maybe_applied => Ok(Release::Released),
                            release => Ok(release),
                        }
                    }
                    result => result,
                }
            };
            let late = |_| Err(StoreError::unanswered(format!("no answer within {} ms", bound.as_millis())));
            match timeout(bound, attempt).await.unwrap_or_else(late) {
                Ok(Release::NotYet(again)) => {
                    stays.set(true);
                    let _ = timeout(again, async {
                        tokio::select! {
                            _ = backend.changed() => {}
                            () = look_again.notified() => {}
                        }
                    })
                    .await;
                }
                result => {
                    stays.set(false);
                    return result;
                }
            }
        }
    }
}

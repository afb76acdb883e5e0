//! The last phase: every lock is given back, or left to the store for the rest of `--min-hold`.

use std::cell::Cell;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use super::Run;
use super::outcome::{RunOutcome, Stopped};
use crate::backend::{Backend, Release, StoreError};
use crate::child::signals;
use crate::clock::Moment;
use crate::exit::{Failure, FailureKind};
use crate::lease::acquire_all::{HeldLock, Lock, all};
use crate::lease::keeper::LONGEST_UNWATCHED;
use crate::lock::Record;
use crate::report::{Outcome, RunReport};

/// How long it may take to keep what became of a run on record, where nothing else has to be asked of the store.
const RECORD: Duration = Duration::from_millis(400);
/// The same when a signal ends dlock.
const LAST_RECORD: Duration = Duration::from_millis(80);

/// Whether the lock is not ours any more because we gave it back, or left it to the store.
pub(super) fn was_given_back(release: &Result<Release, StoreError>) -> bool {
    matches!(release, Ok(Release::Released | Release::Kept))
}

/// A lock that is being given back.
struct Releasing<'a> {
    lock: &'a Lock,
    index: usize,
    held: &'a HeldLock,
    /// For the lock's history.
    record: Record,
    /// It cannot be given back yet.
    stays: &'a Cell<bool>,
}

async fn keep(backend: &mut dyn Backend, lock: &Lock, record: &Record) -> Result<(), StoreError> {
    backend.connect().await?;
    backend.record(&lock.claim.name, record).await
}

/// One try to release it always gets.
const SHORTEST_TRY: Duration = Duration::from_millis(500);
/// Where another server may take over, one that does not answer is not waited for longer than this, but asked for again ...
const LONGEST_TRY: Duration = Duration::from_secs(1);
/// ... after such a pause.
const BETWEEN_TRIES: Duration = Duration::from_millis(100);

impl Run<'_> {
    /// Frees the locks, all at a time, each within a bounded time; a second fatal signal cuts that short. Where
    /// only we can keep a lock that has to be kept, or that others are inside of, this stays until that is over or a
    /// fatal signal comes.
    pub(super) async fn release_all(
        &self,
        locks: &[Lock],
        held: &[HeldLock],
        end: &RunOutcome,
        report: &RunReport,
    ) -> Vec<Result<Release, StoreError>> {
        let look_again = Notify::new();
        let stays: Vec<Cell<bool>> = locks.iter().map(|_| Cell::new(false)).collect();
        let one = |index: usize| {
            let record = report.record(index, &locks[index].claim.identity);
            let lock =
                Releasing { lock: &locks[index], index, held: &held[index], record, stays: &stays[index] };
            self.release(lock, end, &look_again)
        };
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

    /// Keeps in the history of each lock why the command did not run, as far as the stores can be asked.
    pub(super) async fn keep_on_record(
        &self,
        locks: &[Lock],
        report: &RunReport,
        result: &Result<(), Failure>,
    ) {
        let report = match result {
            Err(failure) if matches!(failure.kind, FailureKind::Unavailable | FailureKind::Denied) => return,
            Err(failure) => report.clone().failed(failure),
            Ok(()) => report.clone(),
        };
        let limit = if report.outcome == Outcome::Interrupted { LAST_RECORD } else { RECORD };
        let keep = |index: usize| {
            let record = report.record(index, &locks[index].claim.identity);
            async move { timeout(limit, keep(&mut *locks[index].backend(), &locks[index], &record)).await }
        };
        let kept = all((0..locks.len()).map(keep).collect());
        tokio::pin!(kept);
        loop {
            tokio::select! {
                biased;
                _ = &mut kept => return,
                // Whoever wants us to end does not wait for a note.
                arrival = self.signals.next() => if signals::ENDING.contains(&arrival.signal) {
                    return;
                },
            }
        }
    }

    async fn release(
        &self,
        releasing: Releasing<'_>,
        end: &RunOutcome,
        look_again: &Notify,
    ) -> Result<Release, StoreError> {
        let Releasing { lock, index, held, record, stays } = releasing;
        let mut backend = lock.backend();
        if matches!(end.stopped, Some(Stopped::Lost(lost, _)) if lost == index) {
            // The store itself has said that it is not ours any more.
            let _ = timeout(RECORD, keep(&mut *backend, lock, &record)).await;
            return Ok(Release::NotHeld);
        }
        let mut until = Moment::now() + self.plan.terms.connect_timeout;
        if let Some(ends) = end.lease_ends[index] {
            until = until.min(ends);
        }
        // Whether it was freed by an earlier try is unknown.
        let mut uncertain = false;
        loop {
            let rest = if end.ran { held.lease_state.rest() } else { Duration::ZERO };
            let mut bound = self.plan.terms.connect_timeout;
            if backend.fails_over() {
                bound = bound.min(LONGEST_TRY);
            }
            if let Some(ends) = end.lease_ends[index] {
                // Beyond the end of the lease there is nothing to release.
                bound = bound.min((ends - Moment::now()).max(SHORTEST_TRY));
            }
            let attempt = async {
                backend.connect().await?;
                match backend.release(&lock.claim, rest, Some(&record).filter(|_| !uncertain)).await {
                    // The connection broke: whether the lock was freed is unknown, and asking again changes nothing
                    // then.
                    Err(StoreError::Unavailable { maybe_applied, .. }) => {
                        backend.connect().await?;
                        let record = Some(&record).filter(|_| !maybe_applied && !uncertain);
                        match backend.release(&lock.claim, rest, record).await? {
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
                    // Whoever wants it to be given up may not be able to tell us.
                    let _ = timeout(again.min(LONGEST_UNWATCHED), async {
                        tokio::select! {
                            _ = backend.changed() => {}
                            () = look_again.notified() => {}
                        }
                    })
                    .await;
                }
                Err(StoreError::Unavailable { maybe_applied, .. })
                    if backend.fails_over() && Moment::now() + BETWEEN_TRIES < until =>
                {
                    uncertain |= maybe_applied;
                    tokio::time::sleep(BETWEEN_TRIES).await;
                }
                Ok(Release::NotHeld) if uncertain => return Ok(Release::Released),
                result => {
                    stays.set(false);
                    return result;
                }
            }
        }
    }
}

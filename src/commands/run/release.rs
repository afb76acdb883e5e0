//! The last phase: every lock is released, or left to the store for the rest of `--min-hold`.

use std::cell::Cell;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::Run;
use super::supervised::{Stopped, Supervised};
use crate::backend::{Ending, Release, StoreError};
use crate::child::{Supervisor, signals, sys};
use crate::clock::Moment;
use crate::commands::hold;
use crate::exit::{Failure, FailureKind};
use crate::lease::acquire_all::{HeldLock, Lock};
use crate::lease::acquire_any::Wanted;
use crate::lease::keeper::LONGEST_UNWATCHED;
use crate::lock::Record;
use crate::report::{Outcome, RunReport, milliseconds};

/// The time limit for recording a run in the history when a signal ends dlock.
const LAST_RECORD: Duration = Duration::from_millis(80);

pub(super) fn was_released(release: &Result<Release, StoreError>) -> bool {
    matches!(release, Ok(Release::Released | Release::Kept | Release::SuccessNotStored(_)))
}

struct Releasing<'a> {
    index: usize,
    held: &'a HeldLock<'a>,
    /// For the lock's history.
    record: Record,
    /// It cannot be released yet.
    stays: &'a Cell<bool>,
    /// dlock was asked to end: it does not stay for a lock that cannot be released yet.
    leaves: &'a CancellationToken,
}

/// The minimum time for an attempt to release the lock.
const SHORTEST_TRY: Duration = Duration::from_millis(500);
/// If another server may take over, a server that does not reply is waited for no longer than this before the first retry, and
/// for twice as long before each further one: a distant store may take as long.
const FIRST_TRY: Duration = Duration::from_secs(1);
/// The pause before a retry, also of a store that is unavailable for moments.
const BETWEEN_TRIES: Duration = Duration::from_millis(100);

impl Run<'_> {
    /// Releases all locks concurrently, each within a bounded time; a second fatal signal ends that early. If
    /// a lock must be kept, or has nested holds, and only this process can keep it, this waits until that has
    /// ended or a fatal signal arrives.
    pub(super) async fn release_all(
        &self,
        held: &[HeldLock<'_>],
        supervised: &Supervised,
        report: &RunReport,
        supervisor: &mut Supervisor,
    ) -> Vec<Result<Release, StoreError>> {
        let (recheck, leaves) = (Notify::new(), CancellationToken::new());
        let stays: Vec<Cell<bool>> = held.iter().map(|_| Cell::new(false)).collect();
        let results: Vec<Cell<Option<_>>> = held.iter().map(|_| Cell::new(None)).collect();
        let one = async |index: usize| {
            let mut record = report.record(&held[index].lock.claim);
            record.interrupted = supervised.was_told_to_end && record.has_succeeded();
            let releasing =
                Releasing { index, held: &held[index], record, stays: &stays[index], leaves: &leaves };
            results[index].set(Some(self.release(releasing, supervised, &recheck).await));
        };
        let mut releases = pin!(join_all((0..held.len()).map(one)));
        let mut requests = signals::EndRequests::default();
        if supervised.has_unread_end {
            // The signal that has ended the command is still to come.
            requests.note();
        }
        loop {
            tokio::select! {
                biased;
                _ = &mut releases => break,
                arrival = self.signals.next() => {
                    if arrival.signal == libc::SIGCONT {
                        // The lock that we stay for may have been revoked.
                        recheck.notify_waiters();
                    }
                    if signals::stops(arrival.signal) {
                        sys::raise_default(arrival.signal);
                    }
                    if arrival.signal == libc::SIGCHLD && stays.iter().any(Cell::get) {
                        // One of the background processes that live on.
                        supervisor.reap();
                    }
                    if signals::asks_to_end(arrival.signal) {
                        let is_first = !requests.has_any();
                        if requests.note() {
                            break;
                        }
                        if is_first {
                            // The other locks are released.
                            leaves.cancel();
                        }
                    }
                }
            }
        }
        let result = |(result, stays): (&Cell<Option<_>>, &Cell<bool>)| match result.take() {
            Some(result) => result,
            None if stays.get() => Ok(Release::Kept),
            None => Err(StoreError::unanswered("interrupted by a signal")),
        };
        results.iter().zip(&stays).map(result).collect()
    }

    /// Records in the history of each lock why the command did not run, if the stores are available.
    pub(super) async fn record_in_history(
        &self,
        locks: &[Lock],
        report: &RunReport,
        result: &Result<(), Failure>,
    ) {
        let report = match result {
            // It would displace the run that it refers to.
            Ok(()) if report.outcome == Outcome::Done => return,
            Err(failure) if matches!(failure.kind, FailureKind::Unavailable | FailureKind::Denied) => return,
            Err(failure) => report.clone().failed(failure),
            Ok(()) => report.clone(),
        };
        let limit = if report.outcome == Outcome::Interrupted { LAST_RECORD } else { hold::RECORD };
        let report = &report;
        let keep = async |lock: &Lock| {
            let record = report.record(&lock.claim);
            hold::note(&mut **lock.backend(), &lock.claim.name, &record, limit).await;
        };
        // Of several locks of which one was wanted, each has kept the run waiting; or one of them was refused, and nothing is
        // known of the others.
        let cause = report.cause.as_ref().and_then(|cause| cause.lock.as_ref());
        let cause = cause.filter(|_| self.plan.wanted == Wanted::Any);
        let concerned = |lock: &&Lock| cause.is_none_or(|name| lock.claim.name == *name);
        let kept = join_all(locks.iter().filter(concerned).map(keep));
        tokio::pin!(kept);
        loop {
            tokio::select! {
                biased;
                _ = &mut kept => return,
                // A request to end takes precedence over the record.
                arrival = self.signals.next() => if signals::asks_to_end(arrival.signal) {
                    return;
                },
            }
        }
    }

    async fn release(
        &self,
        releasing: Releasing<'_>,
        supervised: &Supervised,
        recheck: &Notify,
    ) -> Result<Release, StoreError> {
        let Releasing { index, held, mut record, stays, leaves } = releasing;
        let lock = held.lock;
        let mut backend = lock.backend();
        // What is left of a lost lock, such as its entry in the ledger, has kept others out until the tree was dead.
        let is_lost = matches!(supervised.stopped, Some(Stopped::Lost(lost, _)) if lost == index);
        let is_revoked = matches!(supervised.stopped, Some(Stopped::Revoked(revoked, _)) if revoked == index);
        let (began, held_ms) = (Moment::now(), record.held_ms);
        let mut until = began + self.plan.terms.connect_timeout;
        if let Some(ends) = supervised.locks[index].lease_ends {
            until = until.min(ends);
        }
        // An earlier attempt has perhaps recorded the run, or released the lock.
        let mut is_recorded = false;
        let mut uncertain = false;
        let (mut begin, mut longest_try) = (began, FIRST_TRY);
        // Of a lost lock, only a store with leases can keep something for the rest of the minimum time.
        let mut is_kept = supervised.ran && !is_revoked && !held.lease_state.rest().is_zero();
        loop {
            let rest = if is_kept { held.lease_state.rest() } else { Duration::ZERO };
            let mut bound = self.plan.terms.connect_timeout;
            if backend.fails_over() {
                bound = bound.min(longest_try);
            }
            // After the end of the lease there is nothing to release.
            bound = bound.min((until - begin).max(SHORTEST_TRY));
            let success = supervised.success.map(|granted_at| Moment::now() - granted_at);
            // Meanwhile this process may have kept the lock.
            record.held_ms = held_ms.map(|ms| ms + milliseconds(Moment::now() - began));
            record.kept_ms = (is_kept && !is_lost && !is_revoked).then(|| milliseconds(rest));
            let ending = Ending { success, ..Ending::with_record(Some(&record)) };
            let ending = if uncertain || is_recorded { ending.repeated() } else { ending };
            let release = hold::release(&mut **backend, &lock.claim, rest, ending, bound);
            let released = tokio::select! {
                biased;
                () = leaves.cancelled(), if stays.get() => return Ok(Release::Kept),
                released = release => released,
            };
            match released {
                Ok(Release::NotYet(_)) if leaves.is_cancelled() && !is_lost => return Ok(Release::Kept),
                Ok(Release::NotYet(_)) if is_lost && is_kept => is_kept = false,
                Ok(Release::NotYet(again)) if !is_lost => {
                    (uncertain, longest_try) = (false, FIRST_TRY);
                    is_recorded |= !rest.is_zero();
                    if !stays.replace(true) && !rest.is_zero() {
                        self.reporter.stays(&lock.claim.name, rest);
                    }
                    // A revocation may arrive without a notification.
                    let _ = timeout(again.min(LONGEST_UNWATCHED), async {
                        tokio::select! {
                            _ = backend.changed() => {}
                            () = recheck.notified() => {}
                            () = leaves.cancelled() => {}
                        }
                    })
                    .await;
                    // Its session has kept the lock meanwhile, and does so for another lease if the store cannot be asked now.
                    begin = Moment::now();
                    until = begin + lock.claim.ttl;
                }
                Err(error @ StoreError::Unavailable { maybe_applied, .. })
                    if (backend.fails_over() || error.is_transient() || stays.get())
                        && Moment::now() + BETWEEN_TRIES < until =>
                {
                    is_recorded |= maybe_applied;
                    uncertain |= maybe_applied;
                    longest_try = (longest_try * 2).min(self.plan.terms.connect_timeout);
                    tokio::time::sleep(BETWEEN_TRIES).await;
                    begin = Moment::now();
                }
                Ok(Release::NotHeld) if uncertain && rest.is_zero() && !is_lost => {
                    return Ok(Release::Released);
                }
                result => {
                    stays.set(false);
                    // The loss has been reported, and what is left of the lock ends with its lease.
                    return if is_lost { Ok(Release::NotHeld) } else { result };
                }
            }
        }
    }
}

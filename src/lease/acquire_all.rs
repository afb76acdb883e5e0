//! Several locks, all or none. They are taken in one canonical order, that of their names as bytes, so that two runs can
//! never wait for each other; those that are ours already are kept while we wait for the next.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::Poll;

use tokio::sync::mpsc;

use super::acquire::{Limits, Outcome, WaitContext, acquire, clean_up};
use super::keeper::{Event, Events, LeaseState, keep};
use super::validity::Terms;
use super::wakeup::Prompt;
use crate::backend::{Backend, Busy, Hazard, Refusal, StoreError, io_text};
use crate::clock::Moment;
use crate::lock::{Claim, Grant, Revocation};

/// One lock: what is asked for, and the store it is asked of.
pub struct Lock {
    /// What is asked for.
    pub claim: Claim,
    backend: Cell<Option<Box<dyn Backend>>>,
}

impl Lock {
    /// A claim on a store.
    pub fn new(claim: Claim, backend: Box<dyn Backend>) -> Lock {
        Lock { claim, backend: Cell::new(Some(backend)) }
    }

    /// The store, for one user at a time.
    ///
    /// # Panics
    /// Somebody has it: a keeper that was not dropped.
    pub fn backend(&self) -> BackendGuard<'_> {
        let backend = self.backend.take().expect("a lock's store has one user at a time");
        BackendGuard { backend: Some(backend), home: &self.backend }
    }

    fn kept_descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        self.backend().kept_descriptors().iter().map(|fd| fd.try_clone_to_owned()).collect()
    }
}

/// A store that goes back to its lock when this is dropped.
pub struct BackendGuard<'a> {
    backend: Option<Box<dyn Backend>>,
    home: &'a Cell<Option<Box<dyn Backend>>>,
}

impl Deref for BackendGuard<'_> {
    type Target = dyn Backend;
    fn deref(&self) -> &Self::Target {
        self.backend.as_deref().expect("there until it is dropped")
    }
}

impl DerefMut for BackendGuard<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.backend.as_deref_mut().expect("there until it is dropped")
    }
}

impl Drop for BackendGuard<'_> {
    fn drop(&mut self) {
        self.home.set(self.backend.take());
    }
}

/// A lock that is ours.
#[derive(Debug)]
pub struct HeldLock {
    /// Duplicates of the descriptors whose closing frees the lock, for the guarding process.
    pub kept: Vec<OwnedFd>,
    /// What the store gave.
    pub grant: Grant,
    /// How well it stands.
    pub lease_state: LeaseState,
    /// What the store has told of itself that endangers it.
    pub hazard: Option<Hazard>,
}

/// How the attempt to get all of them ended.
pub enum AcquireAllOutcome<'a> {
    /// All are ours, in the order of the locks, and being kept.
    Granted(Vec<HeldLock>, Keepers<'a>),
    /// Somebody else holds this one, and our patience is over.
    Contended(&'a Lock, Busy),
    /// Somebody wants this one, which was ours while we waited for another, to be given up.
    Revoked(&'a Lock, Revocation),
    /// This one cannot be had as things are.
    Refused(&'a Lock, Refusal),
    /// The store of this one gave no answer that helps.
    Failed(&'a Lock, StoreError),
    /// We were told to give up.
    GivenUp,
}

/// The keepers of all locks.
pub struct Keepers<'a> {
    keepers: Vec<Pin<Box<dyn Future<Output = ()> + 'a>>>,
    events: mpsc::UnboundedReceiver<(usize, Event)>,
    sender: mpsc::UnboundedSender<(usize, Event)>,
    check: Prompt,
}

impl<'a> Keepers<'a> {
    fn nothing() -> Keepers<'a> {
        let (sender, events) = mpsc::unbounded_channel();
        Keepers { keepers: Vec::new(), events, sender, check: Prompt::default() }
    }

    fn add(&mut self, lock: &'a Lock, terms: &'a Terms, lease_state: LeaseState) {
        let events = Events { lock: self.keepers.len(), sender: self.sender.clone() };
        let check = self.check.listen();
        self.keepers.push(Box::pin(async move {
            keep(&mut *lock.backend(), &lock.claim, terms, lease_state, events, check).await;
            // Lost: there is nothing left to keep, and the store may be asked by others.
        }));
    }

    /// Has every keeper ask its store now.
    pub fn check_now(&self) {
        self.check.send();
    }

    /// Keeps, and returns what happens next to which lock. Dropping the future loses nothing, and keeps nothing either
    /// until this is called again.
    pub async fn next(&mut self) -> (usize, Event) {
        loop {
            let Keepers { keepers, events, .. } = self;
            let keep = poll_fn(|context| {
                // A keeper that has ended is not asked again, but keeps its place: their order is that of the locks.
                for keeper in keepers.iter_mut() {
                    if keeper.as_mut().poll(context).is_ready() {
                        *keeper = Box::pin(std::future::pending());
                    }
                }
                Poll::<()>::Pending
            });
            tokio::select! {
                biased;
                Some(event) = events.recv() => return event,
                () = keep => {}
            }
        }
    }
}

/// Takes all locks in the order in which they are given, which is the same for everybody. What is ours already is kept
/// and, when one cannot be had, given back. If one is lost while we wait for another, we begin anew, as long as there is
/// patience.
///
/// Dropping the future leaves what is ours as it is, until the leases end.
pub async fn acquire_all<'a>(
    locks: &'a [Lock],
    limits: &Limits,
    terms: &'a Terms,
    around: &mut WaitContext<'_>,
) -> AcquireAllOutcome<'a> {
    loop {
        match once(locks, limits, terms, around).await {
            Once::Ended(end) => return end,
            Once::LostAgain(lock) => {
                if limits.is_over() {
                    let error = StoreError::unreachable("was lost again while others were waited for");
                    return AcquireAllOutcome::Failed(lock, error);
                }
            }
        }
    }
}

enum Once<'a> {
    Ended(AcquireAllOutcome<'a>),
    LostAgain(&'a Lock),
}

async fn once<'a>(
    locks: &'a [Lock],
    limits: &Limits,
    terms: &'a Terms,
    around: &mut WaitContext<'_>,
) -> Once<'a> {
    let mut keeping = Keepers::nothing();
    let mut held: Vec<HeldLock> = Vec::new();
    let mut revoked = None;
    let mut look_again = around.look_again.listen();
    for lock in locks {
        let outcome = {
            let mut backend = lock.backend();
            let attempt = acquire(&mut *backend, &lock.claim, limits, terms, around);
            tokio::pin!(attempt);
            loop {
                tokio::select! {
                    biased;
                    outcome = &mut attempt => break Some(outcome),
                    () = look_again.prompted() => keeping.check_now(),
                    (index, event) = keeping.next(), if !held.is_empty() => match event {
                        Event::Renewed { validity, .. } => held[index].lease_state.validity = validity,
                        Event::Trouble(_) => {}
                        Event::Lost(_) => break None,
                        Event::Revoked(revocation) => {
                            revoked = Some((&locks[index], revocation));
                            break None;
                        }
                    },
                }
            }
        };
        let end = match outcome {
            Some(Outcome::Granted { grant, validity }) => {
                let lease_state = LeaseState { validity, least_until: Moment::now() + lock.claim.min_hold };
                match lock.kept_descriptors() {
                    Ok(kept) => {
                        let hazard = lock.backend().hazard();
                        held.push(HeldLock { kept, grant, lease_state, hazard });
                        keeping.add(lock, terms, lease_state);
                        continue;
                    }
                    Err(error) => {
                        clean_up(&mut *lock.backend(), &lock.claim).await;
                        let error = StoreError::unreachable(format!("cannot keep it: {}", io_text(&error)));
                        Once::Ended(AcquireAllOutcome::Failed(lock, error))
                    }
                }
            }
            None => match revoked.take() {
                Some((revoked, revocation)) => Once::Ended(AcquireAllOutcome::Revoked(revoked, revocation)),
                None => Once::LostAgain(lock),
            },
            Some(Outcome::Contended(busy)) => Once::Ended(AcquireAllOutcome::Contended(lock, busy)),
            Some(Outcome::Refused(refusal)) => Once::Ended(AcquireAllOutcome::Refused(lock, refusal)),
            Some(Outcome::Failed(error)) => Once::Ended(AcquireAllOutcome::Failed(lock, error)),
            Some(Outcome::GivenUp) => Once::Ended(AcquireAllOutcome::GivenUp),
        };
        drop(keeping);
        give_back(&locks[..held.len()]).await;
        if let Once::LostAgain(_) | Once::Ended(AcquireAllOutcome::Revoked(..)) = &end {
            // The attempt that was broken off may have left a place in the line.
            clean_up(&mut *lock.backend(), &lock.claim).await;
        }
        return end;
    }
    Once::Ended(AcquireAllOutcome::Granted(held, keeping))
}

/// Frees locks that were taken for nothing, all at a time.
pub async fn give_back(locks: &[Lock]) {
    all(locks.iter().map(|lock| async { clean_up(&mut *lock.backend(), &lock.claim).await }).collect()).await;
}

/// Drives all of them at a time, and returns what they came to, in their order.
pub async fn all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut results: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (future, result) in futures.iter_mut().zip(&mut results) {
            if result.is_none()
                && let Poll::Ready(ready) = future.as_mut().poll(context)
            {
                *result = Some(ready);
            }
        }
        if results.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().flatten().collect()
}

//! Acquires several locks, all or none. They are taken in one canonical order, that of their names as bytes, so that
//! two runs can never wait for each other; the locks that are held already are renewed while waiting for the next.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{LocalBoxFuture, join_all};
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Mutex, MutexGuard, mpsc, watch};
use tokio::time::timeout;

use super::acquire::{self, Limits, NotGranted, WaitContext, acquire, clean_up};
use super::keeper::{Event, LeaseState, keep};
use super::validity::{Terms, Validity};
use crate::backend::{Backend, Hazard, StoreError, io_text};
use crate::clock::Moment;
use crate::lock::{Claim, Grant, LockName};

/// How long it may take to give locks back when the store has failed: dlock ends within its time-outs and another second.
const GIVE_BACK_AFTER_FAILURE: Duration = Duration::from_millis(600);

/// A claim and the store that it is made on.
pub struct Lock {
    /// The claim.
    pub claim: Claim,
    backend: Mutex<Box<dyn Backend>>,
}

impl Lock {
    /// Creates a lock that is not held yet.
    pub fn new(claim: Claim, backend: Box<dyn Backend>) -> Lock {
        Lock { claim, backend: Mutex::new(backend) }
    }

    /// Borrows the store; there may be one borrower at a time.
    ///
    /// # Panics
    /// Panics if the store is borrowed already, for instance by a keeper that was not dropped.
    pub fn backend(&self) -> MutexGuard<'_, Box<dyn Backend>> {
        self.backend.try_lock().expect("a lock's store has one user at a time")
    }

    /// Closes the connection to the store, where nothing of the claim is left, by replacing it with one that is not open.
    pub fn close(&self, unopened: Box<dyn Backend>) {
        *self.backend() = unopened;
    }

    fn kept_descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        self.backend().kept_descriptors().iter().map(|fd| fd.try_clone_to_owned()).collect()
    }
}

/// A lock that is held.
pub struct HeldLock<'a> {
    /// Its claim and its store.
    pub lock: &'a Lock,
    /// Duplicates of the descriptors whose closing frees the lock, for the guard.
    pub kept: Vec<OwnedFd>,
    /// The store's reply.
    pub grant: Grant,
    /// The lease at the time of the last renewal.
    pub lease_state: LeaseState,
    /// What the store has reported about itself that endangers the lock.
    pub hazard: Option<Hazard>,
}

impl<'a> HeldLock<'a> {
    /// Returns a lock that was just granted.
    ///
    /// # Errors
    /// The guard cannot have what keeps it; the lock was given back.
    pub(super) async fn new(
        lock: &'a Lock,
        grant: Grant,
        validity: Option<Validity>,
    ) -> Result<HeldLock<'a>, StoreError> {
        let lease_state = LeaseState { validity, min_hold_until: Moment::now() + lock.claim.min_hold };
        match lock.kept_descriptors() {
            Ok(kept) => Ok(HeldLock { lock, kept, grant, lease_state, hazard: lock.backend().hazard() }),
            Err(error) => {
                acquire::give_back(&mut **lock.backend(), &lock.claim).await;
                Err(StoreError::unreachable(format!("cannot keep it: {}", io_text(&error))))
            }
        }
    }

    /// Returns its name.
    pub fn name(&self) -> &'a LockName {
        &self.lock.claim.name
    }
}

/// How the acquisition of all locks ended: all are held, in the order of the locks, and have keepers; or this one could
/// not be acquired, or kept.
pub type AllGranted<'a> = Result<(Vec<HeldLock<'a>>, Keepers<'a>), (&'a Lock, NotGranted)>;

/// The keepers of all locks, which renew them.
pub struct Keepers<'a> {
    keepers: FuturesUnordered<LocalBoxFuture<'a, ()>>,
    events: mpsc::UnboundedReceiver<(usize, Event)>,
    sender: mpsc::UnboundedSender<(usize, Event)>,
    check: watch::Sender<()>,
}

impl<'a> Keepers<'a> {
    pub(super) fn empty() -> Keepers<'a> {
        let (sender, events) = mpsc::unbounded_channel();
        Keepers { keepers: FuturesUnordered::new(), events, sender, check: watch::Sender::new(()) }
    }

    /// Adds the keeper of a lock, whose events have this index.
    pub(super) fn add(&mut self, index: usize, held: &HeldLock<'a>, terms: &'a Terms) {
        let (lock, lease_state) = (held.lock, held.lease_state);
        let sender = self.sender.clone();
        // An error means that the receiver is gone; the event is then not needed.
        let report = move |event| drop(sender.send((index, event)));
        let check = self.check.subscribe();
        self.keepers.push(Box::pin(async move {
            keep(&mut **lock.backend(), &lock.claim, terms, lease_state, report, check).await;
            // The lock is lost: there is nothing left to renew, and the store may be borrowed again.
        }));
    }

    /// Makes every keeper renew its lock now.
    pub fn check_now(&self) {
        self.check.send_replace(());
    }

    /// Renews the locks, and returns the next event and the index of its lock. Dropping the future loses no event, but
    /// nothing is renewed until this is called again.
    pub async fn next(&mut self) -> (usize, Event) {
        loop {
            tokio::select! {
                biased;
                Some(event) = self.events.recv() => return event,
                // A keeper ends after its last event.
                Some(()) = self.keepers.next() => {}
            }
        }
    }
}

/// Acquires all locks in the order given, which is the same for every run. The locks that are held already are renewed
/// and, if one cannot be acquired, given back. If one is lost while waiting for another, the acquisition starts over,
/// as long as the limits allow.
///
/// Dropping the future leaves the locks that are held in the store until their leases end.
pub async fn acquire_all<'a>(
    locks: &'a [Lock],
    limits: &Limits,
    terms: &'a Terms,
    context: &WaitContext<'_>,
) -> AllGranted<'a> {
    loop {
        match attempt_all(locks, limits, terms, context).await {
            Ok(granted) => return Ok(granted),
            Err((lock, Some(why))) => return Err((lock, why)),
            Err((lock, None)) if limits.is_retry_expired() => {
                let error = StoreError::unreachable(
                    "was lost again, or renewed too late, while waiting for other locks",
                );
                return Err((lock, NotGranted::Failed(error)));
            }
            Err((_, None)) => {}
        }
    }
}

/// Acquires all locks once. On failure, returns the lock that was not acquired, and why; `None` if one that was held
/// already was lost meanwhile, or was renewed so late that a command cannot be started under it.
async fn attempt_all<'a>(
    locks: &'a [Lock],
    limits: &Limits,
    terms: &'a Terms,
    context: &WaitContext<'_>,
) -> Result<(Vec<HeldLock<'a>>, Keepers<'a>), (&'a Lock, Option<NotGranted>)> {
    let mut keepers = Keepers::empty();
    let mut held: Vec<HeldLock<'a>> = Vec::new();
    let mut revoked = None;
    let mut check_held = context.check_held.subscribe();
    for lock in locks {
        let granted = {
            let mut backend = lock.backend();
            let attempt = acquire(&mut **backend, &lock.claim, limits, terms, context);
            tokio::pin!(attempt);
            loop {
                tokio::select! {
                    biased;
                    granted = &mut attempt => break Some(granted),
                    _ = check_held.changed() => keepers.check_now(),
                    (index, event) = keepers.next(), if !held.is_empty() => match event {
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
        let (failed, why) = match granted {
            Some(Ok((grant, validity))) => match HeldLock::new(lock, grant, validity).await {
                Ok(granted) => {
                    keepers.add(held.len(), &granted, terms);
                    held.push(granted);
                    continue;
                }
                Err(error) => (lock, Some(NotGranted::Failed(error))),
            },
            Some(Err(why)) => (lock, Some(why)),
            None => match revoked.take() {
                Some((revoked, revocation)) => (revoked, Some(NotGranted::Revoked(revocation))),
                None => (lock, None),
            },
        };
        drop(keepers);
        let giving_back = Box::pin(give_back(held.iter().map(|held| held.lock)));
        match &why {
            // All locks are in one store, and that has just failed to reply.
            Some(NotGranted::Failed(StoreError::Unavailable { .. })) => {
                drop(timeout(GIVE_BACK_AFTER_FAILURE, giving_back).await)
            }
            _ => giving_back.await,
        }
        if let None | Some(NotGranted::Revoked(_)) = &why {
            // The attempt that was aborted may have left a queue position.
            clean_up(&mut **lock.backend(), &lock.claim).await;
        }
        return Err((failed, why));
    }
    // While it waited for the last one, another one may have been renewed too late.
    match held.iter().find(|held| locks.len() > 1 && held.lease_state.is_too_short()) {
        None => Ok((held, keepers)),
        Some(late) => {
            let late = late.lock;
            drop(keepers);
            give_back(held.iter().map(|held| held.lock)).await;
            Err((late, None))
        }
    }
}

/// Releases, concurrently, the locks that were acquired before the acquisition failed.
pub async fn give_back(locks: impl IntoIterator<Item = &Lock>) {
    let release = async |lock: &Lock| {
        acquire::give_back(&mut **lock.backend(), &lock.claim).await;
    };
    join_all(locks.into_iter().map(release)).await;
}

//! One lock, and the hold that a token owns, for `renew`, `release` and `check`; `break` and `thaw` look at locks, too.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::{LOCKS_AT_A_TIME, within};
use crate::backend::admin::{Listed, LockAdmin};
use crate::backend::{Backend, Ending, Outlook, Release, StoreError};
use crate::clock::Moment;
use crate::exit::Failure;
use crate::lease::acquire::timed_out;
use crate::lock::{Claim, Holder, LockName, LockState, Record, Token};
use crate::random::jitter;
use crate::report::{lock_error, not_owned};
use crate::settings::TokenPlan;

/// Returns the state of one lock. The holder that owns the token is marked as such.
pub(super) async fn look(
    store: &mut dyn LockAdmin,
    name: &LockName,
    token: Option<&Token>,
    limit: Duration,
) -> Result<LockState, StoreError> {
    let names = std::slice::from_ref(name);
    let inspection = bounded(limit, async || store.inspect(names, token).await).await?.whole()?;
    let state = inspection.locks.into_iter().next();
    state.ok_or_else(|| StoreError::unanswered("the store returned no state for it"))
}

/// The time limit for a record in the history when no other request to the store is pending.
pub(super) const RECORD: Duration = Duration::from_millis(400);

/// Adds a record to the history of a lock, if the store does so within the limit.
pub(super) async fn note<B: Backend + ?Sized>(
    store: &mut B,
    name: &LockName,
    record: &Record,
    limit: Duration,
) {
    let noted = async {
        store.connect().await?;
        store.add_record(name, record).await
    };
    let _ = within(limit, noted).await;
}

/// Returns the lock that a token owns, among all locks of the store.
pub(super) async fn lock_of(
    store: &mut dyn LockAdmin,
    token: &Token,
    limit: Duration,
) -> Result<Option<LockName>, StoreError> {
    within(limit, store.connect()).await?;
    let names = within(limit, store.list(Listed::InUse)).await?;
    for names in names.chunks(LOCKS_AT_A_TIME) {
        let seen = within(limit, store.inspect(names, Some(token))).await?.whole()?;
        let owned = seen.locks.into_iter().find(|lock| lock.holders.iter().any(|holder| holder.ours));
        if let Some(lock) = owned {
            return Ok(Some(lock.name));
        }
    }
    Ok(None)
}

/// The hold that a token owns.
pub(super) struct Hold<'a> {
    pub(super) plan: &'a TokenPlan,
    pub(super) store: Box<dyn LockAdmin>,
    pub(super) holder: Holder,
}

impl<'a> Hold<'a> {
    /// Finds the hold, which must have been taken by `dlock acquire`.
    ///
    /// # Errors
    /// The token owns no lock (76), or the lock of a `dlock run` (64); the store did not reply (69, 77, 78).
    pub(super) async fn find(plan: &'a TokenPlan) -> Result<Hold<'a>, Failure> {
        let mut store = plan.target.store.open();
        let state = look(&mut *store, &plan.name, Some(&plan.token), plan.target.connect_timeout).await;
        let state = state.map_err(|error| lock_error(&plan.name, plan.target.store.display(), &error, ""))?;
        let Some(holder) = state.holders.iter().find(|holder| holder.ours).cloned() else {
            return Err(not_owned(&plan.name, Some(&state.holders), plan.target.store.display()));
        };
        let hold = Hold { plan, store, holder };
        match &hold.holder.identity {
            Some(identity) if identity.unattended => Ok(hold),
            Some(_) => Err(Failure::usage(format!(
                "{} on {}: this is the token of a dlock run, which renews and releases the lock itself",
                plan.name,
                plan.target.store.display()
            ))),
            None => Err(hold.failed(&StoreError::unreachable("the record of its holder cannot be read"))),
        }
    }

    pub(super) fn failed(&self, error: &StoreError) -> Failure {
        lock_error(&self.plan.name, self.plan.target.store.display(), error, "")
    }

    /// Returns the failure that the lock is no longer held, with the current holder.
    pub(super) async fn lost(&mut self) -> Failure {
        let plan = self.plan;
        let state = look(&mut *self.store, &plan.name, Some(&plan.token), plan.target.connect_timeout).await;
        let holders = state.as_ref().ok().map(|state| state.holders.as_slice());
        not_owned(&plan.name, holders, plan.target.store.display())
    }

    /// The claim of the hold, as far as stores need it, with a lease of this length.
    pub(super) fn claim(&self, ttl: Duration) -> Claim {
        Claim::new(self.plan.name.clone(), self.plan.token.clone(), ttl)
    }
}

/// Releases a lock within a time limit, and repeats the request once if the connection broke: that the lock is gone then means
/// that the first request has released it, unless it would have to be kept still.
pub(super) async fn release<B: Backend + ?Sized>(
    store: &mut B,
    claim: &Claim,
    rest: Duration,
    ending: Ending<'_>,
    limit: Duration,
) -> Result<Release, StoreError> {
    let (began, sent) = (Moment::now(), Cell::new(None));
    let mut send = async |ending| {
        store.connect().await?;
        sent.set(Some(Moment::now()));
        store.release(claim, rest, ending).await
    };
    let twice = async {
        match send(ending).await {
            Err(StoreError::Unavailable { maybe_applied, .. }) if sent.get().is_some() => {
                match send(if maybe_applied { ending.repeated() } else { ending }).await {
                    Ok(Release::NotHeld) if maybe_applied && Moment::now() - began >= rest => {
                        Ok(Release::Released)
                    }
                    // Whatever became of this attempt, the first one may have released the lock.
                    result if maybe_applied => result.map_err(StoreError::after_a_part),
                    result => result,
                }
            }
            result => result,
        }
    };
    timeout(limit, twice).await.unwrap_or_else(|_| Err(timed_out(sent.get(), limit)))
}

/// Sends a request within a time limit; repeats it once if the connection broke. The request must be
/// idempotent.
pub(super) async fn bounded<T>(
    limit: Duration,
    mut request: impl AsyncFnMut() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let twice = async {
        match request().await {
            Err(StoreError::Unavailable { maybe_applied: true, .. }) => {
                request().await.map_err(StoreError::after_a_part)
            }
            result => result,
        }
    };
    within(limit, twice).await
}

/// The longest pause of a request that is repeated because other clients are in its way.
const PAUSE: Duration = Duration::from_millis(50);

/// Does the same, and repeats the request as long as only other clients are in its way.
pub(super) async fn persistent<T>(
    limit: Duration,
    mut request: impl AsyncFnMut() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    bounded(limit, async || {
        loop {
            match request().await {
                Err(StoreError::Unavailable {
                    maybe_applied: false, outlook: Outlook::Transient, ..
                }) => sleep(jitter(PAUSE)).await,
                result => return result,
            }
        }
    })
    .await
}

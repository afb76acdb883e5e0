//! The hold that a token proves, for those who come back with it.

use std::time::Duration;

use super::within;
use crate::backend::admin::LockAdmin;
use crate::backend::{Release, StoreError};
use crate::exit::Failure;
use crate::lock::{Claim, Holder, Identity, LockName, LockState, Mode, Token};
use crate::plan::TokenPlan;
use crate::report::{not_asked, not_owned};

/// What a store says of a lock, when asked with this token.
pub(super) async fn look(
    store: &mut dyn LockAdmin,
    name: &LockName,
    token: &Token,
    limit: Duration,
) -> Result<LockState, StoreError> {
    let names = std::slice::from_ref(name);
    let inspection = bounded(limit, async || store.inspect(names, Some(token)).await).await?.whole()?;
    let state = inspection.locks.into_iter().next();
    state.ok_or_else(|| StoreError::unanswered("the store does not tell about it"))
}

/// The hold that a token proves.
pub(super) struct Hold<'a> {
    pub(super) plan: &'a TokenPlan,
    pub(super) store: Box<dyn LockAdmin>,
    pub(super) holder: Holder,
}

impl<'a> Hold<'a> {
    /// Finds the hold, which has to be one that `dlock acquire` took.
    ///
    /// # Errors
    /// The token owns nothing (76), or what a `dlock run` holds (64); the store gave no answer (69, 77, 78).
    pub(super) async fn find(plan: &'a TokenPlan) -> Result<Hold<'a>, Failure> {
        let mut store = plan.store.oversee();
        let state = look(&mut *store, &plan.name, &plan.token, plan.connect_timeout).await;
        let state = state.map_err(|error| not_asked(&plan.name, plan.store.display(), &error, ""))?;
        let Some(holder) = state.holders.iter().find(|holder| holder.ours).cloned() else {
            return Err(not_owned(&state, plan.store.display()));
        };
        let hold = Hold { plan, store, holder };
        match &hold.holder.identity {
            Some(identity) if identity.unattended => Ok(hold),
            Some(_) => Err(Failure::usage(format!(
                "{} on {}: this is the token of a dlock run, which renews and releases the lock itself",
                plan.name,
                plan.store.display()
            ))),
            None => {
                Err(hold.failed(&StoreError::unreachable("what its holder says of itself cannot be read")))
            }
        }
    }

    /// What a store's failure means.
    pub(super) fn failed(&self, error: &StoreError) -> Failure {
        not_asked(&self.plan.name, self.plan.store.display(), error, "")
    }

    /// That it is not ours any more.
    pub(super) async fn lost(&mut self) -> Failure {
        let plan = self.plan;
        match look(&mut *self.store, &plan.name, &plan.token, plan.connect_timeout).await {
            Ok(state) => not_owned(&state, plan.store.display()),
            Err(_) => not_owned(&LockState::free(plan.name.clone()), plan.store.display()),
        }
    }

    /// The claim that the hold was taken with, as far as stores ask for it, with a lease of this length.
    pub(super) fn claim(&self, ttl: Duration) -> Claim {
        Claim {
            name: self.plan.name.clone(),
            token: self.plan.token.clone(),
            mode: Mode::Exclusive,
            ttl,
            min_hold: Duration::ZERO,
            identity: Identity::default(),
            outer: Vec::new(),
            requires_outer_hold: false,
        }
    }
}

/// Gives a lock back, which was ours.
pub(super) async fn give_back<B: crate::backend::Backend + ?Sized>(
    store: &mut B,
    claim: &Claim,
    limit: Duration,
) -> Result<Release, StoreError> {
    let mut uncertain = false;
    bounded(limit, async || {
        store.connect().await?;
        match store.release(claim, Duration::ZERO, None).await {
            Err(error @ StoreError::Unavailable { maybe_applied, .. }) => {
                uncertain |= maybe_applied;
                Err(error)
            }
            Ok(Release::NotHeld) if uncertain => Ok(Release::Released),
            result => result,
        }
    })
    .await
}

/// Asks within a time; once more when the connection broke over the first question. What is asked may be asked twice.
pub(super) async fn bounded<T>(
    limit: Duration,
    mut ask: impl AsyncFnMut() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let twice = async {
        match ask().await {
            Err(StoreError::Unavailable { maybe_applied: true, .. }) => ask().await,
            result => result,
        }
    };
    within(limit, twice).await
}

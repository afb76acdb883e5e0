//! The check that a scratch lock can be acquired, renewed and released, by the same scripts as any lock.

use std::time::Duration;

use super::super::RedisStore;
use super::super::keys::Keys;
use super::super::recipe::Recipe;
use super::Examiner;
use super::rights::{Rights, SCRATCH_LIFE_MS};
use crate::backend::diagnosis::{Finding, short};
use crate::backend::{Attempt, Backend, Intent, Release, Renewal, StoreError};
use crate::clock::Moment;
use crate::lock::{Claim, Identity, LockName, Mode, Token};

impl Examiner<'_> {
    /// Acquires, renews and releases a scratch lock, then removes its keys.
    pub(super) async fn lock(
        &mut self,
        store: &mut RedisStore,
        name: LockName,
        token: Token,
        keys: &Keys,
    ) -> Result<(), StoreError> {
        self.diagnosis.begin("lock");
        let life = Duration::from_millis(SCRATCH_LIFE_MS as u64);
        // The name is not used again, so its fencing counter may expire soon.
        store.counter_ttl = Some(life);
        store.old_protocol |= !self.connection.pushes();
        let claim = Claim {
            name,
            token,
            mode: Mode::Exclusive,
            ttl: life,
            min_hold: Duration::ZERO,
            identity: Identity {
                pid: std::process::id(),
                command: "dlock doctor".into(),
                ..Identity::default()
            },
            outer: Vec::new(),
            requires_outer_hold: false,
        };
        let start = Moment::now();
        let outcome = cycle(store, &claim).await;
        let took = Moment::now() - start;
        let mut unlist = redis::cmd("ZREM");
        unlist.arg(&keys.index).arg(&keys.lock);
        let removals = Rights::of(keys, claim.token.reveal()).removals();
        self.connection.exchange(&removals, &unlist).await?;
        self.found(match outcome {
            Ok(()) => Finding::ok("lock", format!("taken, renewed and given back in {}", short(took))),
            Err(text) => Finding::problem(
                "lock",
                text,
                "no lock can be taken, or none can be kept",
                "check that it is a complete Redis or Valkey server, without a proxy that lacks commands",
            ),
        });
        Ok(())
    }
}

/// Acquires, renews and releases the lock.
async fn cycle(store: &mut RedisStore, claim: &Claim) -> Result<(), String> {
    let failed = |what: &str, error: StoreError| format!("cannot {what}: {error}");
    store.connect().await.map_err(|error| failed("connect again", error))?;
    match store.try_acquire(claim, Intent::TakeNow).await.map_err(|error| failed("take it", error))? {
        Attempt::Granted(_) => {}
        _ => return Err("a lock with a random name is held".into()),
    }
    let renewal = store.renew(claim, Duration::ZERO).await.map_err(|error| failed("renew it", error))?;
    if !matches!(renewal, Renewal::Held { .. }) {
        return Err("it was gone at once".into());
    }
    match store.release(claim, Duration::ZERO, None).await.map_err(|error| failed("give it back", error))? {
        Release::Released => Ok(()),
        _ => Err("it was gone before it was given back".into()),
    }
}

/// Returns an unused lock name, which is also valid in a cluster.
///
/// # Errors
/// No random numbers are available.
pub(super) fn name(recipe: Recipe) -> Result<LockName, StoreError> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|error| StoreError::unreachable(error.to_string()))?;
    let name = format!("dlock-doctor-{:016x}", u64::from_ne_bytes(random));
    let name = if recipe == Recipe::PythonRedisLock { format!("{{{name}}}") } else { name };
    LockName::new(&name).map_err(|error| StoreError::unreachable(error.to_string()))
}

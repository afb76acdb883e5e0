//! The whole life of a lock that nobody else knows, by the scripts that everybody uses.

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
    /// The whole life of a lock, by the scripts that everybody uses.
    pub(super) async fn lock(
        &mut self,
        store: &mut RedisStore,
        name: LockName,
        token: Token,
        keys: &Keys,
    ) -> Result<(), StoreError> {
        self.examination.begin("lock");
        let life = Duration::from_millis(SCRATCH_LIFE_MS as u64);
        // The fencing counter of a name that nobody uses again.
        store.counter_life = Some(life);
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
        let begun = Moment::now();
        let lived = live(store, &claim).await;
        let took = Moment::now() - begun;
        let mut forget = redis::cmd("ZREM");
        forget.arg(&keys.index).arg(&keys.lock);
        let removals = Rights::of(keys, claim.token.reveal()).removals();
        self.connection.exchange(&removals, &forget).await?;
        self.found(match lived {
            Ok(()) => Finding::ok("lock", format!("taken, renewed and given back in {}", short(took))),
            Err(text) => Finding::problem(
                "lock",
                text,
                "no lock can be taken, or none can be kept",
                "see whether it is a whole Redis or Valkey server that runs there, and no proxy that leaves anything out",
            ),
        });
        Ok(())
    }
}

/// Takes, renews and gives back.
async fn live(store: &mut RedisStore, claim: &Claim) -> Result<(), String> {
    let failed = |what: &str, error: StoreError| format!("cannot {what}: {error}");
    store.connect().await.map_err(|error| failed("connect again", error))?;
    match store.try_acquire(claim, Intent::TakeNow).await.map_err(|error| failed("take it", error))? {
        Attempt::Granted(_) => {}
        _ => return Err("a lock that nobody else knows is held".into()),
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

/// A name that nobody has used before, and that can be used in a cluster too.
///
/// # Errors
/// There are no random numbers.
pub(super) fn name(recipe: Recipe) -> Result<LockName, StoreError> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|error| StoreError::unreachable(error.to_string()))?;
    let name = format!("dlock-doctor-{:016x}", u64::from_ne_bytes(random));
    let name = if recipe == Recipe::PythonRedisLock { format!("{{{name}}}") } else { name };
    LockName::new(&name).map_err(|error| StoreError::unreachable(error.to_string()))
}

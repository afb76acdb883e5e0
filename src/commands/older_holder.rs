//! `--supersede=running`: a holder that gave the option too is asked to end, as by `dlock break`.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use tokio::sync::Notify;

use super::within;
use crate::backend::{Busy, StoreError};
use crate::identity;
use crate::lock::{Claim, Identity, LockName, Revocation};
use crate::random::jitter;
use crate::settings::StoreTarget;

/// The average pause before a store that did not reply is asked again.
const RETRY: Duration = Duration::from_secs(1);

/// The holder that a waiting run supersedes: the one that it finds first. Later ones may be younger than the run, if that has
/// lost its place in the queue meanwhile.
#[derive(Default)]
pub(super) struct OlderHolder {
    /// The run has found a holder.
    has_looked: Cell<bool>,
    /// The lock, who holds it, and by whom it is superseded; taken when it is being revoked.
    found: RefCell<Option<(LockName, Identity, Identity)>>,
    is_found: Notify,
}

impl OlderHolder {
    /// Notes the holder that a claim has found first, if it is one that is to end and whose command runs.
    pub(super) fn note(&self, claim: &Claim, busy: &Busy) {
        // Not one that is not known yet, such as that of a gate that has just been passed.
        let is_known = busy.holders.iter().any(|holder| holder.identity.is_some());
        if !is_known || self.has_looked.replace(true) {
            return;
        }
        let running = busy.holders.iter().filter(|holder| holder.ended.is_none());
        let mut older = running.filter_map(|holder| holder.identity.as_ref());
        if let Some(older) = older.find(|identity| identity.supersedes) {
            self.found.replace(Some((claim.name.clone(), older.clone(), claim.identity.clone())));
            self.is_found.notify_one();
        }
    }

    /// Asks the holder that is noted to end, over a connection of its own, until the store has been told. Never returns. May
    /// be dropped at any time.
    pub(super) async fn revoke_each(&self, target: &StoreTarget) {
        self.is_found.notified().await;
        if let Some((name, older, newer)) = self.found.take() {
            while revoke(target, &name, &older, &newer).await.is_err() {
                tokio::time::sleep(RETRY / 2 + jitter(RETRY)).await;
            }
        }
        std::future::pending().await
    }
}

async fn revoke(
    target: &StoreTarget,
    name: &LockName,
    older: &Identity,
    newer: &Identity,
) -> Result<(), StoreError> {
    let Identity { pid, command, .. } = newer;
    let revocation = Revocation {
        by: format!("{}@{}", newer.user, newer.host),
        reason: Some(format!("superseded by a later run (pid {pid}, {command})")),
    };
    let limit: Duration = target.connect_timeout;
    let mut store = target.store.open();
    within(limit, store.connect()).await?;
    let seen = within(limit, store.inspect(std::slice::from_ref(name), None)).await?.whole()?;
    let holders = seen.locks.into_iter().flat_map(|lock| lock.holders);
    for holder in holders.filter(|holder| holder.identity.as_ref() == Some(older)) {
        within(limit, store.revoke(name, &holder, &revocation)).await?;
        identity::wake(older, name);
    }
    Ok(())
}

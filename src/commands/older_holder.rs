//! `--supersede=running`: a holder that gave the option too is asked to end, as by `dlock break`.

use std::cell::RefCell;
use std::time::Duration;

use tokio::sync::Notify;

use super::within;
use crate::backend::{Busy, StoreError};
use crate::identity;
use crate::lock::{Claim, Identity, LockName, Revocation};
use crate::settings::StoreTarget;

/// The holder that a waiting run supersedes. A waiter is younger than any holder that it finds.
#[derive(Default)]
pub(super) struct OlderHolder {
    /// The lock, who holds it, and by whom it is superseded; taken when it is being revoked.
    found: RefCell<Option<(LockName, Identity, Identity)>>,
    /// The holder that was asked to end last.
    asked: RefCell<Option<Identity>>,
    is_found: Notify,
}

impl OlderHolder {
    /// Notes the holder that a claim has found, if it is to be asked to end and was not asked yet.
    pub(super) fn note(&self, claim: &Claim, busy: &Busy) {
        let mut holders = busy.holders.iter().filter_map(|holder| holder.identity.as_ref());
        if let Some(older) = holders.find(|identity| identity.supersedes)
            && self.asked.borrow().as_ref() != Some(older)
        {
            self.asked.replace(Some(older.clone()));
            self.found.replace(Some((claim.name.clone(), older.clone(), claim.identity.clone())));
            self.is_found.notify_one();
        }
    }

    /// Asks each holder that is noted to end, over a connection of its own. Never returns. May be dropped at any time.
    pub(super) async fn revoke_each(&self, target: &StoreTarget) {
        loop {
            self.is_found.notified().await;
            let found = self.found.take();
            let Some((name, older, newer)) = found else { continue };
            if revoke(target, &name, &older, &newer).await.is_err() {
                // The next attempt of the claim notes it again.
                self.asked.replace(None);
            }
        }
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

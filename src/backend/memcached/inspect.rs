//! What operators request: the state of a lock, and the end of a hold.

use std::time::Duration;

use super::store::{Known, MemcachedStore, Step};
use crate::backend::admin::{Inspection, LockAdmin, Raised, Removal, Revoked};
use crate::backend::diagnosis::Diagnosis;
use crate::backend::location::Demand;
use crate::backend::{Backend, Reply, StoreError};
use crate::clock::wall_micros;
use crate::lock::{FencingToken, Holder, LockName, LockState, Mode, NotedRecord, Revocation, Token};

impl LockAdmin for MemcachedStore {
    fn list(&mut self) -> Reply<'_, Result<Vec<LockName>, StoreError>> {
        self.refused(Demand::List)
    }

    fn list_recorded(&mut self) -> Reply<'_, Result<Vec<LockName>, StoreError>> {
        self.refused(Demand::History)
    }

    fn inspect<'a>(
        &'a mut self,
        names: &'a [LockName],
        token: Option<&'a Token>,
    ) -> Reply<'a, Result<Inspection, StoreError>> {
        Box::pin(async move {
            self.connect().await?;
            let mut locks = Vec::with_capacity(names.len());
            for name in names {
                locks.push(self.state(name, token).await?);
            }
            Ok(Inspection { now_ms: wall_micros() / 1000, locks })
        })
    }

    fn last_fencing_token<'a>(
        &'a mut self,
        _: &'a LockName,
    ) -> Reply<'a, Result<Option<FencingToken>, StoreError>> {
        self.refused(Demand::FencingTokens)
    }

    fn raise_fencing<'a>(
        &'a mut self,
        _: &'a LockName,
        _: FencingToken,
    ) -> Reply<'a, Result<Raised, StoreError>> {
        self.refused(Demand::FencingTokens)
    }

    fn history<'a>(&'a mut self, _: &'a LockName) -> Reply<'a, Result<Vec<NotedRecord>, StoreError>> {
        self.refused(Demand::History)
    }

    fn revoke<'a>(
        &'a mut self,
        name: &'a LockName,
        holder: &'a Holder,
        revocation: &'a Revocation,
    ) -> Reply<'a, Result<Revoked, StoreError>> {
        Box::pin(self.change(name, None, move |known| {
            let Some(Known { hold: Some(mut hold), remaining, .. }) =
                known.filter(|known| known.is_shown_as(holder))
            else {
                return Step::Leave(Revoked::Gone);
            };
            match hold.running() {
                0 => Step::Delete(Revoked::Ended),
                running => {
                    hold.revoked = Some(revocation.clone());
                    Step::Store(hold, remaining, Revoked::Notified(running))
                }
            }
        }))
    }

    fn remove<'a>(
        &'a mut self,
        name: &'a LockName,
        holder: &'a Holder,
    ) -> Reply<'a, Result<Removal, StoreError>> {
        Box::pin(self.change(name, None, move |known| match known {
            Some(known) if known.is_shown_as(holder) => Step::Delete(Removal::Removed),
            _ => Step::Leave(Removal::Changed),
        }))
    }

    fn examine<'a>(&'a mut self, diagnosis: &'a Diagnosis) -> Reply<'a, Result<(), StoreError>> {
        Box::pin(self.examine_server(diagnosis))
    }
}

impl MemcachedStore {
    async fn state(&mut self, name: &LockName, token: Option<&Token>) -> Result<LockState, StoreError> {
        let free = LockState::free(name.clone());
        Ok(match self.read(&self.location.key(name)).await {
            Ok(None) => free,
            Ok(Some(known)) => LockState {
                mode: known.hold.as_ref().map(|_| Mode::Exclusive),
                holders: known.holders(token),
                ..free
            },
            Err(unreadable @ StoreError::Config(_)) => LockState { unknown: Some(unreadable.into()), ..free },
            Err(error) => return Err(error),
        })
    }
}

impl Known {
    /// Returns the holders as they are shown; `token` is that of the request.
    pub(super) fn holders(&self, token: Option<&Token>) -> Vec<Holder> {
        let remaining = (self.remaining > 0).then(|| Duration::from_secs(self.remaining));
        match &self.hold {
            Some(hold) => hold.holders(remaining, token),
            None => vec![Holder {
                remaining,
                immortal: remaining.is_none(),
                digest: Some(self.cas.to_string()),
                ..Holder::default()
            }],
        }
    }

    /// Returns whether it is still the hold that was shown.
    fn is_shown_as(&self, holder: &Holder) -> bool {
        let id = self.hold.as_ref().map_or_else(|| self.cas.to_string(), |hold| hold.id.clone());
        holder.digest.as_ref() == Some(&id)
    }
}

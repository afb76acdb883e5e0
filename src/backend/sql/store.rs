//! The store of one client.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::own::OwnLedgers;
use super::recipe::Recipe;
use crate::backend::admin::{Listed, Removal};
use crate::backend::diagnosis::Diagnosis;
use crate::backend::ledger::document::leased_gate::{LeasedGate, Passages};
use crate::backend::ledger::document::{DocumentStore, Documents, Revision, Seen, Shortcut};
use crate::backend::ledger::{
    Contender, GateLifetime, GateMode, Ledger, Occupant, Purpose, Store, WaiterEntry,
};
use crate::backend::{Change, Hazard, Reply, StoreError, TryReply, shedlock};
use crate::lock::{Claim, Holder, LockName};

/// The client of a server with the table, and what differs from one kind of server to another.
pub trait Client: shedlock::Database + Sized {
    /// The lock of a session that may be the gate.
    type Session: SessionLock<Self> + Default;

    /// See [`Backend::connect`](crate::backend::Backend::connect).
    fn connect(&mut self) -> impl Future<Output = Result<(), StoreError>>;

    /// Reads the row of a lock after the shortcut, in one request; version 0 stands for no row. `None` if the user may not
    /// have the table.
    ///
    /// # Errors
    /// The server could not be queried, or the table is not one of dlock, or the row is in an unknown format.
    fn load(
        &mut self,
        session: &mut Self::Session,
        name: &LockName,
        purpose: &Purpose,
        shortcut: &Shortcut,
    ) -> impl Future<Output = Result<Option<Seen<u64>>, StoreError>>;

    /// Stores a ledger if its row still has this version, or if there is still no row, for version 0. Returns the version
    /// that it has now; `None` if it was not stored.
    ///
    /// # Errors
    /// As of [`load`](Client::load).
    fn swap(
        &mut self,
        name: &LockName,
        version: u64,
        revision: &Revision<'_>,
    ) -> impl Future<Output = Result<Option<u64>, StoreError>>;

    /// Returns the names of these locks.
    ///
    /// # Errors
    /// As of [`load`](Client::load).
    fn names(&mut self, which: Listed) -> impl Future<Output = Result<Vec<LockName>, StoreError>>;

    /// See [`DocumentStore::lacks_ledgers`].
    fn lacks_table(&self) -> Option<String>;

    /// See [`DocumentStore::is_subscribed`].
    fn is_subscribed(&self, name: &LockName, waiter: &WaiterEntry) -> bool;

    /// See [`DocumentStore::is_notified`].
    fn is_notified(&self) -> bool {
        true
    }

    /// Forgets the notifications that have arrived.
    fn clear(&mut self) {}

    /// See [`Backend::changed`](crate::backend::Backend::changed).
    fn changed(&mut self) -> impl Future<Output = Change>;

    /// See [`LockAdmin::examine`](crate::backend::admin::LockAdmin::examine).
    fn examine(
        store: &mut RowStore<Self>,
        diagnosis: &Diagnosis,
    ) -> impl Future<Output = Result<(), StoreError>>;

    /// See [`Backend::hazard`](crate::backend::Backend::hazard).
    fn hazard(&self) -> Option<Hazard> {
        None
    }

    /// See [`Backend::fails_over`](crate::backend::Backend::fails_over).
    fn fails_over(&self) -> bool {
        false
    }

    /// Returns the socket of a session that is kept.
    fn kept(&self) -> Option<BorrowedFd<'_>>;
}

/// The locks of a session, one of which may be the gate in front of a row.
pub trait SessionLock<C> {
    /// See [`DocumentStore::passed`].
    fn passed(&self, client: &C, purpose: &Purpose) -> Option<(u64, u64)>;

    /// See [`DocumentStore::observe_gate`].
    ///
    /// # Errors
    /// The server could not be queried.
    fn observe(
        &mut self,
        client: &mut C,
        name: &LockName,
        purpose: &Purpose,
    ) -> impl Future<Output = Result<Vec<Occupant>, StoreError>>;

    /// See [`DocumentStore::pass_gate`].
    ///
    /// # Errors
    /// The server could not be queried, or the session is not one of this client alone.
    fn pass(
        &mut self,
        client: &mut C,
        claim: &Claim,
        mode: GateMode,
    ) -> impl Future<Output = Result<bool, StoreError>>;

    /// See [`DocumentStore::leave_gate`].
    ///
    /// # Errors
    /// The server could not be queried.
    fn leave(&mut self, client: &mut C, claim: &Claim) -> impl Future<Output = Result<bool, StoreError>>;

    /// Returns whether a session that has passed a gate is known to have ended.
    fn is_lost(&self, _client: &C) -> bool {
        false
    }

    /// Returns whether this is about a hold whose session is known to have ended since it passed the gate.
    fn has_ended(&self, _client: &C, _purpose: &Purpose) -> bool {
        false
    }
}

/// A client of the locks in a table. If it ends without a release, its entries end with their leases.
pub struct RowStore<C: Client> {
    /// What sends the requests.
    pub client: C,
    /// The locks of its session.
    session: C::Session,
    /// The rows of ShedLock that it has taken.
    pub shedlock: Option<Passages<shedlock::Gate>>,
    lifetime: Option<GateLifetime>,
    /// The ledgers of a user that may not have the table.
    own: OwnLedgers,
}

impl<C: Client> RowStore<C> {
    /// Returns a client whose locks are of this recipe, with this prefix in the table of ShedLock; does not connect.
    pub fn contender<S>(client: C, recipe: &Recipe<S>, prefix: &str) -> Contender<RowStore<C>> {
        let (session, own) = (C::Session::default(), OwnLedgers::default());
        let (shedlock, lifetime) = (recipe.shedlock(prefix).map(Passages::new), recipe.gate_lifetime());
        Contender::new(RowStore { client, session, shedlock, lifetime, own })
    }
}

impl<C: Client> DocumentStore for RowStore<C> {
    /// 0 if there is no row.
    type Version = u64;

    async fn load(
        &mut self,
        name: &LockName,
        purpose: &Purpose,
        shortcut: &Shortcut,
        _: Option<&Seen<u64>>,
    ) -> Result<Seen<u64>, StoreError> {
        if purpose.claim().is_some() {
            // What happened before is known to the decision.
            self.client.clear();
        }
        let seen = self.client.load(&mut self.session, name, purpose, shortcut).await?;
        Ok(seen.unwrap_or_else(|| self.own.load(name)))
    }

    fn is_subscribed(&self, name: &LockName, waiter: &WaiterEntry) -> bool {
        self.client.is_subscribed(name, waiter)
    }

    fn is_notified(&self) -> bool {
        self.client.is_notified()
    }

    async fn swap(
        &mut self,
        name: &LockName,
        purpose: &Purpose,
        version: u64,
        revision: Revision<'_>,
    ) -> Result<Option<u64>, StoreError> {
        if let Some(gate) = &mut self.shedlock {
            gate.end_others(&mut self.client, name, purpose, revision.before, revision.ledger).await?;
        }
        if self.client.lacks_table().is_some() {
            self.own.swap(name, revision.ledger);
            return Ok(Some(version));
        }
        self.client.swap(name, version, &revision).await
    }

    fn lacks_ledgers(&self) -> Option<String> {
        self.client.lacks_table()
    }

    fn gate_lifetime(&self) -> Option<GateLifetime> {
        self.lifetime
    }

    fn passed(&self, purpose: &Purpose) -> Option<(u64, u64)> {
        match &self.shedlock {
            Some(gate) => gate.passed(purpose),
            None => self.session.passed(&self.client, purpose),
        }
    }

    fn has_lost_gate(&self, purpose: &Purpose) -> bool {
        self.session.has_ended(&self.client, purpose)
    }

    async fn observe_gate(
        &mut self,
        name: &LockName,
        purpose: &Purpose,
        ledger: &Ledger,
    ) -> Result<Vec<Occupant>, StoreError> {
        match &mut self.shedlock {
            Some(gate) => gate.observe(&mut self.client, name, purpose, ledger).await,
            None => self.session.observe(&mut self.client, name, purpose).await,
        }
    }

    async fn pass_gate(
        &mut self,
        purpose: &Purpose,
        claim: &Claim,
        mode: GateMode,
    ) -> Result<bool, StoreError> {
        match &mut self.shedlock {
            Some(gate) => gate.pass(&mut self.client, purpose, claim).await,
            None => self.session.pass(&mut self.client, claim, mode).await,
        }
    }

    async fn leave_gate(
        &mut self,
        purpose: &Purpose,
        claim: &Claim,
        rest: Duration,
    ) -> Result<bool, StoreError> {
        match &mut self.shedlock {
            Some(gate) => gate.leave(&mut self.client, purpose, claim, rest).await,
            None => self.session.leave(&mut self.client, claim).await,
        }
    }
}

impl<C: Client> Store for RowStore<C> {
    type Shape = Documents<u64>;

    fn connect(&mut self) -> TryReply<'_, ()> {
        Box::pin(async {
            match self.client.connect().await {
                // What it was connected for is known without the server.
                Err(StoreError::Unavailable { .. }) if self.session.is_lost(&self.client) => Ok(()),
                result => result,
            }
        })
    }

    fn list(&mut self, which: Listed) -> TryReply<'_, Vec<LockName>> {
        Box::pin(self.client.names(which))
    }

    fn changed(&mut self) -> Reply<'_, Change> {
        Box::pin(self.client.changed())
    }

    fn unfrozen(&self) -> Option<&str> {
        let is_session = self.lifetime == Some(GateLifetime::Session);
        is_session.then_some("other programs that take the same lock, and users who may not have the table")
    }

    fn examine<'a>(&'a mut self, diagnosis: &'a Diagnosis) -> TryReply<'a, ()> {
        Box::pin(C::examine(self, diagnosis))
    }

    fn end_foreign<'a>(&'a mut self, name: &'a LockName, shown: &'a Holder) -> TryReply<'a, Removal> {
        Box::pin(async move {
            match &mut self.shedlock {
                Some(passages) => passages.gate.end_shown(&mut self.client, name, shown).await,
                None => Ok(Removal::Impossible),
            }
        })
    }

    fn shares_ledgers(&self) -> bool {
        self.client.lacks_table().is_none()
    }

    fn hazard(&self) -> Option<Hazard> {
        self.client.hazard()
    }

    fn fails_over(&self) -> bool {
        self.client.fails_over()
    }

    fn kept_descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.client.kept().into_iter().collect()
    }
}

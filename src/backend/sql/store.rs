//! The store of one client.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::row::{Row, now};
use super::seen::{LastSeen, OwnLedgers};
use crate::backend::admin::Removal;
use crate::backend::diagnosis::Diagnosis;
use crate::backend::ledger::document::{self, DocumentStore, Revision, Seen, Shortcut};
use crate::backend::ledger::{
    Contender, Done, Gate, GateLifetime, GateMode, Ledger, LedgerStore, Now, Observed, Occupant, Purpose,
    Step, WaiterEntry,
};
use crate::backend::{Change, Hazard, Loss, Reply, StoreError, shedlock};
use crate::clock::Moment;
use crate::lock::{Claim, Holder, LockName, LockState, NotedRecord};

/// The server's clock in microseconds since 1970, and the row of a lock, if there is one.
pub type Reading = (u64, Option<Row>);

/// The locks whose names are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// Those with an entry that is alive.
    Used,
    /// Those with outcomes.
    Recorded,
}

/// The client of a server with the table, and what differs from one kind of server to another.
pub trait Client: shedlock::Database + Sized {
    /// The lock of a session that may be the gate.
    type Session: SessionLock<Self> + Default;

    /// See [`Backend::display`](crate::backend::Backend::display).
    fn display(&self) -> &str;

    /// See [`Backend::connect`](crate::backend::Backend::connect).
    fn connect(&mut self) -> impl Future<Output = Result<(), StoreError>>;

    /// Returns when the last request was sent.
    fn sent(&self) -> Moment;

    /// Reads the row of a lock after the shortcut, in one request; `None` if the user may not have the table.
    ///
    /// # Errors
    /// The server could not be queried, or the table is not one of dlock.
    fn load(
        &mut self,
        session: &mut Self::Session,
        name: &LockName,
        shortcut: &Shortcut,
    ) -> impl Future<Output = Result<Option<Reading>, StoreError>>;

    /// Stores a ledger if its row still has this version, or if there is still no row, for version 0: then at least with
    /// the version `first`. Returns the version that it has now; `None` if it was not stored.
    ///
    /// # Errors
    /// As of [`load`](Client::load).
    fn swap(
        &mut self,
        name: &LockName,
        version: u64,
        first: u64,
        revision: &Revision<'_>,
    ) -> impl Future<Output = Result<Option<u64>, StoreError>>;

    /// Returns the names of these locks.
    ///
    /// # Errors
    /// As of [`load`](Client::load).
    fn names(&mut self, which: Names) -> impl Future<Output = Result<Vec<LockName>, StoreError>>;

    /// See [`DocumentStore::lacks_ledgers`].
    fn lacks_table(&self) -> Option<String>;

    /// See [`DocumentStore::is_subscribed`].
    fn is_subscribed(&self, name: &LockName, waiter: &WaiterEntry) -> bool;

    /// Returns whether this client is notified of what it watches, as far as the server can do that.
    fn is_notified(&self) -> bool {
        true
    }

    /// Forgets the notifications that have arrived.
    fn clear(&mut self) {}

    /// See [`Backend::changed`](crate::backend::Backend::changed).
    fn changed(&mut self) -> impl Future<Output = Change>;

    /// See [`DocumentStore::gate_lifetime`].
    fn gate_lifetime(&self) -> Option<GateLifetime>;

    /// See [`LockAdmin::init`](crate::backend::admin::LockAdmin::init).
    fn init(&mut self) -> impl Future<Output = Result<(), StoreError>>;

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
    fn passed(&self, client: &C, claim: &Claim) -> Option<(u64, u64)>;

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
    pub shedlock: Option<shedlock::Gate>,
    last: LastSeen,
    /// The ledgers of a user that may not have the table.
    own: OwnLedgers,
}

/// Nothing but that a hold has ended with its session.
struct SessionLost;

impl Observed for SessionLost {
    fn now(&self) -> Now {
        now(0)
    }

    fn gate(&self) -> Gate {
        Gate::Untried
    }

    fn loss(&self) -> Option<Loss> {
        Some(Loss::Gone)
    }
}

impl<C: Client> RowStore<C> {
    /// Returns a client; does not connect.
    pub fn contender(client: C, shedlock: Option<shedlock::Gate>) -> Contender<RowStore<C>> {
        let (session, last, own) = (C::Session::default(), LastSeen::default(), OwnLedgers::default());
        Contender::new(RowStore { client, session, shedlock, last, own })
    }

    /// Returns whether a change has failed because the session that has passed the gate is gone.
    fn has_lost_session<T>(&self, purpose: &Purpose, done: &Result<Done<T>, StoreError>) -> bool {
        matches!(done, Err(StoreError::Unavailable { .. })) && self.session.has_ended(&self.client, purpose)
    }
}

impl<C: Client> DocumentStore for RowStore<C> {
    /// 0 if there is no row.
    type Version = u64;

    async fn load(&mut self, name: &LockName, shortcut: &Shortcut) -> Result<Seen<u64>, StoreError> {
        self.last.take();
        let Some((time, row)) = self.client.load(&mut self.session, name, shortcut).await? else {
            return Ok(self.own.load(name));
        };
        let (ledger, version) = match row {
            None => (Ledger::default(), 0),
            Some(row) => {
                let unreadable = |why| StoreError::Config(format!("{name}: {why}"));
                (row.ledger().map_err(unreadable)?, row.version)
            }
        };
        let seen = Seen { ledger, version, now: now(time) };
        self.last.read(name, &seen, self.client.sent());
        Ok(seen)
    }

    fn recall(&self, name: &LockName) -> Option<Seen<u64>> {
        self.last.recall(name)
    }

    fn is_subscribed(&self, name: &LockName, ticket: u64) -> bool {
        let mut waiters = self.last.ledger(name).into_iter().flat_map(|ledger| &ledger.waiters);
        let waiter = waiters.find(|waiter| waiter.ticket == ticket);
        waiter.is_some_and(|waiter| self.client.is_subscribed(name, waiter))
    }

    async fn swap(
        &mut self,
        name: &LockName,
        version: u64,
        revision: Revision<'_>,
    ) -> Result<bool, StoreError> {
        if let (Some(gate), Some(before)) = (&mut self.shedlock, self.last.ledger(name)) {
            gate.end_others(&mut self.client, name, before, revision.ledger).await?;
        }
        let before = self.last.take();
        let first = before.now().map_or(1, |now| now.wall);
        if self.client.lacks_table().is_some() {
            self.own.swap(name, revision.ledger);
            return Ok(true);
        }
        let stored = self.client.swap(name, version, first, &revision).await?;
        if let Some(version) = stored {
            self.last.stored(before, revision.ledger, version);
        }
        Ok(stored.is_some())
    }

    fn lacks_ledgers(&self) -> Option<String> {
        self.client.lacks_table()
    }

    fn gate_lifetime(&self) -> Option<GateLifetime> {
        self.client.gate_lifetime()
    }

    fn passed(&self, claim: &Claim) -> Option<(u64, u64)> {
        match &self.shedlock {
            Some(gate) => gate.passed(claim),
            None => self.session.passed(&self.client, claim),
        }
    }

    async fn observe_gate(
        &mut self,
        name: &LockName,
        purpose: &Purpose,
    ) -> Result<Vec<Occupant>, StoreError> {
        match &mut self.shedlock {
            Some(gate) => gate.observe(&mut self.client, name, purpose).await,
            None => self.session.observe(&mut self.client, name, purpose).await,
        }
    }

    async fn pass_gate(&mut self, claim: &Claim, mode: GateMode) -> Result<bool, StoreError> {
        match &mut self.shedlock {
            Some(gate) => gate.pass(&mut self.client, claim).await,
            None => self.session.pass(&mut self.client, claim, mode).await,
        }
    }

    async fn leave_gate(&mut self, claim: &Claim, rest: Duration) -> Result<bool, StoreError> {
        match &mut self.shedlock {
            Some(gate) => gate.leave(&mut self.client, claim, rest).await,
            None => self.session.leave(&mut self.client, claim).await,
        }
    }
}

impl<C: Client> LedgerStore for RowStore<C> {
    fn display(&self) -> &str {
        self.client.display()
    }

    fn connect(&mut self) -> Reply<'_, Result<(), StoreError>> {
        Box::pin(async {
            match self.client.connect().await {
                // What it was connected for is known without the server.
                Err(StoreError::Unavailable { .. }) if self.session.is_lost(&self.client) => Ok(()),
                result => result,
            }
        })
    }

    async fn change<T: Send + 'static>(
        &mut self,
        name: &LockName,
        purpose: Purpose,
        decide: impl Fn(&mut Ledger, &dyn Observed) -> Step<T> + Send + 'static,
    ) -> Result<Done<T>, StoreError> {
        // What happened before is known to the decision.
        self.client.clear();
        if let Some(gate) = &mut self.shedlock {
            gate.begin(&purpose);
        }
        let mut done = document::change(self, name, &purpose, &decide).await;
        if self.has_lost_session(&purpose, &done) {
            // Another session may see who holds the lock now.
            done = document::change(self, name, &purpose, &decide).await;
        }
        let done = match done {
            done if matches!(purpose, Purpose::Renew(_)) && self.has_lost_session(&purpose, &done) => {
                match decide(&mut Ledger::default(), &SessionLost) {
                    Step::Done { value, .. } => {
                        Done { value, is_watched: true, fencing: None, lease: None, unwritten: None }
                    }
                    _ => unreachable!("a lost hold is neither kept nor taken"),
                }
            }
            done => done?,
        };
        Ok(Done { is_watched: done.is_watched && self.client.is_notified(), ..done })
    }

    async fn read(
        &mut self,
        names: &[LockName],
        view: impl Fn(&LockName, &Ledger, &dyn Observed) -> LockState + Send + 'static,
    ) -> Result<(u64, Vec<LockState>), StoreError> {
        document::read(self, names, view).await
    }

    fn list(&mut self) -> Reply<'_, Result<Vec<LockName>, StoreError>> {
        Box::pin(self.client.names(Names::Used))
    }

    fn list_recorded(&mut self) -> Reply<'_, Result<Vec<LockName>, StoreError>> {
        Box::pin(self.client.names(Names::Recorded))
    }

    fn history<'a>(&'a mut self, name: &'a LockName) -> Reply<'a, Result<Vec<NotedRecord>, StoreError>> {
        Box::pin(document::history(self, name))
    }

    fn changed(&mut self) -> Reply<'_, Change> {
        Box::pin(self.client.changed())
    }

    fn examine<'a>(&'a mut self, diagnosis: &'a Diagnosis) -> Reply<'a, Result<(), StoreError>> {
        Box::pin(C::examine(self, diagnosis))
    }

    fn end_foreign<'a>(
        &'a mut self,
        name: &'a LockName,
        shown: &'a Holder,
    ) -> Reply<'a, Result<Removal, StoreError>> {
        Box::pin(async move {
            match &self.shedlock {
                Some(gate) => gate.end_shown(&mut self.client, name, shown).await,
                None => Ok(Removal::Impossible),
            }
        })
    }

    fn init(&mut self) -> Reply<'_, Result<(), StoreError>> {
        Box::pin(self.client.init())
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

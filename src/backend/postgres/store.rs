//! The store of one client.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use tokio_postgres::Row as Record;
use tokio_postgres::types::Type;

use super::advisory::{Advisory, SessionLost};
use super::client::{CALLED, Client, LOCKS, NEXT, Parameter, channel};
use super::errors;
use super::gate::GATE_ALONE;
use super::location::Location;
use super::policy::create_table;
use super::statements::{Statements, reading, signed};
use crate::backend::admin::Removal;
use crate::backend::diagnosis::Diagnosis;
use crate::backend::ledger::document::{self, DocumentStore, Revision, Seen, Shortcut};
use crate::backend::ledger::{
    Contender, Done, Effect, GateLifetime, GateMode, Ledger, LedgerStore, Observed, Occupant, Purpose, Step,
};
use crate::backend::shedlock::{self, Dialect};
use crate::backend::sql::{self, LastSeen, OwnLedgers, Taken, Values};
use crate::backend::{Change, Location as _, Reply, StoreError};
use crate::lock::{Claim, FencingToken, Holder, LockName, LockState, NotedRecord};

/// A client of a database. If it ends without a release, its entries end with their leases.
pub struct PostgresStore {
    pub(super) client: Client,
    pub(super) statements: Statements,
    last: LastSeen,
    /// The advisory locks that it has taken.
    pub(super) gate: Advisory,
    /// The ledgers of a role that may not have the table, ...
    own: OwnLedgers,
    /// ... and what to say of it.
    lacks: Option<String>,
    /// The rows of ShedLock that it has taken.
    pub(super) shedlock: Option<shedlock::Gate>,
}

fn token_of(ledger: &Ledger, ticket: u64) -> Option<&str> {
    ledger.waiters.iter().find(|waiter| waiter.ticket == ticket).map(|waiter| waiter.token.as_str())
}

impl PostgresStore {
    /// Returns a client of a location; does not connect.
    pub(super) fn contender(location: Location) -> Contender<PostgresStore> {
        let statements = Statements::of(&location.table.quoted());
        let shedlock = location.recipe.shedlock();
        Contender::new(PostgresStore {
            client: Client::new(location),
            statements,
            last: LastSeen::default(),
            gate: Advisory::default(),
            own: OwnLedgers::default(),
            lacks: None,
            shedlock,
        })
    }

    /// Runs a statement that needs the table, and creates it if need be.
    async fn query(
        &mut self,
        channel: Option<String>,
        statement: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Result<Vec<Record>, tokio_postgres::Error>, StoreError> {
        /// It may be dropped meanwhile.
        const TRIES: usize = 3;
        for _ in 0..TRIES {
            let result = self.client.on_table(LOCKS, channel.clone(), statement, parameters).await?;
            match result {
                Some(result) => return Ok(result),
                None => self.create_table().await?,
            }
        }
        let table = &self.client.location.table;
        Err(StoreError::Config(format!("the table {table} cannot be created: see dlock doctor --policy")))
    }

    /// Creates the table, if the role may.
    pub(super) async fn create_table(&mut self) -> Result<(), StoreError> {
        let statement = create_table(&self.client.location.table);
        self.client.create(&statement).await
    }

    /// Finds out whether the role may not have the table, which is missing or, with this error, does not allow a statement:
    /// then its locks are those of the gate alone.
    async fn lacks_table(&mut self, error: Option<&tokio_postgres::Error>) -> Result<bool, StoreError> {
        let has_gate = self.gate_lifetime().is_some();
        let lacks = match error {
            _ if !has_gate => false,
            Some(error) => errors::is_without_right(error),
            None => {
                let (statement, schema) =
                    (self.statements.may_create.clone(), self.client.location.table.schema.clone());
                let rows = self.client.query(&statement, &[(&schema, Type::TEXT)]).await?;
                let may =
                    rows.and_then(|rows| rows.first().map_or(Ok(false), |row| row.try_get::<_, bool>(0)));
                !may.map_err(|error| self.client.meaning(&error))?
            }
        };
        let location = &self.client.location;
        let text = format!(
            "the role {} may not have the table {}, so that locks are {GATE_ALONE}: see dlock doctor --policy",
            location.user, location.table
        );
        self.lacks = lacks.then_some(text).or(self.lacks.take());
        Ok(lacks)
    }

    /// Returns the names that a statement selects.
    async fn names(&mut self, statement: &str) -> Result<Vec<LockName>, StoreError> {
        let Some(rows) = self.client.on_table(LOCKS, None, statement, &[]).await? else {
            return Ok(Vec::new());
        };
        let rows = rows.map_err(|error| self.client.meaning(&error))?;
        let names = rows.iter().filter_map(|row| std::str::from_utf8(row.try_get(0).ok()?).ok());
        Ok(names.filter_map(|name| LockName::new(name).ok()).collect())
    }

    /// Removes the row of a lock.
    pub(super) async fn forget(&mut self, name: &LockName) -> Result<(), StoreError> {
        let (statement, key) = (self.statements.forget.clone(), name.as_str().as_bytes());
        let deleted = self.client.on_table(LOCKS, None, &statement, &[(&key, Type::BYTEA)]).await?;
        deleted.transpose().map(drop).map_err(|error| self.client.meaning(&error))
    }
}

impl DocumentStore for PostgresStore {
    /// 0 if there is no row.
    type Version = u64;

    async fn load(&mut self, name: &LockName, shortcut: &Shortcut) -> Result<Seen<u64>, StoreError> {
        self.last.take();
        if self.lacks.is_some() {
            return Ok(self.own.load(name));
        }
        let key = name.as_str().as_bytes();
        let rows = match shortcut {
            Shortcut::None => {
                let statement = self.statements.read.clone();
                let read = self.client.on_table(LOCKS, None, &statement, &[(&key, Type::BYTEA)]).await?;
                match read {
                    None if self.lacks_table(None).await? => return Ok(self.own.load(name)),
                    Some(Err(error)) if self.lacks_table(Some(&error)).await? => {
                        return Ok(self.own.load(name));
                    }
                    // To read a lock does not create its table.
                    None => {
                        let statement = self.statements.read_nothing.clone();
                        self.client.query(&statement, &[]).await?
                    }
                    Some(read) => read,
                }
            }
            Shortcut::TakeIfIdle(holder) => {
                let Taken { entries, lease_key, lease, lasts } = Taken::of(holder);
                let parameters: [Parameter<'_>; 6] = [
                    (&key, Type::BYTEA),
                    (&entries, Type::TEXT),
                    (&lease_key, Type::TEXT),
                    (&signed(lease), Type::INT8),
                    (&signed(lasts), Type::INT8),
                    (&signed(FencingToken::END - 1), Type::INT8),
                ];
                let statement = self.statements.take.clone();
                self.query(None, &statement, &parameters).await?
            }
            Shortcut::Touch(token, lease) => {
                let lease = i64::try_from(lease.as_micros()).unwrap_or(i64::MAX);
                let parameters: [Parameter<'_>; 3] =
                    [(&key, Type::BYTEA), (&sql::lease_key(token), Type::TEXT), (&lease, Type::INT8)];
                let statement = self.statements.touch.clone();
                self.query(None, &statement, &parameters).await?
            }
        };
        let rows = rows.map_err(|error| self.client.meaning(&error))?;
        let record = rows.first().ok_or_else(|| StoreError::unanswered("the server returned no row"))?;
        let (now, process, row) = reading(record).map_err(|error| self.client.meaning(&error))?;
        self.client.served_by(process);
        let ledger = match &row {
            None => Ledger::default(),
            Some(row) => row.ledger().map_err(|why| StoreError::Config(format!("{name}: {why}")))?,
        };
        let seen = Seen { ledger, version: row.map_or(0, |row| row.version), now: sql::now(now) };
        self.last.read(name, &seen, self.client.sent);
        Ok(seen)
    }

    fn recall(&self, name: &LockName) -> Option<Seen<u64>> {
        self.last.recall(name)
    }

    fn is_subscribed(&self, name: &LockName, ticket: u64) -> bool {
        let Some(seen) = self.last.recall(name) else { return false };
        let token = token_of(&seen.ledger, ticket);
        !self.client.notifies() || token.is_some_and(|token| self.client.is_listening(&channel(token)))
    }

    async fn swap(
        &mut self,
        name: &LockName,
        version: u64,
        revision: Revision<'_>,
    ) -> Result<bool, StoreError> {
        if let (Some(gate), Some(seen)) = (&mut self.shedlock, self.last.recall(name)) {
            gate.end_others(&mut self.client, name, &seen.ledger, revision.ledger).await?;
        }
        let before = self.last.take();
        if self.lacks.is_some() {
            self.own.swap(name, revision.ledger);
            return Ok(true);
        }
        let ledger = revision.ledger;
        let own = match revision.effect {
            Effect::Wait(ticket) => token_of(ledger, ticket).map(channel),
            _ => None,
        };
        let own = own.filter(|own| self.client.notifies() && !self.client.is_listening(own));
        let called = revision.called.iter().map(|ticket| (*ticket, CALLED));
        let called = called.chain(revision.next.map(|ticket| (ticket, NEXT)));
        let (channels, payloads): (Vec<String>, Vec<&str>) = called
            .filter_map(|(ticket, payload)| Some((channel(token_of(ledger, ticket)?), payload)))
            .unzip();
        let Values { fencing_token, ticket, ends_at, leases, entries, success, outcomes } =
            Values::of(ledger);
        let (key, version) = (name.as_str().as_bytes(), signed(version));
        let (fencing_token, ticket, ends_at) = (signed(fencing_token), signed(ticket), signed(ends_at));
        let mut parameters: Vec<Parameter<'_>> = vec![
            (&key, Type::BYTEA),
            (&fencing_token, Type::INT8),
            (&ticket, Type::INT8),
            (&ends_at, Type::INT8),
            (&leases, Type::TEXT),
            (&entries, Type::TEXT),
            (&success, Type::TEXT),
            (&outcomes, Type::TEXT),
            (&channels, Type::TEXT_ARRAY),
            (&payloads, Type::TEXT_ARRAY),
        ];
        let statement = match version {
            0 => self.statements.insert.clone(),
            _ => {
                parameters.push((&version, Type::INT8));
                self.statements.swap.clone()
            }
        };
        let rows = match self.query(own, &statement, &parameters).await? {
            Err(error) if errors::is_conflict(&error) || self.lacks_table(Some(&error)).await? => {
                return Ok(false);
            }
            rows => rows.map_err(|error| self.client.meaning(&error))?,
        };
        let stored = rows.first().map(|row| row.try_get::<_, i64>(0)).transpose();
        let stored = stored.map_err(|error| self.client.meaning(&error))?;
        if let Some(version) = stored {
            self.last.stored(before, ledger, u64::try_from(version).unwrap_or_default());
        }
        Ok(stored.is_some())
    }

    fn lacks_ledgers(&self) -> Option<String> {
        self.lacks.clone()
    }

    fn gate_lifetime(&self) -> Option<GateLifetime> {
        match &self.shedlock {
            Some(_) => Some(GateLifetime::Lease),
            None => self.client.location.recipe.rule().map(|_| GateLifetime::Session),
        }
    }

    fn passed(&self, claim: &Claim) -> Option<(u64, u64)> {
        match &self.shedlock {
            Some(gate) => gate.passed(claim),
            None => self.has_passed(claim),
        }
    }

    async fn observe_gate(
        &mut self,
        name: &LockName,
        purpose: &Purpose,
    ) -> Result<Vec<Occupant>, StoreError> {
        match &mut self.shedlock {
            Some(gate) => gate.observe(&mut self.client, name, purpose).await,
            None => self.occupants(name, purpose).await,
        }
    }

    async fn pass_gate(&mut self, claim: &Claim, mode: GateMode) -> Result<bool, StoreError> {
        match &mut self.shedlock {
            Some(gate) => gate.pass(&mut self.client, claim).await,
            None => self.pass(claim, mode).await,
        }
    }

    async fn leave_gate(&mut self, claim: &Claim, rest: Duration) -> Result<bool, StoreError> {
        match &mut self.shedlock {
            Some(gate) => gate.leave(&mut self.client, claim, rest).await,
            None => self.leave(claim).await,
        }
    }
}

impl LedgerStore for PostgresStore {
    fn display(&self) -> &str {
        self.client.location.display()
    }

    fn connect(&mut self) -> Reply<'_, Result<(), StoreError>> {
        Box::pin(async {
            match self.client.connect().await {
                // What it was connected for is known without the server.
                Err(StoreError::Unavailable { .. }) if self.has_lost_sessions() => Ok(()),
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
        if matches!(done, Err(StoreError::Unavailable { .. })) && self.has_lost_session(&purpose) {
            // Another session may see who holds the lock now.
            done = document::change(self, name, &purpose, &decide).await;
        }
        let done = match done {
            Err(StoreError::Unavailable { .. })
                if matches!(purpose, Purpose::Renew(_)) && self.has_lost_session(&purpose) =>
            {
                match decide(&mut Ledger::default(), &SessionLost) {
                    Step::Done { value, .. } => {
                        Done { value, is_watched: true, fencing: None, lease: None, unwritten: None }
                    }
                    _ => unreachable!("a lost hold is neither kept nor taken"),
                }
            }
            done => done?,
        };
        let is_notified = self.client.notifies() && self.lacks.is_none();
        Ok(Done { is_watched: done.is_watched && is_notified, ..done })
    }

    async fn read(
        &mut self,
        names: &[LockName],
        view: impl Fn(&LockName, &Ledger, &dyn Observed) -> LockState + Send + 'static,
    ) -> Result<(u64, Vec<LockState>), StoreError> {
        document::read(self, names, view).await
    }

    fn list(&mut self) -> Reply<'_, Result<Vec<LockName>, StoreError>> {
        Box::pin(async {
            let statement = self.statements.used.clone();
            self.names(&statement).await
        })
    }

    fn list_recorded(&mut self) -> Reply<'_, Result<Vec<LockName>, StoreError>> {
        Box::pin(async {
            let statement = self.statements.recorded.clone();
            self.names(&statement).await
        })
    }

    fn history<'a>(&'a mut self, name: &'a LockName) -> Reply<'a, Result<Vec<NotedRecord>, StoreError>> {
        Box::pin(document::history(self, name))
    }

    fn changed(&mut self) -> Reply<'_, Change> {
        Box::pin(self.client.changed())
    }

    fn examine<'a>(&'a mut self, diagnosis: &'a Diagnosis) -> Reply<'a, Result<(), StoreError>> {
        Box::pin(self.examine_servers(diagnosis))
    }

    fn end_foreign<'a>(
        &'a mut self,
        name: &'a LockName,
        shown: &'a Holder,
    ) -> Reply<'a, Result<Removal, StoreError>> {
        Box::pin(shedlock::end_shown(self.shedlock.as_ref(), &mut self.client, name, shown))
    }

    fn shares_ledgers(&self) -> bool {
        self.lacks.is_none()
    }

    fn kept_descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.client.descriptor().into_iter().collect()
    }

    fn init(&mut self) -> Reply<'_, Result<(), StoreError>> {
        Box::pin(async {
            if self.shedlock.is_some() {
                let table = self.client.location.shedlock_table.quoted();
                self.client.create(&Dialect::Postgres.create_table(&table)).await?;
            }
            self.create_table().await?;
            self.client.look().await
        })
    }

    fn fails_over(&self) -> bool {
        self.client.servers().len() > 1
    }
}

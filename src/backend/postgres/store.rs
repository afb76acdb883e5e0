//! The store of one client.

mod row;

use std::os::fd::BorrowedFd;

use tokio_postgres::Row as Record;
use tokio_postgres::types::Type;

use super::advisory::{Advisory, SessionLost};
use super::client::{Client, LOCKS, Parameter};
use super::errors;
use super::gate::GATE_ALONE;
use super::location::Location;
use super::policy::create_table;
use super::statements::Statements;
use crate::backend::admin::Removal;
use crate::backend::diagnosis::Diagnosis;
use crate::backend::ledger::document::{self, DocumentStore};
use crate::backend::ledger::{Contender, Done, Ledger, LedgerStore, Observed, Purpose, Step};
use crate::backend::shedlock::{self, Dialect};
use crate::backend::sql::{LastSeen, OwnLedgers};
use crate::backend::{Change, Location as _, Reply, StoreError};
use crate::lock::{Holder, LockName, LockState, NotedRecord};

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

    /// Finds out whether the role may create the table.
    pub(super) async fn may_create(&mut self) -> Result<bool, StoreError> {
        let (statement, schema) =
            (self.statements.may_create.clone(), self.client.location.table.schema.clone());
        let rows = self.client.query(&statement, &[(&schema, Type::TEXT)]).await?;
        let may = rows.and_then(|rows| rows.first().map_or(Ok(false), |row| row.try_get::<_, bool>(0)));
        may.map_err(|error| self.client.meaning(&error))
    }

    /// Finds out whether the role may not have the table, which is missing or, with this error, does not allow a statement:
    /// then its locks are those of the gate alone.
    async fn lacks_table(&mut self, error: Option<&tokio_postgres::Error>) -> Result<bool, StoreError> {
        let has_gate = self.gate_lifetime().is_some();
        let lacks = match error {
            _ if !has_gate => false,
            Some(error) => errors::is_without_right(error),
            None => !self.may_create().await?,
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

//! The store of one client.

use std::os::fd::{AsFd, BorrowedFd};

use tokio_postgres::Row as Record;
use tokio_postgres::types::Type;

use super::advisory::Advisory;
use super::client::{CALLED, Client, LOCKS, NEXT, channel};
use super::errors;
use super::location::Location;
use super::policy::create_table;
use super::recipe::GATE_ALONE;
use super::statements::{Parameter, reading, signed};
use crate::backend::admin::Listed;
use crate::backend::diagnosis::Diagnosis;
use crate::backend::ledger::document::{Revision, Seen, Shortcut};
use crate::backend::ledger::{Contender, Effect, Ledger, Purpose, WaiterEntry};
use crate::backend::sql::{self, RowStore, Taken, Values};
use crate::backend::{CLAIM_WITHIN, Change, StoreError};
use crate::lock::{FencingToken, LockName};

/// The locks of a database.
pub(super) type PostgresStore = RowStore<Client>;

/// Returns a client of a location; does not connect.
pub(super) fn contender(location: Location) -> Contender<PostgresStore> {
    let recipe = location.recipe.clone();
    RowStore::contender(Client::new(location), &recipe, "")
}

impl Client {
    /// Runs a statement that needs the table, and creates it if need be.
    async fn on_locks(
        &mut self,
        channel: Option<String>,
        statement: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Result<Vec<Record>, tokio_postgres::Error>, StoreError> {
        /// It may be dropped meanwhile.
        const TRIES: usize = 3;
        for _ in 0..TRIES {
            let result = self.on_table(LOCKS, channel.clone(), statement, parameters).await?;
            match result {
                Some(result) => return Ok(result),
                None => self.create_table().await?,
            }
        }
        let table = &self.location.table;
        Err(StoreError::Config(format!("the table {table} cannot be created: see dlock doctor --policy")))
    }

    /// Creates the table, if the role may.
    pub(super) async fn create_table(&mut self) -> Result<(), StoreError> {
        let statement = create_table(&self.location.table);
        self.create(&statement).await
    }

    /// Finds out whether the role may create the table.
    pub(super) async fn may_create(&mut self) -> Result<bool, StoreError> {
        let (statements, schema) = (self.statements.clone(), self.location.table.schema.clone());
        Ok(self.value(&statements.may_create, &[(&schema, Type::TEXT)]).await?.unwrap_or_default())
    }

    /// Finds out whether the role may not have the table, which is missing or, with this error, does not allow a statement:
    /// then its locks are those of the gate alone.
    async fn lacks_table_by(&mut self, error: Option<&tokio_postgres::Error>) -> Result<bool, StoreError> {
        let has_gate = self.location.recipe.gate_lifetime().is_some();
        let lacks = match error {
            _ if !has_gate => false,
            Some(error) => errors::is_without_right(error),
            None => !self.may_create().await?,
        };
        let location = &self.location;
        let text = format!(
            "the role {} may not have the table {}, so that locks are {GATE_ALONE}: see dlock doctor --policy",
            location.user, location.table
        );
        self.lacks = lacks.then_some(text).or(self.lacks.take());
        Ok(lacks)
    }

    /// Removes the row of a lock.
    pub(super) async fn forget(&mut self, name: &LockName) -> Result<(), StoreError> {
        let (statements, key) = (self.statements.clone(), name.as_str().as_bytes());
        let deleted = self.on_table(LOCKS, None, &statements.forget, &[(&key, Type::BYTEA)]).await?;
        deleted.transpose().map(drop).map_err(|error| self.meaning(&error))
    }
}

fn token_of(ledger: &Ledger, ticket: u64) -> Option<&str> {
    ledger.waiters.iter().find(|waiter| waiter.ticket == ticket).map(|waiter| waiter.token.as_str())
}

impl sql::Client for Client {
    type Session = Advisory;

    async fn connect(&mut self) -> Result<(), StoreError> {
        self.connect().await
    }

    async fn load(
        &mut self,
        _: &mut Advisory,
        name: &LockName,
        _: &Purpose,
        shortcut: &Shortcut,
    ) -> Result<Option<Seen<u64>>, StoreError> {
        if self.lacks.is_some() {
            return Ok(None);
        }
        let (statements, key) = (self.statements.clone(), name.as_str().as_bytes());
        let rows = match shortcut {
            Shortcut::None => {
                match self.on_table(LOCKS, None, &statements.read, &[(&key, Type::BYTEA)]).await? {
                    None if self.lacks_table_by(None).await? => return Ok(None),
                    Some(Err(error)) if self.lacks_table_by(Some(&error)).await? => return Ok(None),
                    // To read a lock does not create its table.
                    None => self.query(&statements.read_nothing, &[]).await?,
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
                self.on_locks(None, &statements.take, &parameters).await?
            }
            Shortcut::Touch(token, lease) => {
                let lease = i64::try_from(lease.as_micros()).unwrap_or(i64::MAX);
                let parameters: [Parameter<'_>; 3] =
                    [(&key, Type::BYTEA), (&sql::lease_key(token), Type::TEXT), (&lease, Type::INT8)];
                self.on_locks(None, &statements.touch, &parameters).await?
            }
        };
        let rows = rows.map_err(|error| self.meaning(&error))?;
        let record = rows.first().ok_or_else(|| StoreError::unanswered("the server returned no row"))?;
        let (time, row, process) = reading(record).map_err(|error| self.meaning(&error))?;
        self.served_by(process);
        sql::seen(name, row, time, self.sent, None).map(Some)
    }

    async fn swap(
        &mut self,
        name: &LockName,
        version: u64,
        revision: &Revision<'_>,
    ) -> Result<Option<u64>, StoreError> {
        let ledger = revision.ledger;
        let own = match revision.effect {
            Effect::Wait(ticket) => token_of(ledger, ticket).map(channel),
            _ => None,
        };
        let own = own.filter(|own| self.notifies() && !self.is_listening(own));
        let called = revision.called.iter().map(|ticket| (*ticket, CALLED));
        let called = called.chain(revision.next.map(|ticket| (ticket, NEXT)));
        let (channels, payloads): (Vec<String>, Vec<&str>) = called
            .filter_map(|(ticket, payload)| Some((channel(token_of(ledger, ticket)?), payload)))
            .unzip();
        let Values { fencing_token, ticket, ends_at, leases, entries, success, history } = Values::of(ledger);
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
            (&history, Type::TEXT),
            (&channels, Type::TEXT_ARRAY),
            (&payloads, Type::TEXT_ARRAY),
        ];
        let statements = self.statements.clone();
        let statement = match version {
            0 => &statements.insert,
            _ => {
                parameters.push((&version, Type::INT8));
                &statements.swap
            }
        };
        let rows = match self.on_locks(own, statement, &parameters).await? {
            Err(error) if errors::is_conflict(&error) || self.lacks_table_by(Some(&error)).await? => {
                return Ok(None);
            }
            rows => rows.map_err(|error| self.meaning(&error))?,
        };
        let stored = rows.first().map(|row| row.try_get::<_, i64>(0)).transpose();
        let stored = stored.map_err(|error| self.meaning(&error))?;
        Ok(stored.map(|version| u64::try_from(version).unwrap_or_default()))
    }

    async fn names(&mut self, which: Listed) -> Result<Vec<LockName>, StoreError> {
        let statements = self.statements.clone();
        let statement = match which {
            Listed::InUse => &statements.used,
            Listed::WithHistory => &statements.with_history,
        };
        let Some(rows) = self.on_table(LOCKS, None, statement, &[]).await? else {
            return Ok(Vec::new());
        };
        let rows = rows.map_err(|error| self.meaning(&error))?;
        let names = rows.iter().filter_map(|row| std::str::from_utf8(row.try_get(0).ok()?).ok());
        Ok(names.filter_map(|name| LockName::new(name).ok()).collect())
    }

    fn lacks_table(&self) -> Option<String> {
        self.lacks.clone()
    }

    fn is_subscribed(&self, _: &LockName, waiter: &WaiterEntry) -> bool {
        !self.notifies() || self.is_listening(&channel(&waiter.token))
    }

    fn is_notified(&self) -> bool {
        self.notifies() && self.lacks.is_none()
    }

    fn clear(&mut self) {
        if let Some(connection) = &mut self.connection {
            while connection.notifications.try_recv().is_ok() {}
        }
    }

    async fn changed(&mut self) -> Change {
        let Some(connection) = &mut self.connection else { return std::future::pending().await };
        match connection.notifications.recv().await {
            Some(notification) if notification.payload() == NEXT => Change::Soon(CLAIM_WITHIN),
            Some(_) => Change::OurTurn,
            None => {
                self.connection = None;
                Change::Disconnected
            }
        }
    }

    async fn examine(store: &mut PostgresStore, diagnosis: &Diagnosis) -> Result<(), StoreError> {
        store.examine_servers(diagnosis).await
    }

    fn fails_over(&self) -> bool {
        self.location.servers.len() > 1
    }

    fn kept(&self) -> Option<BorrowedFd<'_>> {
        let connection = self.connection.as_ref().filter(|connection| connection.is_kept)?;
        connection.descriptor.as_ref().map(AsFd::as_fd)
    }
}

//! The store of one client: a row for each lock.

use std::os::fd::BorrowedFd;

use futures_util::future::pending;

use super::client::{Client, READ_ONLY, still_primary};
use super::errors::{self, checked};
use super::get_lock::{Gates, holder_in, who_holds};
use super::location::Location;
use super::packet::malformed;
use super::reply::{Failure, QueryResult};
use super::table::{NOW, TIME, create, insert, literal, read_row, take_if_idle, touch, update};
use crate::backend::admin::Listed;
use crate::backend::diagnosis::Diagnosis;
use crate::backend::ledger::document::{Revision, Seen, Shortcut};
use crate::backend::ledger::waiting::{Waiting, calls};
use crate::backend::ledger::{Contender, Purpose, WaiterEntry};
use crate::backend::sql::{self, COLUMNS, RowStore, TABLE, Taken, Values};
use crate::backend::{Change, Hazard, StoreError};
use crate::lock::LockName;

/// The locks of a table.
pub(super) type MysqlStore = RowStore<Client>;

/// Returns a client of a location; does not connect.
pub(super) fn contender(location: Location) -> Contender<MysqlStore> {
    let (recipe, prefix) = (location.recipe.clone(), location.prefix.clone());
    RowStore::contender(Client::new(location), &recipe, &prefix)
}

impl Client {
    /// Returns whether a lock of `GET_LOCK` is in front of each row.
    pub(super) fn has_user_lock(&self) -> bool {
        self.location.recipe.session().is_some()
    }

    pub(super) fn key(&self, name: &LockName) -> String {
        literal(self.location.key(name))
    }

    /// Creates the table, if the user may do that.
    ///
    /// # Errors
    /// The user may not, or the server did not reply.
    pub(super) async fn create_table(&mut self) -> Result<(), StoreError> {
        match self.query(&create()).await {
            Ok(_) => Ok(()),
            Err(failure) => {
                self.note_missing_right(&failure);
                Err(match StoreError::from(failure) {
                    StoreError::Denied(text) => {
                        StoreError::Denied(format!("there is no table {TABLE}, and {text}"))
                    }
                    error => error,
                })
            }
        }
    }

    /// Sends statements about the table, which is created if it is missing.
    pub(super) async fn on_locks(&mut self, sql: &str) -> Result<Vec<QueryResult>, Failure> {
        match self.query(sql).await {
            Err(failure) if failure.is(&[errors::NO_TABLE]) => {
                self.create_table().await?;
                self.query(sql).await
            }
            result => {
                if let Err(failure) = &result {
                    self.note_missing_right(failure);
                }
                checked(result)
            }
        }
    }
}

impl sql::Client for Client {
    type Session = Gates;

    async fn connect(&mut self) -> Result<(), StoreError> {
        self.connect().await
    }

    async fn load(
        &mut self,
        session: &mut Gates,
        name: &LockName,
        purpose: &Purpose,
        shortcut: &Shortcut,
    ) -> Result<Option<Seen<u64>>, StoreError> {
        let key = self.key(name);
        let gate = match self.has_user_lock() {
            true => format!("; {}", who_holds(&self.user_lock(name).await?)),
            false => String::new(),
        };
        if self.denied.is_some() {
            return Ok(None);
        }
        let first = match shortcut {
            Shortcut::None => String::new(),
            Shortcut::TakeIfIdle(holder) => take_if_idle(&key, &Taken::of(holder)),
            Shortcut::Touch(token, lease) => touch(&key, token, *lease),
        };
        let sql = format!(
            "SET {TIME} = {NOW}; {first}SELECT {TIME}, {COLUMNS} FROM (SELECT 1) AS one LEFT JOIN {TABLE} ON name = {key}{gate}; \
             {READ_ONLY}"
        );
        let results = match shortcut {
            // To read a lock does not create the table.
            Shortcut::None => match self.query(&sql).await {
                Err(failure) if failure.is(&[errors::NO_TABLE]) => {
                    self.query(&format!("SELECT {NOW}, NULL{gate}; {READ_ONLY}")).await
                }
                Err(failure) => {
                    self.note_missing_right(&failure);
                    checked(Err(failure))
                }
                results => results,
            },
            _ => self.on_locks(&sql).await,
        };
        let mut results = match results {
            Err(_) if self.denied.is_some() => return Ok(None),
            results => results?,
        };
        still_primary(&mut results)?;
        let occupants = match self.has_user_lock() {
            true => {
                let answer = holder_in(&mut results)?;
                Some(session.occupants(self, name, purpose, &answer).await?)
            }
            false => None,
        };
        match results.last() {
            Some(QueryResult::Rows(rows)) => {
                let (time, row) = rows.first().and_then(read_row).ok_or_else(malformed)?;
                sql::seen(name, row, time, self.sent, occupants).map(Some)
            }
            _ => Err(malformed()),
        }
    }

    async fn swap(
        &mut self,
        name: &LockName,
        version: u64,
        revision: &Revision<'_>,
    ) -> Result<Option<u64>, StoreError> {
        let (key, values) = (self.key(name), Values::of(revision.ledger));
        let calls = calls(revision.ledger);
        let (sql, version) = match version {
            // A row that is created anew after its deletion has a higher version.
            0 => (insert(&key, revision.now.wall, &values, &calls), revision.now.wall),
            version => (update(&key, version, &values, &calls), version + 1),
        };
        match self.on_locks(&format!("{sql}; {READ_ONLY}")).await {
            Ok(mut results) => {
                still_primary(&mut results)?;
                if !matches!(results.last(), Some(QueryResult::Changed(1))) {
                    return Ok(None);
                }
            }
            Err(failure) if failure.is(&[errors::DUPLICATE]) => return Ok(None),
            // The decision is repeated, without the table.
            Err(_) if self.denied.is_some() => return Ok(None),
            Err(failure) => return Err(failure.into()),
        }
        Waiting::note(&mut self.waiting, name, revision.effect, &calls);
        Ok(Some(version))
    }

    async fn names(&mut self, which: Listed) -> Result<Vec<LockName>, StoreError> {
        let condition = match which {
            Listed::InUse => format!("ends_at > {NOW}"),
            Listed::WithHistory => "outcomes <> '[]'".to_owned(),
        };
        let prefix = self.location.prefix.clone();
        let length = prefix.len();
        let sql = format!(
            "SELECT SUBSTRING(name, {}) FROM {TABLE} WHERE {condition} AND LEFT(name, {length}) = {} ORDER BY name",
            length + 1,
            literal(prefix)
        );
        self.connect().await?;
        if let Some(why) = self.why_no_ledgers() {
            return Err(StoreError::Config(why));
        }
        let rows = match checked(self.query(&sql).await) {
            Ok(mut results) => results.pop(),
            Err(failure) if failure.is(&[errors::NO_TABLE]) => None,
            Err(failure) => {
                self.note_missing_right(&failure);
                return Err(self.why_no_ledgers().map_or_else(|| failure.into(), StoreError::Config));
            }
        };
        let Some(QueryResult::Rows(rows)) = rows else { return Ok(Vec::new()) };
        let names = rows.into_iter().filter_map(|row| String::from_utf8(row.into_iter().next()??).ok());
        Ok(names.filter_map(|name| LockName::new(&name).ok()).collect())
    }

    fn lacks_table(&self) -> Option<String> {
        self.why_no_ledgers()
    }

    fn is_subscribed(&self, name: &LockName, waiter: &WaiterEntry) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| waiting.is(name, waiter.ticket))
    }

    async fn changed(&mut self) -> Change {
        let Some(waiting) = &self.waiting else {
            // It may take long to replace.
            self.ended().await;
            return Change::Disconnected;
        };
        let sql = format!("SELECT calls FROM {TABLE} WHERE name = {}", self.key(&waiting.name));
        while let Some(waiting) = &self.waiting {
            waiting.pause().await;
            let Ok(rows) = self.watch(&sql).await else { return Change::Disconnected };
            let calls = rows.first().and_then(|row| row.first()?.as_deref()).map(String::from_utf8_lossy);
            let change = self.waiting.as_mut().and_then(|waiting| waiting.change(calls.as_deref()));
            if let Some(change) = change {
                return change;
            }
        }
        pending().await
    }

    async fn examine(store: &mut MysqlStore, diagnosis: &Diagnosis) -> Result<(), StoreError> {
        store.examine_server(diagnosis).await
    }

    fn hazard(&self) -> Option<Hazard> {
        self.cluster.map(|_| Hazard::Forgetful)
    }

    fn kept(&self) -> Option<BorrowedFd<'_>> {
        self.kept()
    }
}

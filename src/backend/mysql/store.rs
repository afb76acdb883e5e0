//! The store of one client: a row for each lock.

use std::time::Duration;

use futures_util::future::pending;
use tokio::time::sleep;

use super::client::Client;
use super::errors;
use super::location::Location;
use super::packet::malformed;
use super::reply::{Failure, Outcome, Row};
use super::table::{NOW, create, literal, take_if_idle, touch};
use crate::backend::diagnosis::Diagnosis;
use crate::backend::ledger::document::{self, DocumentStore, Revision, Seen, Shortcut};
use crate::backend::ledger::{Contender, Done, Effect, Ledger, LedgerStore, Observed, Purpose, Step};
use crate::backend::sql::{self, COLUMNS, LastSeen, TABLE, Taken, Values};
use crate::backend::{CLAIM_WITHIN, Change, Hazard, Location as _, Reply, StoreError};
use crate::lock::{LockName, LockState, NotedRecord};
use crate::random::jitter;

/// The shortest pause between two looks of a waiter whose turn is next, ...
const NEXT_POLL: Duration = Duration::from_millis(20);
/// ... and of one behind it. The average is twice this.
const POLL: Duration = Duration::from_millis(80);

/// A client of a table of locks. If it ends without a release, its entries end with their leases.
pub struct MysqlStore {
    pub(super) client: Client,
    /// The ledger that was read or stored last.
    last: LastSeen,
    /// The waiter's entry that changes are awaited for.
    waiting: Option<Waiting>,
}

struct Waiting {
    name: LockName,
    ticket: u64,
    /// The turn as it was reported last.
    reported: Turn,
}

/// Where a waiter stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Later,
    /// It is the first one that is not called.
    Next,
    /// Likewise, and others are called.
    Soon,
    Called,
}

impl MysqlStore {
    /// Returns a client of a location; does not connect.
    pub(super) fn contender(location: Location) -> Contender<MysqlStore> {
        Contender::new(MysqlStore { client: Client::new(location), last: LastSeen::default(), waiting: None })
    }

    fn key(&self, name: &LockName) -> String {
        literal(self.client.location.key(name))
    }

    /// Creates the table, if the user may do that.
    ///
    /// # Errors
    /// The user may not, or the server did not reply.
    pub(super) async fn create_table(&mut self) -> Result<(), StoreError> {
        match self.client.query(&create()).await {
            Ok(_) => Ok(()),
            Err(failure) => Err(match StoreError::from(failure) {
                StoreError::Denied(text) => {
                    StoreError::Denied(format!("there is no table {TABLE}, and {text}"))
                }
                error => error,
            }),
        }
    }

    /// Sends statements about the table, which is created if it is missing.
    pub(super) async fn query(&mut self, sql: &str) -> Result<Vec<Outcome>, Failure> {
        match self.client.query(sql).await {
            Err(failure) if errors::is_table_missing(&failure) => {
                self.create_table().await?;
                self.client.query(sql).await
            }
            result => checked(result),
        }
    }

    async fn list_where(&mut self, condition: &str) -> Result<Vec<LockName>, StoreError> {
        let prefix = self.client.location.prefix.clone();
        let length = prefix.len();
        let sql = format!(
            "SELECT SUBSTRING(name, {}) FROM {TABLE} WHERE {condition} AND LEFT(name, {length}) = {} ORDER BY name",
            length + 1,
            literal(prefix)
        );
        let rows = match checked(self.client.query(&sql).await) {
            Ok(mut outcomes) => outcomes.pop(),
            Err(failure) if errors::is_table_missing(&failure) => None,
            Err(failure) => return Err(failure.into()),
        };
        let Some(Outcome::Rows(rows)) = rows else { return Ok(Vec::new()) };
        let names = rows.into_iter().filter_map(|row| String::from_utf8(row.into_iter().next()??).ok());
        Ok(names.filter_map(|name| LockName::new(&name).ok()).collect())
    }

    /// Waits until the turn of the own entry has changed.
    async fn turn(&mut self) -> Change {
        let Some(waiting) = &self.waiting else { return pending().await };
        let sql = format!("SELECT calls FROM {TABLE} WHERE name = {}", self.key(&waiting.name));
        loop {
            let Some(Waiting { ticket, reported, .. }) = self.waiting.as_mut() else {
                return pending().await;
            };
            let pause = if *reported == Turn::Later { POLL } else { NEXT_POLL };
            sleep(pause + jitter(pause * 2)).await;
            let rows = match self.client.watch(&sql).await {
                Ok(rows) => rows,
                Err(_) => return Change::Disconnected,
            };
            let calls = rows.first().and_then(|row| row.first()?.as_deref());
            let turn = calls.map_or(Turn::Called, |calls| turn_of(*ticket, &String::from_utf8_lossy(calls)));
            if turn == std::mem::replace(reported, turn) {
                continue;
            }
            match turn {
                Turn::Called => return Change::OurTurn,
                Turn::Soon => return Change::Soon(CLAIM_WITHIN),
                Turn::Next | Turn::Later => {}
            }
        }
    }
}

/// Returns the result of statements, with what it means that the table has other columns.
fn checked(result: Result<Vec<Outcome>, Failure>) -> Result<Vec<Outcome>, Failure> {
    result.map_err(|failure| match errors::is_table_different(&failure) {
        false => failure,
        true => {
            let text = StoreError::from(failure);
            let text =
                format!("{TABLE} is not a table of dlock's ({text}): rename it, or use another database");
            StoreError::Config(text).into()
        }
    })
}

/// Returns what waiters look at: the tickets of those that are called, and of the next one.
fn calls(ledger: &Ledger) -> String {
    let called = ledger.waiters.iter().filter(|waiter| waiter.called.is_some());
    let called: Vec<String> = called.map(|waiter| waiter.ticket.to_string()).collect();
    let next = ledger.waiters.iter().find(|waiter| waiter.called.is_none());
    format!("{}/{}", called.join(","), next.map_or(String::new(), |waiter| waiter.ticket.to_string()))
}

fn turn_of(ticket: u64, calls: &str) -> Turn {
    let (called, next) = calls.split_once('/').unwrap_or_default();
    let ticket = ticket.to_string();
    if called.split(',').any(|called| called == ticket) {
        Turn::Called
    } else if next != ticket {
        Turn::Later
    } else if called.is_empty() {
        Turn::Next
    } else {
        Turn::Soon
    }
}

impl DocumentStore for MysqlStore {
    /// 0 if there is no row.
    type Version = u64;

    async fn load(&mut self, name: &LockName, shortcut: &Shortcut) -> Result<Seen<u64>, StoreError> {
        let key = self.key(name);
        let first = match shortcut {
            Shortcut::None => String::new(),
            Shortcut::TakeIfIdle(holder) => take_if_idle(&key, &Taken::of(holder)),
            Shortcut::Touch(token, lease) => touch(&key, token, *lease),
        };
        self.last.take();
        let sql = format!(
            "SELECT {NOW}; {first}SELECT {NOW}, {COLUMNS} FROM (SELECT 1) AS one LEFT JOIN {TABLE} ON name = {key}"
        );
        let outcomes = match shortcut {
            // To read a lock does not create the table.
            Shortcut::None => match self.client.query(&sql).await {
                Err(failure) if errors::is_table_missing(&failure) => {
                    self.client.query(&format!("SELECT {NOW}; SELECT {NOW}, NULL")).await
                }
                outcomes => checked(outcomes),
            },
            _ => self.query(&sql).await,
        }?;
        let first_row = |outcome: Option<&Outcome>| match outcome {
            Some(Outcome::Rows(rows)) => rows.first().and_then(read_row).ok_or_else(malformed),
            _ => Err(malformed()),
        };
        let ((began, _), (now, row)) = (first_row(outcomes.first())?, first_row(outcomes.last())?);
        let (ledger, version) = match row {
            None => (Ledger::default(), 0),
            Some(row) => {
                let unreadable = |unreadable| StoreError::Config(format!("{name}: {unreadable}"));
                (row.ledger().map_err(unreadable)?, row.version)
            }
        };
        // The time before the shortcut was taken is closer to that when the request was sent.
        let seen = Seen { ledger, version, now: sql::now(began) };
        self.last.read(name, &seen, self.client.sent);
        Ok(Seen { now: sql::now(now), ..seen })
    }

    fn recall(&self, name: &LockName) -> Option<Seen<u64>> {
        self.last.recall(name)
    }

    fn is_subscribed(&self, name: &LockName, ticket: u64) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| waiting.name == *name && waiting.ticket == ticket)
    }

    async fn swap(
        &mut self,
        name: &LockName,
        version: u64,
        revision: Revision<'_>,
    ) -> Result<bool, StoreError> {
        let (key, values) = (self.key(name), Values::of(revision.ledger));
        let first_version = self.last.recall(name).map_or(1, |seen| seen.now.wall);
        let last = self.last.take();
        let success = values.success.as_ref().map_or("NULL".to_owned(), literal);
        let values = [
            ("fencing_token", values.fencing_token.to_string()),
            ("ticket", values.ticket.to_string()),
            ("taken_at", "0".to_owned()),
            ("ends_at", values.ends_at.to_string()),
            ("leases", literal(values.leases)),
            ("entries", literal(values.entries)),
            ("success", success),
            ("outcomes", literal(values.outcomes)),
            ("calls", literal(calls(revision.ledger))),
        ];
        let format = Ledger::FORMAT;
        let (sql, version) = match version {
            0 => {
                let (columns, values): (Vec<_>, Vec<_>) = values.into_iter().unzip();
                let (columns, values) = (columns.join(", "), values.join(", "));
                let sql = format!(
                    "INSERT INTO {TABLE} (name, format, version, {columns}) VALUES ({key}, {format}, {first_version}, \
                     {values})"
                );
                (sql, first_version)
            }
            version => {
                let values = values.map(|(column, value)| format!("{column} = {value}")).join(", ");
                let sql = format!(
                    "UPDATE {TABLE} SET version = version + 1, {values} WHERE name = {key} AND version = {version} AND \
                     format = {format}"
                );
                (sql, version + 1)
            }
        };
        match self.query(&sql).await {
            Ok(outcomes) if matches!(outcomes.last(), Some(Outcome::Changed(1))) => {}
            Ok(_) => return Ok(false),
            Err(failure) if errors::is_duplicate(&failure) => return Ok(false),
            Err(failure) => return Err(failure.into()),
        }
        self.last.stored(last, revision.ledger, version);
        match revision.effect {
            Effect::Wait(ticket) if self.is_subscribed(name, ticket) => {}
            Effect::Wait(ticket) => {
                self.waiting = Some(Waiting { name: name.clone(), ticket, reported: Turn::Later });
            }
            Effect::Hold(_) | Effect::Leave | Effect::Free => self.waiting = None,
            Effect::None => {}
        }
        Ok(true)
    }
}

/// Returns the time, and the row of a lock if there is one.
fn read_row(row: &Row) -> Option<(u64, Option<sql::Row>)> {
    let text =
        |column: usize| row.get(column)?.as_ref().map(|value| String::from_utf8_lossy(value).into_owned());
    let number = |column: usize| text(column)?.parse::<u64>().ok();
    let now = number(0)?;
    let Some(format) = number(1) else { return Some((now, None)) };
    let row = sql::Row {
        format: u32::try_from(format).ok()?,
        version: number(2)?,
        fencing_token: number(3)?,
        ticket: number(4)?,
        taken_at: number(5)?,
        leases: text(6)?,
        entries: text(7)?,
        success: text(8),
        outcomes: text(9)?,
    };
    Some((now, Some(row)))
}

impl LedgerStore for MysqlStore {
    fn display(&self) -> &str {
        self.client.location.display()
    }

    fn connect(&mut self) -> Reply<'_, Result<(), StoreError>> {
        Box::pin(self.client.connect())
    }

    async fn change<T: Send + 'static>(
        &mut self,
        name: &LockName,
        purpose: Purpose,
        decide: impl Fn(&mut Ledger, &dyn Observed) -> Step<T> + Send + 'static,
    ) -> Result<Done<T>, StoreError> {
        document::change(self, name, &purpose, decide).await
    }

    async fn read(
        &mut self,
        names: &[LockName],
        view: impl Fn(&LockName, &Ledger, &dyn Observed) -> LockState + Send + 'static,
    ) -> Result<(u64, Vec<LockState>), StoreError> {
        document::read(self, names, view).await
    }

    fn list(&mut self) -> Reply<'_, Result<Vec<LockName>, StoreError>> {
        Box::pin(async { self.list_where(&format!("ends_at > {NOW}")).await })
    }

    fn list_recorded(&mut self) -> Reply<'_, Result<Vec<LockName>, StoreError>> {
        Box::pin(self.list_where("outcomes <> '[]'"))
    }

    fn history<'a>(&'a mut self, name: &'a LockName) -> Reply<'a, Result<Vec<NotedRecord>, StoreError>> {
        Box::pin(document::history(self, name))
    }

    fn changed(&mut self) -> Reply<'_, Change> {
        Box::pin(self.turn())
    }

    fn examine<'a>(&'a mut self, examination: &'a Diagnosis) -> Reply<'a, Result<(), StoreError>> {
        Box::pin(self.examine_server(examination))
    }

    fn init(&mut self) -> Reply<'_, Result<(), StoreError>> {
        Box::pin(self.create_table())
    }

    fn hazard(&self) -> Option<Hazard> {
        self.client.is_in_cluster.then_some(Hazard::Forgetful)
    }
}

//! A client of the primary: one connection at a time.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::connection::{Connection, is_mariadb};
use super::errors;
use super::location::Location;
use super::packet::malformed;
use super::proxy;
use super::recipe::{GetLock, Recipe};
use super::reply::{Failure, QueryResult, Row, number};
use super::stand_in;
use super::table::quoted;
use crate::backend::StoreError;
use crate::backend::ledger::waiting::Waiting;
use crate::backend::sql::TABLE;
use crate::clock::Moment;

/// The same whatever the defaults of the server and of the user are. A statement waits for a row as long as another
/// statement runs, and no longer; a session ends with its connection.
const SETTINGS: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE; SET SESSION autocommit = 1, \
                        sql_mode = 'STRICT_ALL_TABLES', innodb_lock_wait_timeout = 5, wait_timeout = ";
/// Asks whether the server has become a replica. A user whose rights override `read_only` gets no error from a write
/// there, so it must be asked. The question follows the writes in the same request: after an orderly switchover, the
/// new primary has all writes that precede it.
pub(super) const READ_ONLY: &str = "SELECT @@GLOBAL.read_only";
/// The longest time in seconds that a session waits for a request.
pub(super) const IDLE_LIMIT: u64 = 28_800;
/// How often a statement that was rolled back in favor of another one is repeated.
const DEADLOCKS: usize = 5;

/// A cluster in which several nodes accept writes, so that what is committed on one of them can be lost.
#[derive(Clone, Copy)]
pub(super) struct Cluster {
    pub(super) name: &'static str,
    /// The variable that tells it.
    sign: &'static str,
}

const GALERA: Cluster = Cluster { name: "a Galera cluster", sign: "wsrep_on" };
/// Group Replication in multi-primary mode.
const GROUP: Cluster = Cluster {
    name: "a replication group with several primaries",
    sign: "group_replication_single_primary_mode=OFF",
};

pub(super) struct Client {
    pub(super) location: Location,
    connection: Option<Connection>,
    /// The waiter's entry that changes are awaited for.
    pub(super) waiting: Option<Waiting>,
    /// When the last request was sent.
    pub(super) sent: Moment,
    /// The cluster to which the server belongs.
    pub(super) cluster: Option<Cluster>,
    /// The number of the session, ...
    pub(super) session: u64,
    /// ... and what the server calls its connection.
    pub(super) id: u64,
    /// Why the user cannot have the table, where that is not needed.
    pub(super) denied: Option<String>,
    /// Why what is found in place of a table cannot be used.
    pub(super) stand_in: Option<String>,
    /// The tables were found on this connection, and are tables.
    has_tables: bool,
}

impl Client {
    /// Returns a client; does not connect.
    pub(super) fn new(location: Location) -> Client {
        let sent = Moment::now();
        let (waiting, denied, stand_in) = (None, None, None);
        let (cluster, session, id, has_tables) = (None, 0, 0, false);
        Client {
            location,
            connection: None,
            waiting,
            sent,
            cluster,
            session,
            id,
            denied,
            stand_in,
            has_tables,
        }
    }

    /// Connects, unless there is a connection.
    ///
    /// # Errors
    /// The server cannot be reached, rejects the user, or is not one that can hold locks.
    pub(super) async fn connect(&mut self) -> Result<(), StoreError> {
        if self.kept().is_some() {
            // A session that has ended is noticed before a request is lost with it.
            tokio::select! {
                biased;
                () = self.ended() => {}
                () = tokio::task::yield_now() => {}
            }
        }
        if !self.is_connected() {
            self.disconnect();
            let connection = Connection::open(&self.location).await?;
            self.begin(connection).await?;
        }
        Ok(())
    }

    /// Uses an open connection, after it was set up.
    ///
    /// # Errors
    /// The server is not one that can hold locks.
    pub(super) async fn begin(&mut self, mut connection: Connection) -> Result<(), StoreError> {
        // A server without a variable cannot belong to such a cluster.
        let cluster = match is_mariadb(&connection.version) {
            true => "SELECT 'wsrep_on', @@GLOBAL.wsrep_on",
            false => {
                "SHOW GLOBAL VARIABLES WHERE (Variable_name = 'wsrep_on' AND Value = 'ON') OR (Variable_name = \
                 'group_replication_single_primary_mode' AND Value = 'OFF')"
            }
        };
        let sql = format!("{SETTINGS}{IDLE_LIMIT}; SELECT CONNECTION_ID(), @@GLOBAL.read_only; {cluster}");
        let kinds = stand_in::kinds(&self.location.recipe);
        let results = match self.location.recipe {
            Recipe::Table | Recipe::ShedLock(_) => connection.query(&format!("{sql}; {kinds}")).await,
            Recipe::Session(GetLock) => {
                let database = quoted(&self.location.database);
                match connection.query(&format!("{sql}; USE {database}; {kinds}")).await {
                    Err(failure) if errors::missing_right(&failure).is_some() => {
                        self.denied = errors::missing_right(&failure);
                        connection.query(&sql).await
                    }
                    results => results,
                }
            }
        }?;
        let rows = |result: usize| match results.get(result) {
            Some(QueryResult::Rows(rows)) => rows.as_slice(),
            _ => &[],
        };
        self.cluster = match is_mariadb(&connection.version) {
            true => rows(3).iter().any(is_on).then_some(GALERA),
            false => rows(3).first().and_then(|row| row.first()?.as_deref()).map(|variable| match variable {
                b"wsrep_on" => GALERA,
                _ => GROUP,
            }),
        };
        if rows(2).iter().any(is_on) {
            return Err(errors::read_only());
        }
        if let Some(cluster) = self.cluster.filter(|_| !self.location.has_single_writer) {
            return Err(StoreError::Config(format!(
                "the server belongs to {} ({}), which can lose locks: use another server, or, if all clients write to one \
                 node, single_writer=yes",
                cluster.name, cluster.sign
            )));
        }
        self.id = rows(2).first().and_then(|row| number(row, 0)).ok_or_else(malformed)?;
        if self.location.recipe.session().is_some() && self.id != u64::from(connection.thread) {
            proxy::check(&mut connection, self.id, &self.location).await?;
        }
        self.has_tables = false;
        if self.denied.is_none() {
            self.note_kinds(results.last())?;
        }
        self.session += 1;
        self.connection = Some(connection);
        Ok(())
    }

    /// Notes whether what is found under the names of the tables are tables.
    ///
    /// # Errors
    /// One is something else.
    fn note_kinds(&mut self, kinds: Option<&QueryResult>) -> Result<(), StoreError> {
        let Some(QueryResult::Rows(kinds)) = kinds else { return Err(malformed()) };
        self.stand_in = stand_in::among(kinds);
        self.has_tables = kinds.len() == stand_in::tables(&self.location.recipe).len();
        match &self.stand_in {
            None => Ok(()),
            Some(stand_in) => Err(StoreError::Config(stand_in.clone())),
        }
    }

    /// Returns whether there is a connection that can be used.
    pub(super) fn is_connected(&self) -> bool {
        self.connection.as_ref().is_some_and(Connection::is_usable)
    }

    /// Closes the connection.
    pub(super) fn disconnect(&mut self) {
        self.connection = None;
    }

    /// Keeps the session, see [`Connection::keep`].
    ///
    /// # Errors
    /// There are too many open files, or no connection.
    pub(super) fn keep(&mut self, lease: Duration) -> io::Result<()> {
        self.connection.as_mut().ok_or(io::ErrorKind::NotConnected)?.keep(lease)
    }

    /// The session may end.
    pub(super) fn let_go(&mut self) {
        if let Some(connection) = &mut self.connection {
            connection.let_go();
        }
    }

    /// Returns the socket, if the session is kept.
    pub(super) fn kept(&self) -> Option<BorrowedFd<'_>> {
        self.connection.as_ref()?.kept()
    }

    /// Returns when the server has ended the session; never if that is known already.
    pub(super) async fn ended(&mut self) {
        match self.connection.as_mut().filter(|connection| connection.is_usable()) {
            Some(connection) => connection.ended().await,
            None => std::future::pending().await,
        }
    }

    /// Connects if need be, and sends statements in one request. Those that are rolled back in favor of others are sent
    /// again.
    ///
    /// # Errors
    /// One of them failed, or the server did not reply.
    pub(super) async fn query(&mut self, sql: &str) -> Result<Vec<QueryResult>, Failure> {
        for _ in 0..DEADLOCKS {
            match self.query_once(sql).await {
                Err(failure) if failure.is(&[errors::DEADLOCK]) => {}
                result => return result,
            }
        }
        self.query_once(sql).await
    }

    async fn query_once(&mut self, sql: &str) -> Result<Vec<QueryResult>, Failure> {
        self.connect().await?;
        // Until they are there, anything may appear under their names.
        if !self.has_tables && self.denied.is_none() {
            let kinds = self.send(&stand_in::kinds(&self.location.recipe)).await?;
            self.note_kinds(kinds.last())?;
        }
        match self.send(sql).await {
            // The session that was opened has one, so this is another session.
            Err(failure) if self.has_own_session() && failure.is(&[errors::NO_DATABASE]) => {
                self.disconnect();
                Err(proxy::shares_connections().into())
            }
            result => result,
        }
    }

    /// Returns whether every request has to go over the session that was opened, which has selected the database.
    fn has_own_session(&self) -> bool {
        self.location.recipe.session().is_some() && self.denied.is_none()
    }

    async fn send(&mut self, sql: &str) -> Result<Vec<QueryResult>, Failure> {
        let connection = self.connection.as_mut().ok_or_else(|| StoreError::unreachable("not connected"))?;
        self.sent = Moment::now();
        connection.query(sql).await
    }

    /// Likewise, with statements that only read: the future may be dropped, and the connection is used on.
    ///
    /// # Errors
    /// As of [`Client::query`].
    pub(super) async fn watch(&mut self, sql: &str) -> Result<Vec<Row>, Failure> {
        let connection = self.connection.as_mut().filter(|connection| connection.is_usable());
        let connection = connection.ok_or_else(|| StoreError::unreachable("not connected"))?;
        match connection.watch(sql).await?.pop() {
            Some(QueryResult::Rows(rows)) => Ok(rows),
            _ => Err(malformed().into()),
        }
    }

    /// Returns the rows of the last of these statements.
    ///
    /// # Errors
    /// As of [`Client::query`].
    pub(super) async fn rows(&mut self, sql: &str) -> Result<Vec<Row>, Failure> {
        match self.query(sql).await?.pop() {
            Some(QueryResult::Rows(rows)) => Ok(rows),
            _ => Err(malformed().into()),
        }
    }

    /// Notes that the user may not have the table, if that is what the failure means: its locks need none.
    pub(super) fn note_missing_right(&mut self, failure: &Failure) {
        if let Some(error) =
            errors::missing_right(failure).filter(|_| self.location.recipe.gate_lifetime().is_some())
        {
            self.denied = Some(error);
        }
    }

    /// Returns why there are no ledgers.
    pub(super) fn why_no_ledgers(&self) -> Option<String> {
        let denied = self.denied.as_ref()?;
        Some(format!(
            "without the table {TABLE} a lock has no queue, no nested runs, no tokens, no --once-per and no history, and dlock \
             break cannot stop its command: {denied}"
        ))
    }

    /// Returns whether the server that is connected is MariaDB.
    pub(super) fn is_mariadb(&self) -> bool {
        is_mariadb(self.version())
    }

    /// Returns the version of the server that is connected.
    pub(super) fn version(&self) -> &str {
        self.connection.as_ref().map_or("", |connection| &connection.version)
    }
}

/// Returns whether the last value of a row says that something is on.
fn is_on(row: &Row) -> bool {
    row.last().is_some_and(|value| !matches!(value.as_deref(), None | Some(b"0" | b"OFF")))
}

/// Takes the answer to [`READ_ONLY`] from the end of the results.
///
/// # Errors
/// The server is read-only: writes before this answer may be missing on the new primary.
pub(super) fn still_primary(results: &mut Vec<QueryResult>) -> Result<(), StoreError> {
    match results.pop() {
        Some(QueryResult::Rows(rows)) if rows.len() == 1 => match rows.iter().any(is_on) {
            true => Err(errors::read_only().after_a_part()),
            false => Ok(()),
        },
        _ => Err(malformed()),
    }
}

//! A client of the primary: one connection at a time.

use super::connection::Connection;
use super::errors;
use super::location::Location;
use super::reply::{Failure, Outcome, Row};
use crate::backend::StoreError;
use crate::clock::Moment;

/// The same whatever the defaults of the server and of the user are. A statement waits for a row as long as another
/// statement runs, and no longer; a session ends with its connection.
const SETTINGS: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE; SET SESSION autocommit = 1, \
                        sql_mode = 'STRICT_ALL_TABLES', innodb_lock_wait_timeout = 5, wait_timeout = 28800";
/// The oldest versions whose statements and messages are those that are used here.
const OLDEST_MYSQL: (u32, u32, u32) = (5, 7, 5);
const OLDEST_MARIADB: (u32, u32, u32) = (10, 2, 0);
/// How often a statement that was rolled back in favor of another one is repeated.
const DEADLOCKS: usize = 5;

pub(super) struct Client {
    pub(super) location: Location,
    connection: Option<Connection>,
    /// When the last request was sent.
    pub(super) sent: Moment,
    /// The server belongs to a cluster, in which a commit on one node can be lost.
    pub(super) is_in_cluster: bool,
}

impl Client {
    /// Returns a client; does not connect.
    pub(super) fn new(location: Location) -> Client {
        Client { location, connection: None, sent: Moment::now(), is_in_cluster: false }
    }

    /// Connects, unless there is a connection.
    ///
    /// # Errors
    /// The server cannot be reached, rejects the user, or is not one that can hold locks.
    pub(super) async fn connect(&mut self) -> Result<(), StoreError> {
        if self.connection.as_ref().is_none_or(|connection| !connection.is_usable()) {
            self.connection = None;
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
        let is_mariadb = connection.version.contains("MariaDB");
        let oldest = if is_mariadb { OLDEST_MARIADB } else { OLDEST_MYSQL };
        if crate::backend::diagnosis::version_of(&connection.version) < oldest {
            let text = format!("the server is too old ({}): see dlock man mysql", connection.version);
            return Err(StoreError::Config(text));
        }
        // MySQL does not have the variable, unless it belongs to a cluster.
        let cluster = match is_mariadb {
            true => "SELECT 'wsrep_on', @@GLOBAL.wsrep_on",
            false => "SHOW GLOBAL VARIABLES LIKE 'wsrep\\_on'",
        };
        let outcomes = connection.query(&format!("{SETTINGS}; SELECT @@GLOBAL.read_only; {cluster}")).await?;
        let is_on = |outcome: Option<&Outcome>| match outcome {
            Some(Outcome::Rows(rows)) => rows
                .first()
                .and_then(|row| row.last())
                .is_some_and(|value| !matches!(value.as_deref(), None | Some(b"0" | b"OFF"))),
            _ => false,
        };
        self.is_in_cluster = is_on(outcomes.get(3));
        if is_on(outcomes.get(2)) {
            return Err(errors::read_only());
        }
        if self.is_in_cluster && !self.location.has_single_writer {
            return Err(StoreError::Config(
                "the server belongs to a Galera cluster (wsrep_on), which can lose locks: use another server, or, if all \
                 clients write to one node, single_writer=yes"
                    .into(),
            ));
        }
        self.connection = Some(connection);
        Ok(())
    }

    /// Connects if need be, and sends statements in one request. Those that are rolled back in favor of others are sent
    /// again.
    ///
    /// # Errors
    /// One of them failed, or the server did not reply.
    pub(super) async fn query(&mut self, sql: &str) -> Result<Vec<Outcome>, Failure> {
        for _ in 0..DEADLOCKS {
            match self.query_once(sql).await {
                Err(failure) if errors::is_deadlock(&failure) => {}
                result => return result,
            }
        }
        self.query_once(sql).await
    }

    async fn query_once(&mut self, sql: &str) -> Result<Vec<Outcome>, Failure> {
        self.connect().await?;
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
            Some(Outcome::Rows(rows)) => Ok(rows),
            _ => Err(super::packet::malformed().into()),
        }
    }

    /// Returns the rows of the last of these statements.
    ///
    /// # Errors
    /// As of [`Client::query`].
    pub(super) async fn rows(&mut self, sql: &str) -> Result<Vec<Row>, Failure> {
        match self.query(sql).await?.pop() {
            Some(Outcome::Rows(rows)) => Ok(rows),
            _ => Err(super::packet::malformed().into()),
        }
    }

    /// Returns the version of the server that is connected.
    pub(super) fn version(&self) -> &str {
        self.connection.as_ref().map_or("", |connection| &connection.version)
    }
}

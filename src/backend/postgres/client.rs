//! The requests of a client to its server.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;

use tokio_postgres::types::{FromSql, Type};
use tokio_postgres::{Error, Row};

use super::connection::Connection;
use super::errors;
use super::inspection::{self, Found};
use super::location::Location;
use super::options::Table;
use super::recipe::Recipe;
use super::statements::{Parameter, Statements};
use crate::backend::StoreError;
use crate::backend::ledger::document::digest;
use crate::backend::net::{HEAD_START, first_server, outlast};
use crate::clock::Moment;
use crate::random;

/// The payloads of notifications.
pub(super) const CALLED: &str = "called";
pub(super) const NEXT: &str = "next";

/// Returns the channel of a waiter. It cannot be guessed without the waiter's token.
pub(super) fn channel(token: &str) -> String {
    let (high, low) = digest(token);
    format!("dlock_{high:016x}{low:016x}")
}

/// The places of the tables.
pub(super) const LOCKS: usize = 0;
pub(super) const SHEDLOCK: usize = 1;

pub(super) struct Client {
    pub(super) location: Location,
    pub(super) statements: Rc<Statements>,
    /// What to say of a role that may not have the table.
    pub(super) lacks: Option<String>,
    pub(super) connection: Option<Connection>,
    /// The server in use, or to use next, by its place in the URL.
    pub(super) server: usize,
    /// What the connection with this identifier has found in place of the tables.
    found: Option<(u64, Vec<Option<Found>>)>,
    /// The channel that the connection listens to.
    channel: Option<String>,
    is_pooled: bool,
    /// When the last statement was sent.
    pub(super) sent: Moment,
}

impl Client {
    /// Returns a client; does not connect.
    pub(super) fn new(location: Location) -> Client {
        let server = random::number() as usize % location.servers.len();
        let statements = Rc::new(Statements::of(&location.table.quoted()));
        Client {
            location,
            statements,
            lacks: None,
            connection: None,
            server,
            found: None,
            channel: None,
            is_pooled: false,
            sent: Moment::now(),
        }
    }

    /// Connects to the first server that accepts, unless there is a connection, and finds out what is there in place of the
    /// tables. A server that does not respond does not delay the others for long.
    ///
    /// # Errors
    /// None accepts: what one of them said. Or a table may not be used ([`StoreError::Config`]).
    pub(super) async fn connect(&mut self) -> Result<(), StoreError> {
        if self.connection.as_ref().is_some_and(|connection| !connection.client.is_closed()) {
            return Ok(());
        }
        (self.connection, self.channel) = (None, None);
        let location = &self.location;
        let open = async |server: usize| Connection::open(location, &location.servers[server]).await;
        let opened = first_server(&mut self.server, location.servers.len(), HEAD_START, open).await?;
        self.connection = Some(opened);
        let looked = self.look().await;
        if looked.is_err() {
            self.close();
        }
        looked
    }

    /// Uses an open connection.
    pub(super) fn begin(&mut self, connection: Connection) {
        (self.connection, self.channel) = (Some(connection), None);
    }

    /// Gives up the connection; the next one is to the next server.
    pub(super) fn close(&mut self) {
        self.connection = None;
        self.server = (self.server + 1) % self.location.servers.len();
    }

    /// Gives up the statement that was sent last, and the connection with it, unless its session keeps a lock: there, the
    /// server ends the statement (`lock_timeout`).
    fn give_up(&mut self) {
        if let Some(connection) = self.connection.take_if(|connection| !connection.is_kept) {
            connection.abandon(&self.location, &self.location.servers[self.server]);
            self.close();
        }
    }

    /// Returns the open connection.
    pub(super) fn connection(&self) -> Option<u64> {
        let connection = self.connection.as_ref().filter(|connection| !connection.client.is_closed());
        connection.map(|connection| connection.id)
    }

    /// Keeps the connection, or not any more, after a request without a reply, and through an outage that is shorter than
    /// the lease: the lock of its session would be lost.
    pub(super) fn keep(&mut self, lease: Option<Duration>) {
        if let Some(connection) = &mut self.connection {
            connection.is_kept = lease.is_some();
            if let Some(socket) = &connection.descriptor {
                outlast(socket.as_fd(), lease.unwrap_or_default());
            }
        }
    }

    /// Returns whether the server named this process when the connection was opened.
    pub(super) fn is_named(&self, process: i32) -> bool {
        let named = self.connection.as_ref().map(|connection| connection.process);
        named.is_some_and(|named| u32::try_from(process) == Ok(named))
    }

    /// Returns the ends of the connection: the address of this host, and that of the server; `None` for a Unix socket.
    pub(super) fn ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        let socket = self.connection.as_ref()?.descriptor.as_ref()?.try_clone().ok()?;
        let socket = TcpStream::from(socket);
        socket.local_addr().ok().zip(socket.peer_addr().ok())
    }

    /// Runs a statement, and returns its rows. A future that is dropped, and a server that cannot be used,
    /// lead to another connection, to the next server, unless this one is kept.
    ///
    /// # Errors
    /// It failed.
    pub(super) async fn query(
        &mut self,
        statement: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Result<Vec<Row>, Error>, StoreError> {
        self.connect().await?;
        self.send(None, statement, parameters).await
    }

    /// Likewise, where no error is expected.
    ///
    /// # Errors
    /// It failed.
    pub(super) async fn rows(
        &mut self,
        statement: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        self.query(statement, parameters).await?.map_err(|error| self.meaning(&error))
    }

    /// Returns the only value that a statement selects, if there is a row.
    ///
    /// # Errors
    /// It failed.
    pub(super) async fn value<T: for<'a> FromSql<'a>>(
        &mut self,
        statement: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Option<T>, StoreError> {
        let rows = self.rows(statement, parameters).await?;
        rows.first().map(|row| row.try_get(0)).transpose().map_err(|error| self.meaning(&error))
    }

    /// Runs a statement that needs the table in this place, see [`tables`](Client::tables); `None` if there is no table. It
    /// is never run on a connection that has not found out what is there.
    ///
    /// # Errors
    /// It failed, or the table may not be used.
    pub(super) async fn on_table(
        &mut self,
        place: usize,
        channel: Option<String>,
        statement: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Option<Result<Vec<Row>, Error>>, StoreError> {
        self.connect().await?;
        if self.found(place).is_none() {
            self.look().await?;
        }
        if self.found(place).is_none() {
            return Ok(None);
        }
        let result = self.send(channel, statement, parameters).await?;
        let is_gone = result.as_ref().is_err_and(errors::is_without_table);
        self.found = self.found.take().filter(|_| !is_gone);
        Ok((!is_gone).then_some(result))
    }

    /// Returns the tables: dlock's own, and that of ShedLock if it is used.
    fn tables(&self) -> Vec<Table> {
        let is_used = matches!(self.location.recipe, Recipe::ShedLock(_));
        let shedlock = is_used.then(|| self.location.shedlock_table.clone());
        [Some(self.location.table.clone()), shedlock].into_iter().flatten().collect()
    }

    /// Returns what the connection has found in the place of a table.
    pub(super) fn found(&self, place: usize) -> Option<&Found> {
        let (connection, found) = self.found.as_ref()?;
        found.get(place)?.as_ref().filter(|_| self.connection() == Some(*connection))
    }

    /// Finds out whether the tables may be used: briefly, as long as nothing is unusual.
    ///
    /// # Errors
    /// It failed, or one of them may not be used ([`StoreError::Config`]).
    pub(super) async fn look(&mut self) -> Result<(), StoreError> {
        self.found = None;
        let tables = self.tables();
        let [table] = &tables[..] else { return self.look_closely(None).await };
        let (connection, process) = self.opened()?;
        let parameters: [Parameter<'_>; 2] = [(&table.name, Type::TEXT), (&process, Type::INT8)];
        let rows = self.send(None, inspection::SUMMARY, &parameters).await?;
        let rows = rows.map_err(|error| self.meaning(&error))?;
        if inspection::is_plain(&rows, table).map_err(|error| self.meaning(&error))? {
            self.found = Some((connection, vec![Some(Found::default())]));
            return Ok(());
        }
        let search_path = inspection::search_path(&rows).map_err(|error| self.meaning(&error))?;
        self.look_closely(Some(search_path)).await
    }

    /// Finds out what is there in place of the tables, in full. `search_path` is the one that the session had before
    /// [`Client::look`] changed it.
    ///
    /// # Errors
    /// As [`Client::look`].
    pub(super) async fn look_closely(&mut self, search_path: Option<Vec<String>>) -> Result<(), StoreError> {
        self.found = None;
        let tables = self.tables();
        let (connection, process) = self.opened()?;
        let schemas: Vec<&str> = tables.iter().map(|table| table.schema.as_str()).collect();
        let names: Vec<&str> = tables.iter().map(|table| table.name.as_str()).collect();
        let parameters: [Parameter<'_>; 4] = [
            (&schemas, Type::TEXT_ARRAY),
            (&names, Type::TEXT_ARRAY),
            (&process, Type::INT8),
            (&search_path, Type::NAME_ARRAY),
        ];
        let rows = self.send(None, inspection::STATEMENT, &parameters).await?;
        let rows = rows.map_err(|error| self.meaning(&error))?;
        let mut found = Vec::new();
        for (row, table) in rows.iter().zip(&tables) {
            let judged = inspection::judge(row, table, self.location.owner.as_deref());
            found.push(judged.map_err(|error| self.meaning(&error))?.map_err(StoreError::Config)?);
        }
        self.found = Some((connection, found));
        Ok(())
    }

    /// Returns the number of the open connection, and the process of the server that served it when it was opened.
    fn opened(&self) -> Result<(u64, i64), StoreError> {
        let connection = self.connection.as_ref().ok_or_else(|| StoreError::unreachable("not connected"))?;
        Ok((connection.id, i64::from(connection.process)))
    }

    /// Runs a statement on the open connection.
    async fn send(
        &mut self,
        channel: Option<String>,
        statement: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Result<Vec<Row>, Error>, StoreError> {
        self.sent = Moment::now();
        let mut pending = Pending { client: self, is_over: false };
        let Some(connection) = &pending.client.connection else {
            return Err(StoreError::unreachable("not connected"));
        };
        let is_kept = connection.is_kept;
        let result = connection.ask(channel.as_deref(), statement, parameters).await;
        pending.is_over = true;
        drop(pending);
        let is_usable = match &result {
            Ok(_) => true,
            Err(error) => !errors::is_disconnected(error) && (is_kept || !errors::is_read_only(error)),
        };
        match is_usable {
            true => self.channel = channel.filter(|_| result.is_ok()).or(self.channel.take()),
            false => self.close(),
        }
        Ok(result)
    }

    /// Creates a table by this statement, if the role may. What is there then is found out before it is used.
    ///
    /// # Errors
    /// It failed.
    pub(super) async fn create(&mut self, statement: &str) -> Result<(), StoreError> {
        let created = self.query(statement, &[]).await?;
        match created {
            Ok(_) => Ok(()),
            // Another client has created it at the same time.
            Err(error) if errors::is_created_already(&error) => Ok(()),
            Err(error) => Err(self.meaning(&error)),
        }
    }

    /// Returns what an error means.
    pub(super) fn meaning(&self, error: &Error) -> StoreError {
        errors::meaning(error, &self.location.table.to_string())
    }

    /// Returns whether this connection listens to a channel.
    pub(super) fn is_listening(&self, channel: &str) -> bool {
        self.connection.is_some() && self.channel.as_deref() == Some(channel)
    }

    /// Notes which process has served a request. If it is not the one that was named when the connection was opened,
    /// there is a pooler, which names numbers of its own.
    pub(super) fn served_by(&mut self, process: i32) {
        self.is_pooled = self.connection.is_some() && !self.is_named(process);
    }

    /// Returns whether notifications arrive: no pooler takes them.
    pub(super) fn notifies(&self) -> bool {
        !self.is_pooled
    }
}

/// A statement whose reply is awaited: it is given up if this is dropped.
struct Pending<'a> {
    client: &'a mut Client,
    is_over: bool,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.client.give_up();
        }
    }
}

//! Finds out whether a connection has a session of its own. A pooler that distributes transactions lets two clients take
//! the same advisory lock, which is one process's at the server, and leaves it locked when a client ends.

use std::net::{IpAddr, SocketAddr};

use super::client::Client;
use super::connection::Connection;
use crate::backend::StoreError;

/// Why advisory locks cannot be taken through a pooler.
pub(super) const SHARED: &str = "a pooler gives each transaction of a connection another server process, so that two \
                                 clients could hold the same advisory lock: connect to the server itself, or through a \
                                 pool of sessions (pool_mode = session)";
const PROCESS: &str = "SELECT pg_catalog.pg_backend_pid()";
/// The server process, and both ends of its connection, which are NULL for a Unix socket.
const ENDS: &str = "SELECT pg_catalog.pg_backend_pid(), pg_catalog.host(pg_catalog.inet_client_addr()), \
                    pg_catalog.inet_client_port(), pg_catalog.host(pg_catalog.inet_server_addr()), \
                    pg_catalog.inet_server_port()";
/// How many other connections are tried if there is a pooler. PgBouncer serves the next transaction by the process that has
/// served the last one, unless a third client is faster.
const OTHERS: usize = 3;

impl Client {
    /// Returns the connection, after making sure that no other one is served by the same process. Unless the server sees
    /// the same connection as this host does, others are opened for a moment.
    ///
    /// # Errors
    /// It has no process of its own ([`StoreError::Config`]), or that could not be found out.
    pub(super) async fn own_session(&mut self) -> Result<u64, StoreError> {
        self.connect().await?;
        if self.connection.as_ref().is_some_and(|connection| connection.has_own_process) {
            return self.connection().ok_or_else(lost);
        }
        let (first, ends) = self.process_and_ends().await?;
        let connection = self.connection().ok_or_else(lost)?;
        // A pooler names a number of its own instead of the server process, so that it can tell whose statement a
        // request to cancel is about.
        let is_named = self.is_named(first);
        let is_direct = is_named && ends.is_some() && ends == self.ends();
        let count = match is_named {
            true if is_direct => 0,
            // The server may be behind a Unix socket, or behind a router that translates addresses.
            true => 1,
            false => OTHERS,
        };
        let mut others = Vec::new();
        for _ in 0..count {
            let address = &self.location.servers[self.server];
            let other = match Connection::open(&self.location, address).await {
                // All connections of the server may be those of waiters.
                Err(StoreError::Unavailable { .. }) if is_named => break,
                other => other?,
            };
            let process = async {
                other.refill();
                other.client.batch_execute("BEGIN").await?;
                other.client.query_typed(PROCESS, &[]).await?.first().map_or(Ok(0), |row| row.try_get(0))
            };
            let process: i32 = process.await.map_err(|error| match self.meaning(&error) {
                StoreError::Unavailable { reason, .. } => StoreError::unanswered(reason),
                error => error,
            })?;
            // Its transaction stays open until the end of the check, so that a pooler cannot use the process for this
            // client.
            others.push(other);
            // With a pool of a single process, the second question would wait for it.
            let is_shared =
                process == first || self.value::<i32>(PROCESS, &[]).await?.unwrap_or_default() != first;
            // If this client had to reconnect, another process proves nothing.
            let connection = self.connection().filter(|current| *current == connection);
            connection.ok_or_else(lost)?;
            if is_shared {
                return Err(StoreError::Config(SHARED.into()));
            }
        }
        let open = self.connection.as_mut().filter(|open| open.id == connection && !open.client.is_closed());
        open.ok_or_else(lost)?.has_own_process = true;
        Ok(connection)
    }

    /// Returns the process that serves a statement, and the ends of its connection as it sees them: the address of the
    /// client, and its own; `None` for a Unix socket.
    async fn process_and_ends(&mut self) -> Result<(i32, Option<(SocketAddr, SocketAddr)>), StoreError> {
        let rows = self.rows(ENDS, &[]).await?;
        let row = rows.first().ok_or_else(lost)?;
        let end = |column: usize| -> Result<Option<SocketAddr>, tokio_postgres::Error> {
            let (host, port): (Option<&str>, Option<i32>) = (row.try_get(column)?, row.try_get(column + 1)?);
            let host = host.and_then(|host| host.parse::<IpAddr>().ok());
            let port = port.and_then(|port| u16::try_from(port).ok());
            Ok(host.zip(port).map(SocketAddr::from))
        };
        let fields = || Ok((row.try_get(0)?, end(1)?.zip(end(3)?)));
        fields().map_err(|error| self.meaning(&error))
    }
}

/// Returns the error for a session that was lost during the check: another one may be asked at once.
fn lost() -> StoreError {
    StoreError::unanswered("the connection was lost")
}

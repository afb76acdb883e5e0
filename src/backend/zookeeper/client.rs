//! A session with the ensemble, over one connection after another.

use std::cell::Cell;
use std::time::Duration;

use super::connection::{Connection, Reply, Report};
use super::errors::expired;
use super::heartbeats::{Heartbeats, lease_of, session_for};
use super::location::Location;
use super::message::{Reader, Request, write_connect};
use crate::backend::net::{Address, HEAD_START, Protocol, first_server};
use crate::backend::{Change, StoreError};
use crate::clock::Moment;
use crate::random;

/// How often a session is continued again if the server has closed the connection.
const MOVES: usize = 3;
/// A shorter session leaves no time to stop a command.
const SHORTEST_SESSION: Duration = Duration::from_secs(1);

/// A session: its credentials, and how long it lasts.
struct Session {
    id: i64,
    password: Vec<u8>,
    /// How long it lasts after the last request that the leader knows of, as negotiated.
    timeout: Duration,
    /// The sending of the last request that the leader, or the next one, must know of.
    known: Moment,
    /// The lease that it was begun for, if the server keeps sessions for that long.
    lease: Duration,
}

pub(super) struct Client {
    pub(super) location: Location,
    connection: Option<Connection>,
    /// The session was begun on the connection.
    is_open: bool,
    /// A write was committed on the connection, such as the one that has begun the session: its server was not cut off
    /// from the others when it began or continued the session, or since.
    pub(super) is_proven: bool,
    session: Option<Session>,
    last_zxid: i64,
    /// The session was continued on another connection since this was cleared: watches are gone.
    pub(super) is_fresh: bool,
    /// The server that is tried next.
    server: usize,
}

impl Client {
    pub(super) fn new(location: Location) -> Client {
        let server = random::number() as usize;
        Client {
            location,
            connection: None,
            is_open: false,
            is_proven: false,
            session: None,
            last_zxid: 0,
            is_fresh: true,
            server,
        }
    }

    /// Returns the id of the session; `None` if there is none.
    pub(super) fn session(&self) -> Option<i64> {
        self.session.as_ref().map(|session| session.id)
    }

    /// Returns how long the session lasts after the last request; `None` if there is none.
    pub(super) fn timeout(&self) -> Option<Duration> {
        self.session.as_ref().map(|session| session.timeout)
    }

    /// Returns the lease, as far as it is certain, from this moment on; `None` without a session.
    pub(super) fn lease(&self, from: Moment) -> Option<Duration> {
        let session = self.session.as_ref()?;
        Some((session.known + session.timeout - from).min(session.lease))
    }

    /// Connects to one of the servers, unless there is a connection that can be used. Sends nothing.
    ///
    /// # Errors
    /// None of them can be reached.
    pub(super) async fn connect(&mut self) -> Result<(), StoreError> {
        if self.connection.as_ref().is_some_and(Connection::is_usable) {
            return Ok(());
        }
        if self.connection.take().is_some() {
            // It may be this server that did not reply.
            self.server = self.server.wrapping_add(1);
        }
        let location = &self.location;
        let open = async |server: usize| location.open_connection(server).await;
        let opened = first_server(&mut self.server, location.servers.len(), HEAD_START, open).await?;
        (self.connection, self.is_open) = (Some(opened), false);
        Ok(())
    }

    /// Begins or continues the session; a new one has a lease of `ttl`, if the server allows that. A server that accepts
    /// connections and does not respond does not delay the others for long.
    ///
    /// # Errors
    /// No server begins it, or it has expired: then the next call begins another one.
    pub(super) async fn open(&mut self, ttl: Duration) -> Result<(), StoreError> {
        self.connect().await?;
        if self.is_open {
            return Ok(());
        }
        let mut begun = self.begin_anywhere(ttl).await;
        for _ in 0..MOVES {
            match begun {
                // A request to continue the session that was given up may reach the server later than this one, and moves
                // the session to a connection that is closed already.
                Err(StoreError::Unavailable { maybe_applied: true, .. }) if self.session.is_some() => {
                    begun = self.begin_anywhere(ttl).await;
                }
                _ => break,
            }
        }
        begun
    }

    async fn begin_anywhere(&mut self, ttl: Duration) -> Result<(), StoreError> {
        let connected = Cell::new(self.connection.take());
        let (location, session, last_zxid) = (&self.location, self.session.as_ref(), self.last_zxid);
        let begin = async |server: usize| {
            let connection = match connected.take() {
                Some(connection) => connection,
                None => location.open_connection(server).await?,
            };
            let server = &location.servers[server];
            let begin = begin_session(connection, location, server, session, last_zxid, ttl);
            Protocol::ZooKeeper.first_exchange(server, &location.security, begin).await
        };
        match first_server(&mut self.server, location.servers.len(), HEAD_START, begin).await? {
            Some((connection, session)) => {
                // A new one is written by a majority; one that is continued may be so by a server that is cut off.
                self.is_proven = self.session.is_none();
                (self.connection, self.session) = (Some(connection), Some(session));
                (self.is_open, self.is_fresh) = (true, true);
                Ok(())
            }
            None => {
                self.session = None;
                Err(expired())
            }
        }
    }

    /// Sends requests in one write, and returns the replies, each with its own error code.
    ///
    /// # Errors
    /// The connection is broken, or the session has expired.
    pub(super) async fn exchange(&mut self, requests: &[Request]) -> Result<Vec<Reply>, StoreError> {
        let Some(connection) = &mut self.connection else {
            return Err(StoreError::unreachable("not connected"));
        };
        let (replies, known) = connection.exchange(requests).await?;
        if let Some((session, known)) = self.session.as_mut().zip(known) {
            session.known = session.known.max(known);
            self.is_proven = true;
        }
        for reply in &replies {
            self.last_zxid = self.last_zxid.max(reply.zxid);
            if reply.code.ends_session() {
                self.connection = None;
                return Err(reply.code.error(""));
            }
        }
        Ok(replies)
    }

    /// Sends requests whose replies are not awaited.
    ///
    /// # Errors
    /// The connection is broken.
    pub(super) async fn begin(&mut self, requests: &[(Request, Report)]) -> Result<(), StoreError> {
        match &mut self.connection {
            Some(connection) => connection.begin(requests).await,
            None => Ok(()),
        }
    }

    /// Ends the session, and with it all nodes that depend on it, without waiting for the reply.
    pub(super) fn close(&mut self) {
        self.session = None;
        if let Some(connection) =
            self.connection.take().filter(|connection| self.is_open && connection.is_usable())
        {
            connection.close_session();
        }
    }

    /// Waits for an event. Keeps the session alive meanwhile.
    pub(super) async fn changed(&mut self) -> Change {
        match (&mut self.connection, &self.session) {
            (Some(connection), Some(session)) if self.is_open && connection.is_usable() => {
                connection.changed(session.timeout).await
            }
            _ => std::future::pending().await,
        }
    }
}

/// Begins a session, or continues this one, over a connection; `None` if it has expired.
///
/// # Errors
/// The server does not begin it. If the future is dropped, a session that the server begins ends at once.
async fn begin_session(
    connection: Connection,
    location: &Location,
    server: &Address,
    session: Option<&Session>,
    last_zxid: i64,
    ttl: Duration,
) -> Result<Option<(Connection, Session)>, StoreError> {
    let mut beginning = Beginning { connection: Some(connection), is_new: session.is_none() };
    let Some(connection) = &mut beginning.connection else { return Ok(None) };
    let (id, password) = session.map_or((0, [0; 16].as_slice()), |s| (s.id, &s.password));
    let lease = session.map_or(ttl, |session| session.lease);
    let timeout = session.map_or(session_for(ttl), |session| session.timeout);
    let timeout_ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    let mut message = Vec::new();
    let sent = Moment::now();
    write_connect(timeout_ms, last_zxid, id, password, &mut message);
    let reply = connection.exchange_raw(&message).await.map_err(|error| match error {
        // A server without a quorum closes every connection here.
        StoreError::Unavailable { .. } => {
            error.map_text(|text| format!("{text} (no quorum?): see dlock doctor"))
        }
        error => error,
    })?;
    let mut reader = Reader(&reply);
    let (_version, timeout_ms, id) = (reader.int()?, reader.int()?, reader.long()?);
    let password = reader.bytes()?.to_vec();
    location.security.recognize(server);
    if timeout_ms <= 0 || id == 0 {
        return Ok(None);
    }
    let timeout = Duration::from_millis(timeout_ms as u64);
    if timeout < SHORTEST_SESSION.min(ttl) {
        return Err(StoreError::Config(format!(
            "the server limits sessions to {timeout_ms} ms, too short to stop a command in time: raise its \
             maxSessionTimeout to {} ms or more",
            SHORTEST_SESSION.as_millis()
        )));
    }
    connection.heartbeats = Some(Heartbeats::since(sent, timeout));
    if let Some(credentials) = location.credentials()? {
        connection.begin(&[(Request::Authenticate { credentials }, Report::Never)]).await?;
    }
    let known = session.map_or(sent, |session| session.known);
    let lease = lease.min(lease_of(timeout));
    let session = Session { id, password, timeout, known, lease };
    Ok(beginning.connection.take().map(|connection| (connection, session)))
}

/// A connection over which a session is being begun or continued.
struct Beginning {
    connection: Option<Connection>,
    is_new: bool,
}

/// Another server may have been faster. The server reads the request to end the session once it has begun it, even if that
/// is after the end of this process. A session that was continued belongs to the other server then.
impl Drop for Beginning {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take().filter(|_| self.is_new) {
            connection.close_session();
        }
    }
}

/// Whatever is given up ends with the session.
impl Drop for Client {
    fn drop(&mut self) {
        self.close();
    }
}

//! One connection to a server: login, with TLS if the URL says so, and statements in text form. It is never reopened in
//! silence: a statement that fails with it is not repeated.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

use super::authentication::Privacy;
use super::errors;
use super::location::{Encryption, Location};
use super::packet::{
    self, ERROR, Greeting, HEADER, LONGEST, LONGEST_LOGIN, LONGEST_REPLY, ServerError, capability, not_mysql,
    too_long,
};
use super::reply::{Failure, QueryResult, Reply};
use crate::backend::net::{self, BoundedStream, FramedStream, Protocol, Session, Socket};
use crate::backend::{StoreError, io_text};

/// The request that carries SQL.
const QUERY: u8 = 3;
/// The oldest versions whose statements and messages are those that are used here. Before MySQL 5.7.5 and MariaDB
/// 10.0.2, a session has one lock of `GET_LOCK` at most.
const OLDEST_MYSQL: (u32, u32, u32) = (5, 7, 5);
const OLDEST_MARIADB: (u32, u32, u32) = (10, 2, 0);

pub(super) struct Connection {
    stream: FramedStream,
    /// How many bytes the server may still send.
    allowance: usize,
    /// The number of the next packet.
    number: u8,
    pub(super) privacy: Privacy,
    pub(super) has_tls: bool,
    /// What the server calls this connection, or a proxy in its place.
    pub(super) thread: u32,
    /// What the server says about its version.
    pub(super) version: String,
    /// The reply that is being read.
    reply: Option<Reply>,
    /// No statement was given up halfway.
    is_usable: bool,
    /// A duplicate of the socket, while the session is needed: it is not given up with a request.
    kept: Option<OwnedFd>,
}

impl Connection {
    /// Connects, and logs in.
    ///
    /// # Errors
    /// The server cannot be reached, does not prove its identity, speaks another protocol, or rejects the user.
    pub(super) async fn open(location: &Location) -> Result<Connection, StoreError> {
        // The files are read before the network is used.
        let session = Session::of(location.security.tls.as_ref(), &location.address)?;
        let socket = net::connect(&location.address).await?;
        let begin = Connection::over(socket, session, location);
        Protocol::MySql.first_exchange(&location.address, &location.security, begin).await
    }

    /// Logs in over an open socket.
    ///
    /// # Errors
    /// As of [`Connection::open`].
    pub(super) async fn over(
        mut socket: Socket,
        session: Option<Session>,
        location: &Location,
    ) -> Result<Connection, StoreError> {
        let first = match &mut socket {
            Socket::Tcp(tcp) => first_packet(tcp).await?,
            Socket::Unix(unix) => first_packet(unix).await?,
        };
        if first.first() == Some(&ERROR) {
            let error = ServerError::parse(&first)?;
            location.security.recognize(&location.address);
            return Err(errors::meaning(&error));
        }
        let greeting = Greeting::parse(&first)?;
        location.security.recognize(&location.address);
        let version = greeting.version.trim_start_matches("5.5.5-").to_owned();
        let oldest = if is_mariadb(&version) { OLDEST_MARIADB } else { OLDEST_MYSQL };
        let required = capability::PROTOCOL_41 | capability::SECURE_CONNECTION | capability::PLUGIN_AUTH;
        if crate::backend::diagnosis::version_of(&version) < oldest
            || greeting.capabilities & required != required
        {
            let text = format!("the server is too old ({version}): see dlock man mysql");
            return Err(StoreError::Config(text));
        }
        let (mut number, mut privacy, mut has_tls) = (1, Privacy::None, false);
        let stream = match (socket, session) {
            (Socket::Tcp(mut tcp), Some(session)) if greeting.capabilities & capability::SSL != 0 => {
                let mut request = Vec::new();
                packet::write(1, &packet::capabilities(true), &mut request);
                let sent = tcp.write_all(&request).await;
                sent.map_err(|error| StoreError::unreachable(io_text(&error)))?;
                (number, has_tls) = (2, true);
                privacy = location.encryption.privacy();
                net::upgrade(tcp, session, &location.security).await?
            }
            (Socket::Tcp(_), Some(_)) if location.encryption != Encryption::Preferred => {
                let text = "the server does not use TLS: configure it there, or use ssl_mode=disabled";
                return Err(StoreError::Config(text.into()));
            }
            (Socket::Tcp(tcp), _) => BoundedStream::tcp(tcp),
            (Socket::Unix(unix), _) => {
                privacy = Privacy::Verified;
                BoundedStream::unix(unix)
            }
        };
        let mut connection = Connection {
            stream: FramedStream::new(stream),
            allowance: LONGEST_LOGIN,
            number,
            privacy,
            has_tls,
            thread: greeting.thread,
            version,
            reply: None,
            is_usable: false,
            kept: None,
        };
        connection.log_in(greeting, location).await?;
        connection.is_usable = true;
        Ok(connection)
    }

    /// Returns whether the connection can be used.
    pub(super) fn is_usable(&self) -> bool {
        self.is_usable
    }

    /// Keeps the session until it is let go: neither a request that is given up before its reply nor an outage that is
    /// shorter than the lease ends it.
    ///
    /// # Errors
    /// There are too many open files.
    pub(super) fn keep(&mut self, lease: Duration) -> io::Result<()> {
        if self.kept.is_none() {
            self.kept = Some(self.stream.stream().duplicate()?);
        }
        if let Some(socket) = self.kept() {
            net::outlast(socket, lease);
        }
        Ok(())
    }

    /// The session may end.
    pub(super) fn let_go(&mut self) {
        if let Some(socket) = self.kept.take() {
            net::outlast(socket.as_fd(), Duration::ZERO);
        }
    }

    /// Returns the socket, if the session is kept.
    pub(super) fn kept(&self) -> Option<BorrowedFd<'_>> {
        self.kept.as_ref().map(AsFd::as_fd)
    }

    /// Returns when the server has ended the session. If the future is dropped, nothing is lost.
    pub(super) async fn ended(&mut self) {
        if self.reply.is_some() {
            // That of a request that was given up.
            let _ = self.reply().await;
        }
        // Without a request, the server sends nothing but the reason for the end.
        let _ = self.packet().await;
        self.is_usable = false;
    }

    /// Returns when the server's certificate expires, as the time since 1970; `None` without TLS.
    pub(super) fn certificate_end(&self) -> Option<std::time::Duration> {
        self.stream.stream().certificate_end()
    }

    /// Sends statements in one request, and returns the result of each of them.
    ///
    /// # Errors
    /// One of them failed, or the connection is broken. It is unusable then, and after the future was dropped, unless
    /// the session is kept.
    pub(super) async fn query(&mut self, sql: &str) -> Result<Vec<QueryResult>, Failure> {
        self.is_usable = self.kept.is_some();
        if self.reply.is_some() {
            // What was found out is not needed any more.
            let _ = self.reply().await;
        }
        self.is_usable = false;
        self.request(sql).await?;
        self.is_usable = self.kept.is_some();
        let result = self.reply().await;
        self.is_usable = match &result {
            Ok(_) => true,
            Err(Failure::Server(error)) => !errors::ends_connection(error),
            Err(Failure::Store(_)) => false,
        };
        result
    }

    /// Likewise, for statements that only read: the connection stays usable if the future is dropped, which happens to
    /// one that waits for a change.
    ///
    /// # Errors
    /// As of [`Connection::query`].
    pub(super) async fn watch(&mut self, sql: &str) -> Result<Vec<QueryResult>, Failure> {
        if self.reply.is_none() {
            self.is_usable = false;
            self.request(sql).await?;
            self.is_usable = true;
        }
        let result = self.reply().await;
        self.is_usable = result.is_ok();
        result
    }

    async fn request(&mut self, sql: &str) -> Result<(), StoreError> {
        self.allowance = LONGEST_REPLY;
        self.expect_silence().await?;
        self.number = 0;
        let mut request = vec![QUERY];
        request.extend(sql.as_bytes());
        self.send(&request).await?;
        self.reply = Some(Reply::default());
        Ok(())
    }

    /// Fails if something has come that was not requested: it would be taken for the reply to the next request.
    async fn expect_silence(&mut self) -> Result<(), StoreError> {
        match self.packet().now_or_never().transpose()? {
            // Why the server ends the connection.
            Some(packet) if packet.first() == Some(&ERROR) => {
                Err(errors::meaning(&ServerError::parse(&packet)?))
            }
            None if self.stream.is_drained() => Ok(()),
            _ => Err(net::unrequested()),
        }
    }

    /// Reads the rest of a reply. If the future is dropped, nothing is lost.
    async fn reply(&mut self) -> Result<Vec<QueryResult>, Failure> {
        loop {
            let packet = self.packet().await?;
            let reply = self.reply.get_or_insert_default();
            match reply.add(&packet) {
                Ok(true) => {}
                Ok(false) => return Ok(self.reply.take().unwrap_or_default().results),
                Err(failure) => {
                    self.reply = None;
                    return Err(failure);
                }
            }
        }
    }

    pub(super) async fn send(&mut self, payload: &[u8]) -> Result<(), StoreError> {
        if payload.len() > LONGEST {
            return Err(StoreError::unreachable(
                "the request is too long: does one lock have too many waiters?",
            ));
        }
        let mut bytes = Vec::with_capacity(HEADER + payload.len());
        packet::write(self.number, payload, &mut bytes);
        match self.stream.send(&bytes).await {
            Ok(()) => Ok(()),
            // A server that ends a connection may have said why.
            Err(error) => match self.packet().await {
                Ok(packet) if packet.first() == Some(&ERROR) => {
                    Err(errors::meaning(&ServerError::parse(&packet)?))
                }
                _ => Err(error),
            },
        }
    }

    /// Returns the next packet.
    pub(super) async fn packet(&mut self) -> Result<Vec<u8>, StoreError> {
        let left = self.allowance;
        // As soon as it is announced.
        let length = |header| match packet::length(header) {
            length if HEADER + length <= left => Ok(length),
            _ => Err(too_long()),
        };
        let (header, packet) = self.stream.frame(length).await?;
        self.allowance = left - HEADER - packet.len();
        self.number = header[3].wrapping_add(1);
        Ok(packet)
    }
}

/// Returns the first packet of a server: no more is read than that, because a TLS session may follow.
async fn first_packet(stream: &mut (impl AsyncRead + Unpin)) -> Result<Vec<u8>, StoreError> {
    /// Of a greeting, or of an error in its place.
    const LONGEST_GREETING: usize = 4096;
    let mut header = [0; HEADER];
    stream.read_exact(&mut header).await.map_err(|error| net::broken(&error))?;
    let length = packet::length(header);
    if length == 0 || length > LONGEST_GREETING || header[3] != 0 {
        return Err(not_mysql());
    }
    let mut packet = vec![0; length];
    stream.read_exact(&mut packet).await.map_err(|error| net::broken(&error))?;
    Ok(packet)
}

/// Returns whether this is a version of MariaDB.
pub(super) fn is_mariadb(version: &str) -> bool {
    version.contains("MariaDB")
}

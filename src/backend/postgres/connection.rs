//! One connection to a server. It is never reopened in silence.

use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_util::{TryStreamExt, pin_mut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::NoTlsStream;
use tokio_postgres::{AsyncMessage, Client, Config, Error, NoTls, Notification, Row};

use super::cancellation::cancel;
use super::errors;
use super::greeting::{Greeting, Permission};
use super::location::Location;
use super::meter::{BUDGET, Meter};
use super::statements::Parameter;
use crate::backend::net::{Address, BoundedStream, Protocol, Security};
use crate::backend::{StoreError, io_text};
use crate::random;

const TOO_LONG: &str = "the reply is too long";

/// An open connection.
pub(super) struct Connection {
    pub(super) client: Client,
    /// Notifications and notices, which the server sends between replies; closed with the connection.
    pub(super) notifications: UnboundedReceiver<Notification>,
    /// The process that the server named when the connection was opened; 0 if it named none.
    pub(super) process: u32,
    /// What a cancellation for this process has to name.
    secret: u32,
    /// Identifies the connection.
    pub(super) id: u64,
    /// Its session keeps a lock.
    pub(super) is_kept: bool,
    /// No other connection is served by its process.
    pub(super) has_own_process: bool,
    /// A duplicate of its socket, if its session is to keep locks.
    pub(super) descriptor: Option<OwnedFd>,
    /// The address of the server; `None` for a Unix socket.
    peer: Option<SocketAddr>,
    /// Reads and writes the socket.
    task: AbortHandle,
    wire: Arc<Shared>,
}

/// Aborts a task when it is dropped, unless that is taken out of it.
struct AbortOnDrop(Option<AbortHandle>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.abort();
        }
    }
}

impl Connection {
    /// Connects to a server, with TLS according to `sslmode`, and logs in.
    ///
    /// # Errors
    /// It cannot be reached, is not PostgreSQL, rejects the user, or is a standby.
    pub(super) async fn open(location: &Location, address: &Address) -> Result<Connection, StoreError> {
        let begin = async { Connection::over(location.reach(address, None).await?, location, address).await };
        Protocol::Postgres.first_exchange(address, &location.security, begin).await
    }

    /// Logs in over an open stream.
    ///
    /// # Errors
    /// As of [`open`](Connection::open).
    pub(super) async fn over(
        stream: BoundedStream,
        location: &Location,
        address: &Address,
    ) -> Result<Connection, StoreError> {
        let may_be_plain = stream.is_encrypted() && location.may_be_plain();
        match Connection::log_in(stream, location, address).await? {
            // pg_hba.conf may have an entry for connections without TLS only.
            Err(error) if may_be_plain && errors::is_without_entry(&error) => {
                let stream = location.reach_plainly(address).await?;
                Connection::log_in(stream, location, address).await?
            }
            opened => opened,
        }
        .map_err(|error| errors::refused(&error, true))
    }

    async fn log_in(
        stream: BoundedStream,
        location: &Location,
        address: &Address,
    ) -> Result<Result<Connection, Error>, StoreError> {
        let mut config = Config::new();
        // TLS is a matter of the stream.
        config.user(&location.user).application_name("dlock").ssl_mode(SslMode::Disable);
        config.dbname(location.database.as_deref().unwrap_or(&location.user));
        let password = location.password(address)?;
        let has_password = password.is_some();
        if let Some(password) = password {
            config.password(password);
        }
        let descriptor = location.recipe.session().map(|_| stream.duplicate()).transpose();
        let descriptor = descriptor.map_err(|error| StoreError::unreachable(io_text(&error)))?;
        let peer = stream.duplicate().ok().and_then(|socket| TcpStream::from(socket).peer_addr().ok());
        let wire = Arc::new(Shared::default());
        let permission = Permission {
            methods: location.methods.clone(),
            is_private: location.is_private(address, &stream),
        };
        let (shared, greeting, meter) = (wire.clone(), Greeting::default(), Meter::default());
        let unrecognized = Some((location.security.clone(), address.clone()));
        let stream = Wire { stream, unrecognized, shared, greeting, permission, meter, left: 0 };
        wire.refill();
        let (client, connection) = match config.connect_raw(stream, NoTls).await {
            Ok(opened) => opened,
            Err(error) if error.as_db_error().is_none() => {
                let refusal = wire.refusal.lock().unwrap_or_else(PoisonError::into_inner).take();
                return Err(refusal.unwrap_or_else(|| errors::refused(&error, has_password)));
            }
            Err(error) => return Ok(Err(error)),
        };
        let is_standby = connection.parameter("in_hot_standby").map(|value| value == "on");
        let (process, secret) = (wire.process.load(Ordering::Relaxed), wire.secret.load(Ordering::Relaxed));
        let (sender, notifications) = unbounded_channel();
        let task = tokio::spawn(follow(connection, sender)).abort_handle();
        let id = random::number();
        let (is_kept, has_own_process) = (false, false);
        let opened = Connection {
            client,
            notifications,
            process,
            secret,
            id,
            is_kept,
            has_own_process,
            descriptor,
            peer,
            task,
            wire,
        };
        let is_standby = match is_standby {
            Some(is_standby) => is_standby,
            None => {
                // If this future is dropped, the task would wait for the reply.
                let mut unfinished = AbortOnDrop(Some(opened.task.clone()));
                let asked = opened.is_in_recovery().await;
                unfinished.0 = None;
                asked.map_err(|error| errors::refused(&error, has_password))?
            }
        };
        match is_standby {
            true => Err(StoreError::unreachable(errors::read_only("it is a standby"))),
            false => Ok(Ok(opened)),
        }
    }

    /// Asks whether the server is a standby: before PostgreSQL 14, it does not report `in_hot_standby`.
    async fn is_in_recovery(&self) -> Result<bool, Error> {
        let rows = self.ask(None, "SELECT pg_catalog.pg_is_in_recovery()", &[]).await?;
        rows.first().map_or(Ok(false), |row| row.try_get(0))
    }

    /// Ends a connection whose last statement was given up: cancels the statement, in the background, and closes the
    /// connection only then, because a pooler forgets the statements of a client that has disconnected. The connection
    /// is not used again, so that a cancellation that arrives late cannot cancel another statement.
    pub(super) fn abandon(self, location: &Location, address: &Address) {
        let (location, address) = (location.clone(), address.clone());
        let work = async move {
            cancel((self.process, self.secret), &location, &address, self.peer).await;
            // Otherwise it would be open until the reply comes.
            self.task.abort();
        };
        // Without a runtime, dlock ends, and with it the connection.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(work);
        }
    }

    /// Listens to a channel, if there is one, and runs a statement, in one go. Returns its rows.
    ///
    /// # Errors
    /// One of them failed.
    pub(super) async fn ask(
        &self,
        channel: Option<&str>,
        statement: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, Error> {
        self.refill();
        let rows = async {
            let rows = self.client.query_typed_raw(statement, parameters.iter().cloned()).await?;
            pin_mut!(rows);
            rows.try_collect::<Vec<Row>>().await
        };
        let Some(channel) = channel else { return rows.await };
        let text = format!("LISTEN \"{channel}\"");
        let (listen, rows) = tokio::join!(biased; self.client.batch_execute(&text), rows);
        listen.and(rows)
    }

    /// Allows the next reply.
    pub(super) fn refill(&self) {
        self.wire.refill();
    }
}

/// Passes notifications on until the connection has ended.
async fn follow(
    mut connection: tokio_postgres::Connection<Wire, NoTlsStream>,
    notifications: UnboundedSender<Notification>,
) {
    while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
        if let AsyncMessage::Notification(notification) = message {
            // An error means that the client is gone, which ends the connection.
            let _ = notifications.send(notification);
        }
    }
}

/// What a connection and its stream share.
#[derive(Default)]
struct Shared {
    process: AtomicU32,
    secret: AtomicU32,
    allowed: AtomicUsize,
    /// Why the stream has failed.
    refusal: Mutex<Option<StoreError>>,
}

impl Shared {
    fn refill(&self) {
        self.allowed.store(BUDGET, Ordering::Relaxed);
    }
}

/// The stream of a connection: bounds what the server sends, and reads what it says of itself first.
struct Wire {
    stream: BoundedStream,
    /// The server, until it has shown that it speaks this protocol.
    unrecognized: Option<(Security, Address)>,
    shared: Arc<Shared>,
    greeting: Greeting,
    permission: Permission,
    meter: Meter,
    /// How much memory the messages may take until the next request.
    left: usize,
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let allowed = self.shared.allowed.swap(0, Ordering::Relaxed);
        if allowed > 0 {
            self.left = allowed;
            self.stream.refill(allowed);
        }
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        let Wire { greeting, permission, unrecognized, .. } = &mut *self;
        let read = greeting.read(&buffer.filled()[before..], permission);
        if greeting.is_recognized
            && let Some((security, address)) = unrecognized.take()
        {
            security.recognize(&address);
        }
        let ended = matches!(result, Poll::Ready(Ok(()))) && buffer.filled().len() == before;
        let refusal = read.err().or_else(|| self.stream.refusal().filter(|_| ended));
        if let Some(refusal) = refusal {
            *self.shared.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(refusal);
            return Poll::Ready(Err(io::Error::other("not PostgreSQL")));
        }
        let Wire { meter, left, .. } = &mut *self;
        match meter.read(&buffer.filled()[before..]).map(|taken| left.checked_sub(taken)) {
            Ok(Some(rest)) => *left = rest,
            Ok(None) => return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, TOO_LONG))),
            Err(invalid) => return Poll::Ready(Err(invalid)),
        }
        if let Greeting { key: Some((process, secret)), .. } = self.greeting {
            self.shared.process.store(process, Ordering::Relaxed);
            self.shared.secret.store(secret, Ordering::Relaxed);
        }
        result
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

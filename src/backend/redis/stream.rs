//! The bytes of a connection: made with or without TLS, read within bounds.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;

use super::location::{Address, Location};
use super::tls::{Identity, Session};
use crate::backend::thread::in_thread;
use crate::backend::{StoreError, io_text};

/// The largest answer that is read, with all that is pushed before it. dlock's own are some hundred bytes; what a parser makes of hostile bytes takes up
/// to some twenty times their length.
pub(super) const LARGEST_ANSWER: usize = 128 * 1024;

/// The same for the nodes of a cluster, each of which may have many ranges of slots.
pub(super) const LONGEST_ANSWER: usize = 4 * LARGEST_ANSWER;

/// Seconds without a packet after which the kernel probes a connection, ...
#[cfg(target_os = "linux")]
const PROBE_AFTER: u32 = 5;
/// ... seconds between two probes, ...
#[cfg(target_os = "linux")]
const PROBE_EVERY: u32 = 2;
/// ... how many may go unanswered, ...
#[cfg(target_os = "linux")]
const PROBES: u32 = 3;
/// ... and for how many milliseconds anything may.
#[cfg(target_os = "linux")]
const UNANSWERED_MS: u32 = 10_000;

/// A stream of either kind.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Connects to a server, with TLS if so located; says nothing yet.
///
/// # Errors
/// It cannot be reached, or does not prove to be the one that is meant.
pub(super) async fn open(
    location: &Location,
    address: &Address,
) -> Result<Bounded<Box<dyn Stream>>, StoreError> {
    // The files before the network: nobody is contacted when they cannot be used.
    let session = session(location, address)?;
    let (stream, _) = secure(connect(address).await?, session).await?;
    Ok(stream)
}

/// A TLS session to be begun, if so located.
///
/// # Errors
/// A file cannot be used.
pub(super) fn session(location: &Location, address: &Address) -> Result<Option<Session>, StoreError> {
    match (location.tls(), address) {
        (Some(settings), Address::Tcp(host)) => Session::new(settings, &host.name).map(Some),
        _ => Ok(None),
    }
}

/// A connection without TLS.
pub(super) enum Plain {
    /// Over a network.
    Tcp(TcpStream),
    /// Within this host.
    Socket(UnixStream),
}

/// Begins the session, if there is to be one. With it comes the certificate that the server has shown.
///
/// # Errors
/// The server does not prove to be the one that is meant.
pub(super) async fn secure(
    plain: Plain,
    session: Option<Session>,
) -> Result<(Bounded<Box<dyn Stream>>, Option<Vec<u8>>), StoreError> {
    let (tcp, session) = match (plain, session) {
        (Plain::Socket(socket), _) => return Ok((Bounded::new(Box::new(socket)), None)),
        (Plain::Tcp(tcp), None) => return Ok((Bounded::new(Box::new(tcp)), None)),
        (Plain::Tcp(tcp), Some(session)) => (tcp, session),
    };
    let (tls, identity) = session.begin(tcp).await?;
    let shown = tls.get_ref().1.peer_certificates().and_then(|chain| Some(chain.first()?.to_vec()));
    let stream: Box<dyn Stream> = Box::new(tls);
    Ok((Bounded { identity: Some(identity), ..Bounded::new(stream) }, shown))
}

/// A stream that ends in an error after so many bytes without a whole answer.
pub(super) struct Bounded<S> {
    pub(super) stream: S,
    left: usize,
    /// Who we are, until the server has shown by an answer that this is good enough.
    identity: Option<Identity>,
    /// That it was not.
    refusal: Option<StoreError>,
}

impl<S> Bounded<S> {
    pub(super) fn new(stream: S) -> Bounded<S> {
        Bounded { stream, left: LARGEST_ANSWER, identity: None, refusal: None }
    }

    /// Why the server did not go on with us, if it is about our certificate.
    pub(super) fn refusal(&mut self) -> Option<StoreError> {
        self.refusal.take()
    }

    /// A new answer begins, of which so many bytes are read.
    pub(super) fn refill(&mut self, longest: usize) {
        self.left = longest;
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.left == 0 {
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "an answer of endless length",
            )));
        }
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        let read = buffer.filled().len() - before;
        self.left = self.left.saturating_sub(read);
        if result.is_ready()
            && let Some(identity) = self.identity.take()
        {
            self.refusal = match &result {
                Poll::Ready(Err(error)) => identity.refusal(error).or_else(|| identity.silence()),
                _ if read == 0 => identity.silence(),
                _ => None,
            };
        }
        result
    }
}

/// Connects to a server; over a network to the first address that accepts: all of them are tried at once, so that one
/// that answers nothing does not hold up another.
///
/// # Errors
/// None of them does, or there is none.
pub(super) async fn connect(address: &Address) -> Result<Plain, StoreError> {
    let host = match address {
        Address::Socket(path) => {
            return UnixStream::connect(path)
                .await
                .map(Plain::Socket)
                .map_err(|error| no_way_in(path, &error));
        }
        Address::Tcp(host) => host,
    };
    let tcp = connect_to_any(&host.name, host.port.unwrap_or_default()).await?;
    // One small write each way at a time: nothing to be gained by waiting for more.
    let _ = tcp.set_nodelay(true);
    keep_alive(&tcp);
    Ok(Plain::Tcp(tcp))
}

/// Has the kernel notice within some seconds that the other end is gone without a word, as when a NAT forgets an idle
/// connection: a waiter would not hear that it is its turn (tcp(7)).
fn keep_alive(tcp: &TcpStream) {
    use nix::sys::socket::{setsockopt, sockopt};
    // A system that refuses any of it notices later.
    let _ = setsockopt(tcp, sockopt::KeepAlive, &true);
    #[cfg(target_os = "linux")]
    {
        let _ = setsockopt(tcp, sockopt::TcpKeepIdle, &PROBE_AFTER);
        let _ = setsockopt(tcp, sockopt::TcpKeepInterval, &PROBE_EVERY);
        let _ = setsockopt(tcp, sockopt::TcpKeepCount, &PROBES);
        // Counts for what is sent as well: without it the kernel tries for a quarter of an hour.
        let _ = setsockopt(tcp, sockopt::TcpUserTimeout, &UNANSWERED_MS);
    }
}

async fn connect_to_any(host: &str, port: u16) -> Result<TcpStream, StoreError> {
    if let Ok(address) = host.parse::<std::net::IpAddr>() {
        return TcpStream::connect((address, port)).await.map_err(|error| failed(&error));
    }
    let addresses = look_up(host, port).await.map_err(|error| {
        StoreError::unreachable(format!("cannot find the address of {host}: {}", io_text(&error)))
    })?;
    let mut attempts = JoinSet::new();
    for address in addresses {
        attempts.spawn(TcpStream::connect(address));
    }
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    while let Some(attempt) = attempts.join_next().await {
        match attempt {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = error,
            Err(_) => {}
        }
    }
    Err(failed(&last))
}

/// Asks the name service of the C library, which blocks.
async fn look_up(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let host = host.to_owned();
    in_thread("lookup", move || (host.as_str(), port).to_socket_addrs().map(Iterator::collect)).await?
}

/// Why there is no connection over a socket of this host.
fn no_way_in(path: &Path, error: &io::Error) -> StoreError {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let found = std::fs::metadata(path);
    match (error.kind(), found) {
        (io::ErrorKind::PermissionDenied, Ok(found)) => StoreError::Denied(format!(
            "no permission for the socket: it is for user {} and group {} (mode {:04o}), see unixsocketperm of the server",
            found.uid(),
            found.gid(),
            found.mode() & 0o7777
        )),
        (io::ErrorKind::PermissionDenied, Err(_)) => {
            StoreError::Denied("no permission for the directory of the socket".into())
        }
        (io::ErrorKind::NotFound, _) => StoreError::unreachable(
            "there is no such socket: does the server run, and has it unixsocket set to this?",
        ),
        (_, Ok(found)) if !found.file_type().is_socket() => StoreError::Config("this is no socket".into()),
        (io::ErrorKind::ConnectionRefused, _) => {
            StoreError::unreachable("nobody listens on the socket any more")
        }
        (io::ErrorKind::InvalidInput, _) => StoreError::Config(format!("cannot be a socket: {error}")),
        _ => failed(error),
    }
}

fn failed(error: &io::Error) -> StoreError {
    StoreError::unreachable(format!("cannot connect: {}", io_text(error)))
}

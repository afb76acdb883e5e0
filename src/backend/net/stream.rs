//! The byte stream of a connection: opened with or without TLS, read within bounds.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::UnixTime;

use super::tls::{Begun, Identity, not_after};
use super::{Address, Security, Session, keep_alive, mismatch};
use crate::backend::{Outlook, StoreError, io_text};
use crate::name_services;
use crate::process_limit::why_no_process;
use crate::thread;

/// Enough for a name service of the C library, and small where memory is limited.
const LOOKUP_STACK: usize = 512 * 1024;

/// Connects to a server, with TLS if there are settings for it; sends nothing yet.
///
/// # Errors
/// It cannot be reached, or does not prove its identity.
pub async fn open(address: &Address, security: &Security) -> Result<BoundedStream, StoreError> {
    // The files are read before the network is used: no connection is made if one of them cannot be used.
    let session = Session::of(security.tls.as_ref(), address)?;
    secure(connect(address).await?, session, security).await
}

/// An open connection without TLS.
pub enum Socket {
    /// Over a network.
    Tcp(TcpStream),
    /// Within this host.
    Unix(UnixStream),
}

/// Starts the TLS session, if there is one.
///
/// # Errors
/// The server does not prove its identity, or does not use TLS.
pub async fn secure(
    socket: Socket,
    session: Option<Session>,
    security: &Security,
) -> Result<BoundedStream, StoreError> {
    let (tcp, session) = match (socket, session) {
        (Socket::Unix(unix), _) => return Ok(BoundedStream::unix(unix)),
        (Socket::Tcp(tcp), None) => {
            let silent = new_peer(&tcp, security).map(|peer| (peer, security.other_scheme.clone()));
            return Ok(BoundedStream { silent, ..BoundedStream::tcp(tcp) });
        }
        (Socket::Tcp(tcp), Some(session)) => (tcp, session),
    };
    // Where TLS is optional, a server without it is not an error.
    let peer = new_peer(&tcp, security).filter(|_| !session.is_optional());
    let begun = tokio::select! {
        begun = session.begin(tcp, &security.other_scheme) => match begun {
            // Some servers close the connection instead of replying.
            Err(error) if error.outlook() == Outlook::Unknown && mismatch::is_without_tls(peer).await => {
                return Err(mismatch::does_not_use_tls(&security.other_scheme));
            }
            begun => begun?,
        },
        error = mismatch::without_tls(peer, &security.other_scheme) => return Err(error),
    };
    Ok(opened(begun))
}

/// Starts the TLS session with a server that has agreed to it on this connection.
///
/// # Errors
/// The server does not prove its identity, or rejects the client certificate.
pub async fn upgrade(
    tcp: TcpStream,
    session: Session,
    security: &Security,
) -> Result<BoundedStream, StoreError> {
    Ok(opened(session.begin(tcp, &security.other_scheme).await?))
}

fn opened(begun: Begun) -> BoundedStream {
    let (tls, identity) = match begun {
        Begun::Encrypted(tls, identity) => (*tls, identity),
        Begun::Declined(tcp) => return BoundedStream::tcp(tcp),
    };
    let certificate = tls.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let certificate_end = certificate.and_then(not_after);
    let identity = Some(identity);
    BoundedStream { identity, is_encrypted: true, certificate_end, ..BoundedStream::over(tls) }
}

/// Returns the server's address if this is the first connection to it.
fn new_peer(tcp: &TcpStream, security: &Security) -> Option<SocketAddr> {
    tcp.peer_addr().ok().filter(|peer| security.is_new(*peer))
}

/// The parts of a stream that a connection uses.
trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send {
    /// Returns the socket.
    fn socket(&self) -> BorrowedFd<'_>;
}

impl ByteStream for TcpStream {
    fn socket(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }
}

impl ByteStream for UnixStream {
    fn socket(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }
}

impl ByteStream for TlsStream<TcpStream> {
    fn socket(&self) -> BorrowedFd<'_> {
        self.get_ref().0.as_fd()
    }
}

/// A stream of either kind. A read fails after a number of bytes without a complete reply.
pub struct BoundedStream {
    stream: Box<dyn ByteStream>,
    left: usize,
    is_encrypted: bool,
    /// When the server's certificate expires.
    certificate_end: Option<UnixTime>,
    /// The client certificate, until the server has accepted it by sending a reply.
    identity: Option<Identity>,
    /// The error if the server has rejected it, or uses TLS and the connection does not.
    refusal: Option<StoreError>,
    /// On the first connection to a server, without TLS, until the server has sent something: its address, and the scheme
    /// to use if it expects TLS.
    silent: Option<(SocketAddr, String)>,
}

impl BoundedStream {
    /// Returns a stream from which nothing can be read before it is [refilled](BoundedStream::refill).
    pub fn tcp(stream: TcpStream) -> BoundedStream {
        BoundedStream::over(stream)
    }

    /// Returns a stream within this host, likewise.
    pub fn unix(stream: UnixStream) -> BoundedStream {
        BoundedStream::over(stream)
    }

    fn over(stream: impl ByteStream + 'static) -> BoundedStream {
        let stream = Box::new(stream);
        let (is_encrypted, certificate_end, identity) = (false, None, None);
        BoundedStream {
            stream,
            left: 0,
            is_encrypted,
            certificate_end,
            identity,
            refusal: None,
            silent: None,
        }
    }

    /// Allows the next reply to have this size in bytes.
    pub fn refill(&mut self, max_size: usize) {
        self.left = max_size;
    }

    /// Returns a duplicate of the socket: the server does not see the connection end before it is closed too.
    ///
    /// # Errors
    /// There are too many open files.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        self.stream.socket().try_clone_to_owned()
    }

    /// Writes all of these bytes.
    ///
    /// # Errors
    /// The connection is broken. If the future is dropped, some of the bytes may have been written.
    pub async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await?;
        detect_features();
        Ok(())
    }

    /// Returns why the server ended the connection, as far as that is known: it rejected the client certificate, or it
    /// uses TLS and the connection does not. The latter is found out over another connection.
    pub async fn why_ended(&mut self) -> Option<StoreError> {
        if let Some((peer, other_scheme)) = self.silent.take() {
            self.refusal = mismatch::with_tls(peer, &other_scheme).await;
        }
        self.refusal()
    }

    /// Returns what is known of why the server ended the connection.
    pub fn refusal(&self) -> Option<StoreError> {
        self.refusal.clone()
    }

    /// Returns whether the connection uses TLS.
    pub fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    /// Returns when the server's certificate expires, as the time since 1970; `None` without TLS.
    pub fn certificate_end(&self) -> Option<Duration> {
        self.certificate_end.map(|end| Duration::from_secs(end.as_secs()))
    }
}

impl AsyncRead for BoundedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.left == 0 {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "the reply is too long")));
        }
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        let read = buffer.filled().len() - before;
        self.left = self.left.saturating_sub(read);
        if read > 0 {
            self.silent = None;
        }
        if result.is_ready()
            && let Some(identity) = self.identity.take()
        {
            self.refusal = match &result {
                Poll::Ready(Err(error)) => identity.refusal(error).or_else(|| identity.closed_early()),
                _ if read == 0 => identity.closed_early(),
                _ => None,
            };
        }
        result
    }
}

impl AsyncWrite for BoundedStream {
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

/// Connects to a server; over a network to the first address that accepts. All addresses are tried at once, so that one
/// that does not respond does not delay the others.
///
/// # Errors
/// No address accepts, or there is none.
pub async fn connect(address: &Address) -> Result<Socket, StoreError> {
    let host = match address {
        Address::Socket(path) => {
            return UnixStream::connect(path)
                .await
                .map(Socket::Unix)
                .map_err(|error| socket_error(path, &error));
        }
        Address::Tcp(host) => host,
    };
    let tcp = connect_to_any(&host.name, host.port.unwrap_or_default()).await?;
    // One small write each way at a time: delaying writes gains nothing.
    let _ = tcp.set_nodelay(true);
    keep_alive::start(&tcp);
    Ok(Socket::Tcp(tcp))
}

/// Has the features of the processor detected, which the search for the end of a reply needs. That takes a while the first time,
/// above all in a virtual machine, where `CPUID` is emulated; meanwhile the server does its part.
fn detect_features() {
    #[cfg(target_arch = "x86_64")]
    let _ = std::arch::is_x86_feature_detected!("avx2");
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

/// Resolves the name with the C library, which blocks: in a thread, which runs on by itself if the future is dropped.
/// (The runtime's own threads panic if none can be started.)
async fn look_up(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let host = host.to_owned();
    let (sender, receiver) = oneshot::channel();
    let started = thread::spawn("lookup", LOOKUP_STACK, move || {
        let _ = sender.send(name_services::addresses(&host, port));
    });
    started
        .map_err(|error| io::Error::other(format!("cannot start a thread: {}", why_no_process(&error))))?;
    receiver.await.map_err(|_| io::Error::other("the thread failed"))?
}

/// Explains why a Unix socket cannot be connected to.
fn socket_error(path: &Path, error: &io::Error) -> StoreError {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let found = std::fs::metadata(path);
    match (error.kind(), found) {
        (io::ErrorKind::PermissionDenied, Ok(found)) => StoreError::Denied(format!(
            "no permission for the socket: it is for user {} and group {} (mode {:04o}), see the configuration of the server",
            found.uid(),
            found.gid(),
            found.mode() & 0o7777
        )),
        (io::ErrorKind::PermissionDenied, Err(_)) => StoreError::Denied(
            "no permission for the directory of the socket: let this user enter it (chmod +x)".into(),
        ),
        (io::ErrorKind::NotFound, _) => StoreError::unreachable(
            "there is no such socket: is the server running, and is this the path of its socket?",
        ),
        (_, Ok(found)) if !found.file_type().is_socket() => StoreError::Config("this is not a socket".into()),
        (io::ErrorKind::ConnectionRefused, _) => {
            StoreError::unreachable("no server listens on the socket any more")
        }
        (io::ErrorKind::InvalidInput, _) => StoreError::Config(format!("cannot be a socket: {error}")),
        _ => failed(error),
    }
}

fn failed(error: &io::Error) -> StoreError {
    StoreError::unreachable(io_text(error))
}

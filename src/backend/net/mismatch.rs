//! Recognizes that only one side of a connection uses TLS. Neither side would say so: a server without TLS waits for the
//! rest of a request, and one with TLS closes the connection.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::backend::StoreError;

/// How long a server may leave a TLS handshake unanswered before it is suspected to be without TLS.
const SILENCE: Duration = Duration::from_millis(300);
/// How long a server has to reply to a probe.
const PROBE: Duration = Duration::from_millis(500);

/// The types of the TLS records that a server may send first (RFC 8446, section 5.1).
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;

/// A TLS record with a ClientHello of no content, which a server rejects with an alert.
const EMPTY_HELLO: &[u8] = &[HANDSHAKE, 3, 1, 0, 4, 1, 0, 0, 0];
/// A request that a server without TLS replies to, if only with an error: one in HTTP, a command of Redis, and one of the
/// four-letter words of ZooKeeper.
const REQUEST: &[u8] = b"srvr / HTTP/1.0\r\n\r\n";

/// Resolves with the error if the server turns out to be without TLS while it leaves a TLS handshake unanswered.
pub async fn without_tls(peer: Option<SocketAddr>, other_scheme: &str) -> StoreError {
    sleep(SILENCE).await;
    match is_without_tls(peer).await {
        false => std::future::pending().await,
        true => does_not_use_tls(other_scheme),
    }
}

/// Returns whether the server replies to a request without TLS.
pub async fn is_without_tls(peer: Option<SocketAddr>) -> bool {
    !matches!(first_byte(peer, REQUEST).await, None | Some(ALERT | HANDSHAKE))
}

/// Returns the error for a server without TLS.
pub fn does_not_use_tls(other_scheme: &str) -> StoreError {
    StoreError::Config(format!("the server does not use TLS: use {}://", other_scheme))
}

/// Returns the error if the server, which has closed a connection without TLS before it sent anything, uses TLS.
pub async fn with_tls(peer: SocketAddr, other_scheme: &str) -> Option<StoreError> {
    let first = first_byte(Some(peer), EMPTY_HELLO).await?;
    matches!(first, ALERT | HANDSHAKE)
        .then(|| StoreError::Config(format!("the server uses TLS: use {other_scheme}://")))
}

/// Returns the first byte of the reply to these bytes over a connection of their own.
async fn first_byte(peer: Option<SocketAddr>, sent: &[u8]) -> Option<u8> {
    let probe = async {
        let mut stream = TcpStream::connect(peer?).await.ok()?;
        stream.write_all(sent).await.ok()?;
        stream.read_u8().await.ok()
    };
    timeout(PROBE, probe).await.ok().flatten()
}

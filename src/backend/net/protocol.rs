//! Recognizes a server of another kind: a URL with the scheme of one store and the port of another. Many servers say
//! nothing to a client of another protocol, or close the connection.

use std::fmt;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use super::{Address, Security, Socket, connect};
use crate::backend::StoreError;

/// How long a server may leave the first request of a client unanswered before it is suspected to be of another kind.
const SILENCE: Duration = Duration::from_secs(2);
/// How long a server has to reply to a probe.
const PROBE: Duration = Duration::from_millis(500);
/// The longest part of a reply that is read.
const LONGEST: usize = 4096;

/// A protocol that a server can be recognized by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// gRPC, with the API of etcd.
    Etcd,
    /// Of a web server or proxy.
    Http,
    /// The text protocol of Memcached.
    Memcached,
    /// Of MySQL and MariaDB.
    MySql,
    /// Of PostgreSQL and its poolers.
    Postgres,
    /// RESP, of Redis, Valkey and Sentinels.
    Redis,
    /// Of an SSH server.
    Ssh,
    /// Of the client port of ZooKeeper.
    ZooKeeper,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Etcd => "etcd",
            Protocol::Http => "HTTP",
            Protocol::Memcached => "Memcached",
            Protocol::MySql => "MySQL and MariaDB",
            Protocol::Postgres => "PostgreSQL",
            Protocol::Redis => "Redis",
            Protocol::Ssh => "SSH",
            Protocol::ZooKeeper => "ZooKeeper",
        })
    }
}

impl Protocol {
    /// Returns the scheme of the URL of such a server, if dlock can keep locks in it.
    fn scheme(self) -> Option<&'static str> {
        match self {
            Protocol::Etcd => Some("etcd"),
            Protocol::Memcached => Some("memcached"),
            Protocol::MySql => Some("mysql"),
            Protocol::Postgres => Some("postgres"),
            Protocol::Redis => Some("redis"),
            Protocol::ZooKeeper => Some("zookeeper"),
            Protocol::Http | Protocol::Ssh => None,
        }
    }

    /// Returns the error for a server that has not replied as one of this protocol, if it turns out to be of another kind.
    pub async fn mismatch(self, address: &Address) -> Option<StoreError> {
        let found = identify(address).await.filter(|found| *found != self)?;
        // etcd may stand behind a proxy that replies to other requests in HTTP.
        let is_own = self == Protocol::Etcd && found == Protocol::Http;
        (!is_own).then(|| {
            let own = found.scheme().map(|scheme| format!("use {scheme}://, or "));
            StoreError::OtherServer {
                found: format!("the server speaks the protocol of {found}, not of {self}"),
                remedy: format!("{}check the host and the port of the URL", own.unwrap_or_default()),
            }
        })
    }

    /// Returns the result of the first exchange with a server; if it fails or takes long, and the server turns out to be
    /// of another kind, the error that says so. A server that is recognized meanwhile ([`Security::recognize`]) is not
    /// probed: it would log each probe as an error.
    ///
    /// # Errors
    /// As of the exchange, or the server is of another kind.
    pub async fn first_exchange<T>(
        self,
        address: &Address,
        security: &Security,
        exchange: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        match security.is_stranger(address) {
            true => self.exchange(address, security, exchange).await,
            false => exchange.await,
        }
    }

    /// Does the same for an exchange that need not be the first one: for `dlock doctor`, which runs once.
    ///
    /// # Errors
    /// As of the exchange, or the server is of another kind.
    pub async fn exchange<T>(
        self,
        address: &Address,
        security: &Security,
        exchange: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let is_unknown = || !security.is_recognized(address);
        let silent = async {
            sleep(SILENCE).await;
            match is_unknown() {
                true => self.mismatch(address).await,
                false => None,
            }
        };
        let result = tokio::select! {
            biased;
            result = exchange => result,
            Some(error) = silent => return Err(error),
        };
        match result {
            Err(error) if is_unknown() && !matches!(error, StoreError::Denied(_)) => {
                Err(self.mismatch(address).await.unwrap_or(error))
            }
            result => result,
        }
    }
}

/// The request for the version of etcd, which is one for its version in HTTP and wrong in other protocols.
const VERSION: &[u8] = b"GET /version HTTP/1.0\r\n\r\n";
/// The question of a client of PostgreSQL whether the server uses TLS (SSLRequest, "Message Formats" in its manual).
const USES_TLS: &[u8] = &[0, 0, 0, 8, 4, 210, 22, 47];
/// One of the four-letter words of ZooKeeper, which other servers read as a line. Memcached closes the connection on
/// [`VERSION`].
const FIGURES: &[u8] = b"srvr\r\n";

/// Returns the protocol of a server, if it is recognized.
async fn identify(address: &Address) -> Option<Protocol> {
    // One connection at a time: the server may be of the right kind, and busy. Most end the connection on a line that they do
    // not know; a question in the form of PostgreSQL may be left unanswered, so it comes last.
    for line in [VERSION, FIGURES] {
        if let Some(found) = of_reply(&reply(address, line).await) {
            return Some(found);
        }
    }
    matches!(&reply(address, USES_TLS).await[..], b"S" | b"N").then_some(Protocol::Postgres)
}

/// Returns the protocol of a server that begins a conversation with these bytes, or replies with them to [`VERSION`] or [`FIGURES`].
fn of_reply(bytes: &[u8]) -> Option<Protocol> {
    let contains = |text: &[u8]| bytes.windows(text.len()).any(|part| part == text);
    let error = bytes.strip_prefix(b"-").unwrap_or_default();
    match bytes {
        [b'H', b'T', b'T', b'P', b'/', ..] if contains(b"etcdserver") => Some(Protocol::Etcd),
        [b'H', b'T', b'T', b'P', b'/', ..] => Some(Protocol::Http),
        [b'S', b'S', b'H', b'-', ..] => Some(Protocol::Ssh),
        _ if error.len() > 3 && error[..3].iter().all(u8::is_ascii_uppercase) => Some(Protocol::Redis),
        _ if bytes.starts_with(b"ERROR\r\n") || bytes.starts_with(b"CLIENT_ERROR ") => {
            Some(Protocol::Memcached)
        }
        // Which a server may refuse to reveal.
        _ if bytes.starts_with(b"Zookeeper version")
            || bytes.starts_with(b"srvr is not executed because") =>
        {
            Some(Protocol::ZooKeeper)
        }
        // The length of the first packet, its number, and the version of the protocol, or an error.
        [_, _, 0, 0, 10 | 255, ..] => Some(Protocol::MySql),
        _ => None,
    }
}

/// Returns the beginning of the reply to these bytes over a connection of their own; nothing if there is none.
async fn reply(address: &Address, sent: &[u8]) -> Vec<u8> {
    let mut received = Vec::new();
    let probe = async {
        let Ok(Socket::Tcp(mut stream)) = connect(address).await else { return };
        if stream.write_all(sent).await.is_err() {
            return;
        }
        while received.len() < LONGEST && matches!(stream.read_buf(&mut received).await, Ok(1..)) {
            // The version stands at the end.
            if !received.starts_with(b"HTTP/") {
                return;
            }
        }
    };
    let _ = timeout(PROBE, probe).await;
    received
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_recognized_by_its_first_bytes() {
        for (bytes, protocol) in [
            (&b"-ERR wrong number of arguments for 'get' command\r\n"[..], Some(Protocol::Redis)),
            (b"-NOAUTH Authentication required.\r\n", Some(Protocol::Redis)),
            (b"-DENIED Redis is running in protected mode", Some(Protocol::Redis)),
            (b"HTTP/1.0 200 OK\r\n\r\n{\"etcdserver\":\"3.5.21\"}", Some(Protocol::Etcd)),
            (b"HTTP/1.1 404 Not Found\r\n\r\n", Some(Protocol::Http)),
            (b"ERROR\r\n", Some(Protocol::Memcached)),
            (b"J\0\0\0\x0a8.0.36\0", Some(Protocol::MySql)),
            (b"I\0\0\0\xff\x15\x04Host", Some(Protocol::MySql)),
            (b"SSH-2.0-OpenSSH_9.2", Some(Protocol::Ssh)),
            (b"Zookeeper version: 3.9.3", Some(Protocol::ZooKeeper)),
            (b"srvr is not executed because it is not in the whitelist.\n", Some(Protocol::ZooKeeper)),
            (b"E\0\0\0\x20", None),
            (b"-", None),
            (b"", None),
        ] {
            assert_eq!(of_reply(bytes), protocol, "{bytes:?}");
        }
    }
}

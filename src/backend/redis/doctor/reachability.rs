//! The checks of the connection to a server: address, TLS session, certificate, and unencrypted passwords.

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use super::super::connection::Connection;
use super::super::location::Location;
use crate::backend::StoreError;
use crate::backend::diagnosis::{Diagnosis, Finding, short};
use crate::backend::net::{self, Address, Session, Socket};
use crate::clock::{Moment, wall_micros};
use crate::duration::show;

/// The remaining validity of a certificate below which a warning is given.
const CERTIFICATE_WARNING: Duration = Duration::from_secs(14 * 24 * 3600);

/// Connects, and performs the TLS handshake.
pub(super) async fn begin(
    location: &Location,
    server: &Address,
    password: Option<String>,
    session: Option<Session>,
    diagnosis: &Diagnosis,
) -> Result<(Connection, Option<SocketAddr>), Finding> {
    let unreachable = |check, error: StoreError, remedy: &str| {
        let consequence = match error {
            StoreError::Unavailable { .. } => {
                "no lock can be taken: dlock run ends with 69, or keeps trying with --retry"
            }
            StoreError::Denied(_) => "no lock can be taken: dlock run ends with 77",
            StoreError::Config(_) => "no lock can be taken: dlock run ends with 78",
        };
        Finding::problem(check, error.to_string(), consequence, remedy)
    };
    diagnosis.begin("reachability");
    let start = Moment::now();
    let socket = net::connect(server).await.map_err(|error| {
        let remedy = match server {
            Address::Tcp(_) => {
                "check that the name and port are right, that the server runs and listens there (bind), and that no firewall \
                 is in between"
            }
            Address::Socket(_) => {
                "check that the server runs and has this socket (unixsocket), and that this user may write to it \
                 (unixsocketperm, its group)"
            }
        };
        unreachable("reachability", error, remedy)
    })?;
    let took = Moment::now() - start;
    let address = match &socket {
        Socket::Tcp(tcp) => tcp.peer_addr().ok(),
        Socket::Unix(_) => None,
    };
    let shown = address.map_or_else(|| server.to_string(), |address| address.to_string());
    diagnosis.found(Finding::ok("reachability", format!("{shown} in {}", short(took))));
    let has_session = session.is_some();
    if has_session {
        diagnosis.begin("tls");
    }
    let stream = net::secure(socket, session).await.map_err(|error| match error {
        StoreError::Denied(text) => stranger(text),
        error => unreachable(
            "tls",
            error,
            "renew the server's certificate if it has expired, name its authority by ca_file=, or the name in the certificate \
             by server_name=; for a server without TLS use redis://",
        ),
    })?;
    if has_session {
        diagnosis.found(tls(location, stream.certificate_end()));
    }
    Ok((Connection::begin(location, password, stream, false), address))
}

/// The finding for a server that rejects the client certificate.
pub(super) fn stranger(text: String) -> Finding {
    Finding::problem(
        "tls",
        text,
        "no lock can be taken: dlock run ends with 77",
        "name a certificate by cert_file= and its key by key_file=, of an authority that the server knows \
         (tls-ca-cert-file)",
    )
}

fn tls(location: &Location, certificate_end: Option<Duration>) -> Finding {
    if location.security.warning().is_some() {
        return Finding::warning(
            "tls",
            "the server's certificate is not checked (insecure)",
            "a man in the middle can take the lock",
            "remove insecure, and name the authority by ca_file=",
        );
    }
    let now = Duration::from_micros(wall_micros());
    match certificate_end.map(|end| end.saturating_sub(now)) {
        Some(left) if left < CERTIFICATE_WARNING => Finding::warning(
            "tls",
            format!("the server's certificate is valid for another {}", show(left)),
            "from then on no lock can be taken or renewed, and running commands are stopped",
            "renew it",
        ),
        Some(left) => {
            Finding::ok("tls", format!("the server's certificate is valid for another {}", show(left)))
        }
        None => Finding::ok("tls", "the server's certificate is valid"),
    }
}

/// Warns of a password file that every user of this host can read. Such a file is accepted, because containers mount
/// secrets with these permissions.
pub(super) fn password_file(location: &Location) -> Option<Finding> {
    let path = location.security.credentials.password_file()?;
    let mode = std::fs::metadata(path).ok()?.mode();
    (mode & 0o004 != 0).then(|| {
        Finding::warning(
            "password file",
            format!("{} can be read by every user (mode {:04o})", path.display(), mode & 0o7777),
            "every user of this host can take and remove locks",
            format!("chmod o-r {}, unless this host or container has no other users", path.display()),
        )
    })
}

/// Warns of a password that is sent unencrypted to another host.
pub(super) fn plain_text(
    location: &Location,
    address: Option<SocketAddr>,
    is_secret: bool,
) -> Option<Finding> {
    let is_local = address.is_none_or(|address| address.ip().is_loopback());
    (is_secret && location.security.tls.is_none() && !is_local).then(|| {
        Finding::warning(
            "encryption",
            "the password travels in plain text",
            "anyone who can read the traffic can take and remove locks",
            "use rediss://, or a tunnel",
        )
    })
}

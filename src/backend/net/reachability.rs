//! The checks of `dlock doctor` on the connection to a server: address, TLS session, certificate, and unencrypted
//! passwords.

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use super::{Address, BoundedStream, Protocol, Security, Session, Socket, connect, secure};
use crate::backend::StoreError;
use crate::backend::diagnosis::{Diagnosis, Finding, short};
use crate::clock::{Moment, wall_micros};
use crate::duration::show;

/// The remaining validity of a certificate below which a warning is given.
const CERTIFICATE_WARNING: Duration = Duration::from_secs(14 * 24 * 3600);

/// What to do about each fault, in the terms of the store.
pub struct Remedies {
    /// What the server should speak.
    pub protocol: Protocol,
    /// No connection to the TCP port.
    pub port: &'static str,
    /// No connection to the Unix socket.
    pub socket: &'static str,
    /// No TLS session.
    pub tls: &'static str,
    /// The server rejects the client certificate.
    pub client_certificate: &'static str,
    /// The password is sent unencrypted.
    pub plain_text: &'static str,
}

/// Connects, and starts the TLS session if there is one. Warns of a password that is to be sent in plain text.
///
/// # Errors
/// The finding about what failed. The others have been reported to `diagnosis`.
pub async fn open(
    server: &Address,
    security: &Security,
    session: Option<Session>,
    remedies: &Remedies,
    diagnosis: &Diagnosis,
) -> Result<BoundedStream, Finding> {
    let (socket, address) = reach(server, remedies, diagnosis).await?;
    if session.is_some() {
        diagnosis.begin("tls");
    }
    // A request for TLS belongs to the protocol already.
    let is_requested = session.as_ref().is_some_and(Session::is_requested);
    let secured = secure(socket, session, security);
    let secured = match is_requested {
        true => remedies.protocol.exchange(server, security, secured).await,
        false => secured.await,
    };
    let stream = secured.map_err(|error| tls_failure(error, remedies))?;
    let mut security = security.clone();
    match stream.is_encrypted() {
        true => diagnosis.found(certificate(&security, stream.certificate_end())),
        false => security.tls = None,
    }
    if let Some(finding) = plain_text(&security, address, remedies) {
        diagnosis.found(finding);
    }
    Ok(stream)
}

/// Connects. Also returns the address of the server, which a Unix socket does not have.
///
/// # Errors
/// As of [`open`].
pub async fn reach(
    server: &Address,
    remedies: &Remedies,
    diagnosis: &Diagnosis,
) -> Result<(Socket, Option<SocketAddr>), Finding> {
    diagnosis.begin("reachability");
    let start = Moment::now();
    let remedy = match server {
        Address::Tcp(_) => remedies.port,
        Address::Socket(_) => remedies.socket,
    };
    let socket = connect(server).await.map_err(|error| unreachable("reachability", &error, remedy))?;
    let took = Moment::now() - start;
    let address = match &socket {
        Socket::Tcp(tcp) => tcp.peer_addr().ok(),
        Socket::Unix(_) => None,
    };
    let shown = address.map_or_else(|| server.to_string(), |address| address.to_string());
    diagnosis.found(Finding::ok("reachability", format!("{shown} in {}", short(took))));
    Ok((socket, address))
}

/// Returns the finding for a TLS session that could not be started.
pub fn tls_failure(error: StoreError, remedies: &Remedies) -> Finding {
    match error {
        StoreError::Denied(text) => client_certificate(text, remedies),
        error @ StoreError::OtherServer { .. } => Finding::failure("protocol", &error),
        error => unreachable("tls", &error, remedies.tls),
    }
}

fn unreachable(check: &'static str, error: &StoreError, remedy: &str) -> Finding {
    let consequence = match error {
        StoreError::Unavailable { .. } => {
            "no lock can be taken: dlock run ends with 69, or keeps trying with --retry"
        }
        StoreError::Denied(_) => "no lock can be taken: dlock run ends with 77",
        StoreError::Config(_) | StoreError::OtherServer { .. } => {
            "no lock can be taken: dlock run ends with 78"
        }
    };
    Finding::problem(check, error.to_string(), consequence, remedy)
}

/// Returns the finding for a server that rejects the client certificate.
pub fn client_certificate(text: String, remedies: &Remedies) -> Finding {
    let consequence = "no lock can be taken: dlock run ends with 77";
    Finding::problem("tls", text, consequence, remedies.client_certificate)
}

/// Returns the finding about the certificate of a server, which expires then.
pub fn certificate(security: &Security, end: Option<Duration>) -> Finding {
    if security.warning().is_some() {
        return Finding::warning(
            "tls",
            "the server's certificate is not checked",
            "a man in the middle can take the lock",
            "have it checked (without insecure, or by sslmode=verify-full), and name the authority by ca_file=",
        );
    }
    let now = Duration::from_micros(wall_micros());
    let Some(left) = end.map(|end| end.saturating_sub(now)) else {
        return Finding::ok("tls", "the server's certificate is valid");
    };
    let found = format!("the server's certificate is valid for another {}", show(left));
    match left < CERTIFICATE_WARNING {
        false => Finding::ok("tls", found),
        true => Finding::warning(
            "tls",
            found,
            "from then on no lock can be taken or renewed, and running commands are stopped",
            "renew it",
        ),
    }
}

/// Warns of a password file, and of the key of a client certificate, that every user of this host can read. Such a file is
/// accepted, because containers mount secrets with these permissions.
pub fn secret_files(security: &Security) -> Vec<Finding> {
    let password = security.credentials.password_file().map(|path| ("password file", path));
    let key = security.tls.as_ref().and_then(|tls| tls.key_file.as_deref()).map(|path| ("key file", path));
    let warning = |(check, path): (&'static str, &Path)| {
        let mode = std::fs::metadata(path).ok()?.mode();
        (mode & 0o004 != 0).then(|| {
            Finding::warning(
                check,
                format!("{} can be read by every user (mode {:04o})", path.display(), mode & 0o7777),
                "every user of this host can take and remove locks",
                format!("chmod o-r {}, unless this host or container has no other users", path.display()),
            )
        })
    };
    password.into_iter().chain(key).filter_map(warning).collect()
}

/// Warns of a password that is sent unencrypted to another host.
pub fn plain_text(security: &Security, address: Option<SocketAddr>, remedies: &Remedies) -> Option<Finding> {
    let is_local = address.is_none_or(|address| address.ip().is_loopback());
    (security.credentials.has_password() && security.tls.is_none() && !is_local).then(|| {
        Finding::warning(
            "encryption",
            "the password travels in plain text",
            "anyone who can read the traffic can take and remove locks",
            remedies.plain_text,
        )
    })
}

//! What `dlock doctor` does with each server of a store before the checks that only that store has: address, TLS session,
//! certificate, unencrypted passwords, login.

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use super::{Address, BoundedStream, Protocol, Security, Session, Socket, connect, secure};
use crate::backend::StoreError;
use crate::backend::diagnosis::{Diagnosis, Finding, no_lock, remedy_of, short};
use crate::clock::{Moment, wall_micros};
use crate::duration::show;
use crate::exit::FailureKind;

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
    /// The server rejects the user.
    pub login: &'static str,
    /// It cannot be used as the URL says: the check that has failed then, and the remedy.
    pub unusable: (&'static str, &'static str),
    /// It does not complete the login: likewise.
    pub unavailable: (&'static str, &'static str),
}

impl Remedies {
    /// Returns the finding for a server with this error in reply to the login.
    pub fn refusal(&self, error: &StoreError) -> Finding {
        let (check, remedy) = match error {
            StoreError::Denied(_) => ("authentication", self.login),
            StoreError::OtherServer { .. } => ("protocol", remedy_of(error)),
            StoreError::Config(_) => self.unusable,
            StoreError::Unavailable { .. } => self.unavailable,
        };
        Finding::refusal(check, error, remedy)
    }
}

/// The servers of a store.
pub struct Servers<'a> {
    /// The addresses of all of them.
    pub addresses: &'a [Address],
    /// How they are connected to.
    pub security: &'a Security,
    /// What to do about each fault.
    pub remedies: &'a Remedies,
    /// What follows if some of several cannot be used.
    pub fewer: &'static str,
}

impl<'a> Servers<'a> {
    /// Logs in to each server, as `log_in` does. Returns the result for those that can be used; what is wrong with the others
    /// has been reported.
    ///
    /// # Errors
    /// A configured file cannot be used: then no server is contacted.
    pub async fn log_in<T>(
        &self,
        diagnosis: &Diagnosis,
        log_in: impl AsyncFn(Server<'_>) -> Result<T, Finding>,
    ) -> Result<Vec<(&'a Address, T)>, StoreError> {
        let Servers { addresses, security, remedies, fewer } = *self;
        let server = |address: &'a Address| {
            let session = Session::of(security.tls.as_ref(), address)?;
            Ok(Server { address, security, remedies, diagnosis, session })
        };
        let servers = addresses.iter().map(server).collect::<Result<Vec<_>, StoreError>>()?;
        secret_files(security).into_iter().for_each(|finding| diagnosis.found(finding));
        let (mut usable, mut failures) = (Vec::new(), Vec::new());
        for (address, server) in addresses.iter().zip(servers) {
            match log_in(server).await {
                Ok(result) => usable.push((address, result)),
                Err(finding) => failures.push((address, finding)),
            }
        }
        diagnosis.found_of_some(failures, !usable.is_empty(), fewer);
        Ok(usable)
    }
}

/// One server that is being checked.
pub struct Server<'a> {
    /// Its address.
    pub address: &'a Address,
    pub(super) security: &'a Security,
    pub(super) remedies: &'a Remedies,
    pub(super) diagnosis: &'a Diagnosis,
    /// The TLS session to start, until that is done.
    pub session: Option<Session>,
}

impl Server<'_> {
    /// Connects, and starts the TLS session if there is one. Warns of a password that is to be sent in plain text.
    ///
    /// # Errors
    /// The finding about what failed. The others have been reported.
    pub async fn open(&mut self) -> Result<BoundedStream, Finding> {
        let (socket, address) = self.reach().await?;
        let Server { security, remedies, diagnosis, .. } = *self;
        let session = self.session.take();
        if session.is_some() {
            diagnosis.begin("tls");
        }
        // A request for TLS belongs to the protocol already.
        let is_requested = session.as_ref().is_some_and(Session::is_requested);
        let secured = secure(socket, session, security);
        let secured = match is_requested {
            true => remedies.protocol.exchange(self.address, security, secured).await,
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

    /// Connects. Also returns the address that was connected to, which a Unix socket does not have.
    ///
    /// # Errors
    /// As of [`open`](Server::open).
    pub async fn reach(&self) -> Result<(Socket, Option<SocketAddr>), Finding> {
        self.diagnosis.begin("reachability");
        let start = Moment::now();
        let remedy = match self.address {
            Address::Tcp(_) => self.remedies.port,
            Address::Socket(_) => self.remedies.socket,
        };
        let socket =
            connect(self.address).await.map_err(|error| Finding::refusal("reachability", &error, remedy))?;
        let took = Moment::now() - start;
        let address = match &socket {
            Socket::Tcp(tcp) => tcp.peer_addr().ok(),
            Socket::Unix(_) => None,
        };
        let shown = address.map_or_else(|| self.address.to_string(), |address| address.to_string());
        self.diagnosis.found(Finding::ok("reachability", format!("{shown} in {}", short(took))));
        Ok((socket, address))
    }

    /// Carries out the first exchange with the server, for this check.
    ///
    /// # Errors
    /// The finding for a server that refuses the user, or cannot be used.
    pub async fn log_in<T>(
        &self,
        check: &'static str,
        exchange: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, Finding> {
        self.diagnosis.begin(check);
        let result = self.remedies.protocol.exchange(self.address, self.security, exchange).await;
        result.map_err(|error| self.remedies.refusal(&error))
    }
}

/// Returns the finding for a TLS session that could not be started.
fn tls_failure(error: StoreError, remedies: &Remedies) -> Finding {
    match error {
        StoreError::Denied(text) => client_certificate(text, remedies),
        error @ StoreError::OtherServer { .. } => Finding::failure("protocol", &error),
        error => Finding::refusal("tls", &error, remedies.tls),
    }
}

/// Returns the finding for a server that rejects the client certificate.
pub fn client_certificate(text: String, remedies: &Remedies) -> Finding {
    Finding::problem("tls", text, no_lock(FailureKind::Denied), remedies.client_certificate)
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
fn secret_files(security: &Security) -> Vec<Finding> {
    let password = security.credentials.password_file().map(|path| ("password file", path));
    let key =
        security.tls.as_ref().and_then(|tls| tls.key_file.as_ref()?.file()).map(|path| ("key file", path));
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

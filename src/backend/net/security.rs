//! How client and server prove their identity to each other: the URL options of every networked store.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Address, Credentials, TlsSettings};
use crate::backend::StoreError;
use crate::backend::url::{REQUIRE_VERIFIED_TLS, Url, UrlError};

/// Whether a server speaks the protocol of the URL, as far as is known.
#[derive(Default)]
enum Kind {
    #[default]
    Unknown,
    Expected,
    Other(StoreError),
}

/// The credentials of the client, and TLS if the URL requires it.
#[derive(Clone)]
pub struct Security {
    /// The username and the password.
    pub credentials: Credentials,
    /// The TLS settings; `None` without TLS.
    pub tls: Option<TlsSettings>,
    /// The scheme of the same URL with TLS instead of without, or the other way round.
    pub other_scheme: String,
    /// The servers that a connection was opened to.
    known_servers: Arc<Mutex<HashSet<SocketAddr>>>,
    /// The servers, as named, with which an exchange was begun, and whether they have spoken the expected protocol.
    named_servers: Arc<Mutex<HashMap<Address, Kind>>>,
    /// The password itself was sent to a server that has not proved its identity.
    has_exposed_password: Arc<AtomicBool>,
}

impl Security {
    /// Returns the security that the scheme and the authority of a URL describe.
    pub fn of(url: &Url, tls: Option<TlsSettings>, other_scheme: String) -> Security {
        Security {
            credentials: Credentials::of(url),
            tls,
            other_scheme,
            known_servers: Arc::default(),
            named_servers: Arc::default(),
            has_exposed_password: Arc::default(),
        }
    }

    /// Notes a server, and returns whether it is new. Only then it is worth finding out whether it uses TLS: a server that
    /// is down for a while would get twice as many connections.
    pub(super) fn is_new(&self, server: SocketAddr) -> bool {
        self.known_servers.lock().unwrap_or_else(PoisonError::into_inner).insert(server)
    }

    /// Notes a server before the first exchange with it, and returns whether it is new. Only then is it worth finding out
    /// whether it is of another kind, for the same reason.
    pub fn is_stranger(&self, server: &Address) -> bool {
        let mut servers = self.named_servers();
        let is_new = !servers.contains_key(server);
        servers.entry(server.clone()).or_default();
        is_new
    }

    /// Returns whether nothing was noted of a server yet.
    pub fn is_unknown(&self, server: &Address) -> bool {
        !self.named_servers().contains_key(server)
    }

    /// Notes that a server has spoken the expected protocol: whatever fails from now on, it is not of another kind.
    pub fn recognize(&self, server: &Address) {
        self.named_servers().insert(server.clone(), Kind::Expected);
    }

    /// Returns whether that was noted, by any clone.
    pub(super) fn is_recognized(&self, server: &Address) -> bool {
        matches!(self.named_servers().get(server), Some(Kind::Expected))
    }

    /// Notes that a server turned out to be of another kind, which is found out once only.
    pub fn note_other_kind(&self, server: &Address, error: &StoreError) {
        self.named_servers().insert(server.clone(), Kind::Other(error.clone()));
    }

    /// Returns the error if that was noted, by any clone.
    pub fn other_kind(&self, server: &Address) -> Option<StoreError> {
        match self.named_servers().get(server) {
            Some(Kind::Other(error)) => Some(error.clone()),
            _ => None,
        }
    }

    fn named_servers(&self) -> MutexGuard<'_, HashMap<Address, Kind>> {
        self.named_servers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the password itself is about to be sent to a server that has not proved its identity.
    pub fn note_exposure(&self) {
        self.has_exposed_password.store(true, Ordering::Relaxed);
    }

    /// Returns whether that was noted since the last call, by any clone.
    pub fn take_exposure(&self) -> bool {
        self.has_exposed_password.swap(false, Ordering::Relaxed)
    }

    /// Applies an option of the URL, and returns whether it is one of these: `require_verified_tls`, `username`, `password_file`,
    /// `ca_file`, `cert_file`, `key_file`, `server_name`, `insecure`. `no_tls` is what to say of an option for TLS in a URL
    /// without.
    ///
    /// # Errors
    /// The value is invalid, or the option needs TLS.
    pub fn set(&mut self, name: &str, value: &str, no_tls: &str) -> Result<bool, UrlError> {
        match (name, &mut self.tls) {
            // Checked with the whole location.
            (REQUIRE_VERIFIED_TLS, _) => {}
            ("username", _) => self.credentials.set_username(value),
            ("password_file", _) => self.credentials.set_password_file(name, value)?,
            (name, _) if !TlsSettings::OPTIONS.contains(&name) => return Ok(false),
            (name, None) => return Err(UrlError::new(format!("'{name}' needs TLS{no_tls}"))),
            (name, Some(tls)) => tls.set(name, value)?,
        }
        Ok(true)
    }

    /// Checks the files for TLS as far as possible without contacting a server.
    ///
    /// # Errors
    /// There is a certificate without its key, or a file that cannot be opened.
    pub fn check(&self) -> Result<(), UrlError> {
        self.tls.as_ref().map_or(Ok(()), TlsSettings::check)
    }

    /// Checks that a username has a password; `variable` is the environment variable that it may be in, if the store has one.
    ///
    /// # Errors
    /// It has none.
    pub fn check_login(&self, variable: Option<&str>) -> Result<(), UrlError> {
        if self.credentials.username().is_none() || self.credentials.has_password() {
            return Ok(());
        }
        let ways = match variable {
            Some(variable) => format!("to the URL, as password_file=, or as {variable}"),
            None => "to the URL, or as password_file=".to_owned(),
        };
        Err(UrlError::new(format!("a username without a password: add it {ways}")))
    }

    /// Returns what makes a server prove its identity before anything is sent to it, if nothing does.
    pub fn unverified(&self) -> Option<String> {
        match &self.tls {
            None => Some(format!("use {}://", self.other_scheme)),
            Some(tls) => tls.insecure.then(|| "remove insecure".to_owned()),
        }
    }

    /// Returns the warning about a server that is not authenticated, if there is one.
    pub fn warning(&self) -> Option<&'static str> {
        self.tls.as_ref().is_some_and(|tls| tls.insecure).then_some(
            "the server's certificate is not checked (?insecure): a man in the middle can take the lock",
        )
    }
}

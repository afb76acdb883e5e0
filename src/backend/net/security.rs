//! How client and server prove their identity to each other: the URL options of every networked store.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Address, Credentials, TlsSettings};
use crate::backend::StoreError;
use crate::backend::options::Value::{File, Switch, Text};
use crate::backend::options::{Options, UrlOption, of_access};
use crate::backend::url::{REQUIRE_VERIFIED_TLS, Url, UrlError};

/// The options of every networked store.
pub const COMMON: &[UrlOption] = &[
    of_access("username", Text(""), "The user, if it is not given in front of the host."),
    of_access("password_file", File, "A file with the password, which is read at each connection."),
    of_access(
        "ca_file",
        File,
        "Certificate authorities to verify the server against, not those of the system.",
    ),
    of_access("cert_file", File, "A client certificate, presented if the server requests one."),
    of_access("key_file", File, "The key of the client certificate, not world-writable."),
    of_access(
        "server_name",
        Text(""),
        "The name in the certificate of the server, if it is not the host of the URL.",
    ),
    of_access("insecure", Switch, "Do not verify the server. dlock warns about it."),
    of_access(
        REQUIRE_VERIFIED_TLS,
        Switch,
        "Reject the URL (78), before a server is contacted, unless it has TLS with verification or a Unix socket.",
    ),
];

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
    /// Returns the security that a URL describes. `tls` is what its scheme or its store sets of TLS, if it is used, and
    /// `no_tls` what to say of an option for TLS if it is not.
    ///
    /// # Errors
    /// An option needs TLS, a file for TLS cannot be used, or a certificate has no key.
    pub fn new(
        url: &Url,
        options: &Options,
        mut tls: Option<TlsSettings>,
        other_scheme: String,
        no_tls: &str,
    ) -> Result<Security, UrlError> {
        match &mut tls {
            Some(tls) => tls.read(options)?,
            None => options.reject(&TlsSettings::OPTIONS, |name| format!("'{name}' needs TLS{no_tls}"))?,
        }
        Ok(Security {
            credentials: Credentials::of(url, options),
            tls,
            other_scheme,
            known_servers: Arc::default(),
            named_servers: Arc::default(),
            has_exposed_password: Arc::default(),
        })
    }

    /// Returns the security of a URL whose scheme is one of these, the first without TLS and the second with it.
    ///
    /// # Errors
    /// Those of [`Security::new`].
    pub fn of_scheme(url: &Url, options: &Options, schemes: [&str; 2]) -> Result<Security, UrlError> {
        let [plain, secure] = schemes;
        let is_secure = url.scheme == secure;
        let other_scheme = if is_secure { plain } else { secure };
        let no_tls = format!(": use {secure}:// instead of {plain}://");
        Security::new(url, options, is_secure.then(TlsSettings::default), other_scheme.to_owned(), &no_tls)
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

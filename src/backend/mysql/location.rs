//! The location of a table of locks, parsed from a URL without contacting the server.

use super::authentication::Privacy;
use super::option_file::ClientOptions;
use super::recipe::{GetLock, Recipe};
use crate::backend::net::{Address, COMMON, Credentials, Security, TlsSettings};
use crate::backend::options::Value::{File, Switch, Text, Word};
use crate::backend::options::{Options, Table, UrlOption, of_access, of_lock, synonym, words};
use crate::backend::shedlock::Clock;
use crate::backend::url::{Environment, Url, UrlError, encoded};
use crate::lock::LockName;

const DEFAULT_PORT: u16 = 3306;
const PASSWORD_VARIABLE: &str = "MYSQL_PWD";
const OWN: &[UrlOption] = &[
    of_lock("socket", File, "The Unix socket of the server, in place of a host."),
    of_lock("recipe", Word("table", &["table", "get_lock", "shedlock"]), "What a lock is, besides its row."),
    of_lock("clock", Clock::OPTION, "The clock of the other programs with `recipe=shedlock`."),
    of_lock("zone", Text(""), "Their time zone with `clock=jvm-zone`."),
    of_lock("prefix", Text(""), "A prefix for the names of locks."),
    of_access("single_writer", Switch, "Accept a node of a Galera cluster."),
    of_access("ssl_mode", Word("preferred", &words(&MODES)), "Whether a connection uses TLS."),
    synonym("ssl_ca", "ca_file"),
    synonym("ssl_cert", "cert_file"),
    synonym("ssl_key", "key_file"),
];
const OPTIONS: Table = &[OWN, COMMON];
/// The values of `ssl_mode`.
const MODES: [(&str, Encryption); 5] = [
    ("disabled", Encryption::Disabled),
    ("preferred", Encryption::Preferred),
    ("required", Encryption::Required),
    (VERIFY_CA, Encryption::Verified),
    ("verify_identity", Encryption::Verified),
];
/// Accepts a certificate of the authority in `ca_file`, whatever its name is: those that MySQL makes have none.
const VERIFY_CA: &str = "verify_ca";

/// When a connection is encrypted: `--ssl-mode` of those clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encryption {
    /// Never.
    Disabled,
    /// If the server supports TLS; its identity is not verified. The default, as in these clients.
    Preferred,
    /// Always; its identity is not verified.
    Required,
    /// Always, and only with a server that proves its identity, or by `verify_ca` that its authority is known.
    Verified,
}

impl Encryption {
    /// Returns who may read what is sent over a connection with TLS.
    pub(super) fn privacy(self) -> Privacy {
        match self {
            Encryption::Verified => Privacy::Verified,
            _ => Privacy::Encrypted,
        }
    }
}

/// A database, and how to connect to its server.
#[derive(Clone)]
pub struct Location {
    pub(super) address: Address,
    pub(super) security: Security,
    pub(super) encryption: Encryption,
    pub(super) database: String,
    pub(super) prefix: String,
    pub(super) recipe: Recipe,
    /// The user has confirmed that all clients use one node of a cluster.
    pub(super) has_single_writer: bool,
    /// The URL has the option of this name.
    pub(super) is_insecure: bool,
    pub(super) display: String,
}

impl Location {
    /// Returns the options of a URL.
    pub fn options(_scheme: &str) -> Table {
        OPTIONS
    }

    /// Parses `mysql://[user[:password]@]host[:port]/database`, or `mariadb://`.
    ///
    /// # Errors
    /// Another form, an unknown option, or an invalid value.
    pub fn from_url(url: &Url, environment: Environment<'_>) -> Result<Location, UrlError> {
        let scheme = url.scheme.as_str();
        let example = format!("such as {scheme}://user@host/database");
        let mut options = Options::of(url, OPTIONS)?;
        let address = match (&url.hosts[..], options.path("socket")) {
            ([host], None) => Address::of(host, DEFAULT_PORT),
            ([], Some(path)) => Address::Socket(path),
            (_, Some(_)) => {
                return Err(
                    UrlError::new(format!("{scheme}:// takes a host or socket=, not both")).about("socket")
                );
            }
            ([], None) => {
                return Err(UrlError::new(format!("{scheme}:// takes a host, {example}, or socket=")));
            }
            (_, None) => {
                return Err(UrlError::new(format!("{scheme}:// takes one host: that of the primary")));
            }
        };
        let database = url.path.trim_start_matches('/');
        if database.is_empty() || database.contains('/') {
            return Err(UrlError::new(format!("{scheme}:// takes a database, {example}")));
        }
        let has = |name: &str| options.given(name).is_some();
        let encryption = if has("ssl_mode") {
            options.word("ssl_mode", &MODES)
        } else if ["ca_file", "cert_file", "key_file", "server_name"].into_iter().any(has) {
            Encryption::Verified
        } else if has("insecure") {
            Encryption::Required
        } else {
            Encryption::Preferred
        };
        let is_insecure = has("insecure");
        let tls = (encryption != Encryption::Disabled).then(|| TlsSettings {
            insecure: encryption != Encryption::Verified,
            any_name: options.get("ssl_mode") == VERIFY_CA,
            ..TlsSettings::default()
        });
        let no_tls = ": use another ssl_mode= than disabled";
        let mut security = Security::new(url, &options, tls, scheme.to_owned(), no_tls)?;
        authenticate(&mut security.credentials, environment)?;
        let encryption = match (&security.tls, encryption) {
            (Some(tls), _) if !tls.insecure => Encryption::Verified,
            (Some(_), Encryption::Verified) => Encryption::Required,
            (_, encryption) => encryption,
        };
        let recipe = Recipe::of(&mut options, "get_lock", &[], |_| Ok(GetLock))?;
        let host = match &address {
            Address::Tcp(host) => host.to_string(),
            Address::Socket(_) => String::new(),
        };
        let user = security.credentials.in_url();
        Ok(Location {
            address,
            encryption,
            database: database.to_owned(),
            prefix: options.get("prefix").to_owned(),
            recipe,
            has_single_writer: options.switch("single_writer").unwrap_or_default(),
            is_insecure,
            display: format!("{scheme}://{user}{host}/{}{}", encoded(database), options.query()),
            security,
        })
    }

    /// Returns why the server is not verified.
    pub(super) fn unverified_by(&self) -> &'static str {
        match self.encryption {
            _ if self.is_insecure => "insecure",
            Encryption::Preferred => "ssl_mode=preferred",
            _ => "ssl_mode=required",
        }
    }

    /// Returns the database that a login names: a gate needs none, and is open to users without one.
    pub(super) fn login_database(&self) -> &str {
        match self.recipe {
            Recipe::Table | Recipe::ShedLock(_) => &self.database,
            Recipe::Session(GetLock) => "",
        }
    }

    /// Returns the name of a lock in the table.
    pub(super) fn key(&self, name: &LockName) -> Vec<u8> {
        [self.prefix.as_bytes(), name.as_str().as_bytes()].concat()
    }
}

/// Completes the user and the password. Some users have none.
fn authenticate(credentials: &mut Credentials, environment: Environment<'_>) -> Result<(), UrlError> {
    let file = ClientOptions::read(environment("HOME"))?;
    if let (None, Some(user)) = (credentials.username(), &file.user) {
        credentials.set_username(user);
    }
    credentials.set_default_password(environment(PASSWORD_VARIABLE).or(file.password));
    Ok(())
}

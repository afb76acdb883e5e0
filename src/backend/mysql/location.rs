//! The location of a table of locks, parsed from a URL without contacting the server.

use super::authentication::Privacy;
use super::gate::{GetLock, Recipe};
use super::option_file::ClientOptions;
use crate::backend::net::{Address, Security, TlsSettings};
use crate::backend::sql::Choice;
use crate::backend::url::{Environment, REQUIRE_VERIFIED_TLS, Url, UrlError};
use crate::lock::LockName;

const DEFAULT_PORT: u16 = 3306;
const PASSWORD_VARIABLE: &str = "MYSQL_PWD";
const OPTIONS: &[&str] = &[
    "recipe",
    "clock",
    "zone",
    "prefix",
    "socket",
    "single_writer",
    "username",
    "password_file",
    "ssl_mode",
    "ca_file",
    "cert_file",
    "key_file",
    "server_name",
    "insecure",
    REQUIRE_VERIFIED_TLS,
    "ssl_ca",
    "ssl_cert",
    "ssl_key",
];
/// The names that the clients of MySQL and MariaDB have for these options.
const SYNONYMS: [(&str, &str); 3] =
    [("ssl_ca", "ca_file"), ("ssl_cert", "cert_file"), ("ssl_key", "key_file")];

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
    fn parse(mode: &str) -> Result<Encryption, UrlError> {
        match mode.to_ascii_lowercase().as_str() {
            "disabled" => Ok(Encryption::Disabled),
            "preferred" => Ok(Encryption::Preferred),
            "required" => Ok(Encryption::Required),
            VERIFY_CA | "verify_identity" => Ok(Encryption::Verified),
            _ => Err(UrlError::new(format!(
                "unknown ssl_mode '{mode}' (known: disabled, preferred, required, verify_ca, verify_identity)"
            ))),
        }
    }

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
    pub fn options(_scheme: &str) -> &'static [&'static str] {
        OPTIONS
    }

    /// Parses `mysql://[user[:password]@]host[:port]/database`, or `mariadb://`.
    ///
    /// # Errors
    /// Another form, an unknown option, or an invalid value.
    pub fn from_url(url: &Url, environment: Environment<'_>) -> Result<Location, UrlError> {
        let scheme = url.scheme.as_str();
        let example = format!("such as {scheme}://user@host/database");
        let option = |name: &str| url.query.iter().find(|(option, _)| option == name).map(|(_, value)| value);
        let address = match (&url.hosts[..], option("socket")) {
            ([host], None) => Address::of(host, DEFAULT_PORT),
            ([], Some(path)) if path.starts_with('/') => Address::Socket(path.into()),
            ([], Some(_)) => return Err(UrlError::new("socket= takes an absolute path").about("socket")),
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
        let tls_files = ["ca_file", "cert_file", "key_file", "server_name", "ssl_ca", "ssl_cert", "ssl_key"];
        let encryption = match option("ssl_mode") {
            Some(mode) => Encryption::parse(mode).map_err(|error| error.about("ssl_mode"))?,
            None if tls_files.iter().any(|file| option(file).is_some()) => Encryption::Verified,
            None if option("insecure").is_some() => Encryption::Required,
            None => Encryption::Preferred,
        };
        let any_name = option("ssl_mode").is_some_and(|mode| mode.eq_ignore_ascii_case(VERIFY_CA));
        let tls = (encryption != Encryption::Disabled).then(|| TlsSettings {
            insecure: encryption != Encryption::Verified,
            any_name,
            ..TlsSettings::default()
        });
        let [recipe, clock, zone] = ["recipe", "clock", "zone"].map(|name| option(name).map(String::as_str));
        let choice = Choice { recipe, clock, zone };
        let mut location = Location {
            address,
            security: Security::of(url, tls, scheme.to_owned()),
            encryption,
            database: database.to_owned(),
            prefix: String::new(),
            recipe: Recipe::of(&choice, "get_lock", &[], || Ok(GetLock))?,
            has_single_writer: false,
            is_insecure: false,
            display: String::new(),
        };
        for (name, value) in &url.query {
            location.set(scheme, name, value).map_err(|error| error.about(name))?;
        }
        location.encryption = match (&location.security.tls, location.encryption) {
            (Some(tls), _) if !tls.insecure => Encryption::Verified,
            (Some(_), Encryption::Verified) => Encryption::Required,
            (_, encryption) => encryption,
        };
        location.is_insecure = option("insecure").is_some();
        location.authenticate(environment)?;
        location.display = location.describe(scheme);
        Ok(location)
    }

    fn set(&mut self, scheme: &str, name: &str, value: &str) -> Result<(), UrlError> {
        if !OPTIONS.contains(&name) {
            return Err(UrlError::unknown_option(name, scheme, OPTIONS));
        }
        let synonym = SYNONYMS.iter().find(|(theirs, _)| *theirs == name).map_or(name, |(_, ours)| ours);
        if self.security.set(synonym, value, ": use another ssl_mode= than disabled")? {
            return Ok(());
        }
        match (name, value) {
            ("recipe" | "clock" | "zone" | "socket" | "ssl_mode", _) => {}
            ("prefix", _) => value.clone_into(&mut self.prefix),
            ("single_writer", "yes") => self.has_single_writer = true,
            _ => return Err(UrlError::new(format!("{name}= is yes, not '{value}'"))),
        }
        Ok(())
    }

    /// Returns why the server is not verified.
    pub(super) fn unverified_by(&self) -> &'static str {
        match self.encryption {
            _ if self.is_insecure => "insecure",
            Encryption::Preferred => "ssl_mode=preferred",
            _ => "ssl_mode=required",
        }
    }

    /// Completes the user and the password. Some users have none.
    fn authenticate(&mut self, environment: Environment<'_>) -> Result<(), UrlError> {
        let file = ClientOptions::read(environment("HOME"))?;
        let credentials = &mut self.security.credentials;
        if let (None, Some(user)) = (credentials.username(), &file.user) {
            credentials.set_username(user);
        }
        credentials.set_default_password(environment(PASSWORD_VARIABLE).or(file.password));
        self.security.check()
    }

    /// Returns the URL without secrets and without default values.
    fn describe(&self, scheme: &str) -> String {
        let user = self.security.credentials.username().map(|user| format!("{user}@")).unwrap_or_default();
        let (host, socket) = match &self.address {
            Address::Tcp(_) => (self.address.to_string(), None),
            Address::Socket(path) => (String::new(), Some(format!("socket={}", path.display()))),
        };
        let prefix = (!self.prefix.is_empty()).then(|| format!("prefix={}", self.prefix));
        let options: Vec<String> = socket
            .into_iter()
            .chain(self.recipe.options(|_| "recipe=get_lock".to_owned()))
            .chain(prefix)
            .collect();
        let mark = if options.is_empty() { "" } else { "?" };
        format!("{scheme}://{user}{host}/{}{mark}{}", self.database, options.join("&"))
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

//! Where a Redis is and how to speak to it: a URL understood in full, contacting nobody.

use std::fs;
use std::path::{Path, PathBuf};

use tokio_rustls::rustls::pki_types::ServerName;

use super::keys::RESERVED;
use crate::backend::url::{Environment, Host, Url, UrlError};
use crate::backend::{StoreError, io_text};
use crate::lock::LockName;

const DEFAULT_PORT: u16 = 6379;
const DEFAULT_PREFIX: &str = "dlock:";
/// What a URL can say besides the server.
pub(in crate::backend) const OPTIONS: &[&str] = &[
    "recipe",
    "prefix",
    "db",
    "username",
    "password_file",
    "protocol",
    "ca_file",
    "cert_file",
    "key_file",
    "server_name",
    "insecure",
];

/// One Redis server.
#[derive(Clone)]
pub struct Location {
    host: Host,
    database: u32,
    username: Option<String>,
    password: Password,
    prefix: String,
    resp3: bool,
    tls: Option<TlsSettings>,
    display: String,
}

#[derive(Clone)]
enum Password {
    None,
    Text(String),
    /// Read anew at every connection, so that it can be changed under a running lock.
    File(PathBuf),
}

/// How to check the server, and prove who we are. The default checks against the system's authorities.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsSettings {
    /// Authorities to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// Our certificate.
    pub cert_file: Option<PathBuf>,
    /// Its key.
    pub key_file: Option<PathBuf>,
    /// The name to expect instead of the host's.
    pub server_name: Option<String>,
    /// Check nothing.
    pub insecure: bool,
}

impl Location {
    /// `redis://[user[:password]@]host[:port][/db]`, `rediss://` for TLS.
    ///
    /// # Errors
    /// Anything that is not of this form, an unknown option, or a value that cannot be.
    pub fn from_url(url: &Url, environment: Environment<'_>) -> Result<Location, UrlError> {
        let bad = |text: String| Err(UrlError::new(text));
        let scheme = url.scheme.as_str();
        let [host] = url.hosts.as_slice() else {
            return bad(format!("{scheme}:// takes one host, as {scheme}://localhost:6379"));
        };
        let mut tls = matches!(scheme, "rediss" | "valkeys").then(TlsSettings::default);
        let mut location = Location {
            host: host.clone(),
            database: database(url.path.trim_start_matches('/'))?,
            username: url.username.clone(),
            password: url.password.clone().map_or(Password::None, Password::Text),
            prefix: DEFAULT_PREFIX.to_owned(),
            resp3: true,
            tls: None,
            display: String::new(),
        };
        for (name, value) in &url.query {
            location.set(url, &mut tls, name, value).map_err(|error| error.about(name))?;
        }
        if let Some(tls) = &tls {
            tls.check()?;
        }
        location.tls = tls;
        if matches!(location.password, Password::None)
            && let Some(password) = environment("REDISCLI_AUTH")
        {
            location.password = Password::Text(password);
        }
        if location.username.is_some() && matches!(location.password, Password::None) {
            return bad(
                "a username without a password: add it to the URL, as password_file=, or as REDISCLI_AUTH"
                    .into(),
            );
        }
        location.display = location.describe(scheme);
        Ok(location)
    }

    /// One option of the URL.
    fn set(
        &mut self,
        url: &Url,
        tls: &mut Option<TlsSettings>,
        name: &str,
        value: &str,
    ) -> Result<(), UrlError> {
        let scheme = url.scheme.as_str();
        let bad = |text: String| Err(UrlError::new(text));
        match name {
            "prefix" => self.prefix = value.to_owned(),
            "recipe" if value == "plain" => {}
            "recipe" => return bad(format!("unknown recipe '{value}' (known: plain)")),
            "db" if !matches!(url.path.as_str(), "" | "/") => {
                return bad("the database is given twice: as a path and as db=".into());
            }
            "db" => self.database = database(value)?,
            "username" => self.username = Some(value.to_owned()),
            "password_file" if value.starts_with('/') => self.password = Password::File(PathBuf::from(value)),
            "password_file" => return bad("password_file= takes an absolute path".into()),
            "protocol" => match value {
                "2" | "resp2" => self.resp3 = false,
                "3" | "resp3" => self.resp3 = true,
                _ => return bad(format!("protocol= is resp2 or resp3, not '{value}'")),
            },
            "ca_file" | "cert_file" | "key_file" | "server_name" | "insecure" => match tls {
                None => return bad(format!("'{name}' needs TLS: use rediss:// instead of {scheme}://")),
                Some(tls) => tls.set(name, value)?,
            },
            _ => {
                return bad(format!(
                    "unknown option '{name}' for {scheme}:// (known: {})",
                    OPTIONS.join(", ")
                ));
            }
        }
        Ok(())
    }

    fn describe(&self, scheme: &str) -> String {
        let user = self.username.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
        let port = self.host.port.unwrap_or(DEFAULT_PORT);
        let host = Host { name: self.host.name.clone(), port: Some(port) };
        let prefix =
            if self.prefix == DEFAULT_PREFIX { String::new() } else { format!("?prefix={}", self.prefix) };
        format!("{scheme}://{user}{host}/{}{prefix}", self.database)
    }

    /// The store without secrets.
    pub fn display(&self) -> &str {
        &self.display
    }

    /// What is to be said once about the way to the server.
    pub fn insecure(&self) -> Option<&'static str> {
        let insecure = self.tls.as_ref().is_some_and(|tls| tls.insecure);
        insecure.then_some(
            "the server's certificate is not checked (?insecure): anybody in between can take the lock",
        )
    }

    /// Refuses a name whose key would be one of dlock's own.
    ///
    /// # Errors
    /// It would be.
    pub fn check_name(&self, name: &LockName) -> Result<(), UrlError> {
        let key = format!("{}{name}", self.prefix);
        match key.starts_with(RESERVED) {
            true => Err(UrlError::new(format!(
                "its key would begin with {RESERVED}, which dlock keeps for itself"
            ))),
            false => Ok(()),
        }
    }

    pub(super) fn host(&self) -> &Host {
        &self.host
    }

    pub(super) fn default_port(&self) -> u16 {
        DEFAULT_PORT
    }

    pub(super) fn database(&self) -> u32 {
        self.database
    }

    pub(super) fn username(&self) -> Option<&str> {
        self.username.as_deref()
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(super) fn resp3(&self) -> bool {
        self.resp3
    }

    pub(super) fn tls(&self) -> Option<&TlsSettings> {
        self.tls.as_ref()
    }

    /// The file that the password is in.
    pub(super) fn password_file(&self) -> Option<&Path> {
        match &self.password {
            Password::File(path) => Some(path),
            Password::None | Password::Text(_) => None,
        }
    }

    /// The password as it is now.
    ///
    /// # Errors
    /// The password file cannot be read.
    pub(super) fn password(&self) -> Result<Option<String>, StoreError> {
        match &self.password {
            Password::None => Ok(None),
            Password::Text(password) => Ok(Some(password.clone())),
            Password::File(path) => {
                let text = fs::read_to_string(path).map_err(|error| {
                    StoreError::Config(format!("password file {}: {}", path.display(), io_text(&error)))
                })?;
                Ok(Some(text.strip_suffix('\n').unwrap_or(&text).to_owned()))
            }
        }
    }
}

impl TlsSettings {
    /// What can be said of the files before anybody is contacted.
    fn check(&self) -> Result<(), UrlError> {
        let files =
            [("ca_file", &self.ca_file), ("cert_file", &self.cert_file), ("key_file", &self.key_file)];
        if self.cert_file.is_some() != self.key_file.is_some() {
            let lonely = if self.cert_file.is_some() { "cert_file" } else { "key_file" };
            return Err(UrlError::new("cert_file= and key_file= go together").about(lonely));
        }
        for (name, file) in files {
            if let Some(file) = file
                && let Err(error) = fs::File::open(file)
            {
                let text = format!("{}: {}", file.display(), io_text(&error));
                return Err(UrlError::new(text).about(name));
            }
        }
        Ok(())
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), UrlError> {
        let file = || match value.starts_with('/') {
            true => Ok(Some(PathBuf::from(value))),
            false => Err(UrlError::new(format!("{name}= takes an absolute path"))),
        };
        match name {
            "ca_file" => self.ca_file = file()?,
            "cert_file" => self.cert_file = file()?,
            "key_file" => self.key_file = file()?,
            "server_name" if ServerName::try_from(value).is_err() => {
                return Err(UrlError::new(format!(
                    "server_name='{value}' cannot be the name of a TLS server"
                )));
            }
            "server_name" => self.server_name = Some(value.to_owned()),
            _ => match value {
                "" | "1" | "true" => self.insecure = true,
                "0" | "false" => self.insecure = false,
                _ => return Err(UrlError::new(format!("insecure= is true or false, not '{value}'"))),
            },
        }
        Ok(())
    }
}

fn database(text: &str) -> Result<u32, UrlError> {
    match text {
        "" => Ok(0),
        _ if text.bytes().all(|byte| byte.is_ascii_digit()) => {
            text.parse().map_err(|_| UrlError::new(format!("'{text}' is no database number")))
        }
        _ => Err(UrlError::new(format!("'{text}' is no database number"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(text: &str) -> Result<Location, UrlError> {
        Location::from_url(&Url::parse(text)?, &|_| None)
    }

    #[test]
    fn urls_become_locations_without_secrets_in_their_name() {
        for (url, display) in [
            ("redis://localhost", "redis://localhost:6379/0"),
            ("redis://:secret@h:1/2", "redis://h:1/2"),
            ("rediss://me:secret@[::1]/?db=7", "rediss://me@[::1]:6379/7"),
            ("valkey://h?prefix=", "valkey://h:6379/0?prefix="),
            ("redis://h?password_file=/run/secret&username=me&protocol=resp2", "redis://me@h:6379/0"),
        ] {
            assert_eq!(
                location(url).map(|location| location.display().to_owned()),
                Ok(display.to_owned()),
                "{url}"
            );
        }
    }

    #[test]
    fn wrong_locations_are_refused() {
        for bad in [
            "redis://",
            "redis://a,b",
            "redis://h/x",
            "redis://h/1/2",
            "redis://h/-1",
            "redis://h/1?db=1",
            "redis://h?nonsense=1",
            "redis://h?recipe=redisson",
            "redis://h?ca_file=/x",
            "rediss://h?ca_file=x",
            "rediss://h?cert_file=/x",
            "redis://me@h",
            "redis://h?protocol=4",
            "redis://h?password_file=x",
            "rediss://h?insecure=maybe",
        ] {
            assert!(location(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn reserved_keys_cannot_be_named() {
        let name = LockName::new("dlock#fencing:{a}").expect("good name");
        assert!(location("redis://h?prefix=").expect("good").check_name(&name).is_err());
        assert!(location("redis://h").expect("good").check_name(&name).is_ok());
    }
}

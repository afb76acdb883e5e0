//! The location of an etcd cluster, parsed from a URL without contacting a server.

use super::keys::Keys;
use crate::backend::net::{Address, Security, TlsSettings, distinct, list};
use crate::backend::url::{Environment, REQUIRE_VERIFIED_TLS, Url, UrlError};
use crate::lock::LockName;

const DEFAULT_PORT: u16 = 2379;
const DEFAULT_PREFIX: &str = "/dlock/";
/// `user[:password]`, as `etcdctl` reads it.
pub(super) const USER_VARIABLE: &str = "ETCDCTL_USER";
const OPTIONS: &[&str] = &[
    "prefix",
    "username",
    "password_file",
    "ca_file",
    "cert_file",
    "key_file",
    "server_name",
    "insecure",
    REQUIRE_VERIFIED_TLS,
];

/// The members of a cluster, and how to connect to them.
#[derive(Clone)]
pub struct Location {
    pub(super) endpoints: Vec<Address>,
    pub(super) security: Security,
    pub(super) prefix: String,
    pub(super) display: String,
}

impl Location {
    /// Returns the options of a URL.
    pub fn options(_scheme: &str) -> &'static [&'static str] {
        OPTIONS
    }

    /// Parses `etcd://[user[:password]@]host[:port][,...]`, or `etcds://` for TLS.
    ///
    /// # Errors
    /// Another form, an unknown option, or an invalid value.
    pub fn from_url(url: &Url, environment: Environment<'_>) -> Result<Location, UrlError> {
        let scheme = url.scheme.as_str();
        if url.hosts.is_empty() {
            return Err(UrlError::new(format!(
                "{scheme}:// takes the members of a cluster, such as {scheme}://h1,h2,h3"
            )));
        }
        if !url.path.trim_matches('/').is_empty() {
            return Err(UrlError::new(format!(
                "{scheme}:// has no path: set the prefix of keys with prefix="
            )));
        }
        let is_secure = scheme == "etcds";
        // etcd rejects TLS connections that do not negotiate HTTP/2.
        let tls = is_secure.then(|| TlsSettings { protocol: Some("h2"), ..TlsSettings::default() });
        let mut location = Location {
            endpoints: distinct(url.hosts.iter().map(|host| Address::of(host, DEFAULT_PORT)))?,
            security: Security::of(url, tls, if is_secure { "etcd" } else { "etcds" }.to_owned()),
            prefix: DEFAULT_PREFIX.to_owned(),
            display: String::new(),
        };
        for (name, value) in &url.query {
            location.set(scheme, name, value).map_err(|error| error.about(name))?;
        }
        location.authenticate(environment)?;
        location.display = location.describe(scheme);
        Ok(location)
    }

    fn set(&mut self, scheme: &str, name: &str, value: &str) -> Result<(), UrlError> {
        if !OPTIONS.contains(&name) {
            return Err(UrlError::unknown_option(name, scheme, OPTIONS));
        }
        if !self.security.set(name, value, ": use etcds:// instead of etcd://")? {
            value.clone_into(&mut self.prefix);
        }
        Ok(())
    }

    /// Completes the credentials from the environment variable.
    fn authenticate(&mut self, environment: Environment<'_>) -> Result<(), UrlError> {
        let variable = environment(USER_VARIABLE).unwrap_or_default();
        let (user, password) = variable.split_once(':').unwrap_or((&variable, ""));
        let credentials = &mut self.security.credentials;
        if credentials.username().is_none() {
            if credentials.has_password() {
                return Err(UrlError::new("a password without a username: etcd requires both"));
            }
            if !user.is_empty() {
                credentials.set_username(user);
            }
        }
        let is_of_user = credentials.username() == Some(user) && !password.is_empty();
        credentials.set_default_password(is_of_user.then(|| password.to_owned()));
        self.security.check()
    }

    /// Returns the URL without secrets and without default values.
    fn describe(&self, scheme: &str) -> String {
        let user = self.security.credentials.username().map(|user| format!("{user}@")).unwrap_or_default();
        let prefix = match self.prefix.as_str() {
            DEFAULT_PREFIX => String::new(),
            prefix => format!("?prefix={prefix}"),
        };
        format!("{scheme}://{user}{}{prefix}", list(&self.endpoints))
    }

    /// Returns the location with a single member.
    pub(super) fn only(&self, endpoint: &Address) -> Location {
        Location { endpoints: vec![endpoint.clone()], ..self.clone() }
    }

    pub(super) fn keys(&self, name: &LockName) -> Keys {
        Keys::new(&self.prefix, name)
    }
}

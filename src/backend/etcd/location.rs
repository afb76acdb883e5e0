//! The location of an etcd cluster, parsed from a URL without contacting a server.

use super::keys::Keys;
use crate::backend::net::{Address, COMMON, Credentials, Security, distinct, list};
use crate::backend::options::Value::Text;
use crate::backend::options::{Options, Table, of_lock};
use crate::backend::url::{Environment, Url, UrlError};
use crate::lock::LockName;

const DEFAULT_PORT: u16 = 2379;
/// `user[:password]`, as `etcdctl` reads it.
pub(super) const USER_VARIABLE: &str = "ETCDCTL_USER";
const OPTIONS: Table = &[&[of_lock("prefix", Text("/dlock/"), "The prefix of the keys.")], COMMON];

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
    pub fn options(_scheme: &str) -> Table {
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
        let options = Options::of(url, OPTIONS)?;
        let mut security = Security::of_scheme(url, &options, ["etcd", "etcds"])?;
        if let Some(tls) = &mut security.tls {
            // etcd rejects TLS connections that do not negotiate HTTP/2.
            tls.protocol = Some("h2");
        }
        authenticate(&mut security.credentials, environment)?;
        let endpoints = distinct(url.hosts.iter().map(|host| Address::of(host, DEFAULT_PORT)))?;
        let user = security.credentials.in_url();
        let display = format!("{scheme}://{user}{}{}", list(&endpoints), options.query());
        Ok(Location { endpoints, security, prefix: options.get("prefix").to_owned(), display })
    }

    /// Returns the location with a single member.
    pub(super) fn only(&self, endpoint: &Address) -> Location {
        Location { endpoints: vec![endpoint.clone()], ..self.clone() }
    }

    pub(super) fn keys(&self, name: &LockName) -> Keys {
        Keys::new(&self.prefix, name)
    }
}

/// Completes the credentials from the environment variable.
fn authenticate(credentials: &mut Credentials, environment: Environment<'_>) -> Result<(), UrlError> {
    credentials.check_username("etcd")?;
    let variable = environment(USER_VARIABLE).unwrap_or_default();
    let (user, password) = variable.split_once(':').unwrap_or((&variable, ""));
    if credentials.username().is_none() && !user.is_empty() {
        credentials.set_username(user);
    }
    let is_of_user = credentials.username() == Some(user) && !password.is_empty();
    credentials.set_default_password(is_of_user.then(|| password.to_owned()));
    Ok(())
}

//! The location of a Consul agent and the keys of a lock, parsed from a URL without contacting the agent.

use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use crate::backend::net::http::Route;
use crate::backend::net::{Address, COMMON, Security};
use crate::backend::options::Value::{Text, Word};
use crate::backend::options::{Options, Table, UrlOption, of_lock, words};
use crate::backend::url::{Environment, Host, Url, UrlError, encoded};
use crate::lock::LockName;

const DEFAULT_PORT: u16 = 8500;
const DEFAULT_TLS_PORT: u16 = 8501;
/// The shortest time-out of a session that an agent accepts (`session_ttl_min`, unless it is configured).
pub(super) const SHORTEST_LEASE: Duration = Duration::from_secs(10);
/// The key that `consul lock PREFIX` locks, below the prefix, ...
const LOCK: &str = "/.lock";
/// ... and what the key of the ledger has after that: one request reads both.
const LEDGER: &str = ".dlock";
/// What ends a name in a key, and what marks an encoded character.
const ENCODED: &AsciiSet = &CONTROLS.add(b'/').add(b'%');
/// `address`, as the `consul` command reads it.
const ADDRESS_VARIABLE: &str = "CONSUL_HTTP_ADDR";
const SSL_VARIABLE: &str = "CONSUL_HTTP_SSL";
const VERIFY_VARIABLE: &str = "CONSUL_HTTP_SSL_VERIFY";
pub(super) const TOKEN_VARIABLE: &str = "CONSUL_HTTP_TOKEN";
/// The variables that stand for options of the URL, ...
const VARIABLES: [(&str, &str); 3] = [
    ("CONSUL_HTTP_TOKEN_FILE", "password_file"),
    ("CONSUL_NAMESPACE", "namespace"),
    ("CONSUL_PARTITION", "partition"),
];
/// ... and those that stand for one of TLS.
const TLS_VARIABLES: [(&str, &str); 4] = [
    ("CONSUL_CACERT", "ca_file"),
    ("CONSUL_CLIENT_CERT", "cert_file"),
    ("CONSUL_CLIENT_KEY", "key_file"),
    ("CONSUL_TLS_SERVER_NAME", "server_name"),
];
/// The options that every request passes on, and the parameter of each.
const PARAMETERS: [(&str, &str); 3] = [("datacenter", "dc"), ("namespace", "ns"), ("partition", "partition")];
const OWN: &[UrlOption] = &[
    of_lock("recipe", Word("lock", &words(&Recipe::ALL)), "The recipe of other programs."),
    of_lock("prefix", Text("dlock/"), "The prefix of the keys."),
    of_lock("datacenter", Text(""), "The datacenter, if it is not that of the agent."),
    of_lock("namespace", Text(""), "The namespace (Consul Enterprise)."),
    of_lock("partition", Text(""), "The admin partition (Consul Enterprise)."),
];
const OPTIONS: Table = &[OWN, COMMON];

/// The locks of other programs that dlock takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recipe {
    /// Those of `consul lock` and `api.Lock`, which have one holder.
    Lock,
    /// Those of `consul lock -n` and `api.Semaphore`.
    Semaphore,
}

impl Recipe {
    /// As in the URL.
    const ALL: [(&str, Recipe); 2] = [("lock", Recipe::Lock), ("semaphore", Recipe::Semaphore)];
}

/// An agent, and how to connect to it.
#[derive(Clone)]
pub struct Location {
    pub(super) route: Route,
    pub(super) recipe: Recipe,
    pub(super) prefix: String,
    /// The parameters of every request.
    pub(super) parameters: Vec<(&'static str, String)>,
    pub(super) display: String,
}

impl Location {
    /// Returns the options of a URL.
    pub fn options(_: &str) -> Table {
        OPTIONS
    }

    /// Parses `consul://[:token@][host[:port]]`, `consuls://` for TLS, or `consul+unix:///path/of/socket`.
    ///
    /// # Errors
    /// Another form, an unknown option, or an invalid value.
    pub fn from_url(url: &Url, environment: Environment<'_>) -> Result<Location, UrlError> {
        let mut options = Options::of(url, OPTIONS)?;
        let url = &located(url, environment)?;
        let (scheme, is_socket) = (url.scheme.as_str(), url.scheme.ends_with("+unix"));
        if url.username.is_some() || options.given("username").is_some() {
            let text = format!(
                "{scheme}:// has no username: a token stands after a colon, as in {scheme}://:TOKEN@HOST"
            );
            return Err(UrlError::new(text));
        }
        let is_secure = scheme == "consuls";
        let variables = VARIABLES.iter().chain(if is_secure { &TLS_VARIABLES[..] } else { &[] });
        for (variable, option) in variables {
            let value = environment(variable).filter(|value| !value.is_empty());
            let is_given =
                options.given(option).is_some() || (*option == "password_file" && url.password.is_some());
            if let Some(value) = value.filter(|_| !is_given) {
                let named = |error: UrlError| UrlError::new(format!("{variable}: {error}"));
                options.add(option, &value).map_err(named)?;
            }
        }
        let is_unverified = is_secure && is_off(environment(VERIFY_VARIABLE));
        if is_unverified && options.given("insecure").is_none() {
            options.add("insecure", "")?;
        }
        let mut security = match is_socket {
            true => {
                Security::new(url, &options, None, "consuls".into(), ", which a Unix socket does not use")?
            }
            false => Security::of_scheme(url, &options, ["consul", "consuls"])?,
        };
        security
            .credentials
            .set_default_password(environment(TOKEN_VARIABLE).filter(|token| !token.is_empty()));
        let (agent, shown) = match url.hosts.as_slice() {
            _ if is_socket => {
                (Address::Socket(PathBuf::from(&url.path)), format!("{scheme}://{}", encoded(&url.path)))
            }
            [host] => {
                let agent = Address::of(host, if is_secure { DEFAULT_TLS_PORT } else { DEFAULT_PORT });
                let shown = format!("{scheme}://{agent}");
                (agent, shown)
            }
            _ => {
                let text = format!("{scheme}:// takes one agent, such as {scheme}://127.0.0.1:8500");
                return Err(UrlError::new(text));
            }
        };
        let parameters = PARAMETERS.iter().map(|(option, name)| (*name, options.get(option).to_owned()));
        Ok(Location {
            route: Route::of(agent, security, environment)?,
            recipe: options.word("recipe", &Recipe::ALL),
            prefix: options.get("prefix").trim_start_matches('/').to_owned(),
            parameters: parameters.filter(|(_, value)| !value.is_empty()).collect(),
            display: format!("{shown}{}", options.query()),
        })
    }

    /// Returns the prefix that `consul lock` is given.
    fn lock_prefix(&self, name: &LockName) -> String {
        format!("{}{}", self.prefix, utf8_percent_encode(name.as_str(), ENCODED))
    }

    /// Returns the key that `consul lock` locks, or that `consul lock -n` keeps its holders in.
    pub(super) fn lock_key(&self, name: &LockName) -> String {
        self.lock_prefix(name) + LOCK
    }

    /// Returns the key that a client of a semaphore locks.
    pub(super) fn contender_key(&self, name: &LockName, session: &str) -> String {
        format!("{}/{session}", self.lock_prefix(name))
    }

    /// Returns what all keys of a lock begin with, of those that the recipe reads.
    pub(super) fn common_key(&self, name: &LockName) -> String {
        match self.recipe {
            Recipe::Lock => self.lock_key(name),
            Recipe::Semaphore => self.contender_key(name, ""),
        }
    }

    /// Returns the key of the ledger.
    pub(super) fn ledger_key(&self, name: &LockName) -> String {
        self.lock_key(name) + LEDGER
    }

    /// Returns the name of the lock that this key is the ledger of.
    pub(super) fn name_of(&self, key: &str) -> Option<LockName> {
        let encoded = key.strip_prefix(&self.prefix)?.strip_suffix(LEDGER)?.strip_suffix(LOCK)?;
        let name = percent_decode_str(encoded).decode_utf8().ok()?;
        LockName::new(&name).ok().filter(|name| self.ledger_key(name) == key)
    }
}

/// Returns whether the value of a variable means no.
fn is_off(value: Option<String>) -> bool {
    value.is_some_and(|value| matches!(value.to_ascii_lowercase().as_str(), "0" | "f" | "false"))
}

/// Returns a URL that names its agent: without a host, the one in the environment, or the one on this host.
fn located(url: &Url, environment: Environment<'_>) -> Result<Url, UrlError> {
    let scheme = url.scheme.as_str();
    let mut located = url.clone();
    if scheme.ends_with("+unix") {
        return match url.hosts.is_empty() && url.path.starts_with('/') && url.path.len() > 1 {
            true => Ok(located),
            false => Err(UrlError::new(format!(
                "{scheme}: takes the path of a socket: {scheme}:///run/consul.sock"
            ))),
        };
    }
    if !url.path.trim_matches('/').is_empty() {
        return Err(UrlError::new(format!("{scheme}:// has no path: set the prefix of keys with prefix=")));
    }
    if !url.hosts.is_empty() {
        return Ok(located);
    }
    let address = environment(ADDRESS_VARIABLE).filter(|address| !address.is_empty());
    let (kind, address) =
        match address.as_deref().map(|address| address.split_once("://").unwrap_or(("", address))) {
            Some(("unix", path)) => {
                located.scheme = "consul+unix".into();
                located.path = path.to_owned();
                return Ok(located);
            }
            Some((kind @ ("" | "http" | "https"), address)) => (kind.to_owned(), address.to_owned()),
            Some(_) => return Err(wrong_address()),
            None => (String::new(), String::new()),
        };
    if kind == "http" && scheme == "consuls" {
        let text = format!("{ADDRESS_VARIABLE} is an address without TLS: use consul://");
        return Err(UrlError::new(text));
    }
    let uses_tls = environment(SSL_VARIABLE).filter(|value| !value.is_empty());
    if kind == "https" || (kind.is_empty() && uses_tls.is_some() && !is_off(uses_tls)) {
        located.scheme = "consuls".into();
    }
    located.hosts = match address.trim_end_matches('/') {
        "" => vec![Host { name: "127.0.0.1".into(), port: None }],
        address if address.contains(['/', '@', ',', '?']) => return Err(wrong_address()),
        address => Url::parse(&format!("consul://{address}")).map_err(|_| wrong_address())?.hosts,
    };
    Ok(located)
}

fn wrong_address() -> UrlError {
    UrlError::new(format!(
        "{ADDRESS_VARIABLE} is not HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:///PATH"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str, variables: &[(&str, &str)]) -> Result<Location, UrlError> {
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        Location::from_url(&Url::parse(url).expect("a URL"), &variable)
    }

    #[test]
    fn the_environment_names_the_agent_if_the_url_does_not() {
        for (url, address, ssl, shown) in [
            ("consul://h", "other:1", "", "consul://h:8500"),
            ("consuls://h?prefix=a/", "", "", "consuls://h:8501?prefix=a/"),
            ("consul://", "", "", "consul://127.0.0.1:8500"),
            ("consul:", "h:1", "", "consul://h:1"),
            ("consul:", "[::1]:1", "false", "consul://[::1]:1"),
            ("consul://", "https://h/", "", "consuls://h:8501"),
            ("consul://", "h", "true", "consuls://h:8501"),
            ("consul://?datacenter=b", "unix:///run/c.sock", "", "consul+unix:///run/c.sock?datacenter=b"),
            ("consul://h?recipe=lock", "", "", "consul://h:8500"),
            ("consul://h?recipe=Semaphore", "", "", "consul://h:8500?recipe=semaphore"),
        ] {
            let location = parse(url, &[(ADDRESS_VARIABLE, address), (SSL_VARIABLE, ssl)]);
            assert_eq!(location.map(|location| location.display), Ok(shown.to_owned()), "{url} {address}");
        }
        for (url, address) in [
            ("consuls://", "http://h"),
            ("consul://", "ftp://h"),
            ("consul://", "h/x"),
            ("consul://a,b", ""),
            ("consul://h/x", ""),
            ("consul://user:secret@h", ""),
            ("consul+unix://h", ""),
            ("consul://h?recipe=mutex", ""),
        ] {
            let error = parse(url, &[(ADDRESS_VARIABLE, address)]).err().expect(url).to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn the_names_of_locks_are_read_from_their_keys() {
        let location = parse("consul://h", &[]).expect("a location");
        for (name, key) in [
            ("nightly", "dlock/nightly/.lock"),
            ("a/b %", "dlock/a%2Fb %25/.lock"),
            (".lock", "dlock/.lock/.lock"),
        ] {
            let name = LockName::new(name).expect("a name");
            assert_eq!(location.lock_key(&name), key);
            assert_eq!(location.contender_key(&name, ".lock"), key);
            assert_eq!(location.name_of(&location.ledger_key(&name)), Some(name));
        }
        for key in ["dlock/a/b/.lock.dlock", "dlock/%61/.lock.dlock", "dlock/x/.lock", "x/.lock.dlock"] {
            assert_eq!(location.name_of(key), None, "{key}");
        }
    }
}

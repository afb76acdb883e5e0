//! Parses a URL into a location.

use super::Location;
use super::topology::{NO_DATABASES, Topology, database_of, servers};
use crate::backend::net::{Address, COMMON, Credentials, Security};
use crate::backend::options::Value::{File, Number, Text, Word};
use crate::backend::options::{Options, Table, UrlOption, of_access, of_lock, words};
use crate::backend::redis::recipe::{DEFAULT_PREFIX, Recipe};
use crate::backend::url::{Environment, Url, UrlError};

/// The password, when the URL has none.
pub(in crate::backend::redis) const PASSWORD_VARIABLE: &str = "REDISCLI_AUTH";
/// The options of Redis in every form.
const OWN: &[UrlOption] = &[
    of_lock("db", Text("0"), "The number of the database, if it is not in the path."),
    of_lock("recipe", Word("plain", &words(&Recipe::ALL)), "The library whose locks these are."),
    of_lock(
        "prefix",
        Text(DEFAULT_PREFIX),
        "The prefix of the keys. If it is empty, the name is the exact key.",
    ),
    of_lock(
        "wait_replicas",
        Number("0", "a number of replicas"),
        "The number of replicas that must have confirmed a lock before it is granted.",
    ),
    of_access("protocol", Word("resp3", &words(&PROTOCOLS)), "The protocol to ask the server for."),
];
/// Those of the connections to Sentinels.
const OF_SENTINELS: &[UrlOption] = &[
    of_access("sentinel_username", Text(""), "The user of the Sentinels."),
    of_access("sentinel_password_file", File, "A file with the password of the Sentinels."),
];
/// The versions, and whether they are RESP3.
const PROTOCOLS: [(&str, bool); 4] = [("resp3", true), ("resp2", false), ("3", true), ("2", false)];

impl Location {
    /// Returns the options of a URL of this scheme.
    pub fn options(scheme: &str) -> Table {
        if scheme.ends_with("-sentinel") { &[OWN, COMMON, OF_SENTINELS] } else { &[OWN, COMMON] }
    }

    /// `redis://[user[:password]@]host[:port][/db]`, `rediss://` for TLS, `redis+unix:///path/of/socket`.
    ///
    /// # Errors
    /// Another form, an unknown option, or an invalid value.
    pub fn from_url(url: &Url, environment: Environment<'_>) -> Result<Location, UrlError> {
        let scheme = url.scheme.as_str();
        let (topology, in_path) = servers(url)?;
        let mut options = Options::of(url, Location::options(scheme))?;
        if matches!(topology, Topology::Cluster(_)) {
            options.reject(&["db"], |_| NO_DATABASES.into())?;
        }
        let database = match in_path {
            None => options.parse("db", database_of)?,
            Some(database) => {
                options.reject(&["db"], |_| "the database is given twice: as a path and as db=".into())?;
                database
            }
        };
        let recipe = options.word("recipe", &Recipe::ALL);
        let prefix = options.given("prefix").unwrap_or(recipe.prefix()).to_owned();
        recipe.check_prefix(&prefix).map_err(|error| error.about("prefix"))?;
        let wait_replicas = options.number("wait_replicas")?;
        if matches!(topology, Topology::Redlock(_)) {
            recipe.check_redlock().map_err(|error| error.about("recipe"))?;
            if wait_replicas > 0 {
                return Err(UrlError::new(
                    "wait_replicas= is for one master and its replicas, and a Redlock has only masters",
                ));
            }
        }
        let mut security = security(url, &options)?;
        security.credentials.set_default_password(environment(PASSWORD_VARIABLE));
        let is_socket = matches!(topology, Topology::Server(Address::Socket(_)));
        options.replace("db", &if is_socket { database } else { 0 }.to_string());
        if prefix == recipe.prefix() {
            options.replace("prefix", DEFAULT_PREFIX);
        }
        let (user, servers) = (security.credentials.in_url(), topology.in_url(database));
        Ok(Location {
            database,
            sentinel_credentials: Credentials::named(&options, "sentinel_username", "sentinel_password_file"),
            recipe,
            prefix,
            wait_replicas,
            resp3: options.word("protocol", &PROTOCOLS),
            display: format!("{scheme}://{user}{servers}{}", options.query()),
            security,
            topology,
        })
    }
}

fn security(url: &Url, options: &Options) -> Result<Security, UrlError> {
    let family = ["redis", "valkey", "redlock"].into_iter().find(|family| url.scheme.starts_with(family));
    let family = family.unwrap_or(&url.scheme);
    let kind = &url.scheme[family.len()..];
    let kind = kind.strip_prefix('s').unwrap_or(kind);
    let (plain, secure) = (format!("{family}{kind}"), format!("{family}s{kind}"));
    match url.scheme.ends_with("+unix") {
        true => Security::new(url, options, None, secure, ", which a Unix socket does not use"),
        false => Security::of_scheme(url, options, [&plain, &secure]),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::location;
    use crate::backend::Location as _;

    #[test]
    fn urls_become_locations_without_secrets_in_their_name() {
        for (url, display) in [
            ("redis://localhost", "redis://localhost:6379/0"),
            ("redis://:secret@h:1/2", "redis://h:1/2"),
            ("rediss://me:secret@[::1]/?db=7", "rediss://me@[::1]:6379/7"),
            ("valkey://h?prefix=", "valkey://h:6379/0?prefix="),
            ("redis://h?password_file=/run/secret&username=me&protocol=resp2", "redis://me@h:6379/0"),
            ("redis-sentinel://:x@a,b:1/main", "redis-sentinel://a:26379,b:1/main/0"),
            ("rediss-sentinel://a/main/2?prefix=p", "rediss-sentinel://a:26379/main/2?prefix=p"),
            (
                "redis-sentinel://a/main?sentinel_username=me&sentinel_password_file=/run/secret",
                "redis-sentinel://a:26379/main/0",
            ),
            (
                "valkeys-sentinel://a/main?wait_replicas=2",
                "valkeys-sentinel://a:26379/main/0?wait_replicas=2",
            ),
            ("redis://h?wait_replicas=0", "redis://h:6379/0"),
            ("redis-cluster://a,b:1", "redis-cluster://a:6379,b:1"),
            ("redis://h?recipe=plain", "redis://h:6379/0"),
            ("redis://h?recipe=redisson&prefix=dlock:", "redis://h:6379/0?recipe=redisson"),
            ("redis://h?prefix=&recipe=redisson", "redis://h:6379/0?recipe=redisson&prefix="),
            ("redis://h?recipe=python-redis-lock", "redis://h:6379/0?recipe=python-redis-lock"),
            (
                "redis://h?prefix=lock:a:&recipe=python-redis-lock",
                "redis://h:6379/0?recipe=python-redis-lock&prefix=lock:a:",
            ),
            ("redlock://me:secret@a,b:1,c/2", "redlock://me@a:6379,b:1,c:6379/2"),
            ("redlocks://a", "redlocks://a:6379/0"),
            ("redis+unix:///run/redis.sock", "redis+unix:///run/redis.sock"),
            ("redis+unix://:secret@/run/r.sock?db=3&prefix=", "redis+unix:///run/r.sock?db=3&prefix="),
        ] {
            assert_eq!(
                location(url).map(|location| location.display().to_owned()),
                Ok(display.to_owned()),
                "{url}"
            );
        }
    }
}

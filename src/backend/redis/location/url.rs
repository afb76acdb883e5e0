//! Parses a URL into a location, and formats it without secrets.

use super::Location;
use super::topology::{NO_DATABASES, Topology, database_of, servers};
use crate::backend::net::{Address, Credentials, Security, TlsSettings, list};
use crate::backend::redis::recipe::Recipe;
use crate::backend::url::{Environment, REQUIRE_VERIFIED_TLS, Url, UrlError};

/// The password, when the URL has none.
pub(in crate::backend::redis) const PASSWORD_VARIABLE: &str = "REDISCLI_AUTH";
/// The options of a URL; the first two apply to sentinels only.
const OPTIONS: &[&str] = &[
    "sentinel_username",
    "sentinel_password_file",
    "recipe",
    "prefix",
    "db",
    "username",
    "password_file",
    "wait_replicas",
    "protocol",
    "ca_file",
    "cert_file",
    "key_file",
    "server_name",
    "insecure",
    REQUIRE_VERIFIED_TLS,
];

impl Location {
    /// Returns the options of a URL of this scheme.
    pub fn options(scheme: &str) -> &'static [&'static str] {
        if scheme.ends_with("-sentinel") { OPTIONS } else { &OPTIONS[2..] }
    }

    /// `redis://[user[:password]@]host[:port][/db]`, `rediss://` for TLS, `redis+unix:///path/of/socket`.
    ///
    /// # Errors
    /// Another form, an unknown option, or an invalid value.
    pub fn from_url(url: &Url, environment: Environment<'_>) -> Result<Location, UrlError> {
        let (topology, database) = servers(url)?;
        let is_secure = ["rediss", "valkeys", "redlocks"].iter().any(|secure| url.scheme.starts_with(secure));
        let mut location = Location {
            topology,
            database,
            security: Security::of(
                url,
                is_secure.then(TlsSettings::default),
                if is_secure { plain(&url.scheme) } else { secure(&url.scheme) },
            ),
            sentinel_credentials: Credentials::default(),
            recipe: Recipe::Plain,
            prefix: None,
            wait_replicas: 0,
            resp3: true,
            display: String::new(),
        };
        for (name, value) in &url.query {
            location.set(&url.scheme, name, value).map_err(|error| error.about(name))?;
        }
        location.recipe.check_prefix(location.prefix()).map_err(|error| error.about("prefix"))?;
        if location.is_redlock() {
            location.recipe.check_redlock().map_err(|error| error.about("recipe"))?;
            if location.wait_replicas > 0 {
                return Err(UrlError::new(
                    "wait_replicas= is for one master and its replicas, and a Redlock has only masters",
                ));
            }
        }
        location.security.check()?;
        location.security.credentials.set_default_password(environment(PASSWORD_VARIABLE));
        location.display = location.describe(&url.scheme);
        Ok(location)
    }

    fn set(&mut self, scheme: &str, name: &str, value: &str) -> Result<(), UrlError> {
        let bad = |text: String| Err(UrlError::new(text));
        let known = Location::options(scheme);
        if !known.contains(&name) {
            return Err(UrlError::unknown_option(name, scheme, known));
        }
        if self.security.set(name, value, &no_tls(scheme))? {
            return Ok(());
        }
        match name {
            "prefix" => self.prefix = Some(value.to_owned()),
            "recipe" => self.recipe = Recipe::named(value)?,
            "db" if self.is_cluster() => return bad(NO_DATABASES.into()),
            "db" if self.database.is_some() => {
                return bad("the database is given twice: as a path and as db=".into());
            }
            "db" => self.database = Some(database_of(value)?),
            "sentinel_username" => self.sentinel_credentials.set_username(value),
            "sentinel_password_file" => self.sentinel_credentials.set_password_file(name, value)?,
            "wait_replicas" => match value.parse() {
                Ok(count) => self.wait_replicas = count,
                Err(_) => return bad(format!("wait_replicas= is a number of replicas, not '{value}'")),
            },
            _ => match value {
                "2" | "resp2" => self.resp3 = false,
                "3" | "resp3" => self.resp3 = true,
                _ => return bad(format!("protocol= is resp2 or resp3, not '{value}'")),
            },
        }
        Ok(())
    }

    /// Returns the URL without secrets and without default values.
    fn describe(&self, scheme: &str) -> String {
        let user = self.username().map(|user| format!("{user}@")).unwrap_or_default();
        let mut options = Vec::new();
        let servers = match &self.topology {
            Topology::Server(Address::Socket(path)) => {
                if self.database() != 0 {
                    options.push(format!("db={}", self.database()));
                }
                path.display().to_string()
            }
            Topology::Server(address) => format!("{address}/{}", self.database()),
            Topology::Sentinel { sentinels, service } => {
                format!("{}/{service}/{}", list(sentinels), self.database())
            }
            Topology::Cluster(nodes) => list(nodes),
            Topology::Redlock(nodes) => format!("{}/{}", list(nodes), self.database()),
        };
        if self.recipe != Recipe::Plain {
            options.push(format!("recipe={}", self.recipe.name()));
        }
        if self.prefix() != self.recipe.prefix() {
            options.push(format!("prefix={}", self.prefix()));
        }
        if self.wait_replicas > 0 {
            options.push(format!("wait_replicas={}", self.wait_replicas));
        }
        let options = if options.is_empty() { String::new() } else { format!("?{}", options.join("&")) };
        format!("{scheme}://{user}{servers}{options}")
    }
}

/// The end of the message about an option for TLS in a URL of this scheme, which does not use TLS.
fn no_tls(scheme: &str) -> String {
    if scheme.ends_with("+unix") {
        return ", which a Unix socket does not use".into();
    }
    format!(": use {}:// instead of {scheme}://", secure(scheme))
}

/// The families of schemes, without and with TLS.
const FAMILIES: [(&str, &str); 3] = [("redis", "rediss"), ("valkey", "valkeys"), ("redlock", "redlocks")];

/// Returns a scheme without TLS as the one with it.
fn secure(scheme: &str) -> String {
    FAMILIES.iter().fold(scheme.to_owned(), |scheme, (plain, secure)| scheme.replacen(plain, secure, 1))
}

/// Returns a scheme with TLS as the one without it.
fn plain(scheme: &str) -> String {
    FAMILIES.iter().fold(scheme.to_owned(), |scheme, (plain, secure)| scheme.replacen(secure, plain, 1))
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

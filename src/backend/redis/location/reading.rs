//! Parses a URL into a location, and formats it without secrets.

use std::fmt;

use super::Location;
use super::security::{Password, TlsSettings};
use super::topology::{Address, NO_DATABASES, Topology, servers};
use crate::backend::redis::recipe::Recipe;
use crate::backend::url::{Environment, Url, UrlError};

/// The URL schemes of this store.
pub(in crate::backend) const SCHEMES: &[&str] = &[
    "redis",
    "rediss",
    "redis+unix",
    "redis-sentinel",
    "rediss-sentinel",
    "redis-cluster",
    "rediss-cluster",
    "valkey",
    "valkeys",
    "valkey+unix",
    "valkey-sentinel",
    "valkeys-sentinel",
    "valkey-cluster",
    "valkeys-cluster",
    "redlock",
    "redlocks",
];

impl Location {
    /// `redis://[user[:password]@]host[:port][/db]`, `rediss://` for TLS, `redis+unix:///path/of/socket`.
    ///
    /// # Errors
    /// Another form, an unknown option, or an invalid value.
    pub fn from_url(url: &Url, environment: Environment<'_>) -> Result<Location, UrlError> {
        let bad = |text: String| Err(UrlError::new(text));
        let (topology, database) = servers(url)?;
        let is_secure = ["rediss", "valkeys", "redlocks"].iter().any(|secure| url.scheme.starts_with(secure));
        let mut tls = is_secure.then(TlsSettings::default);
        let mut location = Location {
            topology,
            database: database.unwrap_or(0),
            username: url.username.clone(),
            password: url.password.clone().map_or(Password::None, Password::Text),
            sentinel_username: None,
            sentinel_password: Password::None,
            recipe: Recipe::Plain,
            prefix: String::new(),
            wait_replicas: 0,
            resp3: true,
            tls: None,
            display: String::new(),
        };
        let mut prefix = None;
        for (name, value) in &url.query {
            if name == "prefix" {
                prefix = Some(value.as_str());
            }
            if name == "db" && location.is_cluster() {
                return Err(UrlError::new(NO_DATABASES).about(name));
            }
            if name == "db" && database.is_some() {
                let twice = UrlError::new("the database is given twice: as a path and as db=");
                return Err(twice.about(name));
            }
            location.set(&url.scheme, &mut tls, name, value).map_err(|error| error.about(name))?;
        }
        location.prefix = prefix.unwrap_or(location.recipe.prefix()).to_owned();
        location.recipe.check_prefix(&location.prefix).map_err(|error| error.about("prefix"))?;
        if url.scheme.starts_with("redlock") {
            location.recipe.check_redlock().map_err(|error| error.about("recipe"))?;
            if location.wait_replicas > 0 {
                return bad(
                    "wait_replicas= is for one master and its replicas, and a Redlock has only masters"
                        .into(),
                );
            }
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
        if location.sentinel_username.is_some() && matches!(location.sentinel_password, Password::None) {
            return bad("sentinel_username= without a password: add sentinel_password_file=".into());
        }
        location.display = location.describe(&url.scheme);
        Ok(location)
    }

    /// Returns the URL without secrets and without default values.
    fn describe(&self, scheme: &str) -> String {
        let user = self.username.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
        let mut options = Vec::new();
        let servers = match &self.topology {
            Topology::Server(Address::Socket(path)) => {
                if self.database != 0 {
                    options.push(format!("db={}", self.database));
                }
                path.display().to_string()
            }
            Topology::Server(address) => format!("{address}/{}", self.database),
            Topology::Sentinel { sentinels, service } => {
                format!("{}/{service}/{}", list(sentinels), self.database)
            }
            Topology::Cluster(nodes) => list(nodes),
            Topology::Redlock(nodes) => format!("{}/{}", list(nodes), self.database),
        };
        if self.recipe != Recipe::Plain {
            options.push(format!("recipe={}", self.recipe.name()));
        }
        if self.prefix != self.recipe.prefix() {
            options.push(format!("prefix={}", self.prefix));
        }
        if self.wait_replicas > 0 {
            options.push(format!("wait_replicas={}", self.wait_replicas));
        }
        let options = if options.is_empty() { String::new() } else { format!("?{}", options.join("&")) };
        format!("{scheme}://{user}{servers}{options}")
    }
}

/// A list in the form that a URL lists hosts.
fn list<T: fmt::Display>(all: &[T]) -> String {
    all.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::super::tests::location;

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

    #[test]
    fn invalid_locations_are_rejected() {
        for bad in [
            "redis://",
            "redis://a,b",
            "redis://h/x",
            "redis://h/1/2",
            "redis://h/-1",
            "redis://h/1?db=1",
            "redis://h?nonsense=1",
            "redis://h?recipe=nonsense",
            "redis://h?recipe=python-redis-lock&prefix=",
            "redis://h?prefix=dlock:&recipe=python-redis-lock",
            "redlock://h?recipe=redisson",
            "redlock://h?recipe=python-redis-lock",
            "redis-sentinel://a",
            "redis-sentinel:///main",
            "redis-sentinel://a,a:26379/main",
            "redis-sentinel://a/main/x",
            "redis-sentinel://a/main/1?db=1",
            "redis-sentinel://a/main?sentinel_username=me",
            "redis-sentinel://a/main?sentinel_password_file=x",
            "redis-sentinel://a/main?sentinel_password=x",
            "redis-sentinel://a/main?wait_replicas=all",
            "redis-sentinel://a/main?wait_replicas=-1",
            "redis://h?sentinel_password_file=/x",
            "redis-cluster://",
            "redis-cluster://a/1",
            "redis-cluster://a?db=1",
            "redlock://",
            "redlock://a,b,a:6379",
            "redlock://a,b,c/x",
            "redlock://a/1?db=1",
            "redlock://a?ca_file=/x",
            "redis+unix:",
            "redis+unix://h/run/redis.sock",
            "redis+unix:redis.sock",
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
}

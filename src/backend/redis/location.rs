//! Where a Redis is and how to speak to it: a URL understood in full, contacting nobody.

mod security;

use std::fmt;
use std::path::{Path, PathBuf};

use self::security::Password;
pub use self::security::TlsSettings;
use super::keys::{Index, Keys, RESERVED};
use super::recipe::Recipe;
use crate::backend::StoreError;
use crate::backend::url::{Environment, Host, Url, UrlError};
use crate::lock::{LockName, Mode};

const DEFAULT_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
/// How URLs of this family begin.
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
/// What a URL can say besides the servers, behind what only one with sentinels can.
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
];

/// What a URL of this scheme can say besides the servers.
pub(in crate::backend) fn options(scheme: &str) -> &'static [&'static str] {
    if scheme.ends_with("-sentinel") { OPTIONS } else { &OPTIONS[2..] }
}

/// Redis servers that keep locks, and how to speak to them.
#[derive(Clone)]
pub struct Location {
    topology: Topology,
    database: u32,
    username: Option<String>,
    password: Password,
    sentinel_username: Option<String>,
    sentinel_password: Password,
    recipe: Recipe,
    prefix: String,
    wait_replicas: u32,
    resp3: bool,
    tls: Option<TlsSettings>,
    display: String,
}

/// Which servers there are, and how they belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Topology {
    /// One.
    Server(Address),
    /// The master of a service, as these sentinels know it.
    Sentinel {
        /// Where the sentinels listen.
        sentinels: Vec<Host>,
        /// What they call the master and its replicas.
        service: String,
    },
    /// A Redis Cluster, of which these nodes are known.
    Cluster(Vec<Address>),
    /// Masters that know nothing of each other, of which a majority decides.
    Redlock(Vec<Address>),
}

/// Where one server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    /// By TCP.
    Tcp(Host),
    /// On a socket of this host.
    Socket(PathBuf),
}

impl Address {
    /// A host as a URL names it.
    pub(super) fn of(host: &Host) -> Address {
        Address::Tcp(Host { port: Some(host.port.unwrap_or(DEFAULT_PORT)), ..host.clone() })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(host) => host.fmt(f),
            Address::Socket(path) => path.display().fmt(f),
        }
    }
}

impl Location {
    /// `redis://[user[:password]@]host[:port][/db]`, `rediss://` for TLS, `redis+unix:///path/of/socket`.
    ///
    /// # Errors
    /// Anything that is not of this form, an unknown option, or a value that cannot be.
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

    /// One option of the URL.
    fn set(
        &mut self,
        scheme: &str,
        tls: &mut Option<TlsSettings>,
        name: &str,
        value: &str,
    ) -> Result<(), UrlError> {
        let bad = |text: String| Err(UrlError::new(text));
        let known = options(scheme);
        match name {
            _ if !known.contains(&name) => {
                return bad(format!("unknown option '{name}' for {scheme}:// (known: {})", known.join(", ")));
            }
            // What is usual depends on the recipe.
            "prefix" => {}
            "recipe" => self.recipe = Recipe::named(value)?,
            "db" => self.database = database_of(value)?,
            "username" => self.username = Some(value.to_owned()),
            "password_file" if value.starts_with('/') => self.password = Password::File(PathBuf::from(value)),
            "sentinel_username" => self.sentinel_username = Some(value.to_owned()),
            "sentinel_password_file" if value.starts_with('/') => {
                self.sentinel_password = Password::File(PathBuf::from(value));
            }
            "password_file" | "sentinel_password_file" => {
                return bad(format!("{name}= takes an absolute path"));
            }
            "wait_replicas" => match value.parse() {
                Ok(count) => self.wait_replicas = count,
                Err(_) => return bad(format!("wait_replicas= is a number of replicas, not '{value}'")),
            },
            "protocol" => match value {
                "2" | "resp2" => self.resp3 = false,
                "3" | "resp3" => self.resp3 = true,
                _ => return bad(format!("protocol= is resp2 or resp3, not '{value}'")),
            },
            "ca_file" | "cert_file" | "key_file" | "server_name" | "insecure" => match tls {
                None => {
                    let secure = scheme.replacen("redis", "rediss", 1).replacen("valkey", "valkeys", 1);
                    return bad(format!("'{name}' needs TLS: use {secure}:// instead of {scheme}://"));
                }
                Some(tls) => tls.set(name, value)?,
            },
            _ => {}
        }
        Ok(())
    }

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

    /// What is to be said once about how many nodes there are.
    pub fn warning(&self) -> Option<String> {
        let Topology::Redlock(nodes) = &self.topology else { return None };
        match nodes.len() {
            1 => Some(
                "1 node tolerates no loss: this is a single Redis; name 3 or 5 independent masters"
                    .to_owned(),
            ),
            2 => Some("2 nodes tolerate no loss, as 1 does: name 3 or 5 independent masters".to_owned()),
            even if even % 2 == 0 => Some(format!(
                "{even} nodes tolerate the loss of {}, as {} do: one more, or one less, is better",
                even / 2 - 1,
                even - 1
            )),
            _ => None,
        }
    }

    /// Why locks cannot be had in this mode, if they cannot.
    pub fn refuses(&self, mode: Mode) -> Option<&'static str> {
        (self.is_redlock() && matches!(mode, Mode::Slots(_))).then_some(
            "a majority of nodes cannot count slots: of 5 nodes with 2 slots each, 3 holders have a majority; use one \
             server, or --slots 1",
        )
    }

    /// Refuses a name whose key would be one of dlock's own, or cannot be where it has to be in a cluster.
    ///
    /// # Errors
    /// It would be, or cannot.
    pub fn check_name(&self, name: &LockName) -> Result<(), UrlError> {
        let key = format!("{}{name}", self.prefix);
        if key.starts_with(RESERVED) {
            return Err(UrlError::new(format!(
                "its key would begin with {RESERVED}, which dlock keeps for itself"
            )));
        }
        self.recipe.check_key(&key)?;
        match self.topology {
            Topology::Cluster(_) => self.recipe.check_slot(&key),
            Topology::Server(_) | Topology::Sentinel { .. } | Topology::Redlock(_) => Ok(()),
        }
    }

    /// How other programs take the same locks.
    pub(super) fn recipe(&self) -> Recipe {
        self.recipe
    }

    pub(super) fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Each node of a Redlock as a server of its own; none for anything else.
    pub(super) fn nodes(&self) -> Vec<Location> {
        let Topology::Redlock(nodes) = &self.topology else { return Vec::new() };
        let node = |address: &Address| Location {
            topology: Topology::Server(address.clone()),
            display: address.to_string(),
            ..self.clone()
        };
        nodes.iter().map(node).collect()
    }

    /// Whether a majority of independent servers decides.
    pub fn is_redlock(&self) -> bool {
        matches!(self.topology, Topology::Redlock(_))
    }

    /// The keys of a lock.
    pub(super) fn keys(&self, name: &LockName) -> Keys {
        let index = match self.topology {
            Topology::Server(_) | Topology::Sentinel { .. } | Topology::Redlock(_) => Index::OfDatabase,
            Topology::Cluster(_) => Index::OfSlot,
        };
        Keys::new(&self.prefix, index, self.recipe, name)
    }

    /// Whether who waits may be connected to another server than the one that a lock is given back to, and be called there
    /// or soon again here.
    pub(super) fn has_several_servers(&self) -> bool {
        matches!(self.topology, Topology::Cluster(_) | Topology::Sentinel { .. })
    }

    /// Whether the servers are nodes of a Redis Cluster.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.topology, Topology::Cluster(_))
    }

    pub(super) fn database(&self) -> u32 {
        self.database
    }

    pub(super) fn username(&self) -> Option<&str> {
        self.username.as_deref()
    }

    /// Whether whoever asks has to say who he is, so that he may be allowed less than everything.
    pub(super) fn has_identity(&self) -> bool {
        self.username.is_some() || !matches!(self.password, Password::None)
    }

    /// Who we are to the sentinels, as it is now.
    ///
    /// # Errors
    /// The password file cannot be read.
    pub(super) fn sentinel_credentials(&self) -> Result<(Option<String>, Option<String>), StoreError> {
        Ok((self.sentinel_username.clone(), self.sentinel_password.read()?))
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// How many replicas have to confirm a lock that was granted.
    pub(super) fn wait_replicas(&self) -> u32 {
        self.wait_replicas
    }

    pub(super) fn resp3(&self) -> bool {
        self.resp3
    }

    pub(super) fn tls(&self) -> Option<&TlsSettings> {
        self.tls.as_ref()
    }

    /// The file that the password is in.
    pub(super) fn password_file(&self) -> Option<&Path> {
        self.password.file()
    }

    /// The password as it is now.
    ///
    /// # Errors
    /// The password file cannot be read.
    pub(super) fn password(&self) -> Result<Option<String>, StoreError> {
        self.password.read()
    }
}

const NO_DATABASES: &str = "a Redis Cluster has no databases: leave it out";

/// The servers that a URL names, and the database if its path names one.
fn servers(url: &Url) -> Result<(Topology, Option<u32>), UrlError> {
    let scheme = url.scheme.as_str();
    if scheme.ends_with("+unix") {
        return match (url.hosts.is_empty(), url.path.starts_with('/')) {
            (true, true) => Ok((Topology::Server(Address::Socket(PathBuf::from(&url.path))), None)),
            _ => Err(UrlError::new(format!(
                "{scheme}: takes the path of a socket, as {scheme}:///run/redis.sock"
            ))),
        };
    }
    let path = url.path.trim_matches('/');
    let missing = |example: &str| Err(UrlError::new(format!("{scheme}:// takes {example}")));
    let database = || if path.is_empty() { Ok(None) } else { database_of(path).map(Some) };
    match (scheme.split_once('-').map(|(_, kind)| kind), url.hosts.as_slice()) {
        (None, []) if scheme.starts_with("redlock") => {
            missing(&format!("independent masters, as {scheme}://h1,h2,h3,h4,h5"))
        }
        (None, hosts) if scheme.starts_with("redlock") => {
            Ok((Topology::Redlock(different(hosts.iter().map(Address::of))?), database()?))
        }
        (None, [host]) => Ok((Topology::Server(Address::of(host)), database()?)),
        (None, _) => missing(&format!("one host, as {scheme}://localhost:6379")),
        (Some("sentinel"), hosts) => {
            let (service, database) = path.split_once('/').unwrap_or((path, ""));
            if hosts.is_empty() || service.is_empty() {
                return missing(&format!(
                    "the sentinels and the name of the service, as {scheme}://h1,h2,h3/service"
                ));
            }
            let port = |host: &Host| Host { port: Some(host.port.unwrap_or(SENTINEL_PORT)), ..host.clone() };
            let database = if database.is_empty() { None } else { Some(database_of(database)?) };
            let (sentinels, service) = (different(hosts.iter().map(port))?, service.to_owned());
            Ok((Topology::Sentinel { sentinels, service }, database))
        }
        (Some(_), []) => missing(&format!("some of the cluster's nodes, as {scheme}://h1,h2,h3")),
        (Some(_), _) if !matches!(path, "" | "0") => Err(UrlError::new(NO_DATABASES)),
        (Some(_), hosts) => {
            let nodes = different(hosts.iter().map(Address::of))?;
            Ok((Topology::Cluster(nodes), None))
        }
    }
}

/// The same ones, none of which is named twice.
fn different<T: PartialEq + fmt::Display>(all: impl Iterator<Item = T>) -> Result<Vec<T>, UrlError> {
    let mut seen = Vec::new();
    for one in all {
        if seen.contains(&one) {
            return Err(UrlError::new(format!("{one} is named twice")));
        }
        seen.push(one);
    }
    Ok(seen)
}

fn list<T: fmt::Display>(all: &[T]) -> String {
    all.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}

fn database_of(text: &str) -> Result<u32, UrlError> {
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
    fn wrong_locations_are_refused() {
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

    #[test]
    fn reserved_keys_cannot_be_named() {
        let name = LockName::new("dlock#fencing:{a}").expect("good name");
        assert!(location("redis://h?prefix=").expect("good").check_name(&name).is_err());
        assert!(location("redis://h").expect("good").check_name(&name).is_ok());
    }

    #[test]
    fn in_a_cluster_a_name_has_to_have_the_slot_of_its_recipe() {
        let checked = |url: &str, name: &str| {
            location(url).expect("good").check_name(&LockName::new(name).expect("good name")).is_ok()
        };
        for (recipe, name, fits) in [
            ("plain", "a", true),
            ("plain", "a}b", true),
            ("redisson", "a", true),
            ("redisson", "a}b", false),
            ("python-redis-lock", "a", false),
            ("python-redis-lock", "{a}", true),
        ] {
            assert_eq!(checked(&format!("redis-cluster://h?recipe={recipe}"), name), fits, "{recipe} {name}");
            assert!(checked(&format!("redis://h?recipe={recipe}"), name), "{recipe} {name}");
        }
    }

    #[test]
    fn what_redisson_keeps_for_itself_is_no_name_of_its_locks() {
        let name = LockName::new("redisson_lock_token:{a}").expect("good name");
        let checked = |url: &str| location(url).expect("good").check_name(&name).is_ok();
        assert!(!checked("redis://h?prefix=&recipe=redisson"));
        assert!(checked("redis://h?recipe=redisson") && checked("redis://h?prefix="));
    }
}

//! The servers of a URL, and how they are related.

use std::path::PathBuf;

use crate::backend::net::{Address, distinct, list};
use crate::backend::url::{Host, Url, UrlError, encoded};

const DEFAULT_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
/// The error if a URL names a database of a cluster.
pub(super) const NO_DATABASES: &str = "a Redis Cluster has no databases: leave it out";

/// The servers, and how they are related.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One server.
    Server(Address),
    /// The master of a service that these sentinels monitor.
    Sentinel {
        sentinels: Vec<Host>,
        /// The name of the master and its replicas.
        service: String,
    },
    /// A Redis Cluster, with the nodes that are known initially.
    Cluster(Vec<Address>),
    /// Independent masters, a majority of which decides.
    Redlock(Vec<Address>),
}

impl Topology {
    /// Returns the authority and the path of a URL.
    pub(super) fn in_url(&self, database: u32) -> String {
        match self {
            Topology::Server(Address::Socket(path)) => encoded(&path.to_string_lossy()),
            Topology::Server(address) => format!("{address}/{database}"),
            Topology::Sentinel { sentinels, service } => {
                format!("{}/{}/{database}", list(sentinels), encoded(service))
            }
            Topology::Cluster(nodes) => list(nodes),
            Topology::Redlock(nodes) => format!("{}/{database}", list(nodes)),
        }
    }
}

/// Returns the servers of a URL, and the database if its path contains one.
pub(super) fn servers(url: &Url) -> Result<(Topology, Option<u32>), UrlError> {
    let scheme = url.scheme.as_str();
    if scheme.ends_with("+unix") {
        return match (url.hosts.is_empty(), url.path.starts_with('/')) {
            (true, true) => Ok((Topology::Server(Address::Socket(PathBuf::from(&url.path))), None)),
            _ => Err(UrlError::new(format!(
                "{scheme}: takes the path of a socket, such as {scheme}:///run/redis.sock"
            ))),
        };
    }
    let path = url.path.trim_matches('/');
    let address = |host: &Host| Address::of(host, DEFAULT_PORT);
    let missing = |example: &str| Err(UrlError::new(format!("{scheme}:// takes {example}")));
    let database = || if path.is_empty() { Ok(None) } else { database_of(path).map(Some) };
    match (scheme.split_once('-').map(|(_, kind)| kind), url.hosts.as_slice()) {
        (None, []) if scheme.starts_with("redlock") => {
            missing(&format!("independent masters, such as {scheme}://h1,h2,h3,h4,h5"))
        }
        (None, hosts) if scheme.starts_with("redlock") => {
            Ok((Topology::Redlock(distinct(hosts.iter().map(address))?), database()?))
        }
        (None, [host]) => Ok((Topology::Server(address(host)), database()?)),
        (None, _) => missing(&format!("one host, such as {scheme}://localhost:6379")),
        (Some("sentinel"), hosts) => {
            let (service, database) = path.split_once('/').unwrap_or((path, ""));
            if hosts.is_empty() || service.is_empty() {
                return missing(&format!(
                    "the sentinels and the name of the service, such as {scheme}://h1,h2,h3/service"
                ));
            }
            let port = |host: &Host| Host { port: Some(host.port.unwrap_or(SENTINEL_PORT)), ..host.clone() };
            let database = if database.is_empty() { None } else { Some(database_of(database)?) };
            let (sentinels, service) = (distinct(hosts.iter().map(port))?, service.to_owned());
            Ok((Topology::Sentinel { sentinels, service }, database))
        }
        (Some(_), []) => missing(&format!("some of the cluster's nodes, such as {scheme}://h1,h2,h3")),
        (Some(_), _) if !matches!(path, "" | "0") => Err(UrlError::new(NO_DATABASES)),
        (Some(_), hosts) => Ok((Topology::Cluster(distinct(hosts.iter().map(address))?), None)),
    }
}

/// Parses a database number; an empty text is the first database.
///
/// # Errors
/// The text is not a number, or is too large.
pub(super) fn database_of(text: &str) -> Result<u32, UrlError> {
    match text {
        "" => Ok(0),
        _ if text.bytes().all(|byte| byte.is_ascii_digit()) => {
            text.parse().map_err(|_| UrlError::new(format!("'{text}' is not a database number")))
        }
        _ => Err(UrlError::new(format!("'{text}' is not a database number"))),
    }
}

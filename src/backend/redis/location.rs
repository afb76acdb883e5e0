//! The location of Redis servers and how to connect to them, parsed from a URL without contacting a server.
//!
//! Used by the whole folder. What always holds: it opens nothing and keeps no connection.

mod topology;
mod url;

pub(super) use self::topology::Topology;
pub(super) use self::url::PASSWORD_VARIABLE;
use super::keys::Keys;
use super::recipe::Recipe;
use crate::backend::net::{Address, Credentials, Security};
use crate::lock::LockName;

/// Redis servers that store locks, and how to connect to them.
#[derive(Clone)]
pub struct Location {
    pub(super) topology: Topology,
    pub(super) database: u32,
    pub(super) security: Security,
    pub(super) sentinel_credentials: Credentials,
    /// How other programs take the same locks.
    pub(super) recipe: Recipe,
    pub(super) prefix: String,
    /// The number of replicas that have to confirm a granted lock.
    pub(super) wait_replicas: u32,
    /// The server is to speak RESP3.
    pub(super) resp3: bool,
    pub(super) display: String,
}

impl Location {
    /// Each node of a Redlock as a single server; empty for other topologies.
    pub(super) fn nodes(&self) -> Vec<Location> {
        let Topology::Redlock(nodes) = &self.topology else { return Vec::new() };
        let node = |address: &Address| Location {
            topology: Topology::Server(address.clone()),
            display: address.to_string(),
            ..self.clone()
        };
        nodes.iter().map(node).collect()
    }

    pub(super) fn is_redlock(&self) -> bool {
        matches!(self.topology, Topology::Redlock(_))
    }

    pub(super) fn keys(&self, name: &LockName) -> Keys {
        Keys::new(&self.prefix, self.is_cluster(), self.recipe, name)
    }

    /// Whether a waiter may be connected to another server than the one on which the lock is released, and be notified
    /// there, or soon reconnect to this one.
    pub(super) fn has_several_servers(&self) -> bool {
        matches!(self.topology, Topology::Cluster(_) | Topology::Sentinel { .. })
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.topology, Topology::Cluster(_))
    }

    /// The name under which the client authenticates.
    pub(super) fn username(&self) -> Option<&str> {
        self.security.credentials.username()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::backend::url::{Url, UrlError};

    pub fn location(text: &str) -> Result<Location, UrlError> {
        Location::from_url(&Url::parse(text)?, &|_| None)
    }
}

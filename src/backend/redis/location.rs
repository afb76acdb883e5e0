//! The location of Redis servers and how to connect to them, parsed from a URL without contacting a server.

mod topology;
mod url;

pub(super) use self::topology::Topology;
use self::url::PASSWORD_VARIABLE;
use super::keys::{Index, Keys, RESERVED};
use super::policy::policy;
use super::recipe::Recipe;
use crate::backend;
use crate::backend::admin::LockAdmin;
use crate::backend::location::{Demand, Policy};
use crate::backend::net::{Address, Credentials, Security};
use crate::backend::url::UrlError;
use crate::lock::{LockName, Mode};

/// Redis servers that store locks, and how to connect to them.
#[derive(Clone)]
pub struct Location {
    pub(super) topology: Topology,
    database: Option<u32>,
    pub(super) security: Security,
    pub(super) sentinel_credentials: Credentials,
    /// How other programs take the same locks.
    pub(super) recipe: Recipe,
    prefix: Option<String>,
    /// The number of replicas that have to confirm a granted lock.
    pub(super) wait_replicas: u32,
    /// The server is to speak RESP3.
    pub(super) resp3: bool,
    display: String,
}

impl backend::Location for Location {
    fn display(&self) -> &str {
        &self.display
    }

    fn check_login(&self) -> Result<(), UrlError> {
        self.security.check_login(Some(PASSWORD_VARIABLE))?;
        let sentinel = &self.sentinel_credentials;
        match sentinel.username().is_some() && !sentinel.has_password() {
            true => Err(UrlError::new("sentinel_username= without a password: add sentinel_password_file=")),
            false => Ok(()),
        }
    }

    /// Rejects a name whose key would be reserved for dlock, or would be in the wrong slot of a cluster.
    fn check_name(&self, name: &LockName) -> Result<(), UrlError> {
        let key = format!("{}{name}", self.prefix());
        if key.starts_with(RESERVED) {
            return Err(UrlError::new(format!(
                "its key would begin with {RESERVED}, which dlock keeps for itself"
            )));
        }
        self.recipe.check_key(&key)?;
        if self.is_cluster() { self.recipe.check_slot(&key) } else { Ok(()) }
    }

    fn keeps_leases(&self) -> bool {
        true
    }

    fn refuses(&self, demand: Demand) -> Option<&'static str> {
        (self.is_redlock() && matches!(demand, Demand::Mode(Mode::Slots(_)))).then_some(
            "a majority of nodes cannot count slots: of 5 nodes with 2 slots each, 3 holders have a majority; use one \
             server, or --slots 1",
        )
    }

    fn warning(&self) -> Option<String> {
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

    fn insecure(&self) -> Option<&'static str> {
        self.security.warning()
    }

    fn unverified(&self) -> Option<String> {
        let is_local = matches!(self.topology, Topology::Server(Address::Socket(_)));
        self.security.unverified().filter(|_| !is_local)
    }

    fn policy(&self) -> Policy {
        policy(self)
    }

    fn open(&self) -> Box<dyn LockAdmin> {
        super::open(self)
    }
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
        let index = match self.topology {
            Topology::Server(_) | Topology::Sentinel { .. } | Topology::Redlock(_) => Index::OfDatabase,
            Topology::Cluster(_) => Index::OfSlot,
        };
        Keys::new(self.prefix(), index, self.recipe, name)
    }

    /// Whether a waiter may be connected to another server than the one on which the lock is released, and be notified
    /// there, or soon reconnect to this one.
    pub(super) fn has_several_servers(&self) -> bool {
        matches!(self.topology, Topology::Cluster(_) | Topology::Sentinel { .. })
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.topology, Topology::Cluster(_))
    }

    pub(super) fn database(&self) -> u32 {
        self.database.unwrap_or(0)
    }

    pub(super) fn prefix(&self) -> &str {
        self.prefix.as_deref().unwrap_or(self.recipe.prefix())
    }

    /// The name under which the client authenticates.
    pub(super) fn username(&self) -> Option<&str> {
        self.security.credentials.username()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::backend::url::Url;

    pub fn location(text: &str) -> Result<Location, UrlError> {
        Location::from_url(&Url::parse(text)?, &|_| None)
    }
}

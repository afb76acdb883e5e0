//! Redis and Valkey: `SET key token NX PX ttl`, and renewal and release that compare the token, each as one script, so
//! that no step can be half done. Interoperates with every client that locks with a plain string key (redis-py,
//! redsync, node-redlock, ...): each excludes the other.
//!
//! What those clients do not know (the holder, the fencing counter) is stored in side keys under a reserved prefix.
//!
//! Named only by the registry. What always holds: each change of a lock is one run of a script, which compares the token first.

mod backend;
mod claim;
mod cluster;
mod connection;
mod doctor;
mod errors;
mod inspect;
mod keys;
mod location;
mod nodes;
mod policy;
mod recipe;
mod redirect;
mod redlock;
mod reply;
mod result;
mod rights;
mod route;
mod script;
mod sentinel;
mod slot;
mod store;

use self::keys::RESERVED;
pub use self::location::Location;
use self::location::{PASSWORD_VARIABLE, Topology};
use self::redlock::RedlockStore;
use self::store::RedisStore;
use super::admin::LockAdmin;
use super::location::{Demand, Policy};
use super::net::Address;
use super::url::UrlError;
use crate::lock::{LockName, Mode};

impl super::Location for Location {
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
        let key = format!("{}{name}", self.prefix);
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
                "{even} nodes tolerate the loss of {}, as {} do: add a node or remove one",
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
        policy::policy(self)
    }

    fn open(&self) -> Box<dyn LockAdmin> {
        match self.is_redlock() {
            true => Box::new(RedlockStore::new(self.clone())),
            false => Box::new(RedisStore::new(self.clone())),
        }
    }
}

//! Locks in ZooKeeper: each contender has an ephemeral node whose name ends with a number that the server adds, as in
//! the recipes of Curator and kazoo. The client with the first node holds the lock; each other client watches the last
//! node ahead of its own that excludes it. A node ends with the session of its client.
//!
//! Named only by the registry. What always holds: a hold ends with the session that made its node, and no other session
//! continues it.

mod acl;
mod client;
mod connection;
mod doctor;
mod errors;
mod heartbeats;
mod location;
mod message;
mod node;
mod policy;
mod recipe;
mod store;

pub use self::location::Location;
use self::location::{RESERVED, check_path};
use self::store::ZooKeeperStore;
use super::admin::LockAdmin;
use super::ledger::Contender;
use super::location::Policy;
use super::url::UrlError;
use crate::backend;
use crate::lock::LockName;

impl backend::Location for Location {
    fn display(&self) -> &str {
        &self.display
    }

    fn check_login(&self) -> Result<(), UrlError> {
        self.security.check_login(None)
    }

    fn check_name(&self, name: &LockName) -> Result<(), UrlError> {
        let path = self.paths(name).lock;
        if path[self.directory.len()..].starts_with(RESERVED) {
            return Err(UrlError::new(format!(
                "its node would begin with {RESERVED}, which dlock keeps for itself"
            )));
        }
        check_path(&path)
    }

    /// A lock ends with the session of its holder.
    fn keeps_leases(&self) -> bool {
        false
    }

    fn insecure(&self) -> Option<&'static str> {
        self.security.warning()
    }

    fn unverified(&self) -> Option<String> {
        self.security.unverified()
    }

    fn policy(&self) -> Policy {
        policy::policy(self)
    }

    fn open(&self) -> Box<dyn LockAdmin> {
        Box::new(Contender::new(ZooKeeperStore::new(self.clone())))
    }
}

//! etcd v3: the recipe of `etcdctl lock` and `client/v3/concurrency`, carried out by the client, so that dlock and those
//! clients exclude each other under the same prefix. Each contender has a key with a lease; the one that was created first
//! holds the lock.
//!
//! A reply to a keep-alive does not prove that the key is still there (etcd-io/etcd#14758): a heartbeat is the keep-alive
//! and a linearizable read after it, and the own key is watched as well.
//!
//! Named only by the registry. What always holds: a hold is confirmed by a read of its own key, never by a lease alone.

mod client;
mod connection;
mod doctor;
mod errors;
mod keys;
mod lease;
mod listing;
mod location;
mod messages;
mod policy;
mod store;
mod watch;

use self::keys::RESERVED;
pub use self::location::Location;
use self::location::USER_VARIABLE;
use self::store::EtcdStore;
use super::admin::LockAdmin;
use super::location::Policy;
use super::url::UrlError;
use crate::backend;
use crate::lock::LockName;

impl backend::Location for Location {
    fn display(&self) -> &str {
        &self.display
    }

    fn check_login(&self) -> Result<(), UrlError> {
        self.security.check_login(Some(USER_VARIABLE))
    }

    fn check_name(&self, name: &LockName) -> Result<(), UrlError> {
        match self.keys(name).lock().starts_with(RESERVED.as_bytes()) {
            true => {
                let text = format!("its key would begin with {RESERVED}, which dlock keeps for itself");
                Err(UrlError::new(text))
            }
            false => Ok(()),
        }
    }

    fn keeps_leases(&self) -> bool {
        true
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
        Box::new(EtcdStore::contender(self.clone()))
    }
}

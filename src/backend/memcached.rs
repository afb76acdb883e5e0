//! Memcached: the recipe of `add`, so that dlock and other clients that take a lock with `add` exclude each other under
//! the same key. The item is the hold, and its expiry is the lease: with no clock for anything else there is one
//! exclusive holder, and no queue, history or fencing token.
//!
//! A server forgets items when it is full or restarts. Its locks are for efficiency only.
//!
//! Named only by the registry. What always holds: an item that exists is changed only by its CAS value.

mod client;
mod doctor;
mod hold;
mod inspect;
mod location;
mod reply;
mod store;

pub use self::location::Location;
use self::location::{RESERVED, SHORTEST_LEASE};
use self::store::MemcachedStore;
use super::admin::LockAdmin;
use super::location::{Demand, Policy};
use super::url::UrlError;
use crate::backend;
use crate::lock::{LockName, Mode};

impl backend::Location for Location {
    fn display(&self) -> &str {
        &self.display
    }

    fn check_login(&self) -> Result<(), UrlError> {
        self.security.check_login(None)
    }

    fn check_name(&self, name: &LockName) -> Result<(), UrlError> {
        match format!("{}{name}", self.prefix).starts_with(RESERVED) {
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

    fn refuses(&self, demand: Demand) -> Option<&'static str> {
        match demand {
            Demand::Mode(Mode::Shared | Mode::Slots(_)) => {
                Some("a lock on Memcached has one holder: take it exclusively, or use another store")
            }
            Demand::Lease(lease) if lease < SHORTEST_LEASE => {
                Some("Memcached counts leases in whole seconds, and not exactly: at least 3s")
            }
            Demand::OncePer => Some("Memcached keeps nothing of a run that has ended: use another store"),
            Demand::FencingTokens => Some("Memcached has no fencing tokens: use another store"),
            Demand::List => Some("Memcached cannot list its locks: name each of them"),
            Demand::History => Some("Memcached keeps no history: use another store"),
            Demand::Mode(Mode::Exclusive) | Demand::Lease(_) => None,
        }
    }

    fn insecure(&self) -> Option<&'static str> {
        self.security.warning()
    }

    fn unverified(&self) -> Option<String> {
        self.security.unverified()
    }

    fn policy(&self) -> Policy {
        let note = "Memcached has no rights to grant: whoever can connect to it can remove every lock; let only these \
                    hosts connect, or require a password with memcached -Y FILE";
        Policy { commands: Vec::new(), note: note.to_owned() }
    }

    fn open(&self) -> Box<dyn LockAdmin> {
        Box::new(MemcachedStore::new(self.clone()))
    }
}

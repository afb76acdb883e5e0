//! Memcached: the ledger of a lock ([`document`](super::ledger::document)) is the value of an item, which exists as long as
//! the lock has a holder or a waiter. So dlock and other clients that take a lock with `add` under the same key exclude
//! each other.
//!
//! A server forgets items when it is full or restarts. Its locks are for efficiency only: fencing tokens could be granted
//! twice, and the last success of `--once-per` could be forgotten.
//!
//! The server's clock shows whole seconds. An item that exists for every client expires at a known time, so that its
//! remaining time tells the time to each of them; the expiry of a lock's item is the end of its last entry.
//!
//! Named only by the registry. What always holds: an item that exists is changed only by its CAS value.

mod client;
mod doctor;
mod history;
mod item;
mod location;
mod reply;
mod store;

pub use self::location::Location;
use self::location::{RESERVED, SHORTEST_LEASE};
use super::admin::LockAdmin;
use super::location::{Demand, Policy};
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
            Demand::Lease(lease) if lease < SHORTEST_LEASE => {
                Some("Memcached counts leases in whole seconds, and not exactly: at least 3s")
            }
            Demand::OncePer => Some("Memcached may forget that a run has succeeded: use another store"),
            Demand::FencingTokens => Some("Memcached has no fencing tokens: use another store"),
            Demand::List => Some("Memcached cannot list its locks: name each of them"),
            Demand::Mode(_) | Demand::History | Demand::Lease(_) => None,
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
        Box::new(store::contender(self.clone()))
    }
}

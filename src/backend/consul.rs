//! Consul: a lock is the key that `consul lock PREFIX` locks, held by a session, so that dlock and those programs exclude
//! each other. The key is the gate in front of a ledger ([`document`](super::ledger::document)) in another key beside it,
//! which is swapped by its index. Both change in one transaction.
//!
//! No request tells the time of the servers: replies have that of the agent, which usually runs on the host of its client,
//! in whole seconds. So it is the session alone, whose time the leader counts, that holds a lock; the time in the ledger
//! decides only on the queue and what is said of it.
//!
//! Named only by the registry. What always holds: a grant is stored together with the lock of its session, or not at all;
//! and the lock of a session is released before the session is ended.

mod agent;
mod clock;
mod doctor;
mod gate;
mod location;
mod occupants;
mod passage;
mod policy;
mod store;
mod watch;

pub use self::location::Location;
use self::location::SHORTEST_LEASE;
use super::admin::LockAdmin;
use super::location::{Demand, Policy};
use super::net::Address;
use super::url::UrlError;
use crate::backend;
use crate::lock::{LockName, Mode};

impl backend::Location for Location {
    fn display(&self) -> &str {
        &self.display
    }

    fn check_name(&self, _: &LockName) -> Result<(), UrlError> {
        Ok(())
    }

    fn keeps_leases(&self) -> bool {
        false
    }

    fn refuses(&self, demand: Demand) -> Option<&'static str> {
        match demand {
            Demand::Mode(Mode::Shared | Mode::Slots(_)) => {
                Some("a lock of Consul has one holder: take it exclusively, or use another store")
            }
            Demand::Lease(lease) if lease < SHORTEST_LEASE => Some("Consul's sessions last at least 10s"),
            _ => None,
        }
    }

    fn insecure(&self) -> Option<&'static str> {
        self.security.warning()
    }

    fn unverified(&self) -> Option<String> {
        self.security.unverified().filter(|_| !matches!(self.agent, Address::Socket(_)))
    }

    fn policy(&self) -> Policy {
        policy::policy(self)
    }

    fn open(&self) -> Box<dyn LockAdmin> {
        Box::new(store::contender(self.clone()))
    }
}

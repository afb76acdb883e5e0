//! Consul: a lock is the key that `consul lock PREFIX` locks, held by a session, so that dlock and those programs exclude
//! each other. The key is the gate in front of a ledger ([`document`](super::ledger::document)) in another key beside it,
//! which is swapped by its index. Both change in one transaction. With `recipe=semaphore`, the gate is a semaphore of
//! `consul lock -n`, whose other holders the ledger counts as if they were in it.
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
mod semaphore;
mod store;
mod watch;

pub use self::location::Location;
use self::location::{Recipe, SHORTEST_LEASE};
use super::admin::LockAdmin;
use super::location::{Demand, Policy};
use super::net::Address;
use super::net::http::Route;
use crate::backend;
use crate::lock::Mode;

impl backend::Location for Location {
    fn display(&self) -> &str {
        &self.display
    }

    fn keeps_leases(&self) -> bool {
        false
    }

    fn refuses(&self, demand: Demand) -> Option<&'static str> {
        match (demand, self.recipe) {
            (Demand::Mode(Mode::Shared), _) => {
                Some("Consul has no shared locks: take it exclusively, or use another store")
            }
            (Demand::Mode(Mode::Slots(_)), Recipe::Lock) => {
                Some("this lock of Consul has one holder: use recipe=semaphore, or take it exclusively")
            }
            (Demand::Lease(lease), _) if lease < SHORTEST_LEASE => {
                Some("Consul's sessions last at least 10s")
            }
            _ => None,
        }
    }

    fn insecure(&self) -> Option<&'static str> {
        self.route.security.warning()
    }

    fn unverified(&self) -> Option<String> {
        let Route { address, security, .. } = &self.route;
        security.unverified().filter(|_| !matches!(address, Address::Socket(_)))
    }

    fn policy(&self) -> Policy {
        policy::policy(self)
    }

    fn open(&self) -> Box<dyn LockAdmin> {
        Box::new(store::contender(self))
    }
}

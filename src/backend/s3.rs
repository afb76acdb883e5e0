//! S3, and stores that are compatible with it: a lock is one object, its ledger ([`document`](super::ledger::document)), which
//! is swapped by its entity tag in conditional writes. It is never deleted, so that fencing tokens grow for ever.
//!
//! The store's clock is that of its replies (`Date`), which shows whole seconds: all ends of leases are times by it, and are
//! later by [two seconds](super::ledger::polling::CLOCK_LAG). Nothing notifies a waiter: it reads the object now and then, and
//! writes it only to join and to leave.
//!
//! Named only by the registry. What always holds: every write has a condition, and a number of its own by which its author
//! recognises it if its reply was lost.

mod bucket;
mod doctor;
mod location;
mod policy;
mod store;

pub use self::location::Location;
use super::admin::LockAdmin;
use super::location::{Demand, Policy};
use super::net::aws::SHORTEST_LEASE;
use super::url::UrlError;
use crate::backend;

impl backend::Location for Location {
    fn display(&self) -> &str {
        &self.place.display
    }

    fn check_login(&self) -> Result<(), UrlError> {
        self.place.route.security.check_login(None)
    }

    fn keeps_leases(&self) -> bool {
        true
    }

    fn refuses(&self, demand: Demand) -> Option<&'static str> {
        match demand {
            Demand::Lease(lease) if lease < SHORTEST_LEASE => Some(
                "the clock of S3 shows whole seconds, and each renewal is a paid request: --ttl is at least 10s",
            ),
            _ => None,
        }
    }

    fn insecure(&self) -> Option<&'static str> {
        self.place.route.security.warning()
    }

    fn unverified(&self) -> Option<String> {
        self.place.unverified()
    }

    fn policy(&self) -> Policy {
        policy::policy(self)
    }

    fn open(&self) -> Box<dyn LockAdmin> {
        Box::new(store::contender(self))
    }
}

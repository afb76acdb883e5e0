//! DynamoDB, and stores that are compatible with it: a lock is one item of a table, its ledger
//! ([`document`](super::ledger::document)), which is swapped by its version in conditional writes. It is never deleted, so that
//! fencing tokens grow for ever.
//!
//! An item has no clock of the server. The store's clock is that of its replies (`Date`), which shows whole seconds; a write is
//! dated by the last reply and the time that has passed here since. All ends of leases are later by
//! [two seconds](super::ledger::polling::CLOCK_LAG). Nothing notifies a waiter: it reads the item now and then, and writes it
//! only to join and to leave.
//!
//! With `recipe=lock-client`, a lock is also an item of AWS's lock client for Java: the gate in front of the ledger, which is in
//! another item beside it.
//!
//! Named only by the registry. What always holds: every write has a condition, and a version of its own by which its author
//! recognises it if its reply was lost; every read is consistent.

mod doctor;
mod item;
mod location;
mod lock_client;
mod policy;
mod store;
mod table;

pub use self::location::Location;
use self::location::Recipe;
use super::admin::LockAdmin;
use super::location::{Demand, Policy};
use super::net::aws::SHORTEST_LEASE;
use super::url::UrlError;
use crate::backend;
use crate::lock::{LockName, Mode};

impl backend::Location for Location {
    fn display(&self) -> &str {
        &self.place.display
    }

    fn check_login(&self) -> Result<(), UrlError> {
        self.place.route.security.check_login(None)
    }

    fn check_name(&self, name: &LockName) -> Result<(), UrlError> {
        if self.recipe == Recipe::LockClient && !self.lock_key(name).ends_with(name.as_str()) {
            return Err(UrlError::new(
                "its key would be another one for AWS's lock client: with recipe=lock-client, a name has only ASCII characters, \
                 no % and no / (what is before a slash belongs into the path of the URL)",
            ));
        }
        Ok(())
    }

    fn keeps_leases(&self) -> bool {
        true
    }

    fn refuses(&self, demand: Demand) -> Option<&'static str> {
        match demand {
            Demand::Mode(Mode::Shared | Mode::Slots(_)) if self.recipe == Recipe::LockClient => {
                Some(lock_client::EXCLUSIVE)
            }
            Demand::Lease(lease) if lease < SHORTEST_LEASE => Some(
                "the clock of DynamoDB shows whole seconds, and each renewal is a paid request: --ttl is at least 10s",
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

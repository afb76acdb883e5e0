//! Kubernetes: a lock is one Lease (`coordination.k8s.io/v1`), whose fields are those of client-go's leader election, so that
//! dlock and a controller with a Lease of the same name exclude each other. An annotation of the same object has the ledger
//! ([`document`](super::ledger::document)), so that one conditional write changes both. A Lease is never deleted, so that fencing
//! tokens grow for ever.
//!
//! The clock is that of the API server's replies (`Date`), which shows whole seconds: all ends of dlock's leases are times by it,
//! and are later by [two seconds](super::ledger::polling::CLOCK_LAG). The lease of another program counts from the server's time of
//! its last renewal (`metadata.managedFields`), of the same clock. A waiter watches the Lease, and writes it only to join and to
//! leave.
//!
//! Named only by the registry. What always holds: every write has a condition, and a number of its own by which its author
//! recognises it if its reply was lost.

mod api;
mod config;
mod doctor;
mod lease;
mod location;
mod policy;
mod store;
mod watch;

use std::time::Duration;

pub use self::location::Location;
use super::admin::LockAdmin;
use super::location::{Demand, Policy};
use crate::backend;

/// The server's clock shows whole seconds, and so does the lease that other programs see.
const SHORTEST_LEASE: Duration = Duration::from_secs(5);

impl backend::Location for Location {
    fn display(&self) -> &str {
        &self.display
    }

    fn keeps_leases(&self) -> bool {
        true
    }

    fn refuses(&self, demand: Demand) -> Option<&'static str> {
        match demand {
            Demand::Lease(lease) if lease < SHORTEST_LEASE => {
                Some("the clock of Kubernetes shows whole seconds: --ttl is at least 5s")
            }
            _ => None,
        }
    }

    fn unverified(&self) -> Option<String> {
        let cluster = self.cluster.as_ref().ok()?;
        // A configuration that says not to verify the server is refused.
        cluster.route.security.tls.is_none().then(|| "use a context whose server is https://".to_owned())
    }

    fn policy(&self) -> Policy {
        policy::policy(self)
    }

    fn open(&self) -> Box<dyn LockAdmin> {
        Box::new(store::contender(self))
    }
}

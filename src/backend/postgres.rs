//! PostgreSQL: a table with one row per lock, which every change compares and swaps by its version. Leases end by the
//! clock of the server.
//!
//! What is not contended takes one statement. A waiter is notified with LISTEN and NOTIFY on the only connection that a
//! run has; behind a pooler, which takes notifications for itself, it polls. No statement on the table needs a session:
//! nothing is prepared, and no transaction lasts longer than a statement.

mod advisory;
mod authentication;
mod cancellation;
mod client;
mod connection;
mod doctor;
mod encryption;
mod errors;
mod greeting;
mod inspection;
mod key;
mod location;
mod meter;
mod options;
mod pass_file;
mod policy;
mod pooler;
mod recipe;
mod shedlock;
mod statements;
mod store;

use self::encryption::SslMode;
pub use self::location::Location;
use self::recipe::Recipe;
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

    fn check_name(&self, name: &LockName) -> Result<(), UrlError> {
        match &self.recipe {
            Recipe::ShedLock(_) if name.as_str().chars().count() > backend::shedlock::LONGEST_NAME => {
                Err(UrlError::new(backend::shedlock::TOO_LONG))
            }
            recipe => recipe.session().map_or(Ok(()), |rule| rule.key(name).map(drop)),
        }
    }

    fn refuses(&self, demand: Demand) -> Option<&'static str> {
        match (&self.recipe, demand) {
            (Recipe::ShedLock(_), Demand::Mode(Mode::Shared | Mode::Slots(_))) => {
                Some(backend::shedlock::EXCLUSIVE)
            }
            _ => None,
        }
    }

    fn keeps_leases(&self) -> bool {
        self.recipe.session().is_none()
    }

    fn insecure(&self) -> Option<&'static str> {
        // With `prefer`, which is the default, the user has not asked for TLS.
        self.security.warning().filter(|_| self.mode != SslMode::Prefer)
    }

    fn unverified(&self) -> Option<String> {
        let is_local = self.servers.iter().all(|server| matches!(server, Address::Socket(_)));
        let needed = self.security.unverified().filter(|_| !is_local);
        needed.map(|_| "use sslmode=verify-full, without insecure".to_owned())
    }

    fn policy(&self) -> Policy {
        policy::policy(self)
    }

    fn open(&self) -> Box<dyn LockAdmin> {
        Box::new(store::contender(self.clone()))
    }
}

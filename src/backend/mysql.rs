//! MySQL and MariaDB: a table with a row for each lock, which is its ledger ([`document`](super::ledger::document)).
//!
//! The protocol is spoken here: over the connections of [`net`](super::net), whose TLS, addresses and limits are those of
//! every other store. It is the text form of it, in which a request has several statements.
//!
//! With a recipe, a lock of another kind is the gate (`get_lock.rs`, `shedlock.rs`) in front of the rows.

mod authentication;
mod client;
mod connection;
mod doctor;
mod errors;
mod get_lock;
mod location;
mod login;
mod option_file;
mod packet;
mod policy;
mod proxy;
mod recipe;
mod reply;
mod shedlock;
mod stand_in;
mod store;
mod table;

use self::location::Encryption;
pub use self::location::Location;
use self::recipe::{GetLock, Recipe};
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
        if let Recipe::ShedLock(_) = self.recipe
            && self.prefix.chars().chain(name.as_str().chars()).count() > backend::shedlock::LONGEST_NAME
        {
            return Err(UrlError::new(backend::shedlock::TOO_LONG));
        }
        match self.key(name).len() > table::LONGEST_NAME {
            true => {
                Err(UrlError::new(format!("with the prefix it is longer than {} bytes", table::LONGEST_NAME)))
            }
            false => Ok(()),
        }
    }

    fn keeps_leases(&self) -> bool {
        self.recipe != Recipe::Session(GetLock)
    }

    fn refuses(&self, demand: Demand) -> Option<&'static str> {
        match (&self.recipe, demand) {
            (Recipe::Session(GetLock), Demand::Mode(Mode::Shared | Mode::Slots(_))) => {
                Some("GET_LOCK has one holder: take the lock exclusively, or use recipe=table")
            }
            (Recipe::ShedLock(_), Demand::Mode(Mode::Shared | Mode::Slots(_))) => {
                Some(backend::shedlock::EXCLUSIVE)
            }
            _ => None,
        }
    }

    fn insecure(&self) -> Option<&'static str> {
        self.security.warning().filter(|_| self.is_insecure)
    }

    fn unverified(&self) -> Option<String> {
        let is_verified =
            self.encryption == Encryption::Verified || matches!(self.address, Address::Socket(_));
        (!is_verified).then(|| "use ssl_mode=verify_ca with ca_file=, or ssl_mode=verify_identity".to_owned())
    }

    fn exposure(&self) -> Option<&'static str> {
        self.security.take_exposure().then_some(
            "the server asked for the password itself, and got it over TLS that is not verified, so that it may be anyone: \
             use ssl_mode=verify_ca with ca_file=",
        )
    }

    fn policy(&self) -> Policy {
        policy::policy(self)
    }

    fn open(&self) -> Box<dyn LockAdmin> {
        Box::new(store::contender(self.clone()))
    }
}

//! What a parsed backend URL can do without contacting the store.

use std::time::Duration;

use super::admin::LockAdmin;
use super::url::UrlError;
use crate::lock::{LockName, Mode};

/// A demand that not every store can meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// To hold a lock in this mode.
    Mode(Mode),
    /// A lease of this length.
    Lease(Duration),
    /// `--once-per`
    OncePer,
    /// To know the last fencing token.
    FencingTokens,
    /// The list of the locks that are in use.
    List,
    /// The history of a lock.
    History,
}

/// A parsed and checked backend URL.
pub trait Location {
    /// Returns the store, without secrets, as shown in messages and in `DLOCK_HELD`. It can be parsed again.
    fn display(&self) -> &str;

    /// Checks that the user has what is needed to log in.
    ///
    /// # Errors
    /// There is a username without a password, and the store needs both.
    fn check_login(&self) -> Result<(), UrlError> {
        Ok(())
    }

    /// Checks that the store can hold a lock of this name.
    ///
    /// # Errors
    /// Its key would be one of dlock's own, or cannot be a key of this store.
    fn check_name(&self, _name: &LockName) -> Result<(), UrlError> {
        Ok(())
    }

    /// Returns whether the store's locks have leases, rather than ending with a process.
    fn keeps_leases(&self) -> bool;

    /// Returns whether the locks are for this host only.
    fn is_on_this_host(&self) -> bool {
        false
    }

    /// Returns why the store cannot meet this demand; `None` if it can.
    fn refuses(&self, _demand: Demand) -> Option<&'static str> {
        None
    }

    /// Returns a warning about the location of the locks, if there is one.
    fn warning(&self) -> Option<String> {
        None
    }

    /// Returns a warning about a connection without authentication of the server, if there is one.
    fn insecure(&self) -> Option<&'static str> {
        None
    }

    /// Returns what makes the servers prove their identity before anything is sent to them; `None` if something does, or if
    /// nothing leaves this host.
    fn unverified(&self) -> Option<String>;

    /// Returns a warning that a password was sent to a server that has not proved its identity; `None` after that.
    fn exposure(&self) -> Option<&'static str> {
        None
    }

    /// Returns the commands that give a user exactly the rights that dlock needs.
    fn policy(&self) -> Policy;

    /// Returns the store.
    fn open(&self) -> Box<dyn LockAdmin>;
}

/// The commands that give a user the rights that dlock needs. They contain no secrets but placeholders for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// One per line, to be pasted.
    pub commands: Vec<String>,
    /// Where to run them, and what to fill in.
    pub note: String,
}

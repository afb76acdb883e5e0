//! The sessions of a client by which it holds locks.

use std::time::Duration;

use super::agent::identity;
use crate::clock::Moment;
use crate::lock::LockName;

/// A session that holds a lock, or is about to.
pub(super) struct Passage {
    /// The claim that it is for.
    pub token: String,
    /// The lock.
    pub name: LockName,
    /// The session, which has nothing but this lock.
    pub session: String,
    /// How long it lasts after a renewal at least.
    pub ttl: Duration,
    /// When it was renewed last.
    pub renewed: Moment,
    /// What is known of its lock.
    pub state: State,
    /// The ledger, as it was read or stored last, has its hold.
    pub is_recorded: bool,
}

/// What is known of the lock of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It is locked together with the storing of the grant. The reply to that may have been lost.
    Intended,
    /// The session holds it, until it is unlocked together with the storing of the end of the hold.
    Held,
    /// The session, or the lock, has ended.
    Lost,
}

impl Passage {
    /// Returns what the ledger records of it.
    pub fn identity(&self) -> Option<(u64, u64)> {
        identity(&self.session)
    }

    /// Notes which session holds the lock, and whether the ledger has the hold.
    pub fn observe(&mut self, holder: Option<&str>, is_recorded: bool) {
        self.is_recorded = is_recorded;
        let is_its = holder == Some(self.session.as_str());
        self.state = match (self.state, is_its) {
            (State::Intended, true) => State::Held,
            (State::Held, false) => State::Lost,
            (state, _) => state,
        };
    }
}

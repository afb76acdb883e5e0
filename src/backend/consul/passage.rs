//! The sessions of a client by which it holds locks.

use std::time::Duration;

use serde_json::Value;

use super::agent::identity;
use super::gate::Gate;
use super::location::Location;
use crate::backend::ledger::{HolderEntry, Ledger};
use crate::clock::Moment;
use crate::lock::{LockName, Mode};

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

    /// Notes which sessions hold the lock, and whether the ledger has the hold.
    pub fn observe(&mut self, holders: &[String], is_recorded: bool) {
        self.is_recorded = is_recorded;
        let is_its = holders.contains(&self.session);
        self.state = match (self.state, is_its) {
            (State::Intended, true) => State::Held,
            (State::Held, false) => State::Lost,
            (state, _) => state,
        };
    }

    /// Returns the mode in which its session is about to take the lock, when this ledger is stored.
    fn intended(&self, ledger: &Ledger) -> Option<Mode> {
        let is_granted = |holder: &&HolderEntry| holder.gate == self.identity();
        let granted = ledger.holders.iter().find(is_granted).filter(|_| self.state == State::Intended);
        granted.map(|holder| holder.mode)
    }

    /// Returns whether others have taken the lock since it was decided that its session takes it.
    pub fn is_kept_out(&self, ledger: &Ledger, gate: &Gate) -> bool {
        self.intended(ledger).is_some_and(|mode| !gate.admits(mode))
    }

    /// Returns what its session does when this ledger is stored, and who holds the lock then; `None` for nothing.
    pub fn step(&self, location: &Location, ledger: &Ledger, gate: &Gate) -> Option<(Vec<Value>, Gate)> {
        match self.state {
            State::Intended => {
                let mode = self.intended(ledger)?;
                Some(gate.taken(location, &self.name, &self.session, mode))
            }
            State::Held if ledger.holders.iter().all(|holder| holder.token != self.token) => {
                Some(gate.left(location, &self.name, &self.session))
            }
            _ => None,
        }
    }
}

//! The sessions of a client by which it holds locks.

use std::time::Duration;

use serde_json::Value;

use super::agent::{Agent, identity};
use super::gate::Gate;
use super::location::Location;
use crate::backend::StoreError;
use crate::backend::ledger::{HolderEntry, Ledger, Now, Purpose};
use crate::clock::Moment;
use crate::lock::{LockName, Mode};

/// How long a lock that is delayed after the end of its session is not tried again: each attempt takes a new session.
const REFUSED: Duration = Duration::from_secs(1);

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

    /// Returns whether a run inside the hold relies on its session, as after a pause of this client, which it has taken for dead.
    pub fn is_adopted(&self, ledger: &Ledger, now: Now) -> bool {
        let is_another = |holder: &HolderEntry| holder.token != self.token && holder.counts(&now);
        ledger.holders.iter().any(|holder| holder.gate == self.identity() && is_another(holder))
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
    pub fn step(
        &self,
        location: &Location,
        ledger: &Ledger,
        gate: &Gate,
        now: Now,
    ) -> Option<(Vec<Value>, Gate)> {
        match self.state {
            State::Intended => {
                let mode = self.intended(ledger)?;
                Some(gate.taken(location, &self.name, &self.session, mode))
            }
            State::Held if !holds(ledger, &self.token) && !self.is_adopted(ledger, now) => {
                Some(gate.left(location, &self.name, &self.session))
            }
            _ => None,
        }
    }
}

/// The sessions of a client.
#[derive(Default)]
pub(super) struct Sessions {
    passages: Vec<Passage>,
    /// Consul has not let the last session of this client have a lock that nobody holds; no other one is made until then.
    pub delayed_until: Option<Moment>,
}

impl Sessions {
    /// Returns that of the claim with this token.
    pub fn of(&self, token: &str) -> Option<&Passage> {
        self.passages.iter().find(|passage| passage.token == token)
    }

    fn of_mut(&mut self, token: &str) -> Option<&mut Passage> {
        self.passages.iter_mut().find(|passage| passage.token == token)
    }

    /// Returns one that holds this lock.
    pub fn holding(&self, name: &LockName) -> Option<&Passage> {
        self.passages.iter().find(|passage| passage.name == *name && passage.state == State::Held)
    }

    /// Returns the sessions that hold this lock, or are about to.
    pub fn own(&self, name: &LockName) -> Vec<&str> {
        let own = self.passages.iter().filter(|one| one.name == *name && one.state != State::Lost);
        own.map(|passage| passage.session.as_str()).collect()
    }

    /// Adds one, in the place of an earlier one of its claim.
    pub fn add(&mut self, passage: Passage) {
        self.passages.retain(|earlier| earlier.token != passage.token);
        self.passages.push(passage);
    }

    /// Renews that of a claim. A release may be repeated until a minimum hold time is over.
    ///
    /// # Errors
    /// As of [`Agent::renew_session`].
    pub async fn renew(&mut self, agent: &mut Agent, purpose: &Purpose) -> Result<(), StoreError> {
        let token = purpose.claim().map(|claim| claim.token.reveal()).unwrap_or_default();
        let Some(passage) = self.of_mut(token) else { return Ok(()) };
        let sent = Moment::now();
        let is_recent = matches!(purpose, Purpose::Release(_)) && sent - passage.renewed < passage.ttl / 6;
        if is_recent || !matches!(passage.state, State::Held | State::Intended) {
            return Ok(());
        }
        match (agent.renew_session(&passage.session).await?, passage.state) {
            (true, _) => passage.renewed = sent,
            (false, State::Held) => passage.state = State::Lost,
            (false, _) => self.passages.retain(|passage| passage.token != token),
        }
        Ok(())
    }

    /// Notes which sessions hold this lock, and what its ledger has.
    pub fn observe(&mut self, name: &LockName, gate: &Gate, ledger: &Ledger) {
        for passage in self.passages.iter_mut().filter(|passage| passage.name == *name) {
            passage.is_recorded = holds(ledger, &passage.token);
            passage.state = match (passage.state, gate.sessions.contains(&passage.session)) {
                (State::Intended, true) => State::Held,
                (State::Held, false) => State::Lost,
                (state, _) => state,
            };
        }
    }

    /// Notes that a ledger is stored, with the hold of the claim with this token or without it, and whether its session has taken the
    /// lock, or left it, in the same step. Returns whether it has left it.
    pub fn note_stored(&mut self, token: &str, is_kept: bool, is_swapped: bool) -> bool {
        let Some(passage) = self.of_mut(token) else { return false };
        if is_kept {
            passage.is_recorded = true;
            if is_swapped {
                passage.state = State::Held;
            }
        }
        is_swapped && !is_kept
    }

    /// Notes that the session of this claim could not lock a key, or has lost it. Returns whether it never had it: it is to be
    /// ended.
    pub fn note_refusal(&mut self, token: &str) -> bool {
        let Some(passage) = self.of_mut(token) else { return false };
        let is_refused = passage.state == State::Intended;
        passage.state = State::Lost;
        if is_refused {
            self.delayed_until = Some(Moment::now() + REFUSED);
        }
        is_refused
    }

    /// Returns whether a session is not made yet.
    pub fn is_delayed(&self) -> bool {
        self.delayed_until.is_some_and(|until| Moment::now() < until)
    }

    /// Ends these. If that fails, or if the future is dropped, they end by themselves.
    pub async fn end(&mut self, agent: &mut Agent, is_meant: impl Fn(&Passage) -> bool) {
        let ended: Vec<_> = self.passages.extract_if(.., |passage| is_meant(passage)).collect();
        for passage in ended {
            let _ = agent.destroy_session(&passage.session).await;
        }
    }
}

/// Returns whether a ledger has the hold of the claim with this token.
pub(super) fn holds(ledger: &Ledger, token: &str) -> bool {
    ledger.holders.iter().any(|holder| holder.token == token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_another_process_of_the_hold_uses_keeps_its_lock() {
        let session = "00000000-0000-0000-0000-000000000001".to_owned();
        let passage = Passage {
            token: "outer".to_owned(),
            name: LockName::new("x").expect("a name"),
            session: session.clone(),
            ttl: Duration::from_secs(10),
            renewed: Moment::now(),
            state: State::Held,
            is_recorded: false,
        };
        let now = Now { clock: Duration::from_secs(1), wall: 1_000_000 };
        let mut ledger = Ledger::of_foreign_holder(0);
        assert!(!passage.is_adopted(&ledger, now), "another hold has another session");
        ledger.holders[0].gate = identity(&session);
        assert!(passage.is_adopted(&ledger, now));
        ledger.holders[0].lease_ends = Some(now.clock);
        assert!(!passage.is_adopted(&ledger, now), "it has ended");
        (ledger.holders[0].lease_ends, ledger.holders[0].token) = (None, "outer".to_owned());
        assert!(!passage.is_adopted(&ledger, now), "the hold is its own");
    }
}

//! What only a store can observe about a ledger.

use std::time::Duration;

use super::value::{HolderEntry, Ledger, WaiterEntry};
use crate::backend::{CLAIM_WITHIN, Loss};
use crate::lock::{Claim, FencingToken, Freeze, Grant, Holder, Mode};

/// The time, by the clocks of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// For deadlines: the time since an arbitrary moment, the same for every client of the store.
    pub clock: Duration,
    /// For ages, and as the seed of counters: microseconds since 1970.
    pub wall: u64,
}

/// How long an entry lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// Until its lease ends.
    OfLease,
    /// As long as a descriptor or session of its owner, which has a lease of this length, if any.
    OfOwner(Option<Duration>),
}

/// How the turn of a waiter comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turns {
    /// It is called by another client and then has [`CLAIM_WITHIN`](crate::backend::CLAIM_WITHIN) to claim the lock.
    Called,
    /// From the order alone: no client can change the entry of another.
    ByOrder,
}

/// What ends the passage of a holder that does not leave the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateLifetime {
    /// The end of the session that has passed it: no other process can keep the gate.
    Session,
    /// A lease of its own, which can be set to a minimum hold time when its holder ends.
    Lease,
}

/// How holders pass the gate: a lock outside of the ledger that foreign programs take too, such as `flock(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateMode {
    /// Alone.
    Exclusive,
    /// Together with other holders, so that they keep out an exclusive foreign program together.
    Shared,
}

impl GateMode {
    /// Returns how holders of this mode keep the gate.
    pub fn of(mode: Mode) -> GateMode {
        match mode {
            Mode::Exclusive => GateMode::Exclusive,
            Mode::Shared | Mode::Slots(_) => GateMode::Shared,
        }
    }
}

/// Whether this process has passed the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// It has not tried.
    Untried,
    /// It has, and this is the identity of the gate, if it may be replaced.
    Passed(Option<(u64, u64)>),
    /// A foreign program holds it.
    Closed,
}

/// The observations of a store at one moment. Each method gives the same answer while one decision is made. Liveness is
/// asked for one entry at a time, because there may be thousands, and most decisions concern the first few.
pub trait Observed {
    /// Returns the time.
    fn now(&self) -> Now;

    /// Returns when what lasts for this long from now has certainly lasted, on the clock of [`Now::clock`]. That of a
    /// store with a coarse clock is later than the time that the clock shows.
    fn end_of(&self, span: Duration) -> Duration {
        self.now().clock + span
    }

    /// Returns how long entries live.
    fn lifetime(&self) -> Lifetime {
        Lifetime::OfLease
    }

    /// Returns the length of the lease that the store gives for a request of this length.
    fn lease(&self, requested: Duration) -> Duration {
        requested
    }

    /// Returns how the turn of a waiter comes.
    fn turns(&self) -> Turns {
        Turns::Called
    }

    /// Returns whether the owner of a holder's entry is known to be dead.
    fn is_holder_dead(&self, _: &HolderEntry) -> bool {
        false
    }

    /// Returns whether the owner of a waiter's entry is known to be dead.
    fn is_waiter_dead(&self, _: &WaiterEntry) -> bool {
        false
    }

    /// Returns how long the first waiter has to claim a free lock, if waiters look at the ledger only now and then, and do not
    /// repeat their claims.
    fn polled(&self) -> Option<Duration> {
        None
    }

    /// Returns how long the first waiter has to claim a free lock.
    fn claim_within(&self) -> Duration {
        self.polled().unwrap_or(CLAIM_WITHIN)
    }

    /// Returns how long the entry of a waiter lives that does not repeat its claim; `None` if it stays until its turn has
    /// passed, or lives as long as its owner.
    fn waiter_lease(&self, ttl: Duration) -> Option<Duration> {
        match self.lifetime() {
            _ if self.polled().is_some() => None,
            // A heartbeat a lease may be late by half of one.
            Lifetime::OfLease if self.turns() == Turns::Called => Some(ttl * 3 / 2),
            Lifetime::OfLease => Some(ttl),
            Lifetime::OfOwner(_) => None,
        }
    }

    /// Returns whether this process has passed the gate; a store without a gate lets everyone pass.
    fn gate(&self) -> Gate {
        Gate::Passed(None)
    }

    /// Returns what ends the passage of a holder, if there is a gate in front of a ledger whose entries have leases.
    fn gate_lifetime(&self) -> Option<GateLifetime> {
        None
    }

    /// Returns whether the gate is open to a holder of this mode. May disturb foreign programs.
    fn admits(&self, _: Mode) -> bool {
        true
    }

    /// Returns whether the gate that this holder passed is not the gate any more.
    fn is_gate_replaced(&self, _: &HolderEntry) -> bool {
        false
    }

    /// Returns the foreign holder in the gate, without disturbing it.
    fn foreign(&self) -> Option<(Mode, Holder)> {
        None
    }

    /// Returns what the store knows of a foreign holder in the ledger.
    fn hint(&self, _: &HolderEntry) -> Option<String> {
        None
    }

    /// Returns the hold that this process can prove even if the ledger has lost it.
    fn proven_hold(&self) -> Option<&HolderEntry> {
        None
    }

    /// Returns how the hold of this process was lost, if the store knows without the ledger.
    fn loss(&self) -> Option<Loss> {
        None
    }

    /// Whether an earlier decision of this change was not stored, for all that the reply tells: it may have been, if something on
    /// the way has sent the request twice.
    fn was_refused(&self) -> bool {
        false
    }

    /// Returns why other clients cannot see the ledger, if so: the lock is that of its gate alone.
    fn lacks_ledger(&self) -> Option<String> {
        None
    }

    /// Returns whether no further entry can be stored.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Returns whether dead waiters must be removed before another one joins.
    fn is_nearly_full(&self) -> bool {
        false
    }

    /// Returns the least fencing token of a new grant.
    fn least_fencing_token(&self) -> u64 {
        self.now().wall
    }
}

/// Returns whether a hold ends with the session that has passed the gate.
pub(super) fn is_in_session(observed: &dyn Observed) -> bool {
    observed.gate_lifetime() == Some(GateLifetime::Session)
}

impl Ledger {
    /// Returns a new ticket: never one that was used before, not even in a ledger that has been deleted since.
    pub(super) fn next_ticket(&mut self, now: Now) -> u64 {
        self.ticket = now.wall.max(self.ticket.saturating_add(1));
        self.ticket
    }

    /// Returns the freeze of the lock, unless it has ended, and how long it still lasts.
    pub fn live_freeze(&self, now: Now) -> Option<(&Freeze, Duration)> {
        let freeze = self.freeze()?;
        Some((freeze, freeze.rest(now.wall / 1000)?))
    }

    /// Returns how a new holder passes the gate. Slots are counted in the ledger: if no holder is recorded, or some may
    /// not be, the first one passes it exclusively before it shares it.
    pub(super) fn gate_for(&self, mode: Mode) -> GateMode {
        match mode {
            Mode::Slots(_) if self.holders.is_empty() || self.incomplete => GateMode::Exclusive,
            mode => GateMode::of(mode),
        }
    }
}

impl HolderEntry {
    /// Returns whether the lock is kept for the holder although its owner is gone.
    pub(super) fn is_kept(&self, now: Now) -> bool {
        self.kept_until.is_some_and(|until| now.clock < until)
    }

    /// Returns whether only the lease keeps the lock: the command has ended.
    pub(super) fn is_kept_by_lease(&self) -> bool {
        self.ended_at.is_some() && self.lease_ends.is_some()
    }

    /// Returns whether its lease has ended, and the lock is not kept for it either.
    pub(super) fn has_expired(&self, now: Now) -> bool {
        self.lease_ends.is_some_and(|ends| ends <= now.clock) && !self.is_kept(now)
    }

    /// Returns whether the owner is alive.
    pub(super) fn has_owner(&self, observed: &dyn Observed) -> bool {
        self.lease_ends.is_none_or(|ends| observed.now().clock < ends) && !observed.is_holder_dead(self)
    }

    /// Returns whether its session still has the gate. Then nobody else holds the lock, even if the lease seems to have
    /// expired, as when the clock was set forward. A nested hold ends with its lease.
    pub(super) fn is_in_gate(&self, observed: &dyn Observed) -> bool {
        is_in_session(observed)
            && self.family == self.ticket
            && self.gate.is_some()
            && !observed.is_gate_replaced(self)
    }

    /// Returns whether the entry still counts: its owner is alive, or the lock is kept for it.
    pub fn counts(&self, observed: &dyn Observed) -> bool {
        self.is_kept(observed.now()) || self.has_owner(observed)
    }

    /// Extends the lease to its full length from now, or to `rest` if that is longer. Returns its full length: a holder
    /// relies on no more, however long the lock is kept.
    pub(super) fn extend(
        &mut self,
        claim: &Claim,
        rest: Duration,
        observed: &dyn Observed,
    ) -> Option<Duration> {
        match observed.lifetime() {
            Lifetime::OfLease => {
                // A session lasts as long as was requested when it passed the gate. A run nested in a hold keeps to the lease of
                // its gate.
                let is_inside = self.ticket != self.family && observed.gate_lifetime().is_some();
                let in_session = is_in_session(observed);
                let granted = self.lease.filter(|_| in_session || is_inside);
                let ttl = granted.unwrap_or(claim.ttl);
                // With the session of its owner the gate ends, whatever the minimum hold time.
                self.lease_ends = Some(observed.end_of(if in_session { ttl } else { ttl.max(rest) }));
                self.lease = Some(ttl);
                Some(observed.lease(ttl))
            }
            Lifetime::OfOwner(lease) => lease,
        }
    }

    /// Returns the reply to the claim that the entry was written for.
    pub(super) fn grant(&self, lease: Option<Duration>) -> Grant {
        Grant { fencing: FencingToken::new(self.fencing_token), lease, slot: self.slot, undated: None }
    }
}

impl WaiterEntry {
    /// Returns whether the owner is alive.
    pub(super) fn has_owner(&self, observed: &dyn Observed) -> bool {
        self.lease_ends.is_none_or(|ends| observed.now().clock < ends) && !observed.is_waiter_dead(self)
    }
}

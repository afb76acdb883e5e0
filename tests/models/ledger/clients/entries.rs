//! The entries shape: each client writes an entry of its own, and the store orders them.

use std::time::Duration;

use dlock::backend::ledger::entries::{self, Entry, Listing, METADATA, Plan, Terms, Write, Written};
use dlock::backend::ledger::{Decision, Ledger, Lifetime, Now, Observed, Purpose, Watch};

use super::{Clients, State};

/// A store without entries.
pub(super) fn empty() -> Listing {
    let metadata = Entry { order: METADATA, version: 0, lease_ends: None, value: Ledger::default() };
    let now = Now { clock: Duration::ZERO, wall: 0 };
    Listing { now, revision: 1, lease: None, metadata, unreadable: None, entries: Vec::new() }
}

/// Whether what is watched has happened.
pub(super) fn has_happened(watch: &Watch, listing: &Listing) -> bool {
    let entry = |order: &u64| listing.entries.iter().find(|entry| entry.order == *order);
    match watch {
        Watch::Waiter(order) => entry(order).is_none_or(|entry| entry.value.waiters.is_empty()),
        Watch::Entry(order) | Watch::Holder(order) => entry(order).is_none(),
        Watch::Freeze => listing.metadata.value.freeze().is_none(),
        Watch::Gate(_) => unreachable!("there is no gate"),
    }
}

/// What the store does with one write.
fn write(listing: &mut Listing, write: &Write) -> Written {
    let (revision, now) = (listing.revision + 1, listing.now.clock);
    let ends = |lease: &Option<Duration>| lease.map(|lease| now + lease);
    let place = |order: &u64| listing.entries.iter().position(|entry| entry.order == *order);
    match write {
        Write::Create { alone, waiting, lease } => {
            let is_alone = listing.entries.is_empty() && listing.metadata.value.freeze().is_none();
            let granted = alone.as_ref().filter(|_| is_alone);
            let value = granted.unwrap_or(waiting).clone();
            let lease_ends = ends(lease);
            let is_granted = granted.is_some();
            listing.entries.push(Entry { order: revision, version: revision, lease_ends, value });
            listing.revision = revision;
            return if is_granted { Written::At(revision) } else { Written::Waiting };
        }
        Write::Swap { order: METADATA, version, value, .. } => {
            if listing.metadata.version != *version {
                return Written::Conflict;
            }
            listing.metadata =
                Entry { order: METADATA, version: revision, lease_ends: None, value: value.clone() };
        }
        Write::Swap { order, version, value, lease } => match place(order) {
            Some(place) if listing.entries[place].version == *version => {
                let (value, lease_ends) = (value.clone(), ends(lease).or(listing.entries[place].lease_ends));
                listing.entries[place] = Entry { order: *order, version: revision, lease_ends, value };
            }
            _ => return Written::Conflict,
        },
        Write::Extend { order, lease } => match place(order) {
            Some(place) => listing.entries[place].lease_ends = Some(now + *lease),
            None => return Written::Conflict,
        },
        Write::Remove { order, version } => match place(order) {
            Some(place) if listing.entries[place].version == *version => drop(listing.entries.remove(place)),
            _ => return Written::Conflict,
        },
    }
    listing.revision = revision;
    Written::At(revision)
}

impl Clients {
    /// What a request leads to, on the entries as they are now.
    pub(super) fn plan<T>(
        &self,
        state: &State,
        purpose: &Purpose,
        decide: impl Fn(&mut Ledger, &dyn Observed) -> Decision<T>,
    ) -> Plan<T> {
        let listing = Listing { now: Now { clock: state.now, wall: 0 }, ..state.listing.clone() };
        let terms = Terms {
            lifetime: Lifetime::OfLease,
            fencing: self.fencing,
            has_joined: false,
            adds_records_later: true,
        };
        entries::plan(&listing, terms, purpose, decide).unwrap()
    }

    /// Carries out the writes of a plan, all of them or none, and notifies the clients that watch.
    pub(super) fn write(&self, state: &mut State, writes: &[Write], notifies: bool) -> Written {
        let mut listing = state.listing.clone();
        listing.now.clock = state.now;
        let mut written = Written::At(listing.revision);
        for one in writes {
            written = write(&mut listing, one);
            if written == Written::Conflict {
                return written;
            }
        }
        self.replace(state, listing, notifies);
        written
    }

    /// Carries out a request that nothing comes in between.
    pub(super) fn request<T>(
        &self,
        state: &mut State,
        purpose: &Purpose,
        notifies: bool,
        decide: impl Fn(&mut Ledger, &dyn Observed) -> Decision<T>,
    ) -> (T, Vec<Watch>) {
        let plan = self.plan(state, purpose, decide);
        let written = self.write(state, &plan.writes, notifies);
        assert!(matches!(written, Written::At(_)));
        (plan.value, plan.watch)
    }

    /// Removes the entries whose leases have ended.
    pub(super) fn expire(&self, state: &mut State) {
        let mut listing = state.listing.clone();
        listing.entries.retain(|entry| entry.lease_ends.is_none_or(|ends| state.now < ends));
        self.replace(state, listing, true);
    }

    fn replace(&self, state: &mut State, listing: Listing, notifies: bool) {
        let before = std::mem::replace(&mut state.listing, listing);
        state.ledger = state.listing.ledger(self.fencing);
        for client in &mut state.clients {
            let happens =
                |watch: &Watch| has_happened(watch, &state.listing) && !has_happened(watch, &before);
            client.notified |= notifies && client.watches.iter().any(happens);
        }
    }
}

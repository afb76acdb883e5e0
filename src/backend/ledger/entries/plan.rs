//! What a listing of entries leads to: pure.

use std::collections::HashSet;
use std::time::Duration;

use super::super::observed::{Lifetime, Now, Observed, Turns};
use super::super::room::Room;
use super::super::store::{Decision, Effect, Purpose, Watch};
use super::super::value::{HolderEntry, Ledger};
use super::super::{history, queue};
use super::{Entry, Fencing, Granting, Listing, METADATA, Write};
use crate::lock::{Claim, Mode, NotedRecord};

/// How a listing is decided on.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// See [`EntryStore::lifetime`](super::EntryStore::lifetime).
    pub lifetime: Lifetime,
    /// Which number of the store is the fencing token of a grant.
    pub fencing: Fencing,
    /// The entry of the claim was created for this request.
    pub has_joined: bool,
    /// Records are added to the history in a step of their own, after that of the decision.
    pub adds_records_later: bool,
}

/// What one listing leads to.
#[derive(Clone, Debug)]
pub struct Plan<T> {
    /// The reply, if all writes are carried out.
    pub value: T,
    /// To be carried out in one step. If that finds a conflict, or leaves the claim waiting, the entries are listed again.
    pub writes: Vec<Write>,
    /// This client holds the lock, by a grant or since before.
    pub is_held: bool,
    /// The fencing token of the grant, if the step grants the lock.
    pub fencing_token: Option<u64>,
    /// The fencing token is the revision of the step instead.
    pub is_granted_by_revision: bool,
    /// What to watch, by the orders of the entries.
    pub watch: Vec<Watch>,
    /// The records that are still to be added to the history.
    pub records: Vec<NotedRecord>,
    /// Why the last success is not stored, if so.
    pub unwritten: Option<String>,
}

impl<T> Plan<T> {
    /// Returns whether the step grants the lock.
    pub fn granting(&self) -> Granting {
        if self.fencing_token.is_some() { Granting::Yes } else { Granting::No }
    }
}

struct Observation {
    now: Now,
    lifetime: Lifetime,
    lease: Option<Duration>,
    next_fencing_token: u64,
}

impl Observed for Observation {
    fn now(&self) -> Now {
        self.now
    }

    fn lifetime(&self) -> Lifetime {
        self.lifetime
    }

    fn turns(&self) -> Turns {
        Turns::ByOrder
    }

    fn lease(&self, requested: Duration) -> Duration {
        self.lease.map_or(requested, |lease| lease.min(requested))
    }

    /// That of a grant which is stored next.
    fn least_fencing_token(&self) -> u64 {
        self.next_fencing_token
    }
}

impl Listing {
    /// Returns the ledger that the entries form, without the history.
    pub fn ledger(&self, fencing: Fencing) -> Ledger {
        let mut ledger = Ledger::default();
        ledger.fencing_token = self.metadata.value.fencing_token;
        ledger.success = self.metadata.value.success.clone();
        ledger.set_freeze(self.metadata.value.freeze().cloned());
        // A new ticket must not be the order of an entry.
        ledger.ticket = self.revision;
        for entry in &self.entries {
            let part = entry.part(fencing);
            for holder in &part.holders {
                ledger.ticket = ledger.ticket.max(holder.ticket);
                ledger.fencing_token = ledger.fencing_token.max(holder.fencing_token);
            }
            ledger.holders.extend(part.holders);
            ledger.waiters.extend(part.waiters);
        }
        ledger
    }

    /// Returns the same event with the order of the entry in place of a ticket: a nested hold has no entry of its own.
    fn watch_of_entry(&self, event: Watch) -> Watch {
        let Watch::Holder(ticket) = event else { return event };
        let has = |entry: &&Entry| entry.value.holders.iter().any(|holder| holder.ticket == ticket);
        Watch::Holder(self.entries.iter().find(has).map_or(ticket, |entry| entry.order))
    }
}

impl Entry {
    /// Returns the part of the ledger that is in the entry.
    fn part(&self, fencing: Fencing) -> Ledger {
        let &Entry { order, version, lease_ends, ref value } = self;
        let mut part = Ledger::default();
        part.holders.clone_from(&value.holders);
        for holder in &mut part.holders {
            holder.family = order;
            holder.lease_ends = lease_ends.or(holder.lease_ends);
            if holder.ticket == 0 {
                holder.ticket = order;
            }
            if holder.fencing_token == 0 {
                holder.fencing_token = match (fencing, holder.mode) {
                    (Fencing::Revision, _) | (_, Mode::Shared) => version,
                    (Fencing::Order, _) => order,
                };
            }
        }
        part.waiters.clone_from(&value.waiters);
        part.waiters.iter_mut().for_each(|waiter| (waiter.ticket, waiter.lease_ends) = (order, lease_ends));
        part
    }
}

/// Returns the holders or waiters of a ledger with the orders of their entries, sorted by them. There may be thousands.
fn by_order<T>(all: &[T], order: impl Fn(&T) -> u64) -> Vec<(u64, &T)> {
    let mut sorted: Vec<_> = all.iter().map(|one| (order(one), one)).collect();
    sorted.sort_by_key(|(order, _)| *order);
    sorted
}

/// Returns those of one entry.
fn of_entry<T: Clone>(sorted: &[(u64, &T)], order: u64) -> Vec<T> {
    let begin = sorted.partition_point(|(other, _)| *other < order);
    let part = sorted[begin..].iter().take_while(|(other, _)| *other == order);
    part.map(|(_, one)| (*one).clone()).collect()
}

/// Returns whether the store has not said when the lease of a holder ends.
fn has_unknown_lease(part: &Ledger) -> bool {
    part.holders.iter().any(|holder| holder.lease_ends.is_none())
}

/// Removes from a part what the store itself knows, and returns when its lease ends.
fn take_lease(part: &mut Ledger) -> Option<Duration> {
    let holders = part.holders.iter_mut().map(|holder| holder.lease_ends.take());
    let waiters = part.waiters.iter_mut().map(|waiter| waiter.lease_ends.take());
    holders.chain(waiters).max().flatten()
}

/// Returns the value of an entry that is to be stored.
fn to_store(mut part: Ledger, granted: Option<&str>) -> Ledger {
    for holder in &mut part.holders {
        if holder.ticket == holder.family {
            holder.ticket = 0;
        }
        holder.family = 0;
        if granted == Some(holder.token.as_str()) {
            holder.fencing_token = 0;
        }
    }
    part.waiters.iter_mut().for_each(|waiter| waiter.ticket = 0);
    part
}

/// Decides on a listing. Returns `None` if the fencing counter is exhausted.
pub fn plan<T>(
    listing: &Listing,
    terms: Terms,
    purpose: &Purpose,
    decide: impl Fn(&mut Ledger, &dyn Observed) -> Decision<T>,
) -> Option<Plan<T>> {
    let mut ledger = listing.ledger(terms.fencing);
    let fencing_before = ledger.fencing_token;
    let own = own_order(&ledger, purpose).filter(|_| terms.fencing == Fencing::Order);
    let next_fencing_token = own.unwrap_or(listing.revision.saturating_add(1));
    let Terms { lifetime, has_joined, .. } = terms;
    let observation = Observation { now: listing.now, lifetime, lease: listing.lease, next_fencing_token };
    let (value, effect, watch) = match decide(&mut ledger, &observation) {
        Decision::Done { value, effect, watch } => (value, effect, watch),
        Decision::Exhausted => return None,
        Decision::PassGate(_) => unreachable!("only a store with native locks has a gate"),
    };
    let mut records = std::mem::take(&mut ledger.history);
    let grant = new_grant(listing, &ledger);
    let is_regular = grant.as_ref().is_some_and(|(_, fencing)| *fencing == next_fencing_token);
    let mut change = EntriesChange { listing, terms, purpose, ledger, grant, is_regular };
    let metadata = change.metadata(fencing_before, &mut records);
    let unwritten = listing.unreadable.filter(|_| metadata.success != listing.metadata.value.success);
    let mut writes = Vec::new();
    writes.extend(change.write_metadata(metadata, fencing_before));
    if let Purpose::Claim(claim) = purpose {
        if has_joined && !matches!(effect, Effect::Wait(_)) {
            // It was to be taken at once or not at all.
            queue::leave_queue(&mut change.ledger, claim);
        }
        writes.extend(change.create(claim, &observation));
    }
    writes.extend(change.writes_of_entries());
    Some(Plan {
        value,
        writes,
        is_held: matches!(effect, Effect::Hold(_)),
        fencing_token: change.grant.as_ref().map(|(_, fencing)| *fencing),
        is_granted_by_revision: is_regular && own.is_none(),
        watch: watch.into_iter().map(|event| listing.watch_of_entry(event)).collect(),
        records,
        unwritten: unwritten.map(|unreadable| unreadable.to_string()),
    })
}

/// Returns the token of the hold that is granted and is not in the listing yet, and its fencing token.
fn new_grant(listing: &Listing, ledger: &Ledger) -> Option<(String, u64)> {
    let holders_before = listing.entries.iter().flat_map(|entry| &entry.value.holders);
    let tokens: HashSet<&str> = holders_before.map(|holder| holder.token.as_str()).collect();
    let is_new =
        |holder: &&HolderEntry| holder.ticket == holder.family && !tokens.contains(holder.token.as_str());
    let grant = ledger.holders.iter().find(is_new)?;
    Some((grant.token.clone(), grant.fencing_token))
}

/// The change of the entries that a decision requires.
struct EntriesChange<'a> {
    listing: &'a Listing,
    terms: Terms,
    purpose: &'a Purpose,
    /// As it was decided.
    ledger: Ledger,
    /// See [`new_grant`].
    grant: Option<(String, u64)>,
    /// The fencing token of the grant is the number that the store assigns.
    is_regular: bool,
}

impl EntriesChange<'_> {
    /// Returns the token of the grant whose fencing token the store assigns.
    fn granted(&self) -> Option<&str> {
        self.grant.as_ref().filter(|_| self.is_regular).map(|(token, _)| token.as_str())
    }

    /// Returns how much is left of a lease.
    fn length(&self, ends: Option<Duration>) -> Option<Duration> {
        ends.map(|ends| ends.saturating_sub(self.listing.now.clock))
    }

    /// Returns the metadata, with the records that are added at once.
    fn metadata(&self, fencing_before: u64, records: &mut Vec<NotedRecord>) -> Ledger {
        let mut metadata = self.listing.metadata.value.clone();
        metadata.success.clone_from(&self.ledger.success);
        metadata.set_freeze(self.ledger.freeze().cloned());
        match self.grant.as_ref() {
            // The metadata assigns the tokens until the store has caught up: it has lost revisions, or readers have tokens
            // that are larger than the order of the claim.
            Some((_, fencing)) if !self.is_regular => metadata.fencing_token = *fencing,
            None if self.ledger.fencing_token > fencing_before => {
                metadata.fencing_token = self.ledger.fencing_token;
            }
            _ => {}
        }
        if !self.terms.adds_records_later {
            for (at, record) in std::mem::take(records) {
                history::append(&mut metadata.history, at, record);
            }
        }
        metadata
    }

    /// Returns the write of the metadata, if they change and can be written.
    fn write_metadata(&self, mut metadata: Ledger, fencing_before: u64) -> Option<Write> {
        let Entry { version, value, .. } = &self.listing.metadata;
        if metadata == *value || self.listing.unreadable.is_some() {
            return None;
        }
        metadata.fencing_token = metadata.fencing_token.max(fencing_before);
        Some(Write::Swap { order: METADATA, version: *version, value: metadata, lease: None })
    }

    /// Returns the creation of an entry for the claim, if it needs one.
    fn create(&self, claim: &Claim, observation: &Observation) -> Option<Write> {
        let listed: HashSet<u64> = self.listing.entries.iter().map(|entry| entry.order).collect();
        let is_new = |order: &u64| !listed.contains(order);
        let mut new = Ledger::default();
        let (holders, waiters) = (self.ledger.holders.iter(), self.ledger.waiters.iter());
        new.holders = holders.filter(|holder| is_new(&holder.family)).cloned().collect();
        new.waiters = waiters.filter(|waiter| is_new(&waiter.ticket)).cloned().collect();
        if new.is_idle() {
            return None;
        }
        let lease = self.length(take_lease(&mut new));
        let is_alone = self.listing.entries.is_empty() && !new.holders.is_empty();
        let alone = is_alone.then(|| to_store(new, self.granted()));
        Some(Write::Create { alone, waiting: waiting(claim, observation), lease })
    }

    /// Returns the writes of the entries that are listed.
    fn writes_of_entries(&self) -> Vec<Write> {
        let holders = by_order(&self.ledger.holders, |holder| holder.family);
        let waiters = by_order(&self.ledger.waiters, |waiter| waiter.ticket);
        let write = |entry: &Entry| {
            let mut part = Ledger::default();
            part.holders = of_entry(&holders, entry.order);
            part.waiters = of_entry(&waiters, entry.order);
            self.write_of_entry(entry, part)
        };
        self.listing.entries.iter().filter_map(write).collect()
    }

    /// Returns the write after which an entry has this part of the ledger, if it has another one.
    fn write_of_entry(&self, entry: &Entry, mut is: Ledger) -> Option<Write> {
        let &Entry { order, version, .. } = entry;
        let mut was = entry.part(self.terms.fencing);
        // The lease of an outer hold stays, and its next heartbeat covers the time for which a nested run keeps the lock.
        let is_inside = matches!(self.purpose, Purpose::Release(_)) && has_unknown_lease(&is);
        let (had, ends) = (take_lease(&mut was), take_lease(&mut is).filter(|_| !is_inside));
        match self.length(ends) {
            _ if is.is_idle() => Some(Write::Remove { order, version }),
            // Those that are left in it have kept the lock for long enough.
            Some(Duration::ZERO) if is != was => Some(Write::Remove { order, version }),
            lease if is != was => {
                Some(Write::Swap { order, version, value: to_store(is, self.granted()), lease })
            }
            // A new entry has its lease already.
            Some(lease) if ends != had && !self.terms.has_joined => Some(Write::Extend { order, lease }),
            _ => None,
        }
    }
}

/// Returns the writes, each of a waiter's entry with the value that it has, after which no grant can be stored any more
/// that was decided on before the lock was frozen: of the waiters that were entitled to it when the frozen lock was listed,
/// except for those that were `settled` before. Others have to list the entries again.
pub fn unsettled(listing: &Listing, fencing: Fencing, settled: &HashSet<u64>) -> Vec<Write> {
    let ledger = listing.ledger(fencing);
    if ledger.freeze().is_none() {
        return Vec::new();
    }
    let mut room = Room::left_by(&ledger.holders);
    let mut writes = Vec::new();
    for waiter in &ledger.waiters {
        if !room.fits(waiter.mode) {
            break;
        }
        room.reserve(waiter.mode);
        let entry = listing.entries.iter().find(|entry| entry.order == waiter.ticket);
        let is_dlock = waiter.identity().is_some() && !settled.contains(&waiter.ticket);
        if let Some(Entry { order, version, value, .. }) = entry.filter(|_| is_dlock).cloned() {
            writes.push(Write::Swap { order, version, value, lease: None });
        }
    }
    writes
}

/// Returns the order of the entry with which the claim waits, unless others behind it may be granted the lock before.
fn own_order(ledger: &Ledger, purpose: &Purpose) -> Option<u64> {
    let Purpose::Claim(claim) = purpose else { return None };
    if claim.mode == Mode::Shared {
        return None;
    }
    ledger.position_of(claim.token.reveal()).map(|place| ledger.waiters[place].ticket)
}

/// Returns the entry of a claim that waits.
fn waiting(claim: &Claim, observation: &Observation) -> Ledger {
    let mut waiting = Ledger::default();
    queue::join_queue(&mut waiting, claim, observation);
    take_lease(&mut waiting);
    to_store(waiting, None)
}

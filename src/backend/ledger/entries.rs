//! The entries shape: each contender writes an entry of its own, and the store orders them.
//!
//! An entry is the part of the ledger that has one waiter, or one holder with the runs nested inside its hold; listing
//! the entries is reading the ledger. Who may have the lock follows from their order alone: no entry is ever added
//! before another one, so a claim that is found to be entitled stays so until it has recorded its grant, and runs only
//! after that. An entry is in the list until the store ends its lease or session, so each listed one is alive.

use std::future::Future;
use std::time::Duration;

use super::document::{MAX_CONFLICTS, busy_ledger, states};
use super::observed::{Lifetime, Now, Observed, Turns};
use super::store::{Done, EXHAUSTED, Effect, Purpose, Step, Watch};
use super::value::Ledger;
use super::{decide, outcomes};
use crate::backend::StoreError;
use crate::lock::{Claim, FencingToken, LockName, LockState, NotedRecord};

/// The order of the document beside the entries: the last fencing token, the last success and the last outcomes.
pub const BESIDE: u64 = 0;

/// A store that orders the entries of a lock.
pub trait EntryStore {
    /// Returns how long entries live: until their leases end, or as long as the sessions of their owners.
    fn lifetime(&self) -> Lifetime {
        Lifetime::Recorded
    }

    /// Lists the entries of a lock, including one that this client has just created.
    ///
    /// # Errors
    /// The store could not be queried, or a value is in an unknown format ([`StoreError::Config`]).
    fn list(&mut self, name: &LockName) -> impl Future<Output = Result<Listing, StoreError>>;

    /// Carries out one write, atomically.
    ///
    /// # Errors
    /// The store could not be queried, or refused.
    fn write(&mut self, name: &LockName, write: &Write) -> impl Future<Output = Result<Written, StoreError>>;

    /// Begins to watch these entries, in place of those that were watched before, and reports what has happened since
    /// the revision of the list too: the removal of each one, and, except for [`Watch::Entry`], each new value. Returns
    /// whether that is possible.
    ///
    /// # Errors
    /// The store could not be queried.
    fn watch(
        &mut self,
        name: &LockName,
        watch: &[Watch],
        since: u64,
    ) -> impl Future<Output = Result<bool, StoreError>>;
}

/// The entries of a lock at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The time by the clocks of the store, or of this host if the store has none.
    pub now: Now,
    /// The revision of the store, which grows with every write, and by which entries are ordered and versions counted.
    pub revision: u64,
    /// The document beside the entries; its version is 0 if there is none.
    pub beside: Entry,
    /// In their order.
    pub entries: Vec<Entry>,
}

/// An entry as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The revision at which it was created, or [`BESIDE`].
    pub order: u64,
    /// The revision at which its value was last written.
    pub version: u64,
    /// When its lease ends, on the clock of [`Now::clock`]; `None` if that is unknown, or if it has none. The holders in
    /// one entry have one lease, the longest: a nested run that is dead stays in the list as long as the others.
    pub lease_ends: Option<Duration>,
    /// Without what the store itself knows: its order, its lease, and the fencing token of a grant that was stored with
    /// this version.
    pub value: Ledger,
}

/// A write of one entry. A version is that of the list: if the entry has another one, nothing is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Adds an entry behind all others: `alone` if there is no other and the store finds that out in the same step,
    /// otherwise `waiting`.
    Create {
        /// The entry of a holder.
        alone: Option<Ledger>,
        /// The entry of a waiter.
        waiting: Ledger,
        /// Its lease, from now.
        lease: Option<Duration>,
    },
    /// Replaces the value of an entry, or of the document beside them.
    Swap {
        /// Which entry.
        order: u64,
        /// The version that it must have.
        version: u64,
        /// Its new value.
        value: Ledger,
        /// Its lease, from now.
        lease: Option<Duration>,
    },
    /// Extends the lease of an entry, whatever its version.
    Extend {
        /// Which entry.
        order: u64,
        /// Its lease, from now.
        lease: Duration,
    },
    /// Removes an entry.
    Remove {
        /// Which entry.
        order: u64,
        /// The version that it must have.
        version: u64,
    },
}

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It was carried out, at this revision.
    At(u64),
    /// The new entry is that of a waiter.
    Waiting,
    /// The entry has another version, or is gone.
    Conflict,
}

/// What one listing leads to.
#[derive(Clone, Debug)]
pub struct Plan<T> {
    /// The reply, if all writes are carried out.
    pub value: T,
    /// To be carried out in this order, until one of them finds a conflict or leaves the claim waiting: then the entries
    /// are listed again.
    pub writes: Vec<Write>,
    /// The last write grants the lock, with its revision as the fencing token.
    pub is_granted_by_revision: bool,
    /// What to watch, by the orders of the entries.
    pub watch: Vec<Watch>,
    /// The outcomes to add to the document beside the entries, and the last fencing token with them.
    pub outcomes: Vec<NotedRecord>,
}

struct View {
    now: Now,
    lifetime: Lifetime,
    next_revision: u64,
}

impl Observed for View {
    fn now(&self) -> Now {
        self.now
    }

    fn lifetime(&self) -> Lifetime {
        self.lifetime
    }

    fn turns(&self) -> Turns {
        Turns::ByOrder
    }

    /// That of a grant which is stored next.
    fn least_fencing_token(&self) -> u64 {
        self.next_revision
    }
}

impl Listing {
    /// Returns the ledger that the entries form, without outcomes.
    pub fn ledger(&self) -> Ledger {
        let mut ledger = Ledger::default();
        ledger.fencing_token = self.beside.value.fencing_token;
        ledger.success = self.beside.value.success.clone();
        // A new ticket must not be the order of an entry.
        ledger.ticket = self.revision;
        for Entry { order, version, lease_ends, value } in &self.entries {
            for mut holder in value.holders.iter().cloned() {
                holder.family = *order;
                holder.lease_ends = *lease_ends;
                if holder.ticket == 0 {
                    holder.ticket = *order;
                }
                if holder.fencing_token == 0 {
                    holder.fencing_token = *version;
                }
                ledger.ticket = ledger.ticket.max(holder.ticket);
                ledger.fencing_token = ledger.fencing_token.max(holder.fencing_token);
                ledger.holders.push(holder);
            }
            for mut waiter in value.waiters.iter().cloned() {
                (waiter.ticket, waiter.lease_ends) = (*order, *lease_ends);
                ledger.waiters.push(waiter);
            }
        }
        ledger
    }

    fn has(&self, order: u64) -> bool {
        self.entries.iter().any(|entry| entry.order == order)
    }
}

/// Returns the part of a ledger whose entries are of these orders.
fn part(ledger: &Ledger, is_part: impl Fn(u64) -> bool) -> Ledger {
    let mut part = Ledger::default();
    part.holders = ledger.holders.iter().filter(|holder| is_part(holder.family)).cloned().collect();
    part.waiters = ledger.waiters.iter().filter(|waiter| is_part(waiter.ticket)).cloned().collect();
    part
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

/// Decides on a listing. With `has_joined`, the entry of the claim was created for this request. Returns `None` if the
/// fencing counter is exhausted.
pub fn plan<T>(
    listing: &Listing,
    lifetime: Lifetime,
    purpose: &Purpose,
    has_joined: bool,
    decide: impl Fn(&mut Ledger, &dyn Observed) -> Step<T>,
) -> Option<Plan<T>> {
    let view = View { now: listing.now, lifetime, next_revision: listing.revision.saturating_add(1) };
    let before = listing.ledger();
    let mut after = before.clone();
    let (value, effect, watch) = match decide(&mut after, &view) {
        Step::Done { value, effect, watch } => (value, effect, watch),
        Step::Exhausted => return None,
        Step::PassGate(_) => unreachable!("only a store with native locks has a gate"),
    };
    let outcomes = std::mem::take(&mut after.outcomes);
    let is_new = |token: &str| !before.holders.iter().any(|holder| holder.token == token);
    let grant = after.holders.iter().find(|holder| holder.ticket == holder.family && is_new(&holder.token));
    let grant = grant.map(|holder| (holder.token.clone(), holder.fencing_token));
    let is_granted_by_revision = grant.as_ref().is_some_and(|(_, fencing)| *fencing == view.next_revision);
    let granted = grant.as_ref().filter(|_| is_granted_by_revision).map(|(token, _)| token.as_str());
    let mut writes = Vec::new();
    // First: the next holder must find it.
    let Entry { version, value: mut beside, .. } = listing.beside.clone();
    beside.success = after.success.clone();
    if let Some((_, fencing)) = grant.as_ref().filter(|_| !is_granted_by_revision) {
        // The store has lost revisions, but not this document, which assigns the tokens until they have caught up.
        beside.fencing_token = *fencing;
    }
    let is_new = beside != listing.beside.value;
    writes.extend(is_new.then_some(Write::Swap { order: BESIDE, version, value: beside, lease: None }));
    let length = |ends: Option<Duration>| ends.map(|ends| ends.saturating_sub(listing.now.clock));
    if let Purpose::Claim(claim) = purpose {
        if has_joined && !matches!(effect, Effect::Wait(_)) {
            // It was to be taken at once or not at all.
            decide::leave_queue(&mut after, claim);
        }
        let mut new = part(&after, |order| !listing.has(order));
        if !new.is_idle() {
            let lease = length(take_lease(&mut new));
            let is_alone = listing.entries.is_empty() && !new.holders.is_empty();
            let alone = is_alone.then(|| to_store(new, granted));
            writes.push(Write::Create { alone, waiting: waiting(claim, &view), lease });
        }
    }
    for &Entry { order, version, .. } in &listing.entries {
        let [mut was, mut is] = [&before, &after].map(|ledger| part(ledger, |one| one == order));
        let (had, ends) = (take_lease(&mut was), take_lease(&mut is));
        match length(ends) {
            _ if is.is_idle() => writes.push(Write::Remove { order, version }),
            lease if is != was => {
                writes.push(Write::Swap { order, version, value: to_store(is, granted), lease });
            }
            // A new entry has its lease already.
            Some(lease) if ends != had && !has_joined => writes.push(Write::Extend { order, lease }),
            _ => {}
        }
    }
    let order_of = |ticket: u64| {
        let holder = before.holders.iter().find(|holder| holder.ticket == ticket);
        holder.map_or(ticket, |holder| holder.family)
    };
    let watch = watch.into_iter().map(|one| match one {
        // A nested one has no entry of its own.
        Watch::Holder(ticket) => Watch::Holder(order_of(ticket)),
        other => other,
    });
    Some(Plan { value, writes, is_granted_by_revision, watch: watch.collect(), outcomes })
}

/// Returns the entry of a claim that waits.
fn waiting(claim: &Claim, view: &View) -> Ledger {
    let mut waiting = Ledger::default();
    decide::join_queue(&mut waiting, claim, view);
    take_lease(&mut waiting);
    to_store(waiting, None)
}

/// See [`LedgerStore::change`](super::LedgerStore::change).
///
/// # Errors
/// The store could not be queried, a value is in an unknown format, or the entries are changed too often by others.
pub async fn change<S: EntryStore, T>(
    store: &mut S,
    name: &LockName,
    purpose: &Purpose,
    decide: impl Fn(&mut Ledger, &dyn Observed) -> Step<T>,
) -> Result<Done<T>, StoreError> {
    let mut has_joined = false;
    'list: for _ in 0..MAX_CONFLICTS {
        let listing = store.list(name).await?;
        let Some(plan) = plan(&listing, store.lifetime(), purpose, has_joined, &decide) else {
            return Err(StoreError::Config(format!("{name}: {EXHAUSTED}")));
        };
        let mut revision = listing.revision;
        for write in &plan.writes {
            has_joined |= matches!(write, Write::Create { .. });
            match store.write(name, write).await? {
                Written::At(at) => revision = at,
                Written::Waiting | Written::Conflict => continue 'list,
            }
        }
        let fencing = FencingToken::new(revision).filter(|_| plan.is_granted_by_revision);
        let last = fencing.map_or(listing.ledger().fencing_token, FencingToken::number);
        // The entry of a grant ends with its lease, but its token must be remembered.
        let is_unrecorded = last > listing.beside.value.fencing_token && matches!(purpose, Purpose::Claim(_));
        if is_unrecorded || !plan.outcomes.is_empty() {
            let noted = note(store, name, last, &plan.outcomes).await;
            if is_unrecorded || matches!(purpose, Purpose::Record) {
                noted?;
            }
        }
        let is_watched = plan.watch.is_empty() || store.watch(name, &plan.watch, listing.revision).await?;
        return Ok(Done { value: plan.value, is_watched, fencing, unwritten: None });
    }
    Err(busy_ledger(name))
}

/// Adds outcomes to the document beside the entries, and the last fencing token.
async fn note<S: EntryStore>(
    store: &mut S,
    name: &LockName,
    fencing_token: u64,
    records: &[NotedRecord],
) -> Result<(), StoreError> {
    for _ in 0..MAX_CONFLICTS {
        let Entry { order, version, mut value, .. } = store.list(name).await?.beside;
        value.fencing_token = value.fencing_token.max(fencing_token);
        for (at, record) in records {
            outcomes::append(&mut value.outcomes, *at, record.clone());
        }
        let write = Write::Swap { order, version, value, lease: None };
        if store.write(name, &write).await? != Written::Conflict {
            return Ok(());
        }
    }
    Err(busy_ledger(name))
}

/// See [`LedgerStore::read`](super::LedgerStore::read).
///
/// # Errors
/// The store could not be queried.
pub async fn read<S: EntryStore>(
    store: &mut S,
    names: &[LockName],
    view: impl Fn(&LockName, &Ledger, &dyn Observed) -> LockState,
) -> Result<(u64, Vec<LockState>), StoreError> {
    states(names, view, async |name| store.list(name).await.map(|listing| (listing.ledger(), listing.now)))
        .await
}

/// See [`LedgerStore::history`](super::LedgerStore::history).
///
/// # Errors
/// The store could not be queried, or a value is in an unknown format.
pub async fn history<S: EntryStore>(store: &mut S, name: &LockName) -> Result<Vec<NotedRecord>, StoreError> {
    Ok(store.list(name).await?.beside.value.outcomes.into_iter().rev().collect())
}

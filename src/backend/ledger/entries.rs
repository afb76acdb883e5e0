//! The entries shape: each contender writes an entry of its own, and the store orders them.
//!
//! An entry is the part of the ledger that has one waiter, or one holder with the runs nested inside its hold; listing
//! the entries is reading the ledger. Who may have the lock follows from their order alone: no entry is ever added
//! before another one, so a claim that is found to be entitled stays so until it has recorded its grant, and runs only
//! after that. An entry is in the list until the store ends its lease or session, so each listed one is alive.
//! A freeze stands in the metadata: it is in force when no grant can be stored any more that was decided on without it.
//!
//! Used by etcd and ZooKeeper. What always holds: a claim runs only after its grant stands in its own entry.

mod plan;

use std::collections::HashSet;
use std::future::Future;
use std::time::Duration;

pub use self::plan::{Plan, Terms, plan, unsettled};
use super::driver::{MAX_CONFLICTS, busy, states};
use super::history;
use super::observed::{Lifetime, Now, Observed};
use super::store::{AnyReply, Decide, Done, EXHAUSTED, Purpose, Shape, Watch};
use super::value::{Ledger, Unreadable};
use crate::backend::StoreError;
use crate::clock::Moment;
use crate::lock::{FencingToken, LockName, LockState, NotedRecord};

/// The order of the metadata of a lock, which is stored as an entry of its own: the last fencing token, the last
/// success, the freeze and the history.
pub const METADATA: u64 = 0;

/// How many entries are written in one step: fewer than half of what etcd allows (`--max-txn-ops`), which counts the
/// comparisons too.
const WRITES_IN_A_STEP: usize = 32;

/// A store that orders the entries of a lock.
pub trait EntryStore {
    /// Which number of the store is the fencing token of a grant.
    const FENCING: Fencing;

    /// Returns how long entries live: until their leases end, or as long as the sessions of their owners, which last at
    /// least from `asked`.
    fn lifetime(&self, _asked: Moment) -> Lifetime {
        Lifetime::OfLease
    }

    /// Returns the listing that may be assumed instead of asking for it: for a first claim, that of a lock which is not in
    /// use, because [`Write::Create`] finds out whether that is so; for a release, the last one with what this client has
    /// written since, because the versions are compared. `None` if it has to be asked for, as after a request without a
    /// reply, which may have created an entry.
    ///
    /// # Errors
    /// The store could not be queried.
    fn assumed(
        &mut self,
        _name: &LockName,
        _purpose: &Purpose,
    ) -> impl Future<Output = Result<Option<Listing>, StoreError>> {
        async { Ok(None) }
    }

    /// Lists the entries of a lock, including one that this client has just created; at least those that the purpose
    /// depends on. For [`Purpose::Renew`] it proves that the lease was extended: by a request that is sent after the call,
    /// and before the entries are read.
    ///
    /// # Errors
    /// The store could not be queried, or a value is in an unknown format ([`StoreError::Config`]).
    fn list(
        &mut self,
        name: &LockName,
        purpose: &Purpose,
    ) -> impl Future<Output = Result<Listing, StoreError>>;

    /// Carries out these writes in one atomic step: all of them, or none. At most one of them creates an entry.
    ///
    /// # Errors
    /// The store could not be queried, or refused.
    fn write(
        &mut self,
        name: &LockName,
        purpose: &Purpose,
        writes: &[Write],
        granting: Granting,
    ) -> impl Future<Output = Result<Written, StoreError>>;

    /// Stores the fencing token of a grant in the metadata, which outlasts the entry, unless writing the grant has done
    /// that.
    ///
    /// # Errors
    /// The store could not be queried.
    fn remember(
        &mut self,
        name: &LockName,
        listing: &Listing,
        fencing_token: u64,
    ) -> impl Future<Output = Result<(), StoreError>>;

    /// Begins to watch these entries and that of this client, in place of those that were watched before, and reports
    /// what has happened since this revision too: the removal of each one, and, except for [`Watch::Entry`], each new
    /// value. Returns whether that is possible.
    ///
    /// # Errors
    /// The store could not be queried.
    fn watch(
        &mut self,
        name: &LockName,
        watch: &[Watch],
        since: u64,
    ) -> impl Future<Output = Result<bool, StoreError>>;

    /// Gives up what this client does not need any more after a change, such as a lease or a session.
    fn finish(&mut self, _purpose: &Purpose) -> impl Future<Output = ()> {
        async {}
    }
}

/// Which number of the store is the fencing token of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fencing {
    /// The revision of the write that grants the lock. For stores whose foreign clients see such a revision as well: a
    /// waiter's entry may be older than the token of the holder before.
    Revision,
    /// The order of the entry; for a reader, whose turn may come together with those of others ahead of it that claim it
    /// later, the revision as well.
    Order,
}

/// Whether a write grants the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granting {
    /// It does not.
    No,
    /// It does, to the entry that it creates or replaces, unless that turns out to be the entry of a waiter.
    Yes,
}

/// The entries of a lock at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The time by the clocks of the store, or of this host if the store has none.
    pub now: Now,
    /// The revision of the store, which grows with every write, and by which entries are ordered and versions counted.
    pub revision: u64,
    /// The length of the lease that the store has given this client, if it may differ from the requested one.
    pub lease: Option<Duration>,
    /// The metadata; its version is 0 if there is none.
    pub metadata: Entry,
    /// Why the metadata cannot be read, such as that a newer dlock has written it. Its value is empty then.
    pub unreadable: Option<Unreadable>,
    /// In their order.
    pub entries: Vec<Entry>,
}

/// An entry as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The revision at which it was created, or [`METADATA`].
    pub order: u64,
    /// The revision at which its value was last written.
    pub version: u64,
    /// When its lease ends, on the clock of [`Now::clock`]; `None` if that is unknown, or if it has none. The holders in
    /// one entry have one lease, the longest: a nested run that is dead stays in the list as long as the others.
    pub lease_ends: Option<Duration>,
    /// Without what the store itself knows: its order, its lease, and the fencing token of a grant that was stored with
    /// this version. Where the end of the entry's lease is unknown, that of a holder in it may be known.
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
    /// Replaces the value of an entry, or the metadata. No entry is created `alone` while the metadata has a freeze.
    Swap {
        /// Which entry.
        order: u64,
        /// The version that it must have.
        version: u64,
        /// Its new value.
        value: Ledger,
        /// Its lease, from now; `None` if that stays as it is.
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

/// The result of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// It was carried out, at this revision, which is the order of an entry that it created.
    At(u64),
    /// The same, but the metadata could not be stored, and why: the step ends a hold.
    WithoutMetadata(u64, String),
    /// The new entry is that of a waiter.
    Waiting,
    /// An entry has another version, is gone, or was created before by a request without a reply.
    Conflict,
}

/// The driver of entries.
#[derive(Debug, Default)]
pub struct Entries;

impl<S: EntryStore> Shape<S> for Entries {
    async fn change(
        &mut self,
        store: &mut S,
        name: &LockName,
        purpose: Purpose,
        decide: Decide,
    ) -> Result<Done<AnyReply>, StoreError> {
        let purpose = &purpose;
        let asked = Moment::now();
        let mut assumed = match purpose {
            // Every other change depends on what is stored.
            Purpose::Claim(claim) if !claim.outer.is_empty() || claim.once_per.is_some() => None,
            Purpose::Claim(_) | Purpose::Release(_) => store.assumed(name, purpose).await?,
            Purpose::Renew(_) | Purpose::Operate | Purpose::Prepare | Purpose::History => None,
        };
        let mut has_joined = false;
        for attempt in 0..MAX_CONFLICTS {
            let listing = match assumed.take() {
                Some(listing) => listing,
                None => list(store, name, purpose).await?,
            };
            let terms = Terms {
                lifetime: store.lifetime(asked),
                fencing: S::FENCING,
                has_joined,
                // Clients that change the metadata at the same time, such as readers that leave together, must not wait
                // for each other.
                adds_records_later: attempt > 0,
            };
            let Some(mut plan) = plan(&listing, terms, purpose, &decide) else {
                return Err(StoreError::Config(format!("{name}: {EXHAUSTED}")));
            };
            let mut revision = listing.revision;
            if !plan.writes.is_empty() {
                has_joined |= plan.writes.iter().any(|write| matches!(write, Write::Create { .. }));
                match store.write(name, purpose, &plan.writes, plan.granting()).await? {
                    Written::At(at) => revision = at,
                    Written::WithoutMetadata(at, why) => (revision, plan.unwritten) = (at, Some(why)),
                    Written::Waiting | Written::Conflict => continue,
                }
            }
            let fencing = FencingToken::new(revision).filter(|_| plan.is_granted_by_revision);
            // The write itself may have shown that the session is alive.
            let lease = match store.lifetime(asked) {
                Lifetime::OfOwner(lease) => lease,
                Lifetime::OfLease => None,
            };
            if plan.is_held {
                // The entry ends with its lease, but the token must be remembered.
                let last = fencing.map(FencingToken::number).or(plan.fencing_token);
                let last = last.unwrap_or_else(|| listing.ledger(S::FENCING).fencing_token);
                if last > listing.metadata.value.fencing_token && listing.unreadable.is_none() {
                    store.remember(name, &listing, last).await?;
                }
            }
            if !plan.records.is_empty() {
                let noted = note(store, name, purpose, |metadata| {
                    for (at, record) in &plan.records {
                        history::append(&mut metadata.history, *at, record.clone());
                    }
                });
                let noted = noted.await;
                if matches!(purpose, Purpose::History) {
                    noted?;
                }
            }
            if matches!(purpose, Purpose::Prepare) {
                // The freeze is stored already.
                settle(store, name, purpose).await.map_err(StoreError::after_a_part)?;
            }
            let is_watching = plan.is_held || !plan.watch.is_empty();
            // What was known to the decision, and what it has written itself, is not reported.
            let since = if plan.is_held { revision } else { listing.revision };
            let is_watched = !is_watching || store.watch(name, &plan.watch, since).await?;
            store.finish(purpose).await;
            return Ok(Done { value: plan.value, is_watched, fencing, lease, unwritten: plan.unwritten });
        }
        Err(busy(name, "state"))
    }

    async fn read(
        &mut self,
        store: &mut S,
        names: &[LockName],
        view: impl Fn(&LockName, &Ledger, &dyn Observed) -> LockState + Send + 'static,
    ) -> Result<(u64, Vec<LockState>), StoreError> {
        let load = async |name: &LockName| {
            let listing = list(store, name, &Purpose::Operate).await?;
            Ok((listing.ledger(S::FENCING), listing.now))
        };
        states(names, view, load).await
    }

    async fn history(&mut self, store: &mut S, name: &LockName) -> Result<Vec<NotedRecord>, StoreError> {
        let metadata = list(store, name, &Purpose::History).await?.metadata;
        Ok(metadata.value.history.into_iter().rev().collect())
    }
}

/// Lists the entries of a lock. A hold can be kept and ended whatever format the metadata has: a job that runs while
/// the hosts are upgraded one after another is not stopped by that.
///
/// # Errors
/// As of [`EntryStore::list`], or the request depends on the metadata, which cannot be read.
async fn list<S: EntryStore>(
    store: &mut S,
    name: &LockName,
    purpose: &Purpose,
) -> Result<Listing, StoreError> {
    let listing = store.list(name, purpose).await?;
    match (listing.unreadable, purpose) {
        (Some(unreadable), Purpose::Claim(_) | Purpose::Operate | Purpose::Prepare | Purpose::History) => {
            Err(StoreError::Config(format!("{name}: {unreadable}")))
        }
        _ => Ok(listing),
    }
}

/// Brings a freeze in force, if there is one: see [`unsettled`].
///
/// # Errors
/// The store could not be queried, or the entries are changed too often by others.
async fn settle<S: EntryStore>(store: &mut S, name: &LockName, purpose: &Purpose) -> Result<(), StoreError> {
    let mut settled = HashSet::new();
    for _ in 0..MAX_CONFLICTS {
        let listing = list(store, name, purpose).await?;
        let writes = unsettled(&listing, S::FENCING, &settled);
        if writes.is_empty() {
            return Ok(());
        }
        for writes in writes.chunks(WRITES_IN_A_STEP) {
            if store.write(name, purpose, writes, Granting::No).await? == Written::Conflict {
                // One of them holds the lock now, or has left.
                break;
            }
            settled.extend(writes.iter().filter_map(|write| match write {
                Write::Swap { order, .. } => Some(*order),
                _ => None,
            }));
        }
    }
    Err(busy(name, "state"))
}

/// Changes the metadata, if it can be read.
///
/// # Errors
/// The store could not be queried, or the metadata is changed too often by others.
pub async fn note<S: EntryStore>(
    store: &mut S,
    name: &LockName,
    purpose: &Purpose,
    change: impl Fn(&mut Ledger),
) -> Result<(), StoreError> {
    for _ in 0..MAX_CONFLICTS {
        let listing = list(store, name, purpose).await?;
        if listing.unreadable.is_some() {
            return Ok(());
        }
        let Entry { order, version, mut value, .. } = listing.metadata;
        change(&mut value);
        let write = Write::Swap { order, version, value, lease: None };
        if store.write(name, purpose, &[write], Granting::No).await? != Written::Conflict {
            return Ok(());
        }
    }
    Err(busy(name, "state"))
}

//! The entries of a lock, as read in one transaction.

use super::keys::{self, Keys};
use super::messages::{KeyValue, RangeRequest, RequestOp, TxnRequest, TxnResponse};
use crate::backend::StoreError;
use crate::backend::ledger::entries::{Entry, Listing, METADATA, Write};
use crate::backend::ledger::{HolderEntry, Ledger, Now, Purpose, Unreadable};
use crate::clock::wall_micros;
use crate::lock::{Claim, Freeze, LockName};
use std::time::Duration;

const ASCENDING: i32 = 1;
const BY_CREATE_REVISION: i32 = 2;
/// As many holders as a claim is shown.
const MAX_SHOWN: usize = 16;
/// The most entries of one lock: more than any lock has, and few enough that a decision on all of them takes moments.
const MOST_ENTRIES: usize = 20_000;
/// What is taken to remain, in ms, of a freeze that should have ended by the clock of this host: its end is watched.
const OVERDUE: u64 = 1000;
/// The least that remains of a lease whose key is listed.
const ALIVE: Duration = Duration::from_millis(1);

/// An entry, with what the ledger does not know of it.
pub(super) struct Stored {
    pub entry: Entry,
    pub key: Vec<u8>,
    pub lease: i64,
}

impl Stored {
    /// Whether others are shown what remains of its lease.
    fn is_shown(&self) -> bool {
        let is_ours = self.entry.value.holders.iter().any(|holder| holder.identity().is_some());
        is_ours && self.lease != 0 && self.entry.lease_ends.is_none()
    }

    /// Returns whether a dlock has made this entry: no other key has its lease.
    pub fn is_of_dlock(&self) -> bool {
        let value = &self.entry.value;
        value.holders.iter().any(|holder| holder.identity().is_some())
            || value.waiters.iter().any(|waiter| waiter.identity().is_some())
    }

    /// Returns whether the claim has this entry, or is to be noted in it.
    pub fn is_of(&self, claim: &Claim) -> bool {
        let is_ours = |token: &str| {
            token == claim.token.reveal() || claim.outer.iter().any(|outer| outer.reveal() == token)
        };
        let value = &self.entry.value;
        value.holders.iter().any(|holder| is_ours(&holder.token))
            || value.waiters.iter().any(|waiter| is_ours(&waiter.token))
    }
}

/// The entries of a lock at one revision.
pub(super) struct Snapshot {
    /// The time of this host: etcd has no clock. All that is listed is alive by it, because etcd removes what is not.
    now: Now,
    pub revision: u64,
    /// The term of the leader that has confirmed the revision.
    pub term: u64,
    metadata: Entry,
    /// See [`Listing::unreadable`].
    unreadable: Option<Unreadable>,
    /// In the order of their creation.
    pub entries: Vec<Stored>,
    /// The lease of the key of the freeze, if there is one.
    pub freeze_lease: i64,
}

/// Returns the request for the entries of a lock: linearizable, and all at one revision.
pub(super) fn request(keys: &Keys) -> TxnRequest {
    let one = |key| RangeRequest { key, ..RangeRequest::default() };
    let (key, range_end) = keys.range();
    let (sort_order, sort_target) = (ASCENDING, BY_CREATE_REVISION);
    let all = RangeRequest { key, range_end, sort_order, sort_target, ..RangeRequest::default() };
    let ranges = [one(keys.metadata()), one(keys.last()), all];
    let success = ranges.map(|range| RequestOp { range: Some(range), ..RequestOp::default() });
    TxnRequest { success: success.to_vec(), ..TxnRequest::default() }
}

impl Snapshot {
    /// Returns whether one holder at most needs an entry: the others have ended, and the lock is not kept for them any more.
    pub fn is_of_one(&self, stored: &Stored) -> bool {
        let needs = |holder: &&HolderEntry| {
            holder.ended_at.is_none() || holder.kept_until.is_some_and(|until| self.now.clock < until)
        };
        stored.entry.value.holders.iter().filter(needs).count() <= 1
    }

    /// # Errors
    /// A value is in a format that this dlock does not know, or etcd would not have such entries.
    pub fn of(name: &LockName, purpose: &Purpose, reply: TxnResponse) -> Result<Snapshot, StoreError> {
        // Whatever others have written: a hold can be kept and ended.
        let is_strict = !matches!(purpose, Purpose::Renew(_) | Purpose::Release(_));
        let now = now();
        let header = reply.header.unwrap_or_default();
        let (revision, term) = (unsigned(header.revision), header.raft_term);
        let mut ranges = reply.responses.into_iter().map(|response| response.range.unwrap_or_default().kvs);
        let mut next = || ranges.next().unwrap_or_default();
        let unknown = |unreadable: Unreadable| StoreError::Config(format!("{name}: {unreadable}"));
        let mut metadata = Entry { order: METADATA, version: 0, lease_ends: None, value: Ledger::default() };
        let mut unreadable = None;
        if let Some(document) = next().first() {
            metadata.version = unsigned(document.mod_revision);
            match Ledger::parse(&document.value) {
                Ok(value) => metadata.value = value,
                Err(why) => unreadable = Some(why),
            }
        }
        if let Some(last) = next().first() {
            metadata.value.fencing_token = metadata.value.fencing_token.max(unsigned(last.mod_revision));
        }
        let mut listed = next();
        check(&listed)?;
        let frozen = listed.extract_if(.., |kv| keys::is_freeze(&kv.key)).next();
        metadata.value.set_freeze(live_freeze(metadata.value.freeze(), frozen.as_ref(), now));
        // A foreign client behind the key of the freeze waits for its end.
        let is_behind =
            |kv: &KeyValue| frozen.as_ref().is_some_and(|frozen| frozen.create_revision < kv.create_revision);
        let entries = listed.into_iter().enumerate().map(|(place, kv)| {
            let value = match Ledger::parse(&kv.value) {
                Ok(value) if !value.is_idle() => value,
                Err(unreadable @ Unreadable::OtherFormat(_)) if is_strict => return Err(unknown(unreadable)),
                _ if place == 0 && !is_behind(&kv) => Ledger::of_foreign_holder(0),
                _ => Ledger::of_foreign_waiter(0),
            };
            Ok(stored(kv, value, now))
        });
        Ok(Snapshot {
            now,
            revision,
            term,
            metadata,
            unreadable,
            entries: entries.collect::<Result<_, _>>()?,
            freeze_lease: frozen.as_ref().map_or(0, |kv| kv.lease),
        })
    }

    /// Returns the freeze of the lock.
    pub fn freeze(&self) -> Option<&Freeze> {
        self.metadata.value.freeze()
    }

    /// Returns the leases that are shown to others: of the first holders.
    pub fn shown_leases(&self) -> Vec<i64> {
        let shown = self.entries.iter().filter(|stored| stored.is_shown()).take(MAX_SHOWN);
        shown.map(|stored| stored.lease).collect()
    }

    /// Sets what remains of these leases.
    pub fn set_remaining(&mut self, remaining: Vec<Duration>) {
        let now = self.now.clock;
        for (stored, remaining) in self.entries.iter_mut().filter(|stored| stored.is_shown()).zip(remaining) {
            stored.entry.lease_ends = Some(now + remaining.max(ALIVE));
        }
    }

    /// Continues at the present time, at which nothing is known any more of the leases of others: they are extended without
    /// a change of the entries.
    pub fn advance(&mut self) {
        self.now = now();
        self.entries.iter_mut().for_each(|stored| stored.entry.lease_ends = None);
    }

    /// Applies what was written at a revision, with the leases that the entries have since. An entry that was created has
    /// this key.
    pub fn apply<'a>(
        &mut self,
        writes: impl Iterator<Item = (&'a Write, i64)>,
        own: Option<&[u8]>,
        revision: u64,
    ) {
        for (write, lease) in writes {
            match write {
                Write::Create { alone, waiting, .. } => {
                    let value = alone.as_ref().unwrap_or(waiting).clone();
                    let entry = Entry { order: revision, version: revision, lease_ends: None, value };
                    self.entries.push(Stored { entry, key: own.unwrap_or_default().to_vec(), lease });
                }
                Write::Swap { order: METADATA, value, .. } => {
                    (self.metadata.version, self.metadata.value) = (revision, value.clone());
                }
                Write::Swap { order, value, .. } => {
                    if let Some(stored) = self.stored_mut(*order) {
                        (stored.entry.version, stored.entry.value) = (revision, value.clone());
                        stored.lease = lease;
                    }
                }
                Write::Extend { order, .. } => {
                    if let Some(stored) = self.stored_mut(*order).filter(|stored| stored.lease != lease) {
                        (stored.entry.version, stored.lease) = (revision, lease);
                    }
                }
                Write::Remove { order, .. } => self.entries.retain(|stored| stored.entry.order != *order),
            }
        }
    }

    /// Returns an entry by its order.
    pub fn stored(&self, order: u64) -> Option<&Stored> {
        self.entries.iter().find(|stored| stored.entry.order == order)
    }

    fn stored_mut(&mut self, order: u64) -> Option<&mut Stored> {
        self.entries.iter_mut().find(|stored| stored.entry.order == order)
    }

    /// Returns the listing, with the length of the client's lease.
    pub fn listing(&self, lease: Option<Duration>) -> Listing {
        let entries = self.entries.iter().map(|stored| with_known_leases(stored.entry.clone())).collect();
        let (metadata, unreadable) = (self.metadata.clone(), self.unreadable);
        Listing { now: self.now, revision: self.revision, lease, metadata, unreadable, entries }
    }
}

/// Returns the freeze if its key still exists: that ends with its lease, whatever the clocks of the hosts show.
fn live_freeze(stored: Option<&Freeze>, key: Option<&KeyValue>, now: Now) -> Option<Freeze> {
    let (stored, key) = stored.zip(key)?;
    // A host whose clock is ahead may have stored another end in the metadata.
    let value = Ledger::parse(&key.value).ok();
    let freeze = value.as_ref().and_then(Ledger::freeze).filter(|freeze| freeze.id == stored.id)?;
    let until = freeze.until.map(|until| until.max(now.wall / 1000 + OVERDUE));
    Some(Freeze { until, ..freeze.clone() })
}

/// Checks what tells entries apart, and their number.
///
/// # Errors
/// etcd would not have such entries: this is another server, or a proxy has changed its reply.
fn check(listed: &[KeyValue]) -> Result<(), StoreError> {
    let invalid = |text: String| Err(StoreError::unanswered(format!("the reply is not one of etcd: {text}")));
    if listed.iter().any(|kv| kv.key.is_empty() || kv.create_revision <= 0 || kv.mod_revision <= 0) {
        return invalid("the entry of a lock has no key or no revision".into());
    }
    if !listed.is_sorted_by(|one, next| one.create_revision < next.create_revision) {
        return invalid("the entries of a lock are not in the order of their revisions".into());
    }
    if listed.len() > MOST_ENTRIES {
        return Err(StoreError::unanswered(format!("a lock has more than {MOST_ENTRIES} entries")));
    }
    Ok(())
}

fn stored(kv: KeyValue, value: Ledger, now: Now) -> Stored {
    let is_kept = !value.holders.is_empty() && value.holders.iter().all(|holder| holder.ended_at.is_some());
    let kept_until = value.holders.iter().filter_map(|holder| holder.kept_until).max();
    let entry = Entry {
        order: unsigned(kv.create_revision),
        version: unsigned(kv.mod_revision),
        lease_ends: kept_until.filter(|_| is_kept).map(|until| until.max(now.clock + ALIVE)),
        value,
    };
    Stored { entry, key: kv.key, lease: kv.lease }
}

/// Adds the leases of those that only keep the lock: they end when that time is over, even if another process extends that
/// of the entry.
fn with_known_leases(mut entry: Entry) -> Entry {
    for holder in entry.value.holders.iter_mut().filter(|holder| holder.ended_at.is_some()) {
        holder.lease_ends = holder.kept_until;
    }
    entry
}

/// The time by the clock of this host.
fn now() -> Now {
    let wall = wall_micros();
    Now { clock: Duration::from_micros(wall), wall }
}

/// Converts a revision, which is positive.
pub(super) fn unsigned(revision: i64) -> u64 {
    revision.try_into().unwrap_or_default()
}

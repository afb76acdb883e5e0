//! The entries of a lock: how they are listed, written and watched, and which lease is extended with that.

use std::time::Duration;

use tokio::time::timeout;

use super::EtcdStore;
use super::transaction::{commit, put_last};
use crate::backend::StoreError;
use crate::backend::etcd::connection::Channel;
use crate::backend::etcd::lease::{self, Lease, Owner, remaining};
use crate::backend::etcd::listing::{self, Snapshot, unsigned};
use crate::backend::etcd::messages::{LeaseRevokeRequest, TxnRequest};
use crate::backend::etcd::watch::Events;
use crate::backend::ledger::entries::{EntryStore, Fencing, Granting, Listing, METADATA, Write, Written};
use crate::backend::ledger::{Purpose, Watch};
use crate::clock::Moment;
use crate::lock::{Claim, LockName};

/// The time limit for revoking a lease that is no longer needed; it expires by itself in any case.
const REVOKES_WITHIN: Duration = Duration::from_secs(1);

/// How often a lease is extended until the replies are of the same leader.
const HEARTBEATS: usize = 4;

impl EtcdStore {
    /// Reads the entries of a lock, without those of a lease that has ended.
    async fn read_entries(
        &mut self,
        name: &LockName,
        purpose: &Purpose,
        ended: Option<i64>,
    ) -> Result<Snapshot, StoreError> {
        let request = listing::request(&self.keys(name));
        let reply = self.client.call(request).await?;
        let mut snapshot = Snapshot::of(name, purpose, reply)?;
        // The keys of a lease go with it, maybe a moment later.
        snapshot.entries.retain(|stored| ended != Some(stored.lease));
        self.term = Some(snapshot.term);
        Ok(snapshot)
    }

    /// Extends the lease, if there is one, and reads the entries.
    ///
    /// The leader replies to a keep-alive without asking the other members. One that was stopped while another one was
    /// elected replies to those that were pending before it notices (etcd-io/etcd#15247), and the lease ends earlier than
    /// its reply says. The read that follows is confirmed by a majority. The three replies in a row, the one before the
    /// keep-alive too, must be of the same term: then no other leader was elected before the keep-alive was carried out.
    /// Otherwise both are repeated.
    async fn extend_and_read(&mut self, name: &LockName, purpose: &Purpose) -> Result<Snapshot, StoreError> {
        let Some(lease) = self.lease else { return self.read_entries(name, purpose, None).await };
        for _ in 0..HEARTBEATS {
            let before = self.term;
            let (extended, term) = self.client.with(async |channel| lease.extend(channel).await).await?;
            let ended = extended.is_none().then_some(lease.id);
            let snapshot = self.read_entries(name, purpose, ended).await?;
            if [before, self.term] == [Some(term); 2] {
                self.lease = extended;
                return Ok(snapshot);
            }
        }
        Err(StoreError::transient("the cluster has elected another leader meanwhile", true))
    }

    /// Reads the entries, while a new lease is granted; or extends the lease first.
    async fn claim(&mut self, claim: &Claim, purpose: &Purpose) -> Result<Snapshot, StoreError> {
        if self.lease.is_some() {
            return self.extend_and_read(&claim.name, purpose).await;
        }
        let request = listing::request(&self.keys(&claim.name));
        let id = self.id_to_request();
        let both = async |channel: &Channel| {
            tokio::try_join!(Lease::grant(channel, id, claim.ttl), channel.call(request.clone()))
        };
        let ((lease, term), reply) = self.client.with(both).await?;
        self.use_granted(lease, term);
        match term {
            Some(_) => Snapshot::of(&claim.name, purpose, reply),
            None => self.extend_and_read(&claim.name, purpose).await,
        }
    }

    /// Requests a new lease, and returns the term of the reply, see [`Lease::grant`].
    async fn request_lease(&mut self, ttl: Duration) -> Result<Option<u64>, StoreError> {
        let id = self.id_to_request();
        let (lease, term) = self.client.with(async |channel| Lease::grant(channel, id, ttl).await).await?;
        self.use_granted(lease, term);
        Ok(term)
    }

    fn use_granted(&mut self, lease: Lease, term: Option<u64>) {
        (self.lease, self.requested) = (Some(lease), None);
        self.term = term.or(self.term);
    }

    /// Uses the lease of the entry in which the claim is noted, if that is not known: of an outer hold, or of another
    /// process with the same token.
    async fn adopt(
        &mut self,
        claim: &Claim,
        purpose: &Purpose,
        snapshot: Snapshot,
    ) -> Result<Snapshot, StoreError> {
        let own = snapshot.entries.iter().find(|stored| stored.is_of(claim));
        let is_known = |id: i64| [self.lease, self.rest].iter().flatten().any(|lease| lease.id == id);
        let unknown = own.map(|stored| stored.lease).filter(|id| *id != 0 && !is_known(*id));
        if let Some(id) = unknown {
            self.lease = Some(Lease { id, ttl: claim.ttl, ends: Moment::now(), owner: Owner::Other });
            let snapshot = self.extend_and_read(&claim.name, purpose).await?;
            // With a lease that is known now, or without the entries of one that has ended.
            return Box::pin(self.adopt(claim, purpose, snapshot)).await;
        }
        if own.is_none() && matches!(purpose, Purpose::Claim(_)) {
            // An entry of its own ends with a lease of its own.
            self.lease.take_if(|lease| lease.owner == Owner::Other);
        }
        let is_missing = self.lease.is_none() && (own.is_some() || matches!(purpose, Purpose::Claim(_)));
        // The one for the minimum hold time of an inner run that has ended is too long for the one that is left.
        let is_alone = own.is_some_and(|stored| snapshot.is_of_one(stored));
        let is_long = |lease: Lease| is_alone && lease.owner == Owner::Other && lease.ttl > claim.ttl;
        let is_unfit = |lease: Lease| lease.ttl < claim.ttl || is_long(lease);
        let is_renewal = matches!(purpose, Purpose::Renew(_));
        let is_wanted = is_missing || is_renewal && own.is_some() && self.lease.is_some_and(is_unfit);
        if is_wanted && self.request_lease(claim.ttl).await?.is_none() {
            return self.extend_and_read(&claim.name, purpose).await;
        }
        Ok(snapshot)
    }

    /// Returns the id of the lease to request: the same until there is a reply.
    fn id_to_request(&mut self) -> i64 {
        *self.requested.get_or_insert_with(lease::new_id)
    }

    /// Ends the lease, if no key of this client needs it any more.
    async fn end_lease(&mut self, is_release: bool) {
        let is_unused = !self.in_use && (self.own.is_none() || is_release);
        if let Some(lease) = self.lease.take_if(|_| is_unused).filter(|lease| lease.owner == Owner::Us) {
            self.revoke(lease.id).await;
        }
        if let Some(id) = self.requested.take_if(|_| is_release) {
            self.revoke(id).await;
        }
    }

    /// Returns the leases that no key has any more when these writes are carried out: those of the entries of dlocks that a
    /// release or an operator removes. [`end_lease`](EtcdStore::end_lease) ends that of this client.
    fn left_by(&self, purpose: &Purpose, writes: &[Write]) -> Vec<i64> {
        if !matches!(purpose, Purpose::Release(_) | Purpose::Operate) {
            return Vec::new();
        }
        let is_ours = |id: i64| self.lease.is_some_and(|lease| lease.id == id && lease.owner == Owner::Us);
        let removed = writes.iter().filter_map(|write| match write {
            Write::Remove { order, .. } => self.last.as_ref()?.1.stored(*order),
            _ => None,
        });
        let leases = removed.filter(|stored| stored.is_of_dlock()).map(|stored| stored.lease);
        leases.filter(|id| *id != 0 && !is_ours(*id)).collect()
    }

    /// Ends a lease that no key needs any more, over another connection if this one fails. It ends by itself as well.
    pub(super) async fn revoke(&mut self, id: i64) {
        for _ in 0..2 {
            let revoked = self.client.call(LeaseRevokeRequest { id }).await;
            if !matches!(revoked, Err(StoreError::Unavailable { .. })) {
                return;
            }
        }
    }

    /// Reads what remains of the leases of the holders.
    async fn read_leases(&mut self, snapshot: &mut Snapshot) -> Result<(), StoreError> {
        let leases = snapshot.shown_leases();
        if !leases.is_empty() {
            let remaining = self.client.with(async |channel| remaining(channel, &leases).await).await?;
            snapshot.set_remaining(remaining);
        }
        Ok(())
    }
}

impl EntryStore for EtcdStore {
    const FENCING: Fencing = Fencing::Revision;

    async fn assumed(&mut self, name: &LockName, purpose: &Purpose) -> Result<Option<Listing>, StoreError> {
        let last = self.last.as_mut().filter(|_| matches!(purpose, Purpose::Release(_)));
        let last = last.filter(|(last, _)| last == name);
        Ok(last.map(|(_, snapshot)| {
            snapshot.advance();
            snapshot.listing(self.lease.map(|lease| lease.ttl))
        }))
    }

    async fn list(&mut self, name: &LockName, purpose: &Purpose) -> Result<Listing, StoreError> {
        if let Some(watcher) = self.watcher.as_mut().filter(|_| purpose.claim().is_some()) {
            // What happened before is known to the decision.
            watcher.clear();
        }
        let mut snapshot = match purpose {
            Purpose::Claim(claim) if self.lease.is_some() || claim.outer.is_empty() => {
                self.claim(claim, purpose).await?
            }
            Purpose::Renew(_) => self.extend_and_read(name, purpose).await?,
            _ => self.read_entries(name, purpose, None).await?,
        };
        if let Purpose::Claim(claim) | Purpose::Renew(claim) = purpose {
            snapshot = self.adopt(claim, purpose, snapshot).await?;
        }
        if let Purpose::Claim(claim) | Purpose::Renew(claim) | Purpose::Release(claim) = purpose {
            let own = snapshot.entries.iter().find(|stored| stored.is_of(claim));
            self.own = own.map(|stored| stored.key.clone());
        }
        let is_waiting =
            self.own.is_some() && self.own != snapshot.entries.first().map(|first| first.key.clone());
        if matches!(purpose, Purpose::Operate)
            || matches!(purpose, Purpose::Claim(_)) && (self.own.is_none() || is_waiting)
        {
            self.read_leases(&mut snapshot).await?;
        }
        // The reply to its write was lost.
        self.of_freeze.take_if(|id| *id == snapshot.freeze_lease);
        let id = self.lease.map(|lease| lease.id);
        self.in_use = snapshot.entries.iter().any(|stored| Some(stored.lease) == id);
        let is_watching = self.watcher.as_ref().is_some_and(|watcher| !watcher.has_ended());
        if matches!(purpose, Purpose::Renew(_)) && !is_watching && self.own.is_some() {
            self.start_watch(std::iter::empty(), snapshot.revision);
        }
        let listing = snapshot.listing(self.lease.map(|lease| lease.ttl));
        self.last = Some((name.clone(), snapshot));
        Ok(listing)
    }

    async fn write(
        &mut self,
        name: &LockName,
        purpose: &Purpose,
        writes: &[Write],
        granting: Granting,
    ) -> Result<Written, StoreError> {
        let (keys, rest) = (self.keys(name), self.rest);
        let mut txn = TxnRequest::default();
        let mut leases = Vec::new();
        for write in writes {
            leases.push(self.add(&keys, purpose, &mut txn, write).await?);
        }
        let creates = writes.iter().any(|write| matches!(write, Write::Create { .. }));
        if granting == Granting::Yes && !creates {
            txn.success.push(put_last(&keys));
        }
        if txn.success.is_empty() {
            // The heartbeat has extended the lease.
            let revision = self.last.as_ref().map(|(_, snapshot)| snapshot.revision);
            return Ok(Written::At(revision.unwrap_or_default()));
        }
        let left = self.left_by(purpose, writes);
        let last = self.last.take();
        let reply = self.client.with(async |channel| commit(channel, txn.clone()).await).await?;
        let Some((reply, unwritten)) = reply.filter(|(reply, _)| reply.succeeded) else {
            return Ok(Written::Conflict);
        };
        if let Some(before) = rest.filter(|before| self.rest.is_some_and(|rest| rest.id != before.id)) {
            self.revoke(before.id).await;
        }
        for id in left {
            self.lease.take_if(|lease| lease.id == id);
            self.rest.take_if(|rest| rest.id == id);
            // The removal is done, whatever becomes of this.
            let _ = timeout(REVOKES_WITHIN, self.revoke(id)).await;
        }
        let mut nested = reply.responses.iter().filter_map(|response| response.txn.as_ref());
        let is_granted = !creates || nested.next().is_some_and(|txn| txn.succeeded);
        let header = reply.header.unwrap_or_default();
        let revision = unsigned(header.revision);
        self.term = Some(header.raft_term);
        if !is_granted {
            return Ok(Written::Waiting);
        }
        if writes.iter().any(is_freeze) {
            self.of_freeze = None;
        }
        if let Some(why) = unwritten {
            return Ok(Written::WithoutMetadata(revision, why));
        }
        self.last = last.map(|(name, mut snapshot)| {
            snapshot.apply(writes.iter().zip(leases), self.own.as_deref(), revision);
            (name, snapshot)
        });
        Ok(Written::At(revision))
    }

    /// The grant has written the key whose revision is its token.
    async fn remember(&mut self, _: &LockName, _: &Listing, _: u64) -> Result<(), StoreError> {
        Ok(())
    }

    async fn watch(&mut self, name: &LockName, watch: &[Watch], since: u64) -> Result<bool, StoreError> {
        let others: Vec<_> = watch
            .iter()
            .map(|watch| match watch {
                Watch::Entry(order) => (self.entry(*order).0, Events::Removal),
                Watch::Holder(order) | Watch::Waiter(order) => (self.entry(*order).0, Events::All),
                Watch::Freeze => (self.keys(name).freeze(), Events::Removal),
                Watch::Gate(_) => unreachable!("only a store with native locks has a gate"),
            })
            .collect();
        self.start_watch(others.into_iter(), since);
        Ok(true)
    }

    async fn finish(&mut self, purpose: &Purpose) {
        match purpose {
            Purpose::Claim(_) => self.end_lease(false).await,
            Purpose::Release(_) => self.end_lease(true).await,
            Purpose::Renew(_) | Purpose::Operate | Purpose::Prepare | Purpose::History => {}
        }
        if let Some(unused) = self.of_freeze.take() {
            self.revoke(unused).await;
        }
    }
}

/// Returns whether it stores metadata with a freeze.
fn is_freeze(write: &Write) -> bool {
    matches!(write, Write::Swap { order: METADATA, value, .. } if value.freeze().is_some())
}

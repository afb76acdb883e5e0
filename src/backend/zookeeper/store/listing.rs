//! Reads the nodes of a lock. Their names contain their order and mode, so that only those are read whose values matter.

use std::collections::{HashMap, HashSet};

use super::writes::swap;
use super::{BATCH, ZooKeeperStore, claim_of, lease_for};
use crate::backend::StoreError;
use crate::backend::ledger::entries::{BESIDE, Entry, Listing};
use crate::backend::ledger::{HolderEntry, Ledger, Now, Purpose, WaiterEntry};
use crate::backend::zookeeper::connection::Reply;
use crate::backend::zookeeper::errors::Code;
use crate::backend::zookeeper::message::{Request, Stat};
use crate::backend::zookeeper::node::{
    Candidate, Document, Node, Stored, candidates, document, entitled, stored, version, wait_instead,
};
use crate::lock::{LockName, Mode};

/// How many holders a claim is shown.
const SHOWN: usize = 16;
/// The most data that is read of the nodes of a lock.
const MOST_DATA: usize = 6 << 20;

impl ZooKeeperStore {
    /// Reads the entries of a lock, at least those that the purpose depends on.
    ///
    /// # Errors
    /// The store could not be queried, or a value is in an unknown format.
    pub(super) async fn read_entries(
        &mut self,
        name: &LockName,
        purpose: &Purpose,
    ) -> Result<Listing, StoreError> {
        self.open(lease_for(purpose)).await?;
        if matches!(purpose, Purpose::Claim(claim) if claim.once_per.is_some()) && self.clock_offset.is_none()
        {
            self.read_clock().await?;
        }
        let lock = self.location().paths(name).lock;
        let known = self.held_in.clone().or_else(|| self.own_name().map(str::to_owned));
        match (purpose, known) {
            (Purpose::Record, _) => {
                let revision = self.read_beside(name, Vec::new()).await?.0;
                return Ok(self.listing(revision, Vec::new()));
            }
            (Purpose::Renew(_) | Purpose::Release(_), Some(node)) => {
                let path = format!("{lock}/{node}");
                let get = Request::Get { path: path.clone(), watch: matches!(purpose, Purpose::Renew(_)) };
                let first = vec![self.catch_up(&lock, purpose), get];
                let (revision, replies) = self.read_beside(name, first).await?;
                if let Some(stored) =
                    replies.get(1).map(|reply| stored(name, &path, reply)).transpose()?.flatten()
                {
                    let order = stored.stat.czxid as u64;
                    self.cache.insert(node.clone(), stored);
                    let mut entries = vec![self.entry(&node, order, 0, 1, Mode::Exclusive)];
                    self.remove_ended(&mut entries).await?;
                    self.nodes = HashMap::from([(order, node)]);
                    return Ok(self.listing(revision, entries));
                }
            }
            _ => {}
        }
        self.read_all(name, &lock, purpose).await
    }

    /// Returns the request that comes before others which have to show what the leader had carried out when it got this
    /// one. A server that is cut off from the others may answer reads and `sync`, but no write: a renewal is proven by one,
    /// and so is a grant whose reply was lost with its connection.
    fn catch_up(&self, lock: &str, purpose: &Purpose) -> Request {
        let path = lock.to_owned();
        match purpose {
            Purpose::Claim(_) if self.client.is_proven() => Request::Sync { path },
            Purpose::Claim(_) | Purpose::Renew(_) => Request::Multi(vec![Request::Check { path }]),
            Purpose::Release(_) | Purpose::Operate | Purpose::Prepare | Purpose::Record => {
                Request::Sync { path }
            }
        }
    }

    async fn read_all(
        &mut self,
        name: &LockName,
        lock: &str,
        purpose: &Purpose,
    ) -> Result<Listing, StoreError> {
        let (mut revision, mut candidates) = self.read_nodes(name, lock, purpose).await?;
        if matches!(purpose, Purpose::Claim(_)) && self.correct_own(lock, &candidates).await? {
            (revision, candidates) = self.read_nodes(name, lock, purpose).await?;
        }
        let orders = self.orders(&candidates);
        let entitled = entitled(&candidates);
        let entries = candidates.iter().zip(&orders).enumerate();
        let mut entries: Vec<Entry> = entries
            .map(|(index, (one, order))| self.entry(&one.node.name, *order, index, entitled, one.mode))
            .collect();
        self.remove_ended(&mut entries).await?;
        self.nodes = orders.into_iter().zip(candidates.into_iter().map(|one| one.node.name)).collect();
        if claim_of(purpose).is_some() {
            let holds = |entry: &&Entry| entry.value.holders.iter().any(|holder| holder.token == self.token);
            let order = entries.iter().find(holds).map(|entry| entry.order);
            self.held_in = order.and_then(|order| self.node_of(order)).map(str::to_owned);
        }
        Ok(self.listing(revision, entries))
    }

    /// Reads the nodes of a lock that the purpose depends on, and the document beside them. Returns the revision of the
    /// store, and which nodes there are.
    async fn read_nodes(
        &mut self,
        name: &LockName,
        lock: &str,
        purpose: &Purpose,
    ) -> Result<(u64, Vec<Candidate>), StoreError> {
        let is_fresh = std::mem::take(&mut self.client.is_fresh);
        let watch = matches!(purpose, Purpose::Operate);
        let children = Request::Children { path: lock.to_owned(), watch };
        let first = vec![self.catch_up(lock, purpose), children];
        let (revision, replies) = self.read_beside(name, first).await?;
        let mut candidates =
            replies.get(1).map(|reply| candidates(lock, reply)).transpose()?.unwrap_or_default();
        drop(replies);
        self.find_own(&candidates);
        // Only this client writes its node as long as it waits; each other one may have changed.
        let is_waiting = matches!(purpose, Purpose::Claim(_)) && self.held_in.is_none() && !is_fresh;
        let own = self.own_name().filter(|_| is_waiting).map(str::to_owned);
        self.cache.retain(|node, _| Some(node) == own.as_ref());
        let mut left = MOST_DATA;
        loop {
            // Where one of them is gone, others matter that did not before.
            let mut unread = self.wanted(&candidates, purpose);
            unread.retain(|node| !self.cache.contains_key(node));
            if unread.is_empty() {
                break;
            }
            let gone = self.read_values(name, lock, &unread, &mut left).await?;
            candidates.retain(|one| !gone.contains(&one.node.name));
        }
        self.check_own(&candidates);
        Ok((revision, candidates))
    }

    /// Reads these nodes of a lock, of which no more than `left` may be read, and returns those that are gone.
    async fn read_values(
        &mut self,
        name: &LockName,
        lock: &str,
        nodes: &[String],
        left: &mut usize,
    ) -> Result<HashSet<String>, StoreError> {
        let mut gone = HashSet::new();
        for batch in nodes.chunks(BATCH) {
            let path = |node: &String| format!("{lock}/{node}");
            let gets = batch.iter().map(|node| Request::Get { path: path(node), watch: false });
            let replies = self.client.exchange(&gets.collect::<Vec<_>>()).await?;
            for (node, reply) in batch.iter().zip(replies) {
                *left = left.checked_sub(reply.body.len()).ok_or_else(|| too_much_data(lock))?;
                match stored(name, &path(node), &reply)? {
                    Some(stored) => drop(self.cache.insert(node.clone(), stored)),
                    None => drop(gone.insert(node.clone())),
                }
            }
        }
        Ok(gone)
    }

    /// Returns those of some locks that a dlock holds or waits for.
    ///
    /// # Errors
    /// The store could not be queried.
    pub(super) async fn used(&mut self, locks: &[(LockName, String)]) -> Result<Vec<LockName>, StoreError> {
        let paths: Vec<String> = locks.iter().map(|(name, _)| self.location().paths(name).lock).collect();
        let children = paths.iter().map(|path| Request::Children { path: path.clone(), watch: false });
        let replies = self.client.exchange(&children.collect::<Vec<_>>()).await?;
        let mut nodes = Vec::new();
        for ((name, _), (path, reply)) in locks.iter().zip(paths.iter().zip(&replies)) {
            let first = candidates(path, reply)?.into_iter().next();
            nodes.extend(first.map(|first| (name.clone(), format!("{path}/{}", first.node.name))));
        }
        let gets = nodes.iter().map(|(_, path)| Request::Get { path: path.clone(), watch: false });
        let replies = self.client.exchange(&gets.collect::<Vec<_>>()).await?;
        let mut used = Vec::new();
        for ((name, path), reply) in nodes.into_iter().zip(replies) {
            let is_foreign =
                matches!(stored(&name, &path, &reply), Ok(Some(Stored { value: None, .. }) | None));
            // A dlock may be behind it.
            if !is_foreign || self.has_dlock(&name).await? {
                used.push(name);
            }
        }
        Ok(used)
    }

    async fn has_dlock(&mut self, name: &LockName) -> Result<bool, StoreError> {
        let entries = self.read_entries(name, &Purpose::Operate).await?.entries;
        let is_dlock = |entry: &Entry| {
            let holders = entry.value.holders.iter().filter_map(HolderEntry::identity);
            let waiters = entry.value.waiters.iter().filter_map(WaiterEntry::identity);
            holders.chain(waiters).next().is_some()
        };
        Ok(entries.iter().any(is_dlock))
    }

    /// Sends requests, and one for the document beside the entries after them. Returns the revision of the store.
    async fn read_beside(
        &mut self,
        name: &LockName,
        mut requests: Vec<Request>,
    ) -> Result<(u64, Vec<Reply>), StoreError> {
        let path = self.location().paths(name).beside;
        requests.push(Request::Get { path, watch: false });
        let mut replies = self.client.exchange(&requests).await?;
        let reply = replies.pop().ok_or_else(|| StoreError::unanswered("no reply"))?;
        self.take_beside(name, &reply)?;
        if reply.code == Code::NO_NODE {
            self.check_chroot().await?;
        }
        Ok((reply.zxid as u64, replies))
    }

    /// Takes the document beside the entries from the reply to a request for it.
    pub(super) fn take_beside(&mut self, name: &LockName, reply: &Reply) -> Result<(), StoreError> {
        let path = self.location().paths(name).beside;
        let (version, value) = match document(&path, reply)? {
            Some(Document { stat, value }) => (version(&stat), value),
            None => (0, Ok(Ledger::default())),
        };
        self.unreadable = value.as_ref().err().copied();
        let value = value.unwrap_or_default();
        self.beside = Some(Entry { order: BESIDE, version, lease_ends: None, value });
        Ok(())
    }

    pub(super) fn listing(&self, revision: u64, entries: Vec<Entry>) -> Listing {
        let wall = self.wall();
        let now = Now { clock: std::time::Duration::from_micros(wall), wall };
        let beside = self.beside.clone().unwrap_or_else(no_document);
        Listing { now, revision, lease: None, beside, unreadable: self.unreadable, entries }
    }

    /// Finds the own node if it is unknown whether it was created.
    fn find_own(&mut self, candidates: &[Candidate]) {
        let recipe = self.location().recipe;
        if let Some(own) = self.own.as_mut().filter(|own| own.node.is_none()) {
            let mark = recipe.mark(&own.id);
            own.node =
                candidates.iter().find(|one| one.node.name.starts_with(&mark)).map(|one| one.node.clone());
        }
    }

    /// Forgets the own node if it is gone, or belongs to another session.
    fn check_own(&mut self, candidates: &[Candidate]) {
        let Some(own) = &self.own else { return };
        let is_there = |node: &Node| candidates.iter().any(|one| one.node == *node);
        let is_ours =
            |node: &Node| self.cache.get(&node.name).is_none_or(|stored| stored.stat.owner == own.session);
        if !own.node.as_ref().is_some_and(|node| is_there(node) && is_ours(node)) {
            self.own = None;
        }
    }

    /// Writes into each node of this client that it waits, if that has not reached the server: as soon as nothing is ahead
    /// of it, other clients would believe the value that it was created with, and choose their slots accordingly. Returns
    /// whether there was such a node.
    async fn correct_own(&mut self, lock: &str, candidates: &[Candidate]) -> Result<bool, StoreError> {
        let mut requests = Vec::new();
        for (index, Candidate { node, .. }) in candidates.iter().enumerate() {
            let Some(Stored { stat, value: Some(value) }) = self.cache.get(&node.name) else { continue };
            let is_ours = Some(stat.owner) == self.client.session()
                && value.holders.iter().any(|holder| holder.token == self.token);
            if is_ours && self.was_created_behind(&node.name, stat, index) {
                let mut waiting = value.clone();
                wait_instead(&mut waiting);
                requests.push(swap(format!("{lock}/{}", node.name), version(stat), &waiting));
                self.cache.remove(&node.name);
            }
        }
        if requests.is_empty() {
            return Ok(false);
        }
        for reply in self.client.exchange(&requests).await? {
            match reply.code {
                Code::OK | Code::BAD_VERSION | Code::NO_NODE => {}
                code => return Err(code.error(lock)),
            }
        }
        Ok(true)
    }

    /// Returns whether a node still has the value that it was created with, and was not the first one then: its client waits.
    pub(super) fn was_created_behind(&self, node: &str, stat: &Stat, index: usize) -> bool {
        let own = self.own.as_ref().filter(|_| self.own_name() == Some(node));
        stat.version == 0 && own.map_or(index > 0, |own| !own.is_first)
    }

    /// Returns the nodes whose values matter.
    fn wanted(&self, candidates: &[Candidate], purpose: &Purpose) -> Vec<String> {
        let count = match purpose {
            Purpose::Claim(claim) => {
                let entitled = entitled(candidates);
                // The slots that are taken, and the hold that a nested run enters, may be any of them.
                let is_any = matches!(claim.mode, Mode::Slots(_)) || !claim.outer.is_empty();
                if is_any { entitled } else { entitled.min(SHOWN) }
            }
            _ => candidates.len(),
        };
        let names = candidates.iter().map(|one| &one.node.name);
        let own = names.clone().filter(|name| self.own_name() == Some(name.as_str()));
        names.clone().take(count).chain(own).cloned().collect()
    }

    pub(super) fn own_name(&self) -> Option<&str> {
        Some(&self.own.as_ref()?.node.as_ref()?.name)
    }

    pub(super) fn node_of(&self, order: u64) -> Option<&str> {
        self.nodes.get(&order).map(String::as_str)
    }
}

fn too_much_data(lock: &str) -> StoreError {
    StoreError::unanswered(format!("the nodes below {lock} have more than {} MiB of data", MOST_DATA >> 20))
}

fn no_document() -> Entry {
    Entry { order: BESIDE, version: 0, lease_ends: None, value: Ledger::default() }
}

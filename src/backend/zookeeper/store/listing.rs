//! Reads the nodes of a lock. Their names contain their order and mode, so that only those are read whose values matter.

use std::collections::HashSet;

use super::writes::swap;
use super::{BATCH, ZooKeeperStore, lease_for, no_reply};
use crate::backend::StoreError;
use crate::backend::ledger::entries::{Entry, Listing, METADATA};
use crate::backend::ledger::{HolderEntry, Ledger, Now, Purpose, WaiterEntry};
use crate::backend::zookeeper::connection::Reply;
use crate::backend::zookeeper::errors::Code;
use crate::backend::zookeeper::message::Request;
use crate::backend::zookeeper::node::{
    Node, Stored, document, entitled, nodes, stored, version, wait_instead,
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
        let is_timed = match purpose {
            Purpose::Claim(claim) => claim.once_per.is_some(),
            Purpose::Prepare => true,
            _ => false,
        };
        if is_timed && self.clock.is_none() {
            self.read_clock().await?;
        }
        let lock = self.location().paths(name).lock;
        let known = self.held_in.clone().or_else(|| self.own_name().map(str::to_owned));
        let revision = match (purpose, known) {
            (Purpose::History, _) => {
                let (revision, _) = self.read_metadata(name, Vec::new()).await?;
                return Ok(self.listing(revision, Vec::new()));
            }
            (Purpose::Renew(_) | Purpose::Release(_), Some(node)) => {
                self.read_node(name, &lock, purpose, &node).await?
            }
            _ => None,
        };
        let revision = match revision {
            Some(revision) => revision,
            None => self.read_all(name, &lock, purpose).await?,
        };
        self.read_clock_for_freeze(purpose).await?;
        let mut entries = self.entries(purpose);
        self.remove_ended(&mut entries).await?;
        if purpose.claim().is_some() {
            let holds =
                |entry: &&Entry| entry.value.holders.iter().any(|holder| purpose.is_of(&holder.token));
            let order = entries.iter().find(holds).map(|entry| entry.order);
            self.held_in = order.and_then(|order| self.node_of(order)).map(str::to_owned);
        }
        Ok(self.listing(revision, entries))
    }

    /// Reads the clock of the leader, if it is unknown and a freeze may end by it. A user who may not create nodes is shown
    /// the state by the clock of this host.
    async fn read_clock_for_freeze(&mut self, purpose: &Purpose) -> Result<(), StoreError> {
        if self.clock.is_some() || self.freeze().is_none_or(|freeze| freeze.until.is_none()) {
            return Ok(());
        }
        match self.read_clock().await {
            Err(StoreError::Denied(_)) if matches!(purpose, Purpose::Operate) => Ok(()),
            read => read,
        }
    }

    /// Returns the request that comes before others which have to show what the leader had carried out when it got this
    /// one. A server that is cut off from the others may answer reads and `sync`, but no write: a renewal is proven by one,
    /// and so is a grant whose reply was lost with its connection.
    fn catch_up(&self, lock: &str, purpose: &Purpose) -> Request {
        let path = lock.to_owned();
        match purpose {
            Purpose::Claim(_) if self.client.is_proven => Request::Sync { path },
            Purpose::Claim(_) | Purpose::Renew(_) => Request::Multi(vec![Request::Check { path }]),
            Purpose::Release(_) | Purpose::Operate | Purpose::Prepare | Purpose::History => {
                Request::Sync { path }
            }
        }
    }

    /// Reads one node of a lock. Returns the revision of the store; `None` if the node is gone.
    async fn read_node(
        &mut self,
        name: &LockName,
        lock: &str,
        purpose: &Purpose,
        node: &str,
    ) -> Result<Option<u64>, StoreError> {
        let path = format!("{lock}/{node}");
        let get = Request::Get { path: path.clone(), watch: matches!(purpose, Purpose::Renew(_)) };
        let (revision, reply) = self.read_metadata(name, vec![self.catch_up(lock, purpose), get]).await?;
        let read = reply.map(|reply| stored(name, &path, &reply)).transpose()?.flatten();
        let Some((node, read)) = Node::named(node).zip(read) else { return Ok(None) };
        self.nodes = vec![Node { stored: Some(Box::new(read)), ..node }];
        Ok(Some(revision))
    }

    /// Reads the nodes of a lock that the purpose depends on. Returns the revision of the store.
    async fn read_all(&mut self, name: &LockName, lock: &str, purpose: &Purpose) -> Result<u64, StoreError> {
        let revision = self.read_nodes(name, lock, purpose).await?;
        match matches!(purpose, Purpose::Claim(_)) && self.correct_own(lock, purpose).await? {
            true => self.read_nodes(name, lock, purpose).await,
            false => Ok(revision),
        }
    }

    async fn read_nodes(
        &mut self,
        name: &LockName,
        lock: &str,
        purpose: &Purpose,
    ) -> Result<u64, StoreError> {
        let is_fresh = std::mem::take(&mut self.client.is_fresh);
        let watch = matches!(purpose, Purpose::Operate);
        let children = Request::Children { path: lock.to_owned(), watch };
        let (revision, reply) =
            self.read_metadata(name, vec![self.catch_up(lock, purpose), children]).await?;
        let listed = reply.map(|reply| nodes(lock, &reply)).transpose()?.unwrap_or_default();
        let before = std::mem::replace(&mut self.nodes, listed);
        self.find_own();
        // Only this client writes its node as long as it waits, unless the lock is frozen: then its own write fails, see `write`.
        // Each other one may have changed.
        let is_waiting = matches!(purpose, Purpose::Claim(_)) && self.held_in.is_none() && !is_fresh;
        let is_own = |node: &Node| is_waiting && Some(node.name.as_str()) == self.own_name();
        if let Some(own) = before.into_iter().find(is_own)
            && let Some(node) = self.nodes.iter_mut().find(|node| node.name == own.name)
        {
            node.stored = own.stored;
        }
        if self.read_values(name, lock, purpose).await? {
            // That a node is gone may be newer than the metadata: it is decided on with a freeze that came before.
            self.read_metadata(name, Vec::new()).await?;
        }
        self.check_own();
        Ok(revision)
    }

    /// Reads the values of the nodes that the purpose depends on, and removes the nodes that are gone. Returns whether there were
    /// any.
    async fn read_values(
        &mut self,
        name: &LockName,
        lock: &str,
        purpose: &Purpose,
    ) -> Result<bool, StoreError> {
        let (mut left, mut are_gone) = (MOST_DATA, false);
        loop {
            // Where one of them is gone, others matter that did not before.
            let unread = self.unread(purpose);
            if unread.is_empty() {
                return Ok(are_gone);
            }
            let mut gone = HashSet::new();
            for batch in unread.chunks(BATCH) {
                let path = |index: &usize| format!("{lock}/{}", self.nodes[*index].name);
                let paths: Vec<String> = batch.iter().map(path).collect();
                let replies = self.exchange_for(&paths, |path| Request::Get { path, watch: false }).await?;
                for ((index, path), reply) in batch.iter().zip(&paths).zip(replies) {
                    left = left.checked_sub(reply.body.len()).ok_or_else(|| too_much_data(lock))?;
                    self.nodes[*index].stored = stored(name, path, &reply)?.map(Box::new);
                    if self.nodes[*index].stored.is_none() {
                        gone.insert(self.nodes[*index].name.clone());
                    }
                }
            }
            are_gone |= !gone.is_empty();
            self.nodes.retain(|node| !gone.contains(&node.name));
        }
    }

    /// Returns those of some locks that a dlock holds or waits for.
    ///
    /// # Errors
    /// The store could not be queried.
    pub(super) async fn used(&mut self, locks: &[(LockName, String)]) -> Result<Vec<LockName>, StoreError> {
        let paths: Vec<String> = locks.iter().map(|(name, _)| self.location().paths(name).lock).collect();
        let replies = self.exchange_for(&paths, |path| Request::Children { path, watch: false }).await?;
        let (mut names, mut firsts) = (Vec::new(), Vec::new());
        for ((name, _), (path, reply)) in locks.iter().zip(paths.iter().zip(&replies)) {
            if let Some(first) = nodes(path, reply)?.first() {
                names.push(name.clone());
                firsts.push(format!("{path}/{}", first.name));
            }
        }
        let replies = self.exchange_for(&firsts, |path| Request::Get { path, watch: false }).await?;
        let mut used = Vec::new();
        for ((name, path), reply) in names.into_iter().zip(firsts).zip(replies) {
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

    /// Sends requests, and one for the metadata of the lock after them. Returns the revision of the store, and the
    /// reply to the last of the requests.
    async fn read_metadata(
        &mut self,
        name: &LockName,
        mut requests: Vec<Request>,
    ) -> Result<(u64, Option<Reply>), StoreError> {
        let path = self.location().paths(name).metadata;
        requests.push(Request::Get { path, watch: false });
        let mut replies = self.client.exchange(&requests).await?;
        let reply = replies.pop().ok_or_else(no_reply)?;
        self.take_metadata(name, &reply)?;
        if reply.code == Code::NO_NODE {
            self.check_chroot().await?;
        }
        Ok((reply.zxid as u64, replies.pop()))
    }

    /// Takes the metadata of the lock from the reply to a request for it.
    pub(super) fn take_metadata(&mut self, name: &LockName, reply: &Reply) -> Result<(), StoreError> {
        let path = self.location().paths(name).metadata;
        let (version, value) = match document(&path, reply)? {
            Some((stat, value)) => (version(&stat), value),
            None => (0, Ok(Ledger::default())),
        };
        self.unreadable = value.as_ref().err().copied();
        let value = value.unwrap_or_default();
        self.metadata = Some(Entry { order: METADATA, version, lease_ends: None, value });
        Ok(())
    }

    pub(super) fn listing(&self, revision: u64, entries: Vec<Entry>) -> Listing {
        let wall = self.wall();
        let now = Now { clock: std::time::Duration::from_micros(wall), wall };
        let no_document =
            || Entry { order: METADATA, version: 0, lease_ends: None, value: Ledger::default() };
        let metadata = self.metadata.clone().unwrap_or_else(no_document);
        Listing { now, revision, lease: None, metadata, unreadable: self.unreadable, entries }
    }

    /// Finds the own node if it is unknown whether it was created.
    fn find_own(&mut self) {
        let recipe = self.location().recipe;
        if let Some(own) = self.own.as_mut().filter(|own| own.name.is_none()) {
            let mark = recipe.mark(&own.id);
            own.name =
                self.nodes.iter().find(|node| node.name.starts_with(&mark)).map(|node| node.name.clone());
        }
    }

    /// Forgets the own node if it is gone, or belongs to another session.
    fn check_own(&mut self) {
        let Some(own) = &self.own else { return };
        let is_ours = |node: &Node| node.stored.as_ref().is_none_or(|read| read.stat.owner == own.session);
        if !self.own_node().is_some_and(is_ours) {
            self.own = None;
        }
    }

    /// Writes into each node of this client that it waits, if that has not reached the server: as soon as nothing is ahead
    /// of it, other clients would believe the value that it was created with, and choose their slots accordingly. Returns
    /// whether there was such a node.
    async fn correct_own(&mut self, lock: &str, purpose: &Purpose) -> Result<bool, StoreError> {
        let mut requests = Vec::new();
        for index in 0..self.nodes.len() {
            let Node { name, stored, .. } = &self.nodes[index];
            let Some(Stored { stat, value: Some(value), .. }) = stored.as_deref() else { continue };
            let is_ours = Some(stat.owner) == self.client.session()
                && value.holders.iter().any(|holder| purpose.is_of(&holder.token));
            if is_ours && self.was_created_behind(index, stat) {
                let mut waiting = value.clone();
                wait_instead(&mut waiting);
                requests.push(swap(format!("{lock}/{name}"), version(stat), &waiting));
                self.nodes[index].stored = None;
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

    /// Returns the nodes whose values matter and were not read, by their places in the list.
    fn unread(&self, purpose: &Purpose) -> Vec<usize> {
        let count = match purpose {
            // Any of those behind it may supersede it.
            Purpose::Claim(claim) if !claim.identity.supersedes => {
                let entitled = entitled(&self.nodes);
                // The slots that are taken, and the hold that a nested run enters, may be any of them.
                let is_any = matches!(claim.mode, Mode::Slots(_)) || !claim.outer.is_empty();
                if is_any { entitled } else { entitled.min(SHOWN) }
            }
            _ => self.nodes.len(),
        };
        let matters = |(index, node): &(usize, &Node)| {
            node.stored.is_none() && (*index < count || self.own_name() == Some(&node.name))
        };
        self.nodes.iter().enumerate().filter(matters).map(|(index, _)| index).collect()
    }

    pub(super) fn own_name(&self) -> Option<&str> {
        self.own.as_ref()?.name.as_deref()
    }

    /// Returns the own node, if it was listed.
    pub(super) fn own_node(&self) -> Option<&Node> {
        self.nodes.iter().find(|node| Some(node.name.as_str()) == self.own_name())
    }

    /// Returns the name of the node of an entry.
    pub(super) fn node_of(&self, order: u64) -> Option<&str> {
        self.nodes.iter().find(|node| node.order == order).map(|node| node.name.as_str())
    }
}

fn too_much_data(lock: &str) -> StoreError {
    StoreError::unanswered(format!("the nodes below {lock} have more than {} MiB of data", MOST_DATA >> 20))
}

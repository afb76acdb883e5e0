//! The store of one client: its session, and the nodes that it has created or read.
//!
//! Opened by the root of the store. What always holds: a node is taken for its own only while its session lasts.

mod entry;
mod listing;
mod nested;
mod writes;

use std::time::Duration;

use super::client::Client;
use super::connection;
use super::location::{FROZEN_NODE, Location, METADATA_NODE};
use super::message::{Request, Stat};
use super::node::Node;
use crate::backend::admin::Listed;
use crate::backend::diagnosis::Diagnosis;
use crate::backend::ledger::entries::{Entries, Entry};
use crate::backend::ledger::{Ledger, Purpose, Store, Unreadable};
use crate::backend::{Change, Reply, StoreError, TryReply};
use crate::clock::{Moment, wall_micros};
use crate::lock::{Freeze, LockName};

/// The session of a client that does not hold a lock.
pub(super) const ADMIN_SESSION: Duration = Duration::from_secs(10);
/// How many requests are sent before their replies are read.
const BATCH: usize = 200;

/// The store of one ensemble, and one client of it.
pub(super) struct ZooKeeperStore {
    pub(super) client: Client,
    /// The node of this client.
    own: Option<OwnNode>,
    /// The name of the node that records the hold of this client: its own, or that of the outer hold.
    held_in: Option<String>,
    /// The nodes of the last listing, and the one that was created since.
    nodes: Vec<Node>,
    /// The metadata of the lock, when it was read last.
    metadata: Option<Entry>,
    /// Why it could not be read then.
    unreadable: Option<Unreadable>,
    /// What the clock of the leader has shown when a node was created, in microseconds since 1970, and when that was; `None`
    /// before one was. The clock of this host may be set meanwhile.
    clock: Option<(u64, Moment)>,
}

/// The node that this client has created in its session.
struct OwnNode {
    session: i64,
    /// In its name; never used for another node.
    id: String,
    /// `None` while it is unknown whether it was created.
    name: Option<String>,
    /// It was the first one when it was created, so that it holds the lock as it is.
    is_first: bool,
    /// Its last value that a dlock has written, as far as it is known.
    value: Option<Ledger>,
}

impl ZooKeeperStore {
    /// Creates the store; does not connect.
    pub fn new(location: Location) -> ZooKeeperStore {
        ZooKeeperStore {
            client: Client::new(location),
            own: None,
            held_in: None,
            nodes: Vec::new(),
            metadata: None,
            unreadable: None,
            clock: None,
        }
    }

    pub(super) fn location(&self) -> &Location {
        &self.client.location
    }

    /// Opens the session; with a new one, nothing that depended on the former one is left.
    ///
    /// # Errors
    /// No server continues or begins it.
    pub(super) async fn open(&mut self, ttl: Duration) -> Result<(), StoreError> {
        self.client.open(ttl).await?;
        if self.own.as_ref().is_some_and(|own| Some(own.session) != self.client.session()) {
            (self.own, self.held_in) = (None, None);
        }
        Ok(())
    }

    /// Returns the names of the nodes below this one that belong to locks, with these locks.
    ///
    /// # Errors
    /// The store could not be queried.
    async fn locks_below(&mut self, path: &str) -> Result<Vec<(LockName, String)>, StoreError> {
        self.open(ADMIN_SESSION).await?;
        let children = Request::Children { path: path.to_owned(), watch: false };
        let reply = self.exchange_one(children).await?;
        let Some(mut reader) = reply.found(path)? else {
            return self.check_chroot().await.map(|()| Vec::new());
        };
        let nodes = reader.texts()?;
        let location = self.location();
        Ok(nodes.into_iter().filter_map(|node| Some((location.name_of(&node)?, node))).collect())
    }

    /// Sends one request about each of these paths, and returns their replies.
    ///
    /// # Errors
    /// The store could not be queried.
    pub(super) async fn exchange_for(
        &mut self,
        paths: &[String],
        request: impl Fn(String) -> Request,
    ) -> Result<Vec<connection::Reply>, StoreError> {
        let requests: Vec<Request> = paths.iter().cloned().map(request).collect();
        self.client.exchange(&requests).await
    }

    pub(super) async fn exchange_one(&mut self, request: Request) -> Result<connection::Reply, StoreError> {
        let mut replies = self.client.exchange(&[request]).await?;
        replies.pop().ok_or_else(no_reply)
    }

    /// Checks that the node exists that all others are below: it is never created.
    pub(super) async fn check_chroot(&mut self) -> Result<(), StoreError> {
        let path = self.location().chroot.clone();
        if path.is_empty() {
            return Ok(());
        }
        let reply = self.exchange_one(Request::Exists { path: path.clone() }).await?;
        reply.found(&path)?.map(drop).ok_or_else(|| no_chroot(&path))
    }

    /// Returns the freeze of the lock in its metadata, when that was read last.
    pub(super) fn freeze(&self) -> Option<&Freeze> {
        self.metadata.as_ref()?.value.freeze()
    }

    /// Returns the time by the clock of the leader, in microseconds since 1970; by that of this host as long as the
    /// other is unknown.
    fn wall(&self) -> u64 {
        let Some((shown, then)) = self.clock else { return wall_micros() };
        let since = (Moment::now() - then).as_micros();
        shown.saturating_add(since.try_into().unwrap_or(u64::MAX))
    }

    /// Notes the time at which a node has just been created.
    fn set_clock(&mut self, created: &Stat) {
        self.clock = Some((created.ctime.unsigned_abs().saturating_mul(1000), Moment::now()));
    }
}

fn no_reply() -> StoreError {
    StoreError::unanswered("no reply")
}

fn no_chroot(path: &str) -> StoreError {
    StoreError::Config(format!("the node {path} in the URL does not exist: create it, or change the URL"))
}

impl Store for ZooKeeperStore {
    type Shape = Entries;

    fn connect(&mut self) -> TryReply<'_, ()> {
        Box::pin(self.client.connect())
    }

    fn list(&mut self, which: Listed) -> TryReply<'_, Vec<LockName>> {
        Box::pin(async move {
            let directory = self.location().directory.clone();
            if which == Listed::WithHistory {
                let recorded = self.locks_below(&format!("{directory}{METADATA_NODE}")).await?;
                return Ok(recorded.into_iter().map(|(name, _)| name).collect());
            }
            let path = if directory == "/" { "/" } else { directory.trim_end_matches('/') };
            let locks = self.locks_below(path).await?;
            let mut used = Vec::new();
            for batch in locks.chunks(BATCH) {
                used.extend(self.used(batch).await?);
            }
            let frozen = self.locks_below(&format!("{directory}{FROZEN_NODE}")).await?;
            used.extend(frozen.into_iter().map(|(name, _)| name));
            used.sort_unstable();
            used.dedup();
            Ok(used)
        })
    }

    fn changed(&mut self) -> Reply<'_, Change> {
        Box::pin(self.client.changed())
    }

    fn examine<'a>(&'a mut self, diagnosis: &'a Diagnosis) -> TryReply<'a, ()> {
        Box::pin(self.examine_ensemble(diagnosis))
    }

    fn unfrozen(&self) -> Option<&str> {
        Some("other programs, such as those with Curator or kazoo")
    }

    fn fails_over(&self) -> bool {
        self.location().servers.len() > 1
    }
}

/// Returns the lease of a session that begins for this purpose.
fn lease_for(purpose: &Purpose) -> Duration {
    purpose.claim().map_or(ADMIN_SESSION, |claim| claim.ttl)
}

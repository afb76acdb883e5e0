//! The store of one client: its session, and the nodes that it has created or read.
//!
//! Opened by the root of the store. What always holds: a node is taken for its own only while its session lasts.

mod entry;
mod listing;
mod nested;
mod writes;

use std::collections::HashMap;
use std::time::Duration;

use super::client::Client;
use super::connection;
use super::errors::Code;
use super::location::{BESIDE_NODE, Location};
use super::message::{Request, Stat};
use super::node::{Node, Stored};
use crate::backend::diagnosis::Diagnosis;
use crate::backend::ledger::entries::{self, Entry};
use crate::backend::ledger::{Done, Ledger, LedgerStore, Observed, Purpose, Step, Unreadable};
use crate::backend::{Change, Reply, StoreError};
use crate::clock::{Moment, wall_micros};
use crate::lock::{Claim, LockName, LockState, NotedRecord};

/// The session of a client that does not hold a lock.
pub(super) const ADMIN_SESSION: Duration = Duration::from_secs(10);
/// How many requests are sent before their replies are read.
const BATCH: usize = 200;

/// The store of one ensemble, and one client of it.
pub(super) struct ZooKeeperStore {
    pub(super) client: Client,
    /// When the last change was requested: leases count from then.
    asked: Moment,
    /// The node of this client.
    own: Option<OwnNode>,
    /// The name of the node that records the hold of this client: its own, or that of the outer hold.
    held_in: Option<String>,
    /// The token of the claim.
    token: String,
    /// The nodes of the last listing, by their orders.
    nodes: HashMap<u64, String>,
    /// The nodes that were read, by name.
    cache: HashMap<String, Stored>,
    /// The document beside the entries, when it was read last.
    beside: Option<Entry>,
    /// Why it could not be read then.
    unreadable: Option<Unreadable>,
    /// How far the clock of the leader is ahead of that of this host, in microseconds; `None` before a node was created.
    clock_offset: Option<i64>,
}

/// The node that this client has created in its session.
struct OwnNode {
    session: i64,
    /// In its name; never used for another node.
    id: String,
    /// `None` while it is unknown whether it was created.
    node: Option<Node>,
    /// It was the first one when it was created, so that it holds the lock as it is.
    is_first: bool,
}

impl ZooKeeperStore {
    /// Creates the store; does not connect.
    pub fn new(location: Location) -> ZooKeeperStore {
        ZooKeeperStore {
            client: Client::new(location),
            asked: Moment::now(),
            own: None,
            held_in: None,
            token: String::new(),
            nodes: HashMap::new(),
            cache: HashMap::new(),
            beside: None,
            unreadable: None,
            clock_offset: None,
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
        match reply.code {
            Code::OK => {}
            Code::NO_NODE => return self.check_chroot().await.map(|()| Vec::new()),
            code => return Err(code.error(path)),
        }
        let nodes = reply.reader().texts()?;
        let location = self.location();
        Ok(nodes.into_iter().filter_map(|node| Some((location.name_of(&node)?, node))).collect())
    }

    pub(super) async fn exchange_one(&mut self, request: Request) -> Result<connection::Reply, StoreError> {
        let mut replies = self.client.exchange(&[request]).await?;
        replies.pop().ok_or_else(|| StoreError::unanswered("no reply"))
    }

    /// Checks that the node exists that all others are below: it is never created.
    pub(super) async fn check_chroot(&mut self) -> Result<(), StoreError> {
        let path = self.location().chroot.clone();
        if path.is_empty() {
            return Ok(());
        }
        match self.exchange_one(Request::Exists { path: path.clone() }).await?.code {
            Code::OK => Ok(()),
            Code::NO_NODE => Err(no_chroot(&path)),
            code => Err(code.error(&path)),
        }
    }

    /// Returns the time by the clock of the leader, in microseconds since 1970; by that of this host as long as the
    /// other is unknown.
    fn wall(&self) -> u64 {
        wall_micros().saturating_add_signed(self.clock_offset.unwrap_or_default())
    }

    /// Notes the time at which a node has just been created.
    fn set_clock(&mut self, created: &Stat) {
        self.clock_offset = Some((created.ctime * 1000).saturating_sub_unsigned(wall_micros()));
    }
}

fn no_chroot(path: &str) -> StoreError {
    StoreError::Config(format!("the node {path} in the URL does not exist: create it, or change the URL"))
}

impl LedgerStore for ZooKeeperStore {
    fn display(&self) -> &str {
        self.client.display()
    }

    fn connect(&mut self) -> Reply<'_, Result<(), StoreError>> {
        Box::pin(self.client.connect())
    }

    async fn change<T: Send + 'static>(
        &mut self,
        name: &LockName,
        purpose: Purpose,
        decide: impl Fn(&mut Ledger, &dyn Observed) -> Step<T> + Send + 'static,
    ) -> Result<Done<T>, StoreError> {
        self.asked = Moment::now();
        if let Some(claim) = claim_of(&purpose) {
            self.token = claim.token.reveal().to_owned();
        }
        // The length of the session has to be known before anything is decided.
        self.open(lease_for(&purpose)).await?;
        let done = entries::change(self, name, &purpose, decide).await?;
        if matches!(purpose, Purpose::Release(_)) && self.own.is_none() && self.held_in.is_none() {
            self.client.close();
        }
        Ok(done)
    }

    async fn read(
        &mut self,
        names: &[LockName],
        view: impl Fn(&LockName, &Ledger, &dyn Observed) -> LockState + Send + 'static,
    ) -> Result<(u64, Vec<LockState>), StoreError> {
        entries::read(self, names, view).await
    }

    fn list(&mut self) -> Reply<'_, Result<Vec<LockName>, StoreError>> {
        Box::pin(async {
            let directory = self.location().directory.clone();
            let path = if directory == "/" { "/" } else { directory.trim_end_matches('/') };
            let locks = self.locks_below(path).await?;
            let mut used = Vec::new();
            for batch in locks.chunks(BATCH) {
                used.extend(self.used(batch).await?);
            }
            Ok(used)
        })
    }

    fn list_recorded(&mut self) -> Reply<'_, Result<Vec<LockName>, StoreError>> {
        Box::pin(async {
            let path = format!("{}{BESIDE_NODE}", self.location().directory);
            let locks = self.locks_below(&path).await?;
            Ok(locks.into_iter().map(|(name, _)| name).collect())
        })
    }

    fn history<'a>(&'a mut self, name: &'a LockName) -> Reply<'a, Result<Vec<NotedRecord>, StoreError>> {
        Box::pin(entries::history(self, name))
    }

    fn changed(&mut self) -> Reply<'_, Change> {
        Box::pin(self.client.changed())
    }

    fn examine<'a>(&'a mut self, diagnosis: &'a Diagnosis) -> Reply<'a, Result<(), StoreError>> {
        Box::pin(self.examine_ensemble(diagnosis))
    }

    fn fails_over(&self) -> bool {
        self.location().servers.len() > 1
    }
}

fn claim_of(purpose: &Purpose) -> Option<&Claim> {
    match purpose {
        Purpose::Claim(claim) | Purpose::Renew(claim) | Purpose::Release(claim) => Some(claim),
        Purpose::Operate | Purpose::Prepare | Purpose::Record => None,
    }
}

/// Returns the lease of a session that begins for this purpose.
fn lease_for(purpose: &Purpose) -> Duration {
    claim_of(purpose).map_or(ADMIN_SESSION, |claim| claim.ttl)
}

//! Redlock: a lock held at a majority of independent masters (<https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>).
//!
//! Every request is sent to all nodes concurrently; each node is a separate [`RedisStore`](super::RedisStore). The
//! outcome is decided as soon as enough replies have arrived ([`quorum`]). The other requests continue, and their
//! replies are processed afterwards. A claim that is not granted by a majority is released at every node that may have
//! granted it.

mod claim;
mod contention;
mod doctor;
mod fencing;
mod hold;
mod inspect;
mod merge;
mod node;
mod nodes;
mod queue;
mod quorum;
mod round;
mod verdict;
mod wait;

use std::rc::Rc;
use std::time::Duration;

use self::node::{NodeClient, limit};
use self::nodes::{Purpose, RedlockNodes};
use self::queue::QueueTicket;
use self::quorum::{Replies, STRAGGLERS};
use self::round::NodeReply;
use super::location::Location;
use crate::backend::{Attempt, Backend, Change, Hazard, Intent, Release, Renewal, Reply, StoreError};
use crate::lock::{Claim, LockName, Record};

/// A Redlock store: the nodes, and the latest claim.
pub struct RedlockStore {
    location: Location,
    nodes: RedlockNodes,
    /// The claim that was requested last.
    latest: Option<LatestClaim>,
}

/// The claim that was requested last.
struct LatestClaim {
    claim: Rc<Claim>,
    ticket: QueueTicket,
    /// The number of attempts in which no client got a majority.
    splits: u32,
    /// Set while the claim holds the lock.
    hold: Option<Hold>,
}

/// A hold that a majority of nodes has granted.
struct Hold {
    fencing: u64,
    /// The replies that arrived, or will arrive, after the outcome was decided.
    late: Vec<LateReplies>,
    /// The nodes do not report changes of the lock's key yet.
    is_untracked: bool,
}

/// Replies to a request whose outcome is already decided.
enum LateReplies {
    /// To a claim that a majority has granted.
    Claim(Replies<NodeReply>),
    /// To a renewal that a majority has confirmed.
    Renewal(Replies<Renewal>),
}

impl LatestClaim {
    fn is(&self, claim: &Claim) -> bool {
        self.claim.token == claim.token && self.claim.name == claim.name
    }
}

impl RedlockStore {
    /// Creates the store without connecting to any node.
    pub fn new(location: Location) -> RedlockStore {
        RedlockStore { nodes: RedlockNodes::new(&location), location, latest: None }
    }

    fn all(&self) -> std::ops::Range<usize> {
        0..self.nodes.count()
    }

    /// Returns the state of this claim; the state of any other claim is discarded.
    fn state_of(&mut self, claim: &Rc<Claim>) -> &mut LatestClaim {
        self.latest.take_if(|latest| !latest.is(claim));
        self.latest.get_or_insert_with(|| LatestClaim {
            claim: Rc::clone(claim),
            ticket: QueueTicket::default(),
            splits: 0,
            hold: None,
        })
    }

    /// The hold of the latest claim, if a majority has granted it.
    fn hold(&mut self) -> Option<&mut Hold> {
        self.latest.as_mut()?.hold.as_mut()
    }

    /// Connects the nodes that are not connected, and waits until a majority is. While a lock is held it waits no
    /// longer than [`STRAGGLERS`].
    async fn connect_majority(&mut self) -> Result<(), StoreError> {
        let (count, quorum) = (self.nodes.count(), self.nodes.quorum());
        let is_held = self.hold().is_some();
        let replies = self.nodes.no_replies();
        let decided = |nodes: &mut RedlockNodes| {
            let connected = (0..count).filter(|node| nodes.is_connected(*node) == Some(true)).count();
            let is_new =
                |node: &usize| nodes.is_connected(*node) == Some(false) && replies.of(*node).is_none();
            let new: Vec<usize> = (0..count).filter(is_new).collect();
            nodes.send(&replies, new, Purpose::Connect, Duration::MAX, async |_: &mut NodeClient| Ok(()));
            let failed = replies.failed();
            match connected >= quorum {
                true => Some(Ok(())),
                false => (failed.len() > count - quorum).then_some(Err(failed)),
            }
        };
        let decided = self.nodes.until(decided);
        let outcome = match is_held {
            false => decided.await,
            // A held lock is renewed and released at every node that can be reached.
            true => tokio::time::timeout(STRAGGLERS, decided).await.map_or(Ok(()), |_| Ok(())),
        };
        outcome.map_err(|failed| self.nodes.unavailable(&failed))
    }

    /// Sends these nodes a request to release whatever the claim has there: its hold or its queue position.
    fn request_release(
        &mut self,
        nodes: impl IntoIterator<Item = usize>,
        claim: &Rc<Claim>,
        rest: Duration,
        record: Option<&Record>,
    ) -> Replies<Release> {
        let (claim, record) = (Rc::clone(claim), record.cloned());
        self.nodes.request(nodes, Purpose::Other, limit(claim.ttl), async move |node: &mut NodeClient| {
            node.store.release(&claim, rest, record.as_ref()).await
        })
    }
}

impl Backend for RedlockStore {
    fn display(&self) -> &str {
        self.location.display()
    }

    fn connect(&mut self) -> Reply<'_, Result<(), StoreError>> {
        Box::pin(self.connect_majority())
    }

    /// Takes one round trip to all nodes, and a second one where they do not agree on the fencing token or the queue
    /// position. A claim without a majority is released at the nodes before this returns.
    fn try_acquire<'a>(
        &'a mut self,
        claim: &'a Claim,
        intent: Intent,
    ) -> Reply<'a, Result<Attempt, StoreError>> {
        Box::pin(self.claim(claim, intent))
    }

    fn renew<'a>(&'a mut self, claim: &'a Claim, rest: Duration) -> Reply<'a, Result<Renewal, StoreError>> {
        Box::pin(self.renew_hold(claim, rest))
    }

    fn release<'a>(
        &'a mut self,
        claim: &'a Claim,
        rest: Duration,
        record: Option<&'a Record>,
    ) -> Reply<'a, Result<Release, StoreError>> {
        Box::pin(self.release_hold(claim, rest, record))
    }

    fn record<'a>(&'a mut self, name: &'a LockName, record: &'a Record) -> Reply<'a, Result<(), StoreError>> {
        Box::pin(self.keep_record(name, record))
    }

    fn hazard(&self) -> Option<Hazard> {
        let unfit = self.nodes.unfit().map(Hazard::Node);
        unfit.or_else(|| self.nodes.eviction().map(Hazard::Eviction))
    }

    fn changed(&mut self) -> Reply<'_, Change> {
        Box::pin(self.next_change())
    }
}

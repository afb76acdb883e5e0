//! Redlock: a lock held at a majority of independent masters (<https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>).
//!
//! Every request is sent to all nodes concurrently; each node is a separate [`RedisStore`](super::RedisStore). The
//! outcome is decided as soon as enough replies have arrived ([`quorum`]). The other requests continue, and their
//! replies are processed afterwards. A claim that is not granted by a majority is released at every node that may have
//! granted it.
//!
//! Opened by the root of the store. What always holds: a claim is granted only while a majority of the nodes holds it.

mod claim;
mod contention;
mod doctor;
mod fencing;
mod inspect;
mod merge;
mod node;
mod nodes;
mod queue;
mod quorum;
mod verdict;
mod wait;

use std::rc::Rc;
use std::time::Duration;

use tokio::time::timeout;

use self::node::{NodeClient, NodeReply, Purpose, limit};
use self::nodes::{RedlockNodes, STRAGGLERS};
use self::queue::QueueTicket;
use self::quorum::Replies;
use super::location::Location;
use super::script::AsNode;
use crate::backend::{
    Attempt, Backend, Change, Ending, Hazard, Intent, Loss, Release, Renewal, Reply, StoreError, TryReply,
};
use crate::lock::{Claim, LockName, Record};

/// A Redlock store: the nodes, and the latest claim.
pub struct RedlockStore {
    location: Location,
    nodes: RedlockNodes,
    latest: Option<LatestClaim>,
}

struct LatestClaim {
    claim: Rc<Claim>,
    ticket: QueueTicket,
    /// The number of attempts in which no client got a majority.
    splits: u32,
    /// Set while the claim holds the lock.
    hold: Option<QuorumHold>,
}

struct QuorumHold {
    fencing: u64,
    /// The replies to the claim that arrived, or will arrive, after the outcome was decided.
    late_claims: Replies<NodeReply>,
    /// The same for renewals.
    late_renewals: Vec<Replies<Renewal>>,
    /// The nodes do not report changes of the lock's key yet.
    is_untracked: bool,
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
    fn hold(&mut self) -> Option<&mut QuorumHold> {
        self.latest.as_mut()?.hold.as_mut()
    }

    /// Repairs the nodes whose replies arrived after the decision. A node that granted the lock with another fencing
    /// token records the agreed one. A node that has lost the hold, or where the claim is still queued, grants the hold
    /// again unless another client holds the lock there.
    pub(super) fn repair_late_nodes(&mut self) {
        let Some(latest) = &mut self.latest else { return };
        let Some(hold) = &mut latest.hold else { return };
        let (mut wrong_token, mut lost) = (Vec::new(), Vec::new());
        for (node, reply) in hold.late_claims.take() {
            match reply.fencing() {
                Some(fencing) if fencing != hold.fencing => wrong_token.push(node),
                // Its queue notifies this client when the lock is free. If the claim only left the queue, the node
                // would notify the next waiter instead.
                None if reply.number().is_some() => lost.push(node),
                _ => {}
            }
        }
        hold.late_renewals.retain(|renewals| {
            // A client that holds the lock there instead is not disturbed, unless it is the outer hold.
            let is_lost = |(node, renewal)| matches!(renewal, Renewal::Lost(_)).then_some(node);
            lost.extend(renewals.take().into_iter().filter_map(is_lost));
            !renewals.is_complete()
        });
        let (fencing, limit) = (hold.fencing, limit(latest.claim.ttl));
        let claim = Rc::clone(&latest.claim);
        let is_established = true;
        self.nodes.request(wrong_token, Purpose::Other, limit, async move |node: &mut NodeClient| {
            node.fence(&claim, fencing, is_established).await
        });
        let claim = Rc::clone(&latest.claim);
        self.nodes.request(lost, Purpose::Claim, limit, async move |node: &mut NodeClient| {
            node.claim(&claim, Intent::TakeNow, true, AsNode::new(None, Some(fencing))).await
        });
    }

    /// Sends these nodes a request to release whatever the claim has there: its hold or its queue position.
    fn request_release(
        &mut self,
        nodes: impl IntoIterator<Item = usize>,
        claim: &Claim,
        rest: Duration,
        ending: Ending<'_>,
    ) -> Replies<Release> {
        let (claim, record) = (claim.clone(), ending.record.cloned());
        let Ending { success, is_repeated, .. } = ending;
        self.nodes.request(nodes, Purpose::Other, limit(claim.ttl), async move |node: &mut NodeClient| {
            node.store.release(&claim, rest, Ending { record: record.as_ref(), success, is_repeated }).await
        })
    }
}

impl Backend for RedlockStore {
    /// Connects the nodes that are not connected, and waits until a majority is. While a lock is held it waits no
    /// longer than [`STRAGGLERS`].
    fn connect(&mut self) -> TryReply<'_, ()> {
        let (count, quorum) = (self.nodes.count(), self.nodes.quorum());
        let is_held = self.hold().is_some();
        let replies = self.nodes.no_replies();
        let all = replies.clone();
        let decided = move |nodes: &mut RedlockNodes| {
            let is_new =
                |node: &usize| nodes.is_connected(*node) == Some(false) && replies.of(*node).is_none();
            let new: Vec<usize> = (0..count).filter(is_new).collect();
            nodes.send(&replies, new, Purpose::Connect, Duration::MAX, async |_: &mut NodeClient| Ok(()));
            let connected = (0..count).filter(|node| nodes.is_connected(*node) == Some(true)).count();
            let failed = replies.failed();
            match connected >= quorum {
                true => Some(Ok(())),
                false => (failed.len() > count - quorum).then_some(Err(())),
            }
        };
        Box::pin(async move {
            let decided = self.nodes.until(decided);
            match is_held {
                false => match decided.await {
                    Ok(()) => Ok(()),
                    // Nodes that fail for the same reason fail at about the same time, and are counted.
                    Err(()) => {
                        self.nodes.complete_within(STRAGGLERS, &all).await;
                        Err(self.nodes.unavailable(&all.failed()))
                    }
                },
                // A held lock is renewed and released at every node that can be reached.
                true => {
                    let _ = timeout(STRAGGLERS, decided).await;
                    Ok(())
                }
            }
        })
    }

    /// Takes one round trip to all nodes, and a second one where they do not agree on the fencing token or the queue
    /// position. A claim without a majority is released at the nodes before this returns.
    fn try_acquire<'a>(&'a mut self, claim: &'a Claim, intent: Intent) -> TryReply<'a, Attempt> {
        Box::pin(self.claim(claim, intent))
    }

    /// Renews the hold at all nodes; a majority suffices. The hold is restored at nodes that have lost it.
    fn renew<'a>(&'a mut self, claim: &'a Claim, rest: Duration) -> TryReply<'a, Renewal> {
        Box::pin(async move {
            self.repair_late_nodes();
            let renewed = claim.clone();
            let renew = async move |node: &mut NodeClient| node.store.renew(&renewed, rest).await;
            let replies = self.nodes.request(self.all(), Purpose::Renewal, limit(claim.ttl), renew);
            let is_held = |renewal: &Renewal| matches!(renewal, Renewal::Held { .. });
            let is_lost = |renewal: &Renewal| matches!(renewal, Renewal::Lost(_));
            let is_decided = || replies.has_majority(is_held) || replies.excludes_majority(is_lost);
            self.nodes.decided_or_complete(&replies, is_decided).await;
            if replies.has_majority(is_held) {
                let renewal = merged(replies.succeeded());
                if let Some(latest) = self.latest.as_mut().filter(|latest| latest.is(claim))
                    && let Some(hold) = &mut latest.hold
                {
                    hold.is_untracked = false;
                    hold.late_renewals.push(replies);
                    self.repair_late_nodes();
                }
                return Ok(renewal);
            }
            if replies.excludes_majority(is_lost) {
                let is_taken = |renewal: &Renewal| *renewal == Renewal::Lost(Loss::Taken);
                let is_free = replies.nodes(is_taken).is_empty();
                return Ok(Renewal::Lost(if is_free { Loss::Gone } else { Loss::Taken }));
            }
            // Undecided only because of the nodes that failed.
            Err(self.nodes.unavailable(&replies.failed()))
        })
    }

    /// Releases the hold, or leaves the queue, at all nodes.
    fn release<'a>(
        &'a mut self,
        claim: &'a Claim,
        rest: Duration,
        ending: Ending<'a>,
    ) -> TryReply<'a, Release> {
        Box::pin(async move {
            self.latest.take_if(|latest| latest.is(claim));
            let replies = self.request_release(self.all(), claim, rest, ending);
            self.nodes.decided_or_complete(&replies, || released(&replies).is_some()).await;
            // The other nodes have to receive the release as well; it is sent at the latest when their claims are
            // cancelled.
            if !self.nodes.complete_within(STRAGGLERS, &replies).await {
                self.nodes.cancel();
            }
            released(&replies).ok_or_else(|| self.nodes.unavailable(&replies.failed()))
        })
    }

    /// Stores a record at all nodes; a majority suffices.
    fn add_record<'a>(&'a mut self, name: &'a LockName, record: &'a Record) -> TryReply<'a, ()> {
        Box::pin(async move {
            let (name, record) = (name.clone(), record.clone());
            let store = async move |node: &mut NodeClient| node.store.add_record(&name, &record).await;
            self.nodes.request_majority(limit(Duration::MAX), store).await.map(drop)
        })
    }

    fn explained(&self, late: StoreError) -> StoreError {
        self.nodes.explained(late)
    }

    fn hazard(&self) -> Option<Hazard> {
        self.nodes.hazard()
    }

    /// Waits for the first relevant change that any node reports.
    fn changed(&mut self) -> Reply<'_, Change> {
        Box::pin(async {
            if self.hold().is_some_and(|hold| std::mem::take(&mut hold.is_untracked)) {
                // Causes one more renewal, from which on the nodes report changes.
                return Change::Touched;
            }
            loop {
                match self.nodes.changed().await {
                    // A request has completed.
                    None => self.repair_late_nodes(),
                    // Losing one node does not disconnect the store; the next request connects the node again.
                    Some((_, Change::Disconnected | Change::Touched)) => return Change::Touched,
                    // A notification of the queue in which the claim waited before.
                    Some(_) if self.hold().is_some() => {}
                    Some((_, change)) => return change,
                }
            }
        })
    }
}

/// Merges the renewals of a majority of nodes.
fn merged(renewals: Vec<(usize, Renewal)>) -> Renewal {
    let (mut least_lease, mut revocation): (Option<Duration>, _) = (None, None);
    for (_, renewal) in renewals {
        if let Renewal::Held { lease, revoked } = renewal {
            least_lease = least_lease.into_iter().chain(lease).min();
            revocation = revocation.or(revoked);
        }
    }
    Renewal::Held { lease: least_lease, revoked: revocation }
}

/// Returns the outcome that a majority reports; `None` if there is none, or none yet.
fn released(replies: &Replies<Release>) -> Option<Release> {
    let is_kept = |release: &Release| *release == Release::Kept;
    if replies.has_majority(|release| is_kept(release) || *release == Release::Released) {
        return Some(if replies.nodes(is_kept).is_empty() { Release::Released } else { Release::Kept });
    }
    let mut unrecorded = replies.succeeded().into_iter().map(|(_, release)| release);
    let unrecorded = unrecorded.find(|release| matches!(release, Release::SuccessNotStored(_)));
    if unrecorded.is_some()
        && replies.is_complete()
        && replies.has_majority(|release| *release != Release::NotHeld)
    {
        return unrecorded;
    }
    replies.excludes_majority(|release| *release == Release::NotHeld).then_some(Release::NotHeld)
}

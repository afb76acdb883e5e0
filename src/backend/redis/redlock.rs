//! Redlock: a lock held at a majority of independent masters (<https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>).
//!
//! Every request is sent to all nodes concurrently; each node is a separate [`RedisStore`](super::RedisStore). The
//! outcome is decided as soon as enough replies have arrived. The other requests continue, and their replies are
//! processed afterwards. A claim that is not granted by a majority is released at every node that may have granted it.

mod asking;
mod claiming;
mod contention;
mod doctor;
mod fencing;
mod holding;
mod inspect;
mod nodes;
mod queue;
mod round;
mod verdict;
mod waiting;

use std::rc::Rc;
use std::time::Duration;

use tokio::time::timeout;

use self::asking::{NodeReply, limit};
use self::nodes::{PendingReply, RedlockNodes, Turn};
use self::queue::QueueTicket;
use super::Location;
use crate::backend::{Attempt, Backend, Change, Hazard, Intent, Release, Renewal, Reply, StoreError};
use crate::lock::{Claim, LockName, Record, Token};

/// A Redlock store: the nodes, and the latest claim.
pub struct RedlockStore {
    location: Location,
    nodes: RedlockNodes,
    /// The ids assigned to nodes that do not have one yet.
    ids: Vec<Rc<str>>,
    /// The claim that was requested last.
    latest: Option<LatestClaim>,
    /// Replies that arrived, or will arrive, after the outcome was decided.
    late: Vec<(usize, LateReply)>,
    /// The lock is held, but the nodes do not report changes of its key yet.
    is_untracked: bool,
}

/// The state of the latest claim.
struct LatestClaim {
    token: Token,
    name: LockName,
    ticket: QueueTicket,
    /// The number of attempts in which no client got a majority.
    splits: u32,
    /// Set while the claim holds the lock.
    held: Option<QuorumHold>,
}

/// A hold that a majority of nodes has granted.
struct QuorumHold {
    claim: Rc<Claim>,
    fencing: u64,
}

/// A pending reply to a request whose outcome is already decided.
enum LateReply {
    /// To a claim that a majority has granted.
    Claim(PendingReply<NodeReply>),
    /// To a renewal that a majority has confirmed.
    Renewal(PendingReply<Renewal>),
}

/// How long the remaining nodes are waited for after a majority has replied: long enough for a busy node, short enough
/// for one that hangs.
const STRAGGLERS: Duration = Duration::from_millis(250);

impl RedlockStore {
    /// Creates the store without connecting to any node.
    pub fn new(location: Location) -> RedlockStore {
        RedlockStore {
            nodes: RedlockNodes::new(&location),
            location,
            ids: Vec::new(),
            latest: None,
            late: Vec::new(),
            is_untracked: false,
        }
    }

    fn all(&self) -> std::ops::Range<usize> {
        0..self.nodes.count()
    }

    /// Returns the state of this claim; the state of any other claim is discarded.
    fn state_of(&mut self, claim: &Claim) -> &mut LatestClaim {
        self.latest.take_if(|latest| latest.token != claim.token || latest.name != claim.name);
        self.latest.get_or_insert_with(|| LatestClaim {
            token: claim.token.clone(),
            name: claim.name.clone(),
            ticket: QueueTicket::default(),
            splits: 0,
            held: None,
        })
    }

    /// Whether this is the latest claim.
    fn is_latest(&self, claim: &Claim) -> bool {
        self.latest.as_ref().is_some_and(|latest| latest.token == claim.token && latest.name == claim.name)
    }

    /// Whether a majority has granted this claim, as far as this client knows.
    fn is_held_by(&self, claim: &Claim) -> bool {
        self.is_latest(claim) && self.latest.as_ref().is_some_and(|latest| latest.held.is_some())
    }

    /// Connects the nodes that are not connected, and waits until a majority is. While a lock is held it waits no
    /// longer than [`STRAGGLERS`].
    async fn connect_majority(&mut self) -> Result<(), StoreError> {
        let (count, quorum) = (self.nodes.count(), self.nodes.quorum());
        let mut replies: Vec<Option<PendingReply<()>>> = vec![None; count];
        let decided = |nodes: &mut RedlockNodes| {
            let mut connected = 0;
            let mut failed = Vec::new();
            for (node, reply) in replies.iter_mut().enumerate() {
                let outcome = reply.as_ref().and_then(|reply| reply.borrow().clone());
                match (nodes.is_connected(node), outcome) {
                    (Some(true), _) => connected += 1,
                    (_, Some(Err(error))) => failed.push((node, error)),
                    (Some(false), None) => *reply = nodes.connect(node),
                    (Some(false), Some(Ok(()))) | (None, _) => {}
                }
            }
            let is_decided = connected >= quorum || failed.len() > count - quorum;
            is_decided.then_some(if connected >= quorum { Ok(()) } else { Err(failed) })
        };
        let is_held = self.latest.as_ref().is_some_and(|latest| latest.held.is_some());
        let decided = self.nodes.until(decided);
        let failed = match is_held {
            false => decided.await,
            // A held lock is renewed and released at every node that can be reached.
            true => timeout(STRAGGLERS, decided).await.map_or(Ok(()), |_| Ok(())),
        };
        failed.map_err(|failed| self.unreachable(&failed))
    }

    /// Returns the error for a majority that is unavailable because these nodes failed.
    fn unreachable(&self, failed: &[(usize, StoreError)]) -> StoreError {
        let spare = self.nodes.count() - self.nodes.quorum();
        let is_final = |error: &StoreError| !matches!(error, StoreError::Unavailable { .. });
        let transient = failed.iter().filter(|(_, error)| !is_final(error)).count();
        // A permanent error is reported if the permanent errors alone prevent a majority, or if the transient errors
        // alone would not.
        let reported = match failed.iter().find(|(_, error)| is_final(error)) {
            Some(permanent) if failed.len() - transient > spare || transient <= spare => Some(permanent),
            _ => failed.iter().find(|(_, error)| !is_final(error)).or(failed.first()),
        };
        let Some((node, error)) = reported else { return StoreError::unreachable("no node is available") };
        let text = format!(
            "{} of {} nodes are unavailable ({}: {error})",
            failed.len(),
            self.nodes.count(),
            self.nodes.name(*node)
        );
        let maybe_applied =
            |error: &StoreError| matches!(error, StoreError::Unavailable { maybe_applied: true, .. });
        match error {
            StoreError::Unavailable { .. } if failed.iter().any(|(_, error)| maybe_applied(error)) => {
                StoreError::unanswered(text)
            }
            StoreError::Unavailable { .. } => StoreError::unreachable(text),
            StoreError::Denied(_) => StoreError::Denied(text),
            StoreError::Config(_) => StoreError::Config(text),
        }
    }

    /// Sends these nodes a request to release whatever the claim has there: its hold or its queue position.
    fn begin_release(
        &mut self,
        nodes: impl Iterator<Item = usize>,
        claim: &Rc<Claim>,
        rest: Duration,
        record: Option<&Record>,
    ) -> Vec<(usize, PendingReply<Release>)> {
        let record = Rc::new(record.cloned());
        let limit = limit(claim.ttl);
        let begin = |node| {
            let (claim, record) = (Rc::clone(claim), Rc::clone(&record));
            let reply = self.nodes.request(node, Turn::Last, limit, move |store, _| {
                Box::pin(async move {
                    let released = store.release(&claim, rest, record.as_ref().as_ref());
                    timeout(limit, released).await.unwrap_or_else(|_| Err(asking::timed_out(limit)))
                })
            });
            (node, reply)
        };
        nodes.map(begin).collect()
    }
}

/// Whether all replies have arrived.
fn all_arrived<A>(replies: &[(usize, PendingReply<A>)]) -> bool {
    replies.iter().all(|(_, reply)| reply.borrow().is_some())
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

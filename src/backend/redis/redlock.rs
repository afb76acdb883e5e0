//! Redlock: independent masters, of which a majority decides (<https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>).
//!
//! Every question goes to all nodes at the same time, each of which is a [`RedisStore`](super::RedisStore) of its own. What can be decided is
//! decided as soon as enough of them have answered; the others go on being asked, and what they answer is put in order
//! afterwards. What a node was asked and did not grant a majority of is taken back from it.

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
use self::queue::Line;
use super::Location;
use crate::backend::{Attempt, Backend, Change, Hazard, Intent, Release, Renewal, Reply, StoreError};
use crate::lock::{Claim, LockName, Record, Token};

/// The store.
pub struct RedlockStore {
    location: Location,
    nodes: RedlockNodes,
    /// What the nodes are called from now on if they have no names yet.
    ids: Vec<Rc<str>>,
    /// What is known of the claim that was asked for last.
    last: Option<Last>,
    /// Answers that came, or will come, when everything was decided.
    late: Vec<(usize, Late)>,
    /// A lock is ours, and whoever touches it is not told to us yet.
    is_untracked: bool,
}

/// A claim, and how far it has come.
struct Last {
    token: Token,
    name: LockName,
    /// Its place in the line.
    line: Line,
    /// So many times nobody got a majority.
    splits: u32,
    /// It holds the lock with this number.
    held: Option<QuorumHold>,
}

/// A hold that a majority of nodes has granted.
struct QuorumHold {
    claim: Rc<Claim>,
    fencing: u64,
}

/// An answer to come.
enum Late {
    /// To a claim that has been granted meanwhile.
    Claim(PendingReply<NodeReply>),
    /// To a renewal that a majority has granted meanwhile.
    Renewal(PendingReply<Renewal>),
}

/// The others get so long to answer as well when a majority has released a lock: a busy node does that, and nobody waits long
/// for one that hangs.
const STRAGGLERS: Duration = Duration::from_millis(250);

impl RedlockStore {
    /// Names the store; contacts nobody.
    pub fn new(location: Location) -> RedlockStore {
        RedlockStore {
            nodes: RedlockNodes::new(&location),
            location,
            ids: Vec::new(),
            last: None,
            late: Vec::new(),
            is_untracked: false,
        }
    }

    fn all(&self) -> std::ops::Range<usize> {
        0..self.nodes.count()
    }

    /// What is known of this claim, and nothing any more of others.
    fn last_of(&mut self, claim: &Claim) -> &mut Last {
        self.last.take_if(|last| last.token != claim.token || last.name != claim.name);
        self.last.get_or_insert_with(|| Last {
            token: claim.token.clone(),
            name: claim.name.clone(),
            line: Line::default(),
            splits: 0,
            held: None,
        })
    }

    /// Whether it is this claim that something is known of.
    fn is_last(&self, claim: &Claim) -> bool {
        self.last.as_ref().is_some_and(|last| last.token == claim.token && last.name == claim.name)
    }

    /// Whether a majority has granted this claim to us, as far as we know.
    fn has_held(&self, claim: &Claim) -> bool {
        self.is_last(claim) && self.last.as_ref().is_some_and(|last| last.held.is_some())
    }

    /// Connects whoever is not connected, and waits until a majority is.
    async fn connect_majority(&mut self) -> Result<(), StoreError> {
        let (count, quorum) = (self.nodes.count(), self.nodes.quorum());
        let mut slots: Vec<Option<PendingReply<()>>> = vec![None; count];
        let decided = |nodes: &mut RedlockNodes| {
            let mut connected = 0;
            let mut failed = Vec::new();
            for (node, slot) in slots.iter_mut().enumerate() {
                let outcome = slot.as_ref().and_then(|slot| slot.borrow().clone());
                match (nodes.is_connected(node), outcome) {
                    (Some(true), _) => connected += 1,
                    (_, Some(Err(error))) => failed.push((node, error)),
                    (Some(false), None) => *slot = nodes.connect(node),
                    (Some(false), Some(Ok(()))) | (None, _) => {}
                }
            }
            let is_decided = connected >= quorum || failed.len() > count - quorum;
            is_decided.then_some(if connected >= quorum { Ok(()) } else { Err(failed) })
        };
        let is_held = self.last.as_ref().is_some_and(|last| last.held.is_some());
        let decided = self.nodes.until(decided);
        let failed = match is_held {
            false => decided.await,
            // What is ours is renewed and released wherever that can be done.
            true => timeout(STRAGGLERS, decided).await.map_or(Ok(()), |_| Ok(())),
        };
        failed.map_err(|failed| self.unreachable(&failed))
    }

    /// What it means that these nodes cannot be asked, and therefore no majority can.
    fn unreachable(&self, failed: &[(usize, StoreError)]) -> StoreError {
        let spare = self.nodes.count() - self.nodes.quorum();
        let is_final = |error: &StoreError| !matches!(error, StoreError::Unavailable { .. });
        let passing = failed.iter().filter(|(_, error)| !is_final(error)).count();
        // Without those that refuse us there would be a majority, if the others could be reached.
        let tells = match failed.iter().find(|(_, error)| is_final(error)) {
            Some(refusing) if failed.len() - passing > spare || passing <= spare => Some(refusing),
            _ => failed.iter().find(|(_, error)| !is_final(error)).or(failed.first()),
        };
        let Some((node, error)) = tells else { return StoreError::unreachable("no node can be asked") };
        let text = format!(
            "{} of {} nodes cannot be asked ({}: {error})",
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

    /// Asks these nodes to give up what the claim has there.
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
            let slot = self.nodes.ask(node, Turn::Last, limit, move |store, _| {
                Box::pin(async move {
                    let released = store.release(&claim, rest, record.as_ref().as_ref());
                    timeout(limit, released).await.unwrap_or_else(|_| Err(asking::no_answer(limit)))
                })
            });
            (node, slot)
        };
        nodes.map(begin).collect()
    }
}

/// A random share of a duration.
pub(super) fn share_of(most: Duration) -> Duration {
    let mut byte = [0u8; 2];
    match getrandom::fill(&mut byte) {
        Ok(()) => most.mul_f64(f64::from(u16::from_le_bytes(byte)) / f64::from(u16::MAX)),
        Err(_) => most,
    }
}

/// Whether all have answered.
fn are_answered<A>(slots: &[(usize, PendingReply<A>)]) -> bool {
    slots.iter().all(|(_, slot)| slot.borrow().is_some())
}

impl Backend for RedlockStore {
    fn display(&self) -> &str {
        self.location.display()
    }

    fn connect(&mut self) -> Reply<'_, Result<(), StoreError>> {
        Box::pin(self.connect_majority())
    }

    /// One flight to all nodes, two where they do not agree on the fencing token or the place in the line. What does not
    /// come to a majority is taken back before this answers.
    fn try_acquire<'a>(
        &'a mut self,
        claim: &'a Claim,
        intent: Intent,
    ) -> Reply<'a, Result<Attempt, StoreError>> {
        Box::pin(self.claim(claim, intent))
    }

    fn renew<'a>(&'a mut self, claim: &'a Claim, rest: Duration) -> Reply<'a, Result<Renewal, StoreError>> {
        Box::pin(self.keep(claim, rest))
    }

    fn release<'a>(
        &'a mut self,
        claim: &'a Claim,
        rest: Duration,
        record: Option<&'a Record>,
    ) -> Reply<'a, Result<Release, StoreError>> {
        Box::pin(self.give_up(claim, rest, record))
    }

    fn record<'a>(&'a mut self, name: &'a LockName, record: &'a Record) -> Reply<'a, Result<(), StoreError>> {
        Box::pin(self.note(name, record))
    }

    fn hazard(&self) -> Option<Hazard> {
        let unfit = self.nodes.unfit().map(Hazard::Node);
        unfit.or_else(|| self.nodes.eviction().map(Hazard::Eviction))
    }

    fn changed(&mut self) -> Reply<'_, Change> {
        Box::pin(self.hear())
    }
}

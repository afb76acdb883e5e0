//! Acquiring a lock at a majority of nodes.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::asking::{Fenced, NodeClaim, NodeReply, limit};
use super::contention::{Contention, contention};
use super::fencing::{Step, step};
use super::nodes::{PendingReply, RedlockNodes, Turn, as_permanent};
use super::round::Round;
use super::verdict::{Verdict, verdict};
use super::{LateReply, QuorumHold, RedlockStore, all_arrived};
use crate::backend::{Again, Attempt, Busy, Intent, Refusal, StoreError, jitter};
use crate::lock::{Claim, FencingToken, Grant};

/// How often a claim that does not wait is tried while no client has a majority.
const MOST_SPLITS: u32 = 20;
/// The pause before the second try is a random part of this; the limit doubles with each try, ...
const SPLIT_PAUSE: Duration = Duration::from_millis(10);
/// ... but is not more than this.
const LONGEST_SPLIT_PAUSE: Duration = Duration::from_millis(100);
/// How often a claim writes a fencing token back. Claims that share a lock may take each other's numbers.
const MOST_WRITE_BACKS: u32 = 8;

/// What of a claim is released at the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The holds.
    Grants,
    /// The holds and the queue positions.
    All,
}

impl RedlockStore {
    /// Makes one attempt to acquire the lock.
    pub(super) async fn claim(&mut self, claim: &Claim, intent: Intent) -> Result<Attempt, StoreError> {
        self.assign_ids()?;
        self.late.clear();
        self.state_of(claim).held = None;
        let claim = Rc::new(claim.clone());
        let mut round = Round { claim, replies: self.all().map(|_| PendingReply::default()).collect() };
        self.request_claim(&mut round, self.all().collect(), intent);
        let attempt = match intent {
            Intent::TakeNow => self.take(&mut round).await,
            Intent::WaitInLine => self.wait(&mut round).await,
        };
        if let Ok(Attempt::Refused(_)) | Err(StoreError::Denied(_) | StoreError::Config(_)) = &attempt {
            // There is no further attempt, and no release, that would clean up.
            self.take_back(&round, Part::All).await;
        }
        attempt
    }

    /// Draws a random id for each node, so that no two nodes have the same one.
    fn assign_ids(&mut self) -> Result<(), StoreError> {
        while self.ids.len() < self.nodes.count() {
            let mut bytes = [0u8; 8];
            getrandom::fill(&mut bytes)
                .map_err(|error| StoreError::unreachable(format!("no random numbers: {error}")))?;
            self.ids.push(format!("{:016x}", u64::from_ne_bytes(bytes)).into());
        }
        Ok(())
    }

    /// Sends the claim to these nodes; their pending replies replace those of the round.
    pub(super) fn request_claim(&mut self, round: &mut Round, nodes: Vec<usize>, intent: Intent) {
        let ticket = self.state_of(&round.claim).ticket.clone();
        for node in nodes {
            let claim = NodeClaim {
                claim: Rc::clone(&round.claim),
                intent,
                ticket: ticket.ticket_for(node),
                tracking: intent == Intent::TakeNow || ticket.is_first,
                id: Rc::clone(&self.ids[node]),
            };
            let limit = limit(round.claim.ttl);
            round.replies[node] = self
                .nodes
                .request(node, Turn::Next, limit, |store, cancel| store.claim_as_node(claim, cancel));
        }
    }

    /// Waits until it is decided whether a majority grants the claim.
    pub(super) async fn decide(&mut self, round: &Round) -> Verdict {
        let lease = round.claim.ttl.max(round.claim.min_hold);
        let quorum = self.nodes.quorum();
        self.nodes.until(|_: &mut RedlockNodes| verdict(&round.votes(), quorum, lease)).await
    }

    /// One attempt of a claim that does not wait.
    async fn take(&mut self, round: &mut Round) -> Result<Attempt, StoreError> {
        let too_young = match self.decide(round).await {
            Verdict::Granted(nodes) => return self.establish(round, nodes, Intent::TakeNow).await,
            Verdict::Refused { too_young } => too_young,
        };
        let is_clean = self.take_back(round, Part::Grants).await;
        let Contention { busy, is_held } = match self.contention(round, &too_young) {
            Ok(contention) => contention,
            Err(refused) => return refused.map_err(|error| certain(error, is_clean)),
        };
        if is_held || self.state_of(&round.claim).splits >= MOST_SPLITS {
            if !is_clean {
                // There is no further attempt, and no release, that would clean up.
                self.take_back(round, Part::Grants).await;
            }
            return Ok(Attempt::Busy(Busy { promised: false, ..busy }));
        }
        let state = self.state_of(&round.claim);
        let pause = SPLIT_PAUSE * 2u32.pow(state.splits.min(8));
        state.splits += 1;
        let again = Again::Within(jitter(pause.min(LONGEST_SPLIT_PAUSE)));
        Ok(Attempt::Busy(Busy { holders: Vec::new(), more: 0, promised: true, again, ..busy }))
    }

    /// Has a majority agree on the fencing token, then repairs the nodes whose replies differ or are still pending.
    pub(super) async fn establish(
        &mut self,
        round: &mut Round,
        counted: Vec<usize>,
        intent: Intent,
    ) -> Result<Attempt, StoreError> {
        if let Some((one, other)) = round.duplicates() {
            let is_clean = self.take_back(round, Part::Grants).await;
            let text = format!(
                "{} and {} are the same server, or one is a copy of the other: Redlock needs independent masters",
                self.nodes.name(one),
                self.nodes.name(other)
            );
            return Err(certain(StoreError::Config(text), is_clean));
        }
        let agreed = self.agree_on_fencing(round, counted).await;
        let lease = self.least_lease(round);
        let (Some(fencing), Some(lease)) = (agreed, lease) else {
            let is_clean = self.take_back(round, Part::Grants).await;
            // Clients that share the lock have advanced each other's counters. This is rare, so the error is transient.
            let text = "a majority granted the lock, but did not agree on its fencing token";
            return Err(certain(StoreError::resharding(text), is_clean));
        };
        let Some(token) = FencingToken::new(fencing) else {
            return Err(StoreError::Config("the fencing counter is exhausted (2^53)".into()));
        };
        let claim = Rc::clone(&round.claim);
        self.state_of(&round.claim).held = Some(QuorumHold { claim, fencing });
        self.is_untracked = intent == Intent::WaitInLine;
        self.late =
            self.all().map(|node| (node, LateReply::Claim(Rc::clone(&round.replies[node])))).collect();
        self.repair_late_nodes();
        Ok(Attempt::Granted(Grant { fencing: Some(token), lease: Some(lease), slot: None }))
    }

    /// Returns the fencing token, or `None` if too few nodes give it.
    async fn agree_on_fencing(&mut self, round: &Round, counted: Vec<usize>) -> Option<u64> {
        let mut given: Vec<(usize, u64)> =
            counted.into_iter().filter_map(|node| Some((node, round.fencing(node)?))).collect();
        if round.claim.requires_outer_hold {
            // The token of the outer hold, which a majority has given; one node may not have recorded it yet.
            let count_of = |number: u64| given.iter().filter(|(_, other)| *other == number).count();
            return given.iter().map(|(_, number)| *number).max_by_key(|number| count_of(*number));
        }
        let limit = limit(round.claim.ttl);
        for _ in 0..MOST_WRITE_BACKS {
            let numbers: Vec<u64> = given.iter().map(|(_, number)| *number).collect();
            let largest = match step(&numbers, self.nodes.quorum())? {
                Step::Established(number) => return Some(number),
                Step::WriteBack(number) => number,
            };
            let mut replies: Vec<(usize, PendingReply<Option<u64>>)> = Vec::new();
            for (node, _) in given.iter().filter(|(_, number)| *number != largest) {
                let (claim, id) = (Rc::clone(&round.claim), Rc::clone(&self.ids[*node]));
                let reply = self.nodes.request(*node, Turn::Last, limit, move |store, _| {
                    store.fence(claim, largest, Fenced::Here, id)
                });
                replies.push((*node, reply));
            }
            self.nodes.until(|_: &mut RedlockNodes| all_arrived(&replies).then_some(())).await;
            for (node, reply) in replies {
                let number = reply.take().and_then(|number| number.ok().flatten());
                given.retain(|(other, _)| *other != node);
                given.extend(number.map(|number| (node, number)));
            }
        }
        None
    }

    fn least_lease(&self, round: &Round) -> Option<Duration> {
        let lease = |reply: &PendingReply<NodeReply>| match &*reply.borrow() {
            Some(Ok(NodeReply { attempt: Attempt::Granted(grant), .. })) => grant.lease,
            _ => None,
        };
        round.replies.iter().filter_map(lease).min()
    }

    /// Releases the claim at every node that may have granted it, and waits for the replies as long as a node may take
    /// to reply. Returns whether nothing is left of the claim.
    pub(super) async fn take_back(&mut self, round: &Round, part: Part) -> bool {
        let may_hold = |node: &usize| match &*round.replies[*node].borrow() {
            None => true,
            Some(Ok(reply)) => {
                matches!(reply.attempt, Attempt::Granted(_)) || part == Part::All && reply.number.is_some()
            }
            Some(Err(StoreError::Unavailable { maybe_applied, .. })) => *maybe_applied,
            Some(Err(_)) => false,
        };
        let nodes: Vec<usize> = self.all().filter(may_hold).collect();
        let replies = self.begin_release(nodes.into_iter(), &round.claim, Duration::ZERO, None);
        let deadline = Instant::now() + limit(round.claim.ttl);
        let released = self.nodes.until(|_: &mut RedlockNodes| all_arrived(&replies).then_some(()));
        if timeout_at(deadline, released).await.is_err() {
            self.nodes.cancel();
        }
        replies.iter().all(|(_, reply)| matches!(&*reply.borrow(), Some(Ok(_))))
    }

    /// Returns why no majority granted the claim: other clients hold the lock or are ahead in the queue.
    ///
    /// # Errors
    /// The claim is refused for another reason, or no majority is available, for now or permanently.
    pub(super) fn contention(
        &self,
        round: &Round,
        too_young: &[(usize, Duration)],
    ) -> Result<Contention, Result<Attempt, StoreError>> {
        let (count, quorum) = (self.nodes.count(), self.nodes.quorum());
        let mut failed = Vec::new();
        let mut busy = Vec::new();
        let mut refusals = Vec::new();
        let mut granted = 0;
        for (node, reply) in round.replies.iter().enumerate() {
            match &*reply.borrow() {
                Some(Ok(NodeReply { attempt: Attempt::Busy(reply), .. })) => busy.push(reply.clone()),
                Some(Ok(NodeReply { attempt: Attempt::Refused(refusal), .. })) => {
                    refusals.push(refusal.clone())
                }
                Some(Ok(NodeReply { attempt: Attempt::Granted(_), .. })) => granted += 1,
                Some(Err(error)) => failed.push((node, as_permanent(error.clone()))),
                None => {}
            }
        }
        let lost = refusals.iter().filter(|refusal| **refusal == Refusal::OuterLost).count();
        if let Some(refusal) = refusals.iter().find(|refusal| **refusal != Refusal::OuterLost) {
            return Err(Ok(Attempt::Refused(refusal.clone())));
        }
        if lost > count - quorum {
            return Err(Ok(Attempt::Refused(Refusal::OuterLost)));
        }
        if failed.len() > count - quorum {
            return Err(Err(self.unreachable(&failed)));
        }
        let seen = contention(&busy.iter().collect::<Vec<_>>(), granted, quorum);
        let is_free = seen.busy.holders.is_empty() && !seen.busy.promised && seen.busy.position.is_none();
        match too_young.iter().map(|(_, rest)| *rest).max() {
            Some(rest) if is_free => {
                let text = not_counted_yet(too_young.len(), count, rest);
                Err(Err(StoreError::unreachable(match failed.is_empty() {
                    true => text,
                    false => format!("{text}; {}", self.unreachable(&failed)),
                })))
            }
            _ if busy.is_empty() => Err(Err(match failed.is_empty() {
                true => StoreError::unreachable("no majority of nodes is available"),
                false => self.unreachable(&failed),
            })),
            _ => Ok(seen),
        }
    }
}

/// The message for nodes that do not count yet.
fn not_counted_yet(some: usize, count: usize, rest: Duration) -> String {
    let seconds = rest.as_secs().max(1);
    match some {
        1 => format!(
            "1 of {count} nodes has lost its data or is new, and does not count for another {seconds} s"
        ),
        _ => format!(
            "{some} of {count} nodes have lost their data or are new, and do not count for another {seconds} s"
        ),
    }
}

/// Marks the error of a claim that was released at all nodes as one whose request was not applied.
pub(super) fn certain(error: StoreError, is_clean: bool) -> StoreError {
    match error {
        StoreError::Unavailable { reason, transient, .. } => {
            StoreError::Unavailable { reason, maybe_applied: !is_clean, transient }
        }
        other => other,
    }
}

//! Acquiring a lock at a majority of nodes.

use std::rc::Rc;
use std::time::Duration;

use super::contention::{Contention, contention};
use super::fencing::{Step, step};
use super::merge::{self, most_frequent};
use super::node::{NodeClient, NodeReply, Purpose, limit};
use super::nodes::RedlockNodes;
use super::quorum::Replies;
use super::verdict::{NodeVote, Verdict, verdict};
use super::{QuorumHold, RedlockStore};
use crate::backend::redis::script::AsNode;
use crate::backend::{Again, Attempt, Busy, Ending, Intent, Refusal, StoreError};
use crate::lock::{Claim, FencingToken, Freeze, Grant, NotDue};
use crate::random::jitter;

/// How often a claim that does not wait is tried while no client has a majority.
const MOST_SPLITS: u32 = 20;
/// The pause before the second try is a random part of this; the limit doubles with each try, ...
const SPLIT_PAUSE: Duration = Duration::from_millis(10);
/// ... but is not more than this.
const LONGEST_SPLIT_PAUSE: Duration = Duration::from_millis(100);
/// How often a claim writes a fencing token back. Claims that share a lock may take each other's numbers.
const MOST_WRITE_BACKS: u32 = 8;

/// One claim sent to all nodes, and the latest reply of each.
pub(super) struct Round {
    pub(super) claim: Rc<Claim>,
    pub(super) replies: Replies<NodeReply>,
}

impl Round {
    /// The replies so far, reduced to what decides whether the claim is granted.
    fn votes(&self) -> Vec<(usize, NodeVote)> {
        let replies = self.replies.succeeded().into_iter();
        replies.map(|(node, reply)| (node, reply.vote(&self.claim))).collect()
    }

    pub(super) fn queued(&self) -> Vec<usize> {
        self.replies.nodes(|reply| reply.number().is_some())
    }

    /// Whether the claim is first in the queues of a majority of the nodes, or in all queues that it is in.
    pub(super) fn is_first(&self, quorum: usize) -> bool {
        let is_first =
            |reply: &NodeReply| matches!(&reply.attempt, Attempt::Busy(busy) if busy.position == Some(1));
        let first = self.replies.nodes(is_first).len();
        first > 0 && first >= quorum.min(self.queued().len())
    }

    /// Returns the latest success by which the claim is not due, according to any of these nodes, each by its own clock.
    fn not_due(&self, nodes: &[usize]) -> Option<NotDue> {
        let replies = self.replies.succeeded().into_iter().filter(|(node, _)| nodes.contains(node));
        let not_due = replies.filter_map(|(_, reply)| match reply.attempt {
            Attempt::NotDue(not_due) => Some(not_due),
            _ => None,
        });
        not_due.max_by_key(|not_due| not_due.due_in)
    }

    /// Returns the largest [`Grant::undated`] of these nodes.
    fn undated(&self, nodes: &[usize]) -> Option<Duration> {
        let replies = self.replies.succeeded().into_iter().filter(|(node, _)| nodes.contains(node));
        let undated = replies.filter_map(|(_, reply)| match reply.attempt {
            Attempt::Granted(grant) => grant.undated,
            _ => None,
        });
        undated.max()
    }

    /// Returns the freeze that keeps the claim out: so many nodes are frozen, or have failed, that the others are no
    /// majority of this many nodes.
    pub(super) fn freeze(&self, count: usize, quorum: usize) -> Option<Freeze> {
        let busy = self.replies.succeeded().into_iter().filter_map(|(_, reply)| match reply.attempt {
            Attempt::Busy(busy) => busy.freeze,
            _ => None,
        });
        let freezes: Vec<Box<Freeze>> = busy.collect();
        let least = (count - quorum + 1).saturating_sub(self.replies.failed().len());
        merge::freeze(freezes.iter().map(|freeze| &**freeze), least)
    }

    /// Two nodes with the same id, if there are any: the same server, or one a copy of the other.
    pub(super) fn duplicates(&self) -> Option<(usize, usize)> {
        let replies = self.replies.succeeded();
        replies.iter().enumerate().find_map(|(index, (one, reply))| {
            let same = replies[index + 1..].iter().find(|(_, other)| other.mark.id == reply.mark.id);
            same.map(|(other, _)| (*one, *other))
        })
    }
}

impl RedlockStore {
    pub(super) async fn claim(&mut self, claim: &Claim, intent: Intent) -> Result<Attempt, StoreError> {
        let claim = Rc::new(claim.clone());
        self.state_of(&claim).hold = None;
        let round = Round { claim, replies: self.nodes.no_replies() };
        self.request_claim(&round, self.all().collect(), intent);
        let attempt = match intent {
            Intent::TakeNow => self.take(&round).await,
            Intent::Enqueue => self.wait(&round).await,
        };
        if let Ok(Attempt::Refused(_) | Attempt::NotDue(_))
        | Err(StoreError::Denied(_) | StoreError::Config(_) | StoreError::OtherServer { .. }) = &attempt
        {
            // There is no further attempt, and no release, that would clean up.
            self.take_back(&round, |_| true).await;
        }
        attempt
    }

    /// Sends the claim to these nodes; their replies replace those of the round.
    pub(super) fn request_claim(&mut self, round: &Round, nodes: Vec<usize>, intent: Intent) {
        let claim = Rc::clone(&round.claim);
        let ticket = self.state_of(&claim).ticket.clone();
        let tracking = intent == Intent::TakeNow || ticket.is_first;
        let limit = limit(claim.ttl);
        let request = async move |node: &mut NodeClient| {
            node.claim(&claim, intent, tracking, AsNode::new(ticket.ticket_for(node.node), None)).await
        };
        self.nodes.send(&round.replies, nodes, Purpose::Claim, limit, request);
    }

    /// Waits until it is decided whether a majority grants the claim.
    pub(super) async fn decide(&mut self, round: &Round) -> Verdict {
        let lease = round.claim.ttl.max(round.claim.min_hold);
        let (count, quorum) = (self.nodes.count(), self.nodes.quorum());
        let decided =
            |_: &mut RedlockNodes| verdict(&round.votes(), round.replies.pending(), count, quorum, lease);
        self.nodes.until(decided).await
    }

    /// One attempt of a claim that does not wait.
    async fn take(&mut self, round: &Round) -> Result<Attempt, StoreError> {
        let too_young = match self.decide(round).await {
            Verdict::Granted(nodes) => return self.establish(round, nodes, Intent::TakeNow).await,
            Verdict::Refused { too_young } => too_young,
        };
        let is_clean = self.take_back(round, NodeReply::is_granted).await;
        let contention = self.contention(round, &too_young).map_err(|error| certain(error, is_clean))?;
        let latest = self.state_of(&round.claim);
        match contention {
            Contention::Refused(refusal) => Ok(Attempt::Refused(refusal)),
            Contention::Split(busy) if latest.splits < MOST_SPLITS => {
                let pause = SPLIT_PAUSE * 2u32.pow(latest.splits.min(8));
                latest.splits += 1;
                let again = Again::Within(jitter(pause.min(LONGEST_SPLIT_PAUSE)));
                Ok(Attempt::Busy(Busy { holders: Vec::new(), more: 0, promised: true, again, ..busy }))
            }
            Contention::Split(busy) | Contention::Held(busy) => {
                if !is_clean {
                    // There is no further attempt, and no release, that would clean up.
                    self.take_back(round, NodeReply::is_granted).await;
                }
                Ok(Attempt::Busy(Busy { promised: false, ..busy }))
            }
        }
    }

    /// Has a majority agree on the fencing token, then repairs the nodes whose replies differ or are still pending.
    pub(super) async fn establish(
        &mut self,
        round: &Round,
        counted: Vec<usize>,
        intent: Intent,
    ) -> Result<Attempt, StoreError> {
        if let Some((one, other)) = round.duplicates() {
            let is_clean = self.take_back(round, NodeReply::is_granted).await;
            let text = format!(
                "{} and {} are the same server, or one is a copy of the other: Redlock needs independent masters",
                self.nodes.name(one),
                self.nodes.name(other)
            );
            return Err(certain(StoreError::Config(text), is_clean));
        }
        if let Some(not_due) = round.not_due(&counted) {
            return Ok(Attempt::NotDue(not_due));
        }
        let undated = round.undated(&counted);
        let agreed = self.agree_on_fencing(round, counted).await;
        let lease = |(_, reply): (usize, NodeReply)| match reply.attempt {
            Attempt::Granted(grant) => grant.lease,
            Attempt::Busy(_) | Attempt::Refused(_) | Attempt::NotDue(_) => None,
        };
        let lease = round.replies.succeeded().into_iter().filter_map(lease).min();
        let (Some(fencing), Some(lease)) = (agreed, lease) else {
            let is_clean = self.take_back(round, NodeReply::is_granted).await;
            // Clients that share the lock have advanced each other's counters. This is rare, so the error is transient.
            let text = "a majority granted the lock, but did not agree on its fencing token";
            return Err(certain(StoreError::resharding(text), is_clean));
        };
        let Some(token) = FencingToken::new(fencing) else {
            return Err(StoreError::Config("the fencing counter is exhausted (2^53)".into()));
        };
        self.state_of(&round.claim).hold = Some(QuorumHold {
            fencing,
            late_claims: round.replies.clone(),
            late_renewals: Vec::new(),
            is_untracked: intent == Intent::Enqueue,
        });
        self.repair_late_nodes();
        Ok(Attempt::Granted(Grant { fencing: Some(token), lease: Some(lease), slot: None, undated }))
    }

    /// Returns the fencing token, or `None` if too few nodes give it.
    async fn agree_on_fencing(&mut self, round: &Round, counted: Vec<usize>) -> Option<u64> {
        let replies = round.replies.succeeded().into_iter();
        let mut given: Vec<(usize, u64)> = replies
            .filter(|(node, _)| counted.contains(node))
            .filter_map(|(node, reply)| Some((node, reply.fencing()?)))
            .collect();
        if round.claim.requires_outer_hold {
            // The token of the outer hold, which a majority has given.
            let (token, count) = most_frequent(given.into_iter().map(|(_, number)| number))?;
            if count >= self.nodes.quorum() {
                return Some(token);
            }
            // Nodes that granted the outer hold late may not have recorded its token yet: the other replies decide.
            self.nodes.complete_within(limit(round.claim.ttl), &round.replies).await;
            let replies = round.replies.succeeded().into_iter();
            return most_frequent(replies.filter_map(|(_, reply)| reply.fencing())).map(|(token, _)| token);
        }
        for _ in 0..MOST_WRITE_BACKS {
            let numbers: Vec<u64> = given.iter().map(|(_, number)| *number).collect();
            let largest = match step(&numbers, self.nodes.quorum())? {
                Step::Established(number) => return Some(number),
                Step::WriteBack(number) => number,
            };
            let (agreeing, others): (Vec<_>, Vec<_>) =
                given.into_iter().partition(|(_, number)| *number == largest);
            let claim = Rc::clone(&round.claim);
            let (limit, is_established) = (limit(claim.ttl), false);
            let fence = async move |node: &mut NodeClient| node.fence(&claim, largest, is_established).await;
            let others = others.into_iter().map(|(node, _)| node);
            let replies = self.nodes.request(others, Purpose::Other, limit, fence);
            self.nodes.complete(&replies).await;
            let written = replies.succeeded().into_iter();
            given = agreeing
                .into_iter()
                .chain(written.filter_map(|(node, number)| Some((node, number?))))
                .collect();
        }
        None
    }

    /// Releases the claim at the nodes with such a reply, and at those that may have granted it. Waits for their replies
    /// as long as a node may take. Returns whether all of them have released it.
    pub(super) async fn take_back(&mut self, round: &Round, is: impl Fn(&NodeReply) -> bool) -> bool {
        let may_hold = |node: &usize| match round.replies.of(*node) {
            None => true,
            Some(Ok(reply)) => is(&reply),
            Some(Err(StoreError::Unavailable { maybe_applied, .. })) => maybe_applied,
            Some(Err(_)) => false,
        };
        let nodes: Vec<usize> = self.all().filter(may_hold).collect();
        let count = nodes.len();
        let replies = self.request_release(nodes, &round.claim, Duration::ZERO, Ending::default());
        if !self.nodes.complete_within(limit(round.claim.ttl), &replies).await {
            self.nodes.cancel();
        }
        replies.succeeded().len() == count
    }

    /// Returns why no majority granted the claim.
    ///
    /// # Errors
    /// No majority is available, for now or permanently.
    pub(super) fn contention(
        &self,
        round: &Round,
        too_young: &[(usize, Duration)],
    ) -> Result<Contention, StoreError> {
        let (count, quorum) = (self.nodes.count(), self.nodes.quorum());
        let failed = round.replies.failed();
        let mut busy = Vec::new();
        let mut refusals = Vec::new();
        for (_, reply) in round.replies.succeeded() {
            match reply.attempt {
                Attempt::Busy(reply) => busy.push(reply),
                Attempt::Refused(refusal) => refusals.push(refusal),
                Attempt::Granted(_) | Attempt::NotDue(_) => {}
            }
        }
        // One node may have what the others do not: a run that has reached none of them, or is gone.
        let (superseded, refusals): (Vec<_>, Vec<_>) =
            refusals.into_iter().partition(|refusal| matches!(refusal, Refusal::Superseded(_)));
        if (superseded.len() >= quorum || busy.is_empty())
            && let Some(refusal) = superseded.into_iter().next()
        {
            return Ok(Contention::Refused(refusal));
        }
        if let Some(refusal) = refusals.iter().find(|refusal| **refusal != Refusal::OuterLost) {
            return Ok(Contention::Refused(refusal.clone()));
        }
        if refusals.len() > count - quorum {
            return Ok(Contention::Refused(Refusal::OuterLost));
        }
        if failed.len() > count - quorum {
            return Err(self.nodes.unavailable(&failed));
        }
        let granted = round.replies.nodes(NodeReply::is_granted).len();
        let contention = contention(&busy, granted, quorum, round.freeze(count, quorum));
        match too_young.iter().map(|(_, rest)| *rest).max() {
            Some(rest) if contention.is_free() => {
                let text = not_counted_yet(too_young.len(), count, rest);
                Err(StoreError::unreachable(match failed.is_empty() {
                    true => text,
                    false => format!("{text}; {}", self.nodes.unavailable(&failed)),
                }))
            }
            _ if busy.is_empty() => Err(self.nodes.unavailable(&failed)),
            _ => Ok(contention),
        }
    }
}

fn not_counted_yet(some: usize, count: usize, rest: Duration) -> String {
    let seconds = rest.as_secs().max(1);
    let (have, are, do_not) = match some {
        1 => ("has lost its data", "is", "does not"),
        _ => ("have lost their data", "are", "do not"),
    };
    format!("{some} of {count} nodes {have} or {are} new, and {do_not} count for another {seconds} s")
}

/// Marks the error of a claim that was released at all nodes as one whose request was not applied.
pub(super) fn certain(error: StoreError, is_clean: bool) -> StoreError {
    match error {
        StoreError::Unavailable { reason, outlook, .. } => {
            StoreError::Unavailable { reason, maybe_applied: !is_clean, outlook }
        }
        other => other,
    }
}

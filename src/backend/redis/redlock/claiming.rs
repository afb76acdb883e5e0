//! Getting a lock from a majority of nodes.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::asking::{Fenced, NodeClaim, NodeReply, limit};
use super::contention::{Contention, contention};
use super::fencing::{Step, step};
use super::nodes::{PendingReply, RedlockNodes, Turn, for_good};
use super::round::Round;
use super::verdict::{Verdict, verdict};
use super::{Late, QuorumHold, RedlockStore, are_answered, share_of};
use crate::backend::{Again, Attempt, Busy, Intent, Refusal, StoreError};
use crate::lock::{Claim, FencingToken, Grant};

/// One that does not wait tries so many times to get a majority when nobody has one.
const MOST_SPLITS: u32 = 20;
/// It pauses for a random part of this before it tries again, then of twice as much each time, ...
const SPLIT_PAUSE: Duration = Duration::from_millis(10);
/// ... but not more than this.
const LONGEST_SPLIT_PAUSE: Duration = Duration::from_millis(100);
/// Where claims share a lock they may take each other's numbers; so often they try to agree.
const MOST_WRITE_BACKS: u32 = 8;

/// What is taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// What was granted.
    Grants,
    /// The places in the line as well.
    All,
}

impl RedlockStore {
    /// Asks for a claim.
    pub(super) async fn claim(&mut self, claim: &Claim, intent: Intent) -> Result<Attempt, StoreError> {
        self.name_nodes()?;
        self.late.clear();
        let last = self.last_of(claim);
        last.held = None;
        let claim = Rc::new(claim.clone());
        let mut round = Round { claim, slots: self.all().map(|_| PendingReply::default()).collect() };
        self.ask(&mut round, self.all().collect(), intent);
        let attempt = match intent {
            Intent::TakeNow => self.take(&mut round).await,
            Intent::WaitInLine => self.wait(&mut round).await,
        };
        if let Ok(Attempt::Refused(_)) | Err(StoreError::Denied(_) | StoreError::Config(_)) = &attempt {
            // Nobody asks again, nor cleans up.
            self.take_back(&round, Part::All).await;
        }
        attempt
    }

    /// So that no two nodes are ever called the same.
    fn name_nodes(&mut self) -> Result<(), StoreError> {
        while self.ids.len() < self.nodes.count() {
            let mut bytes = [0u8; 8];
            getrandom::fill(&mut bytes)
                .map_err(|error| StoreError::unreachable(format!("no random numbers: {error}")))?;
            self.ids.push(format!("{:016x}", u64::from_ne_bytes(bytes)).into());
        }
        Ok(())
    }

    /// Asks these nodes.
    pub(super) fn ask(&mut self, round: &mut Round, nodes: Vec<usize>, intent: Intent) {
        let line = self.last_of(&round.claim).line.clone();
        for node in nodes {
            let asked = NodeClaim {
                claim: Rc::clone(&round.claim),
                intent,
                ticket: line.ticket_for(node),
                tracking: intent == Intent::TakeNow || line.is_first,
                id: Rc::clone(&self.ids[node]),
            };
            let limit = limit(round.claim.ttl);
            round.slots[node] =
                self.nodes.ask(node, Turn::Next, limit, |store, cancel| store.claim_as_node(asked, cancel));
        }
    }

    /// Waits until it is decided whether a majority grants the claim.
    pub(super) async fn decide(&mut self, round: &Round) -> Verdict {
        let lease = round.claim.ttl.max(round.claim.min_hold);
        let quorum = self.nodes.quorum();
        self.nodes.until(|_: &mut RedlockNodes| verdict(&round.answers(), quorum, lease)).await
    }

    /// One that does not wait.
    async fn take(&mut self, round: &mut Round) -> Result<Attempt, StoreError> {
        let forgetful = match self.decide(round).await {
            Verdict::Granted(nodes) => return self.establish(round, nodes, Intent::TakeNow).await,
            Verdict::Refused { forgetful } => forgetful,
        };
        let is_clean = self.take_back(round, Part::Grants).await;
        let Contention { busy, is_held } = match self.why(round, &forgetful) {
            Ok(contention) => contention,
            Err(refused) => return refused.map_err(|error| certain(error, is_clean)),
        };
        if is_held || self.last_of(&round.claim).splits >= MOST_SPLITS {
            if !is_clean {
                // Nobody asks again, nor cleans up.
                self.take_back(round, Part::Grants).await;
            }
            return Ok(Attempt::Busy(Busy { promised: false, ..busy }));
        }
        let last = self.last_of(&round.claim);
        let pause = SPLIT_PAUSE * 2u32.pow(last.splits.min(8));
        last.splits += 1;
        let again = Again::Within(share_of(pause.min(LONGEST_SPLIT_PAUSE)));
        Ok(Attempt::Busy(Busy { holders: Vec::new(), more: 0, promised: true, again, ..busy }))
    }

    /// Has a majority agree on the fencing token, and puts in order what the others have answered, and will.
    pub(super) async fn establish(
        &mut self,
        round: &mut Round,
        counted: Vec<usize>,
        intent: Intent,
    ) -> Result<Attempt, StoreError> {
        if let Some((one, other)) = round.twins() {
            let is_clean = self.take_back(round, Part::Grants).await;
            let text = format!(
                "{} and {} are the same server, or one is a copy of the other: Redlock needs independent masters",
                self.nodes.name(one),
                self.nodes.name(other)
            );
            return Err(certain(StoreError::Config(text), is_clean));
        }
        let agreed = self.agree(round, counted).await;
        let lease = self.least_lease(round);
        let (Some(fencing), Some(lease)) = (agreed, lease) else {
            let is_clean = self.take_back(round, Part::Grants).await;
            // Of several who share the lock each has moved the others' counters; they do not meet so again and again.
            let text = "a majority granted the lock, but did not agree on its fencing token";
            return Err(certain(StoreError::resharding(text), is_clean));
        };
        let Some(token) = FencingToken::new(fencing) else {
            return Err(StoreError::Config("the fencing counter has come to its end (2^53)".into()));
        };
        let claim = Rc::clone(&round.claim);
        self.last_of(&round.claim).held = Some(QuorumHold { claim, fencing });
        self.is_untracked = intent == Intent::WaitInLine;
        self.late = self.all().map(|node| (node, Late::Claim(Rc::clone(&round.slots[node])))).collect();
        self.put_in_order();
        Ok(Attempt::Granted(Grant { fencing: Some(token), lease: Some(lease), slot: None }))
    }

    /// The fencing token; `None` when too few nodes can be had to give it.
    async fn agree(&mut self, round: &Round, counted: Vec<usize>) -> Option<u64> {
        let mut given: Vec<(usize, u64)> =
            counted.into_iter().filter_map(|node| Some((node, round.fencing(node)?))).collect();
        if round.claim.requires_outer_hold {
            // That of the outer hold, which a majority has given; one node may not have noted it yet.
            let gave = |number: u64| given.iter().filter(|(_, other)| *other == number).count();
            return given.iter().map(|(_, number)| *number).max_by_key(|number| gave(*number));
        }
        let limit = limit(round.claim.ttl);
        for _ in 0..MOST_WRITE_BACKS {
            let numbers: Vec<u64> = given.iter().map(|(_, number)| *number).collect();
            let to = match step(&numbers, self.nodes.quorum())? {
                Step::Established(number) => return Some(number),
                Step::WriteBack(number) => number,
            };
            let mut slots: Vec<(usize, PendingReply<Option<u64>>)> = Vec::new();
            for (node, _) in given.iter().filter(|(_, number)| *number != to) {
                let (claim, id) = (Rc::clone(&round.claim), Rc::clone(&self.ids[*node]));
                let slot = self
                    .nodes
                    .ask(*node, Turn::Last, limit, move |store, _| store.fence(claim, to, Fenced::Here, id));
                slots.push((*node, slot));
            }
            self.nodes.until(|_: &mut RedlockNodes| are_answered(&slots).then_some(())).await;
            for (node, slot) in slots {
                let number = slot.take().and_then(|number| number.ok().flatten());
                given.retain(|(other, _)| *other != node);
                given.extend(number.map(|number| (node, number)));
            }
        }
        None
    }

    fn least_lease(&self, round: &Round) -> Option<Duration> {
        let lease = |slot: &PendingReply<NodeReply>| match &*slot.borrow() {
            Some(Ok(NodeReply { attempt: Attempt::Granted(grant), .. })) => grant.lease,
            _ => None,
        };
        round.slots.iter().filter_map(lease).min()
    }

    /// Takes the claim back from every node that may have granted it, and waits for that as long as a node may take to
    /// answer. Returns whether nothing is left of it.
    pub(super) async fn take_back(&mut self, round: &Round, part: Part) -> bool {
        let may_hold = |node: &usize| match &*round.slots[*node].borrow() {
            None => true,
            Some(Ok(said)) => {
                matches!(said.attempt, Attempt::Granted(_)) || part == Part::All && said.number.is_some()
            }
            Some(Err(StoreError::Unavailable { maybe_applied, .. })) => *maybe_applied,
            Some(Err(_)) => false,
        };
        let nodes: Vec<usize> = self.all().filter(may_hold).collect();
        let slots = self.begin_release(nodes.into_iter(), &round.claim, Duration::ZERO, None);
        let until = Instant::now() + limit(round.claim.ttl);
        let answered = self.nodes.until(|_: &mut RedlockNodes| are_answered(&slots).then_some(()));
        if timeout_at(until, answered).await.is_err() {
            self.nodes.cancel();
        }
        slots.iter().all(|(_, slot)| matches!(&*slot.borrow(), Some(Ok(_))))
    }

    /// Why there is no majority: what the others say who came before us, or that it cannot be had, as things are or at all.
    pub(super) fn why(
        &self,
        round: &Round,
        forgetful: &[(usize, Duration)],
    ) -> Result<Contention, Result<Attempt, StoreError>> {
        let (count, quorum) = (self.nodes.count(), self.nodes.quorum());
        let mut failed = Vec::new();
        let mut busy = Vec::new();
        let mut refusals = Vec::new();
        let mut granted = 0;
        for (node, slot) in round.slots.iter().enumerate() {
            match &*slot.borrow() {
                Some(Ok(NodeReply { attempt: Attempt::Busy(said), .. })) => busy.push(said.clone()),
                Some(Ok(NodeReply { attempt: Attempt::Refused(refusal), .. })) => {
                    refusals.push(refusal.clone())
                }
                Some(Ok(NodeReply { attempt: Attempt::Granted(_), .. })) => granted += 1,
                Some(Err(error)) => failed.push((node, for_good(error.clone()))),
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
        let nobody = seen.busy.holders.is_empty() && !seen.busy.promised && seen.busy.position.is_none();
        match forgetful.iter().map(|(_, rest)| *rest).max() {
            Some(rest) if nobody => {
                let text = have_forgotten(forgetful.len(), count, rest);
                Err(Err(StoreError::unreachable(match failed.is_empty() {
                    true => text,
                    false => format!("{text}; {}", self.unreachable(&failed)),
                })))
            }
            _ if busy.is_empty() => Err(Err(match failed.is_empty() {
                true => StoreError::unreachable("no majority of nodes can be had"),
                false => self.unreachable(&failed),
            })),
            _ => Ok(seen),
        }
    }
}

/// That so many nodes do not count yet.
fn have_forgotten(some: usize, count: usize, rest: Duration) -> String {
    let seconds = rest.as_secs().max(1);
    match some {
        1 => format!(
            "1 of {count} nodes has forgotten what it knew, or is new, and does not count before {seconds} s are over"
        ),
        _ => format!(
            "{some} of {count} nodes have forgotten what they knew, or are new, and do not count before {seconds} s are over"
        ),
    }
}

/// A failure that has left nothing is one that was never asked.
pub(super) fn certain(error: StoreError, is_clean: bool) -> StoreError {
    match error {
        StoreError::Unavailable { reason, transient, .. } => {
            StoreError::Unavailable { reason, maybe_applied: !is_clean, transient }
        }
        other => other,
    }
}

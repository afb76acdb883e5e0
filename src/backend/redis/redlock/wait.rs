//! Waiting in the queues of the nodes for a lock.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::RedlockStore;
use super::claim::{Round, certain};
use super::contention::Contention;
use super::node::NodeReply;
use super::verdict::Verdict;
use crate::backend::{Again, Attempt, Busy, Change, Intent, StoreError};
use crate::random::jitter;

/// How long the first waiter keeps the holds that some nodes have granted, while the release is still being processed
/// at the other nodes. Shorter than the time for which the nodes reserve the lock for it.
const KEEP: Duration = Duration::from_millis(300);
/// In that time it repeats its request when a node notifies it, and after a random time between half of this and this.
const RETRY_WITHIN: Duration = Duration::from_millis(60);
/// The longest time between two requests of a waiter while no client holds the lock.
const RECHECK_WITHIN: Duration = Duration::from_secs(1);
/// How often in one attempt the ticket, or the request to report changes, is sent to the nodes.
const MOST_CORRECTIONS: u32 = 4;

impl RedlockStore {
    /// One attempt of a claim that waits. Each node grants the lock to the first waiter in its own queue. Holds that do
    /// not make up a majority soon are released; the positions at the other nodes are kept.
    pub(super) async fn wait(&mut self, round: &Round) -> Result<Attempt, StoreError> {
        let quorum = self.nodes.quorum();
        let mut corrections = 0;
        let mut keep_until = None;
        loop {
            let too_young = match self.decide(round).await {
                Verdict::Granted(nodes) => return self.establish(round, nodes, Intent::Enqueue).await,
                Verdict::Refused { too_young } => too_young,
            };
            // The nodes that have not replied yet are about to add the claim to their queues.
            self.nodes.complete(&round.replies).await;
            let queued = round.queued();
            let is_first = round.is_first(quorum);
            let numbers =
                self.all().map(|node| round.replies.of(node)?.ok()?.number()).collect::<Vec<Option<u64>>>();
            let ticket = &mut self.state_of(&round.claim).ticket;
            let mut corrected = ticket.update(numbers, quorum);
            if is_first && !ticket.is_first {
                // The repeated request has the nodes report every change of the lock's key.
                corrected.clone_from(&queued);
            }
            ticket.is_first = is_first;
            let number = ticket.number();
            if !corrected.is_empty() && corrections < MOST_CORRECTIONS {
                corrections += 1;
                self.request_claim(round, corrected, Intent::Enqueue);
                continue;
            }
            let granted = round.replies.nodes(NodeReply::is_granted).len();
            let is_frozen = round.freeze(self.nodes.count(), quorum).is_some();
            let is_possible = queued.len() + granted >= quorum && too_young.is_empty() && !is_frozen;
            let keep_until = *keep_until.get_or_insert_with(|| Instant::now() + KEEP);
            if granted > 0 && is_possible && Instant::now() < keep_until {
                self.wait_for_push(&queued, keep_until).await;
                self.request_claim(round, queued, Intent::Enqueue);
                continue;
            }
            let is_clean = self.take_back(round, NodeReply::is_granted).await && queued.is_empty();
            let contention = self.contention(round, &too_young).map_err(|error| certain(error, is_clean))?;
            let within = |busy: Busy, most: Duration| match busy.again {
                Again::Within(within) => {
                    Busy { ticket: number, again: Again::Within(within.min(most)), ..busy }
                }
                Again::Poll => Busy { ticket: number, ..busy },
            };
            return Ok(match contention {
                Contention::Refused(refusal) => Attempt::Refused(refusal),
                Contention::Held(busy) => Attempt::Busy(within(busy, round.claim.ttl)),
                Contention::Split(busy) => {
                    Attempt::Busy(within(busy, RECHECK_WITHIN / 2 + jitter(RECHECK_WITHIN / 2)))
                }
            });
        }
    }

    /// Waits for a notification from one of these nodes, up to [`RETRY_WITHIN`] or this deadline.
    async fn wait_for_push(&mut self, nodes: &[usize], deadline: Instant) {
        let pause = Instant::now() + RETRY_WITHIN / 2 + jitter(RETRY_WITHIN / 2);
        let push = async {
            loop {
                match self.nodes.changed().await {
                    Some((node, Change::OurTurn | Change::Touched)) if nodes.contains(&node) => return,
                    _ => {}
                }
            }
        };
        let _ = timeout_at(deadline.min(pause), push).await;
    }
}

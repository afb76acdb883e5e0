//! Waiting in line for a lock at a majority of nodes.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::claiming::{Part, certain};
use super::contention::Contention;
use super::nodes::RedlockNodes;
use super::round::Round;
use super::verdict::Verdict;
use super::{RedlockStore, share_of};
use crate::backend::{Again, Attempt, Change, Intent, StoreError};

/// One whose turn it is keeps what it was granted for so long while the release of the others is on its way: less than the
/// nodes keep its turn.
const KEEP: Duration = Duration::from_millis(300);
/// It asks them again when they call, and after a random time between half of this and this.
const ASK_AGAIN: Duration = Duration::from_millis(60);
/// A waiter asks at least so often while nobody holds the lock.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// So many times in one attempt the nodes are told of the ticket, or asked to tell of changes.
const MOST_CORRECTIONS: u32 = 4;

impl RedlockStore {
    /// One attempt of a claim that waits. Each node lets in the head of its own line. What it grants to somebody who does
    /// not get a majority soon is taken back; the places at the other nodes are kept.
    pub(super) async fn wait(&mut self, round: &mut Round) -> Result<Attempt, StoreError> {
        let quorum = self.nodes.quorum();
        let mut corrections = 0;
        let mut keep_until = None;
        loop {
            let forgetful = match self.decide(round).await {
                Verdict::Granted(nodes) => return self.establish(round, nodes, Intent::WaitInLine).await,
                Verdict::Refused { forgetful } => forgetful,
            };
            // Those who have not answered yet are about to give us a place in their line.
            self.nodes.until(|_: &mut RedlockNodes| round.is_answered().then_some(())).await;
            let in_line = round.in_line();
            let is_first = round.is_first(quorum);
            let line = &mut self.last_of(&round.claim).line;
            let mut ask_again = line.hear(round.numbers(), quorum);
            if is_first && !line.is_first {
                // From now on they tell of everything that is done to the lock.
                ask_again.clone_from(&in_line);
            }
            line.is_first = is_first;
            if !ask_again.is_empty() && corrections < MOST_CORRECTIONS {
                corrections += 1;
                self.ask(round, ask_again, Intent::WaitInLine);
                continue;
            }
            let granted = round.granted().len();
            let can_come = in_line.len() + granted >= quorum && forgetful.is_empty();
            let keep_until = *keep_until.get_or_insert_with(|| Instant::now() + KEEP);
            if granted > 0 && can_come && Instant::now() < keep_until {
                self.hear_of(&in_line, keep_until).await;
                self.ask(round, in_line, Intent::WaitInLine);
                continue;
            }
            let is_clean = self.take_back(round, Part::Grants).await && in_line.is_empty();
            return match self.why(round, &forgetful) {
                Err(refused) => refused.map_err(|error| certain(error, is_clean)),
                Ok(Contention { mut busy, is_held }) => {
                    if let Again::Within(within) = busy.again {
                        let most = match is_held {
                            true => round.claim.ttl,
                            false => LOOK_AGAIN / 2 + share_of(LOOK_AGAIN / 2),
                        };
                        busy.again = Again::Within(within.min(most));
                    }
                    Ok(Attempt::Busy(busy))
                }
            };
        }
    }

    /// Waits for word of one of these nodes, or a little.
    async fn hear_of(&mut self, nodes: &[usize], until: Instant) {
        let pause = Instant::now() + ASK_AGAIN / 2 + share_of(ASK_AGAIN / 2);
        let word = async {
            loop {
                match self.nodes.changed().await {
                    Some((node, Change::OurTurn | Change::Touched)) if nodes.contains(&node) => return,
                    _ => {}
                }
            }
        };
        let _ = timeout_at(until.min(pause), word).await;
    }
}

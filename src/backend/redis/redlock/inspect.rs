//! Administration of the locks of a Redlock: listing, inspecting, revoking and removing holds, as a majority of nodes
//! reports them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::node::{NodeClient, Purpose};
use super::nodes::STRAGGLERS;
use super::quorum::Replies;
use super::{RedlockStore, merge};
use crate::backend::admin::{Frozen, Inspection, Listed, LockAdmin, Raised, Removal, Revoked};
use crate::backend::diagnosis::Diagnosis;
use crate::backend::ledger::history::Quota;
use crate::backend::{Backend, StoreError, TryReply};
use crate::lock::{
    FencingToken, FreezeRequest, Holder, LockName, LockState, NotedRecord, Record, Revocation, Token,
};

/// How long a node may take to reply to one request.
const LIMIT: Duration = Duration::from_secs(5);
/// How long all nodes are waited for that have to end a freeze. A command has the time to try that twice before it gives up,
/// and reports which nodes have missed it.
const THAW_LIMIT: Duration = Duration::from_secs(2);

impl RedlockStore {
    /// Sends a request to all nodes, and returns their replies when there is a majority.
    async fn survey<A: Clone + 'static>(
        &mut self,
        request: impl AsyncFn(&mut NodeClient) -> Result<A, StoreError> + 'static,
    ) -> Result<Replies<A>, StoreError> {
        self.connect().await?;
        self.nodes.request_majority(LIMIT, request).await
    }

    /// Merges the nodes' views of one lock. A hold at too few nodes for a majority, even if all missing nodes had it,
    /// is an attempt in progress or a leftover, and is not shown.
    fn merged(&self, states: &[&LockState]) -> Option<LockState> {
        let quorum = self.nodes.quorum();
        let missing = self.nodes.count() - states.len();
        let mut lock = LockState::free(states.first()?.name.clone());
        let mut holders = merge::holders(states.iter().map(|state| state.holders.as_slice()));
        holders.retain(|reports| reports.len() + missing >= quorum);
        lock.holders = holders.iter().filter_map(|reports| merge::holder(reports, quorum)).collect();
        lock.holders.sort_by_key(|holder| std::cmp::Reverse(holder.age));
        let is_shown = |holder: &Holder| lock.holders.iter().any(|shown| shown.identity == holder.identity);
        let successes = states.iter().filter_map(|state| state.last_success.clone());
        lock.last_success = successes.max_by_key(|success| success.granted_at);
        lock.mode =
            states.iter().find(|state| state.holders.iter().any(is_shown)).and_then(|state| state.mode);
        let least = (self.nodes.count() - quorum + 1).saturating_sub(missing);
        lock.freeze = merge::freeze(states.iter().filter_map(|state| state.freeze.as_ref()), least);
        lock.waiters = merge::waiters(states.iter().map(|state| state.waiters.as_slice()));
        Some(lock)
    }
}

impl RedlockStore {
    /// Freezes a lock at all nodes. Returns when a majority has done so, or cannot any more, and the other nodes have replied
    /// too or [`STRAGGLERS`] has passed.
    async fn freeze_nodes(&mut self, name: &LockName, request: &FreezeRequest) -> Replies<Frozen> {
        let (name, request) = (name.clone(), request.clone());
        let freeze = async move |node: &mut NodeClient| node.store.freeze(&name, &request).await;
        let replies = self.nodes.request(self.all(), Purpose::Other, LIMIT, freeze);
        let is_ours = |frozen: &Frozen| matches!(frozen, Frozen::Done(_) | Frozen::Kept(_));
        let is_decided = || replies.has_majority(is_ours) || replies.excludes_majority(|one| !is_ours(one));
        self.nodes.decided_or_complete(&replies, is_decided).await;
        self.nodes.complete_within(STRAGGLERS, &replies).await;
        replies
    }

    /// Freezes the lock at the nodes that have another freeze, although this one has a majority: there the other one was not
    /// ended with the others, or has reached no majority either.
    async fn replace_leftovers(
        &mut self,
        name: &LockName,
        request: &FreezeRequest,
        replies: &Replies<Frozen>,
    ) {
        let leftover = |(node, frozen): (usize, Frozen)| match frozen {
            Frozen::Already(freeze) => Some((node, freeze.id)),
            Frozen::Done(_) | Frozen::Kept(_) | Frozen::Unsupported(_) => None,
        };
        let leftovers: BTreeMap<usize, String> =
            replies.succeeded().into_iter().filter_map(leftover).collect();
        let nodes: Vec<usize> = leftovers.keys().copied().collect();
        let (name, request) = (name.clone(), request.clone());
        let replace = async move |node: &mut NodeClient| {
            if let Some(id) = leftovers.get(&node.node) {
                node.store.thaw(&name, id).await?;
            }
            node.store.freeze(&name, &request).await
        };
        let replaced = self.nodes.request(nodes, Purpose::Other, LIMIT, replace);
        self.nodes.complete_within(THAW_LIMIT, &replaced).await;
    }

    /// Ends the freeze with this id at these nodes. Returns when they have replied, or [`THAW_LIMIT`] has passed.
    async fn thaw_nodes(&mut self, name: &LockName, id: &str, nodes: Vec<usize>) -> Replies<bool> {
        let (name, id) = (name.clone(), id.to_owned());
        let thaw = async move |node: &mut NodeClient| node.store.thaw(&name, &id).await;
        let thawed = self.nodes.request(nodes, Purpose::Other, LIMIT, thaw);
        self.nodes.complete_within(THAW_LIMIT, &thawed).await;
        thawed
    }

    /// Returns the error of a thaw that some nodes have missed, if there are any: they keep the freeze.
    fn missed(&self, thawed: &Replies<bool>) -> Option<StoreError> {
        let why = |node| match thawed.of(node) {
            Some(Ok(_)) => None,
            Some(Err(error)) => Some((node, error)),
            None => {
                let text = format!("no answer within {} ms", THAW_LIMIT.as_millis());
                Some((node, StoreError::unanswered(text)))
            }
        };
        let missed: Vec<(usize, StoreError)> = self.all().filter_map(why).collect();
        if missed.len() > self.nodes.count() - self.nodes.quorum() {
            return Some(self.nodes.unavailable(&missed).after_a_part());
        }
        let names = missed.iter().map(|(node, error)| format!("{} ({error})", self.nodes.name(*node)));
        let names: Vec<String> = names.collect();
        let text = format!("it is thawed, but may still be frozen at {}", names.join(" and "));
        (!missed.is_empty()).then(|| StoreError::unanswered(text))
    }
}

/// Returns the names that any node has, in their order.
fn union(replies: &Replies<Vec<LockName>>) -> Vec<LockName> {
    let mut names: Vec<LockName> = replies.succeeded().into_iter().flat_map(|(_, names)| names).collect();
    names.sort_by(|one, other| one.as_str().cmp(other.as_str()));
    names.dedup();
    names
}

/// Returns the last fencing token of a node that is not raised.
fn last((_, raised): (usize, Raised)) -> Option<FencingToken> {
    match raised {
        Raised::Above(last) => Some(last),
        Raised::Done | Raised::Held | Raised::Unsupported(_) => None,
    }
}

impl LockAdmin for RedlockStore {
    fn list(&mut self, which: Listed) -> TryReply<'_, Vec<LockName>> {
        Box::pin(async move {
            Ok(union(&self.survey(async move |node: &mut NodeClient| node.store.list(which).await).await?))
        })
    }

    fn inspect<'a>(
        &'a mut self,
        names: &'a [LockName],
        token: Option<&'a Token>,
    ) -> TryReply<'a, Inspection> {
        Box::pin(async move {
            let (of, token) = (names.to_vec(), token.cloned());
            let inspect = async move |node: &mut NodeClient| node.store.inspect(&of, token.as_ref()).await;
            let replies = self.survey(inspect).await?.succeeded();
            let now_ms = replies.iter().map(|(_, inspection)| inspection.now_ms).max().unwrap_or(0);
            let views = |index: usize| -> Vec<&LockState> {
                replies.iter().filter_map(|(_, inspection)| inspection.locks.get(index)).collect()
            };
            let locks = (0..names.len()).filter_map(|index| self.merged(&views(index))).collect();
            Ok(Inspection { now_ms, locks })
        })
    }

    fn last_fencing_token<'a>(&'a mut self, name: &'a LockName) -> TryReply<'a, Option<FencingToken>> {
        Box::pin(async move {
            let name = name.clone();
            let last = async move |node: &mut NodeClient| node.store.last_fencing_token(&name).await;
            let replies = self.survey(last).await?.succeeded();
            let mut tokens: Vec<Option<FencingToken>> = replies.into_iter().map(|(_, token)| token).collect();
            tokens.sort_unstable_by(|one, other| other.cmp(one));
            // A majority of the nodes has given each token that was granted. The missing nodes may be among them.
            let missing = self.nodes.count() - tokens.len();
            Ok(tokens.get(self.nodes.quorum() - 1 - missing).copied().flatten())
        })
    }

    fn raise_fencing<'a>(&'a mut self, name: &'a LockName, floor: FencingToken) -> TryReply<'a, Raised> {
        Box::pin(async move {
            let name = name.clone();
            let raise = async move |node: &mut NodeClient| node.store.raise_fencing(&name, floor).await;
            let replies = self.survey(raise).await?;
            let mut larger: Vec<FencingToken> = replies.succeeded().into_iter().filter_map(last).collect();
            larger.sort_unstable_by(|one, other| other.cmp(one));
            // A claim needs a majority, in which one node gives it a larger token: that becomes the token of the claim.
            Ok(match larger.get(self.nodes.quorum() - 1) {
                Some(last) => Raised::Above(*last),
                None if replies.has_majority(|raised| *raised != Raised::Held) => Raised::Done,
                None => Raised::Held,
            })
        })
    }

    fn freeze<'a>(&'a mut self, name: &'a LockName, request: &'a FreezeRequest) -> TryReply<'a, Frozen> {
        Box::pin(async move {
            self.connect().await?;
            let replies = self.freeze_nodes(name, request).await;
            let (mut ours, mut others, mut new) = (Vec::new(), Vec::new(), 0);
            for (_, frozen) in replies.succeeded() {
                new += usize::from(!matches!(frozen, Frozen::Kept(_)));
                match frozen {
                    Frozen::Done(freeze) | Frozen::Kept(freeze) => ours.push(freeze),
                    Frozen::Already(freeze) => others.push(freeze),
                    Frozen::Unsupported(_) => {}
                }
            }
            if let Some(freeze) = merge::freeze(ours.iter(), self.nodes.quorum()) {
                if !others.is_empty() {
                    self.replace_leftovers(name, request, &replies).await;
                }
                // Nodes that have not replied may have been frozen before.
                let was_there = new < self.nodes.quorum();
                return Ok(if was_there { Frozen::Kept(freeze) } else { Frozen::Done(freeze) });
            }
            let least = self.nodes.count() - self.nodes.quorum() + 1;
            let result = match merge::freeze(others.iter(), least) {
                Some(freeze) => Ok(Frozen::Already(freeze)),
                None => Err(self.nodes.unavailable(&replies.failed()).after_a_part()),
            };
            let undone = match &result {
                // The caller repeats the request, or ends the freeze: until then, what was frozen before stays so.
                Err(StoreError::Unavailable { .. }) => {
                    replies.nodes(|frozen| matches!(frozen, Frozen::Done(_)))
                }
                _ => {
                    let other = replies.nodes(|frozen| matches!(frozen, Frozen::Already(_)));
                    self.all().filter(|node| !other.contains(node)).collect()
                }
            };
            self.thaw_nodes(name, &request.id, undone).await;
            result
        })
    }

    fn thaw<'a>(&'a mut self, name: &'a LockName, id: &'a str) -> TryReply<'a, bool> {
        Box::pin(async move {
            self.connect().await?;
            let thawed = self.thaw_nodes(name, id, self.all().collect()).await;
            match self.missed(&thawed) {
                Some(error) => Err(error),
                None => Ok(!thawed.nodes(|was_there| *was_there).is_empty()),
            }
        })
    }

    fn history<'a>(&'a mut self, name: &'a LockName) -> TryReply<'a, Vec<NotedRecord>> {
        Box::pin(async move {
            let name = name.clone();
            let replies =
                self.survey(async move |node: &mut NodeClient| node.store.history(&name).await).await?;
            // Nodes that did not have the hold have noted its release as interrupted.
            let same = |one: &Record, other: &Record| {
                Record { interrupted: other.interrupted, ..one.clone() } == *other
            };
            let mut found: Vec<(NotedRecord, usize, usize)> = Vec::new();
            for noted in replies.succeeded().into_iter().flat_map(|(_, records)| records) {
                let interrupted = usize::from(noted.1.interrupted);
                match found.iter_mut().find(|((_, known), ..)| same(known, &noted.1)) {
                    Some((_, copies, of_them)) => (*copies, *of_them) = (*copies + 1, *of_them + interrupted),
                    None => found.push((noted, 1, interrupted)),
                }
            }
            let merged = |((at, record), copies, of_them): (NotedRecord, usize, usize)| {
                (at, Record { interrupted: of_them * 2 > copies, ..record })
            };
            let mut records: Vec<NotedRecord> = found.into_iter().map(merged).collect();
            records.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
            let mut quota = Quota::default();
            records.retain(|(_, record)| quota.has_room_for(record));
            Ok(records)
        })
    }

    fn revoke<'a>(
        &'a mut self,
        name: &'a LockName,
        holder: &'a Holder,
        revocation: &'a Revocation,
    ) -> TryReply<'a, Revoked> {
        Box::pin(async move {
            let (name, holder, revocation) = (name.clone(), holder.clone(), revocation.clone());
            let revoke =
                async move |node: &mut NodeClient| node.store.revoke(&name, &holder, &revocation).await;
            let replies = self.survey(revoke).await?;
            let notified = replies.succeeded().into_iter().map(|(_, revoked)| match revoked {
                Revoked::Notified(count) => count,
                Revoked::Ended | Revoked::Gone => 0,
            });
            Ok(match notified.max() {
                // A holder needs the notification of one node only.
                Some(count) if count > 0 => Revoked::Notified(count),
                _ if replies.nodes(|revoked| *revoked == Revoked::Ended).is_empty() => Revoked::Gone,
                _ => Revoked::Ended,
            })
        })
    }

    fn remove<'a>(&'a mut self, name: &'a LockName, holder: &'a Holder) -> TryReply<'a, Removal> {
        Box::pin(async move {
            let (name, holder) = (name.clone(), holder.clone());
            let remove = async move |node: &mut NodeClient| node.store.remove(&name, &holder).await;
            let replies = self.survey(remove).await?;
            // The hold has no majority any more: fewer nodes than that are missing.
            Ok(match replies.nodes(|removal| *removal == Removal::Removed).is_empty() {
                true => Removal::Changed,
                false => Removal::Removed,
            })
        })
    }

    fn examine<'a>(&'a mut self, diagnosis: &'a Diagnosis) -> TryReply<'a, ()> {
        Box::pin(self.examine_nodes(diagnosis))
    }
}

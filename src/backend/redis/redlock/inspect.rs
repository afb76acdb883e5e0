//! Administration of the locks of a Redlock: listing, inspecting, revoking and removing holds, as a majority of nodes
//! reports them.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::timeout;

use super::asking::timed_out;
use super::contention::{joined, remaining};
use super::nodes::{PendingReply, RedlockNodes, Turn};
use super::{RedlockStore, STRAGGLERS, all_arrived};
use crate::backend::admin::{Inspection, LockAdmin, Removal, Revoked};
use crate::backend::diagnosis::Diagnosis;
use crate::backend::redis::RedisStore;
use crate::backend::{Reply, StoreError};
use crate::lock::{FencingToken, Holder, LockName, LockState, NotedRecord, Revocation, Token};

/// How long a node may take to reply to one request.
const LIMIT: Duration = Duration::from_secs(5);
/// The number of records that the history of a lock shows.
const OUTCOMES: usize = 40;

impl RedlockStore {
    /// Sends the same request to all nodes, and waits for a majority of replies, then up to [`STRAGGLERS`] for the
    /// others.
    async fn survey<A: Clone + 'static>(
        &mut self,
        work: impl for<'a> Fn(&'a mut RedisStore) -> Reply<'a, Result<A, StoreError>> + Clone + 'static,
    ) -> Result<Survey<A>, StoreError> {
        self.connect_majority().await?;
        let (count, quorum) = (self.nodes.count(), self.nodes.quorum());
        let mut pending: Vec<(usize, PendingReply<A>)> = Vec::new();
        for node in self.all() {
            let work = work.clone();
            let reply = self.nodes.request(node, Turn::Last, LIMIT, move |store, _| {
                Box::pin(async move {
                    timeout(LIMIT, work(store)).await.unwrap_or_else(|_| Err(timed_out(LIMIT)))
                })
            });
            pending.push((node, reply));
        }
        let succeeded =
            || pending.iter().filter(|(_, reply)| matches!(&*reply.borrow(), Some(Ok(_)))).count();
        let enough = |_: &mut RedlockNodes| (succeeded() >= quorum || all_arrived(&pending)).then_some(());
        self.nodes.until(enough).await;
        let all = self.nodes.until(|_: &mut RedlockNodes| all_arrived(&pending).then_some(()));
        // Late requests continue in the background; their replies are discarded.
        let _ = timeout(STRAGGLERS, all).await;
        let mut survey = Survey { replies: Vec::new(), missing: 0, quorum };
        let mut failed = Vec::new();
        for (node, reply) in pending {
            match reply.borrow().clone() {
                Some(Ok(reply)) => survey.replies.push(reply),
                Some(Err(error)) => failed.push((node, error)),
                None => {}
            }
        }
        survey.missing = count - survey.replies.len();
        match survey.replies.len() >= quorum {
            true => Ok(survey),
            false => Err(self.unreachable(&failed)),
        }
    }
}

/// The replies of the nodes to one request.
struct Survey<A> {
    replies: Vec<A>,
    /// The number of nodes without a reply.
    missing: usize,
    quorum: usize,
}

impl<A> Survey<A> {
    fn count(&self, is: impl Fn(&A) -> bool) -> usize {
        self.replies.iter().filter(|reply| is(reply)).count()
    }
}

impl Survey<Inspection> {
    /// Merges the nodes' views of one lock. A hold at too few nodes for a majority, even if all missing nodes had it,
    /// is an attempt in progress or a leftover, and is not shown.
    fn lock(&self, index: usize) -> Option<LockState> {
        let states: Vec<&LockState> =
            self.replies.iter().filter_map(|inspection| inspection.locks.get(index)).collect();
        let mut lock = LockState::free(states.first()?.name.clone());
        let mut seen = joined(states.iter().map(|state| state.holders.as_slice()));
        seen.retain(|holders| holders.len() + self.missing >= self.quorum);
        lock.holders = seen.iter().filter_map(|holders| self.holder(holders)).collect();
        lock.holders.sort_by_key(|holder| std::cmp::Reverse(holder.age));
        let has_shown = |state: &&&LockState| {
            let shown = |holder: &Holder| lock.holders.iter().any(|shown| shown.identity == holder.identity);
            state.holders.iter().any(shown)
        };
        lock.mode = states.iter().find(has_shown).and_then(|state| state.mode);
        for state in &states {
            let mut matched = vec![false; lock.waiters.len()];
            for waiter in &state.waiters {
                let same = |known: &usize| {
                    let (matched, known) = (matched[*known], &lock.waiters[*known]);
                    !matched && known.identity == waiter.identity && known.mode == waiter.mode
                };
                match (0..matched.len()).find(same) {
                    Some(known) => {
                        matched[known] = true;
                        let known = &mut lock.waiters[known];
                        known.waiting = known.waiting.min(waiter.waiting);
                    }
                    None => lock.waiters.push(waiter.clone()),
                }
            }
        }
        lock.waiters.sort_by_key(|waiter| std::cmp::Reverse(waiter.waiting));
        Some(lock)
    }

    /// Merges the nodes' views of one holder.
    fn holder(&self, holders: &[&Holder]) -> Option<Holder> {
        let mut holder = (*holders.first()?).clone();
        holder.remaining = remaining(holders, self.quorum);
        let count_of =
            |fencing: Option<FencingToken>| holders.iter().filter(|holder| holder.fencing == fencing).count();
        holder.fencing =
            holders.iter().map(|holder| holder.fencing).max_by_key(|fencing| count_of(*fencing))?;
        holder.age = holders.iter().filter_map(|holder| holder.age).max();
        holder.ended = holders.iter().filter_map(|holder| holder.ended).max();
        holder.ours = holders.iter().any(|holder| holder.ours);
        holder.revoked = holders.iter().find_map(|holder| holder.revoked.clone());
        holder.immortal = holders.iter().filter(|holder| holder.immortal).count() >= self.quorum;
        Some(holder)
    }
}

impl LockAdmin for RedlockStore {
    fn list(&mut self) -> Reply<'_, Result<Vec<LockName>, StoreError>> {
        Box::pin(async {
            let survey = self.survey(|store| store.list()).await?;
            let mut names: Vec<LockName> = survey.replies.into_iter().flatten().collect();
            names.sort_by(|one, other| one.as_str().cmp(other.as_str()));
            names.dedup();
            Ok(names)
        })
    }

    fn inspect<'a>(
        &'a mut self,
        names: &'a [LockName],
        token: Option<&'a Token>,
    ) -> Reply<'a, Result<Inspection, StoreError>> {
        Box::pin(async move {
            let arguments = Rc::new((names.to_vec(), token.cloned()));
            let survey = self
                .survey(move |store| {
                    let arguments = Rc::clone(&arguments);
                    Box::pin(async move { store.inspect(&arguments.0, arguments.1.as_ref()).await })
                })
                .await?;
            let now_ms = survey.replies.iter().map(|inspection| inspection.now_ms).max().unwrap_or(0);
            let locks = (0..names.len()).filter_map(|index| survey.lock(index)).collect();
            Ok(Inspection { now_ms, locks })
        })
    }

    fn history<'a>(&'a mut self, name: &'a LockName) -> Reply<'a, Result<Vec<NotedRecord>, StoreError>> {
        Box::pin(async move {
            let name = Rc::new(name.clone());
            let survey = self
                .survey(move |store| {
                    let name = Rc::clone(&name);
                    Box::pin(async move { store.history(&name).await })
                })
                .await?;
            let mut records: Vec<NotedRecord> = Vec::new();
            for record in survey.replies.into_iter().flatten() {
                if records.iter().all(|(_, known)| *known != record.1) {
                    records.push(record);
                }
            }
            records.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
            records.truncate(OUTCOMES);
            Ok(records)
        })
    }

    fn revoke<'a>(
        &'a mut self,
        name: &'a LockName,
        fencing: FencingToken,
        revocation: &'a Revocation,
    ) -> Reply<'a, Result<Revoked, StoreError>> {
        Box::pin(async move {
            let arguments = Rc::new((name.clone(), revocation.clone()));
            let survey = self
                .survey(move |store| {
                    let arguments = Rc::clone(&arguments);
                    Box::pin(async move { store.revoke(&arguments.0, fencing, &arguments.1).await })
                })
                .await?;
            let notified = survey.replies.iter().map(|revoked| match revoked {
                Revoked::Told(count) => *count,
                Revoked::Ended | Revoked::Gone => 0,
            });
            Ok(match notified.max() {
                // A holder needs the notification of one node only.
                Some(count) if count > 0 => Revoked::Told(count),
                _ if survey.count(|revoked| *revoked == Revoked::Ended) > 0 => Revoked::Ended,
                _ => Revoked::Gone,
            })
        })
    }

    fn remove<'a>(
        &'a mut self,
        name: &'a LockName,
        holder: &'a Holder,
    ) -> Reply<'a, Result<Removal, StoreError>> {
        Box::pin(async move {
            let arguments = Rc::new((name.clone(), holder.clone()));
            let survey = self
                .survey(move |store| {
                    let arguments = Rc::clone(&arguments);
                    Box::pin(async move { store.remove(&arguments.0, &arguments.1).await })
                })
                .await?;
            // The hold has no majority any more: fewer nodes than that are missing.
            Ok(match survey.count(|removal| *removal == Removal::Removed) {
                0 => Removal::Changed,
                _ => Removal::Removed,
            })
        })
    }

    fn examine<'a>(&'a mut self, diagnosis: &'a Diagnosis) -> Reply<'a, Result<(), StoreError>> {
        Box::pin(self.examine_nodes(diagnosis))
    }
}

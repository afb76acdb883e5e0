//! Who holds what, as a majority of nodes sees it, and the end of a hold by somebody else's word.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::timeout;

use super::asking::no_answer;
use super::contention::{joined, remaining};
use super::nodes::{PendingReply, RedlockNodes, Turn};
use super::{RedlockStore, STRAGGLERS, are_answered};
use crate::backend::admin::{Inspection, LockAdmin, Removal, Revoked};
use crate::backend::diagnosis::Diagnosis;
use crate::backend::redis::RedisStore;
use crate::backend::{Reply, StoreError};
use crate::lock::{FencingToken, Holder, LockName, LockState, NotedRecord, Revocation, Token};

/// How long a node may take to tell all that it knows.
const LIMIT: Duration = Duration::from_secs(5);
/// So many outcomes of those who held a lock, and of those who did not get it, are told.
const OUTCOMES: usize = 40;

impl RedlockStore {
    /// Asks all nodes the same, and waits for a majority, and a little for the others.
    async fn survey<A: Clone + 'static>(
        &mut self,
        work: impl for<'a> Fn(&'a mut RedisStore) -> Reply<'a, Result<A, StoreError>> + Clone + 'static,
    ) -> Result<Survey<A>, StoreError> {
        self.connect_majority().await?;
        let (count, quorum) = (self.nodes.count(), self.nodes.quorum());
        let mut slots: Vec<(usize, PendingReply<A>)> = Vec::new();
        for node in self.all() {
            let work = work.clone();
            let slot = self.nodes.ask(node, Turn::Last, LIMIT, move |store, _| {
                Box::pin(async move {
                    timeout(LIMIT, work(store)).await.unwrap_or_else(|_| Err(no_answer(LIMIT)))
                })
            });
            slots.push((node, slot));
        }
        let answers = || slots.iter().filter(|(_, slot)| matches!(&*slot.borrow(), Some(Ok(_)))).count();
        let enough = |_: &mut RedlockNodes| (answers() >= quorum || are_answered(&slots)).then_some(());
        self.nodes.until(enough).await;
        let all = self.nodes.until(|_: &mut RedlockNodes| are_answered(&slots).then_some(()));
        // What is late goes on, and nobody waits for it.
        let _ = timeout(STRAGGLERS, all).await;
        let mut survey = Survey { answers: Vec::new(), missing: 0, quorum };
        let mut failed = Vec::new();
        for (node, slot) in slots {
            match slot.borrow().clone() {
                Some(Ok(answer)) => survey.answers.push(answer),
                Some(Err(error)) => failed.push((node, error)),
                None => {}
            }
        }
        survey.missing = count - survey.answers.len();
        match survey.answers.len() >= quorum {
            true => Ok(survey),
            false => Err(self.unreachable(&failed)),
        }
    }
}

/// What the nodes have answered.
struct Survey<A> {
    answers: Vec<A>,
    /// So many have not.
    missing: usize,
    quorum: usize,
}

impl<A> Survey<A> {
    fn count(&self, is: impl Fn(&A) -> bool) -> usize {
        self.answers.iter().filter(|answer| is(answer)).count()
    }
}

impl Survey<Inspection> {
    /// One lock as the nodes see it together. What is at too few of them for a majority, whatever the others would say, is
    /// there in passing, or is left of something.
    fn lock(&self, index: usize) -> Option<LockState> {
        let states: Vec<&LockState> =
            self.answers.iter().filter_map(|inspection| inspection.locks.get(index)).collect();
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
            let mut told = vec![false; lock.waiters.len()];
            for waiter in &state.waiters {
                let same = |known: &usize| {
                    let (told, known) = (told[*known], &lock.waiters[*known]);
                    !told && known.identity == waiter.identity && known.mode == waiter.mode
                };
                match (0..told.len()).find(same) {
                    Some(known) => {
                        told[known] = true;
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

    /// One holder, of whom several nodes tell.
    fn holder(&self, holders: &[&Holder]) -> Option<Holder> {
        let mut holder = (*holders.first()?).clone();
        holder.remaining = remaining(holders, self.quorum);
        let gave =
            |fencing: Option<FencingToken>| holders.iter().filter(|holder| holder.fencing == fencing).count();
        holder.fencing = holders.iter().map(|holder| holder.fencing).max_by_key(|fencing| gave(*fencing))?;
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
            let mut names: Vec<LockName> = survey.answers.into_iter().flatten().collect();
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
            let asked = Rc::new((names.to_vec(), token.cloned()));
            let survey = self
                .survey(move |store| {
                    let asked = Rc::clone(&asked);
                    Box::pin(async move { store.inspect(&asked.0, asked.1.as_ref()).await })
                })
                .await?;
            let now_ms = survey.answers.iter().map(|inspection| inspection.now_ms).max().unwrap_or(0);
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
            for noted in survey.answers.into_iter().flatten() {
                if records.iter().all(|(_, known)| *known != noted.1) {
                    records.push(noted);
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
            let asked = Rc::new((name.clone(), revocation.clone()));
            let survey = self
                .survey(move |store| {
                    let asked = Rc::clone(&asked);
                    Box::pin(async move { store.revoke(&asked.0, fencing, &asked.1).await })
                })
                .await?;
            let told = survey.answers.iter().map(|answer| match answer {
                Revoked::Told(told) => *told,
                Revoked::Ended | Revoked::Gone => 0,
            });
            Ok(match told.max() {
                // Whoever hears it from one node has heard it.
                Some(told) if told > 0 => Revoked::Told(told),
                _ if survey.count(|answer| *answer == Revoked::Ended) > 0 => Revoked::Ended,
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
            let asked = Rc::new((name.clone(), holder.clone()));
            let survey = self
                .survey(move |store| {
                    let asked = Rc::clone(&asked);
                    Box::pin(async move { store.remove(&asked.0, &asked.1).await })
                })
                .await?;
            // It has no majority any more: less than that are missing.
            Ok(match survey.count(|answer| *answer == Removal::Removed) {
                0 => Removal::Changed,
                _ => Removal::Removed,
            })
        })
    }

    fn examine<'a>(&'a mut self, examination: &'a Diagnosis) -> Reply<'a, Result<(), StoreError>> {
        Box::pin(self.examine_nodes(examination))
    }
}

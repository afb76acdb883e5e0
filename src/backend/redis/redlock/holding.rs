//! Keeping a lock that a majority of nodes has granted, and giving it up.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::timeout;

use super::asking::{Fenced, limit, no_answer};
use super::nodes::{PendingReply, RedlockNodes, Turn};
use super::{Late, RedlockStore, STRAGGLERS, are_answered};
use crate::backend::{Attempt, Backend, Change, Loss, Release, Renewal, StoreError};
use crate::lock::{Claim, LockName, Record, Revocation};

/// What some answers to one question come to.
struct Renewed {
    held: usize,
    lost: usize,
    taken: usize,
    failed: Vec<(usize, StoreError)>,
    lease: Option<Duration>,
    revoked: Option<Revocation>,
}

impl Renewed {
    fn of(slots: &[(usize, PendingReply<Renewal>)]) -> Renewed {
        let mut all = Renewed { held: 0, lost: 0, taken: 0, failed: Vec::new(), lease: None, revoked: None };
        for (node, slot) in slots {
            match &*slot.borrow() {
                Some(Ok(Renewal::Held { lease, revoked })) => {
                    all.held += 1;
                    all.lease = all.lease.into_iter().chain(*lease).min();
                    all.revoked = all.revoked.take().or_else(|| revoked.clone());
                }
                Some(Ok(Renewal::Lost(loss))) => {
                    all.lost += 1;
                    all.taken += usize::from(*loss == Loss::Taken);
                }
                Some(Err(error)) => all.failed.push((*node, error.clone())),
                None => {}
            }
        }
        all
    }
}

impl RedlockStore {
    /// Renews the hold at all nodes; a majority suffices. Those that have forgotten it are told again.
    pub(super) async fn keep(&mut self, claim: &Claim, rest: Duration) -> Result<Renewal, StoreError> {
        self.put_in_order();
        let (count, quorum) = (self.nodes.count(), self.nodes.quorum());
        let limit = limit(claim.ttl);
        let claim = Rc::new(claim.clone());
        let mut slots: Vec<(usize, PendingReply<Renewal>)> = Vec::new();
        for node in self.all() {
            let claim = Rc::clone(&claim);
            let slot = self.nodes.ask(node, Turn::Next, limit, move |store, _| {
                Box::pin(async move {
                    let renewed = store.renew(&claim, rest);
                    timeout(limit, renewed).await.unwrap_or_else(|_| Err(no_answer(limit)))
                })
            });
            slots.push((node, slot));
        }
        let decided = |_: &mut RedlockNodes| {
            let renewed = Renewed::of(&slots);
            let is_decided = renewed.held >= quorum || renewed.lost > count - quorum || are_answered(&slots);
            is_decided.then_some(renewed)
        };
        let renewed = self.nodes.until(decided).await;
        if renewed.held >= quorum {
            self.is_untracked = false;
            if self.has_held(&claim) {
                self.late.extend(slots.into_iter().map(|(node, slot)| (node, Late::Renewal(slot))));
                self.put_in_order();
            }
            return Ok(Renewal::Held { lease: renewed.lease, revoked: renewed.revoked });
        }
        match renewed {
            Renewed { lost, taken, .. } if lost > count - quorum => {
                Ok(Renewal::Lost(if taken > 0 { Loss::Taken } else { Loss::Gone }))
            }
            // The others have failed: with as many more as have lost it there would have been an answer.
            Renewed { failed, .. } => Err(self.unreachable(&failed)),
        }
    }

    /// Puts in order what came after the decision: a node that granted the lock with another number notes ours, and one that
    /// has forgotten our hold, or where we are still in line, has it from now on, if nobody else has.
    pub(super) fn put_in_order(&mut self) {
        let Some(held) = self.last.as_ref().and_then(|last| last.held.as_ref()) else {
            self.late.clear();
            return;
        };
        let (claim, fencing) = (Rc::clone(&held.claim), held.fencing);
        let limit = limit(claim.ttl);
        let mut open = Vec::new();
        for (node, late) in std::mem::take(&mut self.late) {
            let what = match &late {
                Late::Claim(slot) => match &*slot.borrow() {
                    None => None,
                    Some(Ok(said)) => Some(match &said.attempt {
                        Attempt::Granted(_) if said.fencing() == Some(fencing) => Mending::Nothing,
                        Attempt::Granted(_) => Mending::Note,
                        // Its line calls us when it is free, and would call the next one if we only left.
                        _ if said.number.is_some() => Mending::Anew,
                        _ => Mending::Nothing,
                    }),
                    Some(Err(_)) => Some(Mending::Nothing),
                },
                Late::Renewal(slot) => match &*slot.borrow() {
                    None => None,
                    // Whoever has it there instead is not disturbed, unless it is the hold that ours is inside of.
                    Some(Ok(Renewal::Lost(_))) => Some(Mending::Anew),
                    Some(_) => Some(Mending::Nothing),
                },
            };
            let (claim, id) = (Rc::clone(&claim), Rc::clone(&self.ids[node]));
            match what {
                None => open.push((node, late)),
                Some(Mending::Nothing) => {}
                Some(Mending::Note) => {
                    self.nodes.ask(node, Turn::Last, limit, move |store, _| {
                        store.fence(claim, fencing, Fenced::Elsewhere, id)
                    });
                }
                Some(Mending::Anew) => {
                    self.nodes.ask(node, Turn::Next, limit, move |store, cancel| {
                        store.mend(claim, fencing, id, cancel)
                    });
                }
            }
        }
        self.late = open;
    }

    /// Releases the hold, or leaves the line, at all nodes.
    pub(super) async fn give_up(
        &mut self,
        claim: &Claim,
        rest: Duration,
        record: Option<&Record>,
    ) -> Result<Release, StoreError> {
        if self.is_last(claim) {
            self.late.clear();
            self.last = None;
        }
        let claim = Rc::new(claim.clone());
        let (count, quorum) = (self.nodes.count(), self.nodes.quorum());
        let slots = self.begin_release(self.all(), &claim, rest, record);
        let decided = |_: &mut RedlockNodes| {
            let answer = released(&slots, count, quorum);
            (answer.is_some() || are_answered(&slots)).then_some(answer)
        };
        let answer = self.nodes.until(decided).await;
        // The others are to know as well; what they are told is sent at the latest when they are hurried.
        let others = self.nodes.until(|_: &mut RedlockNodes| are_answered(&slots).then_some(()));
        if timeout(STRAGGLERS, others).await.is_err() {
            self.nodes.cancel();
        }
        let failed = || -> Vec<(usize, StoreError)> {
            let error =
                |slot: &PendingReply<Release>| slot.borrow().as_ref().and_then(|answer| answer.clone().err());
            slots.iter().filter_map(|(node, slot)| Some((*node, error(slot)?))).collect()
        };
        answer.ok_or_else(|| self.unreachable(&failed()))
    }

    /// Keeps a record at all nodes; a majority suffices. Of a hold that was lost something may be left at the others, and
    /// nothing runs under it any more.
    pub(super) async fn note(&mut self, name: &LockName, record: &Record) -> Result<(), StoreError> {
        let held = self.last.as_ref().filter(|last| last.name == *name && record.has_held());
        if let Some(held) = held.and_then(|last| last.held.as_ref()) {
            let claim = Rc::clone(&held.claim);
            return self.give_up(&claim, Duration::ZERO, Some(record)).await.map(drop);
        }
        let what = Rc::new((name.clone(), record.clone()));
        let limit = limit(Duration::MAX);
        let mut slots: Vec<(usize, PendingReply<()>)> = Vec::new();
        for node in self.all() {
            let what = Rc::clone(&what);
            let slot = self.nodes.ask(node, Turn::Last, limit, move |store, _| {
                Box::pin(async move {
                    let noted = store.record(&what.0, &what.1);
                    timeout(limit, noted).await.unwrap_or_else(|_| Err(no_answer(limit)))
                })
            });
            slots.push((node, slot));
        }
        let noted = |slot: &&(usize, PendingReply<()>)| matches!(&*slot.1.borrow(), Some(Ok(())));
        let enough = |nodes: &mut RedlockNodes| {
            (slots.iter().filter(noted).count() >= nodes.quorum() || are_answered(&slots)).then_some(())
        };
        self.nodes.until(enough).await;
        let others = self.nodes.until(|_: &mut RedlockNodes| are_answered(&slots).then_some(()));
        // What has been sent arrives without us.
        let _ = timeout(STRAGGLERS, others).await;
        let error = |slot: &PendingReply<()>| slot.take().and_then(Result::err);
        let failed: Vec<_> = slots.iter().filter_map(|(node, slot)| Some((*node, error(slot)?))).collect();
        if failed.len() > self.nodes.count() - self.nodes.quorum() {
            return Err(self.unreachable(&failed));
        }
        Ok(())
    }

    /// The first word of any node that matters.
    pub(super) async fn hear(&mut self) -> Change {
        if std::mem::take(&mut self.is_untracked) {
            // To be asked once more, and be told from then on.
            return Change::Touched;
        }
        loop {
            let is_held = self.last.as_ref().is_some_and(|last| last.held.is_some());
            match self.nodes.changed().await {
                // Some question has been answered.
                None => self.put_in_order(),
                // One node is not the store; the next question connects it again.
                Some((_, Change::Disconnected | Change::Touched)) => return Change::Touched,
                // The line that it was in.
                Some(_) if is_held => {}
                Some((_, change)) => return change,
            }
        }
    }
}

/// What is to be done about a node.
enum Mending {
    Nothing,
    Note,
    Anew,
}

/// What a majority says; `None` when it does not, or not yet.
fn released(slots: &[(usize, PendingReply<Release>)], count: usize, quorum: usize) -> Option<Release> {
    let answers = |is: fn(&Release) -> bool| {
        slots.iter().filter(|(_, slot)| matches!(&*slot.borrow(), Some(Ok(answer)) if is(answer))).count()
    };
    let gone = answers(|answer| *answer == Release::NotHeld);
    let kept = answers(|answer| *answer == Release::Kept);
    let released = answers(|answer| *answer == Release::Released);
    if kept + released >= quorum {
        return Some(if kept > 0 { Release::Kept } else { Release::Released });
    }
    (gone > count - quorum).then_some(Release::NotHeld)
}

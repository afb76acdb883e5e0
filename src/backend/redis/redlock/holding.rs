//! Renewing and releasing a lock that a majority of nodes has granted.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::timeout;

use super::asking::{Fenced, limit, timed_out};
use super::nodes::{PendingReply, RedlockNodes, Turn};
use super::{LateReply, RedlockStore, STRAGGLERS, all_arrived};
use crate::backend::{Attempt, Backend, Change, Loss, Release, Renewal, StoreError};
use crate::lock::{Claim, LockName, Record, Revocation};

/// The summary of the replies to one renewal so far.
struct RenewalTally {
    held: usize,
    lost: usize,
    taken: usize,
    failed: Vec<(usize, StoreError)>,
    lease: Option<Duration>,
    revoked: Option<Revocation>,
}

impl RenewalTally {
    fn of(replies: &[(usize, PendingReply<Renewal>)]) -> RenewalTally {
        let mut all =
            RenewalTally { held: 0, lost: 0, taken: 0, failed: Vec::new(), lease: None, revoked: None };
        for (node, reply) in replies {
            match &*reply.borrow() {
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
    /// Renews the hold at all nodes; a majority suffices. The hold is restored at nodes that have lost it.
    pub(super) async fn renew_hold(&mut self, claim: &Claim, rest: Duration) -> Result<Renewal, StoreError> {
        self.repair_late_nodes();
        let (count, quorum) = (self.nodes.count(), self.nodes.quorum());
        let limit = limit(claim.ttl);
        let claim = Rc::new(claim.clone());
        let mut replies: Vec<(usize, PendingReply<Renewal>)> = Vec::new();
        for node in self.all() {
            let claim = Rc::clone(&claim);
            let reply = self.nodes.request(node, Turn::Next, limit, move |store, _| {
                Box::pin(async move {
                    let renewed = store.renew(&claim, rest);
                    timeout(limit, renewed).await.unwrap_or_else(|_| Err(timed_out(limit)))
                })
            });
            replies.push((node, reply));
        }
        let decided = |_: &mut RedlockNodes| {
            let renewed = RenewalTally::of(&replies);
            let is_decided = renewed.held >= quorum || renewed.lost > count - quorum || all_arrived(&replies);
            is_decided.then_some(renewed)
        };
        let renewed = self.nodes.until(decided).await;
        if renewed.held >= quorum {
            self.is_untracked = false;
            if self.is_held_by(&claim) {
                self.late.extend(replies.into_iter().map(|(node, reply)| (node, LateReply::Renewal(reply))));
                self.repair_late_nodes();
            }
            return Ok(Renewal::Held { lease: renewed.lease, revoked: renewed.revoked });
        }
        match renewed {
            RenewalTally { lost, taken, .. } if lost > count - quorum => {
                Ok(Renewal::Lost(if taken > 0 { Loss::Taken } else { Loss::Gone }))
            }
            // Undecided only because of the nodes that failed.
            RenewalTally { failed, .. } => Err(self.unreachable(&failed)),
        }
    }

    /// Repairs the nodes whose replies arrived after the decision. A node that granted the lock with another fencing
    /// token records the agreed one. A node that has lost the hold, or where the claim is still queued, grants the hold
    /// again unless another client holds the lock there.
    pub(super) fn repair_late_nodes(&mut self) {
        let Some(held) = self.latest.as_ref().and_then(|latest| latest.held.as_ref()) else {
            self.late.clear();
            return;
        };
        let (claim, fencing) = (Rc::clone(&held.claim), held.fencing);
        let limit = limit(claim.ttl);
        let mut pending = Vec::new();
        for (node, late) in std::mem::take(&mut self.late) {
            let repair = match &late {
                LateReply::Claim(reply) => match &*reply.borrow() {
                    None => None,
                    Some(Ok(reply)) => Some(match &reply.attempt {
                        Attempt::Granted(_) if reply.fencing() == Some(fencing) => Repair::None,
                        Attempt::Granted(_) => Repair::RecordFencing,
                        // Its queue notifies this client when the lock is free. If the claim only left the queue, the
                        // node would notify the next waiter instead.
                        _ if reply.number.is_some() => Repair::RestoreHold,
                        _ => Repair::None,
                    }),
                    Some(Err(_)) => Some(Repair::None),
                },
                LateReply::Renewal(reply) => match &*reply.borrow() {
                    None => None,
                    // A client that holds the lock there instead is not disturbed, unless it is the outer hold.
                    Some(Ok(Renewal::Lost(_))) => Some(Repair::RestoreHold),
                    Some(_) => Some(Repair::None),
                },
            };
            let (claim, id) = (Rc::clone(&claim), Rc::clone(&self.ids[node]));
            match repair {
                None => pending.push((node, late)),
                Some(Repair::None) => {}
                Some(Repair::RecordFencing) => {
                    self.nodes.request(node, Turn::Last, limit, move |store, _| {
                        store.fence(claim, fencing, Fenced::Elsewhere, id)
                    });
                }
                Some(Repair::RestoreHold) => {
                    self.nodes.request(node, Turn::Next, limit, move |store, cancel| {
                        store.restore_hold(claim, fencing, id, cancel)
                    });
                }
            }
        }
        self.late = pending;
    }

    /// Releases the hold, or leaves the queue, at all nodes.
    pub(super) async fn release_hold(
        &mut self,
        claim: &Claim,
        rest: Duration,
        record: Option<&Record>,
    ) -> Result<Release, StoreError> {
        if self.is_latest(claim) {
            self.late.clear();
            self.latest = None;
        }
        let claim = Rc::new(claim.clone());
        let (count, quorum) = (self.nodes.count(), self.nodes.quorum());
        let replies = self.begin_release(self.all(), &claim, rest, record);
        let decided = |_: &mut RedlockNodes| {
            let outcome = released(&replies, count, quorum);
            (outcome.is_some() || all_arrived(&replies)).then_some(outcome)
        };
        let outcome = self.nodes.until(decided).await;
        // The other nodes have to receive the release as well; it is sent at the latest when their claims are
        // cancelled.
        let others = self.nodes.until(|_: &mut RedlockNodes| all_arrived(&replies).then_some(()));
        if timeout(STRAGGLERS, others).await.is_err() {
            self.nodes.cancel();
        }
        let failed = || -> Vec<(usize, StoreError)> {
            let error =
                |reply: &PendingReply<Release>| reply.borrow().as_ref().and_then(|reply| reply.clone().err());
            replies.iter().filter_map(|(node, reply)| Some((*node, error(reply)?))).collect()
        };
        outcome.ok_or_else(|| self.unreachable(&failed()))
    }

    /// Stores a record at all nodes; a majority suffices. A hold that was lost may still be present at some nodes, and
    /// no command runs under it any more, so it is released with the record.
    pub(super) async fn keep_record(&mut self, name: &LockName, record: &Record) -> Result<(), StoreError> {
        let latest = self.latest.as_ref().filter(|latest| latest.name == *name && record.has_held());
        if let Some(held) = latest.and_then(|latest| latest.held.as_ref()) {
            let claim = Rc::clone(&held.claim);
            return self.release_hold(&claim, Duration::ZERO, Some(record)).await.map(drop);
        }
        let arguments = Rc::new((name.clone(), record.clone()));
        let limit = limit(Duration::MAX);
        let mut replies: Vec<(usize, PendingReply<()>)> = Vec::new();
        for node in self.all() {
            let arguments = Rc::clone(&arguments);
            let reply = self.nodes.request(node, Turn::Last, limit, move |store, _| {
                Box::pin(async move {
                    let stored = store.record(&arguments.0, &arguments.1);
                    timeout(limit, stored).await.unwrap_or_else(|_| Err(timed_out(limit)))
                })
            });
            replies.push((node, reply));
        }
        let is_stored = |reply: &&(usize, PendingReply<()>)| matches!(&*reply.1.borrow(), Some(Ok(())));
        let enough = |nodes: &mut RedlockNodes| {
            (replies.iter().filter(is_stored).count() >= nodes.quorum() || all_arrived(&replies))
                .then_some(())
        };
        self.nodes.until(enough).await;
        let others = self.nodes.until(|_: &mut RedlockNodes| all_arrived(&replies).then_some(()));
        // A request that has been sent is processed even if its reply is not waited for.
        let _ = timeout(STRAGGLERS, others).await;
        let error = |reply: &PendingReply<()>| reply.take().and_then(Result::err);
        let failed: Vec<_> =
            replies.iter().filter_map(|(node, reply)| Some((*node, error(reply)?))).collect();
        if failed.len() > self.nodes.count() - self.nodes.quorum() {
            return Err(self.unreachable(&failed));
        }
        Ok(())
    }

    /// Waits for the first relevant change that any node reports.
    pub(super) async fn next_change(&mut self) -> Change {
        if std::mem::take(&mut self.is_untracked) {
            // Causes one more renewal, from which on the nodes report changes.
            return Change::Touched;
        }
        loop {
            let is_held = self.latest.as_ref().is_some_and(|latest| latest.held.is_some());
            match self.nodes.changed().await {
                // A request has completed.
                None => self.repair_late_nodes(),
                // Losing one node does not disconnect the store; the next request connects the node again.
                Some((_, Change::Disconnected | Change::Touched)) => return Change::Touched,
                // A notification of the queue in which the claim waited before.
                Some(_) if is_held => {}
                Some((_, change)) => return change,
            }
        }
    }
}

/// How a node is repaired.
enum Repair {
    None,
    RecordFencing,
    RestoreHold,
}

/// Returns the outcome that a majority reports; `None` if there is none, or none yet.
fn released(replies: &[(usize, PendingReply<Release>)], count: usize, quorum: usize) -> Option<Release> {
    let count_of = |is: fn(&Release) -> bool| {
        let matching =
            |reply: &PendingReply<Release>| matches!(&*reply.borrow(), Some(Ok(reply)) if is(reply));
        replies.iter().filter(|(_, reply)| matching(reply)).count()
    };
    let gone = count_of(|release| *release == Release::NotHeld);
    let kept = count_of(|release| *release == Release::Kept);
    let released = count_of(|release| *release == Release::Released);
    if kept + released >= quorum {
        return Some(if kept > 0 { Release::Kept } else { Release::Released });
    }
    (gone > count - quorum).then_some(Release::NotHeld)
}

//! Renewing and releasing a lock that a majority of nodes has granted.

use std::rc::Rc;
use std::time::Duration;

use super::node::{Fenced, NodeClient, limit};
use super::nodes::{Purpose, RedlockNodes};
use super::quorum::{Replies, STRAGGLERS};
use super::{LateReplies, RedlockStore};
use crate::backend::{Backend, Change, Loss, Release, Renewal, StoreError};
use crate::lock::{Claim, LockName, Record, Revocation};

impl RedlockStore {
    /// Renews the hold at all nodes; a majority suffices. The hold is restored at nodes that have lost it.
    pub(super) async fn renew_hold(&mut self, claim: &Claim, rest: Duration) -> Result<Renewal, StoreError> {
        self.repair_late_nodes();
        let renewed = claim.clone();
        let renew = async move |node: &mut NodeClient| node.store.renew(&renewed, rest).await;
        let replies = self.nodes.request(self.all(), Purpose::Renewal, limit(claim.ttl), renew);
        let is_held = |renewal: &Renewal| matches!(renewal, Renewal::Held { .. });
        let is_lost = |renewal: &Renewal| matches!(renewal, Renewal::Lost(_));
        let is_decided =
            || replies.has_majority(is_held) || replies.excludes_majority(is_lost) || replies.is_complete();
        self.nodes.until(|_: &mut RedlockNodes| is_decided().then_some(())).await;
        if replies.has_majority(is_held) {
            let mut least_lease: Option<Duration> = None;
            let mut revocation: Option<Revocation> = None;
            for (_, renewal) in replies.succeeded() {
                if let Renewal::Held { lease, revoked } = renewal {
                    least_lease = least_lease.into_iter().chain(lease).min();
                    revocation = revocation.or(revoked);
                }
            }
            if let Some(latest) = self.latest.as_mut().filter(|latest| latest.is(claim))
                && let Some(hold) = &mut latest.hold
            {
                hold.is_untracked = false;
                hold.late.push(LateReplies::Renewal(replies));
                self.repair_late_nodes();
            }
            return Ok(Renewal::Held { lease: least_lease, revoked: revocation });
        }
        if replies.excludes_majority(is_lost) {
            let is_taken = |renewal: &Renewal| *renewal == Renewal::Lost(Loss::Taken);
            return Ok(Renewal::Lost(match replies.nodes(is_taken).is_empty() {
                true => Loss::Gone,
                false => Loss::Taken,
            }));
        }
        // Undecided only because of the nodes that failed.
        Err(self.nodes.unavailable(&replies.failed()))
    }

    /// Repairs the nodes whose replies arrived after the decision. A node that granted the lock with another fencing
    /// token records the agreed one. A node that has lost the hold, or where the claim is still queued, grants the hold
    /// again unless another client holds the lock there.
    pub(super) fn repair_late_nodes(&mut self) {
        let Some(latest) = &mut self.latest else { return };
        let Some(hold) = &mut latest.hold else { return };
        let (mut wrong_token, mut lost) = (Vec::new(), Vec::new());
        for late in &hold.late {
            match late {
                LateReplies::Claim(replies) => {
                    for (node, reply) in replies.take() {
                        match reply.fencing() {
                            Some(fencing) if fencing != hold.fencing => wrong_token.push(node),
                            // Its queue notifies this client when the lock is free. If the claim only left the queue,
                            // the node would notify the next waiter instead.
                            None if reply.number.is_some() => lost.push(node),
                            _ => {}
                        }
                    }
                }
                // A client that holds the lock there instead is not disturbed, unless it is the outer hold.
                LateReplies::Renewal(replies) => {
                    let renewals = replies.take().into_iter();
                    lost.extend(
                        renewals.filter(|(_, it)| matches!(it, Renewal::Lost(_))).map(|(node, _)| node),
                    );
                }
            }
        }
        hold.late.retain(|late| !late.is_complete());
        let (fencing, limit) = (hold.fencing, limit(latest.claim.ttl));
        let claim = Rc::clone(&latest.claim);
        let _ = self.nodes.request(wrong_token, Purpose::Other, limit, async move |node: &mut NodeClient| {
            node.fence(&claim, fencing, Fenced::Elsewhere).await
        });
        let claim = Rc::clone(&latest.claim);
        let _ = self.nodes.request(lost, Purpose::Claim, limit, async move |node: &mut NodeClient| {
            node.restore(&claim, fencing).await
        });
    }

    /// Releases the hold, or leaves the queue, at all nodes.
    pub(super) async fn release_hold(
        &mut self,
        claim: &Claim,
        rest: Duration,
        record: Option<&Record>,
    ) -> Result<Release, StoreError> {
        self.latest.take_if(|latest| latest.is(claim));
        let replies = self.request_release(self.all(), &Rc::new(claim.clone()), rest, record);
        let is_decided = || released(&replies).is_some() || replies.is_complete();
        self.nodes.until(|_: &mut RedlockNodes| is_decided().then_some(())).await;
        // The other nodes have to receive the release as well; it is sent at the latest when their claims are
        // cancelled.
        if !self.nodes.complete_within(STRAGGLERS, &replies).await {
            self.nodes.cancel();
        }
        released(&replies).ok_or_else(|| self.nodes.unavailable(&replies.failed()))
    }

    /// Stores a record at all nodes; a majority suffices. A hold that was lost may still be present at some nodes, and
    /// no command runs under it any more, so it is released with the record.
    pub(super) async fn keep_record(&mut self, name: &LockName, record: &Record) -> Result<(), StoreError> {
        let held = self
            .latest
            .as_ref()
            .filter(|latest| latest.hold.is_some() && latest.claim.name == *name && record.has_held());
        if let Some(claim) = held.map(|latest| Rc::clone(&latest.claim)) {
            return self.release_hold(&claim, Duration::ZERO, Some(record)).await.map(drop);
        }
        let (name, record) = (name.clone(), record.clone());
        let store = async move |node: &mut NodeClient| node.store.record(&name, &record).await;
        self.nodes.request_majority(limit(Duration::MAX), store).await.map(drop)
    }

    /// Waits for the first relevant change that any node reports.
    pub(super) async fn next_change(&mut self) -> Change {
        if self.hold().is_some_and(|hold| std::mem::take(&mut hold.is_untracked)) {
            // Causes one more renewal, from which on the nodes report changes.
            return Change::Touched;
        }
        loop {
            match self.nodes.changed().await {
                // A request has completed.
                None => self.repair_late_nodes(),
                // Losing one node does not disconnect the store; the next request connects the node again.
                Some((_, Change::Disconnected | Change::Touched)) => return Change::Touched,
                // A notification of the queue in which the claim waited before.
                Some(_) if self.hold().is_some() => {}
                Some((_, change)) => return change,
            }
        }
    }
}

impl LateReplies {
    fn is_complete(&self) -> bool {
        match self {
            LateReplies::Claim(replies) => replies.is_complete(),
            LateReplies::Renewal(replies) => replies.is_complete(),
        }
    }
}

/// Returns the outcome that a majority reports; `None` if there is none, or none yet.
fn released(replies: &Replies<Release>) -> Option<Release> {
    let is_kept = |release: &Release| *release == Release::Kept;
    if replies.has_majority(|release| is_kept(release) || *release == Release::Released) {
        return Some(if replies.nodes(is_kept).is_empty() { Release::Released } else { Release::Kept });
    }
    replies.excludes_majority(|release| *release == Release::NotHeld).then_some(Release::NotHeld)
}

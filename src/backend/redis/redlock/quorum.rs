//! One request to several nodes, and what a majority of them replies.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::timeout;

use super::node::NodeClient;
use super::nodes::{Purpose, RedlockNodes};
use crate::backend::StoreError;

/// How long the remaining nodes are waited for after a majority has replied: long enough for a busy node, short enough
/// for one that hangs.
pub(super) const STRAGGLERS: Duration = Duration::from_millis(250);

/// The reply of one node; `None` while it is pending.
type PendingReply<A> = Option<Result<A, StoreError>>;

/// The replies of the nodes to one request. Shared with the jobs that process the request.
#[derive(Clone)]
pub(super) struct Replies<A> {
    by_node: Rc<RefCell<BTreeMap<usize, PendingReply<A>>>>,
    /// The number of nodes of the Redlock.
    count: usize,
    quorum: usize,
}

impl<A: Clone> Replies<A> {
    pub(super) fn insert(&self, node: usize, reply: PendingReply<A>) {
        self.by_node.borrow_mut().insert(node, reply);
    }

    /// Returns the reply of a node; `None` if it is pending, or the node was not sent the request.
    pub(super) fn of(&self, node: usize) -> PendingReply<A> {
        self.by_node.borrow().get(&node).cloned().flatten()
    }

    /// The number of nodes whose reply is pending.
    pub(super) fn pending(&self) -> usize {
        self.by_node.borrow().values().filter(|reply| reply.is_none()).count()
    }

    /// Whether no reply is pending.
    pub(super) fn is_complete(&self) -> bool {
        self.pending() == 0
    }

    /// Returns the replies so far, without errors.
    pub(super) fn succeeded(&self) -> Vec<(usize, A)> {
        let by_node = self.by_node.borrow();
        by_node.iter().filter_map(|(node, reply)| Some((*node, reply.clone()?.ok()?))).collect()
    }

    /// Returns the errors so far.
    pub(super) fn failed(&self) -> Vec<(usize, StoreError)> {
        let by_node = self.by_node.borrow();
        by_node.iter().filter_map(|(node, reply)| Some((*node, reply.clone()?.err()?))).collect()
    }

    /// Takes the replies so far, and returns them without errors; only those that are pending remain.
    pub(super) fn take(&self) -> Vec<(usize, A)> {
        let succeeded = self.succeeded();
        self.by_node.borrow_mut().retain(|_, reply| reply.is_none());
        succeeded
    }

    /// The nodes that have given such a reply.
    pub(super) fn nodes(&self, is: impl Fn(&A) -> bool) -> Vec<usize> {
        self.succeeded().into_iter().filter(|(_, reply)| is(reply)).map(|(node, _)| node).collect()
    }

    /// Whether a majority of all nodes has given such a reply.
    pub(super) fn has_majority(&self, is: impl Fn(&A) -> bool) -> bool {
        self.nodes(is).len() >= self.quorum
    }

    /// Whether so many nodes have given such a reply that the others are no majority.
    pub(super) fn excludes_majority(&self, is: impl Fn(&A) -> bool) -> bool {
        self.nodes(is).len() > self.count - self.quorum
    }
}

impl RedlockNodes {
    /// The replies to a request that has not been sent to any node yet.
    pub(super) fn no_replies<A>(&self) -> Replies<A> {
        Replies { by_node: Rc::default(), count: self.count(), quorum: self.quorum() }
    }

    /// Sends a request to these nodes, and returns their replies, which are pending. See [`RedlockNodes::send`].
    pub(super) fn request<A: Clone + 'static>(
        &mut self,
        to: impl IntoIterator<Item = usize>,
        purpose: Purpose,
        limit: Duration,
        request: impl AsyncFn(&mut NodeClient) -> Result<A, StoreError> + 'static,
    ) -> Replies<A> {
        let replies = self.no_replies();
        self.send(&replies, to, purpose, limit, request);
        replies
    }

    /// Sends a request to all nodes. Returns when a majority has replied, and the other nodes have replied too or
    /// [`STRAGGLERS`] has passed. Further replies are discarded.
    ///
    /// # Errors
    /// The request failed at too many nodes.
    pub(super) async fn request_majority<A: Clone + 'static>(
        &mut self,
        limit: Duration,
        request: impl AsyncFn(&mut NodeClient) -> Result<A, StoreError> + 'static,
    ) -> Result<Replies<A>, StoreError> {
        let replies = self.request(0..self.count(), Purpose::Other, limit, request);
        self.decided_or_complete(&replies, || replies.has_majority(|_| true)).await;
        self.complete_within(STRAGGLERS, &replies).await;
        match replies.has_majority(|_| true) {
            true => Ok(replies),
            false => Err(self.unavailable(&replies.failed())),
        }
    }

    /// Waits until no reply is pending, or the outcome is decided before that.
    pub(super) async fn decided_or_complete<A: Clone>(
        &mut self,
        replies: &Replies<A>,
        is_decided: impl Fn() -> bool,
    ) {
        self.until(|_: &mut RedlockNodes| (is_decided() || replies.is_complete()).then_some(())).await;
    }

    /// Waits until no reply is pending.
    pub(super) async fn complete<A: Clone>(&mut self, replies: &Replies<A>) {
        self.decided_or_complete(replies, || false).await;
    }

    /// Waits until no reply is pending, up to this long. Returns whether none is.
    pub(super) async fn complete_within<A: Clone>(&mut self, limit: Duration, replies: &Replies<A>) -> bool {
        timeout(limit, self.complete(replies)).await.is_ok()
    }

    /// Returns the error for a majority that is unavailable because these nodes failed.
    pub(super) fn unavailable(&self, failed: &[(usize, StoreError)]) -> StoreError {
        let spare = self.count() - self.quorum();
        let is_temporary = |error: &StoreError| matches!(error, StoreError::Unavailable { .. });
        let (temporary, permanent): (Vec<_>, Vec<_>) =
            failed.iter().partition(|(_, error)| is_temporary(error));
        // A permanent error is reported if the permanent errors alone prevent a majority, or if the temporary errors
        // alone would not.
        let reported = match permanent.first() {
            Some(first) if permanent.len() > spare || temporary.len() <= spare => Some(first),
            _ => temporary.first(),
        };
        let Some((node, error)) = reported else {
            return StoreError::unreachable("no majority of nodes is available");
        };
        let reason = format!(
            "{} of {} nodes are unavailable ({}: {error})",
            failed.len(),
            self.count(),
            self.name(*node)
        );
        let is_maybe_applied =
            |error: &StoreError| matches!(error, StoreError::Unavailable { maybe_applied: true, .. });
        let maybe_applied = failed.iter().any(|(_, error)| is_maybe_applied(error));
        match error {
            StoreError::Unavailable { .. } => {
                StoreError::Unavailable { reason, maybe_applied, transient: false }
            }
            permanent => permanent.clone().map_text(|_| reason),
        }
    }
}

//! The replies of several nodes to one request, and what a majority of them replies.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::backend::StoreError;

/// The reply of one node; `None` while it is pending.
type PendingReply<A> = Option<Result<A, StoreError>>;

/// The replies of the nodes to one request. Shared with those that process the request.
#[derive(Clone)]
pub(super) struct Replies<A> {
    by_node: Rc<RefCell<BTreeMap<usize, PendingReply<A>>>>,
    count: usize,
    quorum: usize,
}

impl<A: Clone> Replies<A> {
    /// The replies to a request that has not been sent to any of so many nodes yet.
    pub(super) fn none(count: usize, quorum: usize) -> Replies<A> {
        Replies { by_node: Rc::default(), count, quorum }
    }

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

    pub(super) fn is_complete(&self) -> bool {
        self.pending() == 0
    }

    /// Returns the replies so far, without errors.
    pub(super) fn succeeded(&self) -> Vec<(usize, A)> {
        let by_node = self.by_node.borrow();
        by_node.iter().filter_map(|(node, reply)| Some((*node, reply.clone()?.ok()?))).collect()
    }

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

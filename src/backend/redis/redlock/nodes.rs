//! The nodes of a Redlock. Each node processes one request after another; the nodes work concurrently.

use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Mutex, MutexGuard, Notify};
use tokio::time::timeout;

use super::node::{NodeClient, Purpose};
use super::quorum::Replies;
use crate::backend::redis::connection::Cancel;
use crate::backend::redis::location::Location;
use crate::backend::{Backend, Change, Hazard, Location as _, Outlook, StoreError};

/// How long the remaining nodes are waited for after a majority has replied: long enough for a busy node, short enough
/// for one that hangs.
pub(super) const STRAGGLERS: Duration = Duration::from_millis(250);

pub(super) struct RedlockNodes {
    all: Vec<Rc<Node>>,
    /// The requests that have no reply yet. They continue although their callers no longer wait for the replies.
    requests: FuturesUnordered<LocalBoxFuture<'static, ()>>,
    /// The first node found not to be an independent master, and what it is instead.
    unfit: Rc<RefCell<Option<String>>>,
}

struct Node {
    location: Location,
    /// Locked by the request that is processed; the others wait in the order in which they were sent.
    client: Mutex<NodeClient>,
    /// Ends the wait for the reply to the current claim.
    cancel: Cancel,
    /// The number of requests without a reply yet.
    outstanding: Cell<usize>,
    /// The last request is only to connect.
    is_connecting: Cell<bool>,
    /// Ends that request.
    stop_connecting: Notify,
}

impl Node {
    fn new(index: usize, location: Location) -> Rc<Node> {
        let cancel = Cancel::default();
        Rc::new(Node {
            client: Mutex::new(NodeClient::new(index, location.clone(), cancel.clone())),
            location,
            cancel,
            outstanding: Cell::default(),
            is_connecting: Cell::default(),
            stop_connecting: Notify::new(),
        })
    }

    /// Returns the client, unless a request is being processed.
    fn idle(&self) -> Option<MutexGuard<'_, NodeClient>> {
        self.client.try_lock().ok()
    }

    /// Waits for the earlier requests; `limited` for this long, if that is a connection attempt: to drop it loses no
    /// request.
    async fn lock(&self, limited: Option<Duration>) -> MutexGuard<'_, NodeClient> {
        let mut client = pin!(self.client.lock());
        if let Some(limit) = limited {
            match timeout(limit, &mut client).await {
                Ok(client) => return client,
                Err(_) => self.stop_connecting.notify_waiters(),
            }
        }
        client.await
    }
}

impl RedlockNodes {
    /// Creates the nodes without connecting to any.
    pub(super) fn new(location: &Location) -> RedlockNodes {
        let nodes = location.nodes().into_iter().enumerate();
        RedlockNodes {
            all: nodes.map(|(index, location)| Node::new(index, location)).collect(),
            requests: FuturesUnordered::new(),
            unfit: Rc::default(),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    pub(super) fn quorum(&self) -> usize {
        self.all.len() / 2 + 1
    }

    /// The address of a node as messages show it.
    pub(super) fn name(&self, node: usize) -> &str {
        self.all[node].location.display()
    }

    pub(super) fn location(&self, node: usize) -> &Location {
        &self.all[node].location
    }

    /// Whether a node is connected as far as this client knows; `None` while it is busy.
    pub(super) fn is_connected(&self, node: usize) -> Option<bool> {
        Some(self.all[node].idle()?.store.connection.is_some())
    }

    /// A node that is not an independent master, or that evicts keys, if one is known.
    pub(super) fn hazard(&self) -> Option<Hazard> {
        let unfit = self.unfit.borrow().clone().map(Hazard::Node);
        let eviction = |node: &Rc<Node>| node.idle()?.store.eviction.clone();
        unfit.or_else(|| self.all.iter().find_map(eviction).map(Hazard::Eviction))
    }

    /// Sends a request to these nodes; their replies replace earlier ones in `replies`. `limit` is the time that a node
    /// may take to connect, if it is not connected, and then to reply.
    pub(super) fn send<A: Clone + 'static>(
        &mut self,
        replies: &Replies<A>,
        to: impl IntoIterator<Item = usize>,
        purpose: Purpose,
        limit: Duration,
        request: impl AsyncFn(&mut NodeClient) -> Result<A, StoreError> + 'static,
    ) {
        let request = Rc::new(request);
        for index in to {
            let node = Rc::clone(&self.all[index]);
            if matches!(purpose, Purpose::Claim | Purpose::Renewal) && node.outstanding.get() > 1 {
                // Unanswered, not unreachable: an earlier request may be the same as this one, and may be applied.
                let error = StoreError::unanswered("it has not replied to earlier requests yet");
                replies.insert(index, Some(Err(error)));
                continue;
            }
            replies.insert(index, None);
            let (request, replies, unfit) = (Rc::clone(&request), replies.clone(), Rc::clone(&self.unfit));
            let is_connecting = purpose == Purpose::Connect;
            let counted = usize::from(!is_connecting);
            node.outstanding.set(node.outstanding.get() + counted);
            let limited = node.is_connecting.replace(is_connecting).then_some(limit);
            self.requests.push(Box::pin(async move {
                let mut client = node.lock(limited).await;
                let reply = tokio::select! {
                    biased;
                    reply = client.process(purpose, limit, &*request) => reply,
                    () = node.stop_connecting.notified(), if is_connecting => return,
                };
                if let Some(role) = client.role() {
                    unfit
                        .borrow_mut()
                        .get_or_insert_with(|| format!("{} is {role}", client.store.location.display()));
                }
                replies.insert(index, Some(reply));
                node.outstanding.set(node.outstanding.get() - counted);
            }));
        }
    }

    /// Cancels the wait for the pending replies to claims, so that the requests that release them are sent now.
    pub(super) fn cancel(&mut self) {
        self.all.iter().for_each(|node| node.cancel.notify_waiters());
        let _ = self.proceed(&mut Context::from_waker(Waker::noop()));
    }

    /// Processes all requests as far as possible now. Returns whether one has completed.
    fn proceed(&mut self, context: &mut Context<'_>) -> bool {
        let mut has_completed = false;
        while let Poll::Ready(Some(())) = self.requests.poll_next_unpin(context) {
            has_completed = true;
        }
        has_completed
    }

    /// Processes all requests until `decided` returns a decision. It is called whenever a reply may have arrived.
    pub(super) async fn until<D>(&mut self, mut decided: impl FnMut(&mut RedlockNodes) -> Option<D>) -> D {
        poll_fn(|context| {
            loop {
                self.proceed(context);
                if let Some(decision) = decided(self) {
                    return Poll::Ready(decision);
                }
                // `decided` may have sent new requests, which have to be polled once.
                if !self.proceed(context) {
                    return Poll::Pending;
                }
            }
        })
        .await
    }

    /// Processes all requests. Resolves to a change that a node has pushed, with the node, or to `None` when a request
    /// has completed.
    pub(super) async fn changed(&mut self) -> Option<(usize, Change)> {
        poll_fn(|context| {
            if self.proceed(context) {
                return Poll::Ready(None);
            }
            for (index, node) in self.all.iter().enumerate() {
                if let Some(mut client) = node.idle()
                    && let Poll::Ready(change) = client.store.changed().as_mut().poll(context)
                {
                    return Poll::Ready(Some((index, change)));
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The replies to a request that has not been sent to any node yet.
    pub(super) fn no_replies<A: Clone>(&self) -> Replies<A> {
        Replies::none(self.count(), self.quorum())
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

    pub(super) async fn complete<A: Clone>(&mut self, replies: &Replies<A>) {
        self.decided_or_complete(replies, || false).await;
    }

    /// Waits until no reply is pending, up to this long. Returns whether none is.
    pub(super) async fn complete_within<A: Clone>(&mut self, limit: Duration, replies: &Replies<A>) -> bool {
        timeout(limit, self.complete(replies)).await.is_ok()
    }

    /// Returns the error of an attempt that has taken too long, with the nodes that are to blame: those that have not replied
    /// yet, or are not connected.
    pub(super) fn explained(&self, late: StoreError) -> StoreError {
        let mut missing = (0..self.count()).filter(|node| self.is_connected(*node) != Some(true));
        let Some(first) = missing.next() else { return late };
        match 1 + missing.count() {
            failed if failed > self.count() - self.quorum() => {
                late.map_text(|text| self.summary(failed, first, &text))
            }
            _ => late,
        }
    }

    fn summary(&self, failed: usize, first: usize, why: &dyn Display) -> String {
        let who = match self.count() {
            1 => "the only node is".to_owned(),
            count => format!("{failed} of {count} nodes are"),
        };
        format!("{who} unavailable ({}: {why})", self.name(first))
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
        let reason = self.summary(failed.len(), *node, error);
        let is_maybe_applied =
            |error: &StoreError| matches!(error, StoreError::Unavailable { maybe_applied: true, .. });
        let maybe_applied = failed.iter().any(|(_, error)| is_maybe_applied(error));
        match error {
            StoreError::Unavailable { outlook: Outlook::Permanent, .. } => {
                StoreError::Unavailable { reason, maybe_applied, outlook: Outlook::Permanent }
            }
            StoreError::Unavailable { .. } => {
                StoreError::Unavailable { reason, maybe_applied, outlook: Outlook::Unknown }
            }
            permanent => permanent.clone().map_text(|text| self.summary(failed.len(), *node, &text)),
        }
    }
}

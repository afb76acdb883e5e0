//! The nodes of a Redlock. Each node processes one request after another; the nodes work concurrently.

use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::future::{Future, pending, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

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
    all: Vec<Node>,
    /// The number of requests that have completed.
    completed: Rc<Cell<u64>>,
    /// The first node found not to be an independent master, and what it is instead.
    unfit: Rc<RefCell<Option<String>>>,
}

struct Node {
    location: Location,
    state: State,
    /// Ends the wait for the reply to the node's current claim.
    cancel: Cancel,
    /// The number of requests without a reply yet.
    outstanding: Rc<Cell<usize>>,
}

/// The job of a request owns the client until its reply has arrived. A request therefore continues although its caller
/// no longer waits for the reply, and no other request is sent in between.
enum State {
    Idle(Box<NodeClient>),
    Connecting(Job),
    Busy(Job),
}

type Job = Pin<Box<dyn Future<Output = Box<NodeClient>>>>;

impl Node {
    fn idle(&self) -> Option<&NodeClient> {
        match &self.state {
            State::Idle(client) => Some(client),
            State::Connecting(_) | State::Busy(_) => None,
        }
    }
}

impl RedlockNodes {
    /// Creates the nodes without connecting to any.
    pub(super) fn new(location: &Location) -> RedlockNodes {
        let node = |(index, location): (usize, Location)| {
            let cancel = Cancel::default();
            let state = State::Idle(NodeClient::new(index, location.clone(), cancel.clone()));
            Node { location, state, cancel, outstanding: Rc::default() }
        };
        RedlockNodes {
            all: location.nodes().into_iter().enumerate().map(node).collect(),
            completed: Rc::default(),
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
        let eviction = |node: &Node| node.idle()?.store.eviction.clone();
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
            let node = &mut self.all[index];
            if matches!(purpose, Purpose::Claim | Purpose::Renewal) && node.outstanding.get() > 1 {
                // Unanswered, not unreachable: an earlier request may be the same as this one, and may be applied.
                let error = StoreError::unanswered("it has not replied to earlier requests yet");
                replies.insert(index, Some(Err(error)));
                continue;
            }
            replies.insert(index, None);
            let (request, replies) = (Rc::clone(&request), replies.clone());
            let (location, cancel) = (node.location.clone(), node.cancel.clone());
            let (outstanding, completed, unfit) =
                (Rc::clone(&node.outstanding), Rc::clone(&self.completed), Rc::clone(&self.unfit));
            let counted = usize::from(purpose != Purpose::Connect);
            outstanding.set(outstanding.get() + counted);
            let previous = std::mem::replace(&mut node.state, placeholder());
            let job: Job = Box::pin(async move {
                let mut client = match previous {
                    State::Idle(client) => client,
                    State::Busy(job) => job.await,
                    // Dropping a connection attempt loses no request: none has been sent over it.
                    State::Connecting(job) => match timeout(limit, job).await {
                        Ok(client) => client,
                        Err(_) => NodeClient::new(index, location, cancel),
                    },
                };
                let reply = client.process(purpose, limit, &*request).await;
                if let Some(role) = client.role() {
                    unfit.borrow_mut().get_or_insert_with(|| format!("{} is {role}", client.store.display()));
                }
                replies.insert(index, Some(reply));
                outstanding.set(outstanding.get() - counted);
                completed.set(completed.get() + 1);
                client
            });
            node.state = match purpose {
                Purpose::Connect => State::Connecting(job),
                Purpose::Claim | Purpose::Renewal | Purpose::Other => State::Busy(job),
            };
        }
    }

    /// Cancels the wait for the pending replies to claims, so that the requests that release them are sent now.
    pub(super) fn cancel(&mut self) {
        for node in self.all.iter().filter(|node| matches!(node.state, State::Busy(_))) {
            node.cancel.notify_waiters();
        }
        let _ = self.poll_jobs(&mut Context::from_waker(Waker::noop()));
    }

    /// Polls the jobs of all nodes. Returns whether a request has completed or a node has been connected.
    fn poll_jobs(&mut self, context: &mut Context<'_>) -> bool {
        let before = self.completed.get();
        for node in &mut self.all {
            if let State::Connecting(job) | State::Busy(job) = &mut node.state
                && let Poll::Ready(client) = job.as_mut().poll(context)
            {
                node.state = State::Idle(client);
            }
        }
        self.completed.get() > before
    }

    /// Processes all requests until `decided` returns a decision. It is called whenever a reply may have arrived.
    pub(super) async fn until<D>(&mut self, mut decided: impl FnMut(&mut RedlockNodes) -> Option<D>) -> D {
        poll_fn(|context| {
            loop {
                self.poll_jobs(context);
                if let Some(decision) = decided(self) {
                    return Poll::Ready(decision);
                }
                // `decided` may have started new jobs, which have to be polled once.
                if !self.poll_jobs(context) {
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
            if self.poll_jobs(context) {
                return Poll::Ready(None);
            }
            for (index, node) in self.all.iter_mut().enumerate() {
                if let State::Idle(client) = &mut node.state
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
        format!("{failed} of {} nodes are unavailable ({}: {why})", self.count(), self.name(first))
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

/// The state of a node while its client is moved into a job.
fn placeholder() -> State {
    State::Busy(Box::pin(pending()))
}

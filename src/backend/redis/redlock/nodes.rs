//! The nodes of a Redlock. Each node processes one request after another; the nodes work concurrently.

use std::cell::{Cell, RefCell};
use std::future::{Future, pending, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::timeout;

use super::node::NodeClient;
use super::quorum::Replies;
use crate::backend::redis::connection::Cancel;
use crate::backend::redis::location::Location;
use crate::backend::{Backend, Change, Hazard, StoreError};

/// The nodes of one Redlock.
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

/// What a request is for. Determines how it waits for earlier requests to the same node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Only to connect, for which a later request waits no longer than its own limit.
    Connect,
    /// To claim the lock. Waits for at most one request; fails at once if another one is waiting already.
    Claim,
    /// To renew the hold. Waits like a claim.
    Renewal,
    /// Anything else. Waits for all earlier requests: it has to be sent.
    Other,
}

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

    /// The size of a majority.
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
}

/// The state of a node while its client is moved into a job.
fn placeholder() -> State {
    State::Busy(Box::pin(pending()))
}

//! The nodes of a Redlock. Each node processes one request after another; the nodes work concurrently.

use std::cell::{Cell, RefCell};
use std::future::{Future, pending, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::timeout;

use crate::backend::redis::connection::Cancel;
use crate::backend::redis::{Location, RedisStore};
use crate::backend::{Backend, Change, Reply, StoreError};

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

/// The job of a request owns the store until its reply has arrived. A request therefore continues although its caller
/// no longer waits for the reply, and no other request is sent in between.
enum State {
    Idle(Box<RedisStore>),
    Connecting(Job),
    Busy(Job),
}

type Job = Pin<Box<dyn Future<Output = Box<RedisStore>>>>;

/// The reply of a node to one request; `None` until it has arrived.
pub(super) type PendingReply<A> = Rc<RefCell<Option<Result<A, StoreError>>>>;

/// How a request waits for the earlier requests to the same node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Waits for at most one request; fails at once if another one is waiting already.
    Next,
    /// Waits for all of them: the request has to be sent.
    Last,
}

impl RedlockNodes {
    /// Creates the nodes without connecting to any.
    pub(super) fn new(location: &Location) -> RedlockNodes {
        let node = |location: Location| Node {
            state: State::Idle(Box::new(RedisStore::new(location.clone()))),
            location,
            cancel: Cancel::default(),
            outstanding: Rc::default(),
        };
        RedlockNodes {
            all: location.nodes().into_iter().map(node).collect(),
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

    /// Begins to connect a node. Returns `None` if it is connected, connecting or processing a request.
    pub(super) fn connect(&mut self, node: usize) -> Option<PendingReply<()>> {
        let node = &mut self.all[node];
        match &node.state {
            State::Idle(store) if store.connection.is_none() => {}
            _ => return None,
        }
        let State::Idle(mut store) = std::mem::replace(&mut node.state, placeholder()) else { return None };
        let reply = PendingReply::default();
        let outcome = Rc::clone(&reply);
        node.state = State::Connecting(Box::pin(async move {
            let connected = store.connect().await;
            outcome.replace(Some(connected));
            store
        }));
        Some(reply)
    }

    /// Whether a node is connected as far as this client knows; `None` while it is busy.
    pub(super) fn is_connected(&self, node: usize) -> Option<bool> {
        match &self.all[node].state {
            State::Idle(store) => Some(store.connection.is_some()),
            State::Connecting(_) | State::Busy(_) => None,
        }
    }

    /// The eviction policy of a node that evicts keys, if any is known to do so.
    pub(super) fn eviction(&self) -> Option<String> {
        self.all.iter().find_map(|node| match &node.state {
            State::Idle(store) => store.eviction.clone(),
            State::Connecting(_) | State::Busy(_) => None,
        })
    }

    /// A node that is not an independent master, and what it is instead, if one is known.
    pub(super) fn unfit(&self) -> Option<String> {
        self.unfit.borrow().clone()
    }

    /// Sends a request to a node, and returns its pending reply. `limit` bounds only the time to connect, if the node
    /// is not connected; `work` has to bound the time until the reply.
    pub(super) fn request<A: 'static>(
        &mut self,
        node: usize,
        turn: Turn,
        limit: Duration,
        work: impl for<'a> FnOnce(&'a mut RedisStore, Cancel) -> Reply<'a, Result<A, StoreError>> + 'static,
    ) -> PendingReply<A> {
        let node = &mut self.all[node];
        let reply = PendingReply::default();
        if turn == Turn::Next && node.outstanding.get() > 1 {
            // Unanswered, not unreachable: an earlier request may be the same as this one, and may be applied.
            reply.replace(Some(Err(StoreError::unanswered("it has not replied to earlier requests yet"))));
            return reply;
        }
        let outcome = Rc::clone(&reply);
        let location = node.location.clone();
        let name = location.display().to_owned();
        let cancel = node.cancel.clone();
        let (outstanding, completed, unfit) =
            (Rc::clone(&node.outstanding), Rc::clone(&self.completed), Rc::clone(&self.unfit));
        outstanding.set(outstanding.get() + 1);
        let previous = std::mem::replace(&mut node.state, placeholder());
        node.state = State::Busy(Box::pin(async move {
            let mut store = match previous {
                State::Idle(store) => store,
                State::Busy(job) => job.await,
                // Dropping a connection attempt loses no request: none has been sent over it.
                State::Connecting(job) => match timeout(limit, job).await {
                    Ok(store) => store,
                    Err(_) => Box::new(RedisStore::new(location)),
                },
            };
            let connected =
                timeout(limit, store.connect()).await.unwrap_or_else(|_| Err(no_connection(limit)));
            let result = match connected {
                Ok(()) => work(&mut store, cancel).await,
                Err(error) => Err(error),
            };
            if let Err(error) = &result
                && let Some(role) = unfit_role(error)
            {
                unfit.borrow_mut().get_or_insert_with(|| format!("{name} is {role}"));
            }
            outcome.replace(Some(result.map_err(name_replica)));
            outstanding.set(outstanding.get() - 1);
            completed.set(completed.get() + 1);
            store
        }));
        reply
    }

    /// Cancels the wait for the pending replies to claims, so that the requests that release them are sent now.
    pub(super) fn cancel(&mut self) {
        for node in self.all.iter().filter(|node| matches!(node.state, State::Busy(_))) {
            node.cancel.notify_waiters();
        }
        let mut context = Context::from_waker(std::task::Waker::noop());
        let _ = self.poll_jobs(&mut context);
    }

    /// Polls the jobs of all nodes. Returns whether a request has completed or a node has been connected.
    fn poll_jobs(&mut self, context: &mut Context<'_>) -> bool {
        let before = self.completed.get();
        let mut finished = false;
        for node in &mut self.all {
            if let State::Connecting(job) | State::Busy(job) = &mut node.state
                && let Poll::Ready(store) = job.as_mut().poll(context)
            {
                node.state = State::Idle(store);
                finished = true;
            }
        }
        finished || self.completed.get() > before
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
                if let State::Idle(store) = &mut node.state
                    && let Poll::Ready(change) = store.changed().as_mut().poll(context)
                {
                    return Poll::Ready(Some((index, change)));
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// The state of a node while its store is moved into a job.
fn placeholder() -> State {
    State::Busy(Box::pin(pending()))
}

/// The role of a node that replies with this error, if it is not an independent master.
fn unfit_role(error: &StoreError) -> Option<&'static str> {
    match error {
        StoreError::Unavailable { reason, .. } if reason.contains("READONLY") => Some("a replica"),
        StoreError::Config(text) if text.contains("is a node of a Redis Cluster") => {
            Some("a node of a Redis Cluster")
        }
        _ => None,
    }
}

/// The reason given when a node rejects a claim because it is a replica.
const IS_REPLICA: &str = "it is a replica, and Redlock needs independent masters";

/// Makes the error of a replica a configuration error: retrying cannot help.
pub(super) fn as_permanent(error: StoreError) -> StoreError {
    match error {
        StoreError::Unavailable { reason, .. } if reason == IS_REPLICA => StoreError::Config(reason),
        error => error,
    }
}

/// Replaces the server's READONLY error by one that names the cause: the node is a replica.
fn name_replica(error: StoreError) -> StoreError {
    match error {
        StoreError::Unavailable { reason, maybe_applied, transient } if reason.contains("READONLY") => {
            let reason = IS_REPLICA.to_owned();
            StoreError::Unavailable { reason, maybe_applied, transient }
        }
        error => error,
    }
}

fn no_connection(limit: Duration) -> StoreError {
    StoreError::unreachable(format!("no connection within {} ms", limit.as_millis()))
}

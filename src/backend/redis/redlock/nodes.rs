//! The nodes of a Redlock, each of which is asked one thing after the other, all of them at the same time.

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

/// All of them.
pub(super) struct RedlockNodes {
    all: Vec<Node>,
    /// So many questions have been answered.
    answered: Rc<Cell<u64>>,
    /// The first node that was found to be no independent master, and what it is.
    unfit: Rc<RefCell<Option<String>>>,
}

struct Node {
    location: Location,
    state: State,
    /// Ends the wait for the answer to the claim that the node is asked for.
    cancel: Cancel,
    /// So many questions have not been answered yet.
    open: Rc<Cell<usize>>,
}

/// A store is lent to what it is asked, and comes back with the answer: so a question goes on although whoever asked it
/// does not wait for the answer any more, and nothing is asked in between.
enum State {
    Idle(Box<RedisStore>),
    Connecting(Job),
    Asking(Job),
}

type Job = Pin<Box<dyn Future<Output = Box<RedisStore>>>>;

/// What a node has answered to one question, once it has.
pub(super) type PendingReply<A> = Rc<RefCell<Option<Result<A, StoreError>>>>;

/// How a question waits for those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// As long as one of them takes; a node that has one waiting already is not asked.
    Next,
    /// As long as all of them take: it has to be asked.
    Last,
}

impl RedlockNodes {
    /// Names them; contacts nobody.
    pub(super) fn new(location: &Location) -> RedlockNodes {
        let node = |location: Location| Node {
            state: State::Idle(Box::new(RedisStore::new(location.clone()))),
            location,
            cancel: Cancel::default(),
            open: Rc::default(),
        };
        RedlockNodes {
            all: location.nodes().into_iter().map(node).collect(),
            answered: Rc::default(),
            unfit: Rc::default(),
        }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// How many are more than half.
    pub(super) fn quorum(&self) -> usize {
        self.all.len() / 2 + 1
    }

    /// Where a node is, as messages name it.
    pub(super) fn name(&self, node: usize) -> &str {
        self.all[node].location.display()
    }

    /// Where a node is.
    pub(super) fn location(&self, node: usize) -> &Location {
        &self.all[node].location
    }

    /// Begins to connect a node that is not connected and not busy with that. `None` if it is either, or owes an answer.
    pub(super) fn connect(&mut self, node: usize) -> Option<PendingReply<()>> {
        let node = &mut self.all[node];
        match &node.state {
            State::Idle(store) if store.connection.is_none() => {}
            _ => return None,
        }
        let State::Idle(mut store) = std::mem::replace(&mut node.state, nothing()) else { return None };
        let slot = PendingReply::default();
        let told = Rc::clone(&slot);
        node.state = State::Connecting(Box::pin(async move {
            let connected = store.connect().await;
            told.replace(Some(connected));
            store
        }));
        Some(slot)
    }

    /// Whether a node is connected as far as we know; `None` while it is busy.
    pub(super) fn is_connected(&self, node: usize) -> Option<bool> {
        match &self.all[node].state {
            State::Idle(store) => Some(store.connection.is_some()),
            State::Connecting(_) | State::Asking(_) => None,
        }
    }

    /// How one of the nodes evicts keys, if any does, as far as that is known.
    pub(super) fn eviction(&self) -> Option<String> {
        self.all.iter().find_map(|node| match &node.state {
            State::Idle(store) => store.eviction.clone(),
            State::Connecting(_) | State::Asking(_) => None,
        })
    }

    /// A node that is no independent master, and what it is, as far as that is known.
    pub(super) fn unfit(&self) -> Option<String> {
        self.unfit.borrow().clone()
    }

    /// Asks a node. It is given so long to be connected, if it is not; for the answer `work` has to set a limit.
    pub(super) fn ask<A: 'static>(
        &mut self,
        node: usize,
        turn: Turn,
        limit: Duration,
        work: impl for<'a> FnOnce(&'a mut RedisStore, Cancel) -> Reply<'a, Result<A, StoreError>> + 'static,
    ) -> PendingReply<A> {
        let node = &mut self.all[node];
        let slot = PendingReply::default();
        if turn == Turn::Next && node.open.get() > 1 {
            // One of those may be the same.
            slot.replace(Some(Err(StoreError::unanswered("it has not answered earlier questions yet"))));
            return slot;
        }
        let told = Rc::clone(&slot);
        let location = node.location.clone();
        let name = location.display().to_owned();
        let cancel = node.cancel.clone();
        let (open, answered, unfit) =
            (Rc::clone(&node.open), Rc::clone(&self.answered), Rc::clone(&self.unfit));
        open.set(open.get() + 1);
        let before = std::mem::replace(&mut node.state, nothing());
        node.state = State::Asking(Box::pin(async move {
            let mut store = match before {
                State::Idle(store) => store,
                State::Asking(job) => job.await,
                // Nothing was asked over a connection that is not there.
                State::Connecting(job) => match timeout(limit, job).await {
                    Ok(store) => store,
                    Err(_) => Box::new(RedisStore::new(location)),
                },
            };
            let connected =
                timeout(limit, store.connect()).await.unwrap_or_else(|_| Err(no_connection(limit)));
            let answer = match connected {
                Ok(()) => work(&mut store, cancel).await,
                Err(error) => Err(error),
            };
            if let Err(error) = &answer
                && let Some(what) = unfitness(error)
            {
                unfit.borrow_mut().get_or_insert_with(|| format!("{name} is {what}"));
            }
            told.replace(Some(answer.map_err(plainly)));
            open.set(open.get() - 1);
            answered.set(answered.get() + 1);
            store
        }));
        slot
    }

    /// Waits no longer for the answers that are owed to claims: what takes them back is sent behind them.
    pub(super) fn cancel(&mut self) {
        for node in self.all.iter().filter(|node| matches!(node.state, State::Asking(_))) {
            node.cancel.notify_waiters();
        }
        let mut context = Context::from_waker(std::task::Waker::noop());
        let _ = self.work(&mut context);
    }

    /// Goes on with all that is asked. Returns whether any question was answered, or any node connected.
    fn work(&mut self, context: &mut Context<'_>) -> bool {
        let before = self.answered.get();
        let mut finished = false;
        for node in &mut self.all {
            if let State::Connecting(job) | State::Asking(job) = &mut node.state
                && let Poll::Ready(store) = job.as_mut().poll(context)
            {
                node.state = State::Idle(store);
                finished = true;
            }
        }
        finished || self.answered.get() > before
    }

    /// Goes on with all that is asked until something is decided, which is looked at whenever an answer may have come.
    pub(super) async fn until<D>(&mut self, mut decided: impl FnMut(&mut RedlockNodes) -> Option<D>) -> D {
        poll_fn(|context| {
            loop {
                self.work(context);
                if let Some(decision) = decided(self) {
                    return Poll::Ready(decision);
                }
                // Also with what was begun just now.
                if !self.work(context) {
                    return Poll::Pending;
                }
            }
        })
        .await
    }

    /// Goes on with all that is asked. Resolves when a node says something unasked, or has finished what it was asked.
    pub(super) async fn changed(&mut self) -> Option<(usize, Change)> {
        poll_fn(|context| {
            if self.work(context) {
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

fn nothing() -> State {
    State::Asking(Box::pin(pending()))
}

/// What a node is that says this, if it is no independent master.
fn unfitness(error: &StoreError) -> Option<&'static str> {
    match error {
        StoreError::Unavailable { reason, .. } if reason.contains("READONLY") => Some("a replica"),
        StoreError::Config(text) if text.contains("is a node of a Redis Cluster") => {
            Some("a node of a Redis Cluster")
        }
        _ => None,
    }
}

/// What a node says of itself when it is asked for a lock.
const IS_REPLICA: &str = "it is a replica, and Redlock needs independent masters";

/// No majority can be had of nodes that are wrongly chosen.
pub(super) fn for_good(error: StoreError) -> StoreError {
    match error {
        StoreError::Unavailable { reason, .. } if reason == IS_REPLICA => StoreError::Config(reason),
        error => error,
    }
}

/// What a node says that cannot serve, in terms of what it should be.
fn plainly(error: StoreError) -> StoreError {
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

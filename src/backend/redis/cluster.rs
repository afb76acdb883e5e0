//! A Redis Cluster: finding the node that has a lock, also while the lock's slot moves from one node to another.
//!
//! The first question goes to a node that is known. One that has not the slot says which one has (`MOVED`), one that the
//! slot is moving away from says so for what is not there any more, or not yet (`ASK`); see the Redis Cluster
//! specification, "Redirection and resharding". All keys of a lock lie in one slot, but each of them moves by itself:
//! what is done meanwhile is told in [`moving`].

mod inspect;
mod moving;
mod nodes;
mod pool;
mod redirect;

use std::time::Duration;

use redis::Value;
use tokio::time::timeout;

pub(super) use self::nodes::{ClusterNodes, ranges, slots_command};
pub(super) use self::redirect::Redirect;
use super::RedisStore;
use super::answers::{nonsense, number};
use super::asking::values_of;
use super::connection::{Asking, CommandReply, Connection, RequestOptions};
use super::route::Route;
use super::script::{Operation, Question};
use crate::backend::{Backend, StoreError};

/// So often a question is sent on before it is clear that the nodes do not agree yet.
const MOST_HOPS: usize = 5;
/// One of several nodes, which may be another than the one that has the lock, is not waited for any longer.
const GUESS: Duration = Duration::from_millis(250);
/// Who is heard of for so long holds a lock, or waits for it, for longer than a moment.
const SETTLED: Duration = Duration::from_millis(250);
/// How long it may take to learn which nodes there are.
const LEARNING: Duration = Duration::from_millis(250);

impl RedisStore {
    /// Asks the node that has the lock. Where another one was asked so far, that one is remembered, and asked from then
    /// on.
    pub(super) async fn ask_around(
        &mut self,
        question: &Question<'_>,
        wishes: RequestOptions<'_>,
    ) -> Result<Vec<Value>, StoreError> {
        let mut guesses = self.route.known_nodes();
        let mut is_named = false;
        let mut was_doubted = false;
        if question.operation == Operation::Acquire {
            // What seems free where a slot was moving to may be held where it has been taken back to.
            self.stop_asking();
        }
        let mut last =
            StoreError::resharding("the nodes do not agree yet which of them has the slot of the lock");
        for _ in 0..MOST_HOPS + guesses {
            self.connect().await?;
            guesses = guesses.saturating_sub(1);
            let is_guess = !is_named && guesses > 0;
            let is_proven = matches!(&self.route, Route::Cluster(nodes) if nodes.is_proven());
            self.note(ClusterNodes::begin);
            let answer = match is_guess && !is_proven && may_be_repeated(question.operation) {
                false => self.ask_here(question, wishes).await,
                true => match timeout(GUESS, self.ask_here(question, wishes)).await {
                    Ok(answer) => answer,
                    Err(_) => continue,
                },
            };
            if self.connection.is_some() || self.misrouted.is_some() {
                self.note(ClusterNodes::has_answered);
            }
            match answer {
                Ok(CommandReply::Elsewhere(redirect)) => {
                    is_named = true;
                    self.go_on(&redirect, question).await?;
                }
                Ok(CommandReply::Resharding(text)) => {
                    // It may have come to its end since.
                    let is_doubtful = !was_doubted && self.stop_asking();
                    was_doubted |= is_doubtful;
                    if !is_doubtful {
                        return Err(StoreError::resharding(text));
                    }
                }
                // One that cannot serve us at the moment need not be the one that has the lock.
                Err(error @ StoreError::Unavailable { maybe_applied: false, .. }) if is_guess => {
                    last = error;
                    self.connection = None;
                    self.note(ClusterNodes::pass_over);
                }
                answer => {
                    let values = values_of(answer?)?;
                    self.note(ClusterNodes::has_proven);
                    // A lock that is not there may have been taken back, too.
                    let is_nothing = number(values.first()).is_some_and(|first| first <= 0);
                    if was_doubted || question.operation == Operation::Acquire || !is_nothing {
                        return Ok(values);
                    }
                    was_doubted = true;
                    if !self.stop_asking() {
                        return Ok(values);
                    }
                }
            }
        }
        Err(last)
    }

    fn note(&mut self, act: impl FnOnce(&mut ClusterNodes)) {
        if let Route::Cluster(nodes) = &mut self.route {
            act(nodes);
        }
    }

    /// Asks next for an answer that stands, by the word of the node that has the slot. Returns whether that was not so.
    fn stop_asking(&mut self) -> bool {
        self.note(|nodes| nodes.set_asking(Asking::No));
        let Some(connection) = &mut self.connection else { return false };
        let was_asking = connection.asking() == Asking::Yes;
        connection.set_asking(Asking::No);
        was_asking
    }

    /// Connects to the node that another one has named.
    ///
    /// # Errors
    /// It cannot be reached; or not all keys of the lock have come to it yet.
    async fn go_on(&mut self, redirect: &Redirect, question: &Question<'_>) -> Result<(), StoreError> {
        let Route::Cluster(nodes) = &self.route else { return Err(nonsense()) };
        let there = redirect.address(nodes.current()).ok_or_else(nonsense)?;
        if redirect.asking == Asking::Yes && self.has_left_behind(question).await? {
            return Err(StoreError::resharding(format!("the keys of the lock are on their way to {there}")));
        }
        self.connection = None;
        self.examined = false;
        self.note(|nodes| {
            nodes.prefer(there.clone());
            nodes.set_asking(redirect.asking);
            nodes.begin();
        });
        let opened = Connection::open(&self.location, &there, self.old_protocol).await;
        let mut connection = opened.map_err(|error| at(&there, error))?;
        connection.set_asking(redirect.asking);
        self.connection = Some(connection);
        Ok(())
    }

    /// Asks which nodes there are, once, and not before it is clear that we stay: those that the URL names may be gone when
    /// they are needed. Returns at once when something else is said, or when there is nothing to be learnt.
    ///
    /// # Errors
    /// The connection was given up over it.
    pub(super) async fn learn(&mut self) -> Result<(), ()> {
        let Route::Cluster(nodes) = &mut self.route else { return Ok(()) };
        let Some(connection) = self.connection.as_mut().filter(|_| nodes.knows_few()) else { return Ok(()) };
        if timeout(SETTLED, connection.has_heard()).await.is_ok() {
            return Ok(());
        }
        nodes.has_asked_for_all();
        let Some(mut connection) = self.connection.take() else { return Ok(()) };
        let answer = timeout(LEARNING, connection.exchange_long(&slots_command())).await;
        if let Ok(Ok(answer)) = answer {
            nodes.learn(&answer);
        }
        if !connection.is_usable() {
            return Err(());
        }
        self.connection = Some(connection);
        Ok(())
    }
}

/// Whether it changes nothing to be told of an operation twice, whatever comes in between.
fn may_be_repeated(operation: Operation) -> bool {
    matches!(operation, Operation::Acquire | Operation::Renew)
}

/// What went wrong with one node of several.
fn at(node: &super::location::Address, error: StoreError) -> StoreError {
    match error {
        StoreError::Unavailable { reason, maybe_applied, transient } => {
            StoreError::Unavailable { reason: format!("{node}: {reason}"), maybe_applied, transient }
        }
        StoreError::Denied(text) => StoreError::Denied(format!("{node}: {text}")),
        StoreError::Config(text) => StoreError::Config(text),
    }
}

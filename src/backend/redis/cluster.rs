//! A Redis Cluster: finding the node that has a lock, also while the lock's slot moves from one node to another.
//!
//! The first question goes to a node that is known. One that has not the slot says which one has (`MOVED`), one that the
//! slot is moving away from says so for what is not there any more, or not yet (`ASK`); see the Redis Cluster
//! specification, "Redirection and resharding". All keys of a lock lie in one slot, but each of them moves by itself:
//! what is done meanwhile is told in [`moving`].

mod looking;
mod moving;
mod nodes;
mod pool;
mod redirect;

use std::time::Duration;

use redis::Value;
use tokio::time::timeout;

pub(super) use self::nodes::Nodes;
pub(super) use self::redirect::Redirect;
use super::answers::nonsense;
use super::connection::{Answer, Asking, Connection, Wishes};
use super::route::Route;
use super::script::{Operation, Question};
use super::{RedisStore, values_of};
use crate::backend::{Backend, StoreError};

/// So often a question is sent on before it is clear that the nodes do not agree yet.
const MOST_HOPS: usize = 5;
/// One of several nodes, which may be another than the one that has the lock, is not waited for any longer.
const GUESS: Duration = Duration::from_millis(500);
/// How long it may take to learn which nodes there are, once something of importance is over.
const LEARNING: Duration = Duration::from_millis(250);

impl RedisStore {
    /// Asks the node that has the lock. Where another one was asked so far, that one is remembered, and asked from then
    /// on.
    pub(super) async fn ask_around(
        &mut self,
        question: &Question<'_>,
        wishes: Wishes<'_>,
    ) -> Result<Vec<Value>, StoreError> {
        let mut guesses = self.route.known_nodes();
        let mut is_named = false;
        let mut was_doubted = false;
        let mut last =
            StoreError::between("the nodes do not agree yet which of them has the slot of the lock");
        for _ in 0..MOST_HOPS + guesses {
            self.connect().await?;
            guesses = guesses.saturating_sub(1);
            let is_guess = !is_named && guesses > 0;
            self.note(Nodes::begin);
            let answer = match is_guess && may_be_repeated(question.operation) {
                false => self.ask_here(question, wishes).await,
                true => match timeout(GUESS, self.ask_here(question, wishes)).await {
                    Ok(answer) => answer,
                    Err(_) => continue,
                },
            };
            if self.connection.is_some() || self.spoiled.is_some() {
                self.note(Nodes::has_answered);
            }
            match answer {
                Ok(Answer::Elsewhere(redirect)) => {
                    is_named = true;
                    self.go_on(&redirect, question).await?;
                }
                Ok(Answer::Between(text)) => {
                    // It may have come to its end since.
                    let is_doubtful = !was_doubted && self.stop_asking();
                    was_doubted |= is_doubtful;
                    if !is_doubtful {
                        return Err(StoreError::between(text));
                    }
                }
                // One that cannot serve us at the moment need not be the one that has the lock.
                Err(error @ StoreError::Unavailable { maybe_applied: false, .. }) if is_guess => {
                    last = error;
                    self.connection = None;
                    self.note(Nodes::pass_over);
                }
                answer => return values_of(answer?),
            }
        }
        Err(last)
    }

    fn note(&mut self, act: impl FnOnce(&mut Nodes)) {
        if let Route::Cluster(nodes) = &mut self.route {
            act(nodes);
        }
    }

    /// Asks for a definite answer next. Returns whether it was not so far.
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
            return Err(StoreError::between(format!("the keys of the lock are on their way to {there}")));
        }
        self.connection = None;
        self.known = false;
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

    /// Asks which nodes there are, once: those that the URL names may be gone when they are needed. What cannot be had
    /// changes nothing but the connection.
    pub(super) async fn learn(&mut self) {
        let Route::Cluster(nodes) = &mut self.route else { return };
        let Some(mut connection) = self.connection.take_if(|_| nodes.knows_few()) else { return };
        let answer = timeout(LEARNING, connection.exchange_long(&nodes::slots_command())).await;
        if let Ok(Ok(answer)) = answer {
            nodes.learn(&answer);
        }
        if connection.is_usable() {
            self.connection = Some(connection);
        }
    }
}

/// Whether it changes nothing to be told of an operation twice, whatever comes in between.
fn may_be_repeated(operation: Operation) -> bool {
    matches!(operation, Operation::Acquire | Operation::Renew)
}

/// What went wrong with one node of several.
fn at(node: &super::location::Address, error: StoreError) -> StoreError {
    match error {
        StoreError::Unavailable { reason, maybe_applied, passes } => {
            StoreError::Unavailable { reason: format!("{node}: {reason}"), maybe_applied, passes }
        }
        StoreError::Denied(text) => StoreError::Denied(format!("{node}: {text}")),
        StoreError::Config(text) => StoreError::Config(text),
    }
}

//! A Redis Cluster: finding the node that has a lock, also while the lock's slot is migrating.
//!
//! The first request is sent to a known node. A node that does not own the slot redirects to the one that does
//! (`MOVED`); a node that the slot is migrating from redirects for keys that it does not have (`ASK`); see the Redis
//! Cluster specification, "Redirection and resharding". All keys of a lock are in one slot, but each of them migrates
//! separately: [`migration`] describes what is done meanwhile.
//!
//! Used by `RedisStore`. What always holds: all keys of a lock are in one slot, so that one node decides.

mod inspect;
mod migration;

use std::time::Duration;

use tokio::time::timeout;

use super::connection::{CommandReply, Connection, RequestOptions, value_of};
use super::nodes::{ClusterNodes, MAX_REDIRECTIONS, at, slots_command};
use super::redirect::{Asking, Redirect};
use super::reply::{self, LockReply, Outcome, nonsense};
use super::route::Route;
use super::script::{Operation, ScriptRequest};
use super::store::RedisStore;
use crate::backend::{Backend, StoreError};

/// How long to wait for one of several nodes that may not be the one that has the lock.
const GUESS_LIMIT: Duration = Duration::from_millis(250);
/// How long no push must arrive before the nodes are queried: a short run does not need them.
const DISCOVERY_DELAY: Duration = Duration::from_millis(250);
/// How long the query for the nodes of the cluster may take.
const DISCOVERY_LIMIT: Duration = Duration::from_millis(250);

impl RedisStore {
    /// Runs a script on the node that has the lock. If that is not the current node, it becomes the current one.
    pub(super) async fn request_in_cluster(
        &mut self,
        request: &ScriptRequest<'_>,
        options: RequestOptions<'_>,
    ) -> Result<LockReply, StoreError> {
        let Route::Cluster(nodes) = &self.route else { return Err(nonsense()) };
        let mut guesses = nodes.known.len();
        let mut is_redirected = false;
        let mut was_retried = false;
        let is_claim = matches!(request.operation, Operation::Acquire(_));
        if is_claim {
            // A lock that seems free on the node that a slot was migrating to may be held on the previous node if the
            // migration was reverted.
            self.clear_asking();
        }
        let mut last_error =
            StoreError::resharding("the nodes do not agree yet which of them has the slot of the lock");
        for _ in 0..MAX_REDIRECTIONS + guesses {
            self.connect().await?;
            guesses = guesses.saturating_sub(1);
            let is_guess = !is_redirected && guesses > 0;
            let is_proven = matches!(&self.route, Route::Cluster(nodes) if nodes.is_proven);
            self.with_nodes(|nodes| nodes.is_silent = true);
            let reply = match is_guess && !is_proven && is_idempotent(&request.operation) {
                false => self.request_here(request, options).await,
                true => match timeout(GUESS_LIMIT, self.request_here(request, options)).await {
                    Ok(reply) => reply,
                    Err(_) => continue,
                },
            };
            if self.connection.is_some() || self.misrouted.is_some() {
                self.with_nodes(|nodes| nodes.is_silent = false);
            }
            match reply {
                Ok(CommandReply::Elsewhere(redirect)) => {
                    is_redirected = true;
                    self.follow_redirect(&redirect, request).await?;
                }
                Ok(CommandReply::Resharding(text)) => {
                    // The migration may have ended since.
                    let must_retry = !was_retried && self.clear_asking();
                    was_retried |= must_retry;
                    if !must_retry {
                        return Err(StoreError::resharding(text));
                    }
                }
                // A node that cannot serve the request at the moment may not be the one that has the lock.
                Err(error @ StoreError::Unavailable { maybe_applied: false, .. }) if is_guess => {
                    last_error = error;
                    self.connection = None;
                    self.with_nodes(ClusterNodes::skip_current);
                }
                reply => {
                    let reply: LockReply = reply::read(&value_of(reply?)?)?;
                    self.with_nodes(|nodes| nodes.is_proven = true);
                    // The lock may also be missing because the migration was reverted.
                    let is_missing = matches!(reply.outcome, Outcome::Gone | Outcome::Taken);
                    if was_retried || is_claim || !is_missing || !self.clear_asking() {
                        return Ok(reply);
                    }
                    was_retried = true;
                }
            }
        }
        Err(last_error)
    }

    fn with_nodes(&mut self, act: impl FnOnce(&mut ClusterNodes)) {
        if let Route::Cluster(nodes) = &mut self.route {
            act(nodes);
        }
    }

    /// Stops sending `ASKING`, so that only the owner of the slot replies. Returns whether it was being sent.
    fn clear_asking(&mut self) -> bool {
        self.with_nodes(|nodes| nodes.asking = Asking::No);
        let Some(connection) = &mut self.connection else { return false };
        std::mem::replace(&mut connection.asking, Asking::No) == Asking::Yes
    }

    /// Connects to the node of a redirection.
    ///
    /// # Errors
    /// It cannot be reached; or not all keys of the lock have been migrated to it yet.
    async fn follow_redirect(
        &mut self,
        redirect: &Redirect,
        request: &ScriptRequest<'_>,
    ) -> Result<(), StoreError> {
        let Route::Cluster(nodes) = &self.route else { return Err(nonsense()) };
        let node = redirect.address(nodes.current()).ok_or_else(nonsense)?;
        if redirect.asking == Asking::Yes && self.has_remaining_keys(request.keys, request.token).await? {
            return Err(StoreError::resharding(format!("the keys of the lock are being migrated to {node}")));
        }
        self.connection = None;
        self.examined = false;
        self.with_nodes(|nodes| {
            nodes.prefer(node.clone());
            nodes.asking = redirect.asking;
            nodes.is_silent = true;
        });
        let opened = Connection::open(&self.location, &node, self.old_protocol).await;
        let mut connection = opened.map_err(|error| at(&node, error))?;
        connection.asking = redirect.asking;
        self.connection = Some(connection);
        Ok(())
    }

    /// Queries the nodes of the cluster, until there is a reply, and only after some time: those of the URL may be gone when
    /// they are needed. Returns at once if a push arrives or nothing remains to be discovered.
    ///
    /// # Errors
    /// The connection was closed because of it.
    pub(super) async fn discover_nodes(&mut self) -> Result<(), ()> {
        let Route::Cluster(nodes) = &mut self.route else { return Ok(()) };
        let Some(connection) = self.connection.as_mut().filter(|_| nodes.queries_left > 0) else {
            return Ok(());
        };
        if timeout(DISCOVERY_DELAY, connection.wait_for_push()).await.is_ok() {
            return Ok(());
        }
        nodes.queries_left -= 1;
        let Some(mut connection) = self.connection.take() else { return Ok(()) };
        let reply = timeout(DISCOVERY_LIMIT, connection.exchange_long(&slots_command())).await;
        if let Ok(Ok(reply)) = reply {
            nodes.add_nodes(&reply);
        }
        if !connection.usable {
            return Err(());
        }
        nodes.queries_left = 0;
        self.connection = Some(connection);
        Ok(())
    }
}

/// Whether repeating an operation changes nothing, whatever happens in between.
fn is_idempotent(operation: &Operation<'_>) -> bool {
    matches!(operation, Operation::Acquire(_) | Operation::Renew { .. })
}

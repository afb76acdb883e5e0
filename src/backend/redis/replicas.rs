//! Waiting until replicas have confirmed a granted lock, so that a fail-over to one of them does not lose it.
//!
//! `WAIT` is sent with the claim, so it costs no round trip. It does not give consensus (Redis, "WAIT"): a replica that
//! has not confirmed can still be promoted, and a master that is cut off with its replicas can confirm what the others
//! never receive.

use std::time::Duration;

use redis::Cmd;

use super::connection::server_error;
use super::errors::refusal;
use super::reply::{nonsense, number};
use super::store::RedisStore;
use crate::backend::StoreError;
use crate::lock::Claim;

/// The maximum wait for the replicas.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// And at most this fraction of the lease: the rest is needed to stop the command in good order.
const LEASE_FRACTION: u32 = 4;

fn wait_limit(claim: &Claim) -> Duration {
    MAX_WAIT.min(claim.ttl / LEASE_FRACTION)
}

impl RedisStore {
    /// Returns the command that waits for the replicas after a claim, if any are required.
    pub(super) fn wait_for_replicas(&self, claim: &Claim) -> Option<Cmd> {
        let count = self.location.wait_replicas;
        let wait = redis::cmd("WAIT").arg(count).arg(wait_limit(claim).as_millis() as u64).clone();
        (count > 0).then_some(wait)
    }

    /// Waits until the required number of replicas have confirmed the grant, or releases the lock.
    ///
    /// # Errors
    /// Too few replicas confirmed, or the server did not report how many. Nothing is left of the claim if the server
    /// replies.
    pub(super) async fn await_replicas(&mut self, claim: &Claim) -> Result<(), StoreError> {
        let Some(wait) = self.wait_for_replicas(claim) else { return Ok(()) };
        let mut connection = self.take_connection()?;
        let reply = connection.trailing_reply(&wait).await?;
        let required = self.location.wait_replicas;
        let error = match (number(Some(&reply)), server_error(&reply)) {
            (Some(count), _) if count >= i64::from(required) => {
                self.connection = Some(connection);
                return Ok(());
            }
            (Some(count), _) => StoreError::unreachable(format!(
                "only {count} of {required} replicas have confirmed the lock within {} ms (wait_replicas)",
                wait_limit(claim).as_millis()
            )),
            (None, Some(error)) => refusal(error, false),
            (None, None) => nonsense(),
        };
        match self.take_back(connection, claim).await {
            Ok(()) => Err(error),
            // The lock may still be held, which the caller has to know.
            Err(_) => Err(StoreError::unanswered(error.to_string())),
        }
    }
}

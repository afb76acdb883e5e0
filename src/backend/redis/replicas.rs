//! Waiting until replicas have a lock that was granted, so that a fail-over to one of them does not lose it.
//!
//! `WAIT` goes with the claim, so it costs no flight. It is no consensus (Redis, "WAIT"): a replica that has not confirmed
//! can still be promoted, and what a master has that is cut off and counts its replicas is not known to the others.

use std::time::Duration;

use redis::Cmd;

use super::RedisStore;
use super::answers::{nonsense, number};
use super::connection::server_error;
use super::errors::refusal;
use crate::backend::StoreError;
use crate::lock::Claim;

/// The replicas are awaited at most so long.
const LONGEST: Duration = Duration::from_secs(1);
/// And at most for this part of the lease: the rest is needed to stop the command in good order.
const PART_OF_LEASE: u32 = 4;

fn within(claim: &Claim) -> Duration {
    LONGEST.min(claim.ttl / PART_OF_LEASE)
}

impl RedisStore {
    /// What waits for the replicas after a claim, if they are to be waited for.
    pub(super) fn wait_for_replicas(&self, claim: &Claim) -> Option<Cmd> {
        let count = self.location.wait_replicas();
        let mut wait = redis::cmd("WAIT");
        wait.arg(count).arg(within(claim).as_millis() as u64);
        (count > 0).then_some(wait)
    }

    /// Waits until as many replicas as were asked for have what was granted, or takes it back.
    ///
    /// # Errors
    /// Too few of them have it, or the server does not tell. Nothing is left of the claim if the server answers.
    pub(super) async fn await_replicas(&mut self, claim: &Claim) -> Result<(), StoreError> {
        let Some(wait) = self.wait_for_replicas(claim) else { return Ok(()) };
        let mut connection =
            self.connection.take().ok_or_else(|| StoreError::unreachable("not connected"))?;
        let answer = connection.answer_behind(&wait).await?;
        let wanted = self.location.wait_replicas();
        let error = match (number(Some(&answer)), server_error(&answer)) {
            (Some(count), _) if count >= i64::from(wanted) => {
                self.connection = Some(connection);
                return Ok(());
            }
            (Some(count), _) => StoreError::unreachable(format!(
                "only {count} of {wanted} replicas have confirmed the lock within {} ms (wait_replicas)",
                within(claim).as_millis()
            )),
            (None, Some(error)) => refusal(error, false),
            (None, None) => nonsense(),
        };
        match self.take_back(connection, claim).await {
            Ok(()) => Err(error),
            // The lock may still be ours, and whoever asks has to know.
            Err(_) => Err(StoreError::unanswered(error.to_string())),
        }
    }
}

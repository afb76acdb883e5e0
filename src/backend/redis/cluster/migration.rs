//! A lock whose keys migrate from one node to another.
//!
//! The node that a slot is migrating from runs a script as long as the declared key, the lock, is on it; inside the
//! script, each other missing key is an error, even one that has never existed (`scriptVerifyClusterState`). The node
//! that the slot is migrating to runs the script if the request is preceded by [`ASKING`](crate::backend::redis::redirect::Asking), and treats keys that
//! have not arrived as if they had never existed. So a request is sent there only if no key of the lock is left on the
//! former node: no key is created while another one of the same name may still arrive, which would then be rejected
//! (`BUSYKEY`).
//!
//! Where the script cannot run, the renewal of an exclusive lock is done by commands on single keys, which every node
//! serves correctly or redirects. Every other operation fails with a transient error.
//!
//! [`Asking`]: super::super::redirect::Asking

use std::time::Duration;

use redis::{Cmd, Value};

use super::super::connection::{CommandReply, RequestOptions, value_of};
use super::super::keys::{Keys, SIDES};
use super::super::recipe::Recipe;
use super::super::reply::{nonsense, number, revocation, text};
use super::super::route::Route;
use super::super::slot::slot_of_key;
use super::super::store::RedisStore;
use crate::backend::{Loss, Renewal, StoreError};
use crate::lock::Claim;

/// Conditions for extending a key: the lock has the value of `ARGV[1]`, or the hash describes a lock with that value.
const IS_TEXT: &str = "redis.call('GET', KEYS[1]) == ARGV[1]";
const IS_FIELD: &str = "redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1";
const IS_DESCRIBED: &str = "redis.call('HGET', KEYS[1], 'value') == ARGV[1]";

impl RedisStore {
    /// Whether the current node, which does not have the lock itself any more, still has another of its keys.
    pub(super) async fn has_remaining_keys(&mut self, keys: &Keys, token: &str) -> Result<bool, StoreError> {
        let all = SIDES.map(|kind| keys.side(kind)).into_iter();
        let all = all.chain([keys.fencing(), keys.index.clone(), keys.recorded(), keys.member(token)]);
        let commands: Vec<Cmd> = all.map(|key| redis::cmd("EXISTS").arg(key).clone()).collect();
        let mut connection = self.take_connection()?;
        let replies = connection.request_all(&keys.lock, &commands, RequestOptions::default()).await?;
        self.connection = Some(connection);
        Ok(replies.iter().any(|reply| matches!(reply, CommandReply::Value(Value::Int(1)))))
    }

    /// Renews an exclusive lock whose keys are on several nodes. Never shortens its lease, which may be that of a nested
    /// run.
    ///
    /// # Errors
    /// A node cannot be queried; or the lock is not recorded under this token, but may be held by a nested run of the
    /// same hold.
    pub async fn renew_by_key(&mut self, claim: &Claim, lease: Duration) -> Result<Renewal, StoreError> {
        let (keys, token) = (self.keys(&claim.name), claim.token.reveal());
        let holder = keys.side("holder");
        let is_owner = if self.location.recipe == Recipe::Redisson { IS_FIELD } else { IS_TEXT };
        let commands = [
            extend(is_owner, &keys.lock, token, lease),
            extend(IS_DESCRIBED, &holder, token, lease),
            extend("true", &keys.member(token), token, lease),
            redis::cmd("HGET").arg(&holder).arg(format!("r:{token}")).clone(),
        ];
        let slot = slot_of_key(&keys.lock);
        let requests = commands.map(|command| (slot, command));
        let Route::Cluster(nodes) = &mut self.route else {
            return Err(StoreError::resharding("not all keys of the lock are there"));
        };
        let first = nodes.current().clone();
        let replies =
            nodes.pool.request(&self.location, &first, &requests, "", RequestOptions::default()).await?;
        // All of them have to be extended, so a key of another type is an error, whichever it is.
        let replies: Vec<Value> = replies.into_iter().map(value_of).collect::<Result<_, _>>()?;
        let [lock, _, _, revoked] = <[Value; 4]>::try_from(replies).map_err(|_| nonsense())?;
        match number(Some(&lock)) {
            Some(1) => {
                Ok(Renewal::Held { lease: Some(claim.ttl), revoked: text(Some(&revoked)).map(revocation) })
            }
            Some(0) => Ok(Renewal::Lost(Loss::Gone)),
            _ if claim.outer.is_empty() => Ok(Renewal::Lost(Loss::Taken)),
            _ => Err(StoreError::resharding("the keys of the lock are being migrated")),
        }
    }
}

/// Returns the script that extends the expiry of a key under a condition. It returns 1; or 0 if there is no such key, -1
/// if the condition is not met.
fn extend(condition: &str, key: &str, token: &str, lease: Duration) -> Cmd {
    let text = format!(
        "if not ({condition}) then return -redis.call('EXISTS', KEYS[1]) end \
         if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end \
         return 1"
    );
    redis::cmd("EVAL").arg(text).arg(1).arg(key).arg(token).arg(lease.as_millis().to_string()).clone()
}

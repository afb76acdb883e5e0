//! Operations on a lock while its keys migrate from one node to another.
//!
//! The node that a slot is migrating from runs a script as long as the declared key, the lock, is on it; inside the
//! script, each other missing key is an error, even one that has never existed (`scriptVerifyClusterState`). The node
//! that the slot is migrating to runs the script if the request is preceded by [`ASKING`](Asking), and treats keys that
//! have not arrived as if they had never existed. So:
//!
//! * A request is sent to the latter node only if no key of the lock is left on the former ([`has_remaining_keys`]).
//! * Where the script cannot run, the most important operations are done by commands on single keys, which every node
//!   serves correctly or redirects: a lock is renewed or released, and a claim learns that the lock is held. No claim is
//!   granted.
//!
//! None of this disturbs the migration: no key is created while another one of the same name may still arrive, which
//! would then be rejected (`BUSYKEY`).
//!
//! [`has_remaining_keys`]: RedisStore::has_remaining_keys

mod parts;

use std::time::Duration;

use redis::Value;

use self::parts::{DELETE, EXPIRE, IS_DESCRIBED, Parts, command, millis_of, script};
use super::super::RedisStore;
use super::super::answers::{number, unreadable_revocation};
use super::super::connection::{CommandReply, RequestOptions};
use super::super::releasing::text_of;
use super::super::script::ScriptRequest;
use crate::backend::{Again, Busy, Loss, Release, Renewal, StoreError};
use crate::lock::{Claim, Mode, Record};

impl RedisStore {
    /// Whether the current node, which does not have the lock itself any more, still has another of its keys.
    pub(super) async fn has_remaining_keys(
        &mut self,
        request: &ScriptRequest<'_>,
    ) -> Result<bool, StoreError> {
        let keys = request.keys;
        let member = format!("{}{}", keys.members, request.token);
        let all = [
            &keys.holder,
            &keys.fencing,
            &keys.queue,
            &keys.waiters,
            &keys.ends,
            &keys.vacant,
            &keys.slot_waiters,
            &keys.history,
            &keys.missed,
            &keys.index,
            &member,
        ];
        let commands = all.map(|key| command("EXISTS", key, &[]));
        let connection = self.connection.take();
        let mut connection = connection.ok_or_else(|| StoreError::unreachable("not connected"))?;
        let replies = connection.request_all(&keys.lock, &commands, RequestOptions::default()).await?;
        self.connection = Some(connection);
        Ok(replies.iter().any(|reply| matches!(reply, CommandReply::Value(Value::Int(1)))))
    }

    /// Renews a lock whose keys are on several nodes.
    ///
    /// # Errors
    /// A node cannot be queried.
    pub(in super::super) async fn renew_by_key(
        &mut self,
        claim: &Claim,
        rest: Duration,
    ) -> Result<Renewal, StoreError> {
        let parts = self.parts(self.keys(&claim.name)).await?;
        let (token, lease) = (claim.token.reveal(), claim.ttl.max(rest));
        let lease_ms = lease.as_millis().to_string();
        let Parts { keys, .. } = &parts;
        if parts.value.is_none() {
            return Ok(Renewal::Lost(Loss::Gone));
        }
        let member = format!("{}{token}", keys.members);
        if parts.is_owner(token) {
            // As in the script: nested runs may have a longer lease than the owner.
            let has_others = parts.has_others(token);
            let is_longer = i64::try_from(lease.as_millis()).is_ok_and(|lease| parts.left >= lease);
            if has_others && is_longer {
                self.request_parts(keys, vec![command("PEXPIRE", &member, &[&lease_ms])]).await?;
                return Ok(held(&parts, claim));
            }
            let to = if has_others { lease + lease / 3 } else { lease }.as_millis().to_string();
            let commands = vec![
                self.guarded(keys, EXPIRE, token, &to),
                command("PEXPIRE", &keys.holder, &[&to]),
                command("PEXPIRE", &member, &[&lease_ms]),
            ];
            match number(self.request_parts(keys, commands).await?.first()) {
                Some(1) => {}
                Some(0) => return Ok(Renewal::Lost(Loss::Gone)),
                _ => return Ok(Renewal::Lost(Loss::Taken)),
            }
        } else if parts.is_member(token) {
            // Its entry in the set of lease ends is corrected by the next script that finds it still alive.
            let kept = self.request_parts(keys, vec![command("PEXPIRE", &member, &[&lease_ms])]).await?;
            if number(kept.first()) != Some(1) {
                return Ok(Renewal::Lost(Loss::Gone));
            }
            if i64::try_from(lease.as_millis()).is_ok_and(|lease| parts.left < lease) {
                let longer = (lease + lease / 3).as_millis().to_string();
                let value = parts.value.as_deref().unwrap_or_default();
                let commands = vec![
                    self.guarded(keys, EXPIRE, value, &longer),
                    command("PEXPIRE", &keys.holder, &[&longer]),
                ];
                if number(self.request_parts(keys, commands).await?.first()) != Some(1) {
                    return Err(StoreError::resharding("the lock has changed meanwhile"));
                }
            }
        } else {
            return Ok(Renewal::Lost(Loss::Taken));
        }
        Ok(held(&parts, claim))
    }

    /// Releases a lock whose keys are on several nodes. The other clients of a shared lock see that it is free not when
    /// its last holder has left, but when its lease has expired, or when all keys are on one node.
    ///
    /// # Errors
    /// A node cannot be queried; or other runs are nested in the hold, which cannot be handed over to them now.
    pub(in super::super) async fn release_by_key(
        &mut self,
        claim: &Claim,
        rest: Duration,
        record: Option<&Record>,
    ) -> Result<Release, StoreError> {
        let parts = self.parts(self.keys(&claim.name)).await?;
        let (Parts { keys, .. }, token) = (&parts, claim.token.reveal());
        if let Some(record) = record {
            // As in the script: the latest first, with the same number and retention.
            let now = self.request_parts(keys, vec![redis::cmd("TIME")]).await?;
            let now = millis_of(now.first());
            let commands = vec![
                command("LPUSH", &keys.history, &[&format!("{now} {}", text_of(record))]),
                command("LTRIM", &keys.history, &["0", "19"]),
                command("PEXPIRE", &keys.history, &["2678400000"]),
            ];
            let _ = self.request_parts(keys, commands).await;
        }
        let member = format!("{}{token}", keys.members);
        let is_revoked = parts.field(&format!("r:{token}")).is_some();
        let rest_ms = rest.as_millis().to_string();
        // A client that joins the shared lock after it was read does not change its value; so a shared lock is not
        // deleted here.
        let is_shared = parts.is_described() && matches!(parts.field("mode"), Some("s" | "c"));
        if parts.is_owner(token) && parts.has_others(token) && !is_shared {
            return Err(StoreError::resharding("other runs are nested in the hold"));
        }
        if parts.is_owner(token) && !rest.is_zero() && !is_revoked {
            let commands = vec![
                self.guarded(keys, EXPIRE, token, &rest_ms),
                command("PEXPIRE", &keys.holder, &[&rest_ms]),
                command("PEXPIRE", &member, &[&rest_ms]),
            ];
            let kept = number(self.request_parts(keys, commands).await?.first()) == Some(1);
            return Ok(if kept { Release::Kept } else { Release::NotHeld });
        }
        if parts.is_owner(token) && !is_shared {
            let commands = vec![
                self.guarded(keys, DELETE, token, ""),
                script(IS_DESCRIBED, DELETE, &keys.holder, token, ""),
                command("DEL", &member, &[]),
            ];
            if number(self.request_parts(keys, commands).await?.first()) != Some(1) {
                // Another client may hold it by now, which will announce its release.
                return Ok(Release::NotHeld);
            }
            let mut commands = vec![command("ZREM", &keys.index, &[&keys.lock])];
            if let Some(signal) = &keys.others.signal {
                commands.push(command("DEL", signal, &[]));
                commands.push(command("LPUSH", signal, &["1"]));
                commands.push(command("PEXPIRE", signal, &["1000"]));
            }
            let _ = self.request_parts(keys, commands).await;
            if let Some(channel) = &keys.others.channel {
                for publish in ["PUBLISH", "SPUBLISH"] {
                    // Not every server supports SPUBLISH.
                    let _ = self.request_parts(keys, vec![command(publish, channel, &["0"])]).await;
                }
            }
            return Ok(Release::Released);
        }
        if parts.is_member(token) {
            let kept = !rest.is_zero() && !is_revoked;
            let commands = match kept {
                true => vec![command("PEXPIRE", &member, &[&rest_ms])],
                false => vec![
                    command("HDEL", &keys.holder, &[&format!("m:{token}"), &format!("r:{token}")]),
                    command("DEL", &member, &[]),
                    // So that the next script detects the end of the lease, and which slots are free.
                    command("ZADD", &keys.ends, &["XX", "0", token]),
                ],
            };
            self.request_parts(keys, commands).await?;
            return Ok(if kept { Release::Kept } else { Release::Released });
        }
        Ok(Release::NotHeld)
    }

    /// Returns the holder of a lock whose keys are on several nodes, if there is one that prevents this claim.
    ///
    /// # Errors
    /// A node cannot be queried.
    pub(in super::super) async fn find_holder(&mut self, claim: &Claim) -> Result<Option<Busy>, StoreError> {
        let parts = self.parts(self.keys(&claim.name)).await?;
        if parts.value.is_none() {
            return Ok(None);
        }
        let is_our_hold = |token: &str| parts.is_owner(token) || parts.is_member(token);
        let is_shared = parts.is_described() && matches!(parts.field("mode"), Some("s" | "c"));
        if is_our_hold(claim.token.reveal())
            || claim.outer.iter().any(|token| is_our_hold(token.reveal()))
            || is_shared && claim.mode != Mode::Exclusive
        {
            return Ok(None);
        }
        let holder = self.holder_of(&parts, None).await?;
        Ok(Some(Busy { holders: vec![holder], more: 0, position: None, promised: false, again: Again::Poll }))
    }
}

/// The result of a renewal, with the revocation if there is one.
fn held(parts: &Parts, claim: &Claim) -> Renewal {
    let revoked = parts.field(&format!("r:{}", claim.token.reveal()));
    let revoked = revoked.map(|text| serde_json::from_str(text).unwrap_or_else(|_| unreadable_revocation()));
    Renewal::Held { lease: Some(claim.ttl), revoked }
}

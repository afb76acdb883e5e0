//! What can be done with a lock while its keys are on their way from one node to another.
//!
//! A node that a slot is moving away from runs a script as long as the key that it declares, the lock, is there; in it, each
//! other key that is not there is an error, also one that has never been (`scriptVerifyClusterState`). The node that the
//! slot is moving to runs it when it is [asked to](Asking), and takes what has not come yet for what has never been. So:
//!
//! * A question is taken to that node only when no key of the lock is left at the other one ([`has_left_behind`]).
//! * Where a script is not to be had, what matters most is done by commands on one key each, which every node answers
//!   rightly or sends on: the lock is renewed, it is given back, and whoever comes is told that it is held. Nobody gets it.
//!
//! Nothing of it is kept from moving on: no key is ever made where another one of the same name may still arrive, which
//! would then be refused (`BUSYKEY`).
//!
//! [`has_left_behind`]: RedisStore::has_left_behind

mod parts;

use std::time::Duration;

use redis::Value;

use self::parts::{DELETE, EXPIRE, IS_TOLD_OF, Parts, command, millis_of, script};
use super::super::RedisStore;
use super::super::answers::{nobody, number};
use super::super::connection::{CommandReply, RequestOptions};
use super::super::releasing::text_of;
use super::super::script::Question;
use crate::backend::{Again, Busy, Loss, Release, Renewal, StoreError};
use crate::lock::{Claim, Mode, Record};

impl RedisStore {
    /// Whether the node that is asked, which has not the lock itself any more, still has another of its keys.
    pub(super) async fn has_left_behind(&mut self, question: &Question<'_>) -> Result<bool, StoreError> {
        let keys = question.keys;
        let member = format!("{}{}", keys.members, question.token);
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
        let answers = connection.ask_all(&keys.lock, &commands, RequestOptions::default()).await?;
        self.connection = Some(connection);
        Ok(answers.iter().any(|answer| matches!(answer, CommandReply::Value(Value::Int(1)))))
    }

    /// Renews a lock whose keys are not all in one place.
    ///
    /// # Errors
    /// A node cannot be asked.
    pub(in super::super) async fn renew_parts(
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
            // As the script does: others who are inside may have a longer lease than the owner.
            let has_others = parts.has_others(token);
            let is_longer = i64::try_from(lease.as_millis()).is_ok_and(|lease| parts.left >= lease);
            if has_others && is_longer {
                self.ask_parts(keys, vec![command("PEXPIRE", &member, &[&lease_ms])]).await?;
                return Ok(held(&parts, claim));
            }
            let to = if has_others { lease + lease / 3 } else { lease }.as_millis().to_string();
            let commands = vec![
                self.guarded(keys, EXPIRE, token, &to),
                command("PEXPIRE", &keys.holder, &[&to]),
                command("PEXPIRE", &member, &[&lease_ms]),
            ];
            match number(self.ask_parts(keys, commands).await?.first()) {
                Some(1) => {}
                Some(0) => return Ok(Renewal::Lost(Loss::Gone)),
                _ => return Ok(Renewal::Lost(Loss::Taken)),
            }
        } else if parts.is_member(token) {
            // Its place in the set of ends is corrected by whoever finds that the lease has not ended.
            let kept = self.ask_parts(keys, vec![command("PEXPIRE", &member, &[&lease_ms])]).await?;
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
                if number(self.ask_parts(keys, commands).await?.first()) != Some(1) {
                    return Err(StoreError::resharding("the lock has changed meanwhile"));
                }
            }
        } else {
            return Ok(Renewal::Lost(Loss::Taken));
        }
        Ok(held(&parts, claim))
    }

    /// Gives back a lock whose keys are not all in one place. Whoever shares it does not see that it is free when its last
    /// holder has gone, but when its lease has ended, or when everything is in one place.
    ///
    /// # Errors
    /// A node cannot be asked; or others are inside the hold, to whom it cannot be left now.
    pub(in super::super) async fn release_parts(
        &mut self,
        claim: &Claim,
        rest: Duration,
        record: Option<&Record>,
    ) -> Result<Release, StoreError> {
        let parts = self.parts(self.keys(&claim.name)).await?;
        let (Parts { keys, .. }, token) = (&parts, claim.token.reveal());
        if let Some(record) = record {
            // As the script does: the latest first, so many of them, for so long.
            let now = self.ask_parts(keys, vec![redis::cmd("TIME")]).await?;
            let now = millis_of(now.first());
            let commands = vec![
                command("LPUSH", &keys.history, &[&format!("{now} {}", text_of(record))]),
                command("LTRIM", &keys.history, &["0", "19"]),
                command("PEXPIRE", &keys.history, &["2678400000"]),
            ];
            let _ = self.ask_parts(keys, commands).await;
        }
        let member = format!("{}{token}", keys.members);
        let is_revoked = parts.field(&format!("r:{token}")).is_some();
        let rest_ms = rest.as_millis().to_string();
        // Whoever joins those who share it after our look leaves the lock as it is; so it is not for us to delete.
        let is_shared = parts.is_told_of() && matches!(parts.field("mode"), Some("s" | "c"));
        if parts.is_owner(token) && parts.has_others(token) && !is_shared {
            return Err(StoreError::resharding("others are inside the hold"));
        }
        if parts.is_owner(token) && !rest.is_zero() && !is_revoked {
            let commands = vec![
                self.guarded(keys, EXPIRE, token, &rest_ms),
                command("PEXPIRE", &keys.holder, &[&rest_ms]),
                command("PEXPIRE", &member, &[&rest_ms]),
            ];
            let kept = number(self.ask_parts(keys, commands).await?.first()) == Some(1);
            return Ok(if kept { Release::Kept } else { Release::NotHeld });
        }
        if parts.is_owner(token) && !is_shared {
            let commands = vec![
                self.guarded(keys, DELETE, token, ""),
                script(IS_TOLD_OF, DELETE, &keys.holder, token, ""),
                command("DEL", &member, &[]),
            ];
            if number(self.ask_parts(keys, commands).await?.first()) != Some(1) {
                // It may be somebody else's by now, whose it is to say that it is free.
                return Ok(Release::NotHeld);
            }
            let mut commands = vec![command("ZREM", &keys.index, &[&keys.lock])];
            if let Some(signal) = &keys.others.signal {
                commands.push(command("DEL", signal, &[]));
                commands.push(command("LPUSH", signal, &["1"]));
                commands.push(command("PEXPIRE", signal, &["1000"]));
            }
            let _ = self.ask_parts(keys, commands).await;
            if let Some(channel) = &keys.others.channel {
                for publish in ["PUBLISH", "SPUBLISH"] {
                    // The second is not known to every server.
                    let _ = self.ask_parts(keys, vec![command(publish, channel, &["0"])]).await;
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
                    // So that the next script finds that it has ended, and which slots are vacant.
                    command("ZADD", &keys.ends, &["XX", "0", token]),
                ],
            };
            self.ask_parts(keys, commands).await?;
            return Ok(if kept { Release::Kept } else { Release::Released });
        }
        Ok(Release::NotHeld)
    }

    /// Whether somebody holds a lock whose keys are not all in one place, so that this claim cannot be granted.
    ///
    /// # Errors
    /// A node cannot be asked.
    pub(in super::super) async fn find_held(&mut self, claim: &Claim) -> Result<Option<Busy>, StoreError> {
        let parts = self.parts(self.keys(&claim.name)).await?;
        if parts.value.is_none() {
            return Ok(None);
        }
        let is_ours = |token: &str| parts.is_owner(token) || parts.is_member(token);
        let is_shared = parts.is_told_of() && matches!(parts.field("mode"), Some("s" | "c"));
        if is_ours(claim.token.reveal())
            || claim.outer.iter().any(|token| is_ours(token.reveal()))
            || is_shared && claim.mode != Mode::Exclusive
        {
            return Ok(None);
        }
        let holder = self.holder_of(&parts, None).await?;
        Ok(Some(Busy { holders: vec![holder], more: 0, position: None, promised: false, again: Again::Poll }))
    }
}

/// A lock that was renewed, with the word that it is to be given up, if somebody said so.
fn held(parts: &Parts, claim: &Claim) -> Renewal {
    let revoked = parts.field(&format!("r:{}", claim.token.reveal()));
    let revoked = revoked.map(|text| serde_json::from_str(text).unwrap_or_else(|_| nobody()));
    Renewal::Held { lease: Some(claim.ttl), revoked }
}

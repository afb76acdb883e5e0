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

use std::time::Duration;

use redis::{Cmd, Value};

use super::super::answers::{Said, hint, nobody, number, text};
use super::super::connection::{Answer, Wishes};
use super::super::keys::{Keys, slot_of_key};
use super::super::recipe::Recipe;
use super::super::route::Route;
use super::super::script::Question;
use super::super::{RedisStore, text_of};
use crate::backend::{Again, Busy, Loss, Release, Renewal, StoreError};
use crate::lock::{Claim, Holder, LockName, Mode, Record, Token};

/// Sets the expiry of a lock, or deletes it, if it has this value; or what is told of a lock with this value.
const EXPIRE: &str = "redis.call('PEXPIRE', KEYS[1], ARGV[2])";
const DELETE: &str = "redis.call('DEL', KEYS[1])";
const IS_TEXT: &str = "redis.call('GET', KEYS[1]) == ARGV[1]";
const IS_FIELD: &str = "redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1";
const IS_TOLD_OF: &str = "redis.call('HGET', KEYS[1], 'value') == ARGV[1]";

/// The lock and its holder as they are, wherever each of them is.
struct Parts {
    keys: Keys,
    value: Option<String>,
    /// The rest of its lease in ms, or less than nothing.
    left: i64,
    /// What stands in the hash beside the lock, by its fields.
    holder: Vec<(String, String)>,
}

impl Parts {
    fn field(&self, name: &str) -> Option<&str> {
        self.holder.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    /// Whether the hash tells of this lock.
    fn is_told_of(&self) -> bool {
        self.value.is_some() && self.field("value") == self.value.as_deref()
    }

    fn is_owner(&self, token: &str) -> bool {
        self.value.as_deref() == Some(token)
    }

    fn is_member(&self, token: &str) -> bool {
        self.is_told_of() && self.field(&format!("m:{token}")).is_some()
    }

    fn has_others(&self, token: &str) -> bool {
        let others = |field: &str| field.strip_prefix("m:").is_some_and(|member| member != token);
        self.is_told_of() && self.holder.iter().any(|(field, _)| others(field))
    }
}

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
            &keys.history,
            &keys.missed,
            &keys.index,
            &member,
        ];
        let commands = all.map(|key| command("EXISTS", key, &[]));
        let connection = self.connection.take();
        let mut connection = connection.ok_or_else(|| StoreError::unreachable("not connected"))?;
        let answers = connection.ask_all(&keys.lock, &commands, Wishes::default()).await?;
        self.connection = Some(connection);
        Ok(answers.iter().any(|answer| matches!(answer, Answer::Value(Value::Int(1)))))
    }

    /// Asks each of these about one key of a lock, wherever that is.
    async fn ask_parts(&mut self, keys: &Keys, commands: Vec<Cmd>) -> Result<Vec<Value>, StoreError> {
        let Route::Cluster(nodes) = &mut self.route else {
            return Err(StoreError::between("the keys of the lock are not all there"));
        };
        let slot = slot_of_key(&keys.lock);
        let questions: Vec<(u16, Cmd)> = commands.into_iter().map(|command| (slot, command)).collect();
        let first = nodes.current().clone();
        let answers = nodes.pool.ask(&self.location, &first, &questions, "", Wishes::default()).await?;
        let value = |answer| match answer {
            Answer::Value(value) => Ok(value),
            _ => {
                Err(StoreError::between("the nodes do not agree yet which of them has the slot of the lock"))
            }
        };
        answers.into_iter().map(value).collect()
    }

    async fn parts(&mut self, keys: Keys) -> Result<Parts, StoreError> {
        let is_hash = self.location.recipe() == Recipe::Redisson;
        let commands = vec![
            command(if is_hash { "HGETALL" } else { "GET" }, &keys.lock, &[]),
            command("PTTL", &keys.lock, &[]),
            command("HGETALL", &keys.holder, &[]),
        ];
        let answers = self.ask_parts(&keys, commands).await?;
        let value = match is_hash {
            true => fields(answers.first()).into_iter().next().map(|(owner, _)| owner),
            false => text(answers.first()).map(str::to_owned),
        };
        let left = number(answers.get(1)).unwrap_or(-2);
        Ok(Parts { keys, value, left, holder: fields(answers.get(2)) })
    }

    /// Does something to the lock if it has this value.
    fn guarded(&self, keys: &Keys, act: &str, value: &str, argument: &str) -> Cmd {
        let is_so = if self.location.recipe() == Recipe::Redisson { IS_FIELD } else { IS_TEXT };
        script(is_so, act, &keys.lock, value, argument)
    }

    /// Whether the token is a holder's, wherever the keys of the lock are.
    ///
    /// # Errors
    /// A node cannot be asked.
    pub(super) async fn is_held_by(&mut self, name: &LockName, token: &Token) -> Result<bool, StoreError> {
        let parts = self.parts(self.keys(name)).await?;
        Ok(parts.is_owner(token.reveal()) || parts.is_member(token.reveal()))
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
            let commands = vec![
                self.guarded(keys, EXPIRE, token, &lease_ms),
                command("PEXPIRE", &keys.holder, &[&lease_ms]),
                command("PEXPIRE", &member, &[&lease_ms]),
            ];
            match number(self.ask_parts(keys, commands).await?.first()) {
                Some(1) => {}
                Some(0) => return Ok(Renewal::Lost(Loss::Gone)),
                _ => return Ok(Renewal::Lost(Loss::Taken)),
            }
        } else if parts.is_member(token) {
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
                    return Err(StoreError::between("the lock has changed meanwhile"));
                }
            }
        } else {
            return Ok(Renewal::Lost(Loss::Taken));
        }
        let revoked = parts.field(&format!("r:{token}"));
        let revoked = revoked.map(|text| serde_json::from_str(text).unwrap_or_else(|_| nobody()));
        Ok(Renewal::Held { lease: Some(claim.ttl), revoked })
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
        if parts.is_owner(token) && parts.has_others(token) {
            return Err(StoreError::between("others are inside the hold"));
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
        if parts.is_owner(token) {
            let mut commands = vec![
                self.guarded(keys, DELETE, token, ""),
                script(IS_TOLD_OF, DELETE, &keys.holder, token, ""),
                command("DEL", &member, &[]),
                command("ZREM", &keys.index, &[&keys.lock]),
            ];
            if let Some(signal) = &keys.others.signal {
                commands.push(command("DEL", signal, &[]));
                commands.push(command("LPUSH", signal, &["1"]));
                commands.push(command("PEXPIRE", signal, &["1000"]));
            }
            let freed = number(self.ask_parts(keys, commands).await?.first()) == Some(1);
            if let Some(channel) = keys.others.channel.as_ref().filter(|_| freed) {
                for publish in ["PUBLISH", "SPUBLISH"] {
                    // The second is not known to every server.
                    let _ = self.ask_parts(keys, vec![command(publish, channel, &["0"])]).await;
                }
            }
            return Ok(if freed { Release::Released } else { Release::NotHeld });
        }
        if parts.is_member(token) {
            let kept = !rest.is_zero() && !is_revoked;
            let commands = match kept {
                true => vec![command("PEXPIRE", &member, &[&rest_ms])],
                false => vec![
                    command("HDEL", &keys.holder, &[&format!("m:{token}"), &format!("r:{token}")]),
                    command("DEL", &member, &[]),
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
        let Some(value) = parts.value.clone() else { return Ok(None) };
        let is_ours = |token: &str| parts.is_owner(token) || parts.is_member(token);
        let is_shared = parts.is_told_of() && matches!(parts.field("mode"), Some("s" | "c"));
        if is_ours(claim.token.reveal())
            || claim.outer.iter().any(|token| is_ours(token.reveal()))
            || is_shared && claim.mode != Mode::Exclusive
        {
            return Ok(None);
        }
        let recipe = self.location.recipe();
        let member = format!("{}{value}", parts.keys.members);
        let said = self.ask_parts(&parts.keys, vec![command("GET", &member, &[])]).await?;
        let said = text(said.first()).and_then(|text| serde_json::from_str::<Said>(text).ok());
        let remaining = u64::try_from(parts.left).ok().map(Duration::from_millis);
        let holder = match said {
            Some(said) => Holder {
                identity: Some(said.identity),
                fencing: said.fencing,
                remaining,
                ..Holder::default()
            },
            None => Holder {
                remaining,
                hint: hint(recipe.key_type(), remaining, recipe),
                immortal: remaining.is_none(),
                ..Holder::default()
            },
        };
        Ok(Some(Busy { holders: vec![holder], more: 0, position: None, promised: false, again: Again::Poll }))
    }
}

fn command(name: &str, key: &str, arguments: &[&str]) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(key).arg(arguments);
    command
}

fn script(is_so: &str, act: &str, key: &str, value: &str, argument: &str) -> Cmd {
    let text = format!("return {is_so} and {act} or -1");
    let mut command = redis::cmd("EVAL");
    command.arg(text).arg(1).arg(key).arg(value).arg(argument);
    command
}

/// The answer to `HGETALL`.
fn fields(answer: Option<&Value>) -> Vec<(String, String)> {
    let pair = |name: &Value, value: &Value| {
        Some((text(Some(name))?.to_owned(), text(Some(value)).unwrap_or_default().to_owned()))
    };
    match answer {
        Some(Value::Map(fields)) => fields.iter().filter_map(|(name, value)| pair(name, value)).collect(),
        Some(Value::Array(fields)) => {
            fields.chunks_exact(2).filter_map(|both| pair(&both[0], &both[1])).collect()
        }
        _ => Vec::new(),
    }
}

/// The answer to `TIME`, in ms.
fn millis_of(time: Option<&Value>) -> u64 {
    let Some(Value::Array(parts)) = time else { return 0 };
    let part = |index: usize| text(parts.get(index)).and_then(|part| part.parse::<u64>().ok()).unwrap_or(0);
    part(0) * 1000 + part(1) / 1000
}

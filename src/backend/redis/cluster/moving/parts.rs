//! The state of a lock assembled from its keys, each of which is read separately on the node that has it.

use std::time::Duration;

use redis::{Cmd, Value};

use super::super::super::RedisStore;
use super::super::super::answers::{HolderRecord, hint, number, text, unreadable_revocation};
use super::super::super::connection::{CommandReply, RequestOptions};
use super::super::super::keys::{Keys, slot_of_key};
use super::super::super::recipe::Recipe;
use super::super::super::route::Route;
use crate::backend::StoreError;
use crate::lock::{Holder, LockName, LockState, Mode, Token};

/// Actions: set the expiry of a key, or delete it. Conditions: the lock has this value, or the hash describes a lock
/// with this value.
pub(super) const EXPIRE: &str = "redis.call('PEXPIRE', KEYS[1], ARGV[2])";
pub(super) const DELETE: &str = "redis.call('DEL', KEYS[1])";
pub(super) const IS_TEXT: &str = "redis.call('GET', KEYS[1]) == ARGV[1]";
pub(super) const IS_FIELD: &str = "redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1";
pub(super) const IS_DESCRIBED: &str = "redis.call('HGET', KEYS[1], 'value') == ARGV[1]";

/// The lock and its hash, read on the nodes that have them.
pub(super) struct Parts {
    pub(super) keys: Keys,
    pub(super) value: Option<String>,
    /// The remaining lease in ms; negative if there is none.
    pub(super) left: i64,
    /// The fields of the hash beside the lock.
    pub(super) holder: Vec<(String, String)>,
}

impl Parts {
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.holder.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    /// Whether the hash describes this lock.
    pub(super) fn is_described(&self) -> bool {
        self.value.is_some() && self.field("value") == self.value.as_deref()
    }

    pub(super) fn is_owner(&self, token: &str) -> bool {
        self.value.as_deref() == Some(token)
    }

    pub(super) fn is_member(&self, token: &str) -> bool {
        self.is_described() && self.field(&format!("m:{token}")).is_some()
    }

    pub(super) fn has_others(&self, token: &str) -> bool {
        let others = |field: &str| field.strip_prefix("m:").is_some_and(|member| member != token);
        self.is_described() && self.holder.iter().any(|(field, _)| others(field))
    }
}

impl RedisStore {
    /// Sends each command, about one key of a lock, to the node that has the key.
    pub(super) async fn request_parts(
        &mut self,
        keys: &Keys,
        commands: Vec<Cmd>,
    ) -> Result<Vec<Value>, StoreError> {
        let Route::Cluster(nodes) = &mut self.route else {
            return Err(StoreError::resharding("not all keys of the lock are there"));
        };
        let slot = slot_of_key(&keys.lock);
        let requests: Vec<(u16, Cmd)> = commands.into_iter().map(|command| (slot, command)).collect();
        let first = nodes.current().clone();
        let replies =
            nodes.pool.request(&self.location, &first, &requests, "", RequestOptions::default()).await?;
        let value = |reply| match reply {
            CommandReply::Value(value) => Ok(value),
            _ => Err(StoreError::resharding(
                "the nodes do not agree yet which of them has the slot of the lock",
            )),
        };
        replies.into_iter().map(value).collect()
    }

    pub(super) async fn parts(&mut self, keys: Keys) -> Result<Parts, StoreError> {
        let is_hash = self.location.recipe() == Recipe::Redisson;
        let commands = vec![
            command(if is_hash { "HGETALL" } else { "GET" }, &keys.lock, &[]),
            command("PTTL", &keys.lock, &[]),
            command("HGETALL", &keys.holder, &[]),
        ];
        let replies = self.request_parts(&keys, commands).await?;
        let value = match is_hash {
            true => fields(replies.first()).into_iter().next().map(|(owner, _)| owner),
            false => text(replies.first()).map(str::to_owned),
        };
        let left = number(replies.get(1)).unwrap_or(-2);
        Ok(Parts { keys, value, left, holder: fields(replies.get(2)) })
    }

    /// Returns the command that changes the lock if it has this value.
    pub(super) fn guarded(&self, keys: &Keys, action: &str, value: &str, argument: &str) -> Cmd {
        let condition = if self.location.recipe() == Recipe::Redisson { IS_FIELD } else { IS_TEXT };
        script(condition, action, &keys.lock, value, argument)
    }

    /// Returns one holder of a lock whose keys are on several nodes: the one of the token, or else the one whose value
    /// is in the lock, or else an unknown one.
    pub(super) async fn holder_of(
        &mut self,
        parts: &Parts,
        token: Option<&str>,
    ) -> Result<Holder, StoreError> {
        let recipe = self.location.recipe();
        let proven = token.filter(|token| parts.is_owner(token) || parts.is_member(token));
        let id = proven.or(parts.value.as_deref()).unwrap_or_default();
        let commands = vec![command("GET", &format!("{}{id}", parts.keys.members), &[]), redis::cmd("TIME")];
        let replies = self.request_parts(&parts.keys, commands).await?;
        let record = text(replies.first()).and_then(|text| serde_json::from_str::<HolderRecord>(text).ok());
        let now = millis_of(replies.get(1));
        let ago = |then: u64| Duration::from_millis(now.saturating_sub(then));
        let remaining = u64::try_from(parts.left).ok().map(Duration::from_millis);
        let revoked = parts.field(&format!("r:{id}"));
        let holder = Holder {
            remaining,
            immortal: remaining.is_none(),
            ours: proven.is_some(),
            revoked: revoked
                .map(|text| serde_json::from_str(text).unwrap_or_else(|_| unreadable_revocation())),
            ..Holder::default()
        };
        Ok(match record {
            Some(record) => Holder {
                age: Some(ago(record.at)),
                ended: record.ended.map(ago),
                fencing: record.fencing,
                lease: record.lease.map(Duration::from_millis),
                identity: Some(record.identity),
                ..holder
            },
            None => Holder { hint: hint(recipe.key_type(), remaining, recipe), ..holder },
        })
    }

    /// Returns the visible state of a lock whose keys are on several nodes.
    ///
    /// # Errors
    /// A node cannot be queried.
    pub(in crate::backend::redis::cluster) async fn inspect_by_key(
        &mut self,
        name: &LockName,
        token: Option<&Token>,
    ) -> Result<LockState, StoreError> {
        let parts = self.parts(self.keys(name)).await?;
        let mut state = LockState::free(name.clone());
        if parts.value.is_some() {
            state.holders.push(self.holder_of(&parts, token.map(Token::reveal)).await?);
            state.mode = match parts.field("mode").filter(|_| parts.is_described()) {
                Some("x") => Some(Mode::Exclusive),
                Some("s") => Some(Mode::Shared),
                Some("c") => parts.field("slots").and_then(|slots| slots.parse().ok()).map(Mode::of_slots),
                _ => None,
            };
        }
        Ok(state)
    }
}

/// A command on one key.
pub(super) fn command(name: &str, key: &str, arguments: &[&str]) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(key).arg(arguments);
    command
}

/// A script on one key: an action with a condition.
pub(super) fn script(condition: &str, action: &str, key: &str, value: &str, argument: &str) -> Cmd {
    let text = format!("return {condition} and {action} or -1");
    let mut command = redis::cmd("EVAL");
    command.arg(text).arg(1).arg(key).arg(value).arg(argument);
    command
}

/// Parses the reply to `HGETALL`.
fn fields(reply: Option<&Value>) -> Vec<(String, String)> {
    let pair = |name: &Value, value: &Value| {
        Some((text(Some(name))?.to_owned(), text(Some(value)).unwrap_or_default().to_owned()))
    };
    match reply {
        Some(Value::Map(fields)) => fields.iter().filter_map(|(name, value)| pair(name, value)).collect(),
        Some(Value::Array(fields)) => {
            fields.chunks_exact(2).filter_map(|both| pair(&both[0], &both[1])).collect()
        }
        _ => Vec::new(),
    }
}

/// Parses the reply to `TIME`, in ms.
pub(super) fn millis_of(time: Option<&Value>) -> u64 {
    let Some(Value::Array(parts)) = time else { return 0 };
    let part = |index: usize| text(parts.get(index)).and_then(|part| part.parse::<u64>().ok()).unwrap_or(0);
    part(0) * 1000 + part(1) / 1000
}

//! A lock put together from its keys, each of which is asked for by itself, wherever it is.

use std::time::Duration;

use redis::{Cmd, Value};

use super::super::super::RedisStore;
use super::super::super::answers::{HolderRecord, hint, nobody, number, text};
use super::super::super::connection::{CommandReply, RequestOptions};
use super::super::super::keys::{Keys, slot_of_key};
use super::super::super::recipe::Recipe;
use super::super::super::route::Route;
use crate::backend::StoreError;
use crate::lock::{Holder, LockName, LockState, Mode, Token};

/// Sets the expiry of a lock, or deletes it, if it has this value; or what is told of a lock with this value.
pub(super) const EXPIRE: &str = "redis.call('PEXPIRE', KEYS[1], ARGV[2])";
pub(super) const DELETE: &str = "redis.call('DEL', KEYS[1])";
pub(super) const IS_TEXT: &str = "redis.call('GET', KEYS[1]) == ARGV[1]";
pub(super) const IS_FIELD: &str = "redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1";
pub(super) const IS_TOLD_OF: &str = "redis.call('HGET', KEYS[1], 'value') == ARGV[1]";

/// The lock and its holder as they are, wherever each of them is.
pub(super) struct Parts {
    pub(super) keys: Keys,
    pub(super) value: Option<String>,
    /// The rest of its lease in ms, or less than nothing.
    pub(super) left: i64,
    /// What stands in the hash beside the lock, by its fields.
    pub(super) holder: Vec<(String, String)>,
}

impl Parts {
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.holder.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    /// Whether the hash tells of this lock.
    pub(super) fn is_told_of(&self) -> bool {
        self.value.is_some() && self.field("value") == self.value.as_deref()
    }

    pub(super) fn is_owner(&self, token: &str) -> bool {
        self.value.as_deref() == Some(token)
    }

    pub(super) fn is_member(&self, token: &str) -> bool {
        self.is_told_of() && self.field(&format!("m:{token}")).is_some()
    }

    pub(super) fn has_others(&self, token: &str) -> bool {
        let others = |field: &str| field.strip_prefix("m:").is_some_and(|member| member != token);
        self.is_told_of() && self.holder.iter().any(|(field, _)| others(field))
    }
}

impl RedisStore {
    /// Asks each of these about one key of a lock, wherever that is.
    pub(super) async fn ask_parts(
        &mut self,
        keys: &Keys,
        commands: Vec<Cmd>,
    ) -> Result<Vec<Value>, StoreError> {
        let Route::Cluster(nodes) = &mut self.route else {
            return Err(StoreError::resharding("the keys of the lock are not all there"));
        };
        let slot = slot_of_key(&keys.lock);
        let questions: Vec<(u16, Cmd)> = commands.into_iter().map(|command| (slot, command)).collect();
        let first = nodes.current().clone();
        let answers =
            nodes.pool.ask(&self.location, &first, &questions, "", RequestOptions::default()).await?;
        let value = |answer| match answer {
            CommandReply::Value(value) => Ok(value),
            _ => Err(StoreError::resharding(
                "the nodes do not agree yet which of them has the slot of the lock",
            )),
        };
        answers.into_iter().map(value).collect()
    }

    pub(super) async fn parts(&mut self, keys: Keys) -> Result<Parts, StoreError> {
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
    pub(super) fn guarded(&self, keys: &Keys, act: &str, value: &str, argument: &str) -> Cmd {
        let is_so = if self.location.recipe() == Recipe::Redisson { IS_FIELD } else { IS_TEXT };
        script(is_so, act, &keys.lock, value, argument)
    }

    /// One holder of a lock whose keys are not all in one place: whom the token proves, or else whose value is in the lock;
    /// anybody, if that is all there is to be seen.
    pub(super) async fn holder_of(
        &mut self,
        parts: &Parts,
        token: Option<&str>,
    ) -> Result<Holder, StoreError> {
        let recipe = self.location.recipe();
        let proven = token.filter(|token| parts.is_owner(token) || parts.is_member(token));
        let id = proven.or(parts.value.as_deref()).unwrap_or_default();
        let commands = vec![command("GET", &format!("{}{id}", parts.keys.members), &[]), redis::cmd("TIME")];
        let answers = self.ask_parts(&parts.keys, commands).await?;
        let said = text(answers.first()).and_then(|text| serde_json::from_str::<HolderRecord>(text).ok());
        let now = millis_of(answers.get(1));
        let ago = |then: u64| Duration::from_millis(now.saturating_sub(then));
        let remaining = u64::try_from(parts.left).ok().map(Duration::from_millis);
        let revoked = parts.field(&format!("r:{id}"));
        let holder = Holder {
            remaining,
            immortal: remaining.is_none(),
            ours: proven.is_some(),
            revoked: revoked.map(|text| serde_json::from_str(text).unwrap_or_else(|_| nobody())),
            ..Holder::default()
        };
        Ok(match said {
            Some(said) => Holder {
                age: Some(ago(said.at)),
                ended: said.ended.map(ago),
                fencing: said.fencing,
                lease: said.lease.map(Duration::from_millis),
                identity: Some(said.identity),
                ..holder
            },
            None => Holder { hint: hint(recipe.key_type(), remaining, recipe), ..holder },
        })
    }

    /// What can be seen of a lock whose keys are not all in one place.
    ///
    /// # Errors
    /// A node cannot be asked.
    pub(in crate::backend::redis::cluster) async fn look_at_parts(
        &mut self,
        name: &LockName,
        token: Option<&Token>,
    ) -> Result<LockState, StoreError> {
        let parts = self.parts(self.keys(name)).await?;
        let mut state = LockState::free(name.clone());
        if parts.value.is_some() {
            state.holders.push(self.holder_of(&parts, token.map(Token::reveal)).await?);
            state.mode = match parts.field("mode").filter(|_| parts.is_told_of()) {
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

/// A script on one key, which does something if something is so.
pub(super) fn script(is_so: &str, act: &str, key: &str, value: &str, argument: &str) -> Cmd {
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
pub(super) fn millis_of(time: Option<&Value>) -> u64 {
    let Some(Value::Array(parts)) = time else { return 0 };
    let part = |index: usize| text(parts.get(index)).and_then(|part| part.parse::<u64>().ok()).unwrap_or(0);
    part(0) * 1000 + part(1) / 1000
}

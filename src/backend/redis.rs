//! Redis and Valkey, one server: `SET key token NX PX ttl`, renewal and release by compare, each as one script, so that
//! no step can be half done. Excludes, and is excluded by, every client that locks with a plain string key (redis-py,
//! redsync, node-redlock, ...).
//!
//! What those clients do not know (who holds the lock, the fencing counter) lies in side keys under a reserved prefix.

mod connection;
mod errors;
mod keys;
mod location;
mod scripts;
mod stream;
mod tls;

use std::time::Duration;

use redis::Value;

use self::connection::Connection;
use self::keys::Keys;
pub use self::location::Location;
use super::{Attempt, Backend, Loss, Release, Renewal, Reply, StoreError};
use crate::lock::{Claim, FencingToken, Grant, Holder, Identity};

/// The store.
pub struct RedisStore {
    location: Location,
    connection: Option<Connection>,
    /// One whose greeting failed after a question had been sent with it.
    spoiled: Option<Connection>,
}

impl RedisStore {
    /// Names the store; contacts nobody.
    pub fn new(location: Location) -> RedisStore {
        RedisStore { location, connection: None, spoiled: None }
    }

    /// Runs one script in one flight. The connection is put back only when the answer has come in full, so that a
    /// dropped future, a time-out or a fault leaves none whose next answer might belong to an earlier question.
    async fn run(
        &mut self,
        script: &str,
        keys: &Keys,
        arguments: &[&[u8]],
    ) -> Result<Vec<Value>, StoreError> {
        let mut connection =
            self.connection.take().ok_or_else(|| StoreError::unreachable("not connected"))?;
        let answer = connection.ask(&eval(script, keys, arguments)).await;
        if connection.is_usable() {
            self.connection = Some(connection);
        } else if connection.is_spoiled() {
            self.spoiled = Some(connection);
        }
        match answer? {
            Value::Array(values) => Ok(values),
            other => {
                Err(StoreError::unanswered(format!("the server answered a script with {}", kind_of(&other))))
            }
        }
    }

    /// Takes a lock back that was granted to the wrong user or in the wrong database.
    async fn undo(&mut self, claim: &Claim) {
        if let Some(mut connection) = self.spoiled.take() {
            let release = eval(scripts::RELEASE, &self.keys(claim), &[claim.token.reveal().as_bytes()]);
            // A refusal here means that the claim was refused too.
            let _ = connection.ask(&release).await;
        }
    }

    fn keys(&self, claim: &Claim) -> Keys {
        Keys::new(self.location.prefix(), &claim.name)
    }
}

/// How long a fencing counter outlives the last grant. It is seeded with the server's time, so a counter that has
/// expired does not start anew.
const COUNTER_LIFE: Duration = Duration::from_secs(30 * 24 * 3600);

impl Backend for RedisStore {
    fn display(&self) -> &str {
        self.location.display()
    }

    fn connect(&mut self) -> Reply<'_, Result<(), StoreError>> {
        Box::pin(async {
            if self.connection.is_none() {
                self.connection = Some(Connection::open(&self.location).await?);
            }
            Ok(())
        })
    }

    fn try_acquire<'a>(&'a mut self, claim: &'a Claim) -> Reply<'a, Result<Attempt, StoreError>> {
        Box::pin(async {
            let identity = serde_json::to_string(&claim.identity)
                .map_err(|error| StoreError::Config(format!("cannot describe the holder: {error}")))?;
            let arguments = [
                claim.token.reveal().to_owned(),
                claim.ttl.as_millis().to_string(),
                identity,
                COUNTER_LIFE.as_millis().to_string(),
            ];
            let arguments = arguments.each_ref().map(|argument| argument.as_bytes());
            let answer = self.run(scripts::ACQUIRE, &self.keys(claim), &arguments).await;
            self.undo(claim).await;
            let answer = answer?;
            if number(answer.first()) == Some(-2) {
                return Err(StoreError::Config("the fencing counter has come to its end (2^53)".into()));
            }
            read_attempt(&answer).ok_or_else(|| StoreError::unanswered("the server's answer makes no sense"))
        })
    }

    fn renew<'a>(&'a mut self, claim: &'a Claim) -> Reply<'a, Result<Renewal, StoreError>> {
        Box::pin(async {
            let ttl = claim.ttl.as_millis().to_string();
            let arguments = [claim.token.reveal().as_bytes(), ttl.as_bytes()];
            let answer = self.run(scripts::RENEW, &self.keys(claim), &arguments).await?;
            match number(answer.first()) {
                Some(1) => Ok(Renewal::Held(Some(claim.ttl))),
                Some(0) => Ok(Renewal::Lost(Loss::Gone)),
                Some(-1) => Ok(Renewal::Lost(Loss::Taken)),
                _ => Err(StoreError::unanswered("the server's answer makes no sense")),
            }
        })
    }

    fn release<'a>(&'a mut self, claim: &'a Claim) -> Reply<'a, Result<Release, StoreError>> {
        Box::pin(async {
            let arguments = [claim.token.reveal().as_bytes()];
            let answer = self.run(scripts::RELEASE, &self.keys(claim), &arguments).await?;
            match number(answer.first()) {
                Some(1) => Ok(Release::Released),
                Some(_) => Ok(Release::NotHeld),
                None => Err(StoreError::unanswered("the server's answer makes no sense")),
            }
        })
    }

    fn changed(&mut self) -> Reply<'_, ()> {
        Box::pin(async {
            match &mut self.connection {
                Some(connection) => {
                    connection.changed().await;
                    if !connection.is_usable() {
                        self.connection = None;
                    }
                }
                None => std::future::pending().await,
            }
        })
    }
}

fn eval(script: &str, keys: &Keys, arguments: &[&[u8]]) -> redis::Cmd {
    let mut command = redis::cmd("EVAL");
    command.arg(script).arg(3).arg(&keys.lock).arg(&keys.holder).arg(&keys.fencing);
    for argument in arguments {
        command.arg(*argument);
    }
    command
}

/// `[1, fencing token, lease in ms]`, or `[0, rest of the lease in ms, type of the key, identity, age in ms]`.
fn read_attempt(answer: &[Value]) -> Option<Attempt> {
    match number(answer.first())? {
        1 => {
            let fencing = FencingToken::new(text(answer.get(1))?.parse().ok()?)?;
            let lease = Duration::from_millis(number(answer.get(2))?.try_into().ok()?);
            Some(Attempt::Granted(Grant { fencing: Some(fencing), lease: Some(lease) }))
        }
        0 => {
            // PTTL answers -1 for a key without expiry: when that ends nobody knows.
            let remaining =
                number(answer.get(1)).and_then(|ms| ms.try_into().ok()).map(Duration::from_millis);
            let kind = text(answer.get(2)).unwrap_or_default();
            let identity = text(answer.get(3)).and_then(|json| serde_json::from_str::<Identity>(json).ok());
            let age = number(answer.get(4)).and_then(|ms| ms.try_into().ok()).map(Duration::from_millis);
            let hint = match kind {
                "string" if remaining.is_none() => Some("a key without expiry".to_owned()),
                "string" => None,
                kind => Some(format!("a key of type {kind}")),
            };
            Some(Attempt::Busy(Holder { age: age.filter(|_| identity.is_some()), identity, remaining, hint }))
        }
        _ => None,
    }
}

fn number(value: Option<&Value>) -> Option<i64> {
    match value? {
        Value::Int(number) => Some(*number),
        _ => None,
    }
}

fn text(value: Option<&Value>) -> Option<&str> {
    match value? {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// What a reply is, without quoting a server that may be anything.
fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Nil => "nothing",
        Value::Int(_) => "a number",
        Value::BulkString(_) | Value::SimpleString(_) | Value::Okay => "a text",
        _ => "something else",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_to_acquire_are_read() {
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        assert_eq!(
            read_attempt(&[Value::Int(1), bulk("1769824800123456"), Value::Int(30_000)]),
            Some(Attempt::Granted(Grant {
                fencing: FencingToken::new(1_769_824_800_123_456),
                lease: Some(Duration::from_secs(30))
            }))
        );
        let busy = |answer: &[Value]| match read_attempt(answer) {
            Some(Attempt::Busy(holder)) => holder,
            other => panic!("{other:?}"),
        };
        let foreign = busy(&[Value::Int(0), Value::Int(-1), bulk("string"), Value::Nil, Value::Nil]);
        assert_eq!(foreign.hint.as_deref(), Some("a key without expiry"));
        assert_eq!((foreign.identity, foreign.remaining), (None, None));
        let hash = busy(&[Value::Int(0), Value::Int(5), bulk("hash"), Value::Nil, Value::Nil]);
        assert_eq!(hash.hint.as_deref(), Some("a key of type hash"));
        let garbage = busy(&[Value::Int(0), Value::Int(5), bulk("string"), bulk("{not json"), Value::Int(7)]);
        assert_eq!(garbage.identity, None);
        for nonsense in
            [vec![], vec![Value::Nil], vec![Value::Int(7)], vec![Value::Int(1), Value::Nil, Value::Nil]]
        {
            assert_eq!(read_attempt(&nonsense), None);
        }
    }
}

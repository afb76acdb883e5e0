//! Redisson, as a server sees it: the scripts of its locks, and the messages that it waits for.

use super::Fixture;
use crate::support::redis::Connection;
use crate::support::resp::{self, Value};
use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Acquires, or enters once more: returns nil; otherwise the rest of the lease.
const LOCK: &str = "
    if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[1]) == 1 then
      redis.call('hincrby', KEYS[1], ARGV[1], 1)
      redis.call('pexpire', KEYS[1], ARGV[2])
      return nil
    end
    return redis.call('pttl', KEYS[1])";

/// The same for a lock with a counter: the rest of the lease, or -1, and the token.
const FENCED: &str = "
    if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[1]) == 1 then
      local token = redis.call('incr', KEYS[2])
      redis.call('hincrby', KEYS[1], ARGV[1], 1)
      redis.call('pexpire', KEYS[1], ARGV[2])
      return {-1, token}
    end
    return {redis.call('pttl', KEYS[1]), -1}";

/// The watchdog's renewal: whether the lock is still held.
const RENEW: &str = "
    if redis.call('hexists', KEYS[1], ARGV[1]) == 1 then
      redis.call('pexpire', KEYS[1], ARGV[2])
      return 1
    end
    return 0";

/// Releases: 1; entered more often than left: 0; not held: nil.
const UNLOCK: &str = "
    if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
      return nil
    end
    if redis.call('hincrby', KEYS[1], ARGV[1], -1) > 0 then
      redis.call('pexpire', KEYS[1], ARGV[2])
      return 0
    end
    redis.call('del', KEYS[1])
    redis.call('publish', KEYS[2], '0')
    return 1";

/// The reader's part of a read-write lock, which checks only the mode.
const READ: &str = "
    local mode = redis.call('hget', KEYS[1], 'mode')
    if mode == false or mode == 'read' then
      redis.call('hset', KEYS[1], 'mode', 'read')
      redis.call('hincrby', KEYS[1], ARGV[1], 1)
      redis.call('pexpire', KEYS[1], ARGV[2])
      return nil
    end
    return redis.call('pttl', KEYS[1])";

/// One thread of a Java program, with the lock of a fixture.
pub(super) struct Thread {
    client: Connection,
    key: String,
    id: String,
}

impl Thread {
    pub(super) fn new(fixture: &Fixture, number: u32) -> Self {
        let id = format!("3f1e5b5e-0000-4000-8000-{:012x}:{number}", std::process::id());
        Self { client: fixture.client(), key: fixture.key.clone(), id }
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// A key or channel that belongs to the lock.
    pub(super) fn of_lock(&self, what: &str) -> String {
        match self.key.contains('{') {
            true => format!("redisson_lock_{what}:{}", self.key),
            false => format!("redisson_lock_{what}:{{{}}}", self.key),
        }
    }

    fn eval(&mut self, script: &str, second: &str, lease_ms: u32) -> Value {
        let lease = lease_ms.to_string();
        self.client.command(&["EVAL", script, "2", &self.key, second, &self.id, &lease])
    }

    /// `tryLock`: nil when it is acquired.
    pub(super) fn lock(&mut self, lease_ms: u32) -> Value {
        self.eval(LOCK, "unused", lease_ms)
    }

    /// `tryLockAndGetToken`
    pub(super) fn fenced(&mut self) -> Option<u64> {
        let counter = self.of_lock("token");
        match self.eval(FENCED, &counter, 30_000) {
            Value::List(parts) if parts[0] == Value::Int(-1) => u64::try_from(parts[1].int()).ok(),
            Value::List(_) => None,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn renew(&mut self) -> Value {
        self.eval(RENEW, "unused", 30_000)
    }

    pub(super) fn unlock(&mut self) -> Value {
        let channel = self.of_lock("_channel");
        self.eval(UNLOCK, &channel, 30_000)
    }

    /// `readLock().tryLock()` of an `RReadWriteLock`.
    pub(super) fn lock_as_reader(&mut self) -> Value {
        self.eval(READ, "unused", 30_000)
    }
}

/// A subscriber of a channel.
pub(super) struct Listener(BufReader<TcpStream>);

impl Listener {
    /// `SUBSCRIBE` or `SSUBSCRIBE`; it is subscribed when this returns.
    pub(super) fn on(fixture: &Fixture, command: &str, channel: &str) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", fixture.space.port())).unwrap();
        stream.write_all(&resp::encode(&[command, channel])).unwrap();
        let mut listener = Self(BufReader::new(stream));
        assert_eq!(listener.next(crate::support::SOON).unwrap()[0], command.to_lowercase());
        listener
    }

    fn next(&mut self, within: Duration) -> Option<Vec<String>> {
        self.0.get_ref().set_read_timeout(Some(within)).unwrap();
        resp::read_value(&mut self.0).ok().map(|message| message.texts())
    }

    /// The next message, which must come soon.
    #[track_caller]
    pub(super) fn hears(&mut self) -> String {
        let message = self.next(crate::support::SOON).expect("a message");
        message[2].clone()
    }

    /// Whether no message has arrived so far. The caller has made sure that the time for it has passed.
    pub(super) fn is_silent(&mut self) -> bool {
        self.next(Duration::from_millis(50)).is_none()
    }
}

//! One Redis, with the recipe of Redisson: the value of the key is a hash, so every step of the scripts that reads,
//! writes or frees it differs.

use super::rig::Rig;
use crate::support::SOON;
use crate::support::place::Place;
use crate::support::redis::{Redis, is_memory};
use crate::support::resp::Value;
use crate::support::wait::until;
use std::time::Duration;

struct RedissonRig {
    place: Place,
    redis: Redis,
}

impl RedissonRig {
    fn new() -> Self {
        Self { place: Place::new(), redis: Redis::start() }
    }

    fn eval(&self, script: &str, name: &str, argument: &str) -> Value {
        let answer = self.redis.command(&["EVAL", script, "1", &key(name), argument]);
        assert!(!matches!(answer, Value::Error(_)), "{answer:?}");
        answer
    }
}

/// The owner of a foreign lock.
const FOREIGN: &str = "3f1e5b5e-0000-4000-8000-000000000000:1";

fn key(name: &str) -> String {
    format!("dlock:{name}")
}

impl Rig for RedissonRig {
    fn place(&self) -> &Place {
        &self.place
    }

    fn url(&self) -> String {
        format!("{}?recipe=redisson", self.redis.url())
    }

    fn exact_url(&self) -> String {
        format!("{}&prefix=", self.url())
    }

    fn url_with_secret(&self, secret: &str) -> Option<String> {
        Some(format!("redis://somebody:{secret}@127.0.0.1:1/2?prefix=p&recipe=redisson"))
    }

    fn has_leases(&self) -> bool {
        true
    }

    /// Each waiter has a channel of its own.
    fn await_connected_waiters(&self, count: usize) {
        until(SOON, "the end of the closed connections", || {
            self.redis.command(&["PUBSUB", "CHANNELS", "dlock#call:*"]).texts().len() <= count
        });
    }

    fn delete(&mut self, name: &str) {
        assert_eq!(self.redis.command(&["DEL", &key(name)]), Value::Int(1));
    }

    fn replace(&mut self, name: &str) {
        self.eval("redis.call('del', KEYS[1]) redis.call('hset', KEYS[1], ARGV[1], 1)", name, FOREIGN);
    }

    fn foreign_lock(&mut self, name: &str, lease: Option<Duration>) -> bool {
        let script = "if redis.call('exists', KEYS[1]) == 1 then return 0 end
            return redis.call('hincrby', KEYS[1], ARGV[1], 1)";
        let is_ours = self.eval(script, name, FOREIGN) == Value::Int(1);
        if let Some(lease) = lease.filter(|_| is_ours) {
            self.redis.command(&["PEXPIRE", &key(name), &lease.as_millis().to_string()]);
        }
        is_ours
    }

    fn foreign_unlock(&mut self, name: &str) {
        self.delete(name);
        self.redis.command(&["PUBLISH", &format!("redisson_lock__channel:{{{}}}", key(name)), "0"]);
    }

    fn waiters(&self, name: &str) -> usize {
        let queue = format!("dlock#queue:{{{}}}", key(name));
        self.redis.command(&["ZCARD", &queue]).int().try_into().unwrap()
    }

    fn traces(&self, name: &str) -> Vec<String> {
        let (lock, tag) = (key(name), format!("{{{}}}", key(name)));
        let is_counter = |key: &str| key.starts_with("redisson_lock_token:");
        let mut keys = self.redis.command(&["KEYS", "*"]).texts();
        keys.retain(|key| *key == lock || key.contains(&tag) && !is_memory(key) && !is_counter(key));
        keys
    }

    fn is_untouched(&self, name: &str) -> bool {
        let mut client = self.redis.connect();
        client.command(&["HGETALL", &key(name)]).texts() == [FOREIGN, "1"]
            && client.command(&["PTTL", &key(name)]) == Value::Int(-1)
    }

    fn restart(&mut self) {
        self.redis.restart();
    }

    fn wipe(&mut self) {
        self.redis.command(&["FLUSHALL"]);
    }

    fn own_items(&self, names: &[&str]) -> Vec<String> {
        let mut keys = self.redis.command(&["KEYS", "*"]).texts();
        keys.retain(|key| !names.contains(&key.as_str()));
        keys
    }
}

super::list::every_check!(RedissonRig::new; Request Data Foreign);

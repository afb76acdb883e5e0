//! One Redis.

use super::rig::Rig;
use crate::support::place::Place;
use crate::support::redis::{Redis, is_memory};
use crate::support::resp::Value;
use std::time::Duration;

struct RedisRig {
    place: Place,
    redis: Redis,
}

impl RedisRig {
    fn new() -> Self {
        Self { place: Place::new(), redis: Redis::start() }
    }
}

const FOREIGN: &str = "somebody else's";

fn key(name: &str) -> String {
    format!("dlock:{name}")
}

impl Rig for RedisRig {
    fn place(&self) -> &Place {
        &self.place
    }

    fn url(&self) -> String {
        self.redis.url()
    }

    fn exact_url(&self) -> String {
        format!("{}?prefix=", self.redis.url())
    }

    fn url_with_secret(&self, secret: &str) -> Option<String> {
        Some(format!("redis://somebody:{secret}@127.0.0.1:1/2?prefix=p"))
    }

    fn has_leases(&self) -> bool {
        true
    }

    fn delete(&mut self, name: &str) {
        assert_eq!(self.redis.command(&["DEL", &key(name)]), Value::Int(1));
    }

    fn replace(&mut self, name: &str) {
        self.redis.command(&["SET", &key(name), FOREIGN]);
    }

    fn foreign_lock(&mut self, name: &str, lease: Option<Duration>) -> bool {
        let key = key(name);
        let mut command = vec!["SET", &key, FOREIGN, "NX"];
        let ms = lease.map(|lease| lease.as_millis().to_string());
        if let Some(ms) = &ms {
            command.extend(["PX", ms]);
        }
        self.redis.command(&command) != Value::Nil
    }

    fn foreign_unlock(&mut self, name: &str) {
        self.delete(name);
    }

    fn waiters(&self, name: &str) -> usize {
        let queue = format!("dlock#queue:{{{}}}", key(name));
        self.redis.command(&["ZCARD", &queue]).int().try_into().unwrap()
    }

    fn traces(&self, name: &str) -> Vec<String> {
        let (lock, tag) = (key(name), format!("{{{}}}", key(name)));
        let mut keys = self.redis.command(&["KEYS", "*"]).texts();
        keys.retain(|key| *key == lock || key.contains(&tag) && !is_memory(key));
        keys
    }

    fn is_untouched(&self, name: &str) -> bool {
        let mut client = self.redis.connect();
        client.command(&["GET", &key(name)]) == Value::Text(FOREIGN.into())
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

super::every_check!(RedisRig);

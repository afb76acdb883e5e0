//! What the rigs of the Redis family have in common: one or several servers with the keys of a lock.

use super::disturbance::Disturbance;
use super::rig::{Rig, with};
use crate::support::SOON;
use crate::support::place::Place;
use crate::support::redis::is_memory;
use crate::support::resp::Value;
use crate::support::wait::until;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

/// The servers of one store.
pub trait Servers {
    /// Their URL.
    fn url(&self) -> String;

    /// The same without a prefix of the names.
    fn exact_url(&self) -> String {
        with(&self.url(), "prefix=")
    }

    /// A URL of this kind, of servers that need not exist, with this password.
    fn url_with_secret(&self, secret: &str) -> String;

    /// Runs one command about a key on each server that may have it: one server, or each live one.
    fn at(&self, key: &str, words: &[&str]) -> Vec<Value>;

    /// The keys of each live server that may have any.
    fn keys(&self) -> Vec<Vec<String>>;

    /// The number of queried servers that must agree.
    fn quorum(&self) -> usize {
        1
    }

    /// Whether a server knows which waiters are connected to it, and sees the notifications.
    fn detects_dead_waiters(&self) -> bool {
        true
    }

    /// See [`Rig::counts_as_down_after`].
    fn counts_as_down_after(&self) -> Option<Duration> {
        None
    }

    /// See [`Rig::has_dead_servers`].
    fn has_dead_servers(&self) -> bool {
        false
    }

    /// Whether there are slots.
    fn has_slots(&self) -> bool {
        true
    }

    /// Stops and starts it.
    fn restart(&mut self);

    /// Empties it.
    fn wipe(&mut self);

    /// The disturbance during a check.
    fn disturbance(&self) -> Option<Rc<Disturbance>> {
        None
    }
}

/// The rig of such a store.
pub struct FamilyRig<S: Servers> {
    // The runs started here end before the servers are lent to the next test.
    place: Place,
    servers: S,
}

impl<S: Servers> FamilyRig<S> {
    /// A rig on these servers.
    pub fn on(servers: S) -> Self {
        Self { place: Place::new(), servers }
    }

    /// Whether a quorum of servers gave this reply.
    fn is_agreed(&self, answers: &[Value], expected: &Value) -> bool {
        answers.iter().filter(|answer| *answer == expected).count() >= self.servers.quorum()
    }

    fn disturb(&self) {
        if let Some(disturbance) = self.servers.disturbance() {
            disturbance.step_now();
        }
    }
}

/// The value that another program has stored.
const FOREIGN: &str = "somebody else's";

fn key(name: &str) -> String {
    format!("dlock:{name}")
}

impl<S: Servers> Rig for FamilyRig<S> {
    fn place(&self) -> &Place {
        &self.place
    }

    fn url(&self) -> String {
        self.servers.url()
    }

    fn exact_url(&self) -> String {
        self.servers.exact_url()
    }

    fn url_with_secret(&self, secret: &str) -> Option<String> {
        Some(self.servers.url_with_secret(secret))
    }

    fn has_leases(&self) -> bool {
        true
    }

    fn detects_dead_waiters(&self) -> bool {
        self.servers.detects_dead_waiters()
    }

    /// Each waiter has a channel of its own, on each server.
    fn await_connected_waiters(&self, count: usize) {
        until(SOON, "the end of the closed connections", || {
            let channels = self.servers.at("", &["PUBSUB", "CHANNELS", "dlock#call:*"]);
            channels.iter().all(|channels| channels.texts().len() <= count)
        });
    }

    fn counts_as_down_after(&self) -> Option<Duration> {
        self.servers.counts_as_down_after()
    }

    fn has_dead_servers(&self) -> bool {
        self.servers.has_dead_servers()
    }

    fn has_slots(&self) -> bool {
        self.servers.has_slots()
    }

    fn disturbance(&self) -> Option<Rc<Disturbance>> {
        self.servers.disturbance()
    }

    fn delete(&mut self, name: &str) {
        let answers = self.servers.at(&key(name), &["DEL", &key(name)]);
        assert!(self.is_agreed(&answers, &Value::Int(1)), "{name} was not held: {answers:?}");
    }

    fn replace(&mut self, name: &str) {
        self.servers.at(&key(name), &["SET", &key(name), FOREIGN]);
    }

    /// Like any client of Redlock: on each server, and on none without a majority.
    fn foreign_lock(&mut self, name: &str, lease: Option<Duration>) -> bool {
        let key = key(name);
        let mut command = vec!["SET", &key, FOREIGN, "NX"];
        let ms = lease.map(|lease| lease.as_millis().to_string());
        if let Some(ms) = &ms {
            command.extend(["PX", ms]);
        }
        let answers = self.servers.at(&key, &command);
        let locked = self.is_agreed(&answers, &Value::Text("OK".into()));
        if !locked && answers.iter().any(|answer| *answer != Value::Nil) {
            self.foreign_unlock(name);
        }
        locked
    }

    fn foreign_unlock(&mut self, name: &str) {
        let text = "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1])";
        let key = key(name);
        self.servers.at(&key, &["EVAL", text, "1", &key, FOREIGN]);
    }

    /// Each counts once, on however many servers it is recorded.
    fn waiters(&self, name: &str) -> usize {
        self.disturb();
        let queue = format!("dlock#queue:{{{}}}", key(name));
        let answers = self.servers.at(&key(name), &["ZRANGE", &queue, "0", "-1"]);
        answers.iter().flat_map(Value::texts).collect::<BTreeSet<_>>().len()
    }

    fn traces(&self, name: &str) -> Vec<String> {
        self.disturb();
        let (lock, tag) = (key(name), format!("{{{}}}", key(name)));
        let keys = self.servers.keys().into_iter().flatten();
        keys.filter(|key| *key == lock || key.contains(&tag) && !is_memory(key)).collect()
    }

    fn is_untouched(&self, name: &str) -> bool {
        let key = key(name);
        let values = self.servers.at(&key, &["GET", &key]);
        let leases = self.servers.at(&key, &["PTTL", &key]);
        let (text, never) = (Value::Text(FOREIGN.into()), Value::Int(-1));
        // A server that lost all data during the check did not lose it for this test.
        let has_forgotten = self.servers.disturbance().is_some() && self.is_agreed(&values, &text);
        let is_there = |(value, lease): (&Value, &Value)| {
            *value == text && *lease == never || has_forgotten && *value == Value::Nil
        };
        values.iter().zip(&leases).all(is_there)
    }

    fn restart(&mut self) {
        self.servers.restart();
    }

    fn wipe(&mut self) {
        self.servers.wipe();
    }

    fn own_items(&self, names: &[&str]) -> Vec<String> {
        let keys: BTreeSet<String> = self.servers.keys().into_iter().flatten().collect();
        keys.into_iter().filter(|key| !names.contains(&key.as_str())).collect()
    }
}

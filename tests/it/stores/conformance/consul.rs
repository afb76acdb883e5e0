//! One Consul, whose locks other programs take with sessions of their own, as `consul lock` does. A lock has one holder:
//! every check applies but those of shared locks and of slots.

use super::rig::{Rig, with};
use crate::support::consul::{Consul, LOCK_FLAGS};
use crate::support::place::Place;
use crate::support::pool::Lent;
use dlock::backend::ledger::Ledger;
use dlock::lock::Mode;
use serde_json::json;
use std::collections::HashMap;
use std::time::Duration;

struct ConsulRig {
    // The runs started here end before the server is lent to the next test.
    place: Place,
    consul: Lent<Consul>,
    /// The sessions of other programs, by the name of the lock.
    foreign: HashMap<String, String>,
}

impl ConsulRig {
    fn new() -> Self {
        Self { place: Place::new(), consul: Consul::lent(), foreign: HashMap::new() }
    }

    fn ledger(&self, name: &str) -> Ledger {
        let stored = self.consul.value(&format!("{}.dlock", key(name))).unwrap_or_default();
        Ledger::parse(stored.as_bytes()).unwrap_or_default()
    }

    /// A session of another program, which ends after this time at the latest.
    fn session(&self, lease: Option<Duration>) -> String {
        // It lasts twice as long as its time-out.
        self.consul.session(lease.map(|lease| format!("{}ms", lease.as_millis() / 2)).as_deref())
    }
}

/// The key that `consul lock` locks.
fn key(name: &str) -> String {
    format!("dlock/{}/.lock", name.replace('%', "%25").replace('/', "%2F"))
}

impl Rig for ConsulRig {
    fn place(&self) -> &Place {
        &self.place
    }

    fn url(&self) -> String {
        self.consul.url()
    }

    fn exact_url(&self) -> String {
        with(&self.url(), "prefix=")
    }

    fn url_with_secret(&self, secret: &str) -> Option<String> {
        Some(format!("consul://:{secret}@127.0.0.1:1?prefix=p"))
    }

    fn has_leases(&self) -> bool {
        false
    }

    /// The time-out of the session.
    fn lease(&self, ttl: Duration) -> Option<Duration> {
        Some(ttl)
    }

    fn ttl(&self, seconds: u64) -> String {
        format!("{}s", seconds.max(10))
    }

    /// A session may last twice as long, and its lock is kept from others for a while then.
    fn end_of_lease(&self, ttl: Duration) -> Duration {
        ttl * 3 + Duration::from_millis(1500)
    }

    fn detects_dead_waiters(&self) -> bool {
        false
    }

    fn has_slots(&self) -> bool {
        false
    }

    fn has(&self, mode: Mode) -> bool {
        mode == Mode::Exclusive
    }

    fn has_own_items(&self) -> bool {
        false
    }

    fn delete(&mut self, name: &str) {
        assert!(self.consul.holder(&key(name)).is_some(), "{name} was not held");
        self.consul.ask("DELETE", &format!("kv/{}?recurse", crate::support::consul::path(&key(name))), b"");
    }

    fn cut(&mut self, name: &str) {
        assert!(self.consul.holder(&key(name)).is_some(), "{name} was not held");
        self.consul.ask("DELETE", &format!("kv/{}", crate::support::consul::path(&key(name))), b"");
    }

    fn replace(&mut self, name: &str) {
        let session = self.session(None);
        let lock = json!({"Verb": "lock", "Key": key(name), "Flags": LOCK_FLAGS, "Session": session});
        let both = json!([{"KV": {"Verb": "delete", "Key": key(name)}}, {"KV": lock}]);
        assert_eq!(self.consul.transact(&both), 200);
        self.foreign.insert(name.to_owned(), session);
    }

    fn is_untouched(&self, name: &str) -> bool {
        self.foreign.contains_key(name) && self.consul.holder(&key(name)).as_ref() == self.foreign.get(name)
    }

    fn foreign_lock(&mut self, name: &str, lease: Option<Duration>) -> bool {
        let session = self.session(lease);
        let is_locked = self.consul.lock(&key(name), &session);
        if is_locked {
            self.foreign.insert(name.to_owned(), session);
        }
        is_locked
    }

    fn foreign_unlock(&mut self, name: &str) {
        let session = self.foreign.remove(name).expect("a session that has it");
        assert!(self.consul.unlock(&key(name), &session));
    }

    fn waiters(&self, name: &str) -> usize {
        self.ledger(name).waiters.len()
    }

    fn traces(&self, name: &str) -> Vec<String> {
        let ledger = self.ledger(name);
        let holders = ledger.holders.iter().map(|one| format!("{one:?}"));
        let waiters = ledger.waiters.iter().map(|one| format!("{one:?}"));
        holders.chain(waiters).chain(self.consul.holder(&key(name))).collect()
    }

    fn restart(&mut self) {
        self.consul.restart();
    }

    fn wipe(&mut self) {
        assert!(self.consul.wipe());
    }

    fn own_items(&self, _: &[&str]) -> Vec<String> {
        Vec::new()
    }
}

super::list::one_holder_checks!(ConsulRig::new);
super::gates::lost_gate_checks!(ConsulRig::new);

// A slot count is refused.
crate::stores::conformance::checks! { ConsulRig::new; slots by prove_slots { slots_limit_the_number_of_holders } }

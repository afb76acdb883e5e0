//! A lock in one of the stores, for tests whose claim holds for each of them.

use super::SOON;
use super::dlock::Dlock;
use super::inherited_lock::InheritedLock;
use super::place::Place;
use super::redis::Keyspace;
use super::resp::Value;
use super::running::Running;
use super::wait::until;

/// A store for one test only.
#[derive(Clone)]
pub struct Store {
    /// The place of the runs on it.
    pub place: Place,
    url: String,
    space: Option<Keyspace>,
}

impl Store {
    /// A directory.
    pub fn file() -> Self {
        let place = Place::new();
        let url = place.url();
        Self { place, url, space: None }
    }

    /// A part of the Redis server that the tests share.
    pub fn redis() -> Self {
        let space = Keyspace::new();
        Self { place: Place::new(), url: space.url(), space: Some(space) }
    }

    /// A Redis server for one test only.
    pub fn on(redis: &super::redis::Redis) -> Self {
        let space = Keyspace::of(redis);
        Self { place: Place::new(), url: space.url(), space: Some(space) }
    }

    /// Servers for one test only, behind this URL.
    pub fn at(url: String) -> Self {
        Self { place: Place::new(), url, space: None }
    }

    /// One store of each kind.
    pub fn each() -> Vec<Self> {
        vec![Self::file(), Self::redis()]
    }

    /// The same part of that Redis through another port.
    pub fn behind(&self, port: u16) -> Self {
        Self { url: self.space().url_at(port), ..self.clone() }
    }

    /// The keys of a Redis.
    pub fn space(&self) -> &Keyspace {
        self.space.as_ref().expect("a store that is a Redis")
    }

    /// Its URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// `dlock run` on the lock `x` of this store, with a lease of 3 s where leases exist.
    pub fn run(&self) -> Dlock {
        self.run_with_ttl("3s")
    }

    /// `dlock run` on the lock `x` of this store, with a lease of this length where leases exist.
    pub fn run_with_ttl(&self, ttl: &str) -> Dlock {
        self.place.run().backend(&self.url).args(["--ttl", ttl])
    }

    /// A dlock that waits for the lock and then reports whether every process with the inherited lock is dead. It is
    /// waiting when this returns.
    #[track_caller]
    pub fn next_holder(&self, inherited_lock: &InheritedLock) -> Running {
        // Its own lease is of no interest.
        let mut next_holder = self
            .run_with_ttl("60s")
            .args(["-v", "--wait", "forever"])
            .probe(["next-holder", inherited_lock.path()])
            .spawn();
        next_holder.await_stderr("waiting");
        next_holder
    }

    /// Waits until every process with the inherited lock is dead, and asserts that the lock was held until then.
    #[track_caller]
    pub fn await_death_under_lock(&self, inherited_lock: &InheritedLock) {
        until(SOON, "the death of the whole tree", || {
            // The order matters: a process seen alive *after* the lock was seen free has outlived it.
            let held = self.is_held();
            let dead = inherited_lock.is_free();
            assert!(held || dead, "the lock is free, and the command lives");
            dead
        });
    }

    /// Stores this text in place of the record of the last success of `x`.
    pub fn plant_success(&self, record: &str) {
        if let Some(space) = &self.space {
            space.command(&["SET", &format!("dlock#success:{{{}}}", space.key("x")), record]);
            return;
        }
        let sidecar = self.place.locks().join("x.dlock");
        let text = std::fs::read_to_string(&sidecar).expect("a sidecar");
        let line = text.lines().next().expect("one line");
        let mut ledger: serde_json::Value = serde_json::from_str(line).expect("a ledger");
        ledger["success"] = serde_json::from_str(record).expect("JSON");
        std::fs::write(&sidecar, format!("{ledger}\n")).expect("a sidecar");
    }

    /// Whether the lock `x` is held, as the store itself sees it.
    pub fn is_held(&self) -> bool {
        if let Some(space) = &self.space {
            return space.command(&["EXISTS", &space.key("x")]) == Value::Int(1);
        }
        !self.place.lock_is_free("x")
    }
}

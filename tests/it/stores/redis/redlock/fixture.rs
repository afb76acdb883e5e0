//! Some masters, and runs on the lock `x` of a majority of them.

use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::inherited_lock::InheritedLock;
use crate::support::masters::Masters;
pub use crate::support::masters::SINCE;
use crate::support::place::Place;
use crate::support::pool::Lent;
use crate::support::resp::Value;
use crate::support::running::{Exit, Output, Running};
use crate::support::wait::until;
use std::time::Duration;

/// The key of the lock.
pub const KEY: &str = "dlock:x";
/// The key of its counter.
const COUNTER: &str = "dlock#fencing:{dlock:x}";

/// How long a node may take to receive what was sent to it when a run ended. What is left there stays for longer: two
/// thirds of a lease of six seconds or more.
const STRAGGLING: Duration = Duration::from_secs(3);

/// Five masters for one test only.
pub struct Fixture {
    /// The place of the runs.
    pub place: Place,
    /// The masters.
    pub masters: Lent<Masters>,
    /// The inherited lock of every command of the test.
    pub inherited_lock: InheritedLock,
    ttl: String,
}

impl Fixture {
    /// On masters without any data of dlock, with a lease that is not renewed while a test runs.
    pub fn new() -> Self {
        let place = Place::new();
        let inherited_lock = place.inherited_lock();
        Self { place, masters: Masters::lent(), inherited_lock, ttl: "60s".to_owned() }
    }

    /// On masters whose data is old enough that they vote.
    pub fn old() -> Self {
        let fixture = Self::new();
        fixture.age(&[0, 1, 2, 3, 4]);
        fixture
    }

    /// With another lease.
    pub fn ttl(mut self, ttl: &str) -> Self {
        ttl.clone_into(&mut self.ttl);
        self
    }

    /// Ages the data of nodes so far that they vote.
    pub fn age(&self, nodes: &[usize]) {
        self.masters.age(nodes);
    }

    /// `dlock run` on all nodes.
    pub fn run(&self) -> Dlock {
        self.run_at(&self.masters.url())
    }

    /// `dlock run` on some of them, or through proxies.
    pub fn run_at(&self, url: &str) -> Dlock {
        self.place.run().backend(url).args(["--ttl", &self.ttl])
    }

    /// Prints its fencing token, and ends.
    #[track_caller]
    pub fn token(&self) -> u64 {
        self.token_of(self.run())
    }

    /// The same, of this run.
    #[track_caller]
    pub fn token_of(&self, run: Dlock) -> u64 {
        let output = run.sh("echo $DLOCK_FENCING_TOKEN").output();
        assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
        output.stdout.trim().parse().expect("a fencing token")
    }

    /// A command with the inherited lock that reports each signal until it is told to exit. It is ready when this
    /// returns.
    #[track_caller]
    pub fn witness(&self) -> Running {
        self.witness_of(self.run())
    }

    /// The same, under this run.
    #[track_caller]
    pub fn witness_of(&self, run: Dlock) -> Running {
        let go = format!("leave:{}=0", self.place.arg("go"));
        let mut run = run.probe(["--inherited-lock", self.inherited_lock.path(), "signals", &go]).spawn();
        run.await_ready();
        run
    }

    /// Makes the witness exit, and asserts that it was undisturbed.
    #[track_caller]
    pub fn assert_undisturbed(&self, mut run: Running) {
        run.assert_running();
        self.place.write("go", "");
        assert_eq!(run.wait().outcome(), (Exit::Code(0), "ready\n", ""));
    }

    /// A waiter that then reports whether every process with the inherited lock is dead. It is waiting when this
    /// returns.
    #[track_caller]
    pub fn next_holder(&self) -> Running {
        let mut next_holder = self.contender();
        next_holder.await_stderr("waiting");
        next_holder
    }

    /// The same run, which may have the lock already.
    pub fn contender(&self) -> Running {
        self.run()
            .args(["-v", "--wait", "forever"])
            .probe(["next-holder", self.inherited_lock.path()])
            .spawn()
    }

    /// Whether the lock is held at these nodes.
    pub fn held_at(&self, nodes: &[usize]) -> Vec<bool> {
        let exists = |node: &usize| self.masters.node(*node).command(&["EXISTS", KEY]) == Value::Int(1);
        nodes.iter().map(exists).collect()
    }

    /// Waits until the lock is held at all these nodes.
    #[track_caller]
    pub fn await_held_at(&self, nodes: &[usize]) {
        until(SOON, "a lock at these nodes", || self.held_at(nodes).iter().all(|held| *held));
    }

    /// Waits until each of these nodes has renewed the lock since this was called.
    #[track_caller]
    pub fn await_renewals_at(&self, nodes: &[usize]) {
        let mut waiting: Vec<(usize, i64)> = nodes.iter().map(|node| (*node, i64::MAX)).collect();
        until(SOON, "a renewal at each of these nodes", || {
            waiting.retain_mut(|(node, last)| {
                let left = self.masters.node(*node).command(&["PTTL", KEY]).int();
                left <= std::mem::replace(last, left)
            });
            waiting.is_empty()
        });
    }

    /// Waits a moment until the lock is free at all these nodes.
    #[track_caller]
    pub fn await_free_at(&self, nodes: &[usize]) {
        until(STRAGGLING, "a free lock at these nodes", || self.held_at(nodes).iter().all(|held| !held));
    }

    /// Asserts that a moment after the end of the runs these nodes have no keys of the lock but the permanent ones.
    #[track_caller]
    pub fn assert_no_traces(&self, nodes: &[usize]) {
        self.assert_no_traces_of(nodes, "");
    }

    /// The same for the keys whose names contain this.
    #[track_caller]
    pub fn assert_no_traces_of(&self, nodes: &[usize], what: &str) {
        until(STRAGGLING, "no traces of the lock", || {
            !self.traces(nodes).iter().any(|key| key.contains(what))
        });
    }

    /// The keys of the lock at these nodes, except the permanent ones.
    pub fn traces(&self, nodes: &[usize]) -> Vec<String> {
        let keys = |node: &usize| self.masters.node(*node).command(&["KEYS", "*"]).texts();
        let mut keys: Vec<String> = nodes.iter().flat_map(keys).collect();
        keys.retain(|key| !crate::support::redis::is_memory(key) && key != SINCE && key != "dlock#locks");
        keys
    }

    /// The counter of each of these nodes; 0 where there is none.
    pub fn counters(&self, nodes: &[usize]) -> Vec<u64> {
        let counter = |node: &usize| match self.masters.node(*node).command(&["GET", COUNTER]) {
            Value::Nil => 0,
            counter => counter.text().parse().expect("a counter"),
        };
        nodes.iter().map(counter).collect()
    }

    /// Acquires the lock at some nodes as another program does.
    pub fn foreign_lock(&self, nodes: &[usize], token: &str) {
        for node in nodes {
            let taken = self.masters.node(*node).command(&["SET", KEY, token, "NX", "PX", "60000"]);
            assert_eq!(taken, Value::Text("OK".into()));
        }
    }
}

/// All of them.
pub const ALL: [usize; 5] = [0, 1, 2, 3, 4];

/// Asserts that a run failed because of its store, with this message.
#[track_caller]
pub fn assert_unavailable(output: &Output, says: &str) {
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""), "{}", output.stderr);
    assert!(output.stderr.contains(says), "{}", output.stderr);
    assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
}

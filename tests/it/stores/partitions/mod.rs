//! Three members of which one, the leader, is partitioned away while runs acquire a lock, wait for one, hold one and
//! release one. Packets are dropped; no connection is reset.

mod network;

mod etcd;
mod zookeeper;

use self::network::{Network, Side};
use crate::run::random_faults::event_log::EventLog;
use crate::support::SOON;
use crate::support::daemon::Host;
use crate::support::place::Place;
use crate::support::running::{Exit, Output, Running};
use crate::support::wait::{boot_ns, until};
use std::collections::{BTreeMap, VecDeque};

/// Three members of one store.
trait Members {
    fn start(hosts: Vec<Host>) -> Self;

    fn url(&self) -> String;

    fn leader(&self) -> usize;

    /// Whether a member serves requests that need a majority.
    fn serves(&self, member: usize) -> bool;

    /// Waits until the holder of a lock has renewed it at one of these members.
    fn await_renewal(&self, lock: &str, members: &[usize]);

    /// The entries of holders and waiters that a member has, and what keeps them alive.
    fn entries(&self, member: usize) -> Vec<String>;
}

/// What happens to the lock during the partition, and the side of the run to which it happens.
type Lock = (&'static str, Side);

/// The options of a run that waits.
const WAITER: [&str; 6] = ["--wait", "forever", "--ttl", "9s", "--connect-timeout", "1s"];

/// All runs on one ensemble.
struct Scene<'a> {
    place: Place,
    network: &'a Network,
    url: String,
    /// The runs under each lock that have not ended, in the order of their starts.
    runs: BTreeMap<String, VecDeque<Run>>,
    /// When each run was started, in nanoseconds since boot.
    begun: Vec<u64>,
    ends: BTreeMap<usize, Exit>,
}

struct Run {
    number: usize,
    running: Running,
}

fn name((what, side): Lock) -> String {
    format!("{what}-{side:?}")
}

impl Scene<'_> {
    /// Starts a run whose command lasts until its lock is [closed](Self::close).
    fn start(&mut self, lock: Lock, side: Side, options: &[&str]) -> &mut Run {
        let (number, name) = (self.begun.len(), name(lock));
        self.begun.push(boot_ns());
        let text = format!("until [ -e end.{name} ]; do sleep 0.05; done");
        let run = self.place.run().backend(&self.url).name(&name).args(["-v", "--grace", "100ms"]);
        let run = run.args(options).env("WITNESS_RUN", number.to_string());
        let run = run.probe(["witness", &self.place.arg("."), "0", "inside", "sh", "-c", &text]);
        let running = run.wrapped_by(self.network.client(side)).spawn();
        self.runs.entry(name).or_default().push_back(Run { number, running });
        self.last(lock)
    }

    /// Starts a run, and waits until it holds the lock.
    #[track_caller]
    fn hold(&mut self, lock: Lock, side: Side, ttl: &str) {
        let number = self.start(lock, side, &["--ttl", ttl]).number;
        until(SOON, "a holder", || {
            self.last(lock).running.assert_running();
            self.has_started(number)
        });
    }

    /// Starts a run that waits behind a holder.
    #[track_caller]
    fn wait(&mut self, lock: Lock, side: Side) {
        self.start(lock, side, &WAITER).running.await_stderr("waiting at position 1");
    }

    /// The run under a lock that was started last.
    #[track_caller]
    fn last(&mut self, lock: Lock) -> &mut Run {
        self.runs.get_mut(&name(lock)).and_then(VecDeque::back_mut).expect("a run")
    }

    /// Whether the command of a run was started.
    fn has_started(&self, number: usize) -> bool {
        let end = format!(" {number}");
        self.place.read("log").lines().any(|line| line.starts_with("start ") && line.ends_with(&end))
    }

    /// Ends the commands of all runs under this lock, also of those that begin later.
    fn close(&self, lock: Lock) {
        self.place.write(&format!("end.{}", name(lock)), "");
    }

    /// Waits for the end of the first run under a lock, which must have this exit status.
    #[track_caller]
    fn end(&mut self, lock: Lock, exit: i32) -> Output {
        let runs = self.runs.get_mut(&name(lock)).expect("a run");
        let mut run = runs.pop_front().expect("a run");
        let output = run.running.wait();
        assert_eq!(output.exit, Exit::Code(exit), "{}", output.stderr);
        self.ends.insert(run.number, output.exit);
        output
    }

    /// The last run under a lock has not started its command.
    #[track_caller]
    fn assert_not_granted(&mut self, lock: Lock) {
        let run = self.last(lock);
        run.running.assert_running();
        let number = run.number;
        assert!(!self.has_started(number), "{}", name(lock));
    }
}

/// F04, F05, F06, F12 to F14, F35, F36
#[track_caller]
fn prove<M: Members>() {
    let network = Network::new();
    network.enter(|| {
        let members = M::start(network.members());
        let mut scene = Scene {
            place: Place::new(),
            network: &network,
            url: members.url(),
            runs: BTreeMap::new(),
            begun: Vec::new(),
            ends: BTreeMap::new(),
        };
        partition(&mut scene, &members);
        let events = EventLog::read(&scene.place.read("log"));
        events.assert_in_order(&scene.begun);
        events.assert_ran_as(&scene.ends);
        for member in 0..3 {
            until(SOON, "the end of all entries", || members.entries(member).is_empty());
        }
    });
}

/// The leader is cut off from the other members, under runs in every state and on every side.
#[track_caller]
fn partition(scene: &mut Scene<'_>, members: &impl Members) {
    use Side::{Both, Majority, Minority};
    let network = scene.network;
    let victim = members.leader();
    // All runs are connected to the leader.
    network.admit_only(victim);
    for side in [Both, Majority] {
        scene.hold(("held", side), side, "15s");
        scene.hold(("released", side), side, "60s");
        scene.hold(("awaited", side), side, "60s");
        scene.wait(("awaited", side), side);
    }
    scene.hold(("awaited", Minority), Both, "60s");
    scene.wait(("awaited", Minority), Minority);
    scene.hold(("held", Minority), Minority, "6s");
    scene.hold(("released", Minority), Minority, "6s");

    network.split(victim);
    scene.close(("released", Minority));
    for side in [Both, Majority, Minority] {
        scene.start(("acquired", side), side, &["--retry", "2m", "--ttl", "9s", "--connect-timeout", "1s"]);
    }
    for side in [Both, Majority, Minority] {
        scene.last(("acquired", side)).running.await_stderr("cannot reach");
    }
    network.admit_all();

    // Where the majority can be reached, only time is lost.
    for side in [Both, Majority] {
        for what in ["acquired", "released", "awaited"] {
            scene.close((what, side));
        }
    }
    for lock in [("held", Minority), ("released", Minority)] {
        scene.start(lock, Majority, &WAITER);
    }
    for side in [Both, Majority] {
        scene.end(("released", side), 0);
        // Its lease would last for a minute.
        scene.start(("released", side), side, &["--wait", "20s", "--ttl", "9s"]);
        scene.end(("released", side), 0);
        scene.end(("acquired", side), 0);
        scene.end(("awaited", side), 0);
        scene.end(("awaited", side), 0);
        members.await_renewal(&name(("held", side)), &network.others(victim));
        scene.close(("held", side));
        scene.end(("held", side), 0);
    }

    // In the minority, everything is lost in time, and nothing is granted.
    let released = scene.end(("released", Minority), 0);
    assert!(released.stderr.contains(": could not be released: "), "{}", released.stderr);
    assert!(!released.stderr.contains("within 0ms"), "{}", released.stderr);
    let lost = scene.end(("held", Minority), 76);
    assert!(lost.stderr.contains(": the lock could not be renewed in time ("), "{}", lost.stderr);
    scene.close(("held", Minority));
    for lock in [("held", Minority), ("released", Minority)] {
        scene.end(lock, 0);
    }
    scene.assert_not_granted(("acquired", Minority));
    scene.assert_not_granted(("awaited", Minority));

    network.heal();
    for what in ["acquired", "awaited"] {
        scene.close((what, Minority));
        scene.end((what, Minority), 0);
    }
    scene.end(("awaited", Minority), 0);
    until(SOON, "the return of a member", || members.serves(victim));
}

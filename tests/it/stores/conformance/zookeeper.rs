//! One ZooKeeper, with each recipe, and an ensemble of three.

use super::client::Client;
use super::disturbance::Disturbance;
use super::rig::{Rig, with};
use crate::support::SOON;
use crate::support::place::Place;
use crate::support::pool::Lent;
use crate::support::wait::eventually;
use crate::support::zookeeper::session::{Kind, Session, Stat};
use crate::support::zookeeper::{Ensemble, Plan, ZooKeeper};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The session of a foreign lock that ends only by its release.
const FOR_LONG: Duration = Duration::from_secs(3600);

enum Servers {
    One(Lent<ZooKeeper>),
    Three(Lent<Ensemble>),
}

impl Servers {
    fn zookeeper(&mut self) -> &mut ZooKeeper {
        match self {
            Servers::One(zookeeper) => zookeeper,
            Servers::Three(ensemble) => &mut ensemble.0,
        }
    }
}

/// What other programs call their nodes.
#[derive(Clone, Copy)]
enum Recipe {
    Curator,
    CuratorRw,
    Kazoo,
}

impl Recipe {
    fn option(self) -> Option<&'static str> {
        match self {
            Recipe::Curator => None,
            Recipe::CuratorRw => Some("recipe=curator-rw"),
            Recipe::Kazoo => Some("recipe=kazoo"),
        }
    }

    /// The name of a node without its number.
    fn node(self) -> String {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap();
        let id = id.trim();
        match self {
            Recipe::Curator => format!("_c_{id}-lock-"),
            Recipe::CuratorRw => format!("_c_{id}-__WRIT__"),
            Recipe::Kazoo => format!("{}__lock__", id.replace('-', "")),
        }
    }
}

struct ZooKeeperRig {
    // The runs started here end before the servers are lent to the next test.
    place: Place,
    url: String,
    recipe: Recipe,
    servers: Arc<Mutex<Servers>>,
    disturbance: Option<Rc<Disturbance>>,
    /// The sessions of foreign locks, and their nodes as they were created. They end although no client is connected.
    foreign: HashMap<String, (i64, Option<(String, Stat)>)>,
}

fn locked(servers: &Mutex<Servers>) -> MutexGuard<'_, Servers> {
    servers.lock().unwrap_or_else(PoisonError::into_inner)
}

fn directory(name: &str) -> String {
    format!("/dlock/{name}")
}

/// The number that the server has appended to the name of a node.
fn number(node: &str) -> &str {
    &node[node.len() - 10..]
}

impl ZooKeeperRig {
    fn new() -> Self {
        Self::of(Recipe::Curator)
    }

    fn of(recipe: Recipe) -> Self {
        Self::on(Servers::One(ZooKeeper::lent()), recipe)
    }

    fn of_today() -> Self {
        Self::on(Servers::One(ZooKeeper::lent_with(&Plan::current())), Recipe::Curator)
    }

    fn of_three() -> Self {
        Self::on(Servers::Three(Ensemble::lent_with(&Plan::current())), Recipe::Curator)
    }

    fn on(mut servers: Servers, recipe: Recipe) -> Self {
        let url = servers.zookeeper().url();
        let url = recipe.option().map_or_else(|| url.clone(), |option| with(&url, option));
        let servers = Arc::new(Mutex::new(servers));
        Self { place: Place::new(), url, recipe, servers, disturbance: None, foreign: HashMap::new() }
    }

    /// One of three servers, with this happening to it after the given number of actions of clients.
    fn disturbed(moment: usize, act: fn(&mut ZooKeeper)) -> Self {
        let rig = Self::of_three();
        let servers = rig.servers.clone();
        let act = move || act(locked(&servers).zookeeper());
        Self { disturbance: Some(Rc::new(Disturbance::at(moment, act))), ..rig }
    }

    /// A session of the test, closed with its end.
    fn with_session<T>(&self, act: impl FnOnce(&mut Session) -> T) -> T {
        let mut session = locked(&self.servers).zookeeper().session();
        let result = act(&mut session);
        session.close().unwrap();
        result
    }

    /// Opens a session of another program.
    fn open_foreign(&self, length: Duration) -> Session {
        let mut servers = locked(&self.servers);
        let living = servers.zookeeper().leader();
        Session::open(servers.zookeeper().address(living), length).unwrap()
    }

    /// Creates the node of another program, and returns its path.
    fn join(&self, session: &mut Session, name: &str) -> String {
        session.create_all(&directory(name));
        let path = format!("{}/{}", directory(name), self.recipe.node());
        session.create(&path, "", Kind::EphemeralSequential).unwrap()
    }

    /// Notes the lock of another program.
    fn keep(&mut self, name: &str, mut session: Session, path: String) {
        let node = session.get(&path).map(|(_, stat)| (path, stat));
        self.foreign.insert(name.to_owned(), (session.id, node));
    }

    fn disturb(&self) {
        if let Some(disturbance) = &self.disturbance {
            disturbance.step_now();
        }
    }

    /// The nodes of all contenders in their order, and whether each is a waiter.
    fn contenders(&self, name: &str) -> Vec<(String, bool)> {
        self.disturb();
        self.with_session(|session| {
            let mut nodes = session.children(&directory(name)).unwrap();
            nodes.sort_by(|one, other| number(one).cmp(number(other)));
            let mut contenders = Vec::new();
            for node in nodes {
                let Some((data, stat)) = session.get(&format!("{}/{node}", directory(name))) else {
                    continue;
                };
                let value: serde_json::Value = serde_json::from_str(&data).unwrap_or_default();
                let is_waiting = value["line"].as_array().is_some_and(|line| !line.is_empty());
                // Its data is written before it is known whether it is the first.
                let is_undecided = stat.version == 0 && value.is_object() && !contenders.is_empty();
                contenders.push((node, is_waiting || is_undecided));
            }
            contenders
        })
    }
}

impl Rig for ZooKeeperRig {
    fn place(&self) -> &Place {
        &self.place
    }

    fn url(&self) -> String {
        self.url.clone()
    }

    fn exact_url(&self) -> String {
        with(&self.url, "prefix=")
    }

    fn url_with_secret(&self, secret: &str) -> Option<String> {
        Some(format!("zookeeper://somebody:{secret}@127.0.0.1:1,127.0.0.1:2/chroot?prefix=p"))
    }

    fn has_leases(&self) -> bool {
        false
    }

    /// The time-out of the session.
    fn lease(&self, ttl: Duration) -> Option<Duration> {
        Some(ttl)
    }

    /// With less, no time would be left to stop a command.
    fn short(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn has_turns_by_order(&self) -> bool {
        true
    }

    fn disturbance(&self) -> Option<Rc<Disturbance>> {
        self.disturbance.clone()
    }

    fn delete(&mut self, name: &str) {
        self.with_session(|session| {
            let nodes = session.children(&directory(name)).unwrap();
            assert!(!nodes.is_empty(), "{name} was not held");
            nodes.iter().for_each(|node| session.delete(&format!("{}/{node}", directory(name))).unwrap());
        });
    }

    /// At no moment is the lock free.
    fn replace(&mut self, name: &str) {
        let mut session = self.open_foreign(FOR_LONG);
        let replaced = session.children(&directory(name)).unwrap();
        let path = self.join(&mut session, name);
        replaced.iter().for_each(|node| session.delete(&format!("{}/{node}", directory(name))).unwrap());
        self.keep(name, session, path);
    }

    fn is_untouched(&self, name: &str) -> bool {
        let Some((_, Some((path, stat)))) = self.foreign.get(name) else { return false };
        self.with_session(|session| session.get(path)) == Some((String::new(), *stat))
    }

    /// As other programs do, if that succeeds at once.
    fn foreign_lock(&mut self, name: &str, lease: Option<Duration>) -> bool {
        let mut session = self.open_foreign(lease.unwrap_or(FOR_LONG));
        let path = self.join(&mut session, name);
        let nodes = session.children(&directory(name)).unwrap();
        let is_first = path.ends_with(nodes.iter().min_by_key(|node| number(node)).unwrap());
        if is_first {
            self.keep(name, session, path);
        } else {
            session.close().unwrap();
        }
        is_first
    }

    fn foreign_unlock(&mut self, name: &str) {
        let (id, _) = self.foreign.remove(name).unwrap();
        let mut servers = locked(&self.servers);
        let living = servers.zookeeper().leader();
        Session::expire(servers.zookeeper().address(living), id).unwrap();
    }

    fn waiters(&self, name: &str) -> usize {
        self.contenders(name).iter().filter(|(_, is_waiter)| *is_waiter).count()
    }

    fn traces(&self, name: &str) -> Vec<String> {
        self.contenders(name).into_iter().map(|(node, _)| node).collect()
    }

    fn restart(&mut self) {
        locked(&self.servers).zookeeper().restart_all();
    }

    fn wipe(&mut self) {
        let mut servers = locked(&self.servers);
        // A server that has lost its leader, or does not know yet that a session has ended, refuses for a moment.
        eventually(SOON, "an empty tree of nodes", || servers.zookeeper().wipe().ok());
    }

    fn own_items(&self, _: &[&str]) -> Vec<String> {
        const BESIDE: &str = "dlock#beside";
        let nodes = self.with_session(|session| session.children(&format!("/{BESIDE}")).unwrap());
        // What is below a node has no name.
        nodes.into_iter().map(|_| BESIDE.to_owned()).collect()
    }
}

super::list::every_check!(ZooKeeperRig::new);

/// A hand-off costs the server the same, however many clients wait. The figure includes what the former holder sends.
#[test]
fn waiters_that_are_not_next_cost_nothing() {
    let mut costs = Vec::new();
    for waiters in [1, 200] {
        let rig = ZooKeeperRig::new();
        let servers = rig.servers.clone();
        super::rig::prove(rig, async |rig: &mut dyn Rig| {
            let packets = || locked(&servers).zookeeper().figure(0, "packets_received");
            costs.push(super::crowds::ten_hand_offs(|| Client::new(rig, "x"), waiters, packets).await);
        });
    }
    // Heartbeats are counted as well. If all waiters were notified of each hand-off, it would be thousands.
    assert!(costs[0] <= 10 * 12 && costs[1] <= costs[0] + 50, "packets for 10 hand-offs: {costs:?}");
}

#[test]
fn killed_together_they_cost_the_longest_lease() {
    let check = super::crowds::killed_together_they_cost_the_longest_lease::<200>;
    super::rig::prove(ZooKeeperRig::new(), check);
}

mod recipe_kazoo {
    use super::{Recipe, ZooKeeperRig};

    fn rig() -> ZooKeeperRig {
        ZooKeeperRig::of(Recipe::Kazoo)
    }

    crate::stores::conformance::list::every_check!(rig; Foreign);
}

mod recipe_curator_rw {
    use super::{Recipe, ZooKeeperRig};

    fn rig() -> ZooKeeperRig {
        ZooKeeperRig::of(Recipe::CuratorRw)
    }

    crate::stores::conformance::list::every_check!(rig; Foreign);
}

mod of_version_3_9 {
    use super::ZooKeeperRig;

    crate::stores::conformance::list::every_check!(ZooKeeperRig::of_today; Request);
}

mod of_three_servers {
    use super::ZooKeeperRig;

    crate::stores::conformance::list::every_check!(ZooKeeperRig::of_three; Failover);
}

/// The leader dies during a check, and comes back.
mod dead_leader {
    use super::ZooKeeperRig;

    fn rig(moment: usize) -> ZooKeeperRig {
        ZooKeeperRig::disturbed(moment, |zookeeper| {
            let leader = zookeeper.leader();
            zookeeper.kill(leader);
            zookeeper.leader();
            zookeeper.restart(leader);
        })
    }

    crate::stores::conformance::disturbed_by_a_failover!(rig);
}

/// A server hangs during a check.
mod hung_server {
    use super::ZooKeeperRig;
    use std::time::Duration;

    fn rig(moment: usize) -> ZooKeeperRig {
        ZooKeeperRig::disturbed(moment, |zookeeper| {
            zookeeper.daemon(0).stop();
            std::thread::sleep(Duration::from_millis(1500));
            zookeeper.daemon(0).resume();
            zookeeper.leader();
        })
    }

    crate::stores::conformance::disturbed_by_a_failover!(rig);
}

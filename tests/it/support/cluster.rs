//! A Redis Cluster of three masters, optionally with one replica each.

use super::SOON;
use super::group;
use super::pool::{Group, Lent, lend};
use super::redis::{Options, Redis};
use super::resp::Value;
use super::tls::{Certificates, Flaw};
use super::wait::{eventually, until};
use std::time::Duration;
use tempfile::TempDir;

/// Number of masters.
const MASTERS: usize = 3;
/// Number of slots.
const SLOTS: usize = 16384;
/// Time limit until all nodes agree.
const FORMATION: Duration = Duration::from_secs(90);

/// Start options.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Whether each master has a replica: node 3 is that of node 0, and so on.
    pub replicas: bool,
    /// The password of all nodes.
    pub password: Option<String>,
    /// Whether the nodes use TLS.
    pub tls: bool,
    /// How long a node may be silent before it counts as down. The default is long enough that a busy machine causes no
    /// failover.
    pub node_timeout: Option<Duration>,
    /// Additional arguments of each node.
    pub args: Vec<String>,
}

/// Three nodes, or six with replicas.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Redis>,
    ids: Vec<String>,
    plan: Plan,
    certificates: Option<Certificates>,
    _directory: TempDir,
}

/// A slot being migrated from one node to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// The slot.
    pub slot: u16,
    /// The source node.
    pub from: usize,
    /// The target node.
    pub to: usize,
}

impl Cluster {
    /// An empty one from the pool, with three masters and default options.
    pub fn lent() -> Lent<Self> {
        lend()
    }

    /// Starts a cluster for one test only; node N has the Nth third of the slots.
    pub fn start_with(plan: Plan) -> Self {
        let directory = tempfile::Builder::new().prefix("it-cluster-").tempdir().expect("a directory");
        let certificates = plan.tls.then(|| Certificates::make(directory.path(), Flaw::None));
        let timeout = plan.node_timeout.unwrap_or(Duration::from_secs(60)).as_millis().to_string();
        let mut args = vec!["--cluster-node-timeout".to_owned(), timeout];
        args.extend(plan.args.iter().cloned());
        let options = Options {
            args,
            certificates: certificates.clone(),
            password: plan.password.clone(),
            clustered: true,
            ..Options::default()
        };
        let count = if plan.replicas { 2 * MASTERS } else { MASTERS };
        let nodes: Vec<Redis> = (0..count).map(|_| Redis::start_with(options.clone())).collect();
        let ids = nodes.iter().map(|node| node.command(&["CLUSTER", "MYID"]).text()).collect();
        let cluster = Self { nodes, ids, plan, certificates, _directory: directory };
        cluster.form();
        cluster
    }

    /// The URL with every node.
    pub fn url(&self) -> String {
        self.url_of(&(0..self.nodes.len()).collect::<Vec<_>>())
    }

    /// The URL with some of the nodes.
    pub fn url_of(&self, nodes: &[usize]) -> String {
        let ports: Vec<u16> = nodes.iter().map(|node| self.nodes[*node].port()).collect();
        let password = self.plan.password.as_deref();
        group::url("redis-cluster", &ports, "", password, self.certificates.as_ref())
    }

    /// Number of nodes, dead or alive.
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// One node.
    pub fn node(&self, node: usize) -> &Redis {
        &self.nodes[node]
    }

    /// One node, to be killed or restarted. After a restart it resumes its place, without keys, within two seconds.
    pub fn node_mut(&mut self, node: usize) -> &mut Redis {
        &mut self.nodes[node]
    }

    /// The certificates of all nodes.
    pub fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().expect("servers that speak TLS")
    }

    /// The slot of a key.
    #[track_caller]
    pub fn slot_of(&self, key: &str) -> u16 {
        let slot = self.a_living_node().command(&["CLUSTER", "KEYSLOT", key]).int();
        u16::try_from(slot).expect("a slot")
    }

    /// The node that owns a slot by its own view; waits until one does.
    #[track_caller]
    pub fn node_of_slot(&self, slot: u16) -> usize {
        let owns = |node: &Redis| node.is_up() && layout(node).is_some_and(|all| all.owns(slot));
        eventually(FORMATION, "a node that has the slot", || self.nodes.iter().position(owns))
    }

    /// The node that owns the slot of a key by its own view; waits until one does.
    #[track_caller]
    pub fn node_of(&self, key: &str) -> usize {
        self.node_of_slot(self.slot_of(key))
    }

    /// Runs one command on the node that has the key, also while its slot migrates.
    #[track_caller]
    pub fn command_at(&self, key: &str, words: &[&str]) -> Value {
        let mut node = self.node_of(key);
        let mut asking = false;
        for _ in 0..10 {
            let mut client = self.nodes[node].connect();
            if asking {
                client.command(&["ASKING"]);
            }
            let answer = client.command(words);
            let Value::Error(text) = &answer else { return answer };
            let mut parts = text.split(' ');
            asking = match parts.next() {
                Some("ASK") => true,
                Some("MOVED") => false,
                _ => return answer,
            };
            let port = parts.nth(1).and_then(|host| host.rsplit(':').next()?.parse::<u16>().ok());
            let is_meant = |node: &Redis| port.is_some_and(|port| node.has_port(port));
            node = self.nodes.iter().position(is_meant).expect("a node of ours");
        }
        panic!("{words:?}: sent from node to node without an end")
    }

    /// Runs the same command on each node that was not killed, in order.
    #[track_caller]
    pub fn command_on_all(&self, words: &[&str]) -> Vec<Value> {
        self.nodes.iter().filter(|node| node.is_up()).map(|node| node.command(words)).collect()
    }

    /// All keys, sorted; a key that is being migrated is listed once.
    #[track_caller]
    pub fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> =
            self.command_on_all(&["KEYS", "*"]).iter().flat_map(Value::texts).collect();
        keys.sort();
        keys.dedup();
        keys
    }

    /// Empties every node that was not killed.
    #[track_caller]
    pub fn wipe(&self) {
        self.command_on_all(&["FLUSHALL"]);
    }

    /// Starts the migration of a key's slot to another node: requests for missing keys are redirected there (ASK).
    #[track_caller]
    pub fn begin(&self, key: &str, to: usize) -> Move {
        let slot = self.slot_of(key);
        let moving = Move { slot, from: self.node_of_slot(slot), to };
        assert_ne!(moving.from, to, "it is there already");
        let slot = slot.to_string();
        self.set_slot(to, &[&slot, "IMPORTING", &self.ids[moving.from]]);
        self.set_slot(moving.from, &[&slot, "MIGRATING", &self.ids[to]]);
        moving
    }

    /// The keys of the slot that have not been migrated yet.
    #[track_caller]
    pub fn left(&self, moving: Move) -> Vec<String> {
        self.nodes[moving.from]
            .command(&["CLUSTER", "GETKEYSINSLOT", &moving.slot.to_string(), "1000"])
            .texts()
    }

    /// Migrates some keys, in one step.
    #[track_caller]
    pub fn migrate(&self, moving: Move, keys: &[&str]) {
        if keys.is_empty() {
            return;
        }
        let port = self.nodes[moving.to].port().to_string();
        let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "10000"];
        if let Some(password) = &self.plan.password {
            words.extend(["AUTH", password]);
        }
        words.push("KEYS");
        words.extend(keys);
        let answer = self.nodes[moving.from].command(&words);
        assert!(
            matches!(&answer, Value::Text(text) if text == "OK" || text == "NOKEY"),
            "{words:?}: {answer:?}"
        );
    }

    /// Migrates the remaining keys, and notifies every node of the new owner of the slot (MOVED).
    #[track_caller]
    pub fn finish(&self, moving: Move) {
        let slot = moving.slot.to_string();
        loop {
            let left = self.left(moving);
            self.migrate(moving, &left.iter().map(String::as_str).collect::<Vec<_>>());
            // Another client may have created a key in the meantime, and a slot with keys cannot be given up.
            let answer =
                self.nodes[moving.to].command(&["CLUSTER", "SETSLOT", &slot, "NODE", &self.ids[moving.to]]);
            assert_eq!(answer, Value::Text("OK".into()));
            let answer =
                self.nodes[moving.from].command(&["CLUSTER", "SETSLOT", &slot, "NODE", &self.ids[moving.to]]);
            match answer {
                Value::Error(text) if text.contains("still holds keys") => {}
                answer => break assert_eq!(answer, Value::Text("OK".into())),
            }
        }
        for node in (0..self.nodes.len()).filter(|node| self.leads(*node)) {
            self.set_slot(node, &[&slot, "NODE", &self.ids[moving.to]]);
        }
    }

    /// Migrates a key's slot with all its keys to another node.
    #[track_caller]
    pub fn move_slot(&self, key: &str, to: usize) {
        self.finish(self.begin(key, to));
    }

    /// Aborts a migration before any key was migrated.
    #[track_caller]
    pub fn abort(&self, moving: Move) {
        for node in [moving.from, moving.to] {
            self.set_slot(node, &[&moving.slot.to_string(), "STABLE"]);
        }
    }

    /// Waits until every node that was not killed reports that the cluster works and that all are in it.
    #[track_caller]
    pub fn await_agreement(&self) {
        until(FORMATION, "nodes that agree", || self.agree());
    }

    fn agree(&self) -> bool {
        let first = self.nodes.iter().find(|node| node.is_up()).and_then(layout);
        let known = |node: &Redis| {
            let info = node.try_connect().and_then(|mut client| client.try_command(&["CLUSTER", "INFO"]));
            let says = |info: &str, line: &str| info.lines().any(|one| one.trim_end() == line);
            let all = format!("cluster_known_nodes:{}", self.nodes.len());
            let works =
                matches!(&info, Ok(Value::Text(info)) if says(info, "cluster_state:ok") && says(info, &all));
            works
                && layout(node).map(|layout| layout.ranges)
                    == first.as_ref().map(|layout| layout.ranges.clone())
        };
        self.nodes.iter().filter(|node| node.is_up()).all(known)
    }

    /// Whether a node is alive and a master.
    fn leads(&self, node: usize) -> bool {
        let role = self.nodes[node].try_connect().and_then(|mut client| client.try_command(&["ROLE"]));
        matches!(role, Ok(Value::List(parts)) if parts[0] == Value::Text("master".into()))
    }

    /// What `redis-cli --cluster create` does, without its waits.
    fn form(&self) {
        for (number, node) in self.nodes.iter().enumerate() {
            if number < MASTERS {
                let (first, last) = third(number);
                // ADDSLOTSRANGE needs Redis 7.0.
                let slots: Vec<String> = (first..=last).map(|slot| slot.to_string()).collect();
                let words = ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str));
                assert_eq!(node.command(&words.collect::<Vec<_>>()), Value::Text("OK".into()));
            }
            let epoch = (number + 1).to_string();
            assert_eq!(node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]), Value::Text("OK".into()));
        }
        for node in &self.nodes[1..] {
            let (port, bus) = (node.port().to_string(), node.bus().to_string());
            let answer = self.nodes[0].command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
            assert_eq!(answer, Value::Text("OK".into()));
        }
        for (number, node) in self.nodes.iter().enumerate().skip(MASTERS) {
            until(SOON, "a replica's master", || {
                node.command(&["CLUSTER", "REPLICATE", &self.ids[number - MASTERS]])
                    == Value::Text("OK".into())
            });
        }
        self.await_agreement();
        if self.plan.replicas {
            let follows = |node: &Redis| {
                matches!(node.command(&["ROLE"]), Value::List(parts)
                    if parts.get(3) == Some(&Value::Text("connected".into())))
            };
            until(FORMATION, "replicas that follow", || self.nodes[MASTERS..].iter().all(follows));
        }
    }

    #[track_caller]
    fn set_slot(&self, node: usize, words: &[&str]) {
        let words: Vec<&str> = ["CLUSTER", "SETSLOT"].iter().chain(words).copied().collect();
        assert_eq!(self.nodes[node].command(&words), Value::Text("OK".into()), "{words:?}");
    }

    fn a_living_node(&self) -> &Redis {
        self.nodes.iter().find(|node| node.is_up()).expect("a node that lives")
    }
}

/// The slots of a node, the first and the last.
fn third(node: usize) -> (usize, usize) {
    (SLOTS * node / MASTERS, SLOTS * (node + 1) / MASTERS - 1)
}

/// The owners of the slots, as one node sees them.
struct Layout {
    /// Each node and its slots, as the server writes them; sorted.
    ranges: Vec<(String, Vec<String>)>,
    /// The entry of the node itself.
    own: Vec<String>,
}

impl Layout {
    /// Whether the queried node owns a slot.
    fn owns(&self, slot: u16) -> bool {
        self.own.iter().filter(|range| !range.starts_with('[')).any(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let number = |text: &str| text.parse::<u16>().expect("a slot");
            (number(first)..=number(last)).contains(&slot)
        })
    }
}

/// Parses the reply to CLUSTER NODES.
fn layout(node: &Redis) -> Option<Layout> {
    let answer = node.try_connect().and_then(|mut client| client.try_command(&["CLUSTER", "NODES"]));
    let Ok(Value::Text(text)) = answer else { return None };
    let (mut ranges, mut own) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let slots: Vec<String> = words.iter().skip(8).map(|&word| word.to_owned()).collect();
        if words.get(2)?.contains("myself") {
            own.clone_from(&slots);
        }
        ranges.push(((*words.first()?).to_owned(), slots));
    }
    ranges.sort();
    Some(Layout { ranges, own })
}

impl Group for Cluster {
    fn start() -> Self {
        Self::start_with(Plan::default())
    }

    fn renew(&mut self) -> bool {
        let is_as_formed = |(number, node): (usize, &Redis)| {
            let (first, last) = third(number);
            layout(node).is_some_and(|layout| layout.own == [format!("{first}-{last}")])
        };
        self.nodes.iter().all(Redis::is_up)
            && self.agree()
            && self.nodes.iter().enumerate().all(is_as_formed)
            && self.nodes.iter().all(|node| group::renew(node, &[]))
    }
}

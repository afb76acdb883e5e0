//! Masters that know nothing of each other, as Redlock wants them.

use super::group;
use super::pool::{Group, Lent, lend};
use super::redis::{Options, Redis};
use super::resp::Value;
use super::tls::{Certificates, Flaw};
use tempfile::TempDir;

/// Since when a node remembers.
pub const SINCE: &str = "dlock#since";

/// How to start them.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// How many; five if it is not said.
    pub count: Option<usize>,
    /// The password of all.
    pub password: Option<String>,
    /// Whether they speak TLS.
    pub tls: bool,
    /// More arguments for each.
    pub args: Vec<String>,
}

/// Five masters, or as many as were wanted.
#[derive(Debug)]
pub struct Masters {
    nodes: Vec<Redis>,
    plan: Plan,
    certificates: Option<Certificates>,
    _directory: TempDir,
}

impl Masters {
    /// Five plain ones out of the pool, empty.
    pub fn lent() -> Lent<Self> {
        lend()
    }

    /// Starts so many of a test's own.
    pub fn start_many(count: usize) -> Self {
        Self::start_with(Plan { count: Some(count), ..Plan::default() })
    }

    /// Starts some of a test's own.
    pub fn start_with(plan: Plan) -> Self {
        let directory = tempfile::Builder::new().prefix("it-masters-").tempdir().expect("a directory");
        let certificates = plan.tls.then(|| Certificates::make(directory.path(), Flaw::None));
        let options = Options {
            args: plan.args.clone(),
            certificates: certificates.clone(),
            password: plan.password.clone(),
            ..Options::default()
        };
        let nodes = (0..plan.count.unwrap_or(5)).map(|_| Redis::start_with(options.clone())).collect();
        Self { nodes, plan, certificates, _directory: directory }
    }

    /// The URL of all of them.
    pub fn url(&self) -> String {
        self.url_of(&(0..self.nodes.len()).collect::<Vec<_>>())
    }

    /// The URL of some of them, in this order.
    pub fn url_of(&self, nodes: &[usize]) -> String {
        let ports: Vec<u16> = nodes.iter().map(|node| self.nodes[*node].port()).collect();
        group::url("redlock", &ports, "/0", self.plan.password.as_deref(), self.certificates.as_ref())
    }

    /// How many there are, dead or alive.
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// How many are a majority.
    pub fn quorum(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    /// One of them, from 0 on.
    pub fn node(&self, node: usize) -> &Redis {
        &self.nodes[node]
    }

    /// One of them, from 0 on, to be killed or restarted: `save` it before if it shall remember.
    pub fn node_mut(&mut self, node: usize) -> &mut Redis {
        &mut self.nodes[node]
    }

    /// Those that were not killed.
    pub fn living(&self) -> impl Iterator<Item = &Redis> {
        self.nodes.iter().filter(|node| node.is_up())
    }

    /// Kills one; what it knew is lost.
    pub fn kill(&mut self, node: usize) {
        self.nodes[node].kill();
    }

    /// Kills one, or starts one that is dead, which knows nothing then.
    pub fn restart_empty(&mut self, node: usize) {
        self.nodes[node].restart();
    }

    /// Kills one, and starts it again with what it knew.
    pub fn restart(&mut self, node: usize) {
        self.nodes[node].save();
        self.nodes[node].restart();
    }

    /// Makes these, which live, ones that have known for very long what is held: they count at once, though others do not.
    #[track_caller]
    pub fn age(&self, nodes: &[usize]) {
        for node in nodes {
            let server = self.node(*node);
            let info = server.command(&["INFO", "server"]).text();
            let run = info.lines().find_map(|line| line.strip_prefix("run_id:")).expect("the id of a run");
            server.command(&["SET", SINCE, &format!("0 node{node} {run}")]);
        }
    }

    /// The same command on each that lives, in order.
    #[track_caller]
    pub fn command(&self, words: &[&str]) -> Vec<Value> {
        self.living().map(|node| node.command(words)).collect()
    }

    /// Empties each that lives.
    #[track_caller]
    pub fn wipe(&self) {
        self.command(&["FLUSHALL"]);
    }
}

impl Group for Masters {
    fn start() -> Self {
        Self::start_with(Plan::default())
    }

    fn renew(&mut self) -> bool {
        self.nodes.iter().all(|node| node.is_up() && group::renew(node, &[]))
    }
}

//! Independent masters, as Redlock needs them.

use super::group;
use super::pool::{Group, Lent, lend};
use super::redis::{Options, Redis};
use super::resp::Value;
use super::tls::{Certificates, Flaw};
use tempfile::TempDir;

/// A node's record of since when it has kept its data.
pub const SINCE: &str = "dlock#since";

/// Start options.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Number of masters, five by default.
    pub count: Option<usize>,
    /// The password of all masters.
    pub password: Option<String>,
    /// Whether the masters use TLS.
    pub tls: bool,
    /// Additional arguments of each.
    pub args: Vec<String>,
}

/// Five masters, or the requested number.
#[derive(Debug)]
pub struct Masters {
    nodes: Vec<Redis>,
    plan: Plan,
    certificates: Option<Certificates>,
    _directory: TempDir,
}

impl Masters {
    /// Five empty ones from the pool, with default options.
    pub fn lent() -> Lent<Self> {
        lend()
    }

    /// Starts this number of masters for one test only.
    pub fn start_many(count: usize) -> Self {
        Self::start_with(Plan { count: Some(count), ..Plan::default() })
    }

    /// Starts masters for one test only.
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

    /// Number of masters, dead or alive.
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// The size of a majority.
    pub fn quorum(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    /// One of them, counted from 0.
    pub fn node(&self, node: usize) -> &Redis {
        &self.nodes[node]
    }

    /// One of them, counted from 0, to be killed or restarted: `save` it before if it must keep its data.
    pub fn node_mut(&mut self, node: usize) -> &mut Redis {
        &mut self.nodes[node]
    }

    /// The masters that were not killed.
    pub fn living(&self) -> impl Iterator<Item = &Redis> {
        self.nodes.iter().filter(|node| node.is_up())
    }

    /// Kills one, which loses its data.
    pub fn kill(&mut self, node: usize) {
        self.nodes[node].kill();
    }

    /// Kills one if it is alive, and starts it again without data.
    pub fn restart_empty(&mut self, node: usize) {
        self.nodes[node].restart();
    }

    /// Kills one, and starts it again with its data.
    pub fn restart(&mut self, node: usize) {
        self.nodes[node].save();
        self.nodes[node].restart();
    }

    /// Ages the records of these live masters far enough that they vote at once, although others do not.
    #[track_caller]
    pub fn age(&self, nodes: &[usize]) {
        for node in nodes {
            let server = self.node(*node);
            let info = server.command(&["INFO", "server"]).text();
            let run = info.lines().find_map(|line| line.strip_prefix("run_id:")).expect("the id of a run");
            server.command(&["SET", SINCE, &format!("0 node{node} {run}")]);
        }
    }

    /// Runs the same command on each live one, in order.
    #[track_caller]
    pub fn command(&self, words: &[&str]) -> Vec<Value> {
        self.living().map(|node| node.command(words)).collect()
    }

    /// Empties each live one.
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

//! Real etcd servers: one member or three.

pub mod gateway;

use self::gateway::Gateway;
use super::SOON;
use super::daemon::{Daemon, Host};
use super::pool::{Group, Lent, lend_like};
use super::server::{await_no_clients, free_port, other_version};
use super::tls::Certificates;
use super::wait::{eventually, until};
use std::path::PathBuf;

/// Start options.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Whether there are three members, and not one.
    pub ensemble: bool,
    /// Additional arguments of each member.
    pub args: Vec<String>,
    /// Use TLS with these certificates, and another port without for the tests' own requests. Clients need no certificate,
    /// unless an argument names an authority for them.
    pub certificates: Option<Certificates>,
    /// A program other than this system's `etcd`.
    pub program: Option<PathBuf>,
    /// The hosts of the members: all on this one if there are none.
    pub hosts: Vec<Host>,
}

impl Plan {
    /// Members of today's version.
    pub fn current() -> Self {
        Self { program: Some(other_version("etcd-3.5")), ..Self::default() }
    }
}

/// The members of one cluster.
#[derive(Debug)]
pub struct Etcd {
    plan: Plan,
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    daemon: Daemon,
    /// The port for clients.
    port: u16,
}

/// The ports of a member.
struct Ports {
    host: Host,
    client: u16,
    /// The port for the tests' own requests.
    plain: u16,
    peer: u16,
}

impl Etcd {
    /// An empty one of a single member from the pool.
    pub fn lent() -> Lent<Self> {
        Self::lent_with(Plan::default())
    }

    /// One of a single member of this plan's version from the pool.
    pub fn lent_with(plan: Plan) -> Lent<Self> {
        lend_like(|etcd: &Self| etcd.plan.program == plan.program, || Self::start_with(plan.clone()))
    }

    /// Starts one with a single member, for one test only.
    pub fn start() -> Self {
        Self::start_with(Plan::default())
    }

    /// Starts one for one test only.
    pub fn start_with(plan: Plan) -> Self {
        // Another process may take a port between the check and a member's bind.
        for _ in 0..10 {
            let mut etcd = Self { members: Self::members(&plan), plan: plan.clone() };
            etcd.members.iter_mut().for_each(|member| member.daemon.launch());
            if (0..etcd.members.len()).all(|member| etcd.await_up(member)) {
                return etcd;
            }
        }
        panic!("etcd does not start")
    }

    fn members(plan: &Plan) -> Vec<Member> {
        let has_tls = plan.certificates.is_some();
        let port = |number: usize| {
            let (host, client) = (plan.hosts.get(number).cloned().unwrap_or_default(), free_port());
            Ports { host, client, plain: if has_tls { free_port() } else { client }, peer: free_port() }
        };
        let ports: Vec<Ports> = (0..if plan.ensemble { 3 } else { 1 }).map(port).collect();
        let http = |own: &Ports, port: u16| format!("http://{}:{port}", own.host.ip);
        let peers: Vec<String> =
            ports.iter().map(|own| format!("m{0}={1}", own.peer, http(own, own.peer))).collect();
        let member = |own: &Ports| {
            let directory = tempfile::Builder::new().prefix("it-etcd-").tempdir().expect("a directory");
            let mut clients = http(own, own.plain);
            let mut arguments = Vec::new();
            if let Some(files) = &plan.certificates {
                clients.push_str(&format!(",https://{}:{}", own.host.ip, own.client));
                for (option, file) in [("cert", &files.server), ("key", &files.server_key)] {
                    arguments.push(format!("--{option}-file={}", file.display()));
                }
            }
            // The shorter the election time-out, the shorter the shortest lease: 1 s with these.
            let (heartbeat, election) = if plan.ensemble { (50, 500) } else { (20, 200) };
            arguments.extend([
                format!("--name=m{}", own.peer),
                format!("--data-dir={}", directory.path().join("data").display()),
                format!("--listen-client-urls={clients}"),
                format!("--advertise-client-urls={clients}"),
                format!("--listen-peer-urls={}", http(own, own.peer)),
                format!("--initial-advertise-peer-urls={}", http(own, own.peer)),
                format!("--initial-cluster={}", peers.join(",")),
                format!("--heartbeat-interval={heartbeat}"),
                format!("--election-timeout={election}"),
            ]);
            arguments.extend(plan.args.iter().cloned());
            let program = plan.program.as_deref().unwrap_or("etcd".as_ref());
            let daemon = Daemon::new("etcd-server", program, arguments, (&own.host, own.plain), directory);
            Member { daemon, port: own.client }
        };
        ports.iter().map(member).collect()
    }

    /// The addresses of all members, as in a URL.
    pub fn hosts(&self) -> String {
        let hosts: Vec<String> = self
            .members
            .iter()
            .map(|member| format!("{}:{}", member.daemon.address().ip(), member.port))
            .collect();
        hosts.join(",")
    }

    /// Its URL.
    pub fn url(&self) -> String {
        match &self.plan.certificates {
            None => format!("etcd://{}", self.hosts()),
            Some(files) => format!("etcds://{}?ca_file={}", self.hosts(), files.ca.display()),
        }
    }

    /// The port of a member for clients.
    pub fn port(&self, member: usize) -> u16 {
        self.members[member].port
    }

    /// The number of members.
    pub fn count(&self) -> usize {
        self.members.len()
    }

    /// A client of one of the members.
    pub fn client_of(&self, member: usize) -> Gateway {
        Gateway::to(self.members[member].daemon.address())
    }

    /// A client of a member that was not killed.
    pub fn client(&self) -> Gateway {
        let living = self.members.iter().position(|member| member.daemon.is_up()).expect("a living member");
        self.client_of(living)
    }

    /// The process of a member, to be stopped and resumed.
    pub fn daemon(&self, member: usize) -> &Daemon {
        &self.members[member].daemon
    }

    /// Kills a member.
    pub fn kill(&mut self, member: usize) {
        self.members[member].daemon.kill();
    }

    /// Starts a member again, on the same ports and with its data, and waits until it serves requests.
    #[track_caller]
    pub fn restart(&mut self, member: usize) {
        self.kill(member);
        until(SOON, "the member's old ports", || {
            self.members[member].daemon.launch();
            self.await_up(member)
        });
    }

    /// Kills all members, and starts them again.
    #[track_caller]
    pub fn restart_all(&mut self) {
        (0..self.count()).for_each(|member| self.kill(member));
        self.members.iter_mut().for_each(|member| member.daemon.launch());
        assert!((0..self.count()).all(|member| self.await_up(member)), "an old port was taken");
    }

    /// The member that leads; waits until one does.
    #[track_caller]
    pub fn leader(&self) -> usize {
        let leads = |member: usize| {
            let member = &self.members[member];
            member.daemon.is_up() && Gateway::to(member.daemon.address()).is_leader().unwrap_or(false)
        };
        eventually(SOON, "a leader", || (0..self.count()).find(|member| leads(*member)))
    }

    /// Removes all keys and leases. False when it does not reply.
    pub fn wipe(&self) -> bool {
        self.client().try_wipe().is_ok()
    }

    /// Waits until a member serves requests that need a quorum. False when it has ended.
    fn await_up(&mut self, member: usize) -> bool {
        let daemon = &mut self.members[member].daemon;
        let client = Gateway::to(daemon.address());
        daemon.await_up(|| client.try_range("k", "").is_ok())
    }
}

impl Group for Etcd {
    fn start() -> Self {
        Self::start()
    }

    fn renew(&mut self) -> bool {
        let answers = |member: usize| self.client_of(member).try_range("k", "").is_ok();
        let is_idle = |member: &Member| await_no_clients(member.daemon.pid(), member.port);
        let is_up = |member: usize| self.daemon(member).is_up() && is_idle(&self.members[member]);
        (0..self.count()).all(|member| is_up(member) && answers(member)) && self.wipe()
    }
}

/// Three members from the pool.
#[derive(Debug)]
pub struct Ensemble(pub Etcd);

impl Ensemble {
    /// An empty one from the pool.
    pub fn lent() -> Lent<Self> {
        Self::lent_with(Plan::default())
    }

    /// An empty one of this plan's version from the pool.
    pub fn lent_with(plan: Plan) -> Lent<Self> {
        let plan = Plan { ensemble: true, ..plan };
        lend_like(
            |group: &Self| group.0.plan.program == plan.program,
            || Self(Etcd::start_with(plan.clone())),
        )
    }
}

impl Group for Ensemble {
    fn start() -> Self {
        Self(Etcd::start_with(Plan { ensemble: true, ..Plan::default() }))
    }

    fn renew(&mut self) -> bool {
        self.0.renew()
    }
}

//! Real ZooKeeper servers: a single one, or an ensemble of three.

pub mod cut_off;
pub mod session;

use self::session::Session;
use super::SOON;
use super::daemon::{Daemon, Host};
use super::pool::{Group, Lent, lend_like};
use super::server::{free_port, other_version};
use super::tls::Certificates;
use super::wait::{eventually, until};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A virtual machine that starts in 0.4 s and needs little memory.
const JAVA: [&str; 6] = [
    "-Xmx128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dzookeeper.forceSync=no",
    // In milliseconds: a vote that is lost is repeated soon, and not after up to a minute.
    "-Dzookeeper.fastleader.maxNotificationInterval=500",
    "-Dzookeeper.4lw.commands.whitelist=*",
];
/// With the two parts of Netty that Debian's package depends on but does not name: servers with TLS need them.
const CLASSES: &str = "/etc/zookeeper/conf:/usr/share/java/zookeeper.jar:\
                       /usr/share/java/netty-codec.jar:/usr/share/java/netty-resolver.jar";
/// The granularity of the ends of sessions.
const TICK: Duration = Duration::from_millis(100);
/// A session that no test outlasts.
const LONG: Duration = Duration::from_secs(600);
/// How long three virtual machines may take to elect a leader on a busy machine.
const ELECTION: Duration = Duration::from_secs(120);

/// Start options.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Whether there are three servers, and not one.
    pub ensemble: bool,
    /// Additional lines of the configuration.
    pub lines: Vec<String>,
    /// The hosts of the servers: all on this one if there are none.
    pub hosts: Vec<Host>,
    /// Use TLS with these certificates on a port of its own. Clients need no certificate, unless a line says so.
    pub certificates: Option<Certificates>,
    /// A program that starts a virtual machine with the classes of another version than this system's.
    pub program: Option<PathBuf>,
}

impl Plan {
    /// Servers of today's version.
    pub fn current() -> Self {
        Self { program: Some(other_version("zookeeper-3.9")), ..Self::default() }
    }
}

/// Servers with the same data.
#[derive(Debug)]
pub struct ZooKeeper {
    members: Vec<Daemon>,
    /// The ports with TLS, if there are any.
    secure: Vec<u16>,
    /// That of the plan.
    program: Option<PathBuf>,
}

/// The ports of a server.
struct Ports {
    host: Host,
    client: u16,
    secure: Option<u16>,
    peer: u16,
    election: u16,
}

impl ZooKeeper {
    /// An empty single server from the pool.
    pub fn lent() -> Lent<Self> {
        Self::lent_with(&Plan::default())
    }

    /// An empty single server of this plan's version from the pool.
    pub fn lent_with(plan: &Plan) -> Lent<Self> {
        lend_like(|zookeeper: &Self| zookeeper.program == plan.program, || Self::start_with(plan))
    }

    /// Starts a single server, for one test only.
    pub fn start() -> Self {
        Self::start_with(&Plan::default())
    }

    /// Starts servers for one test only.
    pub fn start_with(plan: &Plan) -> Self {
        // Another process may take a port between the check and a server's bind.
        for _ in 0..10 {
            let ports = ports(plan);
            let secure = ports.iter().filter_map(|own| own.secure).collect();
            let mut zookeeper =
                Self { members: members(plan, &ports), secure, program: plan.program.clone() };
            zookeeper.members.iter_mut().for_each(Daemon::launch);
            if (0..zookeeper.count()).all(|member| zookeeper.await_up(member)) {
                return zookeeper;
            }
        }
        panic!("ZooKeeper does not start")
    }

    /// The addresses of all servers, as in a URL.
    pub fn hosts(&self) -> String {
        let hosts: Vec<String> = self.members.iter().map(|member| member.address().to_string()).collect();
        hosts.join(",")
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("zookeeper://{}", self.hosts())
    }

    /// The address of a server.
    pub fn address(&self, member: usize) -> SocketAddr {
        self.members[member].address()
    }

    /// The port of a server for clients.
    pub fn port(&self, member: usize) -> u16 {
        self.address(member).port()
    }

    /// The port of a server for clients with TLS, if the plan has certificates.
    pub fn secure_port(&self, member: usize) -> u16 {
        self.secure[member]
    }

    /// The number of servers.
    pub fn count(&self) -> usize {
        self.members.len()
    }

    /// A session of the test on one of the servers. It ends by itself only after the test.
    #[track_caller]
    pub fn session_on(&self, member: usize) -> Session {
        Session::open(self.address(member), LONG).expect("a session")
    }

    /// A session of the test on a server that was not killed.
    #[track_caller]
    pub fn session(&self) -> Session {
        self.session_on(self.members.iter().position(Daemon::is_up).expect("a living server"))
    }

    /// The process of a server, to be stopped and resumed.
    pub fn daemon(&self, member: usize) -> &Daemon {
        &self.members[member]
    }

    /// Kills a server.
    pub fn kill(&mut self, member: usize) {
        self.members[member].kill();
    }

    /// Starts a server again, on the same ports and with its data, and waits until it serves requests.
    #[track_caller]
    pub fn restart(&mut self, member: usize) {
        self.kill(member);
        until(SOON, "the server's old ports", || {
            self.members[member].launch();
            self.await_up(member)
        });
    }

    /// Kills all servers, and starts them again.
    #[track_caller]
    pub fn restart_all(&mut self) {
        (0..self.count()).for_each(|member| self.kill(member));
        self.members.iter_mut().for_each(Daemon::launch);
        assert!((0..self.count()).all(|member| self.await_up(member)), "an old port was taken");
    }

    /// The server that leads, or the only one; waits until one does.
    #[track_caller]
    pub fn leader(&self) -> usize {
        let leads = |member: &Daemon| {
            let leads = |reply: String| reply.contains("Mode: leader") || reply.contains("Mode: standalone");
            member.is_up() && ask(member.address(), "srvr").is_ok_and(leads)
        };
        eventually(ELECTION, "a leader", || self.members.iter().position(leads))
    }

    /// The ids of the sessions that have ephemeral nodes, or that are connected to this server.
    pub fn sessions(&self, member: usize) -> Vec<i64> {
        let reply = ask(self.address(member), "cons").unwrap_or_default();
        let id = |line: &str| line.split_once("sid=0x")?.1.split(',').next().map(str::to_owned);
        let ids = reply.lines().filter_map(id);
        ids.map(|id| u64::from_str_radix(&id, 16).expect("an id").cast_signed()).collect()
    }

    /// A figure of a server, such as `packets_received`.
    #[track_caller]
    pub fn figure(&self, member: usize, name: &str) -> u64 {
        let reply = ask(self.address(member), "mntr").expect("a reply");
        let value =
            reply.lines().find_map(|line| line.strip_prefix("zk_")?.strip_prefix(name)?.strip_prefix('\t'));
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name}: {reply}"))
    }

    /// Removes all nodes.
    ///
    /// # Errors
    /// No server is up, or one refused.
    pub fn wipe(&self) -> std::io::Result<()> {
        let living = self.members.iter().position(Daemon::is_up).ok_or(std::io::ErrorKind::NotConnected)?;
        let mut session = Session::open(self.address(living), LONG)?;
        for node in session.children("/")?.iter().filter(|node| *node != "zookeeper") {
            session.delete_all(&format!("/{node}"))?;
        }
        session.close()
    }

    /// Waits until a server serves requests. False when it has ended.
    fn await_up(&mut self, member: usize) -> bool {
        let address = self.address(member);
        // A server never serves a connection that it accepted too early.
        let mut patience = Duration::from_millis(50);
        // The port with TLS is opened last.
        let secure = self.secure.get(member).map(|port| SocketAddr::new(address.ip(), *port));
        self.members[member].await_up(|| {
            patience = (patience * 5 / 4).min(SOON);
            Session::open_within(address, LONG, patience).is_ok_and(|session| session.close().is_ok())
                && secure.is_none_or(|address| TcpStream::connect(address).is_ok())
        })
    }
}

fn ports(plan: &Plan) -> Vec<Ports> {
    let port = |number: usize| {
        let host = plan.hosts.get(number).cloned().unwrap_or_default();
        let secure = plan.certificates.is_some().then(free_port);
        Ports { host, client: free_port(), secure, peer: free_port(), election: free_port() }
    };
    (0..if plan.ensemble { 3 } else { 1 }).map(port).collect()
}

fn members(plan: &Plan, ports: &[Ports]) -> Vec<Daemon> {
    let member = |(number, own): (usize, &Ports)| {
        let directory = tempfile::Builder::new().prefix("it-zookeeper-").tempdir().expect("a directory");
        let mut lines = vec![
            format!("tickTime={}", TICK.as_millis()),
            format!("minSessionTimeout={}", TICK.as_millis()),
            "maxSessionTimeout=86400000".to_owned(),
            // In ticks: a busy machine ends no connection between servers. One that was elected by a server that has
            // died since takes part in no other election before the first of them.
            "initLimit=50".to_owned(),
            "syncLimit=100".to_owned(),
            "maxClientCnxns=0".to_owned(),
            "admin.enableServer=false".to_owned(),
            format!("clientPortAddress={}", own.host.ip),
            format!("clientPort={}", own.client),
            format!("dataDir={}", directory.path().display()),
        ];
        if plan.ensemble {
            let server = |(number, port): (usize, &Ports)| {
                format!("server.{}={}:{}:{}", number + 1, port.host.ip, port.peer, port.election)
            };
            lines.extend(ports.iter().enumerate().map(server));
            std::fs::write(directory.path().join("myid"), (number + 1).to_string()).expect("a file");
        }
        if let Some((files, port)) = plan.certificates.as_ref().zip(own.secure) {
            let keystore = directory.path().join("keystore.pem");
            let parts = [&files.server_key, &files.server].map(|file| super::place::read(file));
            std::fs::write(&keystore, parts.concat()).expect("a file");
            lines.extend([
                "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory".to_owned(),
                format!("secureClientPortAddress={}", own.host.ip),
                format!("secureClientPort={port}"),
                format!("ssl.keyStore.location={}", keystore.display()),
                format!("ssl.trustStore.location={}", files.ca.display()),
                "ssl.clientAuth=none".to_owned(),
            ]);
        }
        lines.extend(plan.lines.iter().cloned());
        let configuration = directory.path().join("zoo.cfg");
        std::fs::write(&configuration, lines.join("\n")).expect("a file");
        let mut arguments: Vec<String> = JAVA.map(str::to_owned).to_vec();
        if plan.program.is_none() {
            arguments.extend(["-cp", CLASSES].map(str::to_owned));
        }
        arguments.push("org.apache.zookeeper.server.quorum.QuorumPeerMain".to_owned());
        arguments.push(configuration.display().to_string());
        let program = plan.program.as_deref().unwrap_or("java".as_ref());
        Daemon::new("zookeeper", program, arguments, (&own.host, own.client), directory)
    };
    ports.iter().enumerate().map(member).collect()
}

/// Sends one of the commands of four letters.
fn ask(address: SocketAddr, word: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(word.as_bytes())?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    Ok(reply)
}

/// How long a client may still be connected after its process has ended.
const GOING: Duration = Duration::from_secs(1);

/// Whether a server has no client, or will have none soon.
fn await_no_clients(member: &Daemon) -> bool {
    let until = Instant::now() + GOING;
    let has_clients = || {
        // One line is about the connection of this request.
        let lines = ask(member.address(), "cons")
            .map(|reply| reply.lines().filter(|line| line.contains("/127.")).count());
        lines.is_ok_and(|lines| lines > 1)
    };
    while has_clients() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(3));
    }
    true
}

impl Group for ZooKeeper {
    fn start() -> Self {
        Self::start()
    }

    fn renew(&mut self) -> bool {
        let is_idle = |member: &Daemon| member.is_up() && await_no_clients(member);
        self.members.iter().all(is_idle) && self.wipe().is_ok()
    }
}

/// Three servers from the pool.
#[derive(Debug)]
pub struct Ensemble(pub ZooKeeper);

impl Ensemble {
    /// Empty ones from the pool.
    pub fn lent() -> Lent<Self> {
        Self::lent_with(&Plan::default())
    }

    /// Empty ones of this plan's version from the pool.
    pub fn lent_with(plan: &Plan) -> Lent<Self> {
        let plan = Plan { ensemble: true, ..plan.clone() };
        lend_like(|group: &Self| group.0.program == plan.program, || Self(ZooKeeper::start_with(&plan)))
    }
}

impl Group for Ensemble {
    fn start() -> Self {
        Self(ZooKeeper::start_with(&Plan { ensemble: true, ..Plan::default() }))
    }

    fn renew(&mut self) -> bool {
        self.0.renew()
    }
}

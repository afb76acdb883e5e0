//! A master, its two replicas, and three sentinels that monitor them.

pub mod process;

use self::process::{Sentinel, Settings};
use super::SOON;
use super::group;
use super::pool::{Group, Lent, lend};
use super::redis::{Options, Redis};
use super::resp::Value;
use super::server::free_port;
use super::tls::{Certificates, Flaw};
use super::wait::{eventually, until};
use std::time::Duration;
use tempfile::TempDir;

/// The name of the service.
pub const SERVICE: &str = "locks";
/// Number of servers, and of sentinels.
const COUNT: usize = 3;
/// How long the master may be silent before it counts as down: a busy machine causes no failover.
const PATIENCE: Duration = Duration::from_secs(60);
/// The same in tests that stop the master.
const IMPATIENCE: Duration = Duration::from_secs(1);
/// Time limit of a failover.
const FAIL_OVER: Duration = Duration::from_secs(90);

/// Start options.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// The password of the servers.
    pub password: Option<String>,
    /// The password of the sentinels.
    pub sentinel_password: Option<String>,
    /// Whether all of them use TLS.
    pub tls: bool,
    /// Additional arguments of each server.
    pub args: Vec<String>,
    /// Additional lines of the configuration of each sentinel.
    pub sentinel_lines: Vec<String>,
}

/// Six processes.
#[derive(Debug)]
pub struct Sentinels {
    servers: Vec<Redis>,
    sentinels: Vec<Sentinel>,
    plan: Plan,
    certificates: Option<Certificates>,
    _directory: TempDir,
}

impl Sentinels {
    /// Empty ones from the pool with default options. Any server may be the master.
    pub fn lent() -> Lent<Self> {
        lend()
    }

    /// Starts them for one test only; server 0 is the master.
    pub fn start_with(plan: Plan) -> Self {
        let directory = tempfile::Builder::new().prefix("it-sentinels-").tempdir().expect("a directory");
        let certificates = plan.tls.then(|| Certificates::make(directory.path(), Flaw::None));
        // Otherwise each replica waits for others for five seconds.
        let mut args: Vec<String> = ["--repl-diskless-sync-delay", "0"].map(str::to_owned).to_vec();
        args.extend(plan.args.iter().cloned());
        let options = Options {
            args,
            certificates: certificates.clone(),
            password: plan.password.clone(),
            ..Options::default()
        };
        let servers: Vec<Redis> = (0..COUNT).map(|_| Redis::start_with(options.clone())).collect();
        let mut group = Self { servers, sentinels: Vec::new(), plan, certificates, _directory: directory };
        for replica in 1..COUNT {
            group.follow(replica, 0);
        }
        // Another process may take a port between the check and a sentinel's bind.
        for _ in 0..10 {
            group.sentinels = group.start_sentinels();
            if group.sentinels.len() == COUNT {
                group.shorten_intervals();
                group.await_agreement();
                return group;
            }
        }
        panic!("the sentinels do not start");
    }

    /// The URL: the sentinels and the service.
    pub fn url(&self) -> String {
        let ports: Vec<u16> = self.sentinels.iter().map(Sentinel::port).collect();
        let path = format!("/{SERVICE}/0");
        group::url("redis-sentinel", &ports, &path, self.plan.password.as_deref(), self.certificates.as_ref())
    }

    /// One of the servers.
    pub fn server(&self, server: usize) -> &Redis {
        &self.servers[server]
    }

    /// One of the servers, to be killed or restarted.
    pub fn server_mut(&mut self, server: usize) -> &mut Redis {
        &mut self.servers[server]
    }

    /// One of the sentinels.
    pub fn sentinel(&self, sentinel: usize) -> &Sentinel {
        &self.sentinels[sentinel]
    }

    /// One of the sentinels, to be killed or restarted.
    pub fn sentinel_mut(&mut self, sentinel: usize) -> &mut Sentinel {
        &mut self.sentinels[sentinel]
    }

    /// The certificates of all processes.
    pub fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().expect("servers that speak TLS")
    }

    /// The master that the live sentinels agree on; waits until they do.
    #[track_caller]
    pub fn master_number(&self) -> usize {
        eventually(FAIL_OVER, "sentinels that agree on a master", || self.agreed())
    }

    /// The master that the live sentinels agree on.
    #[track_caller]
    pub fn master(&self) -> &Redis {
        &self.servers[self.master_number()]
    }

    /// The other servers that are alive.
    #[track_caller]
    pub fn replicas(&self) -> Vec<&Redis> {
        let master = self.master_number();
        let others = self.servers.iter().enumerate().filter(|(number, _)| *number != master);
        others.map(|(_, server)| server).filter(|server| server.is_up()).collect()
    }

    /// Runs one command on the master.
    #[track_caller]
    pub fn command(&self, words: &[&str]) -> Value {
        self.master().command(words)
    }

    /// Waits until the replicas have all data that the master has now.
    #[track_caller]
    pub fn await_replicas(&self) {
        let replicas = self.replicas().len().to_string();
        let mut client = self.master().connect();
        // WAIT covers the writes that were sent before on the same connection.
        client.command(&["SET", "replicated", "1"]);
        until(SOON, "the replicas", || client.command(&["WAIT", &replicas, "100"]).text() == replicas);
        client.command(&["DEL", "replicated"]);
        until(SOON, "the replicas", || client.command(&["WAIT", &replicas, "100"]).text() == replicas);
    }

    /// Makes the sentinels promote a replica although the master is alive, as an operator does; the former master
    /// becomes a replica and closes its connections. Returns when the service is healthy again.
    #[track_caller]
    pub fn fail_over(&self) {
        let before = self.master_number();
        self.await_replicas();
        let asked = self.sentinels.iter().find(|sentinel| sentinel.is_up()).expect("a sentinel");
        until(FAIL_OVER, "another master", || {
            // It is refused before the sentinels have inspected the replicas, and on a busy machine it may be aborted.
            let _ = asked.command(&["SENTINEL", "FAILOVER", SERVICE]);
            let under_way = || value_of(asked, "flags").is_some_and(|flags| flags.contains("failover"));
            let promoted = || self.agreed().is_some_and(|master| master != before && self.leads(master));
            (0..50).any(|_| promoted() || pause())
                || (0..1000).take_while(|_| under_way()).any(|_| promoted() || pause())
        });
        self.await_agreement();
    }

    /// Kills the master, and waits until the sentinels have promoted a replica. Data that was not replicated is lost.
    /// Returns the number of the dead one, which may be restarted: it becomes a replica then.
    #[track_caller]
    pub fn crash(&mut self) -> usize {
        let dead = self.master_number();
        self.set_down_after(IMPATIENCE);
        self.servers[dead].kill();
        self.await_another_master(dead);
        self.set_down_after(PATIENCE);
        self.await_agreement();
        dead
    }

    /// Starts a server again, empty, as a replica of the current master.
    #[track_caller]
    pub fn restart_as_replica(&mut self, server: usize) {
        self.servers[server].restart();
        let master = self.master_number();
        self.follow(server, master);
        self.await_agreement();
    }

    /// Waits until the live sentinels agree on a master other than this one, and it accepts writes.
    #[track_caller]
    pub fn await_another_master(&self, than: usize) {
        until(FAIL_OVER, "another master", || {
            self.agreed().is_some_and(|master| master != than && self.leads(master))
        });
    }

    /// Waits until the service is healthy: the live sentinels agree on a master and know each other, and the other live
    /// servers are its replicas and have its data.
    #[track_caller]
    pub fn await_agreement(&self) {
        until(FAIL_OVER, "sentinels that agree, and replicas that follow", || self.is_healthy());
    }

    /// How long the master may be silent before it counts as down, 60 s by default.
    #[track_caller]
    pub fn set_down_after(&self, silence: Duration) {
        let ms = silence.as_millis().to_string();
        for sentinel in self.sentinels.iter().filter(|sentinel| sentinel.is_up()) {
            sentinel.command(&["SENTINEL", "SET", SERVICE, "down-after-milliseconds", &ms]);
        }
    }

    /// Starts the sentinels, which know each other already: fewer than requested if a port was taken.
    fn start_sentinels(&self) -> Vec<Sentinel> {
        let names: Vec<(u16, String)> =
            (0..COUNT).map(|_| free_port()).map(|port| (port, format!("{port:0>40}"))).collect();
        let start = |(port, name): &(u16, String)| {
            let mut lines = vec![
                format!("sentinel myid {name}"),
                format!("sentinel monitor {SERVICE} 127.0.0.1 {} 2", self.servers[0].port()),
                format!("sentinel down-after-milliseconds {SERVICE} {}", PATIENCE.as_millis()),
                format!("sentinel failover-timeout {SERVICE} 3000"),
                format!("sentinel parallel-syncs {SERVICE} 2"),
            ];
            lines.extend(
                self.servers[1..]
                    .iter()
                    .map(|server| format!("sentinel known-replica {SERVICE} 127.0.0.1 {}", server.port())),
            );
            let others = names.iter().filter(|(other, _)| other != port);
            lines.extend(
                others.map(|(other, name)| {
                    format!("sentinel known-sentinel {SERVICE} 127.0.0.1 {other} {name}")
                }),
            );
            lines.extend(
                self.plan.password.iter().map(|password| format!("sentinel auth-pass {SERVICE} {password}")),
            );
            lines.extend(self.plan.sentinel_lines.iter().cloned());
            let side_door = self.certificates.is_some().then(free_port);
            let password = self.plan.sentinel_password.clone();
            Sentinel::start(Settings { port: *port, side_door, password, lines }, self.certificates.as_ref())
        };
        names.iter().map_while(start).collect()
    }

    /// Makes the sentinels inspect and report at shorter intervals than seconds, where that can be set (Redis 7.0).
    fn shorten_intervals(&self) {
        for sentinel in &self.sentinels {
            for (what, ms) in [
                // A replica without a report for three times as long is not promoted.
                ("info-period", "1000"),
                ("ask-period", "300"),
                ("publish-period", "300"),
                // On a busy machine they would otherwise assume a clock jump, and do nothing for 30 s.
                ("tilt-trigger", "60000"),
                ("tilt-period", "1000"),
            ] {
                sentinel.command(&["SENTINEL", "DEBUG", what, ms]);
            }
        }
    }

    fn follow(&self, server: usize, master: usize) {
        let port = self.servers[master].port().to_string();
        self.servers[server].command(&["REPLICAOF", "127.0.0.1", &port]);
    }

    /// The server that every live sentinel names as the master.
    fn agreed(&self) -> Option<usize> {
        let living = self.sentinels.iter().filter(|sentinel| sentinel.is_up());
        let mut named: Vec<Option<usize>> = living.map(|sentinel| self.named_by(sentinel)).collect();
        named.dedup();
        match named[..] {
            [master] => master,
            _ => None,
        }
    }

    fn named_by(&self, sentinel: &Sentinel) -> Option<usize> {
        let answer = sentinel.try_command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE]).ok()?;
        let Value::List(parts) = answer else { return None };
        let port: u16 = parts.get(1)?.text().parse().ok()?;
        self.servers.iter().position(|server| server.port() == port)
    }

    /// Whether a server is a master with the expected number of replicas.
    fn leads(&self, server: usize) -> bool {
        let role = self.servers[server].try_connect().and_then(|mut client| client.try_command(&["ROLE"]));
        matches!(role, Ok(Value::List(parts)) if parts[0] == Value::Text("master".into()))
    }

    fn is_healthy(&self) -> bool {
        let Some(master) = self.agreed().filter(|master| self.leads(*master)) else { return false };
        let port = i64::from(self.servers[master].port());
        let follows = |server: &Redis| {
            let role = server.try_connect().and_then(|mut client| client.try_command(&["ROLE"]));
            matches!(role, Ok(Value::List(parts))
                if parts.get(2) == Some(&Value::Int(port)) && parts.get(3) == Some(&Value::Text("connected".into())))
        };
        let others = self.servers.iter().enumerate().filter(|(number, _)| *number != master);
        others.map(|(_, server)| server).filter(|server| server.is_up()).all(follows)
            && self
                .sentinels
                .iter()
                .filter(|sentinel| sentinel.is_up())
                .all(|sentinel| self.is_calm(sentinel))
    }

    /// Whether a sentinel sees a healthy service, and is not about to change anything.
    fn is_calm(&self, sentinel: &Sentinel) -> bool {
        let quorum = sentinel.try_command(&["SENTINEL", "CKQUORUM", SERVICE]);
        let is = |name: &str, expected: &str| value_of(sentinel, name).as_deref() == Some(expected);
        is("flags", "master")
            && is("num-slaves", "2")
            && is("num-other-sentinels", "2")
            && matches!(quorum, Ok(Value::Text(text)) if text.starts_with("OK"))
    }
}

/// One field of a sentinel's description of the master.
fn value_of(sentinel: &Sentinel, name: &str) -> Option<String> {
    let Ok(Value::List(words)) = sentinel.try_command(&["SENTINEL", "MASTER", SERVICE]) else { return None };
    let at = words.iter().position(|word| *word == Value::Text(name.into()));
    at.and_then(|at| words.get(at + 1)).map(Value::text)
}

/// A pause before the next check.
fn pause() -> bool {
    std::thread::sleep(Duration::from_millis(10));
    false
}

impl Group for Sentinels {
    fn start() -> Self {
        Self::start_with(Plan::default())
    }

    fn renew(&mut self) -> bool {
        let all_up = self.servers.iter().all(Redis::is_up) && self.sentinels.iter().all(Sentinel::is_up);
        if !all_up || !self.is_healthy() {
            return false;
        }
        let is_renewed = group::renew(self.master(), &["sentinel-"]);
        // The replicas must have this before the next test finds old data after a failover.
        is_renewed
            && self
                .master()
                .try_connect()
                .and_then(|mut client| client.try_command(&["WAIT", "2", "2000"]))
                .is_ok_and(|answer| answer == Value::Int(2))
    }
}

//! A master, its two replicas, and three sentinels that watch over them.

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

/// What the sentinels call them.
pub const SERVICE: &str = "locks";
/// How many servers, and how many sentinels.
const COUNT: usize = 3;
/// How long the master may be silent until it is thought to be down: no busy machine makes a fail-over that no test wants.
const PATIENCE: Duration = Duration::from_secs(60);
/// The same in a test that does away with the master.
const IMPATIENCE: Duration = Duration::from_secs(1);
/// What a fail-over may take.
const FAIL_OVER: Duration = Duration::from_secs(90);

/// How to start them.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// The password of the servers.
    pub password: Option<String>,
    /// The password of the sentinels.
    pub sentinel_password: Option<String>,
    /// Whether all of them speak TLS.
    pub tls: bool,
    /// More arguments for each server.
    pub args: Vec<String>,
    /// More lines of the configuration of each sentinel.
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
    /// Plain ones out of the pool, empty. Any server may be the master.
    pub fn lent() -> Lent<Self> {
        lend()
    }

    /// Starts some of a test's own; server 0 is the master.
    pub fn start_with(plan: Plan) -> Self {
        let directory = tempfile::Builder::new().prefix("it-sentinels-").tempdir().expect("a directory");
        let certificates = plan.tls.then(|| Certificates::make(directory.path(), Flaw::None));
        // Otherwise each replica would wait for others for five seconds.
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
        // Somebody else may take a port between our look and a sentinel's bind.
        for _ in 0..10 {
            group.sentinels = group.watch();
            if group.sentinels.len() == COUNT {
                group.hurry();
                group.await_agreement();
                return group;
            }
        }
        panic!("the sentinels do not start");
    }

    /// The URL: the sentinels, and the service.
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

    /// The certificates that all were started with.
    pub fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().expect("servers that speak TLS")
    }

    /// Which server is the master, as the living sentinels agree; waits until they do.
    #[track_caller]
    pub fn master_number(&self) -> usize {
        eventually(FAIL_OVER, "sentinels that agree on a master", || self.agreed())
    }

    /// The master, as the living sentinels agree.
    #[track_caller]
    pub fn master(&self) -> &Redis {
        &self.servers[self.master_number()]
    }

    /// The other servers that were not killed.
    #[track_caller]
    pub fn replicas(&self) -> Vec<&Redis> {
        let master = self.master_number();
        let others = self.servers.iter().enumerate().filter(|(number, _)| *number != master);
        others.map(|(_, server)| server).filter(|server| server.is_up()).collect()
    }

    /// One command on the master.
    #[track_caller]
    pub fn command(&self, words: &[&str]) -> Value {
        self.master().command(words)
    }

    /// Waits until the replicas have all that the master has now.
    #[track_caller]
    pub fn await_replicas(&self) {
        let replicas = self.replicas().len().to_string();
        let mut client = self.master().connect();
        // Of what was written before on the same connection it is known how far it came.
        client.command(&["SET", "replicated", "1"]);
        until(SOON, "the replicas", || client.command(&["WAIT", &replicas, "100"]).text() == replicas);
        client.command(&["DEL", "replicated"]);
        until(SOON, "the replicas", || client.command(&["WAIT", &replicas, "100"]).text() == replicas);
    }

    /// Has the sentinels promote a replica although the master lives, as an operator does; it becomes a replica, and whoever
    /// is connected to it loses the connection. Returns when all is as it should be again.
    #[track_caller]
    pub fn fail_over(&self) {
        let before = self.master_number();
        self.await_replicas();
        let asked = self.sentinels.iter().find(|sentinel| sentinel.is_up()).expect("a sentinel");
        until(FAIL_OVER, "another master", || {
            // It is refused while a sentinel has not looked at the replicas yet, and on a busy machine it may be given up.
            let _ = asked.command(&["SENTINEL", "FAILOVER", SERVICE]);
            let under_way = || value_of(asked, "flags").is_some_and(|flags| flags.contains("failover"));
            let promoted = || self.agreed().is_some_and(|master| master != before && self.leads(master));
            (0..50).any(|_| promoted() || nap())
                || (0..1000).take_while(|_| under_way()).any(|_| promoted() || nap())
        });
        self.await_agreement();
    }

    /// Kills the master, and waits until the sentinels have promoted a replica. What was not replicated is lost. Returns
    /// the number of the dead one, which may be restarted: it is made a replica then.
    #[track_caller]
    pub fn crash(&mut self) -> usize {
        let dead = self.master_number();
        self.be_patient_for(IMPATIENCE);
        self.servers[dead].kill();
        self.await_another_master(dead);
        self.be_patient_for(PATIENCE);
        self.await_agreement();
        dead
    }

    /// Starts a server again, empty, as a replica of the present master.
    #[track_caller]
    pub fn restart_as_replica(&mut self, server: usize) {
        self.servers[server].restart();
        let master = self.master_number();
        self.follow(server, master);
        self.await_agreement();
    }

    /// Waits until the living sentinels agree on another master than this one, and it can be written to.
    #[track_caller]
    pub fn await_another_master(&self, than: usize) {
        until(FAIL_OVER, "another master", || {
            self.agreed().is_some_and(|master| master != than && self.leads(master))
        });
    }

    /// Waits until all is as it should be: the living sentinels agree on a master and know each other, and the other living
    /// servers are its replicas and have what it has.
    #[track_caller]
    pub fn await_agreement(&self) {
        until(FAIL_OVER, "sentinels that agree, and replicas that follow", || self.is_sound());
    }

    /// How long the master may be silent until it is thought to be down. 60 s, unless it is said otherwise.
    #[track_caller]
    pub fn be_patient_for(&self, silence: Duration) {
        let ms = silence.as_millis().to_string();
        for sentinel in self.sentinels.iter().filter(|sentinel| sentinel.is_up()) {
            sentinel.command(&["SENTINEL", "SET", SERVICE, "down-after-milliseconds", &ms]);
        }
    }

    /// Starts the sentinels, which know each other already: fewer than there should be if a port was taken.
    fn watch(&self) -> Vec<Sentinel> {
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

    /// Has the sentinels look and tell more often than once in seconds, where they can be told (Redis 7.0).
    fn hurry(&self) {
        for sentinel in &self.sentinels {
            for (what, ms) in [
                // A replica of which nothing is known for three times as long is not promoted.
                ("info-period", "1000"),
                ("ask-period", "300"),
                ("publish-period", "300"),
                // On a busy machine they would think that the clock has jumped, and do nothing for 30 s.
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

    /// The server that every living sentinel names as the master.
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

    /// Whether a server is a master, of as many replicas as there should be.
    fn leads(&self, server: usize) -> bool {
        let role = self.servers[server].try_connect().and_then(|mut client| client.try_command(&["ROLE"]));
        matches!(role, Ok(Value::List(parts)) if parts[0] == Value::Text("master".into()))
    }

    fn is_sound(&self) -> bool {
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

    /// Whether a sentinel thinks that all is as it should be, and is not about to change anything.
    fn is_calm(&self, sentinel: &Sentinel) -> bool {
        let quorum = sentinel.try_command(&["SENTINEL", "CKQUORUM", SERVICE]);
        let is = |name: &str, expected: &str| value_of(sentinel, name).as_deref() == Some(expected);
        is("flags", "master")
            && is("num-slaves", "2")
            && is("num-other-sentinels", "2")
            && matches!(quorum, Ok(Value::Text(text)) if text.starts_with("OK"))
    }
}

/// What a sentinel tells of the master.
fn value_of(sentinel: &Sentinel, name: &str) -> Option<String> {
    let Ok(Value::List(words)) = sentinel.try_command(&["SENTINEL", "MASTER", SERVICE]) else { return None };
    let at = words.iter().position(|word| *word == Value::Text(name.into()));
    at.and_then(|at| words.get(at + 1)).map(Value::text)
}

/// A moment, after which nothing has come true.
fn nap() -> bool {
    std::thread::sleep(Duration::from_millis(10));
    false
}

impl Group for Sentinels {
    fn start() -> Self {
        Self::start_with(Plan::default())
    }

    fn renew(&mut self) -> bool {
        let all_up = self.servers.iter().all(Redis::is_up) && self.sentinels.iter().all(Sentinel::is_up);
        if !all_up || !self.is_sound() {
            return false;
        }
        let is_renewed = group::renew(self.master(), &["sentinel-"]);
        // What the next test finds on a replica after a fail-over must not be this one's.
        is_renewed
            && self
                .master()
                .try_connect()
                .and_then(|mut client| client.try_command(&["WAIT", "2", "2000"]))
                .is_ok_and(|answer| answer == Value::Int(2))
    }
}

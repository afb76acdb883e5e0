//! Real Redis servers: one that all tests share, and private ones for tests that break them.

use super::SOON;
use super::admission::await_admission;
use super::process;
use super::resp::{self, Value};
use super::server::{self, free_port, listens, server};
use super::tls::{Certificates, Flaw};
use super::wait::eventually;
use nix::sys::signal::Signal;
use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// The file that a server writes its data to.
const DUMP: &str = "dump.rdb";
/// Where that file is kept for the next start.
const SAVED: &str = "saved.rdb";

/// Start options of a server.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Arguments such as `--requirepass secret` or `--maxmemory 2mb`.
    pub args: Vec<String>,
    /// Use only TLS, with certificates that have this flaw.
    pub tls: Option<Flaw>,
    /// Write every change to disk before it is acknowledged, so that a restart finds it.
    pub persistent: bool,
    /// Variables of its environment.
    pub environment: Vec<(String, std::path::PathBuf)>,
    /// Use TLS with these certificates, which a group of servers shares.
    pub certificates: Option<Certificates>,
    /// The password of the user `default`, for the tests' own commands.
    pub password: Option<String>,
    /// Be a node of a Redis Cluster.
    pub clustered: bool,
    /// Have a second port, without TLS, for the tests' own commands. A server with `certificates` has one anyway.
    pub plain_port: bool,
    /// A program other than this system's `redis-server`.
    pub program: Option<std::path::PathBuf>,
}

/// A server for one test only. It is killed when this value is dropped, or when the test process ends.
#[derive(Debug)]
pub struct Redis {
    port: u16,
    /// The port for the tests' own commands when `port` uses TLS.
    side_door: Option<u16>,
    /// The port for the other nodes of its Redis Cluster.
    bus: Option<u16>,
    options: Options,
    directory: TempDir,
    certificates: Option<Certificates>,
    child: Option<Child>,
}

impl Redis {
    /// Starts one with default options.
    pub fn start() -> Self {
        Self::start_with(Options::default())
    }

    /// Starts one with additional arguments.
    pub fn start_with_args(args: &[&str]) -> Self {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        Self::start_with(Options { args, ..Options::default() })
    }

    /// Starts one with a preloaded library, and the variables that this needs.
    pub fn start_preloaded(variables: &[(&str, &std::path::Path)]) -> Self {
        let environment = variables.iter().map(|(name, value)| ((*name).to_owned(), value.to_path_buf()));
        Self::start_with(Options { environment: environment.collect(), ..Options::default() })
    }

    /// Starts one.
    pub fn start_with(options: Options) -> Self {
        // A test may plant a lease before it has a place, and is not to wait for its admission then.
        await_admission();
        let directory =
            tempfile::Builder::new().prefix("it-redis-").tempdir().expect("a temporary directory");
        let make = |flaw| Certificates::make(directory.path(), flaw);
        let certificates = options.certificates.clone().or_else(|| options.tls.map(make));
        let (has_side_door, clustered) =
            (options.certificates.is_some() || options.plain_port, options.clustered);
        let mut redis =
            Self { port: 0, side_door: None, bus: None, options, directory, certificates, child: None };
        // Another process may take the port between the check and the server's bind.
        for _ in 0..10 {
            redis.port = free_port();
            redis.side_door = has_side_door.then(free_port);
            redis.bus = clustered.then(free_port);
            if redis.try_launch() {
                return redis;
            }
        }
        panic!("redis-server does not start: {}", redis.log());
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether this is one of its ports, with or without TLS.
    pub fn has_port(&self, port: u16) -> bool {
        self.port == port || self.side_door == Some(port)
    }

    /// Its URL, of database 0.
    pub fn url(&self) -> String {
        match &self.certificates {
            None => format!("redis://127.0.0.1:{}/0", self.port),
            Some(files) => format!("rediss://127.0.0.1:{}/0?ca_file={}", self.port, files.ca.display()),
        }
    }

    /// The port for the other nodes of its Redis Cluster.
    pub fn bus(&self) -> u16 {
        self.bus.expect("a node of a cluster")
    }

    /// The certificates it was started with.
    pub fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().expect("a server that speaks TLS")
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.as_ref().expect("a running server").id()).expect("a process id")
    }

    /// Stops it, which acts like a hung machine: connections stay, nothing replies.
    pub fn stop(&self) {
        process::send(self.pid(), Signal::SIGSTOP);
        eventually(SOON, "a stopped server", || process::wholly_stopped(self.pid()).then_some(()));
    }

    /// Continues it.
    pub fn resume(&self) {
        process::send(self.pid(), Signal::SIGCONT);
    }

    /// Writes its data to disk, from where only its next start reads it.
    #[track_caller]
    pub fn save(&self) {
        assert_eq!(self.command(&["SAVE"]), Value::Text("OK".into()));
        std::fs::rename(self.directory.path().join(DUMP), self.directory.path().join(SAVED)).expect("a dump");
    }

    /// Whether it was started and not killed.
    pub fn is_up(&self) -> bool {
        self.child.is_some()
    }

    /// Kills it; its port is closed then.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts it again, on the same port, with the data on disk if it is persistent, or with what was saved.
    pub fn restart(&mut self) {
        self.kill();
        // A replica also writes a dump when it receives a full copy.
        let dump = self.directory.path().join(DUMP);
        let _ = std::fs::remove_file(&dump);
        let _ = std::fs::rename(self.directory.path().join(SAVED), &dump);
        eventually(SOON, "the server's old port", || self.try_launch().then_some(()));
    }

    /// Starts it again, on the same port and with additional arguments, without waiting until its data is loaded.
    pub fn restart_slowly(&mut self, args: &[&str]) {
        self.kill();
        self.options.args.extend(args.iter().map(|arg| (*arg).to_owned()));
        eventually(SOON, "the server's old port", || self.try_launch_until(Self::listens).then_some(()));
    }

    /// A connection of the user `default`, authenticated if the options contain its password.
    #[track_caller]
    pub fn connect(&self) -> Connection {
        self.try_connect().expect("a server that was started")
    }

    /// The same, to a server that may be down.
    pub fn try_connect(&self) -> std::io::Result<Connection> {
        let mut connection = Connection::to(self.side_door.unwrap_or(self.port))?;
        if let Some(password) = &self.options.password {
            connection.try_command(&["AUTH", password])?;
        }
        Ok(connection)
    }

    /// Runs one command on a new connection.
    #[track_caller]
    pub fn command(&self, words: &[&str]) -> Value {
        self.connect().command(words)
    }

    /// Its log.
    pub fn log(&self) -> String {
        super::place::read(&self.directory.path().join("log"))
    }

    fn try_launch(&mut self) -> bool {
        self.try_launch_until(Self::answers)
    }

    fn try_launch_until(&mut self, is_up: impl Fn(&Self) -> bool) -> bool {
        let directory = self.directory.path();
        let log =
            || std::fs::File::options().create(true).append(true).open(directory.join("log")).expect("a log");
        let port = self.port.to_string();
        let program = self.options.program.as_deref().unwrap_or("redis-server".as_ref());
        let mut command = server(program, "redis-server");
        command.args(["--bind", "127.0.0.1", "--save", "", "--dir"]).arg(directory);
        if self.options.persistent {
            command.args(["--appendonly", "yes", "--appendfsync", "always"]);
        } else {
            command.args(["--appendonly", "no"]);
        }
        let side_door = self.side_door.unwrap_or(0).to_string();
        match &self.certificates {
            None => command.args(["--port", &port]),
            Some(_) => {
                command.args(["--port", &side_door, "--tls-port", &port, "--tls-auth-clients", "optional"])
            }
        };
        if self.side_door.is_some() {
            command.args(["--tls-replication", "yes", "--tls-cluster", "yes"]);
        }
        if let Some(bus) = self.bus {
            command.args(["--cluster-enabled", "yes", "--cluster-port", &bus.to_string()]);
        }
        if let Some(password) = &self.options.password {
            command.args(["--requirepass", password, "--masterauth", password]);
        }
        if let Some(files) = &self.certificates {
            command.arg("--tls-ca-cert-file").arg(&files.ca).arg("--tls-cert-file").arg(&files.server);
            command.arg("--tls-key-file").arg(&files.server_key);
        }
        command.envs(self.options.environment.iter().map(|(name, value)| (name, value)));
        command.args(&self.options.args).stdin(Stdio::null()).stdout(log()).stderr(log());
        let mut child = server::start(command);
        let up = eventually(SOON, "redis-server", || match child.try_wait().expect("our own child") {
            Some(_) => Some(false),
            None => (is_up(self) && listens(child.id(), self.port)).then_some(true),
        });
        if up {
            self.child = Some(child);
        }
        up
    }

    fn listens(&self) -> bool {
        TcpStream::connect(("127.0.0.1", self.port)).is_ok()
    }

    fn answers(&self) -> bool {
        if self.certificates.is_some() && self.side_door.is_none() {
            return self.listens();
        }
        // Any reply is sufficient: `-NOAUTH` also comes from a server that is up.
        let ping = || Connection::to(self.side_door.unwrap_or(self.port))?.try_command(&["PING"]);
        ping().is_ok_and(|answer| !matches!(answer, Value::Error(text) if text.starts_with("LOADING")))
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

/// One test's part of the server that all tests share.
#[derive(Debug, Clone)]
pub struct Keyspace {
    port: u16,
    prefix: String,
}

impl Keyspace {
    /// A part that no other test uses; the first test starts the server.
    pub fn new() -> Self {
        await_admission();
        static SERVER: OnceLock<Redis> = OnceLock::new();
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let start = || {
            let server = Redis::start();
            // It writes nothing, and a static value is not dropped: the directory is removed now.
            let _ = std::fs::remove_dir_all(server.directory.path());
            // A server that has the script cached replies to a claim in one flight, whichever test is first.
            let taught = std::process::Command::new(super::dlock::BINARY)
                .args(["run", "--backend", &server.url(), "first", "--", "true"])
                .status();
            assert!(taught.is_ok_and(|status| status.success()), "a run on a server that was just started");
            server.command(&["FLUSHALL"]);
            server
        };
        let port = SERVER.get_or_init(start).port;
        Self { port, prefix: format!("it{}:", NEXT.fetch_add(1, Ordering::Relaxed)) }
    }

    /// The whole of a test's own server, under the default prefix of dlock.
    pub fn of(redis: &Redis) -> Self {
        Self { port: redis.port, prefix: "dlock:".to_owned() }
    }

    /// The port of the server on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The prefix of each name.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Its URL.
    pub fn url(&self) -> String {
        self.url_at(self.port)
    }

    /// The URL of the same keys through another port.
    pub fn url_at(&self, port: u16) -> String {
        format!("redis://127.0.0.1:{port}/0?prefix={}", self.prefix)
    }

    /// The key of the lock `name`.
    pub fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Runs one command on a new connection.
    pub fn command(&self, words: &[&str]) -> Value {
        Connection::to(self.port).expect("the shared server").command(words)
    }

    /// Every key of this part, sorted.
    pub fn keys(&self) -> Vec<String> {
        let mut keys = self.command(&["KEYS", &format!("{}*", self.prefix)]).texts();
        keys.sort();
        keys
    }
}

/// Whether the key is what remains of an unused lock: its counter, its last outcomes and its last success.
pub fn is_memory(key: &str) -> bool {
    key.starts_with("dlock#recorded")
        || ["fencing", "succeeded", "history", "missed", "success"]
            .iter()
            .any(|kind| key.starts_with(&format!("dlock#{kind}:")))
}

/// A client of the tests.
#[derive(Debug)]
pub struct Connection(BufReader<TcpStream>);

impl Connection {
    /// Connects to a port of this host.
    pub fn to(port: u16) -> std::io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends a command and reads its reply.
    pub fn try_command(&mut self, words: &[&str]) -> std::io::Result<Value> {
        self.0.get_mut().write_all(&resp::encode(words))?;
        resp::read_value(&mut self.0)
    }

    /// Sends a command and reads its reply.
    #[track_caller]
    pub fn command(&mut self, words: &[&str]) -> Value {
        self.try_command(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }
}

/// Waits until a lease is renewed: `left` returns the rest of it, which grows only then.
#[track_caller]
pub fn await_renewal(mut left: impl FnMut() -> i64) {
    let mut last = i64::MAX;
    eventually(SOON, "a renewal", || {
        let now = left();
        (now > std::mem::replace(&mut last, now)).then_some(())
    });
}

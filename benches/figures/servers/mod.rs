//! Servers for the benchmark only, on 127.0.0.1; all are ended with it.

mod consul;
mod etcd;
mod mariadb;
mod postgres;
mod redis;
mod zookeeper;

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub use self::redis::{Redis, RedisClient};

/// A server, or the URL of its locks, is None if it is not installed.
pub struct Servers {
    pub redis: Option<Redis>,
    pub etcd: Option<etcd::Etcd>,
    pub zookeeper: Option<zookeeper::ZooKeeper>,
    pub postgres: Option<postgres::Postgres>,
    pub mariadb: Option<mariadb::MariaDb>,
    pub consul: Option<consul::Consul>,
}

impl Servers {
    /// Starts those that are installed. `or_leave_out` is told the others.
    pub fn start(dir: &Path, or_leave_out: &mut impl FnMut(String)) -> Self {
        Servers {
            redis: installed(Redis::start(dir), or_leave_out),
            etcd: installed(etcd::Etcd::start(dir), or_leave_out),
            zookeeper: installed(zookeeper::ZooKeeper::start(dir), or_leave_out),
            postgres: installed(postgres::Postgres::start(), or_leave_out),
            mariadb: installed(mariadb::MariaDb::start(dir), or_leave_out),
            consul: installed(consul::Consul::start(dir), or_leave_out),
        }
    }

    /// The scheme and the URL of each.
    pub fn urls(&self) -> Vec<(&'static str, String)> {
        let urls = [
            ("redis", self.redis.as_ref().map(Redis::url)),
            ("etcd", self.etcd.as_ref().map(|etcd| format!("etcd://{}", etcd.endpoint()))),
            ("zookeeper", self.zookeeper.as_ref().map(zookeeper::ZooKeeper::url)),
            ("postgres", self.postgres.as_ref().map(postgres::Postgres::url)),
            ("mysql", self.mariadb.as_ref().map(mariadb::MariaDb::url)),
            ("consul", self.consul.as_ref().map(consul::Consul::url)),
        ];
        urls.into_iter().filter_map(|(scheme, url)| Some((scheme, url?))).collect()
    }
}

fn installed<T>(started: Result<T, Box<dyn Error>>, leave_out: &mut impl FnMut(String)) -> Option<T> {
    started.map_err(|error| leave_out(error.to_string())).ok()
}

/// A process that is ended and reaped when dropped, and killed by the kernel if this process dies first.
struct Server {
    child: Child,
    /// The signal that ends it.
    signal: i32,
}

impl Server {
    fn spawn(command: &mut Command, package: &str) -> Result<Self, Box<dyn Error>> {
        Self::spawn_ended_by(libc::SIGKILL, command, package)
    }

    fn spawn_ended_by(signal: i32, command: &mut Command, package: &str) -> Result<Self, Box<dyn Error>> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: prctl(2) with an integer argument is async-signal-safe and touches no memory of ours.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        match command.spawn() {
            Ok(child) => Ok(Server { child, signal }),
            Err(error) => Err(missing(command, &error, package)),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SAFETY: kill(2) of a child that has not been reaped.
        unsafe { libc::kill(self.child.id() as i32, self.signal) };
        self.child.wait().ok();
    }
}

/// Why a program cannot be started.
fn missing(command: &Command, error: &std::io::Error, package: &str) -> Box<dyn Error> {
    let program = command.get_program().to_string_lossy();
    match error.kind() {
        std::io::ErrorKind::NotFound => format!("{program}: apt-get install {package}").into(),
        _ => format!("{program}: {error}").into(),
    }
}

/// Runs a command of this package to its end, without output.
fn run(command: &mut Command, package: &str) -> Result<(), Box<dyn Error>> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| missing(command, &error, package))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let program = command.get_program().to_string_lossy().into_owned();
            Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim_end()).into())
        }
    }
}

/// Whether a command succeeds; its output is discarded.
fn succeeds(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).output().is_ok_and(|output| output.status.success())
}

/// What a server answers to a request before it closes the connection.
fn ask(port: u16, request: &[u8]) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    // ZooKeeper never serves a connection that it accepted too early.
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(request)?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    Ok(reply)
}

fn is_root() -> bool {
    // SAFETY: geteuid(2) takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

fn free_port() -> Result<u16, Box<dyn Error>> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn eventually(what: &str, mut ready: impl FnMut() -> bool) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    while !ready() {
        if start.elapsed() > Duration::from_secs(60) {
            return Err(format!("{what} is not ready after 60 s").into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

//! A Redis and an etcd for the benchmark only; both are killed when it ends.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A process that is killed and reaped when dropped, and killed by the kernel if this process dies first.
struct Server(Child);

impl Server {
    fn spawn(command: &mut Command, package: &str) -> Result<Self, Box<dyn Error>> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: prctl(2) with an integer argument is async-signal-safe and touches no memory of ours.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let program = command.get_program().to_string_lossy().into_owned();
        match command.spawn() {
            Ok(child) => Ok(Server(child)),
            Err(error) => Err(format!("{program}: {error}: apt-get install {package}").into()),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn free_port() -> Result<u16, Box<dyn Error>> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn eventually(what: &str, mut ready: impl FnMut() -> bool) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    while !ready() {
        if start.elapsed() > Duration::from_secs(15) {
            return Err(format!("{what} is not ready after 15 s").into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

pub struct Redis {
    port: u16,
    _server: Server,
}

impl Redis {
    pub fn start(dir: &Path) -> Result<Self, Box<dyn Error>> {
        let port = free_port()?;
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"]).arg(dir);
        let server = Server::spawn(&mut command, "redis-server")?;
        let redis = Redis { port, _server: server };
        eventually("redis-server", || {
            redis.connect().and_then(|mut it| it.request("PING")).is_ok_and(|it| it == "+PONG")
        })?;
        Ok(redis)
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn connect(&self) -> Result<RedisClient, Box<dyn Error>> {
        let stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_nodelay(true)?;
        Ok(RedisClient { reader: BufReader::new(stream) })
    }
}

/// A minimal client: inline commands, and single-line replies.
pub struct RedisClient {
    reader: BufReader<TcpStream>,
}

impl RedisClient {
    pub fn request(&mut self, command: &str) -> Result<String, Box<dyn Error>> {
        self.reader.get_mut().write_all(format!("{command}\r\n").as_bytes())?;
        self.line()
    }

    pub fn line(&mut self) -> Result<String, Box<dyn Error>> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Err("redis-server closed the connection".into());
        }
        Ok(line.trim_end().to_string())
    }

    pub fn set_timeout(&mut self, timeout: Duration) -> Result<(), Box<dyn Error>> {
        Ok(self.reader.get_ref().set_read_timeout(Some(timeout))?)
    }

    /// The remaining time to live of a key in milliseconds: -2 if the key does not exist, -1 if it has no expiry.
    pub fn pttl(&mut self, key: &str) -> Result<i64, Box<dyn Error>> {
        let reply = self.request(&format!("PTTL {key}"))?;
        Ok(reply.strip_prefix(':').ok_or(format!("PTTL: {reply}"))?.parse()?)
    }
}

pub struct Etcd {
    port: u16,
    _server: Server,
}

impl Etcd {
    pub fn start(dir: &Path) -> Result<Self, Box<dyn Error>> {
        let port = free_port()?;
        let client = format!("http://127.0.0.1:{port}");
        let peer = format!("http://127.0.0.1:{}", free_port()?);
        let mut command = Command::new("etcd");
        command
            .arg("--data-dir")
            .arg(dir.join("etcd"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}")])
            .args(["--heartbeat-interval", "20", "--election-timeout", "200"]);
        let etcd = Etcd { port, _server: Server::spawn(&mut command, "etcd-server")? };
        eventually("etcd", || {
            let health = Command::new("etcdctl")
                .args(["endpoint", "health"])
                .env("ETCDCTL_API", "3")
                .env("ETCDCTL_ENDPOINTS", etcd.endpoint())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            health.is_ok_and(|status| status.success())
        })
        .map_err(|error| format!("{error} (is etcdctl here? apt-get install etcd-client)"))?;
        Ok(etcd)
    }

    pub fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

pub fn kernel() -> Result<String, Box<dyn Error>> {
    Ok(format!("Linux {}", std::fs::read_to_string("/proc/sys/kernel/osrelease")?.trim_end()))
}

pub fn versions() -> String {
    let first_line = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).env("ETCDCTL_API", "3").output().ok()?;
        String::from_utf8_lossy(&output.stdout).lines().next().map(str::to_string)
    };
    [
        first_line("flock", &["--version"]),
        first_line("timeout", &["--version"]),
        first_line("redis-server", &["--version"])
            .map(|line| line.split(" sha").next().unwrap_or_default().into()),
        first_line("etcdctl", &["version"]),
    ]
    .into_iter()
    .flatten()
    .collect::<Vec<_>>()
    .join("; ")
}

//! Starts servers that never outlive the test process.

use super::sockets::{CLOSE_WAIT, ESTABLISHED, LISTEN, sockets};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// A port that has no listener now, and that is given out only once: a server that was killed can be started again on it.
///
/// The kernel gives it to no connection, and another test process has other ones.
pub fn free_port() -> u16 {
    static PORTS: Mutex<Ports> = Mutex::new(Ports { blocks: Vec::new(), left: 0..0 });
    let mut ports = PORTS.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let port = ports.next();
        // It is not bound to find that out: a process that another test forks just then would listen until its exec.
        if sockets(&[LISTEN], Some(port), None).is_empty() {
            return port;
        }
    }
}

/// The ports of this process.
struct Ports {
    /// One socket for each block that belongs to it, which ends with the process.
    blocks: Vec<UnixDatagram>,
    left: Range<u16>,
}

impl Ports {
    /// How many of them are taken at once.
    const BLOCK: u16 = 500;
    /// The lowest one. Few programs have a port of their own above it.
    const FIRST: u16 = 10_000;

    fn next(&mut self) -> u16 {
        loop {
            if let Some(port) = self.left.next() {
                return port;
            }
            self.left = self.take_block();
        }
    }

    fn take_block(&mut self) -> Range<u16> {
        let end = first_ephemeral_port();
        for first in (Self::FIRST..=end - Self::BLOCK).step_by(Self::BLOCK.into()) {
            let name =
                SocketAddr::from_abstract_name(format!("dlock-it-ports-{first}")).expect("a short name");
            if let Ok(socket) = UnixDatagram::bind_addr(&name) {
                self.blocks.push(socket);
                return first..first + Self::BLOCK;
            }
        }
        // All were given out: those come again whose servers have ended.
        Self::FIRST..end
    }
}

/// The lowest port that the kernel may choose for a connection.
fn first_ephemeral_port() -> u16 {
    let range =
        std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").expect("a setting of Linux");
    let first = range.split_ascii_whitespace().next().and_then(|first| first.parse().ok());
    // Where it chooses from almost all, none is safe.
    first.filter(|first| *first >= 2 * Ports::FIRST).unwrap_or(u16::MAX)
}

/// Whether this process listens on a port, and not another one that was faster.
pub fn listens(pid: u32, port: u16) -> bool {
    let network = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/net")).ok();
    let sockets = if network(&pid.to_string()) == network("thread-self") {
        sockets(&[LISTEN], Some(port), None)
    } else {
        ["tcp", "tcp6"].iter().flat_map(|table| listeners(pid, table, port)).collect()
    };
    // Without one, there is no need to look at what the process has open.
    !sockets.is_empty() && {
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        open.filter_map(|entry| std::fs::read_link(entry.path()).ok())
            .any(|target| sockets.iter().any(|socket| target.as_os_str() == socket.as_str()))
    }
}

/// The sockets that listen on a port in the network of another process, where only its table tells.
fn listeners(pid: u32, table: &str, port: u16) -> Vec<String> {
    const LISTENING: &str = "0A";
    let Ok(table) = File::open(format!("/proc/{pid}/net/{table}")) else { return Vec::new() };
    let lines = BufReader::new(table).lines().skip(1).map_while(Result::ok);
    let words = lines.map(|line| line.split_ascii_whitespace().map(str::to_owned).collect::<Vec<_>>());
    // They are listed first, before the many connections that were closed a moment ago.
    let listening = words.take_while(|words| words.get(3).is_some_and(|state| state == LISTENING));
    let ours = listening.filter(|words| words[1].ends_with(&format!(":{port:04X}")));
    ours.filter_map(|words| words.get(9).map(|inode| format!("socket:[{inode}]"))).collect()
}

/// The number of clients that are connected to a port of this process, in the network of the test, without itself.
pub fn clients(pid: i32, port: u16) -> usize {
    let open = [ESTABLISHED, CLOSE_WAIT];
    let accepted = sockets(&open, Some(port), None).len();
    let initiated = sockets(&open, None, Some(port));
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let own = fds.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let own = own.filter(|target| initiated.iter().any(|socket| target.as_os_str() == socket.as_str()));
    accepted.saturating_sub(own.count())
}

/// How long a client may still be connected after its process has ended.
const GOING: Duration = Duration::from_secs(1);

/// Whether a server has no client, or will have none soon: the request of a client that has ended may be carried out
/// as long as its connection lasts.
pub fn await_no_clients(pid: i32, port: u16) -> bool {
    let until = Instant::now() + GOING;
    while clients(pid, port) > 0 {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(3));
    }
    true
}

/// The program of a server of another version than this system's, by the name that tests/servers.sh has for it.
#[track_caller]
pub fn other_version(name: &str) -> PathBuf {
    let directory = std::env::var_os("DLOCK_TEST_SERVERS").map(PathBuf::from);
    let directory =
        directory.unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/target/servers").into());
    let program = directory.join(name).join("server");
    assert!(program.exists(), "{} is missing: run tests/servers.sh", program.display());
    program
}

/// A command, and to whom its process is given.
type Request = (Command, Sender<std::io::Result<Child>>);

/// The thread that starts all servers, in the network that the first caller is in.
pub fn starter() -> &'static Mutex<Sender<Request>> {
    static STARTER: OnceLock<Mutex<Sender<Request>>> = OnceLock::new();
    STARTER.get_or_init(|| {
        let (requests, inbox) = channel::<Request>();
        let start_all = move || {
            for (mut command, answer) in inbox {
                let _ = answer.send(command.spawn());
            }
        };
        std::thread::Builder::new().name("servers".into()).spawn(start_all).expect("a thread");
        Mutex::new(requests)
    })
}

/// The command of a server that the kernel kills when the process of the tests ends, however it ends; `package` is the Debian
/// package that has the program. For [`start`].
///
/// setpriv(1) asks for that in place of a function between fork(2) and exec(2), with which the standard library would copy the
/// page tables of the tests, many times as large as those of the server.
///
/// # Panics
/// Without the program.
pub fn server(program: impl AsRef<OsStr>, package: &str) -> Command {
    let program = program.as_ref();
    let directories = std::env::var_os("PATH").unwrap_or_default();
    // Of an absolute path, `join` returns just that.
    let is_there = std::env::split_paths(&directories).any(|directory| directory.join(program).exists());
    assert!(is_there, "{} is missing: install the Debian package {package}", program.display());
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    // Ctrl-C at the terminal of `cargo test` is not for servers.
    command.process_group(0);
    command
}

/// Starts a [`server`].
///
/// PR_SET_PDEATHSIG is about the *thread* that forked (man 2 PR_SET_PDEATHSIG), and a test's thread ends
/// with its test: so one thread that lives as long as the process starts all of them.
///
/// # Panics
/// When it cannot be started.
pub fn start(command: Command) -> Child {
    assert_eq!(command.get_program(), "setpriv", "it would outlive the tests");
    let (answer, reply) = channel();
    let starter = starter().lock().unwrap_or_else(PoisonError::into_inner);
    starter.send((command, answer)).expect("the thread ends with the process");
    drop(starter);
    reply.recv().expect("an answer to each request").unwrap_or_else(|error| panic!("setpriv: {error}"))
}

//! Starts servers that never outlive the test process.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};

/// A port that has no listener now, and that is given out only once: a server that was killed can be started again on it.
///
/// The kernel gives it to no connection, and another test process has other ones.
pub fn free_port() -> u16 {
    static PORTS: Mutex<Ports> = Mutex::new(Ports { blocks: Vec::new(), left: 0..0 });
    let mut ports = PORTS.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let port = ports.next();
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
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
    let sockets: Vec<String> = ["tcp", "tcp6"].iter().flat_map(|table| listeners(pid, table, port)).collect();
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .any(|target| sockets.iter().any(|socket| target.as_os_str() == socket.as_str()))
}

/// The sockets that listen on a port, where a process sees them.
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

/// The number of clients that are connected to a port of this process, without itself.
pub fn clients(pid: i32, port: u16) -> usize {
    const ESTABLISHED: &str = "01";
    const CLOSE_WAIT: &str = "08";
    let tables = ["tcp", "tcp6"].map(|table| std::fs::read_to_string(format!("/proc/{pid}/net/{table}")));
    let lines = tables.iter().flatten().flat_map(|table| table.lines());
    let open = lines
        .map(|line| line.split_ascii_whitespace().collect::<Vec<_>>())
        .filter(|words| words.get(3).is_some_and(|state| [ESTABLISHED, CLOSE_WAIT].contains(state)));
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let own: Vec<_> = fds.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect();
    let (end, mut accepted, mut initiated) = (format!(":{port:04X}"), 0_usize, 0);
    for words in open {
        let socket = words.get(9).map(|inode| format!("socket:[{inode}]")).unwrap_or_default();
        let is_own = own.iter().any(|target| target.as_os_str() == socket.as_str());
        accepted += usize::from(words[1].ends_with(&end));
        initiated += usize::from(is_own && words[2].ends_with(&end));
    }
    accepted.saturating_sub(initiated)
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
pub fn nurse() -> &'static Mutex<Sender<Request>> {
    static NURSE: OnceLock<Mutex<Sender<Request>>> = OnceLock::new();
    NURSE.get_or_init(|| {
        let (requests, inbox) = channel::<Request>();
        std::thread::spawn(move || {
            for (mut command, answer) in inbox {
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(requests)
    })
}

/// Starts a process that the kernel kills when this test process ends, however it ends.
///
/// PR_SET_PDEATHSIG is about the *thread* that forked (man 2 PR_SET_PDEATHSIG), and a test's thread ends
/// with its test: so one thread that lives as long as the process starts all of them.
///
/// # Panics
/// When it cannot be started; `package` is the Debian package that has the program.
pub fn spawn_for_ever(mut command: Command, package: &str) -> Child {
    // SAFETY: prctl(2) is async-signal-safe.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    // Ctrl-C at the terminal of `cargo test` is not for servers.
    command.process_group(0);
    let program = command.get_program().to_owned();
    let (answer, reply) = channel();
    nurse()
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .send((command, answer))
        .expect("the nurse lives for ever");
    match reply.recv().expect("the nurse answers") {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            panic!("{} is missing: install the Debian package {package}", program.display())
        }
        Err(error) => panic!("cannot start {}: {error}", program.display()),
    }
}

//! A server process that can be killed, stopped and started again on its ports.

use super::SOON;
use super::admission::await_admission;
use super::process;
use super::server::{self, listens, server};
use super::wait::eventually;
use nix::sys::signal::Signal;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// A server of one test. It is killed when this value is dropped, or when the test process ends.
#[derive(Debug)]
pub struct Daemon {
    /// The Debian package that has the program.
    package: &'static str,
    command: Vec<String>,
    /// The address that it listens on when it is up.
    address: SocketAddr,
    directory: TempDir,
    child: Option<Child>,
}

/// The host that a server runs on: this one by default.
#[derive(Debug, Clone)]
pub struct Host {
    /// Its address.
    pub ip: Ipv4Addr,
    /// The command prefix that starts a program there.
    pub prefix: Vec<String>,
}

/// Time limit for a start: several servers of a group may have to elect a leader on a busy machine.
const START: Duration = Duration::from_secs(120);

impl Default for Host {
    fn default() -> Self {
        Self { ip: Ipv4Addr::LOCALHOST, prefix: Vec::new() }
    }
}

impl Daemon {
    /// One that was not started yet; it will listen on this port, and this is its directory.
    pub fn new(
        package: &'static str,
        program: &Path,
        arguments: Vec<String>,
        (host, port): (&Host, u16),
        directory: TempDir,
    ) -> Self {
        await_admission();
        let program = program.to_str().expect("a path in UTF-8").to_owned();
        let command = host.prefix.iter().cloned().chain([program]).chain(arguments).collect();
        Self { package, command, address: (host.ip, port).into(), directory, child: None }
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The address that it listens on when it is up.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.as_ref().expect("a running server").id()).expect("a process id")
    }

    /// Starts the process, without waiting until it is up.
    pub fn launch(&mut self) {
        let log = File::options().create(true).append(true).open(self.log_file()).expect("a log");
        let mut command = server(&self.command[0], self.package);
        command.args(&self.command[1..]).current_dir(self.directory()).stdin(Stdio::null());
        command.stdout(log.try_clone().expect("a descriptor")).stderr(log);
        self.child = Some(server::start(command));
    }

    /// Waits until it listens and `answers`. False if it has ended, for example because another process took its port.
    #[track_caller]
    pub fn await_up(&mut self, mut answers: impl FnMut() -> bool) -> bool {
        let (what, port) = (format!("{}: {}", self.package, self.log()), self.address.port());
        let child = self.child.as_mut().expect("a server that was launched");
        let is_up = eventually(START, &what, || match child.try_wait().expect("our own child") {
            Some(_) => Some(false),
            None => (listens(child.id(), port) && answers()).then_some(true),
        });
        if !is_up {
            self.child = None;
        }
        is_up
    }

    /// Whether it was started and not killed.
    pub fn is_up(&self) -> bool {
        self.child.is_some()
    }

    /// Kills it; its ports are closed then.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
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

    /// Its log.
    pub fn log(&self) -> String {
        super::place::read(&self.log_file())
    }

    fn log_file(&self) -> PathBuf {
        self.directory().join("log")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

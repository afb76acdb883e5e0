//! One Redis Sentinel.

use crate::support::place::read;
use crate::support::redis::Connection;
use crate::support::resp::Value;
use crate::support::server::{self, listens, server};
use crate::support::tls::Certificates;
use crate::support::wait::eventually;
use crate::support::{SOON, process};
use nix::sys::signal::Signal;
use std::io::Result;
use std::process::{Child, Stdio};
use tempfile::TempDir;

/// Its configuration at the start.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Its port.
    pub port: u16,
    /// Its port for the tests' own commands, when `port` uses TLS.
    pub side_door: Option<u16>,
    /// The password of its clients.
    pub password: Option<String>,
    /// All other lines.
    pub lines: Vec<String>,
}

/// A process that is killed when this value is dropped, or when the test process ends.
#[derive(Debug)]
pub struct Sentinel {
    settings: Settings,
    directory: TempDir,
    child: Option<Child>,
}

impl Sentinel {
    /// Starts it; `None` if it cannot bind its port.
    pub fn start(settings: Settings, certificates: Option<&Certificates>) -> Option<Self> {
        let directory =
            tempfile::Builder::new().prefix("it-sentinel-").tempdir().expect("a temporary directory");
        let mut lines = vec!["bind 127.0.0.1".to_owned(), format!("dir {}", directory.path().display())];
        match certificates {
            None => lines.push(format!("port {}", settings.port)),
            Some(files) => lines.extend([
                format!("port {}", settings.side_door.unwrap_or(0)),
                format!("tls-port {}", settings.port),
                "tls-replication yes".to_owned(),
                "tls-auth-clients optional".to_owned(),
                format!("tls-ca-cert-file {}", files.ca.display()),
                format!("tls-cert-file {}", files.server.display()),
                format!("tls-key-file {}", files.server_key.display()),
            ]),
        }
        if let Some(password) = &settings.password {
            lines.push(format!("requirepass {password}"));
            lines.push(format!("sentinel sentinel-pass {password}"));
        }
        lines.extend(settings.lines.iter().cloned());
        lines.push(String::new());
        std::fs::write(directory.path().join("sentinel.conf"), lines.join("\n")).expect("a configuration");
        let mut sentinel = Self { settings, directory, child: None };
        sentinel.try_launch().then_some(sentinel)
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.settings.port
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.as_ref().expect("a running sentinel").id()).expect("a process id")
    }

    /// Whether it was started and not killed.
    pub fn is_up(&self) -> bool {
        self.child.is_some()
    }

    /// Stops it, which acts like a hung machine: connections stay, nothing replies.
    pub fn stop(&self) {
        process::send(self.pid(), Signal::SIGSTOP);
        eventually(SOON, "a stopped sentinel", || process::wholly_stopped(self.pid()).then_some(()));
    }

    /// Continues it.
    pub fn resume(&self) {
        process::send(self.pid(), Signal::SIGCONT);
    }

    /// Kills it; its port is closed then.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts it again, on the same port, with its recorded state.
    pub fn restart(&mut self) {
        self.kill();
        eventually(SOON, "the sentinel's old port", || self.try_launch().then_some(()));
    }

    /// Runs one command on a new connection, to a sentinel that may be down.
    pub fn try_command(&self, words: &[&str]) -> Result<Value> {
        let mut connection = Connection::to(self.settings.side_door.unwrap_or(self.settings.port))?;
        if let Some(password) = &self.settings.password {
            connection.try_command(&["AUTH", password])?;
        }
        connection.try_command(words)
    }

    /// Runs one command on a new connection.
    #[track_caller]
    pub fn command(&self, words: &[&str]) -> Value {
        self.try_command(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Its log.
    pub fn log(&self) -> String {
        read(&self.directory.path().join("log"))
    }

    fn try_launch(&mut self) -> bool {
        let path = self.directory.path().join("log");
        let log = || std::fs::File::options().create(true).append(true).open(&path).expect("a log");
        let mut command = server("redis-server", "redis-server");
        command.arg(self.directory.path().join("sentinel.conf")).arg("--sentinel");
        command.stdin(Stdio::null()).stdout(log()).stderr(log());
        let mut child = server::start(command);
        let up =
            eventually(SOON, "redis-server --sentinel", || match child.try_wait().expect("our own child") {
                Some(_) => Some(false),
                None => {
                    (self.try_command(&["PING"]).is_ok() && listens(child.id(), self.port())).then_some(true)
                }
            });
        if up {
            self.child = Some(child);
        }
        up
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        self.kill();
    }
}

//! A PostgreSQL, which does not run as root.

use std::error::Error;
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::process::Command;

use super::{Server, eventually, free_port, is_root, run};
use crate::machine;

const PACKAGE: &str = "postgresql";

pub struct Postgres {
    port: u16,
    _server: Server,
    _directory: tempfile::TempDir,
}

/// A program of PostgreSQL, as nobody instead of root.
fn as_user(program: &str) -> Result<Command, Box<dyn Error>> {
    let path: PathBuf = match machine::newest_postgres(program) {
        Some(path) => path,
        None => machine::find(program, PACKAGE)?,
    };
    if !is_root() {
        return Ok(Command::new(path));
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups", "--pdeathsig=KILL"]).arg(path);
    Ok(command)
}

/// The ids of nobody.
fn nobody() -> Result<(u32, u32), Box<dyn Error>> {
    let user = nix::unistd::User::from_name("nobody")?.ok_or("there is no user nobody")?;
    Ok((user.uid.as_raw(), user.gid.as_raw()))
}

impl Postgres {
    pub fn start() -> Result<Self, Box<dyn Error>> {
        // Not in the directory of the build, which nobody else may enter.
        let directory = tempfile::Builder::new().prefix("figures-postgres-").tempdir()?;
        if is_root() {
            let (uid, gid) = nobody()?;
            chown(directory.path(), Some(uid), Some(gid))?;
        }
        let data = directory.path().join("data");
        let mut initdb = as_user("initdb")?;
        initdb.args(["-U", "postgres", "-A", "trust", "--no-sync", "--no-locale", "-E", "UTF8", "-D"]);
        run(initdb.arg(&data).current_dir("/"), PACKAGE)?;
        let port = free_port()?;
        let mut postgres = as_user("postgres")?;
        postgres.arg("-D").arg(&data).args(["-p", &port.to_string(), "-c", "listen_addresses=127.0.0.1"]);
        postgres.args(["-c", &format!("unix_socket_directories={}", directory.path().display())]);
        postgres.args(["-c", "fsync=off", "-c", "dynamic_shared_memory_type=mmap"]).current_dir("/");
        // By SIGQUIT it removes the memory that it shares with its processes.
        let server = Server::spawn_ended_by(libc::SIGQUIT, &mut postgres, PACKAGE)?;
        let mut ready = as_user("pg_isready")?;
        ready.args(["-q", "-h", "127.0.0.1", "-p", &port.to_string()]);
        eventually("PostgreSQL", || super::succeeds(&mut ready))?;
        Ok(Postgres { port, _server: server, _directory: directory })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }
}

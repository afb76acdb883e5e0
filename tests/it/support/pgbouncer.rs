//! A real PgBouncer in front of a server.

use super::daemon::{Daemon, Host};
use super::postgres::as_nobody;
use super::server::free_port;
use std::net::TcpStream;
use std::path::Path;

/// A pooler of few connections.
#[derive(Debug)]
pub struct PgBouncer(Daemon);

impl PgBouncer {
    /// Starts one in this mode, `transaction` or `session`, with this many connections to the server on a port.
    pub fn start(server: u16, mode: &str, connections: u32) -> Self {
        Self::start_with(server, mode, connections, &[])
    }

    /// Starts one likewise, with these settings as well.
    pub fn start_with(server: u16, mode: &str, connections: u32, settings: &[&str]) -> Self {
        // Another process may take the port between the check and the bind.
        for _ in 0..10 {
            let directory = tempfile::Builder::new().prefix("it-pgbouncer-").tempdir().expect("a directory");
            let (port, file) = (free_port(), directory.path().join("pgbouncer.ini"));
            let text = format!(
                "[databases]\npostgres = host=127.0.0.1 port={server} user=postgres\n[pgbouncer]\nlisten_addr = \
                 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = {mode}\n\
                 default_pool_size = {connections}\n{}\n",
                settings.join("\n")
            );
            std::fs::write(&file, text).expect("our own file");
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(directory.path(), mode).expect("our own directory");
            let mut words = as_nobody(Path::new("/usr/sbin/pgbouncer"));
            let program = words.remove(0);
            words.push(file.display().to_string());
            let mut daemon =
                Daemon::new("pgbouncer", program.as_ref(), words, (&Host::default(), port), directory);
            daemon.launch();
            if daemon.await_up(|| TcpStream::connect(("127.0.0.1", port)).is_ok()) {
                return Self(daemon);
            }
        }
        panic!("PgBouncer does not start")
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.0.address().port()
    }

    /// The URL of the database behind it.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port())
    }
}

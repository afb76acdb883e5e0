//! An etcd with one member.

use std::error::Error;
use std::path::Path;
use std::process::Command;

use super::{Server, ask, eventually, free_port};

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
        eventually("etcd", || etcd.is_healthy().is_ok_and(|healthy| healthy))?;
        Ok(etcd)
    }

    pub fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn is_healthy(&self) -> std::io::Result<bool> {
        let reply = ask(self.port, b"GET /health HTTP/1.0\r\n\r\n")?;
        Ok(reply.contains(r#""health":"true""#))
    }
}

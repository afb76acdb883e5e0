//! A Consul agent that is its own server.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Server, ask, eventually, free_port};

pub struct Consul {
    program: PathBuf,
    port: u16,
    _server: Server,
}

impl Consul {
    pub fn start(dir: &Path) -> Result<Self, Box<dyn Error>> {
        // The one that tests/servers.sh has fetched, or else the one of this system.
        let fetched = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/servers/consul-1.8/server");
        let program = if fetched.exists() { fetched } else { "consul".into() };
        let port = free_port()?;
        let ports = format!("http = {port}, dns = -1, grpc = -1, serf_wan = -1");
        let ports = format!("ports {{ {ports}, serf_lan = {}, server = {} }}", free_port()?, free_port()?);
        let mut command = Command::new(&program);
        command.args(["agent", "-server", "-bootstrap", "-bind=127.0.0.1", "-hcl", &ports]);
        command.arg("-data-dir").arg(dir.join("consul"));
        let consul = Consul { program, port, _server: Server::spawn(&mut command, "consul")? };
        eventually("Consul", || consul.has_leader().is_ok_and(|has_leader| has_leader))?;
        Ok(consul)
    }

    pub fn url(&self) -> String {
        format!("consul://127.0.0.1:{}", self.port)
    }

    /// The program, and its argument that names this agent.
    pub fn client(&self) -> (&Path, String) {
        (&self.program, format!("-http-addr=127.0.0.1:{}", self.port))
    }

    fn has_leader(&self) -> std::io::Result<bool> {
        let reply = ask(self.port, b"GET /v1/status/leader HTTP/1.0\r\n\r\n")?;
        Ok(reply.contains("200 OK") && !reply.ends_with("\"\""))
    }
}

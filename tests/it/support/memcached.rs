//! Real Memcached servers.

use super::SOON;
use super::daemon::{Daemon, Host};
use super::server::free_port;
use super::tls::Certificates;
use super::wait::until;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

/// A server of one test.
#[derive(Debug)]
pub struct Memcached {
    daemon: Daemon,
    /// The authority of its certificate, with TLS.
    ca: Option<String>,
}

impl Memcached {
    /// Starts one.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts one with these arguments besides the usual ones.
    pub fn start_with(arguments: &[&str]) -> Self {
        Self::start_at("127.0.0.1", arguments, None)
    }

    /// Starts one that uses TLS.
    pub fn start_with_tls(certificates: &Certificates) -> Self {
        let path = |path: &Path| path.display().to_string();
        let options = format!(
            "ssl_chain_cert={},ssl_key={}",
            path(&certificates.server),
            path(&certificates.server_key)
        );
        Self::start_at("127.0.0.1", &["-Z", "-o", &options], Some(path(&certificates.ca)))
    }

    fn start_at(address: &str, arguments: &[&str], ca: Option<String>) -> Self {
        // Another process may take the port between the check and the server's bind.
        for _ in 0..10 {
            let port = free_port();
            let directory = tempfile::Builder::new().prefix("it-memcached-").tempdir().expect("a directory");
            let number = port.to_string();
            let fixed = ["-u", "root", "-l", address, "-p", &number, "-U", "0"];
            let all = fixed.iter().chain(arguments).map(|argument| (*argument).to_owned()).collect();
            let program = Path::new("memcached");
            let mut daemon = Daemon::new("memcached", program, all, (&Host::default(), port), directory);
            daemon.launch();
            if daemon.await_up(|| true) {
                return Self { daemon, ca };
            }
        }
        panic!("memcached does not start")
    }

    /// Its URL.
    pub fn url(&self) -> String {
        let address = self.daemon.address();
        match &self.ca {
            None => format!("memcached://{address}"),
            Some(ca) => format!("memcacheds://{address}?ca_file={ca}"),
        }
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.daemon.address().port()
    }

    /// Its process, to be stopped and resumed.
    pub fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.daemon.kill();
    }

    /// Kills it, and starts it again on its port.
    #[track_caller]
    pub fn restart(&mut self) {
        self.kill();
        until(SOON, "the server's old port", || {
            self.daemon.launch();
            self.daemon.await_up(|| true)
        });
    }

    /// The first line of the reply to a command, sent as another program would.
    pub fn command(&self, command: &str) -> String {
        self.client().line(command)
    }

    fn client(&self) -> Client {
        let stream = TcpStream::connect(self.daemon.address()).expect("a connection");
        stream.set_read_timeout(Some(SOON)).expect("a time limit");
        Client(BufReader::new(stream))
    }

    /// `add` of this value without an owner. False if there is an item.
    pub fn add(&self, key: &str, lease: Option<Duration>, value: &str) -> bool {
        let seconds = lease.map_or(0, |lease| lease.as_millis().div_ceil(1000));
        let reply = self.command(&format!("add {key} 0 {seconds} {}\r\n{value}", value.len()));
        assert!(["STORED", "NOT_STORED"].contains(&reply.as_str()), "{reply}");
        reply == "STORED"
    }

    /// Adds items of each size that an item of dlock may have, until it is full.
    pub fn fill(&self) {
        for size in (50..1500).step_by(50) {
            let value = "x".repeat(size);
            let add = |number: u32| self.command(&format!("add {size}:{number} 0 0 {size}\r\n{value}"));
            let refused = (0..).map(add).find(|reply| reply != "STORED");
            assert_eq!(refused.as_deref(), Some("SERVER_ERROR out of memory storing object"));
        }
    }

    /// Whether the item was deleted.
    pub fn delete(&self, key: &str) -> bool {
        self.command(&format!("delete {key}")) == "DELETED"
    }

    /// The value of an item.
    pub fn get(&self, key: &str) -> Option<String> {
        let mut client = self.client();
        let line = client.line(&format!("mg {key} v"));
        let length: usize = line.strip_prefix("VA ")?.trim().parse().expect("a length");
        let mut value = vec![0; length];
        client.0.read_exact(&mut value).expect("a value");
        Some(String::from_utf8(value).expect("UTF-8"))
    }

    /// The seconds until an item expires; -1 if it does not.
    pub fn remaining(&self, key: &str) -> Option<i64> {
        self.command(&format!("mg {key} t")).strip_prefix("HD t")?.parse().ok()
    }

    /// The keys of all items.
    pub fn keys(&self) -> Vec<String> {
        let mut client = self.client();
        let mut line = client.line("lru_crawler metadump all");
        let mut keys = Vec::new();
        while line != "END" {
            let key = line.split(' ').find_map(|word| word.strip_prefix("key="));
            let key = key.unwrap_or_else(|| panic!("{line}"));
            let decoded = percent_encoding::percent_decode_str(key).decode_utf8().expect("UTF-8");
            keys.push(decoded.into_owned());
            line = client.read();
        }
        keys
    }
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn line(&mut self, command: &str) -> String {
        self.0.get_mut().write_all(format!("{command}\r\n").as_bytes()).expect("a command is sent");
        self.read()
    }

    fn read(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a reply");
        line.trim_end().to_owned()
    }
}

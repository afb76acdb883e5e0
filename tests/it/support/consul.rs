//! Real Consul agents.

pub mod ensemble;

use super::SOON;
use super::daemon::{Daemon, Host};
use super::pool::{Group, Lent, lend};
use super::server::{free_port, other_version};
use super::tls::Certificates;
use super::wait::{eventually, until};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

/// What marks a key as a lock.
pub const LOCK_FLAGS: u64 = 3_304_740_253_564_472_344;
/// What marks the keys of a semaphore.
pub const SEMAPHORE_FLAGS: u64 = 16_210_313_421_097_356_768;

/// An agent that is a server, the only one of its datacenter unless it is in an [`Ensemble`](ensemble::Ensemble).
#[derive(Debug)]
pub struct Consul {
    daemon: Daemon,
    /// The port on which servers talk to each other.
    peer: u16,
    /// The port with TLS, and the authority of its certificate.
    tls: Option<(u16, String)>,
}

/// The program of a later version than that of Debian, if the tests are to use it: tests/interop.sh builds one.
fn other_program() -> Option<String> {
    std::env::var("DLOCK_TEST_CONSUL").ok()
}

impl Consul {
    /// An empty one from the pool.
    pub fn lent() -> Lent<Self> {
        lend()
    }

    /// Starts one for one test only.
    pub fn start() -> Self {
        Self::start_with(&json!({}), None)
    }

    /// Starts one for one test only, with these settings and a port with TLS.
    pub fn start_with(settings: &Value, certificates: Option<&Certificates>) -> Self {
        // Another process may take a port between the check and the server's bind.
        for _ in 0..10 {
            let mut consul = Self::prepare(free_port(), settings, certificates);
            consul.daemon.launch();
            if consul.await_up() {
                return consul;
            }
        }
        panic!("consul does not start")
    }

    /// One that is not started yet, with this port for gossip.
    fn prepare(serf: u16, settings: &Value, certificates: Option<&Certificates>) -> Self {
        let [http, peer, https] = [free_port(), free_port(), free_port()];
        let directory = tempfile::Builder::new().prefix("it-consul-").tempdir().expect("a directory");
        let mut all = json!({
            "bind_addr": "127.0.0.1",
            "client_addr": "127.0.0.1",
            "node_name": "node",
            "server": true,
            "bootstrap": true,
            "disable_update_check": true,
            "disable_host_node_id": true,
            "log_level": "warn",
            "performance": {"raft_multiplier": 1},
            "limits": {"http_max_conns_per_client": 5000, "rpc_max_conns_per_client": 5000},
            // So that checks need not wait long.
            "session_ttl_min": "100ms",
            "ports": {"http": http, "dns": -1, "grpc": -1, "serf_lan": serf, "serf_wan": -1, "server": peer},
        });
        if let Some(files) = certificates {
            all["ports"]["https"] = json!(https);
            all["cert_file"] = json!(files.server);
            all["key_file"] = json!(files.server_key);
            all["ca_file"] = json!(files.ca);
        }
        if other_program().is_some() {
            // Version 1.8 refuses a setting that it does not know.
            all["ports"]["grpc_tls"] = json!(-1);
        }
        for (name, value) in settings.as_object().expect("settings") {
            all[name] = value.clone();
        }
        let file = directory.path().join("settings.json");
        std::fs::write(&file, all.to_string()).expect("a file");
        let data = directory.path().join("data");
        let arguments =
            ["agent", "-config-file", &file.to_string_lossy(), "-data-dir", &data.to_string_lossy()];
        let arguments = arguments.map(str::to_owned).to_vec();
        let program = PathBuf::from(Self::program());
        let daemon = Daemon::new("consul", &program, arguments, (&Host::default(), http), directory);
        let tls = certificates.map(|files| (https, files.ca.display().to_string()));
        Self { daemon, peer, tls }
    }

    /// Waits until it knows a leader. False if it has ended.
    fn await_up(&mut self) -> bool {
        let port = self.port();
        self.daemon.await_up(|| leader_of(port).is_some())
    }

    /// Its URL.
    pub fn url(&self) -> String {
        match &self.tls {
            None => format!("consul://{}", self.daemon.address()),
            Some((port, ca)) => format!("consuls://127.0.0.1:{port}?ca_file={ca}"),
        }
    }

    /// Its port without TLS.
    pub fn port(&self) -> u16 {
        self.daemon.address().port()
    }

    /// Its process, to be stopped and resumed.
    pub fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    /// Kills it, and starts it again on its ports, with its data.
    #[track_caller]
    pub fn restart(&mut self) {
        self.kill();
        until(SOON, "the server's old ports", || {
            self.daemon.launch();
            self.await_up()
        });
        // Without a leader, requests fail for a moment.
        until(SOON, "a leader", || self.ask("PUT", "kv/restarted", b"").0 == 200);
        self.ask("DELETE", "kv/restarted", b"");
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.daemon.kill();
    }

    /// The program.
    pub fn program() -> String {
        other_program().unwrap_or_else(|| other_version("consul-1.8").display().to_string())
    }

    /// The status and the body of the reply to a request of the HTTP API.
    pub fn ask(&self, method: &str, path: &str, body: &[u8]) -> (u16, String) {
        try_ask(self.port(), method, path, body, None).expect("a reply")
    }

    /// Does the same with a token.
    pub fn ask_as(&self, token: &str, method: &str, path: &str, body: &[u8]) -> (u16, String) {
        try_ask(self.port(), method, path, body, Some(token)).expect("a reply")
    }

    /// The reply as JSON; null if there is none.
    pub fn json(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        serde_json::from_str(&self.ask(method, path, body.as_bytes()).1).unwrap_or_default()
    }

    /// Creates a session with this lease, or without one, and returns its id.
    pub fn session(&self, ttl: Option<&str>) -> String {
        self.session_with(ttl, "0s")
    }

    /// Does the same with this delay after its end.
    pub fn session_with(&self, ttl: Option<&str>, delay: &str) -> String {
        let mut settings = json!({"Name": "foreign", "LockDelay": delay, "NodeChecks": []});
        if let Some(ttl) = ttl {
            settings["TTL"] = json!(ttl);
        }
        // It needs the node of the agent, which is registered a moment after the start.
        eventually(SOON, "a session", || {
            let created = self.json("PUT", "session/create", &settings);
            created["ID"].as_str().map(str::to_owned)
        })
    }

    /// The ids of the sessions of dlock.
    pub fn sessions(&self) -> Vec<String> {
        let all = self.json("GET", "session/list", &Value::Null);
        let own = all.as_array().into_iter().flatten().filter(|session| session["Name"] == "dlock");
        own.map(|session| session["ID"].as_str().expect("an id").to_owned()).collect()
    }

    /// Locks a key as `consul lock` does. False if it is locked.
    pub fn lock(&self, key: &str, session: &str) -> bool {
        self.ask("PUT", &format!("kv/{}?acquire={session}&flags={LOCK_FLAGS}", path(key)), b"").1.trim()
            == "true"
    }

    /// Unlocks it. False if the session does not hold it.
    pub fn unlock(&self, key: &str, session: &str) -> bool {
        self.ask("PUT", &format!("kv/{}?release={session}&flags={LOCK_FLAGS}", path(key)), b"").1.trim()
            == "true"
    }

    /// Waits until a lock that nobody holds can be taken. A server that has been restarted begins the delays of all locks anew that
    /// were lost since its last snapshot, those of earlier tests too.
    pub fn await_no_delay(&self, key: &str) {
        const LONGEST: Duration = Duration::from_secs(60);
        let session = self.session(None);
        until(LONGEST + SOON, "the end of the delay", || self.lock(key, &session));
        self.ask("DELETE", &format!("kv/{}", path(key)), b"");
        self.ask("PUT", &format!("session/destroy/{session}"), b"");
    }

    /// Takes a slot of a semaphore as `consul lock -n` does, once. False if all are taken, or another number is agreed on.
    pub fn take_slot(&self, prefix: &str, limit: u64, session: &str) -> bool {
        let (mut holders, index, agreed) = self.semaphore(prefix);
        if holders.len() as u64 >= limit || agreed.is_some_and(|agreed| agreed != limit) {
            return false;
        }
        holders.push(session.to_owned());
        let contender = json!({"Verb": "lock", "Key": format!("{prefix}/{session}"), "Flags": SEMAPHORE_FLAGS,
            "Session": session});
        self.transact(&json!([{"KV": contender}, {"KV": document(prefix, limit, &holders, index)}])) == 200
    }

    /// Leaves it, and removes the semaphore if nobody holds it then. False if it was not held.
    pub fn leave_slot(&self, prefix: &str, session: &str) -> bool {
        let (mut holders, index, agreed) = self.semaphore(prefix);
        let Some(place) = holders.iter().position(|holder| holder == session) else { return false };
        holders.remove(place);
        let contender = json!({"Verb": "delete", "Key": format!("{prefix}/{session}")});
        let document = match holders.as_slice() {
            [] => json!({"Verb": "delete-cas", "Key": format!("{prefix}/.lock"), "Index": index}),
            _ => document(prefix, agreed.unwrap_or_default(), &holders, index),
        };
        self.transact(&json!([{"KV": contender}, {"KV": document}])) == 200
    }

    /// The sessions that hold a semaphore, the index of its document, and the number of holders that it may have.
    pub fn semaphore(&self, prefix: &str) -> (Vec<String>, u64, Option<u64>) {
        let pairs = self.json("GET", &format!("kv/{}?recurse", path(&format!("{prefix}/"))), &Value::Null);
        let pairs: &[Value] = pairs.as_array().map_or(&[], Vec::as_slice);
        let lock = pairs.iter().find(|pair| pair["Key"] == json!(format!("{prefix}/.lock")));
        let Some(lock) = lock else { return (Vec::new(), 0, None) };
        let value = self.value(&format!("{prefix}/.lock")).unwrap_or_default();
        let value: Value = serde_json::from_str(&value).unwrap_or_default();
        let is_alive = |session: &String| pairs.iter().any(|pair| pair["Session"] == json!(session));
        let holders = value["Holders"].as_object().into_iter().flatten().map(|(session, _)| session.clone());
        (
            holders.filter(is_alive).collect(),
            lock["ModifyIndex"].as_u64().unwrap_or(0),
            value["Limit"].as_u64(),
        )
    }

    /// Carries out operations together; the status.
    pub fn transact(&self, operations: &Value) -> u16 {
        self.ask("PUT", "txn", operations.to_string().as_bytes()).0
    }

    /// The session that has locked a key.
    pub fn holder(&self, key: &str) -> Option<String> {
        let pair = self.json("GET", &format!("kv/{}", path(key)), &Value::Null);
        pair[0]["Session"].as_str().map(str::to_owned)
    }

    /// The value of a key.
    pub fn value(&self, key: &str) -> Option<String> {
        let (status, value) = self.ask("GET", &format!("kv/{}?raw", path(key)), b"");
        (status == 200).then_some(value)
    }

    /// All keys.
    pub fn keys(&self) -> Vec<String> {
        let keys = self.json("GET", "kv/?keys", &Value::Null);
        keys.as_array().into_iter().flatten().map(|key| key.as_str().expect("a key").to_owned()).collect()
    }

    /// Removes all keys and sessions. False if it does not reply.
    #[must_use]
    pub fn wipe(&self) -> bool {
        let ask = |method, path: &str| {
            try_ask(self.port(), method, path, b"", None).filter(|(status, _)| *status == 200)
        };
        let Some((_, sessions)) = ask("DELETE", "kv/?recurse").and_then(|_| ask("GET", "session/list"))
        else {
            return false;
        };
        let sessions: Value = serde_json::from_str(&sessions).unwrap_or_default();
        let mut ids = sessions.as_array().into_iter().flatten().filter_map(|session| session["ID"].as_str());
        ids.all(|id| ask("PUT", &format!("session/destroy/{id}")).is_some())
    }
}

impl Group for Consul {
    fn start() -> Self {
        Self::start()
    }

    fn renew(&mut self) -> bool {
        self.daemon.is_up() && self.wipe()
    }
}

/// The operation that stores the document of a semaphore if it still has this index.
fn document(prefix: &str, limit: u64, holders: &[String], index: u64) -> Value {
    let holders: Value = holders.iter().map(|session| (session.clone(), json!(true))).collect();
    let value = STANDARD.encode(json!({"Limit": limit, "Holders": holders}).to_string());
    let key = format!("{prefix}/.lock");
    json!({"Verb": "cas", "Key": key, "Value": value, "Flags": SEMAPHORE_FLAGS, "Index": index})
}

/// A key as part of a path.
pub fn path(key: &str) -> String {
    percent_encoding::utf8_percent_encode(key, percent_encoding::NON_ALPHANUMERIC).to_string()
}

/// The port of the leader for other servers, as an agent knows it.
fn leader_of(port: u16) -> Option<u16> {
    let (_, leader) =
        try_ask(port, "GET", "status/leader", b"", None).filter(|(status, _)| *status == 200)?;
    leader.trim().trim_matches('"').rsplit_once(':')?.1.parse().ok()
}

fn try_ask(port: u16, method: &str, path: &str, body: &[u8], token: Option<&str>) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(SOON)).ok()?;
    let token = token.map(|token| format!("X-Consul-Token: {token}\r\n")).unwrap_or_default();
    // In this version a reply ends with its connection.
    let head = format!("{method} /v1/{path} HTTP/1.0\r\n{token}Content-Length: {}\r\n\r\n", body.len());
    stream.write_all(&[head.as_bytes(), body].concat()).ok()?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).ok()?;
    let (head, body) = reply.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}

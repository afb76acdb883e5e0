//! A server that speaks the protocol of Kubernetes, by its rules.

use super::SOON;
use super::daemon::{Daemon, Host};
use super::pool::{Group, Lent, lend};
use super::server::free_port;
use super::tls::{Certificates, Flaw};
use super::wait::until;
use dlock::backend::ledger::Ledger;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The namespace of the locks.
pub const NAMESPACE: &str = "default";
/// The annotation with the ledger.
pub const LEDGER: &str = "dlock-ledger";

/// A server, without TLS, where everyone may do everything.
#[derive(Debug)]
pub struct Kubernetes {
    daemon: Daemon,
}

impl Kubernetes {
    /// An empty one from the pool.
    pub fn lent() -> Lent<Self> {
        lend()
    }

    /// Starts one for one test only.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts one that breaks this rule (see its text), for one test only.
    pub fn with_fault(fault: &str) -> Self {
        Self::start_with(&[fault])
    }

    /// Starts one on this host, for one test only.
    pub fn start_on(host: &Host) -> Self {
        Self::start_in(host, &[], |_| {})
    }

    /// Starts one with TLS, for one test only, that knows these users: lines `TOKEN,USER,VERB...`. Its certificates are in its
    /// directory.
    pub fn secure(users: &str) -> Self {
        Self::start_in(&Host::default(), &[], |directory| {
            Certificates::make(directory, Flaw::None);
            std::fs::write(directory.join("tokens"), users).expect("a file");
        })
    }

    /// Starts one with TLS and these certificates, for one test only, where everyone may do everything.
    pub fn with_certificates(files: &Certificates) -> Self {
        Self::start_in(&Host::default(), &[], |directory| {
            for file in [&files.ca, &files.server, &files.server_key] {
                std::fs::copy(file, directory.join(file.file_name().expect("a name"))).expect("a copy");
            }
        })
    }

    /// Replaces the users that it knows.
    pub fn set_users(&self, users: &str) {
        let directory = self.daemon.directory();
        std::fs::write(directory.join("new"), users).expect("a file");
        std::fs::rename(directory.join("new"), directory.join("tokens")).expect("our own file");
    }

    /// How many writes there were.
    pub fn writes(&self) -> usize {
        super::place::read(&self.daemon.directory().join("journal")).lines().count()
    }

    fn start_with(fault: &[&str]) -> Self {
        Self::start_in(&Host::default(), fault, |_| {})
    }

    fn start_in(host: &Host, fault: &[&str], prepare: impl Fn(&Path)) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/support/kubernetes_server.py");
        // Another process may take the port between the check and the server's bind.
        for _ in 0..10 {
            let port = free_port();
            let directory = tempfile::Builder::new().prefix("it-kubernetes-").tempdir().expect("a directory");
            prepare(directory.path());
            let path = directory.path().display().to_string();
            let fault = fault.iter().map(|word| (*word).to_owned());
            let all = [script.to_owned(), port.to_string(), path].into_iter().chain(fault).collect();
            let program = PathBuf::from("python3");
            let daemon = Daemon::new("python3", &program, all, (host, port), directory);
            let mut server = Self { daemon };
            server.daemon.launch();
            if server.await_up() {
                return server;
            }
        }
        panic!("python3 does not start")
    }

    fn await_up(&mut self) -> bool {
        let address = self.daemon.address();
        self.daemon.await_up(|| TcpStream::connect(address).is_ok())
    }

    /// Its process, to be stopped and resumed.
    pub fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.daemon.kill();
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.daemon.address().port()
    }

    /// The URL of its locks.
    pub fn url(&self) -> String {
        self.url_by(self.port())
    }

    /// Its URL by way of another port.
    pub fn url_by(&self, port: u16) -> String {
        url_of(self.daemon.directory(), &format!("http://127.0.0.1:{port}"))
    }

    /// Kills it, if it runs, and starts it again on its port, with its data.
    #[track_caller]
    pub fn restart(&mut self) {
        self.kill();
        until(SOON, "the server's old port", || {
            self.daemon.launch();
            self.await_up()
        });
    }

    /// The reply to a request: its status and its body.
    #[track_caller]
    pub fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        self.try_ask(method, path, body).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn try_ask(&self, method: &str, path: &str, body: &Value) -> std::io::Result<(u16, Value)> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut stream = TcpStream::connect(self.daemon.address())?;
        stream.set_read_timeout(Some(SOON))?;
        write!(
            stream,
            "{method} {path} HTTP/1.0\r\nHost: localhost\r\nConnection: close\r\nUser-Agent: controller/1\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply)?;
        let (head, body) = reply.split_once("\r\n\r\n").unwrap_or_default();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let body: String = match head.contains("Transfer-Encoding: chunked") {
            false => body.to_owned(),
            true => unchunked(body),
        };
        Ok((status, serde_json::from_str(&body)?))
    }

    fn path(name: &str) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases{name}")
    }

    /// The Lease with this name; null if there is none.
    #[track_caller]
    pub fn lease(&self, name: &str) -> Value {
        match self.ask("GET", &Self::path(&format!("/{name}")), &Value::Null) {
            (200, lease) => lease,
            (404, _) => Value::Null,
            other => panic!("{other:?}"),
        }
    }

    /// Writes a Lease if it has not changed since it was read, or does not exist, as another program does. Returns whether it is
    /// written.
    #[track_caller]
    pub fn put(&self, name: &str, mut lease: Value) -> bool {
        let is_new = lease["metadata"]["resourceVersion"].is_null();
        lease["metadata"]["name"] = name.into();
        let status = match is_new {
            true => self.ask("POST", &Self::path(""), &lease).0,
            false => self.ask("PUT", &Self::path(&format!("/{name}")), &lease).0,
        };
        assert!([200, 201, 409].contains(&status), "{status}");
        status != 409
    }

    /// Deletes a Lease.
    pub fn delete(&self, name: &str) {
        self.ask("DELETE", &Self::path(&format!("/{name}")), &Value::Null);
    }

    /// The ledger of a lock; an empty one if there is none.
    pub fn ledger(&self, name: &str) -> Ledger {
        let lease = self.lease(&key(name));
        let ledger = lease["metadata"]["annotations"][LEDGER].as_str().unwrap_or_default();
        Ledger::parse(ledger.as_bytes()).unwrap_or_default()
    }

    /// How many requests with this verb there were.
    pub fn count(&self, verb: &str) -> u64 {
        self.ask("GET", "/_/counts", &Value::Null).1[verb].as_u64().unwrap_or(0)
    }

    /// Forgets all events, which ends the watches.
    pub fn expire(&self) {
        self.ask("POST", "/_/expire", &Value::Null);
    }

    /// The names of all Leases.
    pub fn names(&self) -> Vec<String> {
        let (_, list) = self.ask("GET", &Self::path(""), &Value::Null);
        let leases = list["items"].as_array().into_iter().flatten();
        leases.map(|lease| lease["metadata"]["name"].as_str().expect("a name").to_owned()).collect()
    }

    /// Removes all Leases.
    pub fn wipe(&self) {
        self.names().iter().for_each(|name| self.delete(name));
    }
}

impl Group for Kubernetes {
    fn start() -> Self {
        Self::start_with(&[])
    }

    fn renew(&mut self) -> bool {
        self.daemon.is_up() && self.try_ask("GET", "/version", &Value::Null).is_ok() && {
            self.wipe();
            true
        }
    }
}

/// A program that takes Leases as client-go's leader election does.
#[derive(Debug)]
pub struct Controller {
    /// Its identity.
    pub name: String,
}

impl Controller {
    /// One with this identity.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned() }
    }

    /// Takes a Lease if nobody holds it, for this time unless it is renewed. Returns whether it has.
    pub fn try_take(&self, server: &Kubernetes, lease: &str, time: Option<Duration>) -> bool {
        let spec = server.lease(lease)["spec"].take();
        let holder = spec["holderIdentity"].as_str().unwrap_or_default();
        let renewed = spec["renewTime"].as_str().and_then(|time| time.parse::<Timestamp>().ok());
        let seconds = spec["leaseDurationSeconds"].as_i64().unwrap_or(0);
        let is_over =
            renewed.is_none_or(|renewed| renewed.as_second() + seconds < Timestamp::now().as_second());
        (holder.is_empty() || holder == self.name || is_over) && self.take(server, lease, time)
    }

    /// Takes a Lease from whoever holds it, or renews it. Returns false if it was changed meanwhile.
    pub fn take(&self, server: &Kubernetes, lease: &str, time: Option<Duration>) -> bool {
        let seconds = time.map_or(3600, |time| time.as_secs().max(1));
        self.write(server, lease, &self.name, seconds)
    }

    /// Gives a Lease up.
    pub fn release(&self, server: &Kubernetes, lease: &str) {
        while !self.write(server, lease, "", 1) {}
    }

    /// Whether it holds a Lease.
    pub fn holds(&self, server: &Kubernetes, lease: &str) -> bool {
        server.lease(lease)["spec"]["holderIdentity"] == self.name.as_str()
    }

    fn write(&self, server: &Kubernetes, lease: &str, holder: &str, seconds: u64) -> bool {
        let mut object = server.lease(lease);
        let now = format!("{:.6}", Timestamp::now());
        if object.is_null() {
            object =
                json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {}, "spec": {}});
        }
        let spec = &mut object["spec"];
        if spec["holderIdentity"] != holder {
            let transitions = spec["leaseTransitions"].as_u64();
            spec["leaseTransitions"] = transitions.map_or(0, |count| count + 1).into();
            spec["acquireTime"] = now.clone().into();
        }
        spec["holderIdentity"] = holder.into();
        spec["leaseDurationSeconds"] = seconds.into();
        spec["renewTime"] = now.into();
        server.put(lease, object)
    }
}

/// The URL of a server, whose configuration is in a file of this directory.
pub fn url_of(directory: &Path, server: &str) -> String {
    url_with(directory, &json!({ "server": server }), &json!({}))
}

/// The same, for a cluster and a user as they are in the configuration.
pub fn url_with(directory: &Path, cluster: &Value, user: &Value) -> String {
    let text = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{ "name": "test", "cluster": cluster }],
        "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test" } }],
        "users": [{ "name": "test", "user": user }],
    })
    .to_string();
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let file = directory.join(format!("kubeconfig-{:x}", hasher.finish()));
    if !file.exists() {
        // A run may read it at this moment.
        let new = file.with_extension("new");
        std::fs::write(&new, text).expect("a file");
        std::fs::rename(&new, &file).expect("the same directory");
    }
    format!("k8s://{NAMESPACE}?kubeconfig={}", file.display())
}

/// The name of the Lease of a lock.
pub fn key(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    if name.bytes().all(|byte| is_plain(byte) || byte == b'-')
        && !name.starts_with("dlock--")
        && !name.ends_with('-')
    {
        return name.to_owned();
    }
    let encoded = name.bytes().map(|byte| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("-{byte:02x}"),
    });
    format!("dlock--{}", encoded.collect::<String>())
}

/// A body in chunks, decoded.
fn unchunked(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).expect("the length of a chunk");
        whole.push_str(&rest[..length]);
        body = &rest[length + 2..];
        if length == 0 {
            break;
        }
    }
    whole
}

//! Servers that speak DynamoDB's protocol: one of our own by its rules, and moto, which others have written.

use super::SOON;
use super::daemon::{Daemon, Host};
use super::pool::{Group, Lent, lend};
use super::server::{await_no_clients, free_port};
use super::tls::Certificates;
use super::wait::until;
use dlock::backend::ledger::{HolderEntry, Ledger};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The table that each server has.
pub const TABLE: &str = "Locks";

/// A server with one table.
#[derive(Debug)]
pub struct Dynamo {
    daemon: Daemon,
}

/// The same, of moto.
#[derive(Debug)]
pub struct Moto(Dynamo);

impl Dynamo {
    /// An empty one from the pool.
    pub fn lent() -> Lent<Self> {
        lend()
    }

    /// Starts one for one test only.
    pub fn start() -> Self {
        let server = Self::start_with(&[]);
        server.create("key");
        server
    }

    /// Its process, to be stopped and resumed.
    pub fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    /// Starts one without a table, for one test only.
    pub fn without_table() -> Self {
        Self::start_with(&[])
    }

    /// Starts one that breaks this rule (see its text), for one test only.
    pub fn with_fault(fault: &str) -> Self {
        let server = Self::start_with(&[fault]);
        while server.ask("CreateTable", table("key"))["TableDescription"].is_null() {}
        server
    }

    /// Starts one with TLS, for one test only.
    pub fn secure(files: &Certificates) -> Self {
        Self::start_in(&[], |directory| {
            for file in [&files.server, &files.server_key] {
                std::fs::copy(file, directory.join(file.file_name().expect("a name"))).expect("a copy");
            }
            let mut table = table("key");
            table["TableStatus"] = "ACTIVE".into();
            let created = json!([TABLE, null, table]);
            std::fs::write(directory.join("journal"), format!("{created}\n")).expect("a file");
        })
    }

    fn start_with(fault: &[&str]) -> Self {
        Self::start_in(fault, |_| {})
    }

    fn start_in(fault: &[&str], prepare: impl Fn(&Path)) -> Self {
        let program = PathBuf::from("python3");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/support/dynamodb_server.py");
        Self::start_program("python3", &program, |port, directory| {
            prepare(directory);
            let journal = directory.join("journal").display().to_string();
            let fault = fault.iter().map(|word| (*word).to_owned());
            [script.to_owned(), port.to_string(), journal].into_iter().chain(fault).collect()
        })
    }

    fn start_program(
        package: &'static str,
        program: &Path,
        arguments: impl Fn(u16, &Path) -> Vec<String>,
    ) -> Self {
        // Another process may take the port between the check and the server's bind.
        for _ in 0..10 {
            let port = free_port();
            let directory = tempfile::Builder::new().prefix("it-dynamodb-").tempdir().expect("a directory");
            std::fs::write(directory.path().join("secret"), "test-secret-key").expect("a file");
            let all = arguments(port, directory.path());
            let daemon = Daemon::new(package, program, all, (&Host::default(), port), directory);
            let mut server = Self { daemon };
            server.daemon.launch();
            if server.await_up() {
                return server;
            }
        }
        panic!("{package} does not start")
    }

    fn await_up(&mut self) -> bool {
        let address = self.daemon.address();
        self.daemon.await_up(|| TcpStream::connect(address).is_ok())
    }

    /// Creates the table, with this partition key.
    pub fn create(&self, key: &str) {
        let created = self.ask("CreateTable", table(key));
        assert!(created["TableDescription"].is_object(), "{created}");
    }

    /// Its URL, with the file of the key in it.
    pub fn url(&self) -> String {
        self.url_by(self.port())
    }

    /// Its URL by way of another port.
    pub fn url_by(&self, port: u16) -> String {
        self.url_at(&format!("http://127.0.0.1:{port}"))
    }

    /// Its URL by way of another server.
    pub fn url_at(&self, endpoint: &str) -> String {
        let secret = self.secret();
        format!("dynamodb://test-key@{TABLE}/jobs?endpoint={endpoint}&password_file={}", secret.display())
    }

    /// The file of the key.
    pub fn secret(&self) -> PathBuf {
        self.daemon.directory().join("secret")
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.daemon.address().port()
    }

    /// Kills it, and starts it again on its port, with its data.
    #[track_caller]
    pub fn restart(&mut self) {
        self.daemon.kill();
        until(SOON, "the server's old port", || {
            self.daemon.launch();
            self.await_up()
        });
    }

    /// The reply to a request about the table.
    #[track_caller]
    pub fn ask(&self, action: &str, body: Value) -> Value {
        self.try_ask(action, body).unwrap_or_else(|error| panic!("{action}: {error}"))
    }

    fn try_ask(&self, action: &str, mut body: Value) -> std::io::Result<Value> {
        body["TableName"] = TABLE.into();
        let body = body.to_string();
        let mut stream = TcpStream::connect(self.daemon.address())?;
        stream.set_read_timeout(Some(SOON))?;
        write!(
            stream,
            "POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Amz-Target: DynamoDB_20120810.{action}\r\n\
             Content-Type: application/x-amz-json-1.0\r\nContent-Length: {}\r\n\
             Authorization: AWS4-HMAC-SHA256 Credential=k/20260101/us-east-1/dynamodb/aws4_request, SignedHeaders=host, \
             Signature=x\r\n\r\n{body}",
            body.len()
        )?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply)?;
        let body = reply.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
        Ok(serde_json::from_str(body)?)
    }

    /// The item with this key; null if there is none.
    #[track_caller]
    pub fn item(&self, key: &str) -> Value {
        let attribute = self.attribute();
        self.ask("GetItem", json!({"Key": {attribute: {"S": key}}, "ConsistentRead": true}))["Item"].take()
    }

    /// Writes an item, as another program does. Its key need not be in it.
    #[track_caller]
    pub fn put(&self, key: &str, mut item: Value) {
        item[self.attribute()] = json!({"S": key});
        let reply = self.ask("PutItem", json!({"Item": item}));
        assert!(reply["__type"].is_null(), "{reply}");
    }

    /// Deletes an item.
    #[track_caller]
    pub fn delete(&self, key: &str) {
        let attribute = self.attribute();
        self.ask("DeleteItem", json!({"Key": {attribute: {"S": key}}}));
    }

    /// The partition key of the table.
    pub fn attribute(&self) -> String {
        let table = self.ask("DescribeTable", json!({}));
        table["Table"]["KeySchema"][0]["AttributeName"].as_str().expect("a key").to_owned()
    }

    /// The ledger of a lock as `status` would read it; an empty one if there is none.
    pub fn ledger(&self, name: &str) -> Ledger {
        self.ledger_in(&key(name))
    }

    /// The ledger in the item with this key.
    pub fn ledger_in(&self, key: &str) -> Ledger {
        let item = self.item(key);
        let ledger = Ledger::parse(item["ledger"]["S"].as_str().unwrap_or_default().as_bytes());
        let mut ledger = ledger.unwrap_or_default();
        if let Some(taken) = item["taken"]["S"].as_str() {
            let mut taken: Value = serde_json::from_str(taken).expect("JSON");
            let mut holder: HolderEntry = serde_json::from_value(taken["holder"].take()).expect("a holder");
            let clock: Duration = serde_json::from_value(taken["clock"].take()).expect("a time");
            holder.lease_ends = holder.lease_ends.map(|lease| clock + lease);
            ledger.holders.push(holder);
        }
        ledger
    }

    /// How many requests of this kind there were.
    pub fn count(&self, action: &str) -> u64 {
        self.ask("Counts", json!({}))["actions"][action].as_u64().unwrap_or(0)
    }

    /// The keys of all items.
    pub fn keys(&self) -> Vec<String> {
        let attribute = self.attribute();
        let (mut keys, mut body) = (Vec::new(), json!({}));
        loop {
            let mut page = self.ask("Scan", body);
            for item in page["Items"].as_array().into_iter().flatten() {
                keys.push(item[&attribute]["S"].as_str().expect("a key").to_owned());
            }
            match page["LastEvaluatedKey"].take() {
                Value::Null => break,
                last => body = json!({"ExclusiveStartKey": last}),
            }
        }
        keys.sort();
        keys
    }

    /// Removes all items.
    pub fn wipe(&self) {
        self.keys().iter().for_each(|key| self.delete(key));
    }
}

impl Group for Dynamo {
    fn start() -> Self {
        let server = Self::without_table();
        server.create("name");
        server
    }

    fn renew(&mut self) -> bool {
        // The last request of a client that was killed may write an item.
        let is_idle = self.daemon.is_up() && await_no_clients(self.daemon.pid(), self.port());
        is_idle && self.try_ask("DescribeTable", json!({})).is_ok() && {
            self.wipe();
            true
        }
    }
}

impl Moto {
    /// An empty one from the pool.
    pub fn lent() -> Lent<Self> {
        lend()
    }
}

impl std::ops::Deref for Moto {
    type Target = Dynamo;

    fn deref(&self) -> &Dynamo {
        &self.0
    }
}

impl Group for Moto {
    fn start() -> Self {
        let python = std::env::var_os("DLOCK_TEST_PYTHON").map_or_else(
            || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/target/python/bin/python")),
            PathBuf::from,
        );
        let server = Dynamo::start_program("moto (pip install 'moto[server]')", &python, |port, _| {
            ["-m", "moto.server", "-H", "127.0.0.1", "-p", &port.to_string()].map(str::to_owned).to_vec()
        });
        server.create("key");
        Self(server)
    }

    fn renew(&mut self) -> bool {
        self.0.renew()
    }
}

/// The description of a table with this partition key.
pub fn table(key: &str) -> Value {
    json!({
        "BillingMode": "PAY_PER_REQUEST",
        "KeySchema": [{"AttributeName": key, "KeyType": "HASH"}],
        "AttributeDefinitions": [{"AttributeName": key, "AttributeType": "S"}],
    })
}

/// The key of a lock in [`Dynamo::url`].
pub fn key(name: &str) -> String {
    format!("jobs/{}", name.replace('%', "%25").replace('/', "%2F"))
}

//! Servers that speak S3's protocol: Versity's gateway in front of a directory, in which each object is a file, and moto.

use super::SOON;
use super::daemon::{Daemon, Host};
use super::dynamodb::Moto;
use super::pool::{Group, Lent, lend};
use super::server::{await_no_clients, free_port, other_version};
use super::tls::Certificates;
use super::wait::until;
use dlock::backend::ledger::Ledger;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;

/// The key of its user, ...
pub const KEY: &str = "test-key";
/// ... and the secret.
pub const SECRET: &str = "test-secret-key";
/// Its bucket.
pub const BUCKET: &str = "locks";

/// A server with one bucket.
#[derive(Debug)]
pub struct S3 {
    daemon: Daemon,
    /// The authority of its certificate, with TLS.
    ca: Option<String>,
}

impl S3 {
    /// An empty one from the pool.
    pub fn lent() -> Lent<Self> {
        lend()
    }

    /// Starts one for one test only.
    pub fn start() -> Self {
        Self::start_with(&[], None)
    }

    /// Starts one for one test only, with these arguments, and with TLS.
    pub fn start_with(arguments: &[&str], certificates: Option<&Certificates>) -> Self {
        // Another process may take the port between the check and the server's bind.
        for _ in 0..10 {
            let port = free_port();
            let directory = tempfile::Builder::new().prefix("it-s3-").tempdir().expect("a directory");
            let data = directory.path().join("data");
            std::fs::create_dir_all(data.join(BUCKET)).expect("a bucket");
            std::fs::write(directory.path().join("secret"), SECRET).expect("a file");
            let address = format!("127.0.0.1:{port}");
            let mut all =
                vec!["--port", &address, "--access", KEY, "--secret", SECRET, "--quiet", "--keep-alive"];
            let tls = certificates
                .map(|files| [&files.server, &files.server_key].map(|file| file.display().to_string()));
            if let Some([certificate, key]) = &tls {
                all.extend(["--cert", certificate, "--key", key]);
            }
            all.push("posix");
            all.extend(arguments);
            let data = data.to_string_lossy();
            all.push(&data);
            let all = all.iter().map(|argument| (*argument).to_owned()).collect();
            let program = other_version("versitygw-1.8");
            let daemon = Daemon::new("versitygw", &program, all, (&Host::default(), port), directory);
            let ca = certificates.map(|files| files.ca.display().to_string());
            let mut server = Self { daemon, ca };
            server.daemon.launch();
            if server.await_up() {
                return server;
            }
        }
        panic!("versitygw does not start")
    }

    fn await_up(&mut self) -> bool {
        let address = self.daemon.address();
        self.daemon.await_up(|| TcpStream::connect(address).is_ok())
    }

    /// Its URL, with the file of the key in it.
    pub fn url(&self) -> String {
        let ca = self.ca.as_ref().map(|ca| format!("&ca_file={ca}")).unwrap_or_default();
        let scheme = if self.ca.is_some() { "https" } else { "http" };
        self.url_by(&format!("{scheme}://127.0.0.1:{}", self.port())) + &ca
    }

    /// Its URL by way of another server.
    pub fn url_by(&self, endpoint: &str) -> String {
        let secret = self.daemon.directory().join("secret");
        format!("s3://{KEY}@{BUCKET}/jobs?endpoint={endpoint}&password_file={}", secret.display())
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.daemon.address().port()
    }

    /// Its process, to be stopped and resumed.
    pub fn daemon(&self) -> &Daemon {
        &self.daemon
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

    /// The file of an object.
    pub fn file(&self, key: &str) -> PathBuf {
        self.daemon.directory().join("data").join(BUCKET).join(key)
    }

    /// The content of an object.
    pub fn object(&self, key: &str) -> Option<String> {
        std::fs::read_to_string(self.file(key)).ok()
    }

    /// Writes an object, as another program does.
    #[track_caller]
    pub fn put(&self, key: &str, content: &str) {
        put(self.port(), key, content);
    }

    /// Sets a property of the bucket, such as `versioning`.
    #[track_caller]
    pub fn set(&self, property: &str, xml: &str) {
        self.put(&format!("?{property}="), xml);
    }

    /// The keys of all objects.
    pub fn keys(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.file("jobs")).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().expect("a name in UTF-8"));
        let mut keys: Vec<String> = names.map(|name| format!("jobs/{name}")).collect();
        keys.sort();
        keys
    }

    /// Removes all objects.
    pub fn wipe(&self) {
        let _ = std::fs::remove_dir_all(self.file("jobs"));
    }
}

impl Group for S3 {
    fn start() -> Self {
        Self::start()
    }

    fn renew(&mut self) -> bool {
        // The last request of a client that was killed may write an object.
        let is_idle = self.daemon.is_up() && await_no_clients(self.daemon.pid(), self.port());
        self.wipe();
        is_idle
    }
}

/// A server that others have written, with the same bucket.
#[derive(Debug)]
pub struct MotoS3(Moto);

impl MotoS3 {
    /// An empty one from the pool.
    pub fn lent() -> Lent<Self> {
        lend()
    }
}

impl Group for MotoS3 {
    fn start() -> Self {
        let server = Moto::start();
        put(server.port(), "", "");
        Self(server)
    }

    fn renew(&mut self) -> bool {
        let is_idle = self.0.renew();
        if is_idle {
            self.wipe();
        }
        is_idle
    }
}

/// What a test does with the objects of either.
pub trait Bucket {
    /// Its URL, with the file of the key in it.
    fn url(&self) -> String;

    /// The content of an object.
    fn object(&self, key: &str) -> Option<String>;

    /// Writes an object, as another program does.
    fn put(&self, key: &str, content: &str);

    /// Deletes an object that exists.
    fn delete(&self, key: &str);

    /// Removes all objects.
    fn wipe(&self);

    /// Kills the server, and starts it again on its port, with its data.
    fn restart(&mut self);

    /// The ledger of a lock; an empty one if there is none.
    fn ledger(&self, name: &str) -> Ledger {
        let object = self.object(&key(name)).unwrap_or_default();
        Ledger::parse(object.as_bytes()).unwrap_or_default()
    }
}

impl Bucket for S3 {
    fn url(&self) -> String {
        Self::url(self)
    }

    fn object(&self, key: &str) -> Option<String> {
        Self::object(self, key)
    }

    fn put(&self, key: &str, content: &str) {
        Self::put(self, key, content);
    }

    fn delete(&self, key: &str) {
        std::fs::remove_file(self.file(key)).expect("an object");
    }

    fn wipe(&self) {
        Self::wipe(self);
    }

    fn restart(&mut self) {
        Self::restart(self);
    }
}

impl Bucket for MotoS3 {
    fn url(&self) -> String {
        let (port, secret) = (self.0.port(), self.0.secret());
        let secret = secret.display();
        format!("s3://{KEY}@{BUCKET}/jobs?endpoint=http://127.0.0.1:{port}&password_file={secret}")
    }

    fn object(&self, key: &str) -> Option<String> {
        curl(self.0.port(), key, &[])
    }

    fn put(&self, key: &str, content: &str) {
        put(self.0.port(), key, content);
    }

    fn delete(&self, key: &str) {
        curl(self.0.port(), key, &["--request", "DELETE"]).expect("an object");
    }

    fn wipe(&self) {
        let list = curl(self.0.port(), "", &[]).expect("a bucket");
        let keys = list.split("<Key>").skip(1).filter_map(|rest| rest.split_once("</Key>"));
        keys.for_each(|(key, _)| self.delete(key));
    }

    fn restart(&mut self) {
        unreachable!("moto keeps nothing");
    }
}

/// Writes an object, or creates the bucket.
#[track_caller]
fn put(port: u16, key: &str, content: &str) {
    // curl's own type is that of a form, whose fields moto looks for.
    let binary = "Content-Type: application/octet-stream";
    let put = curl(port, key, &["--request", "PUT", "--header", binary, "--data-binary", content]);
    assert!(put.is_some(), "PUT of {key:?}");
}

/// What the server replies, unless that is an error.
fn curl(port: u16, key: &str, arguments: &[&str]) -> Option<String> {
    let url = format!("http://127.0.0.1:{port}/{BUCKET}/{}", key.replace('%', "%25"));
    let user = format!("{KEY}:{SECRET}");
    // This version of curl signs the header, but does not add it.
    let signed =
        ["--aws-sigv4", "aws:amz:us-east-1:s3", "--header", "x-amz-content-sha256: UNSIGNED-PAYLOAD"];
    let reply = Command::new("curl")
        .args(["--silent", "--fail", "--user", &user, &url])
        .args(signed)
        .args(arguments)
        .output()
        .expect("curl is missing: install the Debian package curl");
    reply.status.success().then(|| String::from_utf8(reply.stdout).expect("UTF-8"))
}

/// The key of a lock.
pub fn key(name: &str) -> String {
    format!("jobs/{}.dlock", name.replace('%', "%25").replace('/', "%2F").replace(' ', "%20"))
}

//! A store as a newcomer writes it: ledgers as values of a server that can do nothing but swap a value by its version. It
//! sends no notifications, so that waiters look at the ledger from time to time.

use super::Memory;
use crate::support::pool::{Group, Lent, lend};
use crate::support::server::{self, server};
use dlock::backend::admin::{Listed, LockAdmin};
use dlock::backend::diagnosis::Diagnosis;
use dlock::backend::ledger::document::{DocumentStore, Documents, Revision, Seen, Shortcut};
use dlock::backend::ledger::waiting::{Waiting, calls};
use dlock::backend::ledger::{Contender, Ledger, Now, Purpose, Store, WaiterEntry};
use dlock::backend::{Change, Reply, StoreError, TryReply};
use dlock::clock::Moment;
use dlock::lock::LockName;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Child, Stdio};
use std::rc::Rc;
use std::time::Duration;

/// The server, a process of its own.
pub struct Server {
    process: Child,
    port: u16,
}

impl Group for Server {
    fn start() -> Self {
        let mut command = server("python3", "python3");
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/support/key_value_server.py"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = server::start(command);
        let mut port = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut port).unwrap();
        Self { process, port: port.trim().parse().unwrap() }
    }

    fn renew(&mut self) -> bool {
        Http { port: self.port, stream: None }.wipe().is_ok()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What all clients share.
pub struct Remote(Lent<Server>);

impl Remote {
    fn http(&self) -> Http {
        Http { port: self.0.port, stream: None }
    }
}

impl Memory for Remote {
    fn new() -> Rc<Self> {
        Rc::new(Self(lend()))
    }

    fn open(self: Rc<Self>) -> Box<dyn LockAdmin> {
        Box::new(Contender::new(RemoteClient { http: self.http(), waiting: None, server: self }))
    }

    fn ledger(&self, name: &str) -> Ledger {
        Ledger::parse(&self.http().get(&key(name)).unwrap().value).unwrap_or_default()
    }

    fn delete(&self, name: &str) {
        self.http().ask("DELETE", &key(name), 0, b"").unwrap();
    }

    /// A ledger is released as it was seen last, by a clock that may be ahead by the time that a request takes.
    fn rounding() -> Duration {
        Duration::from_secs(1)
    }

    fn detects_dead_waiters() -> bool {
        false
    }

    fn wipe(&self) {
        self.http().wipe().unwrap();
    }
}

/// The path of a lock.
fn key(name: &str) -> String {
    name.bytes().fold("/".to_owned(), |path, byte| format!("{path}{byte:02x}"))
}

/// The name of the lock with this path.
fn name_of(key: &str) -> Option<LockName> {
    let digits = key.strip_prefix('/')?;
    let bytes = (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok());
    LockName::new(&String::from_utf8(bytes.collect::<Option<_>>()?).ok()?).ok()
}

/// A reply of the server.
#[derive(Default)]
struct Stored {
    status: u16,
    time: u64,
    version: u64,
    value: Vec<u8>,
}

/// A connection. It blocks: the server is near.
struct Http {
    port: u16,
    stream: Option<BufReader<TcpStream>>,
}

impl Http {
    fn get(&mut self, key: &str) -> Result<Stored, StoreError> {
        self.ask("GET", key, 0, b"")
    }

    fn keys(&mut self) -> Result<Vec<String>, StoreError> {
        let keys = String::from_utf8(self.get("/")?.value).unwrap();
        Ok(keys.lines().map(str::to_owned).collect())
    }

    fn wipe(&mut self) -> Result<(), StoreError> {
        for key in self.keys()? {
            self.ask("DELETE", &key, 0, b"")?;
        }
        Ok(())
    }

    fn ask(&mut self, method: &str, key: &str, version: u64, value: &[u8]) -> Result<Stored, StoreError> {
        let reply = self.exchange(method, key, version, value);
        reply.map_err(|error| StoreError::unanswered(error.to_string()))
    }

    fn exchange(&mut self, method: &str, key: &str, version: u64, value: &[u8]) -> std::io::Result<Stored> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => BufReader::new(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?),
        };
        let length = value.len();
        let head =
            format!("{method} {key} HTTP/1.1\r\nIf-Match: {version}\r\nContent-Length: {length}\r\n\r\n");
        stream.get_mut().write_all(&[head.as_bytes(), value].concat())?;
        let (mut stored, mut length) = (Stored::default(), 0);
        loop {
            let mut line = String::new();
            stream.read_line(&mut line)?;
            let mut words = line.split_ascii_whitespace();
            let (first, second) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            let number = || second.parse().map_err(std::io::Error::other);
            match first {
                "" => break,
                "HTTP/1.1" => stored.status = second.parse().map_err(std::io::Error::other)?,
                "Time:" => stored.time = number()?,
                "Version:" => stored.version = number()?,
                "Content-Length:" => length = second.parse().map_err(std::io::Error::other)?,
                _ => {}
            }
        }
        stored.value = vec![0; length];
        stream.read_exact(&mut stored.value)?;
        self.stream = Some(stream);
        Ok(stored)
    }
}

/// A client.
struct RemoteClient {
    http: Http,
    waiting: Option<Waiting>,
    /// It ends after its clients.
    #[expect(dead_code, reason = "it is only kept")]
    server: Rc<Remote>,
}

impl DocumentStore for RemoteClient {
    /// 0 if there is no value.
    type Version = u64;

    async fn load(
        &mut self,
        name: &LockName,
        _: &Purpose,
        _: &Shortcut,
        _: Option<&Seen<u64>>,
    ) -> Result<Seen<u64>, StoreError> {
        let sent = Moment::now();
        let Stored { time, version, value, .. } = self.http.get(&key(name.as_str()))?;
        let ledger = match version {
            0 => Ledger::default(),
            _ => Ledger::parse(&value).map_err(|why| StoreError::Config(format!("{name}: {why}")))?,
        };
        let now = Now { clock: Duration::from_micros(time), wall: time };
        Ok(Seen { ledger, version, now, sent, occupants: None })
    }

    fn is_subscribed(&self, name: &LockName, waiter: &WaiterEntry) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| waiting.is(name, waiter.ticket))
    }

    async fn swap(
        &mut self,
        name: &LockName,
        _: &Purpose,
        version: u64,
        revision: Revision<'_>,
    ) -> Result<Option<u64>, StoreError> {
        let value = revision.ledger.to_json();
        let stored = self.http.ask("PUT", &key(name.as_str()), version, &value)?;
        if stored.status != 200 {
            return Ok(None);
        }
        Waiting::note(&mut self.waiting, name, revision.effect, &calls(revision.ledger));
        Ok(Some(stored.version))
    }
}

impl RemoteClient {
    /// Returns the locks whose ledgers fulfil this.
    fn names(&mut self, is_meant: impl Fn(&Ledger) -> bool) -> Result<Vec<LockName>, StoreError> {
        let mut names = Vec::new();
        for key in self.http.keys()? {
            let value = self.http.get(&key)?.value;
            names.extend(
                name_of(&key).filter(|_| Ledger::parse(&value).is_ok_and(|ledger| is_meant(&ledger))),
            );
        }
        Ok(names)
    }
}

impl Store for RemoteClient {
    type Shape = Documents<u64>;

    fn connect(&mut self) -> TryReply<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn list(&mut self, which: Listed) -> TryReply<'_, Vec<LockName>> {
        Box::pin(async move { self.names(|ledger| ledger.is_listed(which)) })
    }

    fn changed(&mut self) -> Reply<'_, Change> {
        Box::pin(async {
            while let Some(waiting) = &mut self.waiting {
                waiting.pause().await;
                let Ok(stored) = self.http.get(&key(waiting.name.as_str())) else {
                    return Change::Disconnected;
                };
                let calls = Ledger::parse(&stored.value).ok().map(|ledger| calls(&ledger));
                if let Some(change) = waiting.change(calls.as_deref()) {
                    return change;
                }
            }
            std::future::pending().await
        })
    }

    fn examine<'a>(&'a mut self, _: &'a Diagnosis) -> TryReply<'a, ()> {
        Box::pin(async { Ok(()) })
    }
}

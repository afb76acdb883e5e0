//! Two servers, and sentinels that name the master chosen by the test.

use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::fake::Fake;
use crate::support::inherited_lock::InheritedLock;
use crate::support::place::Place;
use crate::support::redis::Redis;
use crate::support::resp::{Value, bulk};
use crate::support::running::Running;
use crate::support::wait::until;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The name of the service.
pub const SERVICE: &str = "locks";

/// The reply of one sentinel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FakeReply {
    /// The master listens on this port, since the failover of this number.
    Names(u16, u64),
    /// It knows only another service.
    KnowsNothing,
    /// It does not reply.
    Hangs,
    /// It closes the connection.
    Refuses,
}

/// A sentinel controlled by the test.
pub struct FakeSentinel {
    fake: Fake,
    says: Arc<Mutex<FakeReply>>,
}

impl FakeSentinel {
    fn that(says: FakeReply) -> Self {
        let says = Arc::new(Mutex::new(says));
        let theirs = Arc::clone(&says);
        let fake = Fake::scripted(move |words| {
            let mut says = *lock(&theirs);
            while says == FakeReply::Hangs {
                std::thread::sleep(Duration::from_millis(3));
                says = *lock(&theirs);
            }
            answer(says, words)
        });
        Self { fake, says }
    }

    /// Changes its reply.
    pub fn say(&self, says: FakeReply) {
        *lock(&self.says) = says;
    }

    /// Number of its connections so far.
    pub fn connections(&self) -> usize {
        self.fake.connections()
    }

    /// Every command that it received.
    pub fn commands(&self) -> Vec<Vec<String>> {
        self.fake.commands()
    }
}

impl Drop for FakeSentinel {
    fn drop(&mut self) {
        self.say(FakeReply::Refuses);
    }
}

fn answer(says: FakeReply, words: &[String]) -> Option<Vec<u8>> {
    let list = |items: &[&str]| {
        let items: Vec<u8> = items.iter().flat_map(|item| bulk(item)).collect();
        items
    };
    let array = |count: usize, items: Vec<u8>| [format!("*{count}\r\n").into_bytes(), items].concat();
    let question = words.get(1).map(|word| word.to_lowercase()).unwrap_or_default();
    let ours = words.get(2).is_some_and(|service| service == SERVICE);
    Some(match (says, question.as_str()) {
        (FakeReply::Refuses | FakeReply::Hangs, _) => return None,
        (_, "masters") => array(1, array(2, list(&["name", SERVICE]))),
        (FakeReply::Names(port, _), "get-master-addr-by-name") if ours => {
            array(2, list(&["127.0.0.1", &port.to_string()]))
        }
        (FakeReply::Names(_, epoch), "master") if ours => {
            array(4, list(&["name", SERVICE, "config-epoch", &epoch.to_string()]))
        }
        (_, "get-master-addr-by-name") => b"*-1\r\n".to_vec(),
        _ => b"-ERR No such master with that name\r\n".to_vec(),
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Two servers and three sentinels.
pub struct FakeService {
    /// The place of the runs.
    pub place: Place,
    /// The initial master, and the other server.
    pub servers: [Redis; 2],
    /// All of them initially name server 0.
    pub sentinels: Vec<FakeSentinel>,
    /// The inherited lock of every command of the test.
    pub inherited_lock: InheritedLock,
}

impl FakeService {
    /// With independent servers.
    pub fn new() -> Self {
        let servers = [Redis::start(), Redis::start()];
        let first = FakeReply::Names(servers[0].port(), 0);
        let place = Place::new();
        let inherited_lock = place.inherited_lock();
        Self {
            place,
            servers,
            sentinels: (0..3).map(|_| FakeSentinel::that(first)).collect(),
            inherited_lock,
        }
    }

    /// Server 1 is a replica of server 0.
    pub fn with_replica() -> Self {
        let stage = Self::new();
        let port = stage.servers[0].port().to_string();
        stage.servers[1].command(&["REPLICAOF", "127.0.0.1", &port]);
        stage.await_copy();
        stage
    }

    /// Waits until the replica has the data of the master.
    #[track_caller]
    pub fn await_copy(&self) {
        let mut client = self.servers[0].connect();
        until(SOON, "the replica", || {
            client.command(&["SET", "copied", "1"]);
            client.command(&["WAIT", "1", "100"]) == Value::Int(1)
        });
        client.command(&["DEL", "copied"]);
        until(SOON, "the replica", || client.command(&["WAIT", "1", "100"]) == Value::Int(1));
    }

    /// Makes server 1 a master, and all sentinels name it. Server 0 is not notified, and stays a master too.
    pub fn fail_over(&self) {
        self.servers[1].command(&["REPLICAOF", "NO", "ONE"]);
        self.all_name(1, 1);
    }

    /// The reply of a sentinel that names this server.
    pub fn name(&self, server: usize, epoch: u64) -> FakeReply {
        FakeReply::Names(self.servers[server].port(), epoch)
    }

    /// All sentinels name this server.
    pub fn all_name(&self, server: usize, epoch: u64) {
        self.all_say([self.name(server, epoch); 3]);
    }

    /// Sets the reply of each.
    pub fn all_say(&self, says: [FakeReply; 3]) {
        for (sentinel, says) in self.sentinels.iter().zip(says) {
            sentinel.say(says);
        }
    }

    /// The hosts of the URL.
    pub fn hosts(&self) -> String {
        let hosts = self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.fake.port()));
        hosts.collect::<Vec<_>>().join(",")
    }

    /// The URL, and how dlock shows it.
    pub fn url(&self) -> String {
        format!("redis-sentinel://{}/{SERVICE}/0", self.hosts())
    }

    /// `dlock run` on the lock `x`, with a lease of 6 s.
    pub fn run(&self) -> Dlock {
        self.run_with_ttl("6s")
    }

    /// `dlock run` on the lock `x`.
    pub fn run_with_ttl(&self, ttl: &str) -> Dlock {
        self.place.run().backend(self.url()).args(["--ttl", ttl])
    }

    /// A command that reports each signal, and exits with status 5 on request. It is ready when this returns.
    #[track_caller]
    pub fn witness(&self, run: Dlock) -> Running {
        let go = format!("leave:{}=5", self.place.arg("go"));
        let mut run = run.probe(["--inherited-lock", self.inherited_lock.path(), "signals", &go]).spawn();
        run.await_ready();
        run
    }

    /// Makes the witnesses exit.
    pub fn go(&self) {
        self.place.write("go", "");
    }

    /// Whether a server has the lock.
    pub fn is_held(&self, server: usize) -> bool {
        self.servers[server].command(&["EXISTS", "dlock:x"]) == Value::Int(1)
    }

    /// The remaining lease of the lock at a server.
    pub fn left(&self, server: usize) -> i64 {
        self.servers[server].command(&["PTTL", "dlock:x"]).int()
    }

    /// Waits until a server has received a renewal of the lock.
    #[track_caller]
    pub fn await_renewal(&self, server: usize) {
        crate::support::redis::await_renewal(|| self.left(server));
    }

    /// The number of waiters for the lock at a server.
    pub fn waiters(&self, server: usize) -> i64 {
        self.servers[server].command(&["ZCARD", "dlock#queue:{dlock:x}"]).int()
    }

    /// Another client acquires the lock at a server.
    pub fn take_for_another(&self, server: usize) {
        self.servers[server].command(&["SET", "dlock:x", "somebody else's", "PX", "600000"]);
    }

    /// Another client releases it.
    pub fn free_for_another(&self, server: usize) {
        self.servers[server].command(&["DEL", "dlock:x"]);
    }
}

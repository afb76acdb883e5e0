//! Each entry of a lock is a value of its own: the store orders them and notifies those that watch them. They end with
//! their leases, as in etcd, or with the session of their owner, as in ZooKeeper.

use super::{Memory, now_since};
use dlock::backend::admin::{Listed, LockAdmin};
use dlock::backend::diagnosis::Diagnosis;
pub use dlock::backend::ledger::entries::METADATA;
use dlock::backend::ledger::entries::{self, Entry, EntryStore, Fencing, Granting, Listing, Write, Written};
use dlock::backend::ledger::{Contender, Ledger, Lifetime, Purpose, Store, Watch};
use dlock::backend::{Change, Reply, StoreError, TryReply};
use dlock::clock::Moment;
use dlock::lock::LockName;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::yield_now;
use tokio::time;

/// How entries end, and what that means for the client.
pub trait Kind: 'static {
    const FENCING: Fencing;
    const HAS_SESSIONS: bool;
}

pub struct Leases;

impl Kind for Leases {
    const FENCING: Fencing = Fencing::Revision;
    const HAS_SESSIONS: bool = false;
}

/// The session of a client ends when the client is dropped, or has sent nothing for the ttl of its claim. Its first claim
/// assumes that the lock is free.
pub struct Sessions;

impl Kind for Sessions {
    const FENCING: Fencing = Fencing::Order;
    const HAS_SESSIONS: bool = true;
}

/// What all clients share.
pub struct Entries<K> {
    kind: PhantomData<K>,
    last_session: Cell<u64>,
    /// When each session ends.
    sessions: RefCell<BTreeMap<u64, Duration>>,
    start: Instant,
    revision: Cell<u64>,
    /// The entries of each lock by their order, with the document beside them.
    locks: RefCell<BTreeMap<String, BTreeMap<u64, Stored>>>,
    watches: RefCell<Vec<Watched>>,
}

struct Stored {
    /// The session that created it.
    session: u64,
    version: u64,
    lease_ends: Option<Duration>,
    text: Vec<u8>,
}

struct Watched {
    name: String,
    watch: Watch,
    sender: UnboundedSender<()>,
}

impl<K: Kind> Memory for Entries<K> {
    fn new() -> Rc<Self> {
        Rc::new(Entries {
            kind: PhantomData,
            last_session: Cell::new(0),
            sessions: RefCell::default(),
            start: Instant::now(),
            // Such as the first zxid of ZooKeeper after the first election.
            revision: Cell::new(1 << 32),
            locks: RefCell::default(),
            watches: RefCell::default(),
        })
    }

    fn open(self: Rc<Self>) -> Box<dyn LockAdmin> {
        let (sender, events) = unbounded_channel();
        self.last_session.set(self.last_session.get() + 1);
        let (session, timeout) = (self.last_session.get(), None);
        Box::new(Contender::new(EntryClient { shared: self, session, timeout, sender, events }))
    }

    fn has_leases() -> bool {
        !K::HAS_SESSIONS
    }

    fn ledger(&self, name: &str) -> Ledger {
        self.list(name).unwrap().ledger(K::FENCING)
    }

    fn delete(&self, name: &str) {
        for order in self.list(name).unwrap().entries.iter().map(|entry| entry.order) {
            self.remove(name, order);
        }
    }

    fn wipe(&self) {
        self.locks.borrow_mut().clear();
    }

    fn has_turns_by_order() -> bool {
        true
    }
}

impl<K: Kind> Entries<K> {
    fn clock(&self) -> Duration {
        self.start.elapsed()
    }

    /// Removes the entries whose leases have ended.
    fn expire(&self) {
        let mut ended = Vec::new();
        for (name, lock) in &*self.locks.borrow() {
            let sessions = self.sessions.borrow();
            let has_ended = |stored: &Stored| match K::HAS_SESSIONS {
                true => sessions.get(&stored.session).is_some_and(|ends| *ends <= self.clock()),
                false => stored.lease_ends.is_some_and(|ends| ends <= self.clock()),
            };
            let orders = lock.iter().filter(|(_, stored)| has_ended(stored)).map(|(order, _)| *order);
            ended.extend(orders.map(|order| (name.clone(), order)));
        }
        ended.iter().for_each(|(name, order)| self.remove(name, *order));
    }

    fn remove(&self, name: &str, order: u64) {
        self.locks.borrow_mut().get_mut(name).unwrap().remove(&order);
        self.revision.set(self.revision.get() + 1);
        self.notify(name, |watch| matches!(watch, Watch::Entry(one) | Watch::Holder(one) | Watch::Waiter(one) if *one == order));
    }

    fn notify(&self, name: &str, is_meant: impl Fn(&Watch) -> bool) {
        let mut watches = self.watches.borrow_mut();
        for watched in watches.extract_if(.., |watched| watched.name == name && is_meant(&watched.watch)) {
            let _ = watched.sender.send(());
        }
    }

    fn list(&self, name: &str) -> Result<Listing, StoreError> {
        self.expire();
        let mut metadata = Entry { order: METADATA, version: 0, lease_ends: None, value: Ledger::default() };
        let (mut entries, mut unreadable) = (Vec::new(), None);
        for (order, Stored { version, lease_ends, text, .. }) in
            self.locks.borrow().get(name).into_iter().flatten()
        {
            let value = match Ledger::parse(text) {
                Err(why) if *order == METADATA => {
                    unreadable = Some(why);
                    Ok(Ledger::default())
                }
                value => value,
            };
            let value = value.map_err(|unreadable| StoreError::Config(format!("{name}: {unreadable}")))?;
            let entry = Entry { order: *order, version: *version, lease_ends: *lease_ends, value };
            if *order == METADATA { metadata = entry } else { entries.push(entry) }
        }
        let (now, revision) = (now_since(self.start), self.revision.get());
        Ok(Listing { now, revision, lease: None, metadata, unreadable, entries })
    }

    /// Carries out all of these writes, or none.
    fn write(&self, session: u64, name: &str, writes: &[Write]) -> Written {
        self.expire();
        let next = self.revision.get() + 1;
        let version_of = |order: &u64| {
            self.locks.borrow().get(name).and_then(|lock| Some(lock.get(order)?.version)).unwrap_or(0)
        };
        let is_possible = |write: &Write| match write {
            Write::Create { .. } => true,
            Write::Swap { order, version, .. } | Write::Remove { order, version } => {
                version_of(order) == *version
            }
            Write::Extend { order, .. } => version_of(order) != 0,
        };
        if !writes.iter().all(is_possible) {
            return Written::Conflict;
        }
        let mut written = Written::At(next);
        self.revision.set(next);
        for write in writes {
            match write {
                Write::Create { alone, waiting, lease } => {
                    let granted = alone.as_ref().filter(|_| !self.is_used(name));
                    if granted.is_none() {
                        written = Written::Waiting;
                    }
                    self.store(session, name, next, granted.unwrap_or(waiting), *lease);
                }
                Write::Swap { order, value, lease, .. } => {
                    let creator =
                        self.locks.borrow().get(name).and_then(|lock| Some(lock.get(order)?.session));
                    self.store(creator.unwrap_or(0), name, *order, value, *lease);
                    let is_thaw = *order == METADATA && value.freeze().is_none();
                    self.notify(name, |watch| match watch {
                        Watch::Holder(one) | Watch::Waiter(one) => one == order,
                        Watch::Freeze => is_thaw,
                        _ => false,
                    });
                }
                Write::Extend { order, lease } => {
                    let mut locks = self.locks.borrow_mut();
                    let entry = locks.get_mut(name).and_then(|lock| lock.get_mut(order)).unwrap();
                    entry.lease_ends = Some(self.clock() + *lease);
                }
                Write::Remove { order, .. } => self.remove(name, *order),
            }
        }
        written
    }

    fn store(&self, session: u64, name: &str, order: u64, value: &Ledger, lease: Option<Duration>) {
        let text = serde_json::to_vec(value).unwrap();
        let mut locks = self.locks.borrow_mut();
        let entries = locks.entry(name.to_owned()).or_default();
        let before = entries.get(&order).and_then(|stored| stored.lease_ends);
        let lease_ends = lease.map(|lease| self.clock() + lease).or(before);
        entries.insert(order, Stored { session, version: self.revision.get(), lease_ends, text });
    }

    /// Stores a value.
    pub fn plant(&self, name: &str, order: u64, text: &[u8]) {
        let stored = Stored { session: 0, version: 1, lease_ends: None, text: text.to_vec() };
        self.locks.borrow_mut().entry(name.to_owned()).or_default().insert(order, stored);
    }

    /// The values of a lock, with their orders.
    pub fn texts(&self, name: &str) -> Vec<(u64, Vec<u8>)> {
        self.locks.borrow()[name].iter().map(|(order, stored)| (*order, stored.text.clone())).collect()
    }

    /// Whether it has entries, or is frozen.
    fn is_used(&self, name: &str) -> bool {
        let is_freeze =
            |stored: &Stored| Ledger::parse(&stored.text).is_ok_and(|metadata| metadata.freeze().is_some());
        let locks = self.locks.borrow();
        let mut entries = locks.get(name).into_iter().flatten();
        entries.any(|(order, stored)| *order != METADATA || is_freeze(stored))
    }
}

/// A client.
struct EntryClient<K: Kind> {
    shared: Rc<Entries<K>>,
    session: u64,
    /// That of the session, if it has begun.
    timeout: Option<Duration>,
    sender: UnboundedSender<()>,
    events: UnboundedReceiver<()>,
}

impl<K: Kind> Drop for EntryClient<K> {
    fn drop(&mut self) {
        if self.timeout.is_some() {
            self.shared.sessions.borrow_mut().insert(self.session, Duration::ZERO);
            self.shared.expire();
        }
    }
}

impl<K: Kind> EntryClient<K> {
    /// The session has sent something.
    fn touch(&self) {
        if let Some(timeout) = self.timeout {
            self.shared.sessions.borrow_mut().insert(self.session, self.shared.clock() + timeout);
        }
    }
}

impl<K: Kind> EntryStore for EntryClient<K> {
    const FENCING: Fencing = K::FENCING;

    fn lifetime(&self, _: Moment) -> Lifetime {
        if K::HAS_SESSIONS { Lifetime::OfOwner(self.timeout) } else { Lifetime::OfLease }
    }

    async fn assumed(&mut self, name: &LockName, purpose: &Purpose) -> Result<Option<Listing>, StoreError> {
        let Purpose::Claim(claim) = purpose else { return Ok(None) };
        let is_first = K::HAS_SESSIONS && self.timeout.is_none();
        if is_first {
            self.timeout = Some(claim.ttl);
        }
        let free = Listing { entries: Vec::new(), ..self.shared.list(name.as_str())? };
        Ok(is_first.then_some(free))
    }

    async fn list(&mut self, name: &LockName, purpose: &Purpose) -> Result<Listing, StoreError> {
        if purpose.claim().is_some() {
            // What happened before is known to the decision.
            while self.events.try_recv().is_ok() {}
        }
        if let Purpose::Claim(claim) = purpose {
            self.timeout = self.timeout.or(K::HAS_SESSIONS.then_some(claim.ttl));
        }
        self.shared.expire();
        self.touch();
        let listing = self.shared.list(name.as_str());
        // The reply is on its way: other clients act meanwhile.
        yield_now().await;
        listing
    }

    async fn write(
        &mut self,
        name: &LockName,
        _: &Purpose,
        writes: &[Write],
        _: Granting,
    ) -> Result<Written, StoreError> {
        yield_now().await;
        self.touch();
        let written = self.shared.write(self.session, name.as_str(), writes);
        yield_now().await;
        Ok(written)
    }

    async fn remember(&mut self, name: &LockName, _: &Listing, fencing: u64) -> Result<(), StoreError> {
        let raise = |metadata: &mut Ledger| metadata.fencing_token = metadata.fencing_token.max(fencing);
        entries::note(self, name, &Purpose::Operate, raise).await
    }

    async fn watch(&mut self, name: &LockName, watch: &[Watch], since: u64) -> Result<bool, StoreError> {
        yield_now().await;
        let listing = self.shared.list(name.as_str())?;
        self.shared.watches.borrow_mut().retain(|watched| !watched.sender.same_channel(&self.sender));
        for watch in watch {
            let entry = |order: u64| listing.entries.iter().find(|entry| entry.order == order);
            let has_happened = match *watch {
                Watch::Entry(order) => entry(order).is_none(),
                Watch::Holder(order) | Watch::Waiter(order) => {
                    entry(order).is_none_or(|entry| entry.version > since)
                }
                Watch::Freeze => listing.metadata.value.freeze().is_none(),
                Watch::Gate(_) => unreachable!("only a store with native locks has a gate"),
            };
            if has_happened {
                let _ = self.sender.send(());
            }
            let watched = Watched { name: name.to_string(), watch: *watch, sender: self.sender.clone() };
            self.shared.watches.borrow_mut().push(watched);
        }
        Ok(true)
    }
}

impl<K: Kind> Store for EntryClient<K> {
    type Shape = entries::Entries;

    fn connect(&mut self) -> TryReply<'_, ()> {
        Box::pin(async {
            yield_now().await;
            Ok(())
        })
    }

    fn list(&mut self, which: Listed) -> TryReply<'_, Vec<LockName>> {
        Box::pin(async move {
            self.shared.expire();
            let is_listed = |name: &&String| match which {
                Listed::InUse => self.shared.is_used(name),
                Listed::WithHistory => {
                    self.shared.list(name).is_ok_and(|listing| !listing.metadata.value.history.is_empty())
                }
            };
            let names: Vec<String> = self.shared.locks.borrow().keys().cloned().collect();
            Ok(names.iter().filter(is_listed).map(|name| LockName::new(name).unwrap()).collect())
        })
    }

    fn changed(&mut self) -> Reply<'_, Change> {
        Box::pin(async {
            // A server ends leases by itself; here a waiting client does. Never closed: it has a sender.
            while time::timeout(Duration::from_millis(10), self.events.recv()).await.is_err() {
                self.shared.expire();
                self.touch();
            }
            Change::OurTurn
        })
    }

    fn examine<'a>(&'a mut self, _: &'a Diagnosis) -> TryReply<'a, ()> {
        Box::pin(async { Ok(()) })
    }
}

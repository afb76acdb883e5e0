//! A store in memory: each ledger is a document with a version, swapped as a database would do it.

use dlock::backend::diagnosis::Diagnosis;
use dlock::backend::ledger::document::{self, DocumentStore, Revision};
use dlock::backend::ledger::{Done, Effect, Ledger, LedgerStore, Now, Observed, Purpose, Step};
use dlock::backend::{Change, Reply, StoreError};
use dlock::lock::{LockName, LockState, NotedRecord};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::{Instant, SystemTime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::yield_now;

/// What all clients share.
pub struct Shared {
    start: Instant,
    /// The ledgers as stored, with their versions.
    pub documents: RefCell<BTreeMap<String, (u64, Vec<u8>)>>,
    /// The waiters, by the name of the lock and the ticket.
    subscriptions: RefCell<HashMap<(String, u64), UnboundedSender<()>>>,
    /// How many swaps failed because another client was faster.
    pub conflicts: RefCell<usize>,
}

impl Shared {
    pub fn new() -> Rc<Shared> {
        Rc::new(Shared {
            start: Instant::now(),
            documents: RefCell::default(),
            subscriptions: RefCell::default(),
            conflicts: RefCell::default(),
        })
    }

    pub fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros();
        Now { clock: self.start.elapsed(), wall: wall.try_into().unwrap() }
    }

    /// The ledger of a lock, and its version; 0 if there is none.
    pub fn load(&self, name: &str) -> Result<(Ledger, u64), StoreError> {
        match self.documents.borrow().get(name) {
            Some((version, text)) => match Ledger::parse(text) {
                Ok(ledger) => Ok((ledger, *version)),
                Err(unreadable) => Err(StoreError::Config(format!("{name}: {unreadable}"))),
            },
            None => Ok((Ledger::default(), 0)),
        }
    }

    /// Stores a ledger and calls waiters.
    pub fn store(&self, name: &str, ledger: &Ledger, called: &[u64]) {
        let text = serde_json::to_vec(ledger).unwrap();
        let mut documents = self.documents.borrow_mut();
        let (version, stored) = documents.entry(name.to_owned()).or_default();
        *version += 1;
        *stored = text;
        for ticket in called {
            if let Some(waiter) = self.subscriptions.borrow().get(&(name.to_owned(), *ticket)) {
                let _ = waiter.send(());
            }
        }
    }
}

/// A client.
pub struct MemoryStore {
    shared: Rc<Shared>,
    sender: UnboundedSender<()>,
    calls: UnboundedReceiver<()>,
}

impl MemoryStore {
    pub fn new(shared: Rc<Shared>) -> MemoryStore {
        let (sender, calls) = unbounded_channel();
        MemoryStore { shared, sender, calls }
    }
}

impl DocumentStore for MemoryStore {
    type Version = u64;

    async fn load(&mut self, name: &LockName) -> Result<(Ledger, u64, Now), StoreError> {
        let now = self.shared.now();
        let (ledger, version) = self.shared.load(name.as_str())?;
        // The reply is on its way: other clients act meanwhile.
        yield_now().await;
        Ok((ledger, version, now))
    }

    async fn swap(
        &mut self,
        name: &LockName,
        version: u64,
        revision: Revision<'_>,
    ) -> Result<bool, StoreError> {
        yield_now().await;
        if let Effect::Wait(ticket) = revision.effect {
            let key = (name.as_str().to_owned(), ticket);
            self.shared.subscriptions.borrow_mut().insert(key, self.sender.clone());
        }
        let (_, stored) = self.shared.load(name.as_str())?;
        if version != stored {
            *self.shared.conflicts.borrow_mut() += 1;
            return Ok(false);
        }
        self.shared.store(name.as_str(), revision.ledger, &revision.called);
        yield_now().await;
        Ok(true)
    }
}

impl LedgerStore for MemoryStore {
    fn display(&self) -> &str {
        "memory:"
    }

    fn connect(&mut self) -> Reply<'_, Result<(), StoreError>> {
        Box::pin(async {
            yield_now().await;
            Ok(())
        })
    }

    async fn change<T: Send + 'static>(
        &mut self,
        name: &LockName,
        _: Purpose,
        decide: impl Fn(&mut Ledger, &dyn Observed) -> Step<T> + Send + 'static,
    ) -> Result<Done<T>, StoreError> {
        // What was called before is known to the decision.
        while self.calls.try_recv().is_ok() {}
        document::change(self, name, decide).await
    }

    async fn read(
        &mut self,
        names: &[LockName],
        view: impl Fn(&LockName, &Ledger, &dyn Observed) -> LockState + Send + 'static,
    ) -> Result<(u64, Vec<LockState>), StoreError> {
        document::read(self, names, view).await
    }

    fn list(&mut self) -> Reply<'_, Result<Vec<LockName>, StoreError>> {
        Box::pin(async {
            let names: Vec<String> = self.shared.documents.borrow().keys().cloned().collect();
            let is_used = |name: &&String| {
                self.shared
                    .load(name)
                    .is_ok_and(|(ledger, _)| !ledger.holders.is_empty() || !ledger.waiters.is_empty())
            };
            Ok(names.iter().filter(is_used).map(|name| LockName::new(name).unwrap()).collect())
        })
    }

    fn history<'a>(&'a mut self, name: &'a LockName) -> Reply<'a, Result<Vec<NotedRecord>, StoreError>> {
        Box::pin(document::history(self, name))
    }

    fn changed(&mut self) -> Reply<'_, Change> {
        Box::pin(async {
            // Never closed: this client has a sender.
            let _ = self.calls.recv().await;
            Change::OurTurn
        })
    }

    fn examine<'a>(&'a mut self, _: &'a Diagnosis) -> Reply<'a, Result<(), StoreError>> {
        Box::pin(async { Ok(()) })
    }
}

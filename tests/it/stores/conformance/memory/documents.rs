//! Each ledger is a document with a version, swapped as a database would do it.

use super::{Memory, now_since};
use dlock::backend::admin::LockAdmin;
use dlock::backend::diagnosis::Diagnosis;
use dlock::backend::ledger::document::{self, DocumentStore, Revision, Seen, Shortcut};
use dlock::backend::ledger::{Contender, Done, Effect, Ledger, LedgerStore, Observed, Purpose, Step};
use dlock::backend::{CLAIM_WITHIN, Change, Reply, StoreError};
use dlock::lock::{LockName, LockState, NotedRecord};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::Instant;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::yield_now;

/// What all clients share.
pub struct Documents {
    start: Instant,
    /// The ledgers as stored, with their versions.
    pub documents: RefCell<BTreeMap<String, (u64, Vec<u8>)>>,
    /// The waiters, by the name of the lock and the ticket.
    subscriptions: RefCell<HashMap<(String, u64), UnboundedSender<Change>>>,
    /// How many swaps failed because another client was faster.
    pub conflicts: Cell<usize>,
    /// How many requests were sent.
    pub steps: Cell<usize>,
    /// The version of a ledger that is stored for the first time, less one.
    created: Cell<u64>,
}

impl Memory for Documents {
    fn new() -> Rc<Documents> {
        Rc::new(Documents {
            start: Instant::now(),
            documents: RefCell::default(),
            subscriptions: RefCell::default(),
            conflicts: Cell::default(),
            steps: Cell::default(),
            created: Cell::default(),
        })
    }

    fn open(self: Rc<Documents>) -> Box<dyn LockAdmin> {
        let (sender, calls) = unbounded_channel();
        Box::new(Contender::new(DocumentClient { shared: self, sender, calls, last: None }))
    }

    fn ledger(&self, name: &str) -> Ledger {
        self.load(name).unwrap().0
    }

    fn delete(&self, name: &str) {
        self.documents.borrow_mut().remove(name);
    }

    fn wipe(&self) {
        self.documents.borrow_mut().clear();
    }
}

impl Documents {
    /// The ledger of a lock, and its version; 0 if there is none.
    fn load(&self, name: &str) -> Result<(Ledger, u64), StoreError> {
        match self.documents.borrow().get(name) {
            Some((version, text)) => match Ledger::parse(text) {
                Ok(ledger) => Ok((ledger, *version)),
                Err(unreadable) => Err(StoreError::Config(format!("{name}: {unreadable}"))),
            },
            None => Ok((Ledger::default(), 0)),
        }
    }

    /// Stores a ledger and returns its version.
    fn store(&self, name: &str, ledger: &Ledger) -> u64 {
        let text = serde_json::to_vec(ledger).unwrap();
        let mut documents = self.documents.borrow_mut();
        let (version, stored) = documents.entry(name.to_owned()).or_insert_with(|| {
            // Another one than that of a ledger that was deleted.
            self.created.set(self.created.get() + (1 << 32));
            (self.created.get(), Vec::new())
        });
        *version += 1;
        *stored = text;
        *version
    }

    fn call(&self, name: &str, revision: &Revision<'_>) {
        let called = revision.called.iter().map(|ticket| (*ticket, Change::OurTurn));
        for (ticket, change) in called.chain(revision.next.map(|ticket| (ticket, Change::Soon(CLAIM_WITHIN))))
        {
            if let Some(waiter) = self.subscriptions.borrow().get(&(name.to_owned(), ticket)) {
                let _ = waiter.send(change);
            }
        }
    }
}

/// A client.
struct DocumentClient {
    shared: Rc<Documents>,
    sender: UnboundedSender<Change>,
    calls: UnboundedReceiver<Change>,
    /// What it has read or stored last.
    last: Option<(LockName, Seen<u64>)>,
}

impl DocumentStore for DocumentClient {
    type Version = u64;

    async fn load(&mut self, name: &LockName, shortcut: &Shortcut) -> Result<Seen<u64>, StoreError> {
        self.shared.steps.set(self.shared.steps.get() + 1);
        self.last = None;
        let now = now_since(self.shared.start);
        let (before, mut version) = self.shared.load(name.as_str())?;
        let mut ledger = before.clone();
        shortcut.apply(&mut ledger, now);
        if ledger != before {
            version = self.shared.store(name.as_str(), &ledger);
        }
        // The reply is on its way: other clients act meanwhile.
        yield_now().await;
        let seen = Seen { ledger, version, now };
        self.last = Some((name.clone(), seen.clone()));
        Ok(seen)
    }

    fn recall(&self, name: &LockName) -> Option<Seen<u64>> {
        let (of, seen) = self.last.as_ref()?;
        (of == name).then(|| Seen { now: now_since(self.shared.start), ..seen.clone() })
    }

    fn is_subscribed(&self, name: &LockName, ticket: u64) -> bool {
        let subscriptions = self.shared.subscriptions.borrow();
        let sender = subscriptions.get(&(name.as_str().to_owned(), ticket));
        sender.is_some_and(|sender| sender.same_channel(&self.sender))
    }

    async fn swap(
        &mut self,
        name: &LockName,
        version: u64,
        revision: Revision<'_>,
    ) -> Result<bool, StoreError> {
        self.shared.steps.set(self.shared.steps.get() + 1);
        self.last = None;
        yield_now().await;
        if let Effect::Wait(ticket) = revision.effect {
            let key = (name.as_str().to_owned(), ticket);
            self.shared.subscriptions.borrow_mut().insert(key, self.sender.clone());
        }
        let (_, stored) = self.shared.load(name.as_str())?;
        if version != stored {
            self.shared.conflicts.set(self.shared.conflicts.get() + 1);
            return Ok(false);
        }
        let version = self.shared.store(name.as_str(), revision.ledger);
        self.shared.call(name.as_str(), &revision);
        yield_now().await;
        let seen = Seen { ledger: revision.ledger.clone(), version, now: now_since(self.shared.start) };
        self.last = Some((name.clone(), seen));
        Ok(true)
    }
}

impl LedgerStore for DocumentClient {
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
        purpose: Purpose,
        decide: impl Fn(&mut Ledger, &dyn Observed) -> Step<T> + Send + 'static,
    ) -> Result<Done<T>, StoreError> {
        // What was called before is known to the decision.
        while self.calls.try_recv().is_ok() {}
        document::change(self, name, &purpose, decide).await
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
            let is_used = |name: &&String| self.shared.load(name).is_ok_and(|(ledger, _)| !ledger.is_idle());
            Ok(names.iter().filter(is_used).map(|name| LockName::new(name).unwrap()).collect())
        })
    }

    fn list_recorded(&mut self) -> Reply<'_, Result<Vec<LockName>, StoreError>> {
        Box::pin(async {
            let is_recorded =
                |name: &&String| self.shared.load(name).is_ok_and(|(ledger, _)| !ledger.outcomes.is_empty());
            let names: Vec<String> = self.shared.documents.borrow().keys().cloned().collect();
            Ok(names.iter().filter(is_recorded).map(|name| LockName::new(name).unwrap()).collect())
        })
    }

    fn history<'a>(&'a mut self, name: &'a LockName) -> Reply<'a, Result<Vec<NotedRecord>, StoreError>> {
        Box::pin(document::history(self, name))
    }

    fn changed(&mut self) -> Reply<'_, Change> {
        Box::pin(async {
            // Never closed: this client has a sender.
            self.calls.recv().await.unwrap_or(Change::Disconnected)
        })
    }

    fn examine<'a>(&'a mut self, _: &'a Diagnosis) -> Reply<'a, Result<(), StoreError>> {
        Box::pin(async { Ok(()) })
    }
}

//! Each ledger is a document with a version, swapped as a database would do it; with or without a gate that is passed in
//! sessions.

use super::{Memory, now_since};
use dlock::backend::admin::{Listed, LockAdmin};
use dlock::backend::diagnosis::Diagnosis;
use dlock::backend::ledger::document::{self, DocumentStore, Revision, Seen, Shortcut};
use dlock::backend::ledger::{
    Contender, Effect, GateLifetime, GateMode, Ledger, Occupant, Purpose, Store, WaiterEntry,
};
use dlock::backend::{CLAIM_WITHIN, Change, Reply, StoreError, TryReply};
use dlock::clock::Moment;
use dlock::lock::{Claim, Holder, LockName};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::yield_now;

/// What all clients share.
pub struct Documents<const GATED: bool = false> {
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
    /// The number of the last client.
    clients: Cell<u64>,
    /// Who is in each gate.
    occupants: RefCell<HashMap<String, Vec<Session>>>,
}

/// The client of a foreign program.
const STRANGER: u64 = u64::MAX;

/// A session in a gate, which ends unless the hold is renewed.
struct Session {
    client: u64,
    token: String,
    mode: GateMode,
    ends: Instant,
}

impl<const GATED: bool> Memory for Documents<GATED> {
    fn new() -> Rc<Self> {
        Rc::new(Documents {
            start: Instant::now(),
            documents: RefCell::default(),
            subscriptions: RefCell::default(),
            conflicts: Cell::default(),
            steps: Cell::default(),
            created: Cell::default(),
            clients: Cell::default(),
            occupants: RefCell::default(),
        })
    }

    fn open(self: Rc<Self>) -> Box<dyn LockAdmin> {
        let (sender, calls) = unbounded_channel();
        self.clients.set(self.clients.get() + 1);
        let session = self.clients.get();
        Box::new(Contender::new(DocumentClient { session, shared: self, sender, calls }))
    }

    fn ledger(&self, name: &str) -> Ledger {
        self.load(name).unwrap().0
    }

    fn delete(&self, name: &str) {
        self.documents.borrow_mut().remove(name);
        self.occupants.borrow_mut().remove(name);
    }

    fn has_leases() -> bool {
        !GATED
    }

    fn detects_dead_waiters() -> bool {
        false
    }

    fn wipe(&self) {
        self.documents.borrow_mut().clear();
        self.occupants.borrow_mut().clear();
    }
}

impl<const GATED: bool> Documents<GATED> {
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

    /// A foreign program tries to pass a gate.
    pub fn pass_by_a_stranger(&self, name: &str) -> bool {
        let mut occupants = self.occupants.borrow_mut();
        let inside = occupants.entry(name.to_owned()).or_default();
        let is_open = inside.is_empty();
        if is_open {
            let ends = Instant::now() + Duration::from_secs(3600);
            inside.push(Session { client: STRANGER, token: String::new(), mode: GateMode::Exclusive, ends });
        }
        is_open
    }

    /// Ends all sessions.
    pub fn end_sessions(&self) {
        self.occupants.borrow_mut().clear();
    }

    /// The foreign program leaves all gates.
    pub fn leave_by_a_stranger(&self) {
        self.leave(STRANGER, |_| true);
    }

    /// How many are in a gate.
    pub fn count_inside(&self, name: &str) -> usize {
        self.occupants.borrow().get(name).map_or(0, Vec::len)
    }

    /// Ends the passages of a session in some gates.
    fn leave(&self, session: u64, is_left: impl Fn(&str) -> bool) {
        let mut occupants = self.occupants.borrow_mut();
        for (_, inside) in occupants.iter_mut().filter(|(name, _)| is_left(name)) {
            inside.retain(|one| one.client != session);
        }
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
struct DocumentClient<const GATED: bool> {
    session: u64,
    shared: Rc<Documents<GATED>>,
    sender: UnboundedSender<Change>,
    calls: UnboundedReceiver<Change>,
}

/// Its session ends with it.
impl<const GATED: bool> Drop for DocumentClient<GATED> {
    fn drop(&mut self) {
        self.shared.leave(self.session, |_| true);
    }
}

impl<const GATED: bool> DocumentStore for DocumentClient<GATED> {
    type Version = u64;

    async fn load(
        &mut self,
        name: &LockName,
        purpose: &Purpose,
        shortcut: &Shortcut,
        _: Option<&Seen<u64>>,
    ) -> Result<Seen<u64>, StoreError> {
        if purpose.claim().is_some() {
            // What was called before is known to the decision.
            while self.calls.try_recv().is_ok() {}
        }
        self.shared.steps.set(self.shared.steps.get() + 1);
        let sent = Moment::now();
        let now = now_since(self.shared.start);
        let (before, mut version) = self.shared.load(name.as_str())?;
        let mut ledger = before.clone();
        shortcut.apply(&mut ledger, now);
        if ledger != before {
            version = self.shared.store(name.as_str(), &ledger);
        }
        // The reply is on its way: other clients act meanwhile.
        yield_now().await;
        Ok(Seen { ledger, version, now, sent, occupants: None })
    }

    fn is_subscribed(&self, name: &LockName, waiter: &WaiterEntry) -> bool {
        let subscriptions = self.shared.subscriptions.borrow();
        let sender = subscriptions.get(&(name.as_str().to_owned(), waiter.ticket));
        sender.is_some_and(|sender| sender.same_channel(&self.sender))
    }

    async fn swap(
        &mut self,
        name: &LockName,
        _: &Purpose,
        version: u64,
        revision: Revision<'_>,
    ) -> Result<Option<u64>, StoreError> {
        self.shared.steps.set(self.shared.steps.get() + 1);
        yield_now().await;
        if let Effect::Wait(ticket) = revision.effect {
            let key = (name.as_str().to_owned(), ticket);
            self.shared.subscriptions.borrow_mut().insert(key, self.sender.clone());
        }
        let (_, stored) = self.shared.load(name.as_str())?;
        if version != stored {
            self.shared.conflicts.set(self.shared.conflicts.get() + 1);
            return Ok(None);
        }
        let version = self.shared.store(name.as_str(), revision.ledger);
        self.shared.call(name.as_str(), &revision);
        yield_now().await;
        Ok(Some(version))
    }

    fn gate_lifetime(&self) -> Option<GateLifetime> {
        GATED.then_some(GateLifetime::Session)
    }

    fn passed(&self, purpose: &Purpose) -> Option<(u64, u64)> {
        let claim = purpose.claim()?;
        let occupants = self.shared.occupants.borrow();
        let mut inside = occupants.get(claim.name.as_str()).into_iter().flatten();
        let is_in = inside.any(|one| one.client == self.session && one.token == claim.token.reveal());
        is_in.then_some((self.session, 0))
    }

    async fn observe_gate(
        &mut self,
        name: &LockName,
        purpose: &Purpose,
        _: &Ledger,
    ) -> Result<Vec<Occupant>, StoreError> {
        yield_now().await;
        let now = Instant::now();
        let mut occupants = self.shared.occupants.borrow_mut();
        let inside = occupants.entry(name.as_str().to_owned()).or_default();
        inside.retain(|one| now < one.ends);
        if let Purpose::Renew(claim) | Purpose::Release(claim) = purpose {
            let mine = inside.iter_mut().filter(|one| one.client == self.session);
            mine.for_each(|mine| mine.ends = now + claim.ttl);
        }
        let occupant = |one: &Session| Occupant {
            identity: Some((one.client, 0)),
            mode: one.mode,
            holder: Holder::default(),
        };
        Ok(inside.iter().map(occupant).collect())
    }

    async fn pass_gate(&mut self, _: &Purpose, claim: &Claim, mode: GateMode) -> Result<bool, StoreError> {
        yield_now().await;
        let mut occupants = self.shared.occupants.borrow_mut();
        let inside = occupants.entry(claim.name.as_str().to_owned()).or_default();
        let now = Instant::now();
        inside.retain(|one| now < one.ends);
        let is_open = match mode {
            GateMode::Exclusive => inside.is_empty(),
            GateMode::Shared => inside.iter().all(|one| one.mode == GateMode::Shared),
        };
        if is_open {
            inside.push(Session {
                client: self.session,
                token: claim.token.reveal().to_owned(),
                mode: GateMode::of(claim.mode),
                ends: now + claim.ttl,
            });
        }
        Ok(is_open)
    }

    async fn leave_gate(
        &mut self,
        purpose: &Purpose,
        claim: &Claim,
        rest: Duration,
    ) -> Result<bool, StoreError> {
        assert_eq!(rest, Duration::ZERO, "nobody can keep it");
        yield_now().await;
        let was_kept = self.passed(purpose).is_some();
        self.shared.leave(self.session, |name| name == claim.name.as_str());
        Ok(was_kept)
    }
}

impl<const GATED: bool> Store for DocumentClient<GATED> {
    type Shape = document::Documents<u64>;

    fn connect(&mut self) -> TryReply<'_, ()> {
        Box::pin(async {
            yield_now().await;
            Ok(())
        })
    }

    fn list(&mut self, which: Listed) -> TryReply<'_, Vec<LockName>> {
        Box::pin(async move {
            let names: Vec<String> = self.shared.documents.borrow().keys().cloned().collect();
            let is_listed =
                |name: &&String| self.shared.load(name).is_ok_and(|(ledger, _)| ledger.is_listed(which));
            Ok(names.iter().filter(is_listed).map(|name| LockName::new(name).unwrap()).collect())
        })
    }

    fn changed(&mut self) -> Reply<'_, Change> {
        Box::pin(async {
            // Never closed: this client has a sender.
            self.calls.recv().await.unwrap_or(Change::Disconnected)
        })
    }

    fn examine<'a>(&'a mut self, _: &'a Diagnosis) -> TryReply<'a, ()> {
        Box::pin(async { Ok(()) })
    }
}

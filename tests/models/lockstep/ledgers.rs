//! The rendering in Rust: a client of one ledger in memory.

use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use dlock::backend::admin::{Listed, LockAdmin};
use dlock::backend::diagnosis::Diagnosis;
use dlock::backend::ledger::{
    AnyReply, Contender, Decide, Decision, Done, Ledger, Now, Observed, Purpose, Shape, Store, WaiterEntry,
};
use dlock::backend::{Backend, CLAIM_WITHIN, Change, Ending, Intent, Reply, StoreError, TryReply};
use dlock::lock::{
    Claim, FencingToken, FreezeRequest, Holder, Identity, LockName, LockState, NotedRecord, Record,
    Revocation, Token,
};

use super::answers::{Answer, Sight};

/// A client whose ledger and clock are set by the test.
pub(super) struct Ledgers {
    state: Rc<RefCell<(Ledger, Now)>>,
    client: Contender<Memory>,
}

struct Memory(Rc<RefCell<(Ledger, Now)>>);

/// A ledger that nobody else changes meanwhile.
#[derive(Default)]
struct AtOnce;

impl Shape<Memory> for AtOnce {
    async fn change(
        &mut self,
        store: &mut Memory,
        name: &LockName,
        _: Purpose,
        decide: Decide,
    ) -> Result<Done<AnyReply>, StoreError> {
        let (ledger, now) = &mut *store.0.borrow_mut();
        match decide(ledger, now) {
            Decision::Done { value, .. } => {
                Ok(Done { value, is_watched: true, fencing: None, lease: None, unwritten: None })
            }
            Decision::PassGate(_) => unreachable!("there is no gate"),
            Decision::Exhausted => Err(StoreError::Config(format!("{name}: exhausted"))),
        }
    }

    async fn read(
        &mut self,
        store: &mut Memory,
        names: &[LockName],
        view: impl Fn(&LockName, &Ledger, &dyn Observed) -> LockState + Send + 'static,
    ) -> Result<(u64, Vec<LockState>), StoreError> {
        let (ledger, now) = &*store.0.borrow();
        Ok((now.wall / 1000, names.iter().map(|name| view(name, ledger, now)).collect()))
    }

    async fn history(&mut self, store: &mut Memory, _: &LockName) -> Result<Vec<NotedRecord>, StoreError> {
        Ok(store.0.borrow().0.history.iter().rev().cloned().collect())
    }
}

impl Store for Memory {
    type Shape = AtOnce;

    fn connect(&mut self) -> TryReply<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn list(&mut self, _: Listed) -> TryReply<'_, Vec<LockName>> {
        unreachable!("there is one lock")
    }

    fn changed(&mut self) -> Reply<'_, Change> {
        Box::pin(std::future::pending())
    }

    fn examine<'a>(&'a mut self, _: &'a Diagnosis) -> TryReply<'a, ()> {
        unreachable!("there is no server")
    }
}

fn at_once<T>(request: TryReply<'_, T>) -> T {
    let Poll::Ready(reply) = pin!(request).poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("nothing in memory is waited for")
    };
    reply.unwrap()
}

impl Ledgers {
    pub(super) fn new() -> Ledgers {
        let state = Rc::new(RefCell::new((Ledger::default(), Now { clock: Duration::ZERO, wall: 0 })));
        Ledgers { client: Contender::new(Memory(Rc::clone(&state))), state }
    }

    /// Sets the ledger, and the time in microseconds since 1970.
    pub(super) fn set(&self, ledger: &Ledger, now: u64) {
        let now = Now { clock: Duration::from_micros(now), wall: now };
        *self.state.borrow_mut() = (ledger.clone(), now);
    }

    pub(super) fn ledger(&self) -> Ledger {
        self.state.borrow().0.clone()
    }

    pub(super) fn claim(&mut self, claim: &Claim, intent: Intent) -> Answer {
        Answer::to_claim(at_once(self.client.try_acquire(claim, intent)))
    }

    pub(super) fn renew(&mut self, claim: &Claim, rest: Duration) -> Answer {
        Answer::Renewed(at_once(self.client.renew(claim, rest)))
    }

    pub(super) fn release(&mut self, claim: &Claim, rest: Duration, ending: Ending<'_>) -> Answer {
        Answer::Ended(at_once(self.client.release(claim, rest, ending)))
    }

    pub(super) fn revoke(
        &mut self,
        name: &LockName,
        fencing: FencingToken,
        revocation: &Revocation,
    ) -> Answer {
        let holder = Holder { fencing: Some(fencing), ..Holder::default() };
        Answer::Revoked(at_once(self.client.revoke(name, &holder, revocation)))
    }

    pub(super) fn remove(&mut self, name: &LockName, fencing: FencingToken) -> Answer {
        let (fencing, identity) = (Some(fencing), Some(Identity::default()));
        let holder = Holder { fencing, identity, ..Holder::default() };
        Answer::Removed(at_once(self.client.remove(name, &holder)))
    }

    pub(super) fn raise(&mut self, name: &LockName, floor: FencingToken) -> Answer {
        Answer::Raised(at_once(self.client.raise_fencing(name, floor)))
    }

    pub(super) fn freeze(&mut self, name: &LockName, request: &FreezeRequest) -> Answer {
        Answer::Frozen(at_once(self.client.freeze(name, request)))
    }

    pub(super) fn thaw(&mut self, name: &LockName, id: &str) -> Answer {
        Answer::Thawed(at_once(self.client.thaw(name, id)))
    }

    pub(super) fn record(&mut self, name: &LockName, record: &Record) -> Answer {
        at_once(self.client.add_record(name, record));
        Answer::Recorded
    }

    /// Returns what is seen of the lock, and of the hold of a token.
    pub(super) fn sight(&mut self, name: &LockName, token: &Token) -> Sight {
        let names = [name.clone()];
        let state = at_once(self.client.inspect(&names, Some(token))).locks.remove(0);
        let history = at_once(self.client.history(name));
        let (ledger, now) = &*self.state.borrow();
        let live = |waiter: &WaiterEntry| {
            let is_alive = waiter.lease_ends.is_none_or(|ends| now.clock < ends);
            let until = waiter.called.map(|called| called + CLAIM_WITHIN);
            let is_late = until.is_some_and(|until| now.clock >= until);
            let left = until.map(|until| until.saturating_sub(now.clock));
            (is_alive && !is_late).then(|| (waiter.token.clone(), left))
        };
        let queue = ledger.waiters.iter().filter_map(live).collect();
        Sight { state, queue, last_fencing_token: ledger.fencing_token, history }
    }
}

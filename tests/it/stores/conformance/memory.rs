//! Stores in memory, and one on a small server, by the traits alone: the core with the least store of each shape that there
//! can be.
//!
//! Only the checks through the traits: a run cannot reach the store, and it has no foreign programs, file names and
//! secrets.

mod documents;
mod entries;
mod remote;

use self::documents::Documents;
use self::entries::{Entries, Leases, Sessions};
use self::remote::Remote;
use super::client::{Client, claim};
use super::rig::Rig;
use crate::support::SOON;
use crate::support::place::Place;
use dlock::backend::admin::LockAdmin;
use dlock::backend::ledger::{Ledger, Now};
use dlock::backend::{Attempt, Ending, Intent, Loss, Release, StoreError};
use dlock::lock::{Claim, LockName, Mode, Record, Token, Unknown};
use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant, SystemTime};

/// What all clients of a store share.
trait Memory {
    fn new() -> Rc<Self>;

    /// A new client.
    fn open(self: Rc<Self>) -> Box<dyn LockAdmin>;

    /// The ledger of a lock.
    fn ledger(&self, name: &str) -> Ledger;

    /// Deletes a lock.
    fn delete(&self, name: &str);

    /// Deletes all locks.
    fn wipe(&self);

    /// See [`Rig::has_leases`].
    fn has_leases() -> bool {
        true
    }

    /// See [`Rig::rounding`].
    fn rounding() -> Duration {
        Duration::ZERO
    }

    /// See [`Rig::detects_dead_waiters`].
    fn detects_dead_waiters() -> bool {
        !Self::has_leases()
    }

    /// See [`Rig::has_turns_by_order`].
    fn has_turns_by_order() -> bool {
        false
    }
}

/// The time of a store that was created then.
fn now_since(start: Instant) -> Now {
    let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros();
    Now { clock: start.elapsed(), wall: wall.try_into().unwrap() }
}

/// Runs the requests of a client without giving others a turn.
fn at_once<T>(requests: impl Future<Output = T>) -> T {
    let mut requests = pin!(requests);
    loop {
        if let Poll::Ready(value) = requests.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
    }
}

/// The store, and the client that another lock was acquired with.
struct MemoryRig<S>(Rc<S>, Option<Box<dyn LockAdmin>>);

/// Its holds belong to neither client nor check.
const ANOTHER: &str = "another";

impl<S: Memory> MemoryRig<S> {
    fn new() -> Self {
        Self(S::new(), None)
    }

    fn claim_of_another(name: &str) -> Claim {
        Claim { token: Token::from_text(ANOTHER), ..claim(name) }
    }
}

impl<S: Memory> Rig for MemoryRig<S> {
    fn place(&self) -> &Place {
        unreachable!("a run cannot reach this store")
    }

    fn url(&self) -> String {
        unreachable!("a run cannot reach this store")
    }

    fn open(&self) -> Box<dyn LockAdmin> {
        self.0.clone().open()
    }

    fn exact_url(&self) -> String {
        unreachable!("names are not encoded")
    }

    fn url_with_secret(&self, _: &str) -> Option<String> {
        None
    }

    fn has_leases(&self) -> bool {
        S::has_leases()
    }

    fn lease(&self, ttl: Duration) -> Option<Duration> {
        Some(ttl)
    }

    fn rounding(&self) -> Duration {
        S::rounding()
    }

    fn detects_dead_waiters(&self) -> bool {
        S::detects_dead_waiters()
    }

    fn has_turns_by_order(&self) -> bool {
        S::has_turns_by_order()
    }

    fn delete(&mut self, name: &str) {
        self.0.delete(name);
    }

    fn replace(&mut self, name: &str) {
        self.delete(name);
        assert!(self.foreign_lock(name, None));
    }

    fn is_untouched(&self, name: &str) -> bool {
        let ledger = self.0.ledger(name);
        ledger.waiters.is_empty() && ledger.holders.iter().map(|holder| &holder.token).eq([ANOTHER])
    }

    /// By a client with another token: there are no foreign programs.
    fn foreign_lock(&mut self, name: &str, lease: Option<Duration>) -> bool {
        assert_eq!(lease, None);
        let (mut another, claim) = (self.open(), Self::claim_of_another(name));
        let attempt = at_once(another.try_acquire(&claim, Intent::TakeNow));
        self.1 = Some(another);
        matches!(attempt, Ok(Attempt::Granted(_)))
    }

    fn foreign_unlock(&mut self, name: &str) {
        let (mut another, claim) = (self.1.take().unwrap(), Self::claim_of_another(name));
        assert_eq!(
            at_once(another.release(&claim, Duration::ZERO, Ending::default())),
            Ok(Release::Released)
        );
    }

    fn waiters(&self, name: &str) -> usize {
        self.0.ledger(name).waiters.len()
    }

    fn traces(&self, name: &str) -> Vec<String> {
        let ledger = self.0.ledger(name);
        let holders = ledger.holders.iter().map(|holder| format!("{holder:?}"));
        holders.chain(ledger.waiters.iter().map(|waiter| format!("{waiter:?}"))).collect()
    }

    fn restart(&mut self) {}

    fn wipe(&mut self) {
        self.0.wipe();
    }

    fn own_items(&self, _: &[&str]) -> Vec<String> {
        Vec::new()
    }
}

mod of_documents {
    super::super::list::trait_checks!(super::MemoryRig::<super::Documents>::new);
}

mod of_documents_with_a_gate {
    super::super::list::trait_checks!(super::MemoryRig::<super::Documents<true>>::new);
}

mod of_documents_on_a_server {
    super::super::list::trait_checks!(super::MemoryRig::<super::Remote>::new);
}

mod of_entries {
    super::super::list::trait_checks!(super::MemoryRig::<super::Entries<super::Leases>>::new);
}

mod of_entries_with_sessions {
    super::super::list::trait_checks!(super::MemoryRig::<super::Entries<super::Sessions>>::new);
}

/// Several clients of a store join the queue at once.
fn assert_conflicts_are_decided_anew<S: Memory>(rig: MemoryRig<S>) {
    super::rig::prove(rig, async |rig: &mut dyn Rig| {
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let mut client = Client::new(rig, "x");
                tokio::task::spawn_local(async move { client.wait_in_line().await })
            })
            .collect();
        let mut positions = Vec::new();
        for task in tasks {
            positions.push(match task.await.unwrap() {
                Attempt::Granted(_) => 0,
                Attempt::Busy(busy) => busy.position.unwrap(),
                refused => panic!("{refused:?}"),
            });
        }
        positions.sort_unstable();
        assert_eq!(positions, (0..8).collect::<Vec<_>>(), "one holder, and each waiter has a position");
    });
}

#[test]
fn a_conflict_is_decided_anew() {
    let rig = MemoryRig::<Documents>::new();
    let shared = rig.0.clone();
    assert_conflicts_are_decided_anew(rig);
    assert_ne!(shared.conflicts.get(), 0);
}

/// A request on a lock with a value in an unknown format is refused.
fn assert_refused<S: Memory>(rig: MemoryRig<S>) {
    super::rig::prove(rig, async |rig: &mut dyn Rig| {
        let mut client = Client::new(rig, "x");
        let (name, record) = (LockName::new("x").unwrap(), Record::default());
        for intent in [Intent::TakeNow, Intent::Enqueue] {
            let refused = client.backend.try_acquire(&client.claim, intent).await;
            assert!(matches!(refused, Err(StoreError::Config(_))), "{refused:?}");
        }
        let refused = client.backend.renew(&client.claim, Duration::ZERO).await;
        assert!(matches!(refused, Err(StoreError::Config(_))), "{refused:?}");
        let refused =
            client.backend.release(&client.claim, Duration::ZERO, Ending::with_record(Some(&record))).await;
        assert!(matches!(refused, Err(StoreError::Config(_))), "{refused:?}");
        let refused = client.backend.add_record(&name, &record).await;
        assert!(matches!(refused, Err(StoreError::Config(_))), "{refused:?}");
        let seen = rig.open().inspect(std::slice::from_ref(&name), None).await.unwrap();
        assert!(matches!(seen.locks[0].unknown, Some(Unknown::Unreadable(_))), "{seen:?}");
    });
}

const UNKNOWN_FORMATS: [&[u8]; 2] = [br#"{"format":3,"fencing_token":7}"#, b"not ours"];

#[test]
fn a_ledger_in_an_unknown_format_is_refused_and_not_overwritten() {
    for text in UNKNOWN_FORMATS {
        let rig = MemoryRig::<Documents>::new();
        let shared = rig.0.clone();
        shared.documents.borrow_mut().insert("x".into(), (1, text.to_vec()));
        assert_refused(rig);
        assert_eq!(shared.documents.borrow()["x"], (1, text.to_vec()));
    }
}

#[test]
fn an_entry_in_an_unknown_format_is_refused_and_not_overwritten() {
    for text in UNKNOWN_FORMATS {
        let rig = MemoryRig::<Entries<Leases>>::new();
        let shared = rig.0.clone();
        shared.plant("x", 7, text);
        assert_refused(rig);
        assert_eq!(shared.texts("x"), [(7, text.to_vec())]);
    }
}

/// Such as after a host was upgraded while a command runs on another one: it is not stopped, and the lock is not granted to
/// an older dlock again.
#[test]
fn a_document_in_an_unknown_format_is_not_overwritten_and_stops_no_holder() {
    for text in UNKNOWN_FORMATS {
        let rig = MemoryRig::<Entries<Leases>>::new();
        let shared = rig.0.clone();
        super::rig::prove(rig, async |rig: &mut dyn Rig| {
            let mut client = Client::new(rig, "x");
            client.acquire().await;
            shared.plant("x", entries::METADATA, text);
            client.assert_held().await;
            let record = Record::default();
            let ending = Ending { success: Some(Duration::ZERO), ..Ending::with_record(Some(&record)) };
            let release = client.backend.release(&client.claim, Duration::ZERO, ending).await;
            assert!(matches!(release, Ok(Release::SuccessNotStored(_))), "{release:?}");
            let mut other = Client::new(rig, "x");
            for intent in [Intent::TakeNow, Intent::Enqueue] {
                let refused = other.backend.try_acquire(&other.claim, intent).await;
                assert!(matches!(refused, Err(StoreError::Config(_))), "{refused:?}");
            }
            let refused = other.backend.add_record(&other.claim.name, &Record::default()).await;
            assert!(matches!(refused, Err(StoreError::Config(_))), "{refused:?}");
        });
        assert_eq!(shared.texts("x"), [(entries::METADATA, text.to_vec())]);
    }
}

/// Also in the case that the store has lost its revisions, such as one that was restored from a copy.
#[test]
fn fencing_tokens_continue_from_the_document_beside_the_entries() {
    const LAST: u64 = 1 << 50;
    let rig = MemoryRig::<Entries<Leases>>::new();
    let mut metadata = Ledger::default();
    metadata.fencing_token = LAST;
    rig.0.plant("x", entries::METADATA, &serde_json::to_vec(&metadata).unwrap());
    super::rig::prove(rig, async |rig: &mut dyn Rig| {
        for more in 1..4 {
            let mut client = Client::new(rig, "x");
            assert_eq!(client.acquire().await.fencing.unwrap().number(), LAST + more);
            client.release().await;
        }
    });
}

/// What is not contended takes one step each, and so does a renewal while others wait.
#[test]
fn an_uncontended_lock_takes_one_step_each() {
    let rig = MemoryRig::<Documents>::new();
    let shared = rig.0.clone();
    let steps = move || shared.steps.replace(0);
    super::rig::prove(rig, async |rig: &mut dyn Rig| {
        let (mut client, mut waiter) = (Client::new(rig, "x"), Client::new(rig, "x"));
        let mut fencing = None;
        for _ in 0..3 {
            let granted = client.acquire().await.fencing;
            assert!(granted > fencing, "{fencing:?}, then {granted:?}");
            fencing = granted;
            assert_eq!(steps(), 1);
            client.assert_held().await;
            assert_eq!(steps(), 1);
            client.release().await;
            assert_eq!(steps(), 1);
        }
        client.acquire().await;
        waiter.queue().await;
        assert_eq!(steps(), 1 + 2);
        client.assert_held().await;
        waiter.queue().await;
        assert_eq!(steps(), 1 + 1, "heartbeats");
        assert_eq!(client.release().await, Release::Released);
        assert_eq!(steps(), 1 + 2, "the waiter has changed the ledger");
        waiter.claim_turn().await;
        assert_eq!(steps(), 2);
    });
}

/// Random requests of clients in all modes and of a foreign program, in every order of their steps that comes up.
#[test]
fn holders_behind_a_gate_and_a_foreign_program_exclude_each_other() {
    const ROUNDS: usize = 150;
    const MODES: [Mode; 5] = [Mode::Exclusive, Mode::Exclusive, Mode::Shared, Mode::Slots(2), Mode::Slots(2)];
    for seed in 0..20 {
        let rig = MemoryRig::<Documents<true>>::new();
        let shared = rig.0.clone();
        super::rig::prove(rig, async |rig: &mut dyn Rig| {
            let (inside, began): (Rc<RefCell<Vec<Mode>>>, _) = (Rc::default(), Instant::now());
            let mut tasks = Vec::new();
            for (number, mode) in MODES.into_iter().enumerate() {
                let (inside, mut random) = (inside.clone(), Lcg(seed * 100 + number as u64));
                let mut client = Client::new(rig, "x").in_mode(mode);
                tasks.push(tokio::task::spawn_local(async move {
                    let (mut grants, mut rounds) = (0, 0);
                    // On a fast machine all rounds may take less time than a called waiter has to claim.
                    while rounds < ROUNDS || (grants == 0 && began.elapsed() < SOON) {
                        rounds += 1;
                        let waits = random.below(2) == 0;
                        let attempt = match waits {
                            true => client.wait_in_line().await,
                            false => client.try_acquire().await,
                        };
                        let Attempt::Granted(_) = attempt else {
                            pause(&mut random).await;
                            // Sometimes it leaves the queue.
                            if random.below(4) == 0 {
                                assert_eq!(client.release().await, Release::NotHeld);
                            }
                            continue;
                        };
                        grants += 1;
                        inside.borrow_mut().push(mode);
                        let others = inside.borrow().clone();
                        let most = match mode {
                            Mode::Exclusive => 1,
                            Mode::Slots(count) => count as usize,
                            Mode::Shared => MODES.len(),
                        };
                        assert!(
                            others.iter().all(|other| *other == mode) && others.len() <= most,
                            "seed {seed}: {others:?}"
                        );
                        pause(&mut random).await;
                        client.assert_held().await;
                        let place = inside.borrow().iter().position(|other| *other == mode).unwrap();
                        inside.borrow_mut().remove(place);
                        assert_eq!(client.release().await, Release::Released, "seed {seed}");
                    }
                    client.release().await;
                    grants
                }));
            }
            let (program, seen, mut random) = (shared.clone(), inside.clone(), Lcg(seed));
            let stranger = tokio::task::spawn_local(async move {
                let (mut passages, mut rounds) = (0, 0);
                while rounds < ROUNDS || (passages == 0 && began.elapsed() < SOON) {
                    rounds += 1;
                    if program.pass_by_a_stranger("x") {
                        passages += 1;
                        assert_eq!(*seen.borrow(), [], "seed {seed}: {passages}");
                        pause(&mut random).await;
                        assert_eq!(*seen.borrow(), [], "seed {seed}: {passages}");
                        program.leave_by_a_stranger();
                    }
                    pause(&mut random).await;
                }
                passages
            });
            for task in tasks {
                assert_ne!(task.await.unwrap(), 0, "seed {seed}: never granted");
            }
            assert_ne!(stranger.await.unwrap(), 0, "seed {seed}: the foreign program never passed");
            assert_eq!(shared.count_inside("x"), 0);
            assert_eq!(rig.traces("x"), [""; 0]);
        });
    }
}

/// The ledger still has the entry.
#[test]
fn a_hold_ends_with_the_session_that_has_passed_the_gate() {
    for (is_taken, loss) in [(false, Loss::Gone), (true, Loss::Taken)] {
        let rig = MemoryRig::<Documents<true>>::new();
        let shared = rig.0.clone();
        super::rig::prove(rig, async |rig: &mut dyn Rig| {
            let mut owner = Client::new(rig, "x");
            owner.acquire().await;
            owner.assert_held().await;
            shared.end_sessions();
            assert_eq!(is_taken, is_taken && shared.pass_by_a_stranger("x"));
            owner.assert_lost(loss).await;
            assert_eq!(owner.release().await, Release::NotHeld);
        });
    }
}

/// Numbers that follow from a seed.
struct Lcg(u64);

impl Lcg {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Lets others take some steps.
async fn pause(random: &mut Lcg) {
    for _ in 0..random.below(12) {
        tokio::task::yield_now().await;
    }
}

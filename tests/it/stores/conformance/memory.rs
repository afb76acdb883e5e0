//! A ledger in memory, by the traits alone: the core with the least store that there can be.
//!
//! Only the checks through the traits: a run cannot reach the store, and it has no foreign programs, file names and
//! secrets.

mod store;

use self::store::{MemoryStore, Shared};
use super::client::{Client, claim};
use super::rig::Rig;
use crate::support::place::Place;
use dlock::backend::admin::LockAdmin;
use dlock::backend::ledger::{Contender, Ledger, Step, decide};
use dlock::backend::{Attempt, Intent, StoreError};
use dlock::lock::{Claim, LockName, Record, Token, Unknown};
use std::rc::Rc;
use std::time::Duration;

struct MemoryRig(Rc<Shared>);

/// Its holds belong to neither client nor check.
const ANOTHER: &str = "another";

impl MemoryRig {
    fn new() -> Self {
        Self(Shared::new())
    }

    fn ledger(&self, name: &str) -> Ledger {
        self.0.load(name).unwrap().0
    }

    fn claim_of_another(name: &str) -> Claim {
        Claim { token: Token::from_text(ANOTHER), ..claim(name) }
    }
}

impl Rig for MemoryRig {
    fn place(&self) -> &Place {
        unreachable!("a run cannot reach this store")
    }

    fn url(&self) -> String {
        unreachable!("a run cannot reach this store")
    }

    fn open(&self) -> Box<dyn LockAdmin> {
        Box::new(Contender::new(MemoryStore::new(self.0.clone())))
    }

    fn exact_url(&self) -> String {
        unreachable!("names are not encoded")
    }

    fn url_with_secret(&self, _: &str) -> Option<String> {
        None
    }

    fn has_leases(&self) -> bool {
        true
    }

    fn detects_dead_waiters(&self) -> bool {
        false
    }

    fn delete(&mut self, name: &str) {
        self.0.documents.borrow_mut().remove(name);
    }

    fn replace(&mut self, name: &str) {
        self.delete(name);
        assert!(self.foreign_lock(name, None));
    }

    fn is_untouched(&self, name: &str) -> bool {
        let ledger = self.ledger(name);
        ledger.waiters.is_empty() && ledger.holders.iter().map(|holder| &holder.token).eq([ANOTHER])
    }

    /// By a client with another token: there are no foreign programs.
    fn foreign_lock(&mut self, name: &str, lease: Option<Duration>) -> bool {
        assert_eq!(lease, None);
        let (claim, mut ledger) = (Self::claim_of_another(name), self.ledger(name));
        let step = decide::claim(&mut ledger, &self.0.now(), &claim, Intent::TakeNow);
        let is_granted = matches!(step, Step::Done { value: Attempt::Granted(_), .. });
        if is_granted {
            self.0.store(name, &ledger, &[]);
        }
        is_granted
    }

    fn foreign_unlock(&mut self, name: &str) {
        let (claim, mut ledger) = (Self::claim_of_another(name), self.ledger(name));
        decide::release(&mut ledger, &self.0.now(), &claim, Duration::ZERO, None);
        self.0.store(name, &ledger, &[]);
    }

    fn waiters(&self, name: &str) -> usize {
        self.ledger(name).waiters.len()
    }

    fn traces(&self, name: &str) -> Vec<String> {
        let ledger = self.ledger(name);
        let holders = ledger.holders.iter().map(|holder| format!("{holder:?}"));
        holders.chain(ledger.waiters.iter().map(|waiter| format!("{waiter:?}"))).collect()
    }

    fn restart(&mut self) {}

    fn wipe(&mut self) {
        self.0.documents.borrow_mut().clear();
    }

    fn own_items(&self, _: &[&str]) -> Vec<String> {
        Vec::new()
    }
}

super::trait_checks!(MemoryRig::new);

#[test]
fn a_conflict_is_decided_anew() {
    let rig = MemoryRig::new();
    let shared = rig.0.clone();
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
    assert_ne!(*shared.conflicts.borrow(), 0);
}

#[test]
fn a_ledger_in_an_unknown_format_is_refused_and_not_overwritten() {
    for text in [&br#"{"format":2,"fencing_token":7}"#[..], b"not ours"] {
        let rig = MemoryRig::new();
        let shared = rig.0.clone();
        shared.documents.borrow_mut().insert("x".into(), (1, text.to_vec()));
        super::rig::prove(rig, async |rig: &mut dyn Rig| {
            let mut client = Client::new(rig, "x");
            let (name, record) = (LockName::new("x").unwrap(), Record::default());
            for intent in [Intent::TakeNow, Intent::Enqueue] {
                let refused = client.backend.try_acquire(&client.claim, intent).await;
                assert!(matches!(refused, Err(StoreError::Config(_))), "{refused:?}");
            }
            let refused = client.backend.renew(&client.claim, Duration::ZERO).await;
            assert!(matches!(refused, Err(StoreError::Config(_))), "{refused:?}");
            let refused = client.backend.release(&client.claim, Duration::ZERO, Some(&record)).await;
            assert!(matches!(refused, Err(StoreError::Config(_))), "{refused:?}");
            let refused = client.backend.record(&name, &record).await;
            assert!(matches!(refused, Err(StoreError::Config(_))), "{refused:?}");
            let seen = rig.open().inspect(std::slice::from_ref(&name), None).await.unwrap();
            assert!(matches!(seen.locks[0].unknown, Some(Unknown::Unreadable(_))), "{seen:?}");
        });
        assert_eq!(shared.documents.borrow()["x"], (1, text.to_vec()));
    }
}

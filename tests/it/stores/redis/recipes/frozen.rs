//! A frozen lock is kept from other programs too, although they know nothing of freezes.

use super::Fixture;
use super::simulated_clients::{Listener, Thread};
use crate::stores::conformance::client::Client;
use crate::stores::conformance::rig::{locate, on_one_thread};
use crate::support::SOON;
use crate::support::resp::Value;
use crate::support::wait::until;
use dlock::backend::Release;
use dlock::backend::admin::{Frozen, LockAdmin};
use dlock::lock::{Freeze, FreezeRequest, LockName};
use std::time::Duration;

/// A lock of a recipe, an operator, and another program.
struct Stage {
    fixture: Fixture,
    operator: Box<dyn LockAdmin>,
    /// Redisson; other programs take a lock as `SET NX`.
    java: Option<Thread>,
}

impl Stage {
    fn of(recipe: &str) -> Self {
        let fixture = Fixture::of(recipe);
        let java = (recipe == "redisson").then(|| Thread::new(&fixture, 1));
        Self { operator: locate(&fixture.url).unwrap().open(), fixture, java }
    }

    /// Freezes the lock, which is not frozen.
    async fn freeze(&mut self, request: &FreezeRequest) -> Freeze {
        match self.operator.freeze(&name(), request).await.unwrap() {
            Frozen::Done(freeze) => freeze,
            other => panic!("{other:?}"),
        }
    }

    /// Repeats that.
    async fn freeze_again(&mut self, request: &FreezeRequest) -> Freeze {
        match self.operator.freeze(&name(), request).await.unwrap() {
            Frozen::Kept(freeze) => freeze,
            other => panic!("{other:?}"),
        }
    }

    async fn thaw(&mut self, request: &FreezeRequest) {
        assert!(self.operator.thaw(&name(), &request.id).await.unwrap());
    }

    /// Whether the other program gets the lock.
    fn take(&mut self) -> bool {
        match &mut self.java {
            Some(java) => java.lock(60_000) == Value::Nil,
            None => {
                let taken =
                    self.fixture.command(&["SET", &self.fixture.key, "another's", "NX", "PX", "60000"]);
                taken == Value::Text("OK".into())
            }
        }
    }

    /// The other program releases the lock.
    fn leave(&mut self) {
        match &mut self.java {
            Some(java) => assert_eq!(java.unlock(), Value::Int(1)),
            None => assert_eq!(self.fixture.command(&["DEL", &self.fixture.key]), Value::Int(1)),
        }
    }

    fn client(&self) -> Client {
        Client::at(&self.fixture.url, "x")
    }

    /// What dlock shows of the lock: how many holders, and the id of the freeze.
    async fn shown(&mut self) -> (usize, Option<String>) {
        let lock = self.operator.inspect(&[name()], None).await.unwrap().locks.remove(0);
        assert_eq!(lock.unknown, None);
        (lock.holders.len(), lock.freeze.map(|freeze| freeze.id))
    }
}

fn name() -> LockName {
    LockName::new("x").unwrap()
}

fn freeze_for(lasts: Option<Duration>) -> FreezeRequest {
    FreezeRequest::new("root@here".into(), Some("a \"migration\"".into()), lasts)
}

fn of_each_recipe(check: impl AsyncFn(Stage)) {
    for recipe in ["plain", "redisson", "python-redis-lock"] {
        println!("{recipe}");
        on_one_thread(check(Stage::of(recipe)));
    }
}

#[test]
fn others_are_kept_out_of_a_free_lock_until_it_is_thawed() {
    of_each_recipe(async |mut stage| {
        let request = freeze_for(None);
        let freeze = stage.freeze(&request).await;
        assert_eq!((freeze.id.as_str(), freeze.until), (request.id.as_str(), None));
        let left = stage.fixture.command(&["PTTL", &stage.fixture.key]).int();
        assert!(left == -1 || left > 900 * 365 * 24 * 3600 * 1000, "{left}");
        for _ in 0..2 {
            assert!(!stage.take());
            let busy = stage.client().busy().await;
            assert_eq!((busy.holders.len(), busy.freeze.as_deref()), (0, Some(&freeze)));
            assert_eq!(stage.shown().await, (0, Some(request.id.clone())));
        }
        stage.thaw(&request).await;
        assert_eq!(stage.shown().await, (0, None));
        assert!(stage.take());
        stage.leave();
        assert_eq!(stage.fixture.space.keys(), [""; 0]);
    });
}

#[test]
fn others_are_kept_out_until_the_freeze_ends_by_itself() {
    of_each_recipe(async |mut stage| {
        stage.freeze(&freeze_for(Some(Duration::from_millis(700)))).await;
        assert!(!stage.take());
        let mut waiter = stage.client();
        assert_eq!(waiter.queue().await.position, Some(1));
        until(SOON, "the end of the freeze", || stage.take());
        assert_eq!(waiter.queue().await.freeze, None);
        stage.leave();
        waiter.claim_turn().await;
        assert!(!stage.take());
        assert_eq!(waiter.release().await, Release::Released);
        assert!(stage.take());
        assert_eq!(stage.shown().await, (1, None));
    });
}

/// Nothing of the freeze is left in a lock that is granted when it has just ended.
#[test]
fn the_next_holder_replaces_what_a_freeze_has_left() {
    of_each_recipe(async |mut stage| {
        stage.freeze(&freeze_for(None)).await;
        let frozen = stage.fixture.space.keys().into_iter().find(|key| key.starts_with("dlock#frozen:"));
        let frozen = frozen.unwrap_or_else(|| format!("dlock#frozen:{{{}}}", stage.fixture.key));
        assert_eq!(stage.fixture.command(&["DEL", &frozen]), Value::Int(1));
        let mut holder = stage.client();
        holder.acquire().await;
        assert_eq!(stage.shown().await, (1, None));
        holder.assert_held().await;
        assert!(!stage.take());
        assert_eq!(holder.release().await, Release::Released);
        assert!(stage.take());
    });
}

#[test]
fn others_are_kept_out_when_the_holder_has_ended() {
    of_each_recipe(async |mut stage| {
        let mut holder = stage.client();
        holder.acquire().await;
        let request = freeze_for(None);
        stage.freeze(&request).await;
        assert_eq!(stage.shown().await, (1, Some(request.id.clone())));
        holder.assert_held().await;
        assert_eq!(holder.release().await, Release::Released);
        assert!(!stage.take());
        assert_eq!(stage.shown().await, (0, Some(request.id.clone())));
        holder.assert_not_held().await;
        stage.thaw(&request).await;
        assert!(stage.take());
    });
}

/// Whoever asks next: a claim, or the operator who waits for its end.
#[test]
fn the_hold_of_another_program_goes_on_and_is_its_last() {
    of_each_recipe(async |mut stage| {
        for is_asked_by_operator in [false, true] {
            assert!(stage.take());
            let request = freeze_for(None);
            let freeze = stage.freeze(&request).await;
            assert_eq!(stage.shown().await, (1, Some(request.id.clone())));
            let busy = stage.client().busy().await;
            assert_eq!((busy.holders.len(), busy.freeze.as_deref()), (1, Some(&freeze)));
            assert_eq!(stage.freeze_again(&request).await, freeze);
            stage.leave();
            match is_asked_by_operator {
                true => assert_eq!(stage.freeze_again(&request).await, freeze),
                false => assert_eq!(stage.client().busy().await.holders, []),
            }
            assert!(!stage.take());
            stage.thaw(&request).await;
        }
    });
}

#[test]
fn an_operator_may_remove_the_hold_of_another_program() {
    of_each_recipe(async |mut stage| {
        assert!(stage.take());
        let request = freeze_for(None);
        stage.freeze(&request).await;
        let shown = stage.operator.inspect(&[name()], None).await.unwrap().locks.remove(0);
        let removal = stage.operator.remove(&name(), &shown.holders[0]).await.unwrap();
        assert_eq!(removal, dlock::backend::admin::Removal::Removed);
        assert!(!stage.take());
        stage.thaw(&request).await;
        assert!(stage.take());
    });
}

/// A hash of several fields, or a large one, is not read.
#[test]
fn any_value_of_redisson_may_be_removed() {
    let large = "f".repeat(10_000);
    for fields in [&["a", "b"][..], &[large.as_str()]] {
        on_one_thread(async {
            let mut stage = Stage::of("redisson");
            for field in fields {
                stage.fixture.command(&["HSET", &stage.fixture.key, field, "1"]);
            }
            let request = freeze_for(None);
            stage.freeze(&request).await;
            let shown = stage.operator.inspect(&[name()], None).await.unwrap().locks.remove(0);
            let removal = stage.operator.remove(&name(), &shown.holders[0]).await.unwrap();
            assert_eq!(removal, dlock::backend::admin::Removal::Removed);
            assert_eq!(stage.shown().await, (0, Some(request.id.clone())));
            assert!(!stage.take());
            stage.thaw(&request).await;
            assert!(stage.take());
        });
    }
}

/// Waiters of other programs are told that the lock is free when they may have it.
#[test]
fn waiters_of_redisson_are_notified_of_the_thaw() {
    let mut stage = Stage::of("redisson");
    let channel = Thread::new(&stage.fixture, 2).of_lock("_channel");
    let mut listener = Listener::on(&stage.fixture, "SUBSCRIBE", &channel);
    on_one_thread(async {
        let mut holder = stage.client();
        holder.acquire().await;
        let request = freeze_for(None);
        stage.freeze(&request).await;
        assert_eq!(holder.release().await, Release::Released);
        assert!(listener.is_silent());
        stage.thaw(&request).await;
        assert_eq!(listener.hears(), "0");
    });
}

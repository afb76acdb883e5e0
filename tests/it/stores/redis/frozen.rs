//! What a freeze stores, and who sees it: a dlock that does not know of freezes refuses the lock.

use crate::stores::conformance::client::Client;
use crate::stores::conformance::rig::{locate, on_one_thread};
use crate::support::SOON;
use crate::support::redis::{Keyspace, Redis};
use crate::support::resp::Value;
use crate::support::wait::until;
use dlock::backend::admin::{Frozen, Listed, LockAdmin};
use dlock::backend::{Attempt, Refusal, Release};
use dlock::lock::{FreezeRequest, LockName, Mode};
use std::time::Duration;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn name() -> LockName {
    LockName::new("x").unwrap()
}

fn freeze_for(lasts: Option<Duration>) -> FreezeRequest {
    FreezeRequest::new("root@here".into(), None, lasts)
}

async fn freeze(operator: &mut dyn LockAdmin, request: &FreezeRequest) {
    let frozen = operator.freeze(&name(), request).await.unwrap();
    assert!(matches!(frozen, Frozen::Done(_)), "{frozen:?}");
}

fn side(space: &Keyspace, kind: &str) -> String {
    format!("dlock#{kind}:{{{}}}", space.key("x"))
}

/// The format of the waiters, which each earlier dlock compares with 1 before it is granted a lock.
fn format(space: &Keyspace) -> Value {
    space.command(&["HGET", &side(space, "waiters"), "format"])
}

fn ttl(space: &Keyspace, kind: &str) -> Duration {
    let left = space.command(&["PTTL", &side(space, kind)]).int();
    Duration::from_millis(u64::try_from(left).unwrap_or(u64::MAX))
}

#[test]
fn the_waiters_have_another_format_while_the_lock_is_frozen() {
    let space = Keyspace::new();
    let two = Value::Text("2".into());
    on_one_thread(async {
        let mut operator = locate(&space.url()).unwrap().open();
        for lasts in [None, Some(DAY * 60)] {
            let request = freeze_for(lasts);
            freeze(&mut *operator, &request).await;
            assert_eq!(format(&space), two);
            // Whether it waited before or not.
            let mut waiter = Client::at(&space.url(), "x").with_ttl(Duration::from_secs(1));
            assert!(waiter.queue().await.freeze.is_some());
            assert_eq!(format(&space), two);
            assert_eq!(waiter.release().await, Release::NotHeld);
            assert_eq!(format(&space), two);
            assert!(Client::at(&space.url(), "x").busy().await.freeze.is_some());
            assert!(ttl(&space, "waiters") > DAY * 59, "{:?}", ttl(&space, "waiters"));
            assert!(operator.thaw(&name(), &request.id).await.unwrap());
            assert_eq!(format(&space), Value::Nil);
        }
        let mut holder = Client::at(&space.url(), "x");
        holder.acquire().await;
        let mut waiter = Client::at(&space.url(), "x").with_ttl(Duration::from_secs(60));
        waiter.queue().await;
        let request = freeze_for(Some(DAY * 60));
        freeze(&mut *operator, &request).await;
        assert_eq!(format(&space), two);
        assert!(ttl(&space, "waiters") > DAY * 59);
        assert!(operator.thaw(&name(), &request.id).await.unwrap());
        assert_eq!(format(&space), Value::Text("1".into()));
        assert!(ttl(&space, "waiters") < DAY);
        assert_eq!(holder.release().await, Release::Released);
        waiter.await_turn().await;
        waiter.claim_turn().await;
    });
}

#[test]
fn the_first_claim_after_the_end_of_a_freeze_restores_the_format() {
    let space = Keyspace::new();
    on_one_thread(async {
        let mut operator = locate(&space.url()).unwrap().open();
        let mut holder = Client::at(&space.url(), "x");
        holder.acquire().await;
        let mut waiters = [(); 2].map(|()| Client::at(&space.url(), "x"));
        waiters[0].queue().await;
        freeze(&mut *operator, &freeze_for(Some(Duration::from_millis(300)))).await;
        let frozen = side(&space, "frozen");
        until(SOON, "the end", || space.command(&["EXISTS", &frozen]) == Value::Int(0));
        assert_eq!(format(&space), Value::Text("2".into()));
        let busy = waiters[1].queue().await;
        assert_eq!((busy.position, busy.freeze), (Some(2), None));
        assert_eq!(format(&space), Value::Text("1".into()));
        assert_eq!(holder.release().await, Release::Released);
        waiters[0].claim_turn().await;
    });
}

/// What another dlock stored is neither read nor overwritten.
#[test]
fn a_lock_in_an_unknown_format_is_not_frozen() {
    let space = Keyspace::new();
    on_one_thread(async {
        let mut operator = locate(&space.url()).unwrap().open();
        space.command(&["HSET", &side(&space, "waiters"), "format", "3"]);
        let error = operator.freeze(&name(), &freeze_for(None)).await.unwrap_err();
        assert!(error.to_string().contains("stored by another dlock (format 3"), "{error}");
        assert_eq!(space.command(&["EXISTS", &side(&space, "frozen")]), Value::Int(0));
        space.command(&["DEL", &side(&space, "waiters")]);

        space.command(&["SET", &side(&space, "frozen"), r#"{"id":7}"#]);
        let mut client = Client::at(&space.url(), "x");
        client.backend.connect().await.unwrap();
        let error =
            client.backend.try_acquire(&client.claim, dlock::backend::Intent::TakeNow).await.unwrap_err();
        assert!(error.to_string().contains("its freeze is stored by another dlock"), "{error}");
        let seen = operator.inspect(&[name()], None).await.unwrap().whole().unwrap_err();
        assert!(seen.to_string().contains("its freeze is stored by another dlock"), "{seen}");
        assert_eq!(space.command(&["GET", &side(&space, "frozen")]), Value::Text(r#"{"id":7}"#.into()));
    });
}

#[test]
fn a_full_server_is_thawed_while_runs_wait() {
    let redis = Redis::start();
    on_one_thread(async {
        let mut operator = locate(&redis.url()).unwrap().open();
        let request = freeze_for(None);
        freeze(&mut *operator, &request).await;
        let mut waiter = Client::at(&redis.url(), "x");
        assert!(waiter.queue().await.freeze.is_some());
        redis.command(&["CONFIG", "SET", "maxmemory", "1"]);
        assert!(matches!(redis.command(&["SET", "k", "v"]), Value::Error(_)));
        assert!(operator.thaw(&name(), &request.id).await.unwrap());
        let format = redis.command(&["HGET", "dlock#waiters:{dlock:x}", "format"]);
        assert_eq!(format, Value::Text("1".into()));
        assert!(operator.inspect(&[name()], None).await.unwrap().locks[0].freeze.is_none());
        redis.command(&["CONFIG", "SET", "maxmemory", "0"]);
        waiter.await_turn().await;
        waiter.claim_turn().await;
    });
}

/// Other locks that are granted meanwhile do not have the index expire.
#[test]
fn a_frozen_lock_stays_in_the_index() {
    let redis = Redis::start();
    on_one_thread(async {
        let mut operator = locate(&redis.url()).unwrap().open();
        for lasts in [Some(DAY * 400), None] {
            let request = freeze_for(lasts);
            freeze(&mut *operator, &request).await;
            let mut other = Client::at(&redis.url(), "y");
            other.acquire().await;
            other.release().await;
            assert_eq!(operator.list(Listed::InUse).await.unwrap(), [name()]);
            operator.inspect(&[name()], None).await.unwrap();
            assert_eq!(operator.list(Listed::InUse).await.unwrap(), [name()]);
            let left = redis.command(&["PTTL", "dlock#locks"]).int();
            assert!(left > 390 * 24 * 3600 * 1000, "{left}");
            assert!(operator.thaw(&name(), &request.id).await.unwrap());
            assert_eq!(operator.list(Listed::InUse).await.unwrap().len(), 0);
        }
    });
}

/// A claim that asks for another number of slots is still refused, and a shared lock whose holders have died is free.
#[test]
fn dead_holders_do_not_keep_a_frozen_lock() {
    let space = Keyspace::new();
    on_one_thread(async {
        let mut operator = locate(&space.url()).unwrap().open();
        let slots = |of, ttl| Client::at(&space.url(), "x").in_mode(Mode::of_slots(of)).with_ttl(ttl);
        let mut dying = slots(2, Duration::from_millis(300));
        dying.acquire().await;
        let mut alive = slots(2, DAY);
        alive.acquire().await;
        let request = freeze_for(None);
        freeze(&mut *operator, &request).await;
        assert!(matches!(slots(3, DAY).try_acquire().await, Attempt::Refused(Refusal::Slots(2))));
        tokio::time::sleep(Duration::from_millis(600)).await;
        let busy = slots(2, DAY).busy().await;
        assert_eq!((busy.holders.len(), busy.freeze.is_some()), (1, true));
        assert_eq!(alive.release().await, Release::Released);
        let (key, marker) = (space.key("x"), Value::Text("dlock:frozen".into()));
        assert_eq!(space.command(&["GET", &key]), marker);
        assert!(operator.thaw(&name(), &request.id).await.unwrap());
        assert_eq!(space.command(&["GET", &key]), Value::Nil);
        slots(3, DAY).acquire().await;
    });
}

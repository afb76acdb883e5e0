//! Fencing tokens always grow.

use crate::stores::conformance::client::Client;
use crate::stores::conformance::rig::{Rig, locate, shown};
use crate::support::dlock::Dlock;
use crate::support::running::Exit;
use dlock::backend::StoreError;
use dlock::backend::admin::Raised;
use dlock::lock::{FencingToken, LockName};
use std::time::{Duration, Instant};

/// Acquires `x`, and asserts that the token is larger than `last` and fits the number type of any language.
async fn next(rig: &dyn Rig, last: Option<FencingToken>) -> (Client, Option<FencingToken>) {
    let mut client = Client::new(rig, "x");
    let fencing = client.acquire().await.fencing;
    assert!(fencing > last, "{last:?}, then {fencing:?}");
    assert!(fencing.is_some_and(|fencing| fencing.number() < 1 << 53), "{fencing:?}");
    (client, fencing)
}

pub async fn fencing_tokens_grow_with_every_grant(rig: &mut dyn Rig) {
    let mut last = None;
    for _ in 0..50 {
        let (mut client, fencing) = next(rig, last).await;
        client.release().await;
        last = fencing;
    }
    let run = rig.run().sh("echo $DLOCK_FENCING_TOKEN").output();
    let fencing = run.stdout.trim().parse().unwrap();
    assert!(FencingToken::new(fencing) > last, "{last:?}, then {fencing}");
}

pub async fn fencing_tokens_grow_over_a_restart(rig: &mut dyn Rig) {
    let (mut client, mut last) = next(rig, None).await;
    client.release().await;
    for _ in 0..2 {
        rig.restart();
        let (mut client, fencing) = next(rig, last).await;
        client.release().await;
        last = fencing;
    }
}

pub async fn fencing_tokens_grow_over_a_wiped_store(rig: &mut dyn Rig) {
    let mut last = None;
    for _ in 0..5 {
        let (_lost, fencing) = next(rig, last).await;
        last = fencing;
        rig.wipe();
    }
}

pub async fn fencing_tokens_grow_over_a_deleted_lock(rig: &mut dyn Rig) {
    let mut last = None;
    for _ in 0..5 {
        let (_lost, fencing) = next(rig, last).await;
        last = fencing;
        rig.delete("x");
    }
}

async fn last(rig: &dyn Rig, name: &str) -> Option<FencingToken> {
    let mut overseer = rig.open();
    overseer.connect().await.unwrap();
    overseer.last_fencing_token(&LockName::new(name).unwrap()).await.unwrap()
}

pub async fn the_last_fencing_token_outlives_its_hold(rig: &mut dyn Rig) {
    assert_eq!(last(rig, "x").await, None);
    assert_eq!(rig.traces("x"), [""; 0]);
    let (mut client, mut fencing) = next(rig, None).await;
    for _ in 0..3 {
        assert_eq!(last(rig, "x").await, fencing);
        // A claim that is not granted changes nothing.
        let mut waiter = Client::new(rig, "x");
        waiter.queue().await;
        assert_eq!(last(rig, "x").await, fencing);
        client.release().await;
        fencing = waiter.claim_turn().await.fencing.inspect(|later| assert!(Some(*later) > fencing));
        client = waiter;
    }
    client.release().await;
    assert_eq!(last(rig, "x").await, fencing);
    let (_lost, fencing) = next(rig, fencing).await;
    rig.delete("x");
    // A store that keeps it with the lock has lost it.
    assert!([None, fencing].contains(&last(rig, "x").await));
    assert_eq!(last(rig, "y").await, None);
}

pub async fn a_script_can_check_that_no_later_fencing_token_was_granted(rig: &mut dyn Rig) {
    let check = |run: Dlock, token: &str| {
        run.args(["check", "-b", &rig.url(), "--fencing-token", token, "x"]).output()
    };
    let granted = || rig.run().sh("echo $DLOCK_FENCING_TOKEN").output().stdout.trim().to_owned();
    let first = granted();
    let again = check(rig.place().bare(), &first);
    assert_eq!(again.outcome(), (Exit::Code(0), "", ""));
    let second = granted();
    let url = locate(&rig.url()).unwrap();
    let line = format!(
        "dlock: x on {}: fencing token {first} is outdated: {second} has been granted\n",
        url.display()
    );
    assert_eq!(check(rig.place().bare(), &first).outcome(), (Exit::Code(76), "", line.as_str()));
    assert_eq!(check(rig.place().bare(), &second).outcome(), (Exit::Code(0), "", ""));
}

/// As far ahead of the counter of any store as the tokens of another store may be.
const FLOOR: u64 = 1 << 52;

pub async fn later_fencing_tokens_are_larger_than_a_floor(rig: &mut dyn Rig) {
    let name = LockName::new("x").unwrap();
    let raise = async |floor| {
        let mut operator = rig.open();
        let floor = FencingToken::new(floor).unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            operator.connect().await.unwrap();
            match operator.raise_fencing(&name, floor).await {
                Err(StoreError::Unavailable { .. }) if Instant::now() < deadline => {}
                raised => break raised.unwrap(),
            }
        }
    };
    // Of a lock that nobody has held yet, and again.
    assert_eq!((raise(FLOOR).await, raise(FLOOR).await), (Raised::Done, Raised::Done));
    assert_eq!(last(rig, "x").await, FencingToken::new(FLOOR));
    assert_eq!(raise(FLOOR - 1).await, Raised::Above(FencingToken::new(FLOOR).unwrap()));
    let (mut client, mut fencing) = next(rig, FencingToken::new(FLOOR)).await;
    // Not while it is held.
    assert_eq!((raise(FLOOR + 100).await, raise(7).await), (Raised::Held, Raised::Held));
    let mut waiter = Client::new(rig, "x");
    waiter.queue().await;
    client.release().await;
    let granted = waiter.claim_turn().await.fencing;
    assert!(granted > fencing && granted < FencingToken::new(FLOOR + 100), "{fencing:?}, then {granted:?}");
    fencing = granted;
    waiter.release().await;
    assert_eq!(raise(FLOOR).await, Raised::Above(fencing.unwrap()));
    // The floor of one lock is not that of another.
    assert_eq!(last(rig, "y").await, None);
    assert_eq!(raise(FLOOR + 100).await, Raised::Done);
    fencing = FencingToken::new(FLOOR + 100);
    for _ in 0..3 {
        let (mut client, granted) = next(rig, fencing).await;
        client.release().await;
        fencing = granted;
    }
    assert_eq!(rig.traces("x"), [""; 0]);
}

pub async fn an_operator_raises_the_fencing_tokens_of_a_free_lock(rig: &mut dyn Rig) {
    let url = rig.url();
    let raise = |floor: u64| {
        let floor = floor.to_string();
        rig.place().bare().args(["doctor", "-b", &url, "--fencing-floor", &floor, "x"]).output()
    };
    let display = shown(rig);
    assert_eq!(raise(FLOOR).outcome(), (Exit::Code(0), "", ""));
    let run = rig.run().sh("echo $DLOCK_FENCING_TOKEN").output();
    let granted: u64 = run.stdout.trim().parse().unwrap();
    assert!(granted > FLOOR, "{granted}");
    let line = format!(
        "dlock: --fencing-floor {FLOOR}: x on {display} has fencing token {granted} already, which is never lowered\n"
    );
    assert_eq!(raise(FLOOR).outcome(), (Exit::Code(64), "", line.as_str()));
    let mut holder = Client::new(rig, "x");
    holder.acquire().await;
    let line = format!(
        "dlock: x on {display} is held, and its fencing tokens are left unchanged: see dlock status, and repeat this \
         when it is free\n"
    );
    assert_eq!(raise(FLOOR + 100).outcome(), (Exit::Code(75), "", line.as_str()));
    holder.release().await;
}

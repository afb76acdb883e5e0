//! Fencing tokens always grow.

use crate::stores::conformance::client::Client;
use crate::stores::conformance::rig::{Rig, locate};
use crate::support::dlock::Dlock;
use crate::support::running::Exit;
use dlock::lock::{FencingToken, LockName};

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

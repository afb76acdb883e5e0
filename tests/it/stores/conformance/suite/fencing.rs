//! Fencing tokens always grow.

use crate::stores::conformance::client::Client;
use crate::stores::conformance::rig::Rig;
use dlock::lock::FencingToken;

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

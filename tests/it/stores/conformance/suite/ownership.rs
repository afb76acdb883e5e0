//! Only the owner of the token can act on a lock, and only while it is the owner.

use crate::stores::conformance::client::{Client, LONG, by_another};
use crate::stores::conformance::rig::Rig;
use dlock::backend::{Attempt, Ending, Loss, Release, Renewal};
use dlock::lock::Token;
use std::time::Duration;

/// An owner whose lock was deleted, and the next owner.
async fn stale_and_current(rig: &mut dyn Rig) -> (Client, Client) {
    let (mut stale, mut current) = (Client::new(rig, "x"), Client::new(rig, "x"));
    stale.acquire().await;
    rig.delete("x");
    current.acquire().await;
    (stale, current)
}

pub async fn a_stale_owner_cannot_renew(rig: &mut dyn Rig) {
    let (mut stale, mut current) = stale_and_current(rig).await;
    stale.assert_lost(Loss::Taken).await;
    current.assert_held().await;
    stale.refused().await;
}

pub async fn a_stale_owner_cannot_release(rig: &mut dyn Rig) {
    let (mut stale, mut current) = stale_and_current(rig).await;
    assert_eq!(stale.release().await, Release::NotHeld);
    current.assert_held().await;
    let holder = Client::new(rig, "x").refused().await;
    assert_eq!(holder.identity, Some(current.claim.identity.clone()));
}

pub async fn another_token_cannot_renew(rig: &mut dyn Rig) {
    let mut owner = Client::new(rig, "x");
    owner.acquire().await;
    let another = by_another(&owner.claim);
    // Neither through another connection nor through that of the owner.
    let mut elsewhere = Client::again(rig, &another.clone());
    elsewhere.assert_not_held().await;
    let renewal = owner.backend.renew(&another, Duration::ZERO).await;
    assert!(matches!(renewal, Ok(Renewal::Lost(_))), "{renewal:?}");
    owner.assert_held().await;
}

pub async fn another_token_cannot_release(rig: &mut dyn Rig) {
    let mut owner = Client::new(rig, "x");
    owner.acquire().await;
    let another = by_another(&owner.claim);
    let mut elsewhere = Client::again(rig, &another.clone());
    assert_eq!(elsewhere.release().await, Release::NotHeld);
    assert_eq!(
        owner.backend.release(&another, Duration::ZERO, Ending::default()).await,
        Ok(Release::NotHeld)
    );
    owner.assert_held().await;
    elsewhere.refused().await;
}

pub async fn the_token_of_one_lock_is_invalid_for_another(rig: &mut dyn Rig) {
    let (mut one, mut other) = (Client::new(rig, "x"), Client::new(rig, "y"));
    one.acquire().await;
    other.acquire().await;
    let mut confused = Client::new(rig, "y");
    confused.claim.token = Token::from_text(one.claim.token.reveal());
    confused.assert_not_held().await;
    assert_eq!(confused.release().await, Release::NotHeld);
    confused.refused().await;
    one.assert_held().await;
    other.assert_held().await;
}

pub async fn a_deleted_lock_is_lost_and_not_created_again(rig: &mut dyn Rig) {
    let (mut owner, mut next) = (Client::new(rig, "x"), Client::new(rig, "x"));
    owner.acquire().await;
    rig.delete("x");
    owner.assert_lost(Loss::Gone).await;
    assert_eq!(owner.release().await, Release::NotHeld);
    next.acquire().await;
    next.assert_held().await;
}

pub async fn a_replaced_lock_is_lost_and_not_touched(rig: &mut dyn Rig) {
    let mut owner = Client::new(rig, "x");
    owner.acquire().await;
    rig.replace("x");
    assert!(rig.is_untouched("x"));
    owner.assert_lost(Loss::Taken).await;
    assert!(rig.is_untouched("x"));
    assert_eq!(owner.release().await, Release::NotHeld);
    assert!(rig.is_untouched("x"));
    owner.refused().await;
    assert!(rig.is_untouched("x"));
}

/// The reply to the first request was lost, so it is repeated.
pub async fn a_repeated_request_is_recognised(rig: &mut dyn Rig) {
    let (mut owner, mut other) = (Client::new(rig, "x"), Client::new(rig, "x"));
    let first = owner.acquire().await;
    // Over the same connection, and, where the lock does not belong to a connection, over another.
    let again = match owner.try_acquire().await {
        Attempt::Granted(grant) => grant,
        other => panic!("held by ourselves: {other:?}"),
    };
    assert_eq!(again, first, "one grant, one fencing token");
    if rig.has_leases() {
        let elsewhere = Client::again(rig, &owner.claim.clone());
        owner = elsewhere;
        assert_eq!(owner.acquire().await, first);
    }
    other.refused().await;
    owner.assert_held().await;
    assert_eq!(owner.release().await, Release::Released);
    other.acquire().await;
}

pub async fn renewal_keeps_the_lock(rig: &mut dyn Rig) {
    const SHORT: Duration = Duration::from_secs(10);
    let (mut owner, mut other) = (Client::new(rig, "x").with_ttl(SHORT), Client::new(rig, "x"));
    owner.acquire().await;
    // The full length from now: after a renewal for long, no waiter has to wait for the short one to end.
    owner.claim.ttl = LONG;
    match owner.renew().await {
        Renewal::Held { lease, .. } => {
            let asked = if rig.has_leases() { LONG } else { SHORT };
            assert_eq!(lease, rig.lease(asked));
        }
        lost => panic!("{lost:?}"),
    }
    let holder = other.refused().await;
    if rig.has_leases() {
        let remaining = holder.remaining.unwrap();
        assert!(remaining > LONG / 2 && remaining <= LONG + rig.rounding(), "{remaining:?}");
    }
}

pub async fn a_refused_request_leaves_no_trace(rig: &mut dyn Rig) {
    let (mut owner, mut other) = (Client::new(rig, "x"), Client::new(rig, "x"));
    let first = owner.acquire().await;
    other.refused().await;
    let holder = Client::new(rig, "x").refused().await;
    assert_eq!(holder.identity, Some(owner.claim.identity.clone()));
    assert_eq!(other.release().await, Release::NotHeld);
    owner.assert_held().await;
    owner.release().await;
    let next = Client::new(rig, "x").acquire().await;
    assert!(next.fencing > first.fencing || !rig.has_fencing_tokens());
}

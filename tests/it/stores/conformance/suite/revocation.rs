//! A hold that another client ends: its holders are notified, or it is removed.

use crate::stores::conformance::client::{Client, LONG};
use crate::stores::conformance::rig::Rig;
use crate::support::SOON;
use dlock::backend::admin::{LockAdmin, Removal, Revoked};
use dlock::backend::{Ending, Loss, Release, Renewal};
use dlock::lock::{FencingToken, Grant, Holder, LockName, Mode, Revocation};
use std::time::{Duration, Instant};

/// An admin client of the rig's store.
async fn overseer(rig: &dyn Rig) -> Box<dyn LockAdmin> {
    let mut overseer = rig.open();
    overseer.connect().await.unwrap();
    overseer
}

fn x() -> LockName {
    LockName::new("x").unwrap()
}

fn revocation() -> Revocation {
    Revocation { by: "root@web-9".into(), reason: Some("hangs \"#1\" {\u{1f512}}\n".into()) }
}

/// Notifies the holders inside the hold of this grant.
async fn revoke(rig: &dyn Rig, grant: Grant) -> Revoked {
    let of_grant = || Holder { fencing: grant.fencing, ..Holder::default() };
    let holder = match rig.has_fencing_tokens() {
        true => of_grant(),
        false => shown(rig).await.into_iter().next().unwrap_or_else(of_grant),
    };
    overseer(rig).await.revoke(&x(), &holder, &revocation()).await.unwrap()
}

/// The holders of the lock, as shown by inspect.
async fn shown(rig: &dyn Rig) -> Vec<Holder> {
    let seen = overseer(rig).await.inspect(&[x()], None).await.unwrap();
    seen.locks.into_iter().flat_map(|lock| lock.holders).collect()
}

/// What the next renewal reports.
async fn heard(client: &mut Client) -> Option<Revocation> {
    match client.renew().await {
        Renewal::Held { revoked, .. } => revoked,
        lost => panic!("{lost:?}"),
    }
}

pub async fn a_revoked_holder_is_notified_and_keeps_the_lock_until_it_releases(rig: &mut dyn Rig) {
    let mut owner = Client::new(rig, "x");
    let grant = owner.acquire().await;
    assert_eq!(heard(&mut owner).await, None);
    assert_eq!(revoke(rig, grant).await, Revoked::Notified(1));
    for _ in 0..2 {
        assert_eq!(heard(&mut owner).await, Some(revocation()));
        Client::new(rig, "x").refused().await;
    }
    assert_eq!(shown(rig).await[0].revoked, Some(revocation()));
    assert_eq!(owner.release().await, Release::Released);
    assert_eq!(rig.traces("x"), [""; 0]);
    // It does not affect the next one.
    let mut next = Client::new(rig, "x");
    next.acquire().await;
    assert_eq!(heard(&mut next).await, None);
}

pub async fn a_revocation_does_not_apply_to_another_hold(rig: &mut dyn Rig) {
    let mut first = Client::new(rig, "x");
    let old = first.acquire().await;
    first.release().await;
    assert_eq!(revoke(rig, old).await, Revoked::Gone);
    let mut owner = Client::new(rig, "x");
    let grant = owner.acquire().await;
    assert_eq!(revoke(rig, old).await, Revoked::Gone);
    // Neither a prefix of a number nor its suffix is the number.
    let number = grant.fencing.unwrap().number();
    let similar = [number / 10, number % 10_000_000, number * 10, number + 1];
    let others = similar.into_iter().filter(|other| *other != number).filter_map(FencingToken::new);
    for other in others {
        let grant = Grant { fencing: Some(other), ..grant };
        assert_eq!(revoke(rig, grant).await, Revoked::Gone);
    }
    assert_eq!(heard(&mut owner).await, None);
}

pub async fn only_one_of_several_holders_is_notified(rig: &mut dyn Rig) {
    for mode in [Mode::Shared, Mode::Slots(3)].into_iter().filter(|mode| rig.has(*mode)) {
        let client = || Client::new(rig, "x").in_mode(mode);
        let (mut one, mut other) = (client(), client());
        let grant = one.acquire().await;
        other.acquire().await;
        assert_eq!(revoke(rig, grant).await, Revoked::Notified(1));
        assert_eq!(heard(&mut one).await, Some(revocation()));
        assert_eq!(heard(&mut other).await, None);
        assert_eq!(one.release().await, Release::Released);
        other.assert_held().await;
        assert_eq!(other.release().await, Release::Released);
    }
}

/// A client that has entered a hold belongs to it.
pub async fn all_nested_holds_are_notified(rig: &mut dyn Rig) {
    let (mut outer, mut inner) = (Client::new(rig, "x"), Client::new(rig, "x"));
    let grant = outer.acquire().await;
    inner.claim.outer = vec![outer.claim.token.clone()];
    inner.acquire().await;
    assert_eq!(revoke(rig, grant).await, Revoked::Notified(2));
    assert_eq!(heard(&mut outer).await, Some(revocation()));
    assert_eq!(heard(&mut inner).await, Some(revocation()));
    assert_eq!(inner.release().await, Release::Released);
    outer.assert_held().await;
    assert_eq!(outer.release().await, Release::Released);
    assert_eq!(rig.traces("x"), [""; 0]);
}

/// A request to free the lock overrides the request to keep it.
pub async fn min_hold_does_not_apply_to_a_revoked_hold(rig: &mut dyn Rig) {
    let mut owner = Client::new(rig, "x");
    owner.claim.min_hold = LONG;
    let grant = owner.acquire().await;
    assert_eq!(revoke(rig, grant).await, Revoked::Notified(1));
    assert_eq!(owner.backend.release(&owner.claim, LONG, Ending::default()).await, Ok(Release::Released));
    Client::new(rig, "x").acquire().await;
}

/// And a waiter is granted it.
pub async fn a_lock_without_a_running_holder_ends_at_once(rig: &mut dyn Rig) {
    let mut owner = Client::new(rig, "x");
    owner.claim.min_hold = LONG;
    let grant = owner.acquire().await;
    owner.backend.release(&owner.claim, LONG, Ending::default()).await.unwrap();
    if rig.has_sessions() {
        // Nothing is left of a dead owner.
        assert_eq!(revoke(rig, grant).await, Revoked::Notified(1));
        return;
    }
    // Without a lease it is kept by a record, once its owner has ended.
    drop(owner);
    let waiting = Client::new(rig, "x").wait_beside().await;
    // A store may close what shows that the owner lives a moment after the owner was dropped.
    let until = Instant::now() + SOON;
    let mut revoked = revoke(rig, grant).await;
    while revoked == Revoked::Notified(1) && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(3)).await;
        revoked = revoke(rig, grant).await;
    }
    assert_eq!(revoked, Revoked::Ended);
    waiting.granted().await;
    if rig.has_fencing_tokens() {
        assert_eq!(revoke(rig, grant).await, Revoked::Gone);
    }
}

pub async fn a_hold_is_removed_only_where_the_store_keeps_it(rig: &mut dyn Rig) {
    let mut owner = Client::new(rig, "x");
    owner.acquire().await;
    let [holder] = shown(rig).await.try_into().unwrap();
    if !rig.has_leases() {
        assert_eq!(overseer(rig).await.remove(&x(), &holder).await, Ok(Removal::Impossible));
        return owner.assert_held().await;
    }
    let waiting = Client::new(rig, "x").wait_beside().await;
    assert_eq!(overseer(rig).await.remove(&x(), &holder).await, Ok(Removal::Removed));
    let (mut next, _) = waiting.granted().await;
    owner.assert_lost(Loss::Taken).await;
    // It was that hold, and no other.
    assert_eq!(overseer(rig).await.remove(&x(), &holder).await, Ok(Removal::Changed));
    next.assert_held().await;
}

pub async fn a_foreign_lock_is_removed_only_where_the_store_keeps_it(rig: &mut dyn Rig) {
    assert!(rig.foreign_lock("x", None));
    let [holder] = shown(rig).await.try_into().unwrap();
    assert_eq!((&holder.identity, holder.fencing), (&None, None));
    let removal = overseer(rig).await.remove(&x(), &holder).await;
    if rig.has_leases() {
        assert_eq!(removal, Ok(Removal::Removed));
        let mut owner = Client::new(rig, "x");
        owner.acquire().await;
        assert_eq!(overseer(rig).await.remove(&x(), &holder).await, Ok(Removal::Changed));
        owner.assert_held().await;
    } else {
        assert_eq!(removal, Ok(Removal::Impossible));
        Client::new(rig, "x").refused().await;
        rig.foreign_unlock("x");
    }
}

/// The next holder is not affected, however it was granted the lock.
pub async fn an_ended_hold_cannot_be_removed(rig: &mut dyn Rig) {
    let mut owner = Client::new(rig, "x");
    owner.acquire().await;
    let [holder] = shown(rig).await.try_into().unwrap();
    owner.release().await;
    let expected = if rig.has_leases() { Removal::Changed } else { Removal::Impossible };
    assert_eq!(overseer(rig).await.remove(&x(), &holder).await, Ok(expected));
    let mut next = Client::new(rig, "x");
    next.acquire().await;
    assert_eq!(overseer(rig).await.remove(&x(), &holder).await, Ok(expected));
    next.assert_held().await;
}

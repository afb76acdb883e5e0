//! A hold that ends by somebody else's word: told to those who are inside, or taken away from them.

use crate::conformance::client::{Client, LONG};
use crate::conformance::rig::{Rig, locate};
use dlock::backend::admin::{LockAdmin, Removal, Revoked};
use dlock::backend::{Loss, Release, Renewal};
use dlock::lock::{FencingToken, Grant, Holder, LockName, Mode, Revocation};

/// One who looks after the locks of the rig's store.
async fn overseer(rig: &dyn Rig) -> Box<dyn LockAdmin> {
    let mut overseer = locate(&rig.url()).unwrap().oversee();
    overseer.connect().await.unwrap();
    overseer
}

fn x() -> LockName {
    LockName::new("x").unwrap()
}

fn revocation() -> Revocation {
    Revocation { by: "root@web-9".into(), reason: Some("hangs \"#1\" {\u{1f512}}\n".into()) }
}

/// Tells whoever is inside the hold of this grant.
async fn revoke(rig: &dyn Rig, grant: Grant) -> Revoked {
    overseer(rig).await.revoke(&x(), grant.fencing.unwrap(), &revocation()).await.unwrap()
}

/// Those who hold the lock, as they are shown.
async fn shown(rig: &dyn Rig) -> Vec<Holder> {
    let seen = overseer(rig).await.inspect(&[x()], None).await.unwrap();
    seen.locks.into_iter().flat_map(|lock| lock.holders).collect()
}

/// What the next renewal tells of it.
async fn heard(client: &mut Client) -> Option<Revocation> {
    match client.renew().await {
        Renewal::Held { revoked, .. } => revoked,
        lost => panic!("{lost:?}"),
    }
}

pub async fn who_is_to_give_up_hears_of_it_and_keeps_the_lock_until_then(rig: &mut dyn Rig) {
    let mut owner = Client::new(rig, "x");
    let grant = owner.acquire().await;
    assert_eq!(heard(&mut owner).await, None);
    assert_eq!(revoke(rig, grant).await, Revoked::Told(1));
    for _ in 0..2 {
        assert_eq!(heard(&mut owner).await, Some(revocation()));
        Client::new(rig, "x").refused().await;
    }
    assert_eq!(shown(rig).await[0].revoked, Some(revocation()));
    assert_eq!(owner.release().await, Release::Released);
    assert_eq!(rig.traces("x"), [""; 0]);
    // The next one has nothing to do with it.
    let mut next = Client::new(rig, "x");
    next.acquire().await;
    assert_eq!(heard(&mut next).await, None);
}

pub async fn another_hold_is_not_meant(rig: &mut dyn Rig) {
    let mut first = Client::new(rig, "x");
    let old = first.acquire().await;
    first.release().await;
    assert_eq!(revoke(rig, old).await, Revoked::Gone);
    let mut owner = Client::new(rig, "x");
    let grant = owner.acquire().await;
    assert_eq!(revoke(rig, old).await, Revoked::Gone);
    // Neither the beginning of a number nor its end is the number.
    let number = grant.fencing.unwrap().number();
    for other in [number / 10, number % 10_000_000, number + 1] {
        let grant = Grant { fencing: FencingToken::new(other), ..grant };
        assert_eq!(revoke(rig, grant).await, Revoked::Gone);
    }
    assert_eq!(heard(&mut owner).await, None);
}

pub async fn only_one_of_several_is_told(rig: &mut dyn Rig) {
    for mode in [Mode::Shared, Mode::Slots(3)].into_iter().filter(|mode| rig.has(*mode)) {
        let client = || Client::new(rig, "x").in_mode(mode);
        let (mut one, mut other) = (client(), client());
        let grant = one.acquire().await;
        other.acquire().await;
        assert_eq!(revoke(rig, grant).await, Revoked::Told(1));
        assert_eq!(heard(&mut one).await, Some(revocation()));
        assert_eq!(heard(&mut other).await, None);
        assert_eq!(one.release().await, Release::Released);
        other.assert_held().await;
        assert_eq!(other.release().await, Release::Released);
    }
}

/// Who has entered a hold is in it.
pub async fn all_who_are_inside_are_told(rig: &mut dyn Rig) {
    let (mut outer, mut inner) = (Client::new(rig, "x"), Client::new(rig, "x"));
    let grant = outer.acquire().await;
    inner.claim.outer = vec![outer.claim.token.clone()];
    inner.acquire().await;
    assert_eq!(revoke(rig, grant).await, Revoked::Told(2));
    assert_eq!(heard(&mut outer).await, Some(revocation()));
    assert_eq!(heard(&mut inner).await, Some(revocation()));
    assert_eq!(inner.release().await, Release::Released);
    outer.assert_held().await;
    assert_eq!(outer.release().await, Release::Released);
    assert_eq!(rig.traces("x"), [""; 0]);
}

/// Whoever wants it to be free does not want it to be kept.
pub async fn what_is_to_be_given_up_is_not_kept(rig: &mut dyn Rig) {
    let mut owner = Client::new(rig, "x");
    owner.claim.min_hold = LONG;
    let grant = owner.acquire().await;
    assert_eq!(revoke(rig, grant).await, Revoked::Told(1));
    assert_eq!(owner.backend.release(&owner.claim, LONG, None).await, Ok(Release::Released));
    Client::new(rig, "x").acquire().await;
}

/// And whoever waits for it gets it.
pub async fn what_nobody_runs_under_any_more_ends_at_once(rig: &mut dyn Rig) {
    let mut owner = Client::new(rig, "x");
    owner.claim.min_hold = LONG;
    let grant = owner.acquire().await;
    owner.backend.release(&owner.claim, LONG, None).await.unwrap();
    // Without a lease it is kept by a note, once its owner is gone.
    drop(owner);
    let waiting = Client::new(rig, "x").wait_beside().await;
    assert_eq!(revoke(rig, grant).await, Revoked::Ended);
    waiting.granted().await;
    assert_eq!(revoke(rig, grant).await, Revoked::Gone);
}

pub async fn a_hold_is_taken_away_only_where_a_store_has_it(rig: &mut dyn Rig) {
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
    // It was that hold, and is no other.
    assert_eq!(overseer(rig).await.remove(&x(), &holder).await, Ok(Removal::Changed));
    next.assert_held().await;
}

pub async fn a_foreign_lock_is_taken_away_only_where_a_store_has_it(rig: &mut dyn Rig) {
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

/// The next holder is not meant, however it came about.
pub async fn what_is_gone_is_not_there_to_be_taken_away(rig: &mut dyn Rig) {
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

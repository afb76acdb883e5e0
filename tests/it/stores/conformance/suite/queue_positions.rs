//! Queue positions: what keeps them, and what does not.

use super::queue::A_MOMENT;
use crate::stores::conformance::client::Client;
use crate::stores::conformance::rig::Rig;
use dlock::backend::CLAIM_WITHIN;
use std::time::{Duration, Instant};

async fn holding(rig: &dyn Rig) -> Client {
    let mut holder = Client::new(rig, "x");
    holder.acquire().await;
    holder
}

pub async fn a_repeated_request_keeps_the_queue_position(rig: &mut dyn Rig) {
    let mut holder = holding(rig).await;
    let (mut first, mut second) = (Client::new(rig, "x"), Client::new(rig, "x"));
    for _ in 0..5 {
        assert_eq!(first.queue().await.position, Some(1));
        assert_eq!(second.queue().await.position, Some(2));
    }
    assert_eq!(rig.waiters("x"), 2);
    holder.release().await;
    first.claim_turn().await;
}

/// The position belongs to the token, unless it belongs to a descriptor or a session.
pub async fn a_queue_position_outlasts_its_connection(rig: &mut dyn Rig) {
    if !rig.has_leases() {
        return;
    }
    let mut holder = holding(rig).await;
    let (mut first, mut second) = (Client::new(rig, "x"), Client::new(rig, "x"));
    first.queue().await;
    second.queue().await;
    first = Client::again(rig, &first.claim.clone());
    assert_eq!(first.queue().await.position, Some(1));
    assert_eq!(rig.waiters("x"), 2);
    holder.release().await;
    first.await_turn().await;
    first.claim_turn().await;
}

/// A waiter that was silent for longer than a lease is skipped, and does not block the waiters behind it.
pub async fn a_queue_position_ends_with_its_lease(rig: &mut dyn Rig) {
    if !rig.has_leases() {
        return;
    }
    // Long enough for the second to join on a busy machine.
    const LEASE: Duration = Duration::from_secs(2);
    let mut holder = holding(rig).await;
    let (mut first, mut second) = (Client::new(rig, "x").with_ttl(LEASE), Client::new(rig, "x"));
    first.queue().await;
    assert_eq!(second.queue().await.position, Some(2));
    tokio::time::sleep(LEASE * 2 + rig.rounding()).await;
    holder.release().await;
    // No other client has the turn of the first one.
    second.await_turn().await;
    second.claim_turn().await;
    assert_eq!(first.queue().await.position, Some(1));
}

/// Other programs ignore the queue, but no waiter loses its position because of them.
pub async fn a_foreign_client_that_acquires_first_costs_no_queue_position(rig: &mut dyn Rig) {
    let mut holder = holding(rig).await;
    let (mut first, mut second) = (Client::new(rig, "x"), Client::new(rig, "x"));
    first.queue().await;
    second.queue().await;
    holder.release().await;
    if rig.has_turns_by_order() {
        assert!(!rig.foreign_lock("x", None), "an entry of another program comes after those of the waiters");
        first.claim_turn().await;
        return assert_eq!(second.queue().await.position, Some(1));
    }
    assert!(rig.foreign_lock("x", None), "the lock is free to those who do not ask");
    let busy = first.queue().await;
    assert_eq!((busy.position, busy.promised), (Some(1), false));
    assert_eq!(busy.holders[0].identity, None);
    // Its turn has not expired: it sent a request, and could not be granted the lock.
    tokio::time::sleep(rig.turn_ends()).await;
    for (client, place) in [(&mut second, 2), (&mut first, 1)] {
        let busy = client.queue().await;
        assert_eq!((busy.position, busy.promised), (Some(place), false));
    }
    let given_back = Instant::now();
    rig.foreign_unlock("x");
    first.await_notification().await;
    first.claim_turn().await;
    assert!(given_back.elapsed() < A_MOMENT, "after {:?}", given_back.elapsed());
    assert_eq!(second.queue().await.position, Some(1));
}

/// Longer than the time to claim, during which no waiter is called.
pub async fn waiters_keep_their_positions_while_a_foreign_client_holds_the_lock(rig: &mut dyn Rig) {
    assert!(rig.foreign_lock("x", None));
    let mut first = Client::new(rig, "x");
    first.queue().await;
    let mut second = Client::new(rig, "x");
    second.queue().await;
    tokio::time::sleep(CLAIM_WITHIN + Duration::from_millis(100)).await;
    assert_eq!(second.queue().await.position, Some(2));
    assert_eq!(first.queue().await.position, Some(1));
    rig.foreign_unlock("x");
    first.await_notification().await;
    first.claim_turn().await;
}

//! Waiting: first come, first served; the called waiter is notified, and loses its turn if it does not claim the lock.

use crate::stores::conformance::client::{Client, Waiting, refusal, until};
use crate::stores::conformance::rig::Rig;
use crate::support::SOON;
use dlock::backend::{Again, CLAIM_WITHIN, Change, Release, Renewal};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Time for a short operation, on a slow and busy machine.
pub const A_MOMENT: Duration = Duration::from_secs(8);
/// How far the clocks may change the time to claim.
pub const CLAIM_AT_LEAST: Duration = Duration::from_millis(490);

/// The lease of a waiter that falls silent, where its position ends with its lease.
const BRIEF: Duration = Duration::from_secs(4);

/// The rounds of a check of what is so until a waiter that was called has lost its turn. On a busy machine the replies
/// may come later: such a round shows nothing, whatever the replies are, and is followed by another one.
pub struct Rounds(Instant);

impl Rounds {
    /// Starts now.
    pub fn begin() -> Self {
        Self(Instant::now())
    }

    /// Ends a round that was too late.
    pub async fn end(&self, clients: impl IntoIterator<Item = Client>) {
        for mut client in clients {
            client.release().await;
        }
        assert!(self.0.elapsed() < SOON, "no round was fast enough");
    }
}

/// A holder, and this number of waiters in the queue that send requests only when the check makes them.
async fn line(rig: &dyn Rig, count: u32) -> (Client, Vec<Client>) {
    line_behind(rig, Client::new(rig, "x"), count).await
}

/// The same, with a first waiter that will fall silent.
async fn line_behind_a_silent_one(rig: &dyn Rig, count: u32) -> (Client, Vec<Client>) {
    let silent = Client::new(rig, "x");
    let silent = if rig.has_turns_by_order() { silent.with_ttl(BRIEF) } else { silent };
    line_behind(rig, silent, count).await
}

async fn line_behind(rig: &dyn Rig, first: Client, count: u32) -> (Client, Vec<Client>) {
    let mut first = Some(first);
    let mut holder = Client::new(rig, "x");
    holder.acquire().await;
    let mut line = Vec::new();
    for place in 1..=count {
        let mut client = first.take().unwrap_or_else(|| Client::new(rig, "x"));
        let busy = client.queue().await;
        assert_eq!((busy.position, busy.promised), (Some(place), false));
        assert_eq!(busy.holders[0].identity, Some(holder.claim.identity.clone()));
        line.push(client);
    }
    assert_eq!(rig.waiters("x"), line.len());
    (holder, line)
}

/// Where turns follow from the order alone, a silent waiter has its turn until its lease ends: returns when that will be at
/// the earliest.
async fn unclaimed_until(rig: &dyn Rig, silent: &mut Client) -> Option<Instant> {
    if !rig.has_turns_by_order() {
        return None;
    }
    let sent = Instant::now();
    silent.queue().await;
    Some(sent + BRIEF - BRIEF / 100)
}

/// How long it takes at most until a first waiter that is silent has lost its turn and the next one has noticed that.
fn silence_ends(rig: &dyn Rig) -> Duration {
    if rig.has_turns_by_order() { rig.end_of_lease(BRIEF) } else { rig.turn_passes() }
}

pub async fn waiters_are_served_first_come_first_served(rig: &mut dyn Rig) {
    let mut holder = Client::new(rig, "x");
    let mut last = holder.acquire().await.fencing;
    let mut waiting = VecDeque::new();
    for _ in 0..10 {
        waiting.push_back(Client::new(rig, "x").wait_beside().await);
    }
    // One that is too slow, on a busy machine, loses its turn and gets in line again, at the end.
    let mut late: Vec<Waiting> = Vec::new();
    while !(waiting.is_empty() && late.is_empty()) {
        let released = Instant::now();
        assert_eq!(holder.release().await, Release::Released);
        until("a grant", || waiting.iter().chain(&late).any(Waiting::is_granted)).await;
        let ahead = waiting.iter().position(Waiting::is_granted).unwrap_or(waiting.len());
        assert!(ahead == 0 || rig.may_have_passed(released), "{ahead} were ahead of it");
        late.extend(waiting.drain(..ahead));
        let next = waiting.pop_front().unwrap_or_else(|| {
            let place = late.iter().position(Waiting::is_granted).expect("one is granted");
            late.swap_remove(place)
        });
        let (client, grant) = next.granted().await;
        assert!(grant.fencing > last || !rig.has_fencing_tokens(), "{last:?}, then {:?}", grant.fencing);
        (holder, last) = (client, grant.fencing);
    }
    holder.release().await;
    assert_eq!(rig.traces("x"), [""; 0]);
}

pub async fn later_clients_do_not_overtake_waiters(rig: &mut dyn Rig) {
    let rounds = Rounds::begin();
    let mut line = loop {
        let (mut holder, mut line) = line(rig, 3).await;
        let released = Instant::now();
        holder.release().await;
        let replies = [line[2].wait_in_line().await, line[1].wait_in_line().await];
        if rig.may_have_passed(released) {
            rounds.end(line).await;
            continue;
        }
        for (reply, place) in replies.into_iter().zip([3, 2]) {
            let busy = refusal(reply);
            assert_eq!((busy.position, busy.promised), (Some(place), true));
            assert_eq!(busy.holders, []);
        }
        break line;
    };
    line[0].claim_turn().await;
    for (index, place) in [(2, 2), (1, 1)] {
        let busy = line[index].queue().await;
        assert_eq!((busy.position, busy.promised), (Some(place), false));
        assert_eq!(busy.holders[0].identity, Some(line[0].claim.identity.clone()));
    }
}

/// The next two may be notified that the queue moves, and the last one, in case that all of these were stopped
/// together.
pub async fn only_the_called_waiter_is_notified(rig: &mut dyn Rig) {
    let (mut holder, mut line) = line(rig, 6).await;
    for client in &mut line {
        // Notifications about joining waiters are not the subject here.
        client.notification_within(Duration::from_millis(5)).await;
    }
    let released = Instant::now();
    holder.release().await;
    line[0].await_turn().await;
    assert!(released.elapsed() < A_MOMENT, "told after {:?}", released.elapsed());
    for index in [1, 2, 5] {
        let told = line[index].notification_within(Duration::from_millis(20)).await;
        assert!(!told.contains(&Change::OurTurn), "it is the first one's turn: {told:?}");
    }
    line[0].claim_turn().await;
    for index in [3, 4] {
        assert_eq!(line[index].notification_within(Duration::from_millis(50)).await, []);
    }
    // The next waiter is called although no client has sent a request in the meantime, or is notified to send one.
    line[0].release().await;
    line[1].await_turn().await;
    line[1].claim_turn().await;
}

pub async fn a_request_without_waiting_does_not_overtake_waiters(rig: &mut dyn Rig) {
    let rounds = Rounds::begin();
    let (mut line, mut now, reply) = loop {
        let (mut holder, line) = line(rig, 1).await;
        let mut now = Client::new(rig, "x");
        let released = Instant::now();
        holder.release().await;
        let reply = now.try_acquire().await;
        if !rig.may_have_passed(released) {
            break (line, now, reply);
        }
        rounds.end(line.into_iter().chain([now])).await;
    };
    let busy = refusal(reply);
    assert_eq!((busy.holders.len(), busy.position, busy.promised), (0, None, true), "free, but promised");
    let Again::Within(again) = busy.again else { panic!("{busy:?}") };
    assert!(again <= CLAIM_WITHIN + Duration::from_millis(1), "{again:?}");
    line[0].claim_turn().await;
    let busy = now.busy().await;
    assert_eq!((busy.holders.len(), busy.position, busy.promised), (1, None, false));
    assert_eq!(busy.holders[0].identity, Some(line[0].claim.identity.clone()));
    line[0].release().await;
    now.acquire().await;
}

pub async fn a_request_without_waiting_gets_an_unclaimed_lock(rig: &mut dyn Rig) {
    if rig.has_sessions() {
        return;
    }
    let (mut holder, mut line) = line_behind_a_silent_one(rig, 1).await;
    let mut now = Client::new(rig, "x");
    let end = unclaimed_until(rig, &mut line[0]).await;
    let released = Instant::now();
    holder.release().await;
    now.acquire_in_the_end().await;
    let elapsed = released.elapsed();
    let most = silence_ends(rig) + A_MOMENT;
    if let Some(end) = end {
        assert!(Instant::now() >= end && elapsed < most, "after {elapsed:?}");
        return assert_eq!(
            line[0].queue().await.position,
            Some(1),
            "the place was lost, and there is a new one"
        );
    }
    assert!(elapsed >= CLAIM_AT_LEAST && elapsed < most, "after {elapsed:?}");
    assert_eq!(line[0].queue().await.position, Some(1), "the place was lost, and there is a new one");
}

/// As far as the waiter knows, the lease of the holder has ended.
pub async fn a_waiter_that_leaves_does_not_end_a_renewed_hold(rig: &mut dyn Rig) {
    // Long enough to be renewed in time on a busy machine.
    let lease = rig.short().max(Duration::from_secs(4));
    let (mut holder, mut waiter) = (Client::new(rig, "x").with_ttl(lease), Client::new(rig, "x"));
    holder.acquire().await;
    waiter.queue().await;
    let ended = Instant::now() + rig.end_of_lease(lease);
    while Instant::now() < ended {
        tokio::time::sleep(lease / 8).await;
        assert!(matches!(holder.renew().await, Renewal::Held { .. }));
    }
    waiter.release().await;
    holder.assert_held().await;
}

pub async fn a_dead_waiter_is_skipped_without_delay(rig: &mut dyn Rig) {
    let (mut holder, mut line) = line_behind_a_silent_one(rig, 3).await;
    // Where no other client can skip it, it is skipped when its lease has ended.
    unclaimed_until(rig, &mut line[0]).await;
    drop(line.remove(0));
    if !rig.detects_dead_waiters() {
        let (mut next, mut last) = (line.remove(0), line.remove(0));
        let released = Instant::now();
        holder.release().await;
        next.wait_for_grant().await;
        assert!(released.elapsed() < silence_ends(rig) + A_MOMENT, "after {:?}", released.elapsed());
        assert_eq!(last.queue().await.position, Some(1));
        return;
    }
    if rig.has_leases() {
        rig.await_connected_waiters(line.len());
        holder.assert_held().await;
        holder.release().await;
        line[0].await_turn().await;
    } else {
        // A process that was just forked by another test may have a copy of the descriptor: this shows when it is
        // closed.
        line[0].await_turn().await;
        holder.release().await;
    }
    // At the first attempt: if the dead one had been called, this would be busy.
    line[0].claim_turn().await;
    assert_eq!(line[1].queue().await.position, Some(1));
}

pub async fn a_silent_waiter_loses_its_turn_and_its_queue_position(rig: &mut dyn Rig) {
    if rig.has_sessions() {
        return;
    }
    let (mut holder, mut line) = line_behind_a_silent_one(rig, 1).await;
    let mut silent = line.remove(0);
    let next = Client::new(rig, "x").wait_beside().await;
    let mut last = Client::new(rig, "x");
    assert_eq!(last.queue().await.position, Some(3));
    let end = unclaimed_until(rig, &mut silent).await;
    let released = Instant::now();
    holder.release().await;
    let (mut next, _) = next.granted().await;
    let elapsed = released.elapsed();
    let is_late = end.map_or(elapsed >= CLAIM_AT_LEAST, |end| Instant::now() >= end);
    assert!(is_late && elapsed < silence_ends(rig) + A_MOMENT, "after {elapsed:?}");
    assert_eq!(silent.queue().await.position, Some(2), "it gets in line again, at the end");
    assert_eq!(last.queue().await.position, Some(1));
    next.release().await;
    last.claim_turn().await;
    last.release().await;
    silent.claim_turn().await;
}

pub async fn a_withdrawn_waiter_leaves_no_trace_and_passes_its_turn_on(rig: &mut dyn Rig) {
    let (mut holder, mut line) = line(rig, 3).await;
    // Before its turn: the waiters behind move up.
    assert_eq!(line.remove(1).release().await, Release::NotHeld);
    assert_eq!(rig.waiters("x"), 1 + 1);
    assert_eq!(line[1].queue().await.position, Some(2));
    holder.assert_held().await;
    // In its turn: the next one is called, and need not wait until the turn expires.
    holder.release().await;
    line[0].await_turn().await;
    assert_eq!(line[0].release().await, Release::NotHeld);
    line[1].await_turn().await;
    line[1].claim_turn().await;
    assert_eq!(rig.waiters("x"), 0);
    assert_eq!(line[0].release().await, Release::NotHeld, "and may be repeated");
    line[1].release().await;
    assert_eq!(rig.traces("x"), [""; 0]);
}

pub async fn a_release_by_a_foreign_client_is_noticed(rig: &mut dyn Rig) {
    assert!(rig.foreign_lock("x", None));
    let mut line = Vec::new();
    for _ in 0..2 {
        line.push(Client::new(rig, "x").wait_beside().await);
    }
    let mut last = Client::new(rig, "x");
    let busy = last.queue().await;
    assert_eq!((busy.position, busy.promised), (Some(3), false));
    assert_eq!(busy.holders[0].identity, None);
    let given_back = Instant::now();
    rig.foreign_unlock("x");
    until("a grant", || line.iter().any(Waiting::is_granted)).await;
    // The first one, unless it is too slow, on a busy machine, and loses its turn.
    let ahead = line.iter().position(Waiting::is_granted).expect("one is granted");
    assert!(ahead == 0 || rig.may_have_passed(given_back), "the second one was first");
    let (mut head, _) = line.remove(ahead).granted().await;
    // After a failover, the waiter may have to connect again first.
    let is_quick = given_back.elapsed() < A_MOMENT || rig.disturbance().is_some();
    assert!(is_quick, "after {:?}", given_back.elapsed());
    assert!(!rig.foreign_lock("x", None));
    assert!(!line[0].is_granted());
    head.release().await;
    line.remove(0).granted().await;
}

/// The first waiter is notified, and does not poll.
pub async fn a_foreign_client_is_not_polled(rig: &mut dyn Rig) {
    assert!(rig.foreign_lock("x", None));
    let mut head = Client::new(rig, "x");
    let busy = head.queue().await;
    assert!(matches!(busy.again, Again::Within(within) if within > A_MOMENT), "{busy:?}");
    assert_eq!(head.notification_within(Duration::from_millis(50)).await, []);
    let given_back = Instant::now();
    rig.foreign_unlock("x");
    head.await_notification().await;
    assert!(given_back.elapsed() < A_MOMENT, "after {:?}", given_back.elapsed());
    head.claim_turn().await;
}

pub async fn the_end_of_a_foreign_lease_is_noticed(rig: &mut dyn Rig) {
    if !rig.has_leases() {
        return;
    }
    // Long enough for two to join the queue on a busy machine.
    const LEASE: Duration = Duration::from_secs(3);
    let locked = Instant::now();
    assert!(rig.foreign_lock("x", Some(LEASE)));
    let head = Client::new(rig, "x").wait_beside().await;
    let mut second = Client::new(rig, "x");
    assert_eq!(second.queue().await.position, Some(2));
    let (mut head, _) = head.granted().await;
    let elapsed = locked.elapsed();
    assert!(elapsed >= LEASE - LEASE / 100 && elapsed < LEASE + A_MOMENT, "after {elapsed:?}");
    assert_eq!(second.queue().await.position, Some(1));
    head.assert_held().await;
}

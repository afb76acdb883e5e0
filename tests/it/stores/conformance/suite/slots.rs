//! A semaphore: a limited number of holders, each with its own slot.

use super::queue::Rounds;
use crate::stores::conformance::client::{Client, LONG, granted, refusal};
use crate::stores::conformance::rig::{Rig, shown};
use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::running::{Exit, Running};
use dlock::backend::{Attempt, Refusal, Release};
use dlock::lock::Mode;
use nix::sys::signal::Signal;
use std::process::Stdio;
use std::time::{Duration, Instant};

fn of(rig: &dyn Rig, slots: u32) -> Client {
    Client::new(rig, "x").in_mode(Mode::Slots(slots))
}

/// Holders of this number of slots, in the order of their slots.
async fn holding(rig: &dyn Rig, count: u32, slots: u32) -> Vec<Client> {
    let mut holders = Vec::new();
    for slot in 0..count {
        let mut client = of(rig, slots);
        assert_eq!(client.acquire().await.slot, Some(slot));
        holders.push(client);
    }
    holders
}

/// `dlock run --slots N`
fn run_of(rig: &dyn Rig, slots: &str) -> Dlock {
    rig.run().args(["--slots", slots])
}

/// Replaces each check of slots on a store without them: a request is refused before the store
/// is contacted, and nothing is acquired.
pub async fn slots_are_refused(rig: &mut dyn Rig) {
    let nobody = rig.url_with_secret("secret").unwrap();
    for url in [nobody, rig.url()] {
        for more in [&["--slots", "2"][..], &["--slots=10000", "--wait", "forever"]] {
            let run = rig.run().no_backend().env("DLOCK_BACKEND", &url).args(more);
            let output = run.command(["touch", "ran"]).output();
            let line = output.stderr.as_str();
            assert_eq!((output.exit, line.lines().count()), (Exit::Code(64), 1), "{line}");
            assert!(line.contains("--slots") && !line.contains("secret"), "{line}");
            assert!(!rig.place().path("ran").exists());
        }
    }
    assert_eq!(rig.traces("x"), [""; 0]);
    let one = run_of(rig, "1").sh("echo slot $DLOCK_SLOT").output();
    assert_eq!(one.outcome(), (Exit::Code(0), "slot 0\n", ""), "one slot is exclusive");
}

pub async fn slots_limit_the_number_of_holders(rig: &mut dyn Rig) {
    let mut holders = holding(rig, 3, 3).await;
    let busy = of(rig, 3).busy().await;
    assert_eq!((busy.holders.len() + busy.more, busy.promised), (3, false));
    // The slot that happens to be free is granted.
    for index in [1, 0, 2] {
        assert_eq!(holders[index].release().await, Release::Released);
        let mut next = of(rig, 3);
        assert_eq!(next.acquire().await.slot, u32::try_from(index).ok());
        of(rig, 3).refused().await;
        holders[index] = next;
    }
    for mut holder in holders {
        holder.assert_held().await;
        holder.release().await;
    }
    assert_eq!(rig.traces("x"), [""; 0]);
}

pub async fn a_hold_keeps_its_slot(rig: &mut dyn Rig) {
    let mut holders = holding(rig, 3, 3).await;
    let mut first = holders.remove(0);
    first.release().await;
    for (slot, holder) in (1..).zip(&mut holders) {
        for _ in 0..3 {
            holder.assert_held().await;
        }
        let Attempt::Granted(again) = holder.try_acquire().await else { panic!("held by itself") };
        assert_eq!(again.slot, Some(slot));
    }
}

pub async fn concurrent_runs_have_different_slots(rig: &mut dyn Rig) {
    let text = "mkdir slot.$DLOCK_SLOT || echo clash >>log; echo $DLOCK_SLOT >>log; sleep 0.03; rmdir slot.$DLOCK_SLOT";
    let run = || run_of(rig, "3").args(["--wait", "forever"]).sh(text).spawn();
    let mut runs: Vec<Running> = (0..10).map(|_| run()).collect();
    for run in &mut runs {
        assert_eq!(run.wait().outcome(), (Exit::Code(0), "", ""));
    }
    let log = rig.place().read("log");
    assert_eq!(log.lines().count(), 10, "{log}");
    assert!(log.lines().all(|slot| ["0", "1", "2"].contains(&slot)), "{log}");
    assert_eq!(rig.traces("x"), [""; 0]);
}

pub async fn a_freed_slot_goes_to_the_next_waiter(rig: &mut dyn Rig) {
    let rounds = Rounds::begin();
    let (mut holders, mut next, mut last) = loop {
        let mut holders = holding(rig, 2, 2).await;
        let (mut next, mut last, mut other) = (of(rig, 2), of(rig, 2), of(rig, 2));
        assert_eq!(next.queue().await.position, Some(1));
        assert_eq!(last.queue().await.position, Some(2));
        let released = Instant::now();
        holders[1].release().await;
        next.await_turn().await;
        let (without_waiting, behind) = (other.try_acquire().await, last.wait_in_line().await);
        if rig.may_have_passed(released) {
            rounds.end(holders.into_iter().chain([next, last, other])).await;
            continue;
        }
        // One slot is free, and it is offered to a waiter.
        assert!(refusal(without_waiting).promised);
        let busy = refusal(behind);
        assert_eq!((busy.position, busy.promised), (Some(2), true));
        break (holders, next, last);
    };
    assert_eq!(next.claim_turn().await.slot, Some(1));
    let busy = last.queue().await;
    assert_eq!((busy.position, busy.promised), (Some(1), false));
    holders[0].release().await;
    last.await_turn().await;
    assert_eq!(last.claim_turn().await.slot, Some(0));
}

pub async fn two_freed_slots_go_to_the_next_two_waiters(rig: &mut dyn Rig) {
    let rounds = Rounds::begin();
    let (mut line, first, second) = loop {
        let mut holder = Client::new(rig, "x");
        holder.acquire().await;
        let mut line = Vec::new();
        for _ in 0..3 {
            let mut client = of(rig, 2);
            client.queue().await;
            line.push(client);
        }
        let released = Instant::now();
        holder.release().await;
        if rig.has_turns_by_order() {
            // Its slot must be recorded before the next one is chosen, which the second is notified of.
            let first = line[0].claim_turn().await.slot;
            line[1].await_turn().await;
            let second = line[1].claim_turn().await.slot;
            break (line, first, second);
        }
        // The second need not wait for a request of the first.
        let (second, first) = (line[1].wait_in_line().await, line[0].wait_in_line().await);
        if !rig.may_have_passed(released) {
            break (line, granted(first).slot, granted(second).slot);
        }
        rounds.end(line).await;
    };
    assert_eq!([first.min(second), first.max(second)], [Some(0), Some(1)]);
    assert_eq!(line[2].queue().await.position, Some(1));
}

pub async fn exclusive_waits_for_every_slot(rig: &mut dyn Rig) {
    let mut holders = holding(rig, 2, 3).await;
    let mut alone = Client::new(rig, "x");
    assert_eq!(alone.queue().await.position, Some(1));
    let busy = of(rig, 3).busy().await;
    assert_eq!((busy.holders.len(), busy.promised), (2, false), "a slot is free, but not for later ones");
    holders[0].release().await;
    let busy = alone.queue().await;
    assert_eq!((busy.position, busy.holders.len(), busy.promised), (Some(1), 1, false));
    holders[1].release().await;
    alone.await_turn().await;
    assert_eq!(alone.claim_turn().await.slot, None);
    let holder = of(rig, 3).refused().await;
    assert_eq!(holder.identity, Some(alone.claim.identity.clone()));
    let mut shared = Client::new(rig, "x").in_mode(Mode::Shared);
    shared.refused().await;
    alone.release().await;
    let mut slot = of(rig, 3);
    slot.acquire().await;
    shared.refused().await;
}

pub async fn a_different_slot_count_is_refused(rig: &mut dyn Rig) {
    let mut holders = holding(rig, 1, 3).await;
    for slots in [2, 4] {
        for _ in 0..2 {
            assert_eq!(of(rig, slots).try_acquire().await, Attempt::Refused(Refusal::Slots(3)));
            assert_eq!(of(rig, slots).wait_in_line().await, Attempt::Refused(Refusal::Slots(3)));
        }
        let slots = slots.to_string();
        let run = run_of(rig, &slots).arg("-q").sh("echo ran").output();
        assert_eq!((run.exit, run.stdout.as_str(), run.stderr.lines().count()), (Exit::Code(64), "", 1));
        let line = run.stderr.as_str();
        let beginning = format!("dlock: x on {}: --slots {slots}, ", shown(rig));
        assert!(line.starts_with(&beginning) && line.contains("with 3 slots"), "{line}");
    }
    assert_eq!(rig.waiters("x"), 0);
    holders[0].assert_held().await;
    let mut last = of(rig, 3);
    last.acquire().await;
    // With `--wait` it is not hopeless.
    let mut run = run_of(rig, "4").args(["-v", "--wait", "forever"]).sh("echo ran").spawn();
    run.await_stderr("x is in use with 3 slots; waiting ");
    holders[0].release().await;
    last.assert_held().await;
    run.assert_running();
    assert_eq!(run.stdout(), "");
    last.release().await;
    let output = run.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", output.stderr);
}

pub async fn a_different_slot_count_than_that_of_a_waiter_is_refused(rig: &mut dyn Rig) {
    let (mut holder, mut waiting) = (Client::new(rig, "x"), of(rig, 3));
    holder.acquire().await;
    waiting.queue().await;
    assert_eq!(of(rig, 2).try_acquire().await, Attempt::Refused(Refusal::Slots(3)));
    assert_eq!(of(rig, 2).wait_in_line().await, Attempt::Refused(Refusal::Slots(3)));
    let mut last = of(rig, 3);
    assert_eq!(last.queue().await.position, Some(2));
    assert_eq!(rig.waiters("x"), 2);
}

pub async fn the_slot_count_may_change_when_the_lock_is_unused(rig: &mut dyn Rig) {
    for slots in [3, 2, 5] {
        let mut holders = holding(rig, 2, slots).await;
        let mut waiting = Client::new(rig, "x");
        waiting.queue().await;
        waiting.release().await;
        for holder in &mut holders {
            holder.release().await;
        }
    }
    // Also when the client that agreed on another number is dead.
    let mut dying = of(rig, 3).with_ttl(rig.short());
    dying.acquire().await;
    drop(dying);
    let mut next = of(rig, 2);
    next.acquire_in_the_end().await;
    next.release().await;
    // Or has left the queue.
    let (mut holder, mut leaving) = (Client::new(rig, "x"), of(rig, 3));
    holder.acquire().await;
    leaving.queue().await;
    leaving.release().await;
    let mut waiting = of(rig, 2).with_ttl(rig.short());
    assert_eq!(waiting.queue().await.position, Some(1));
    let mut alone = Client::new(rig, "x");
    alone.queue().await;
    // Or has died there.
    drop(waiting);
    let mut waiting = of(rig, 5);
    let asks = Instant::now();
    while let Attempt::Refused(refusal) = waiting.wait_in_line().await {
        assert!(refusal == Refusal::Slots(2) && asks.elapsed() < SOON, "{refusal:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    holder.assert_held().await;
}

/// By the end of its lease, or at once where a descriptor or session holds the slot.
pub async fn the_slot_of_a_dead_holder_is_freed(rig: &mut dyn Rig) {
    // Long enough for another one to join the queue on a busy machine.
    const LEASE: Duration = Duration::from_millis(2500);
    let mut living = of(rig, 2);
    assert_eq!(living.acquire().await.slot, Some(0));
    let acquired = Instant::now();
    let mut dying = of(rig, 2).with_ttl(LEASE);
    assert_eq!(dying.acquire().await.slot, Some(1));
    let waiting = of(rig, 2).wait_beside().await;
    drop(dying);
    let (_, grant) = waiting.granted().await;
    assert_eq!(grant.slot, Some(1));
    if rig.has_leases() {
        assert!(acquired.elapsed() >= LEASE - LEASE / 100, "free after {:?}", acquired.elapsed());
    }
    living.assert_held().await;
    assert!(living.claim.ttl == LONG && !rig.foreign_lock("x", None));
}

pub async fn the_slot_of_a_killed_run_is_freed(rig: &mut dyn Rig) {
    let run = || run_of(rig, "2");
    let mut living = run().stdin(Stdio::piped()).sh("echo ready; exec cat").spawn();
    living.await_ready();
    let mut dying = run().args(["--ttl", &rig.ttl(5)]).probe(["ignore-term"]).spawn();
    dying.await_ready();
    let mut next_holder = run().args(["-v", "--wait", "forever"]).sh("echo $DLOCK_SLOT").spawn();
    next_holder.await_stderr("waiting");
    dying.signal(Signal::SIGKILL);
    assert_eq!(next_holder.wait().stdout, "1\n");
    assert_eq!(dying.wait().exit, Exit::by(Signal::SIGKILL));
    super::exclusion::let_end(living);
}

pub async fn a_foreign_client_is_excluded_until_the_last_slot_is_free(rig: &mut dyn Rig) {
    for order in [[0, 1], [1, 0]] {
        let mut holders = holding(rig, 2, 3).await;
        for index in order {
            assert!(!rig.foreign_lock("x", None));
            holders[index].release().await;
        }
        assert!(rig.is_free_to_others("x"));
    }
    assert!(rig.foreign_lock("x", None));
    assert_eq!(of(rig, 3).refused().await.identity, None);
    rig.foreign_unlock("x");
    of(rig, 3).acquire().await;
}

pub async fn one_slot_is_exclusive(rig: &mut dyn Rig) {
    let text = "echo ready; echo slot ${DLOCK_SLOT-unset}; exec cat";
    let mut run = run_of(rig, "1").stdin(Stdio::piped()).sh(text).spawn();
    run.await_stdout("slot");
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Slots(2)] {
        Client::new(rig, "x").in_mode(mode).refused().await;
    }
    drop(run.take_stdin());
    assert_eq!(run.wait().outcome(), (Exit::Code(0), "ready\nslot 0\n", ""));
    let without = rig.run().sh("echo slot ${DLOCK_SLOT-unset}").output();
    assert_eq!(without.outcome(), (Exit::Code(0), "slot unset\n", ""));
}

//! A waiter at the head of the queue is dead, or stopped, when its turn comes.

use super::fixture::{Queue, SHORTLY, assert_ran, go_on, kill, stop};
use crate::support::SOON;
use crate::support::running::Exit;
use crate::support::wait::{boot_ns, eventually, until};
use dlock::backend::CLAIM_WITHIN;
use std::time::Duration;

/// Figures that a test prints with `--nocapture`.
fn measured(queue: &Queue, what: &str, hand_off: Duration) {
    let store = queue.store.url().split(':').next().unwrap_or_default();
    println!("{store}: {what}: the next one had the lock after {} ms", hand_off.as_millis());
    assert!(hand_off <= SHORTLY, "{store}: {what}: {hand_off:?}");
}

/// The best of a few tries, for what happens at once: too fast for a wait for the dead.
#[track_caller]
fn is_passed_at_once(what: &str, try_it: impl Fn(&Queue) -> Duration) {
    for store in 0..Queue::each().len() {
        let best = (0..3).map(|_| try_it(&Queue::each()[store])).min().unwrap();
        measured(&Queue::each()[store], what, best);
        assert!(best < CLAIM_WITHIN, "{what}: {best:?}");
    }
}

/// F41
#[test]
fn a_killed_waiter_at_the_head_is_skipped_at_once() {
    is_passed_at_once("a killed head", |queue| {
        let mut holder = queue.holder("holder");
        let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| queue.waiter(name));
        kill(&mut a);
        queue.let_go("holder");
        assert_ran([&mut holder, &mut b, &mut c]);
        queue.assert_turns(&["holder", "b", "c"]);
        queue.assert_nothing_left();
        queue.hand_off("holder", "b")
    });
}

/// F41: the guard of dlock is killed at the same moment.
#[test]
fn a_queue_of_killed_waiters_is_skipped_at_once() {
    is_passed_at_once("a line of five killed", |queue| {
        let mut holder = queue.holder("holder");
        let dead = ["a", "b", "c", "d", "e"].map(|name| queue.waiter(name));
        let mut last = queue.waiter("last");
        for run in &dead {
            run.marker().kill_all();
        }
        queue.let_go("holder");
        assert_ran([&mut holder, &mut last]);
        queue.assert_turns(&["holder", "last"]);
        queue.assert_nothing_left();
        queue.hand_off("holder", "last")
    });
}

/// F41
#[test]
fn a_stopped_waiter_at_the_head_is_skipped_and_returns_at_the_end() {
    for queue in Queue::each() {
        let mut holder = queue.holder("holder");
        let (mut a, mut b, mut c) = (queue.waiter("a"), queue.keeper("b"), queue.waiter("c"));
        stop(&a);
        queue.let_go("holder");
        measured(&queue, "a stopped head", queue.hand_off("holder", "b"));
        let mut d = queue.waiter("d");
        queue.await_order(&[&c, &d]);
        go_on(&a);
        queue.await_order(&[&c, &d, &a]);
        queue.let_go("b");
        assert_ran([&mut holder, &mut b, &mut c, &mut d, &mut a]);
        queue.assert_turns(&["holder", "b", "c", "d", "a"]);
        queue.assert_nothing_left();
    }
}

/// F41
#[test]
fn two_stopped_waiters_at_the_head_are_skipped() {
    for queue in Queue::each() {
        let mut holder = queue.holder("holder");
        let [mut a, mut b] = ["a", "b"].map(|name| queue.waiter(name));
        let (mut c, mut d) = (queue.keeper("c"), queue.waiter("d"));
        stop(&a);
        stop(&b);
        queue.let_go("holder");
        measured(&queue, "two stopped", queue.hand_off("holder", "c"));
        go_on(&b);
        queue.await_order(&[&d, &b]);
        go_on(&a);
        queue.await_order(&[&d, &b, &a]);
        queue.let_go("c");
        assert_ran([&mut holder, &mut c, &mut d, &mut b, &mut a]);
        queue.assert_turns(&["holder", "c", "d", "b", "a"]);
        queue.assert_nothing_left();
    }
}

/// F41: as when a host with several waiters crashes. Each may cost its half a second.
#[test]
fn five_stopped_waiters_at_the_head_are_skipped() {
    for queue in Queue::each() {
        let queue = queue.ttl("20s");
        let mut holder = queue.holder("holder");
        let stopped = ["a", "b", "c", "d", "e"].map(|name| queue.waiter(name));
        let mut last = queue.waiter("last");
        stopped.iter().for_each(stop);
        queue.let_go("holder");
        assert_ran([&mut holder, &mut last]);
        let hand_off = queue.hand_off("holder", "last");
        assert!(hand_off <= Duration::from_secs(10), "{}: {hand_off:?}", queue.store.url());
        queue.assert_turns(&["holder", "last"]);
    }
}

/// F41: called, and dead before its request.
#[test]
fn a_waiter_killed_during_its_turn_is_skipped() {
    for queue in Queue::each() {
        let mut holder = queue.holder("holder");
        let [mut a, mut b] = ["a", "b"].map(|name| queue.waiter(name));
        stop(&a);
        queue.let_go("holder");
        until(SOON, "a free lock", || !queue.store.is_held());
        kill(&mut a);
        assert_ran([&mut holder, &mut b]);
        measured(&queue, "a head killed in its turn", queue.hand_off("holder", "b"));
        queue.assert_turns(&["holder", "b"]);
        queue.assert_nothing_left();
    }
}

/// F41: no notification is sent that the lock is free; where it has a lease, that ends first.
#[test]
fn a_stopped_waiter_at_the_head_is_skipped_after_the_holder_was_killed() {
    for queue in Queue::each() {
        let run = queue.store.run_with_ttl("6s").args(["--wait", "forever"]);
        let mut holder = queue.keeping(run, "holder").spawn();
        holder.await_ready();
        let [mut a, mut b] = ["a", "b"].map(|name| queue.waiter(name));
        stop(&a);
        kill(&mut holder);
        let free = eventually(SOON, "a free lock", || (!queue.store.is_held()).then(boot_ns));
        let begin = queue.start_of("b");
        measured(&queue, "a killed holder", Duration::from_nanos(begin.saturating_sub(free)));
        go_on(&a);
        assert_ran([&mut b, &mut a]);
        assert_eq!(queue.order(), ["holder", "b", "a"]);
        queue.assert_nothing_left();
    }
}

/// F41: a second client that died while the lock was offered to it does not count as a holder.
#[test]
fn a_run_without_waiting_gets_a_lock_offered_to_a_stopped_waiter() {
    for queue in Queue::each() {
        let mut holder = queue.holder("holder");
        let mut a = queue.waiter("a");
        stop(&a);
        queue.let_go("holder");
        assert_ran([&mut holder]);
        let run = queue.store.run_with_ttl("60s").arg("--no-wait");
        let mut now = queue.passing(run, "now").spawn();
        assert_ran([&mut now]);
        measured(&queue, "without waiting", queue.hand_off("holder", "now"));
        go_on(&a);
        assert_ran([&mut a]);
        queue.assert_turns(&["holder", "now", "a"]);
        queue.assert_nothing_left();
    }
}

/// F41: a run without waiting checks one offer, not one after another. Redis calls all waiters together. On
/// `file:`, where a live waiter would not notice a call ahead of its turn, the first two cost the lock.
#[test]
fn a_run_without_waiting_is_not_delayed_by_successive_stopped_waiters() {
    for queue in Queue::each() {
        let mut holder = queue.holder("holder");
        let stopped = ["a", "b", "c", "d", "e", "f", "g", "h"].map(|name| queue.waiter(name));
        stopped.iter().for_each(stop);
        queue.let_go("holder");
        assert_ran([&mut holder]);
        let run = queue.store.run_with_ttl("60s").arg("--no-wait");
        let mut now = queue.passing(run, "now").spawn();
        let output = now.wait_within(SHORTLY);
        println!("{}: {:?} after {} ms", queue.store.url(), output.exit, output.elapsed.as_millis());
        let expected = if queue.store.url().starts_with("redis:") { 0 } else { 75 };
        assert_eq!(output.exit, Exit::Code(expected), "{output:?}");
    }
}

//! Somebody at the head of the line is dead, or sleeps, when his turn comes.

use super::scene::{Line, SHORTLY, assert_ran, go_on, kill, stop};
use crate::support::SOON;
use crate::support::running::Exit;
use crate::support::wait::{boot_ns, eventually, until};
use dlock::backend::CLAIM_WITHIN;
use std::time::Duration;

/// What a test prints with `--nocapture`, for whoever wants the figures.
fn measured(line: &Line, what: &str, hand_off: Duration) {
    let store = line.store.url().split(':').next().unwrap_or_default();
    println!("{store}: {what}: the next one had the lock after {} ms", hand_off.as_millis());
    assert!(hand_off <= SHORTLY, "{store}: {what}: {hand_off:?}");
}

/// The best of a few tries, for what happens at once: so fast that nobody can have waited for the dead to answer.
#[track_caller]
fn is_passed_at_once(what: &str, try_it: impl Fn(&Line) -> Duration) {
    for store in 0..Line::each().len() {
        let best = (0..3).map(|_| try_it(&Line::each()[store])).min().unwrap();
        measured(&Line::each()[store], what, best);
        assert!(best < CLAIM_WITHIN, "{what}: {best:?}");
    }
}

/// F41
#[test]
fn one_that_was_killed_at_the_head_is_passed_at_once() {
    is_passed_at_once("a killed head", |line| {
        let mut holder = line.holder("holder");
        let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| line.waiter(name));
        kill(&mut a);
        line.let_go("holder");
        assert_ran([&mut holder, &mut b, &mut c]);
        line.assert_turns(&["holder", "b", "c"]);
        line.assert_nothing_left();
        line.hand_off("holder", "b")
    });
}

/// F41: the other half of dlock, which guards, goes at the same moment.
#[test]
fn a_whole_line_that_was_killed_is_passed_at_once() {
    is_passed_at_once("a line of five killed", |line| {
        let mut holder = line.holder("holder");
        let dead = ["a", "b", "c", "d", "e"].map(|name| line.waiter(name));
        let mut last = line.waiter("last");
        for run in &dead {
            run.marker().kill_all();
        }
        line.let_go("holder");
        assert_ran([&mut holder, &mut last]);
        line.assert_turns(&["holder", "last"]);
        line.assert_nothing_left();
        line.hand_off("holder", "last")
    });
}

/// F41
#[test]
fn one_that_is_stopped_at_the_head_is_passed_and_comes_back_at_the_end() {
    for line in Line::each() {
        let mut holder = line.holder("holder");
        let (mut a, mut b, mut c) = (line.waiter("a"), line.keeper("b"), line.waiter("c"));
        stop(&a);
        line.let_go("holder");
        measured(&line, "a stopped head", line.hand_off("holder", "b"));
        let mut d = line.waiter("d");
        line.await_order(&[&c, &d]);
        go_on(&a);
        line.await_order(&[&c, &d, &a]);
        line.let_go("b");
        assert_ran([&mut holder, &mut b, &mut c, &mut d, &mut a]);
        line.assert_turns(&["holder", "b", "c", "d", "a"]);
        line.assert_nothing_left();
    }
}

/// F41
#[test]
fn two_that_are_stopped_at_the_head_are_passed() {
    for line in Line::each() {
        let mut holder = line.holder("holder");
        let [mut a, mut b] = ["a", "b"].map(|name| line.waiter(name));
        let (mut c, mut d) = (line.keeper("c"), line.waiter("d"));
        stop(&a);
        stop(&b);
        line.let_go("holder");
        measured(&line, "two stopped", line.hand_off("holder", "c"));
        go_on(&b);
        line.await_order(&[&d, &b]);
        go_on(&a);
        line.await_order(&[&d, &b, &a]);
        line.let_go("c");
        assert_ran([&mut holder, &mut c, &mut d, &mut b, &mut a]);
        line.assert_turns(&["holder", "c", "d", "b", "a"]);
        line.assert_nothing_left();
    }
}

/// F41: as when a host that had several waiters goes down without a word. Each may cost its half a second.
#[test]
fn five_that_are_stopped_at_the_head_are_passed() {
    for line in Line::each() {
        let line = line.ttl("20s");
        let mut holder = line.holder("holder");
        let stopped = ["a", "b", "c", "d", "e"].map(|name| line.waiter(name));
        let mut last = line.waiter("last");
        stopped.iter().for_each(stop);
        line.let_go("holder");
        assert_ran([&mut holder, &mut last]);
        let hand_off = line.hand_off("holder", "last");
        assert!(hand_off <= Duration::from_secs(10), "{}: {hand_off:?}", line.store.url());
        line.assert_turns(&["holder", "last"]);
    }
}

/// F41: called, and dead before it could answer.
#[test]
fn one_that_is_killed_when_its_turn_has_come_is_passed() {
    for line in Line::each() {
        let mut holder = line.holder("holder");
        let [mut a, mut b] = ["a", "b"].map(|name| line.waiter(name));
        stop(&a);
        line.let_go("holder");
        until(SOON, "a free lock", || !line.store.is_held());
        kill(&mut a);
        assert_ran([&mut holder, &mut b]);
        measured(&line, "a head killed in its turn", line.hand_off("holder", "b"));
        line.assert_turns(&["holder", "b"]);
        line.assert_nothing_left();
    }
}

/// F41: nobody tells that the lock is free; where it has a lease, that ends first.
#[test]
fn one_that_is_stopped_at_the_head_is_passed_when_the_holder_was_killed() {
    for line in Line::each() {
        let run = line.store.run_with_ttl("2s").args(["--wait", "forever"]);
        let mut holder = line.keeping(run, "holder").spawn();
        holder.await_ready();
        let [mut a, mut b] = ["a", "b"].map(|name| line.waiter(name));
        stop(&a);
        kill(&mut holder);
        let free = eventually(SOON, "a free lock", || (!line.store.is_held()).then(boot_ns));
        let begin = line.start_of("b");
        measured(&line, "a killed holder", Duration::from_nanos(begin.saturating_sub(free)));
        go_on(&a);
        assert_ran([&mut b, &mut a]);
        assert_eq!(line.order(), ["holder", "b", "a"]);
        line.assert_nothing_left();
    }
}

/// F41: a second holder that never comes, because it died with the lock promised to it, is nobody's holder.
#[test]
fn one_who_does_not_wait_gets_a_lock_that_is_promised_to_one_that_is_stopped() {
    for line in Line::each() {
        let mut holder = line.holder("holder");
        let mut a = line.waiter("a");
        stop(&a);
        line.let_go("holder");
        assert_ran([&mut holder]);
        let run = line.store.run_with_ttl("60s").arg("--no-wait");
        let mut now = line.passing(run, "now").spawn();
        assert_ran([&mut now]);
        measured(&line, "without waiting", line.hand_off("holder", "now"));
        go_on(&a);
        assert_ran([&mut a]);
        line.assert_turns(&["holder", "now", "a"]);
        line.assert_nothing_left();
    }
}

/// F41: whoever does not wait looks after one promise, not one after another. Redis calls all waiters together. On `file:`,
/// where a waiter that lives would not hear that it is called ahead of its turn, the first two cost the lock.
#[test]
fn one_who_does_not_wait_is_not_held_up_by_one_stopped_waiter_after_another() {
    for line in Line::each() {
        let mut holder = line.holder("holder");
        let stopped = ["a", "b", "c", "d", "e", "f", "g", "h"].map(|name| line.waiter(name));
        stopped.iter().for_each(stop);
        line.let_go("holder");
        assert_ran([&mut holder]);
        let run = line.store.run_with_ttl("60s").arg("--no-wait");
        let mut now = line.passing(run, "now").spawn();
        let output = now.wait_within(SHORTLY);
        println!("{}: {:?} after {} ms", line.store.url(), output.exit, output.elapsed.as_millis());
        let expected = if line.store.url().starts_with("redis:") { 0 } else { 75 };
        assert_eq!(output.exit, Exit::Code(expected), "{output:?}");
    }
}

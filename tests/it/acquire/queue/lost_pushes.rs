//! Lost pushes of the store: to the waiter whose turn it is, to the next one, to all of them.

use super::fixture::{Queue, SHORTLY, assert_ran};
use crate::support::SOON;
use crate::support::push_filter::PushFilter;
use crate::support::redis::{Options, Redis};
use crate::support::resp::Value;
use crate::support::running::{Exit, Running};
use crate::support::store::Store;
use crate::support::wait::{boot_ns, throughout, until};
use dlock::backend::CLAIM_WITHIN;
use nix::sys::signal::Signal;
use std::time::Duration;

/// The holder's lease, in the tests that wait for its end.
const LEASE: Duration = Duration::from_secs(6);

/// A server, and a queue on it.
fn a_queue() -> (Redis, Queue) {
    let redis = Redis::start();
    let queue = Queue::of(Store::on(&redis));
    (redis, queue)
}

/// The lost pushes about a waiter's turn.
fn lost(muffler: &PushFilter) -> Vec<String> {
    let mut messages = muffler.dropped_messages();
    messages.retain(|message| ["next", "called"].contains(&message.as_str()));
    messages
}

/// The connections subscribed to a channel.
fn listeners(redis: &Redis) -> Vec<String> {
    let list = redis.command(&["CLIENT", "LIST"]).text();
    let listening = list.lines().filter(|client| client.contains(" sub=1 "));
    let id = |client: &str| client.split(' ').find_map(|word| word.strip_prefix("id=").map(str::to_owned));
    listening.filter_map(id).collect()
}

/// Makes the server close them, as it does when a client does not read its pushes.
#[track_caller]
fn cut_off(redis: &Redis, listeners: &[String]) {
    for id in listeners {
        assert_eq!(redis.command(&["CLIENT", "KILL", "ID", id]), Value::Int(1));
    }
}

#[track_caller]
fn await_listeners_again(redis: &Redis, before: &[String]) {
    until(SOON, "listeners that are back", || {
        let now = listeners(redis);
        now.len() == before.len() && now.iter().all(|id| !before.contains(id))
    });
}

/// F42: only its own clock can wake it.
#[test]
fn a_lost_push_costs_at_most_the_rest_of_the_lease() {
    let (redis, queue) = a_queue();
    let muffler = PushFilter::to(redis.port());
    let mut holder = queue.keeping(queue.store.run_with_ttl("6s"), "holder").spawn();
    holder.await_ready();
    let mut deaf = queue.behind(muffler.port()).waiter("deaf");
    queue.let_go("holder");
    assert_ran([&mut holder, &mut deaf]);
    let hand_off = queue.hand_off("holder", "deaf");
    println!("a lost call cost {} ms of a lease of {LEASE:?}", hand_off.as_millis());
    assert!(hand_off <= LEASE + SHORTLY, "{hand_off:?}");
    assert_eq!(lost(&muffler), ["called"]);
    queue.assert_turns(&["holder", "deaf"]);
    queue.assert_nothing_left();
}

/// F42: the push that its turn is near is lost, and the call as well.
#[test]
fn a_waiter_without_pushes_is_granted_the_lock_within_the_rest_of_the_lease() {
    let (redis, queue) = a_queue();
    let muffler = PushFilter::to(redis.port());
    let mut holder = queue.keeping(queue.store.run_with_ttl("6s"), "holder").spawn();
    holder.await_ready();
    let mut first = queue.waiter("first");
    let mut deaf = queue.behind(muffler.port()).waiter("deaf");
    queue.let_go("holder");
    assert_ran([&mut holder, &mut first, &mut deaf]);
    let hand_off = queue.hand_off("first", "deaf");
    println!("two lost words cost {} ms of a lease of {LEASE:?}", hand_off.as_millis());
    assert!(hand_off <= LEASE + SHORTLY, "{hand_off:?}");
    assert_eq!(lost(&muffler), ["next", "called"]);
    queue.assert_turns(&["holder", "first", "deaf"]);
    queue.assert_nothing_left();
}

/// F42: the others do not wait for one without pushes.
#[test]
fn after_a_lost_push_the_next_waiter_is_notified() {
    let (redis, queue) = a_queue();
    let muffler = PushFilter::to(redis.port());
    let mut holder = queue.holder("holder");
    let mut deaf = queue.behind(muffler.port()).waiter("deaf");
    let mut next = queue.waiter("next");
    queue.let_go("holder");
    assert_ran([&mut holder, &mut next]);
    let hand_off = queue.hand_off("holder", "next");
    assert!(hand_off <= SHORTLY, "{hand_off:?}");
    // A minute is left of the lease that it knows of; a broken connection is noticed at once.
    muffler.close();
    assert_ran([&mut deaf]);
    queue.assert_turns(&["holder", "next", "deaf"]);
    queue.assert_nothing_left();
}

/// F42: as when the server's buffer for a subscriber is full.
#[test]
fn a_disconnected_waiter_returns_to_its_position() {
    let (redis, queue) = a_queue();
    let mut holder = queue.holder("holder");
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| queue.waiter(name));
    for _ in 0..2 {
        let before = listeners(&redis);
        assert_eq!(before.len(), 3);
        cut_off(&redis, &before);
        await_listeners_again(&redis, &before);
        queue.await_order(&[&a, &b, &c]);
    }
    queue.let_go("holder");
    assert_ran([&mut holder, &mut a, &mut b, &mut c]);
    assert!(queue.hand_off("holder", "a") <= SHORTLY);
    queue.assert_turns(&["holder", "a", "b", "c"]);
    queue.assert_nothing_left();
}

/// F42: no waiter receives the call, so there is no turn: the waiter that reconnects first takes the lock.
#[test]
fn waiters_disconnected_when_the_lock_is_freed_are_served() {
    let (redis, queue) = a_queue();
    let mut holder = queue.holder("holder");
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| queue.waiter(name));
    cut_off(&redis, &listeners(&redis));
    queue.let_go("holder");
    assert_ran([&mut holder, &mut a, &mut b, &mut c]);
    let mut order = queue.order();
    let hand_off = queue.hand_off("holder", &order[1]);
    assert!(hand_off <= SHORTLY, "{hand_off:?}");
    order.sort();
    assert_eq!(order, ["a", "b", "c", "holder"]);
    let order = queue.order();
    queue.assert_turns(&order.iter().map(String::as_str).collect::<Vec<_>>());
    queue.assert_nothing_left();
}

/// F42, F08
#[test]
fn waiters_keep_their_positions_over_a_restart_of_a_persistent_server() {
    let mut redis = Redis::start_with(Options { persistent: true, ..Options::default() });
    let queue = Queue::of(Store::on(&redis));
    let mut holder = queue.holder("holder");
    let names: Vec<String> = (0..20).map(|number| format!("w{number:02}")).collect();
    let mut waiters: Vec<Running> = names.iter().map(|name| queue.waiter(name)).collect();
    redis.restart();
    until(SOON, "everybody back", || listeners(&redis).len() == 20);
    queue.await_order(&waiters.iter().collect::<Vec<_>>());
    queue.let_go("holder");
    assert_ran([&mut holder]);
    waiters.iter_mut().for_each(|waiter| assert_ran([waiter]));
    let order: Vec<&str> = std::iter::once("holder").chain(names.iter().map(String::as_str)).collect();
    queue.assert_turns(&order);
    queue.assert_nothing_left();
}

/// F42, F09: the queue is lost, and forms again.
#[test]
fn waiters_are_served_after_a_restart_of_an_empty_server() {
    let mut redis = Redis::start();
    let queue = Queue::of(Store::on(&redis));
    // A holder whose command had to be killed first would be another test.
    redis.command(&["SET", "dlock:x", "somebody else's"]);
    let names: Vec<String> = (0..20).map(|number| format!("w{number:02}")).collect();
    let mut waiters: Vec<Running> = names.iter().map(|name| queue.waiter(name)).collect();
    redis.restart();
    waiters.iter_mut().for_each(|waiter| assert_ran([waiter]));
    let mut order = queue.order();
    queue.assert_turns(&order.iter().map(String::as_str).collect::<Vec<_>>());
    order.sort();
    assert_eq!(order, names);
    queue.assert_nothing_left();
}

/// F42, F09: all data is deleted without a notification, and no connection breaks.
#[test]
fn waiters_are_served_after_the_store_was_flushed() {
    let (redis, queue) = a_queue();
    // Long enough that no other waiter asks by itself soon after the first one was notified.
    let queue = queue.ttl("8s");
    redis.command(&["SET", "dlock:x", "somebody else's"]);
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| queue.waiter(name));
    redis.command(&["FLUSHALL"]);
    assert_ran([&mut a, &mut b, &mut c]);
    let order = queue.order();
    assert_eq!(order[0], "a", "it alone was notified");
    queue.assert_turns(&order.iter().map(String::as_str).collect::<Vec<_>>());
    queue.assert_nothing_left();
}

/// F42: a lock of a program that sends no notifications, which is deleted, or expires.
#[test]
fn the_first_waiter_notices_the_end_of_a_foreign_lock() {
    for how in [&["DEL", "dlock:x"][..], &["PEXPIRE", "dlock:x", "300"], &["UNLINK", "dlock:x"]] {
        let (redis, queue) = a_queue();
        redis.command(&["SET", "dlock:x", "somebody else's", "PX", "600000"]);
        let [mut a, mut b] = ["a", "b"].map(|name| queue.waiter(name));
        throughout(Duration::from_millis(200), "both wait", || a.poll().is_none() && b.poll().is_none());
        redis.command(how);
        let begun = boot_ns();
        assert_ran([&mut a, &mut b]);
        let late = Duration::from_nanos(queue.start_of("a").saturating_sub(begun));
        println!("{how:?}: noticed after {} ms", late.as_millis());
        assert!(late <= SHORTLY, "{how:?}: {late:?}");
        queue.assert_turns(&["a", "b"]);
        queue.assert_nothing_left();
    }
}

/// F42: the new first waiter has to know its position, or it would not watch for such a lock.
#[test]
fn a_waiter_that_has_just_become_the_first_notices_the_end_of_a_foreign_lock() {
    let (redis, queue) = a_queue();
    let queue = queue.ttl("20s");
    redis.command(&["SET", "dlock:x", "somebody else's", "PX", "600000"]);
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| queue.waiter(name));
    a.signal(Signal::SIGTERM);
    assert_eq!(a.wait().exit, Exit::by(Signal::SIGTERM));
    queue.await_order(&[&b, &c]);
    // It may take the time of a call to notice.
    std::thread::sleep(2 * CLAIM_WITHIN);
    redis.command(&["DEL", "dlock:x"]);
    let begun = boot_ns();
    assert_ran([&mut b, &mut c]);
    let late = Duration::from_nanos(queue.start_of("b").saturating_sub(begun));
    assert!(late <= SHORTLY, "{late:?}");
    queue.assert_turns(&["b", "c"]);
    queue.assert_nothing_left();
}

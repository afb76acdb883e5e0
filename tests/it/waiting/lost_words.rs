//! Word from the store that does not come: to one whose turn it is, to one who is next, to everybody.

use super::scene::{Line, SHORTLY, assert_ran};
use crate::support::SOON;
use crate::support::muffler::Muffler;
use crate::support::redis::{Options, Redis};
use crate::support::resp::Value;
use crate::support::running::{Exit, Running};
use crate::support::store::Store;
use crate::support::wait::{boot_ns, throughout, until};
use dlock::backend::CLAIM_WITHIN;
use nix::sys::signal::Signal;
use std::time::Duration;

/// The holder's lease, in the tests that wait for its end.
const LEASE: Duration = Duration::from_secs(3);

/// A server, and a line on it.
fn a_line() -> (Redis, Line) {
    let redis = Redis::start();
    let line = Line::of(Store::on(&redis));
    (redis, line)
}

/// What nobody has heard of what concerns his turn.
fn lost(muffler: &Muffler) -> Vec<String> {
    let mut messages = muffler.swallowed_messages();
    messages.retain(|message| ["next", "called"].contains(&message.as_str()));
    messages
}

/// The connections that listen on a channel.
fn listeners(redis: &Redis) -> Vec<String> {
    let list = redis.command(&["CLIENT", "LIST"]).text();
    let listening = list.lines().filter(|client| client.contains(" sub=1 "));
    let id = |client: &str| client.split(' ').find_map(|word| word.strip_prefix("id=").map(str::to_owned));
    listening.filter_map(id).collect()
}

/// Has the server cut them off, as it does when one does not read what it is sent.
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

/// F42: all there is to wake it is its own clock.
#[test]
fn a_lost_call_costs_at_most_the_rest_of_the_lease() {
    let (redis, line) = a_line();
    let muffler = Muffler::to(redis.port());
    let mut holder = line.keeping(line.store.run_with_ttl("3s"), "holder").spawn();
    holder.await_ready();
    let mut deaf = line.behind(muffler.port()).waiter("deaf");
    line.let_go("holder");
    assert_ran([&mut holder, &mut deaf]);
    let hand_off = line.hand_off("holder", "deaf");
    println!("a lost call cost {} ms of a lease of {LEASE:?}", hand_off.as_millis());
    assert!(hand_off <= LEASE + SHORTLY, "{hand_off:?}");
    assert_eq!(lost(&muffler), ["called"]);
    line.assert_turns(&["holder", "deaf"]);
    line.assert_nothing_left();
}

/// F42: the word that its turn comes soon is lost, and the call as well.
#[test]
fn one_who_hears_nothing_behind_another_gets_the_lock_within_the_rest_of_the_lease() {
    let (redis, line) = a_line();
    let muffler = Muffler::to(redis.port());
    let mut holder = line.keeping(line.store.run_with_ttl("3s"), "holder").spawn();
    holder.await_ready();
    let mut first = line.waiter("first");
    let mut deaf = line.behind(muffler.port()).waiter("deaf");
    line.let_go("holder");
    assert_ran([&mut holder, &mut first, &mut deaf]);
    let hand_off = line.hand_off("first", "deaf");
    println!("two lost words cost {} ms of a lease of {LEASE:?}", hand_off.as_millis());
    assert!(hand_off <= LEASE + SHORTLY, "{hand_off:?}");
    assert_eq!(lost(&muffler), ["next", "called"]);
    line.assert_turns(&["holder", "first", "deaf"]);
    line.assert_nothing_left();
}

/// F42: the others do not wait for one who does not hear.
#[test]
fn a_lost_call_passes_to_the_next() {
    let (redis, line) = a_line();
    let muffler = Muffler::to(redis.port());
    let mut holder = line.holder("holder");
    let mut deaf = line.behind(muffler.port()).waiter("deaf");
    let mut next = line.waiter("next");
    line.let_go("holder");
    assert_ran([&mut holder, &mut next]);
    let hand_off = line.hand_off("holder", "next");
    assert!(hand_off <= SHORTLY, "{hand_off:?}");
    // A minute is left of the lease that it knows of; that a connection breaks is noticed at once.
    muffler.close();
    assert_ran([&mut deaf]);
    line.assert_turns(&["holder", "next", "deaf"]);
    line.assert_nothing_left();
}

/// F42: as when the server's buffer for a listener is full.
#[test]
fn one_who_is_cut_off_comes_back_to_its_place() {
    let (redis, line) = a_line();
    let mut holder = line.holder("holder");
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| line.waiter(name));
    for _ in 0..2 {
        let before = listeners(&redis);
        assert_eq!(before.len(), 3);
        cut_off(&redis, &before);
        await_listeners_again(&redis, &before);
        line.await_order(&[&a, &b, &c]);
    }
    line.let_go("holder");
    assert_ran([&mut holder, &mut a, &mut b, &mut c]);
    assert!(line.hand_off("holder", "a") <= SHORTLY);
    line.assert_turns(&["holder", "a", "b", "c"]);
    line.assert_nothing_left();
}

/// F42: nobody hears the call, and so it is nobody's turn: who comes back takes the lock.
#[test]
fn those_who_are_cut_off_when_the_lock_becomes_free_are_served() {
    let (redis, line) = a_line();
    let mut holder = line.holder("holder");
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| line.waiter(name));
    cut_off(&redis, &listeners(&redis));
    line.let_go("holder");
    assert_ran([&mut holder, &mut a, &mut b, &mut c]);
    let mut order = line.order();
    let hand_off = line.hand_off("holder", &order[1]);
    assert!(hand_off <= SHORTLY, "{hand_off:?}");
    order.sort();
    assert_eq!(order, ["a", "b", "c", "holder"]);
    let order = line.order();
    line.assert_turns(&order.iter().map(String::as_str).collect::<Vec<_>>());
    line.assert_nothing_left();
}

/// F42, F08
#[test]
fn those_who_wait_keep_their_places_over_a_restart_with_memory() {
    let mut redis = Redis::start_with(Options { persistent: true, ..Options::default() });
    let line = Line::of(Store::on(&redis));
    let mut holder = line.holder("holder");
    let names: Vec<String> = (0..20).map(|number| format!("w{number:02}")).collect();
    let mut waiters: Vec<Running> = names.iter().map(|name| line.waiter(name)).collect();
    redis.restart();
    until(SOON, "everybody back", || listeners(&redis).len() == 20);
    line.await_order(&waiters.iter().collect::<Vec<_>>());
    line.let_go("holder");
    assert_ran([&mut holder]);
    waiters.iter_mut().for_each(|waiter| assert_ran([waiter]));
    let order: Vec<&str> = std::iter::once("holder").chain(names.iter().map(String::as_str)).collect();
    line.assert_turns(&order);
    line.assert_nothing_left();
}

/// F42, F09: the line is forgotten, and forms anew.
#[test]
fn those_who_wait_are_served_after_a_restart_without_memory() {
    let mut redis = Redis::start();
    let line = Line::of(Store::on(&redis));
    // A holder whose command had to be killed first would be another test.
    redis.command(&["SET", "dlock:x", "somebody else's"]);
    let names: Vec<String> = (0..20).map(|number| format!("w{number:02}")).collect();
    let mut waiters: Vec<Running> = names.iter().map(|name| line.waiter(name)).collect();
    redis.restart();
    waiters.iter_mut().for_each(|waiter| assert_ran([waiter]));
    let mut order = line.order();
    line.assert_turns(&order.iter().map(String::as_str).collect::<Vec<_>>());
    order.sort();
    assert_eq!(order, names);
    line.assert_nothing_left();
}

/// F42, F09: everything is gone behind everybody's back, and no connection breaks.
#[test]
fn those_who_wait_are_served_after_the_store_was_emptied() {
    let (redis, line) = a_line();
    let line = line.ttl("3s");
    redis.command(&["SET", "dlock:x", "somebody else's"]);
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| line.waiter(name));
    redis.command(&["FLUSHALL"]);
    assert_ran([&mut a, &mut b, &mut c]);
    let order = line.order();
    assert_eq!(order[0], "a", "it alone was told");
    line.assert_turns(&order.iter().map(String::as_str).collect::<Vec<_>>());
    line.assert_nothing_left();
}

/// F42: a lock of a program that tells nobody anything, which is deleted, or ends.
#[test]
fn the_head_of_the_line_notices_that_a_foreign_lock_is_gone() {
    for how in [&["DEL", "dlock:x"][..], &["PEXPIRE", "dlock:x", "300"], &["UNLINK", "dlock:x"]] {
        let (redis, line) = a_line();
        redis.command(&["SET", "dlock:x", "somebody else's", "PX", "600000"]);
        let [mut a, mut b] = ["a", "b"].map(|name| line.waiter(name));
        throughout(Duration::from_millis(200), "both wait", || a.poll().is_none() && b.poll().is_none());
        redis.command(how);
        let begun = boot_ns();
        assert_ran([&mut a, &mut b]);
        let late = Duration::from_nanos(line.start_of("a").saturating_sub(begun));
        println!("{how:?}: noticed after {} ms", late.as_millis());
        assert!(late <= SHORTLY, "{how:?}: {late:?}");
        line.assert_turns(&["a", "b"]);
        line.assert_nothing_left();
    }
}

/// F42: the new head of the line has to know that it is the head, or it would not watch for such a lock.
#[test]
fn the_head_of_the_line_notices_it_even_if_it_has_just_become_the_head() {
    let (redis, line) = a_line();
    let line = line.ttl("20s");
    redis.command(&["SET", "dlock:x", "somebody else's", "PX", "600000"]);
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| line.waiter(name));
    a.signal(Signal::SIGTERM);
    assert_eq!(a.wait().exit, Exit::by(Signal::SIGTERM));
    line.await_order(&[&b, &c]);
    // It may take the time of a call to find out.
    std::thread::sleep(2 * CLAIM_WITHIN);
    redis.command(&["DEL", "dlock:x"]);
    let begun = boot_ns();
    assert_ran([&mut b, &mut c]);
    let late = Duration::from_nanos(line.start_of("b").saturating_sub(begun));
    assert!(late <= SHORTLY, "{late:?}");
    line.assert_turns(&["b", "c"]);
    line.assert_nothing_left();
}

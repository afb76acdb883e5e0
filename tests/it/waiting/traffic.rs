//! How often those who wait ask the store, while the holder stays.

use super::scene::{Line, assert_ran};
use crate::support::monitor::{Monitor, Request};
use crate::support::redis::Redis;
use crate::support::running::Running;
use crate::support::store::Store;
use crate::support::wait::throughout;
use std::collections::HashMap;
use std::time::Duration;

/// The holder's lease, and that of each who waits.
const TTL: Duration = Duration::from_secs(2);
/// For how many leases the line is watched.
const LEASES: u32 = 5;

/// How many places there are in line, if each of them lives on.
fn places_live(redis: &Redis, line: &Line) -> Option<usize> {
    let now: u64 = redis.command(&["TIME"]).texts()[0].parse().unwrap();
    let notes = redis.command(&["HVALS", &line.side_key("waiters")]).texts();
    // Mode, slots, whether it hears, the end of its place, in milliseconds, and more.
    let places = notes.iter().filter_map(|note| note.split(' ').nth(3)?.parse::<u64>().ok());
    let ends: Vec<u64> = places.collect();
    ends.iter().all(|end| *end >= now * 1000).then_some(ends.len())
}

#[test]
fn those_who_wait_ask_at_most_once_per_lease_behind_the_first_two_who_ask_six_times() {
    let redis = Redis::start();
    let line = Line::of(Store::on(&redis)).ttl("2s");
    let monitor = Monitor::of(&redis);
    let mut holder = line.holder("holder");
    let names = ["a", "b", "c", "d", "e"];
    let mut waiters: Vec<Running> = names.iter().map(|name| line.waiter(name)).collect();
    let tokens = redis.command(&["ZRANGE", &line.side_key("queue"), "0", "-1"]).texts();
    let joined = monitor.requests();
    let from = joined.iter().map(|request| request.at).max().unwrap();
    throughout(TTL * LEASES, "everybody's place", || places_live(&redis, &line) == Some(names.len()));
    let requests = monitor.requests();
    // By the server's own clock: what comes after the span does not count.
    let asked = |token: &String| -> Vec<&Request> {
        let client = requests.iter().find(|request| request.token() == Some(token)).unwrap().client.clone();
        let meanwhile = |request: &&Request| {
            request.client == client && request.at > from && request.at <= from + TTL * LEASES
        };
        requests.iter().filter(meanwhile).collect()
    };
    let counts: HashMap<&str, usize> =
        names.into_iter().zip(tokens.iter().map(|token| asked(token).len())).collect();
    println!("requests in {LEASES} leases: {counts:?}");
    let leases = usize::try_from(LEASES).unwrap();
    for (place, (name, token)) in names.into_iter().zip(&tokens).enumerate() {
        // What the holder does at the edges of the span, the first of the line hears of.
        let most = if place < 2 { 6 * leases + 2 } else { leases + 1 };
        assert!(counts[name] <= most, "{name}: {:#?}", asked(token));
    }
    line.await_order(&waiters.iter().collect::<Vec<_>>());
    line.let_go("holder");
    assert_ran([&mut holder]);
    waiters.iter_mut().for_each(|waiter| assert_ran([waiter]));
    line.assert_turns(&["holder", "a", "b", "c", "d", "e"]);
    line.assert_nothing_left();
}

/// Each holds for longer than those behind it wait for whoever was called, and so they ask once more.
#[test]
fn nobody_in_a_slow_line_asks_often() {
    let redis = Redis::start();
    let line = Line::of(Store::on(&redis)).ttl("60s");
    let monitor = Monitor::of(&redis);
    let mut holder = line.holder("holder");
    let names = ["a", "b", "c", "d", "e", "f"];
    let mut waiters: Vec<Running> = names.iter().map(|name| line.keeper(name)).collect();
    let mut before = "holder";
    for name in names {
        line.let_go(before);
        line.await_turn(name);
        std::thread::sleep(Duration::from_millis(700));
        before = name;
    }
    line.let_go(before);
    assert_ran([&mut holder]);
    waiters.iter_mut().for_each(|waiter| assert_ran([waiter]));
    let mut counts: HashMap<String, usize> = HashMap::new();
    for request in monitor.requests() {
        *counts.entry(request.client).or_default() += 1;
    }
    println!("requests of each in a slow line: {counts:?}");
    // HELLO, SUBSCRIBE, CLIENT TRACKING, and scripts: to join, as third, as second, as first, to take the lock, to hear
    // of changes to it, and to release it.
    assert!(counts.values().all(|count| *count <= 12), "{counts:?}");
    line.assert_turns(&["holder", "a", "b", "c", "d", "e", "f"]);
    line.assert_nothing_left();
}

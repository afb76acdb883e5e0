//! The number of requests of waiters to the store, while the holder stays.

use super::fixture::{Queue, assert_ran};
use crate::support::monitor::{Monitor, Request};
use crate::support::redis::Redis;
use crate::support::running::Running;
use crate::support::store::Store;
use crate::support::wait::throughout;
use std::collections::HashMap;
use std::time::Duration;

/// The lease of the holder and of each waiter. The grace leaves them time for a late renewal.
const TTL: Duration = Duration::from_secs(3);
const OPTIONS: [&str; 4] = ["--ttl", "3s", "--grace", "100ms"];
/// The number of leases for which the queue is observed.
const LEASES: u32 = 5;

/// The number of live queue positions.
fn places_live(redis: &Redis, queue: &Queue) -> Option<usize> {
    let now: u64 = redis.command(&["TIME"]).texts()[0].parse().unwrap();
    let notes = redis.command(&["HVALS", &queue.side_key("waiters")]).texts();
    // Mode, slots, whether it gets pushes, the end of its position, in milliseconds, and more.
    let places = notes.iter().filter_map(|note| note.split(' ').nth(3)?.parse::<u64>().ok());
    let ends: Vec<u64> = places.collect();
    ends.iter().all(|end| *end >= now * 1000).then_some(ends.len())
}

#[test]
fn waiters_send_one_request_per_lease_and_the_first_two_six() {
    let redis = Redis::start();
    let queue = Queue::of(Store::on(&redis));
    let monitor = Monitor::of(&redis);
    let run = || queue.store.place.run().backend(queue.store.url()).args(OPTIONS);
    let mut holder = queue.keeping(run(), "holder").spawn();
    holder.await_ready();
    let names = ["a", "b", "c", "d", "e"];
    let waiter = |name: &&str| queue.joined(queue.passing(run().args(["--wait", "forever"]), name));
    let mut waiters: Vec<Running> = names.iter().map(waiter).collect();
    let tokens = redis.command(&["ZRANGE", &queue.side_key("queue"), "0", "-1"]).texts();
    let joined = monitor.requests();
    let from = joined.iter().map(|request| request.at).max().unwrap();
    throughout(TTL * LEASES, "everybody's place", || places_live(&redis, &queue) == Some(names.len()));
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
        // The first waiter is notified of what the holder does at the edges of the span.
        let most = if place < 2 { 6 * leases + 2 } else { leases + 1 };
        assert!(counts[name] <= most, "{name}: {:#?}", asked(token));
    }
    queue.await_order(&waiters.iter().collect::<Vec<_>>());
    queue.let_go("holder");
    assert_ran([&mut holder]);
    waiters.iter_mut().for_each(|waiter| assert_ran([waiter]));
    queue.assert_turns(&["holder", "a", "b", "c", "d", "e"]);
    queue.assert_nothing_left();
}

/// Each holds for longer than the waiters behind it wait for the called one, and so they send another request.
#[test]
fn waiters_in_a_slow_queue_send_few_requests() {
    let redis = Redis::start();
    // So long that no waiter asks only because time has passed.
    let queue = Queue::of(Store::on(&redis)).ttl("5m");
    let monitor = Monitor::of(&redis);
    let mut holder = queue.holder("holder");
    let names = ["a", "b", "c", "d", "e", "f"];
    let mut waiters: Vec<Running> = names.iter().map(|name| queue.keeper(name)).collect();
    let mut before = "holder";
    for name in names {
        queue.let_go(before);
        queue.await_turn(name);
        std::thread::sleep(Duration::from_millis(700));
        before = name;
    }
    queue.let_go(before);
    assert_ran([&mut holder]);
    waiters.iter_mut().for_each(|waiter| assert_ran([waiter]));
    let mut counts: HashMap<String, usize> = HashMap::new();
    for request in monitor.requests() {
        *counts.entry(request.client).or_default() += 1;
    }
    println!("requests of each in a slow line: {counts:?}");
    // HELLO, SUBSCRIBE, CLIENT TRACKING, and scripts: to join, as third, as second, as first, to take the lock, to be
    // notified of changes to it, and to release it.
    assert!(counts.values().all(|count| *count <= 12), "{counts:?}");
    queue.assert_turns(&["holder", "a", "b", "c", "d", "e", "f"]);
    queue.assert_nothing_left();
}

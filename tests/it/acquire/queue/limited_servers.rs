//! Stores that cannot notify waiters, or may not: the waiters poll, and are served long
//! before the lease ends.

use super::fixture::{Queue, assert_ran};
use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::redis::Redis;
use crate::support::resp::Value;
use crate::support::running::Running;
use crate::support::store::Store;
use std::time::Duration;

const PASSWORD: &str = "s3cret";
/// A poll that comes late on a busy machine.
const BY_POLLING: Duration = Duration::from_secs(10);

/// How the waiters reach the server.
struct ServerAccess {
    query: &'static str,
    user: bool,
}

/// A queue of waiters that reach it in this way.
struct LimitedServer {
    _redis: Redis,
    queue: Queue,
    url: String,
}

impl LimitedServer {
    /// With RESP2.
    fn old_protocol(options: &[&str]) -> Self {
        Self::new(Redis::start_with_args(options), &ServerAccess { query: "&protocol=resp2", user: false })
    }

    /// As a user with all rights but these.
    fn without(rights: &[&str]) -> Self {
        let redis = Redis::start();
        let password = format!(">{PASSWORD}");
        let mut words = vec!["ACL", "SETUSER", "poor", "on", &password, "~*", "&*", "+@all"];
        words.extend(rights);
        assert_eq!(redis.command(&words), Value::Text("OK".into()));
        Self::new(redis, &ServerAccess { query: "", user: true })
    }

    fn new(redis: Redis, way: &ServerAccess) -> Self {
        let queue = Queue::of(Store::on(&redis));
        let user = if way.user { format!("poor:{PASSWORD}@") } else { String::new() };
        let url = format!("redis://{user}127.0.0.1:{}/0?prefix=dlock:{}", redis.port(), way.query);
        Self { _redis: redis, queue, url }
    }

    fn place(&self) -> &Place {
        &self.queue.store.place
    }

    fn run(&self) -> Dlock {
        // A password on the command line would cause a warning.
        let run = self.place().run().no_backend().env("DLOCK_BACKEND", &self.url);
        run.args(["--ttl", "20s", "--wait", "forever"])
    }

    /// Holds the lock, and then lets three waiters have it one after another.
    #[track_caller]
    fn serves_all(&self, what: &str) {
        let mut holder = self.queue.keeping(self.run(), "holder").spawn();
        holder.await_ready();
        let waiter = |name: &str| self.queue.joined(self.queue.keeping(self.run(), name));
        let mut waiters: Vec<Running> = ["a", "b", "c"].map(waiter).into();
        let mut before = "holder";
        for name in ["a", "b", "c"] {
            self.queue.let_go(before);
            let hand_off = self.queue.hand_off(before, name);
            println!("{what}: {before} to {name}: {} ms", hand_off.as_millis());
            assert!(hand_off <= BY_POLLING, "{what}: {before} to {name}: {hand_off:?}");
            before = name;
        }
        self.queue.let_go(before);
        assert_ran([&mut holder]);
        waiters.iter_mut().for_each(|waiter| assert_ran([waiter]));
        self.queue.assert_turns(&["holder", "a", "b", "c"]);
        self.queue.assert_nothing_left();
    }
}

#[test]
fn resp2_suffices_to_wait() {
    LimitedServer::old_protocol(&[]).serves_all("resp2");
}

/// Before Redis 6.
#[test]
fn a_server_without_hello_and_client_suffices_to_wait() {
    let redis = Redis::start_with_args(&["--rename-command", "HELLO", "", "--rename-command", "CLIENT", ""]);
    LimitedServer::new(redis, &ServerAccess { query: "", user: false }).serves_all("no hello");
}

/// F29
#[test]
fn without_the_right_to_subscribe_a_waiter_polls() {
    LimitedServer::without(&["-subscribe"]).serves_all("without SUBSCRIBE");
}

/// F29: the default rights of a user, from Redis 7 on.
#[test]
fn without_any_channel_a_waiter_polls() {
    LimitedServer::without(&["resetchannels"]).serves_all("without channels");
}

/// F29
#[test]
fn the_release_of_a_holder_without_the_right_to_publish_is_noticed() {
    LimitedServer::without(&["-publish"]).serves_all("without PUBLISH");
}

/// F29
#[test]
fn a_waiter_without_the_right_to_track_is_notified() {
    LimitedServer::without(&["-client|tracking"]).serves_all("without CLIENT TRACKING");
    LimitedServer::without(&["-client"]).serves_all("without CLIENT");
}

/// F29
#[test]
fn without_any_of_these_rights_a_waiter_polls() {
    LimitedServer::without(&["-client", "-subscribe", "-publish"]).serves_all("without all of them");
}

/// F29: waiters with and without pushes are in one queue.
#[test]
fn waiters_with_and_without_pushes_are_served_in_one_order() {
    let limited = LimitedServer::without(&["-subscribe", "-client"]);
    let (queue, old) = (&limited.queue, format!("{}&protocol=resp2", limited.queue.store.url()));
    let mut holder = queue.holder("holder");
    let mut runs: Vec<Running> = Vec::new();
    let names: Vec<String> = (0..9).map(|number| format!("w{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        let run = match number % 3 {
            0 => limited.run(),
            1 => queue.run(),
            _ => queue.run().backend(&old),
        };
        runs.push(queue.joined(queue.passing(run, name)));
    }
    queue.let_go("holder");
    assert_ran([&mut holder]);
    runs.iter_mut().for_each(|run| assert_ran([run]));
    let expected: Vec<&str> = std::iter::once("holder").chain(names.iter().map(String::as_str)).collect();
    queue.assert_turns(&expected);
    for pair in expected.windows(2) {
        let hand_off = queue.hand_off(pair[0], pair[1]);
        assert!(hand_off <= BY_POLLING, "{} to {}: {hand_off:?}", pair[0], pair[1]);
    }
    queue.assert_nothing_left();
}

//! Stores that cannot call those who wait, or may not: they ask every now and then, and are served all the same, long
//! before the lease ends.

use super::scene::{Line, assert_ran};
use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::redis::Redis;
use crate::support::resp::Value;
use crate::support::running::Running;
use crate::support::store::Store;
use std::time::Duration;

const PASSWORD: &str = "s3cret";
/// A poll that comes late on a busy machine.
const BY_POLLING: Duration = Duration::from_secs(5);

/// How those who wait reach the server.
struct Way {
    query: &'static str,
    user: bool,
}

/// A line of people who reach it in this way.
struct Poor {
    _redis: Redis,
    line: Line,
    url: String,
}

impl Poor {
    /// Of an old protocol.
    fn old_protocol(options: &[&str]) -> Self {
        Self::new(Redis::start_with_args(options), &Way { query: "&protocol=resp2", user: false })
    }

    /// Of a user who may do everything but this.
    fn without(rights: &[&str]) -> Self {
        let redis = Redis::start();
        let password = format!(">{PASSWORD}");
        let mut words = vec!["ACL", "SETUSER", "poor", "on", &password, "~*", "&*", "+@all"];
        words.extend(rights);
        assert_eq!(redis.command(&words), Value::Text("OK".into()));
        Self::new(redis, &Way { query: "", user: true })
    }

    fn new(redis: Redis, way: &Way) -> Self {
        let line = Line::of(Store::on(&redis));
        let user = if way.user { format!("poor:{PASSWORD}@") } else { String::new() };
        let url = format!("redis://{user}127.0.0.1:{}/0?prefix=dlock:{}", redis.port(), way.query);
        Self { _redis: redis, line, url }
    }

    fn place(&self) -> &Place {
        &self.line.store.place
    }

    fn run(&self) -> Dlock {
        // A password on the command line would be warned of.
        let run = self.place().run().no_backend().env("DLOCK_BACKEND", &self.url);
        run.args(["--ttl", "20s", "--wait", "forever"])
    }

    /// Holds, and then lets three have the lock one after another.
    #[track_caller]
    fn serves_all(&self, what: &str) {
        let mut holder = self.line.keeping(self.run(), "holder").spawn();
        holder.await_ready();
        let waiter = |name: &str| self.line.joined(self.line.keeping(self.run(), name));
        let mut waiters: Vec<Running> = ["a", "b", "c"].map(waiter).into();
        let mut before = "holder";
        for name in ["a", "b", "c"] {
            self.line.let_go(before);
            let hand_off = self.line.hand_off(before, name);
            println!("{what}: {before} to {name}: {} ms", hand_off.as_millis());
            assert!(hand_off <= BY_POLLING, "{what}: {before} to {name}: {hand_off:?}");
            before = name;
        }
        self.line.let_go(before);
        assert_ran([&mut holder]);
        waiters.iter_mut().for_each(|waiter| assert_ran([waiter]));
        self.line.assert_turns(&["holder", "a", "b", "c"]);
        self.line.assert_nothing_left();
    }
}

#[test]
fn the_old_protocol_is_good_enough_to_wait() {
    Poor::old_protocol(&[]).serves_all("resp2");
}

/// Before Redis 6.
#[test]
fn a_server_without_hello_and_client_is_good_enough_to_wait() {
    let redis = Redis::start_with_args(&["--rename-command", "HELLO", "", "--rename-command", "CLIENT", ""]);
    Poor::new(redis, &Way { query: "", user: false }).serves_all("no hello");
}

/// F29
#[test]
fn who_may_not_listen_polls() {
    Poor::without(&["-subscribe"]).serves_all("without SUBSCRIBE");
}

/// F29: as a user is by default, from Redis 7 on.
#[test]
fn who_may_not_use_any_channel_polls() {
    Poor::without(&["resetchannels"]).serves_all("without channels");
}

/// F29
#[test]
fn who_may_not_publish_is_followed_all_the_same() {
    Poor::without(&["-publish"]).serves_all("without PUBLISH");
}

/// F29
#[test]
fn who_may_not_track_is_called_all_the_same() {
    Poor::without(&["-client|tracking"]).serves_all("without CLIENT TRACKING");
    Poor::without(&["-client"]).serves_all("without CLIENT");
}

/// F29
#[test]
fn who_may_not_do_anything_of_it_polls() {
    Poor::without(&["-client", "-subscribe", "-publish"]).serves_all("without all of them");
}

/// F29: those who hear and those who do not stand in one line.
#[test]
fn the_deaf_and_the_others_are_served_in_one_order() {
    let poor = Poor::without(&["-subscribe", "-client"]);
    let (line, old) = (&poor.line, format!("{}&protocol=resp2", poor.line.store.url()));
    let mut holder = line.holder("holder");
    let mut runs: Vec<Running> = Vec::new();
    let names: Vec<String> = (0..9).map(|number| format!("w{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        let run = match number % 3 {
            0 => poor.run(),
            1 => line.run(),
            _ => line.run().backend(&old),
        };
        runs.push(line.joined(line.passing(run, name)));
    }
    line.let_go("holder");
    assert_ran([&mut holder]);
    runs.iter_mut().for_each(|run| assert_ran([run]));
    let expected: Vec<&str> = std::iter::once("holder").chain(names.iter().map(String::as_str)).collect();
    line.assert_turns(&expected);
    for pair in expected.windows(2) {
        let hand_off = line.hand_off(pair[0], pair[1]);
        assert!(hand_off <= BY_POLLING, "{} to {}: {hand_off:?}", pair[0], pair[1]);
    }
    line.assert_nothing_left();
}

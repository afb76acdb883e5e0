//! F53: locks with thousands of members. What a step costs the server is counted in the commands that its script calls,
//! which no other load on the machine changes.

use crate::support::SOON;
use crate::support::place::Place;
use crate::support::proxy::Proxy;
use crate::support::redis::{Connection, Redis, await_renewal};
use crate::support::resp::Value;
use crate::support::running::Exit;
use crate::support::wait::until;
use serde_json::json;
use std::process::Stdio;
use std::time::Duration;

const FEW: usize = 10;
const MANY: usize = 5_000;
/// How many steps of a kind are measured.
const STEPS: usize = 20;
/// Lease of members that do not expire while a test runs, in ms.
const LONG: u64 = 3_600_000;

/// Members of the lock `x`, each of which sends the requests of a `dlock run` with the same options.
struct Crowd {
    client: Connection,
    /// The digests of the scripts for claims, and for holds.
    digests: [String; 2],
    lock: String,
    /// A claim, as a dlock has sent it.
    claim: serde_json::Value,
}

impl Crowd {
    /// With these options; one real run goes first and shows its requests.
    fn of(redis: &Redis, options: &[&str]) -> Self {
        let proxy = Proxy::to(redis.port());
        let mut client = redis.connect();
        client.command(&["SCRIPT", "FLUSH"]);
        let run = Place::new().run().backend(format!("redis://127.0.0.1:{}/0", proxy.port())).args(options);
        assert_eq!(run.command(["true"]).output().exit, Exit::Code(0));
        let sent: Vec<Vec<String>> = proxy.flights().into_iter().flat_map(|flight| flight.commands).collect();
        let texts: Vec<&Vec<String>> = sent.iter().filter(|words| words[0] == "EVAL").collect();
        let [words, release] = texts[..] else { panic!("the texts of two scripts: {sent:?}") };
        assert!(release[4].contains("\"operation\":\"release\""), "{}", release[4]);
        let digests = [words, release].map(|words| client.command(&["SCRIPT", "LOAD", &words[1]]).text());
        let mut claim: serde_json::Value = serde_json::from_str(&words[4]).expect("a request");
        assert_eq!(claim["operation"], "acquire");
        // Everything about the server is known by now.
        claim["eviction"] = json!(false);
        Self { client, digests, lock: words[3].clone(), claim }
    }

    /// Sends a claim with these changes.
    fn ask(&mut self, member: usize, changes: serde_json::Value) -> serde_json::Value {
        let mut request = self.claim.clone();
        request["token"] = json!(format!("{member:032}"));
        for (field, value) in changes.as_object().expect("fields") {
            request[field] = value.clone();
        }
        let digest = &self.digests[usize::from(request["operation"] != "acquire")];
        let words = ["EVALSHA", digest, "1", &self.lock, &request.to_string()];
        match self.client.command(&words) {
            Value::Text(reply) => serde_json::from_str(&reply).expect("a reply"),
            other => panic!("{other:?} to {words:?}"),
        }
    }

    /// A claim with this lease, by one that waits in the queue or not.
    fn claim(&mut self, member: usize, lease: u64, waits: bool) -> serde_json::Value {
        self.ask(member, json!({"lease": lease, "waits": waits, "entry_ttl": lease}))
    }

    /// A claim that is granted.
    fn join(&mut self, member: usize, lease: u64) {
        let reply = self.claim(member, lease, false);
        assert_eq!(reply["outcome"], "granted", "{reply:?}");
    }

    fn renew(&mut self, member: usize) {
        let reply = self.ask(member, json!({"operation": "renew", "lease": LONG}));
        assert_eq!(reply["outcome"], "renewed", "{reply:?}");
    }

    fn leave(&mut self, member: usize) -> serde_json::Value {
        self.ask(member, json!({"operation": "release", "rest": 0}))["outcome"].take()
    }

    /// How many commands the server carries out for each of some steps.
    fn cost(&mut self, what: &str, mut step: impl FnMut(&mut Self, usize)) -> Cost {
        self.client.command(&["CONFIG", "RESETSTAT"]);
        for index in 0..STEPS {
            step(self, index);
        }
        let calls = calls(&mut self.client);
        for (name, _) in &calls {
            let reads_all = ["hgetall", "hkeys", "hvals", "hscan", "zscan", "zrangebyscore"];
            assert!(!reads_all.contains(&name.as_str()), "{what}: {calls:?}");
        }
        Cost { what: what.to_owned(), commands: calls.iter().map(|(_, calls)| calls).sum(), calls }
    }

    /// The cost of each kind of step while this many members hold the lock.
    fn costs(&mut self, members: usize) -> Vec<Cost> {
        for member in 0..members {
            self.join(member, LONG);
        }
        let new = |index: usize| 100_000 + index;
        vec![
            self.cost("a claim", |crowd, index| crowd.join(new(index), LONG)),
            self.cost("a renewal", |crowd, index| crowd.renew(new(index))),
            self.cost("a claim whose answer was lost", |crowd, index| crowd.join(new(index), LONG)),
            self.cost("a leave", |crowd, index| assert_eq!(crowd.leave(new(index)), "released")),
            self.cost("an exclusive claim", |crowd, index| {
                let reply = crowd.ask(new(index), json!({"mode": "x", "lease": LONG}));
                assert_eq!((&reply["outcome"], &reply["holders"]), (&json!("busy"), &json!(members)));
            }),
        ]
    }
}

/// The cost of some steps of a kind.
#[derive(Debug)]
struct Cost {
    what: String,
    commands: u64,
    calls: Vec<(String, u64)>,
}

/// How often each command was called since the statistics were reset, also by scripts.
fn calls(client: &mut Connection) -> Vec<(String, u64)> {
    let info = client.command(&["INFO", "commandstats"]).text();
    let call = |line: &str| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
    };
    info.lines().filter_map(call).filter(|(name, _)| !name.starts_with("config")).collect()
}

/// Asserts that each step costs about the same.
#[track_caller]
fn assert_flat(few: &[Cost], many: &[Cost]) {
    for (few, many) in few.iter().zip(many) {
        let what = &few.what;
        assert!(
            many.commands * 2 <= few.commands * 3,
            "{what}: {:?} with few members, {:?} with many",
            few.calls,
            many.calls
        );
    }
}

/// Five thousand members cost as much as ten; and they neither prevent a real run from sharing the lock nor make
/// another lock lose its lease.
fn is_flat(options: &[&str]) {
    let few = Crowd::of(&Redis::start(), options).costs(FEW);
    let redis = Redis::start();
    let place = Place::new();
    let mut crowd = Crowd::of(&redis, options);
    let other = place.run().no_name().backend(redis.url()).args(["--ttl", "1s", "other"]);
    let mut other = other.stdin(Stdio::piped()).sh("echo ready; exec cat").spawn();
    other.await_ready();
    assert_flat(&few, &crowd.costs(MANY));
    let run = place.run().backend(redis.url()).args(options).sh("echo ran").output();
    assert_eq!(run.outcome(), (Exit::Code(0), "ran\n", ""));
    for member in 0..MANY {
        assert_eq!(crowd.leave(member), "released");
    }
    assert_eq!(redis.command(&["EXISTS", "dlock:x"]), Value::Int(0), "the last one has freed it");
    await_renewal(|| redis.command(&["PTTL", "dlock:other"]).int());
    drop(other.take_stdin());
    assert_eq!(other.wait().outcome(), (Exit::Code(0), "ready\n", ""));
}

/// F53
#[test]
fn five_thousand_readers_cost_as_much_as_ten() {
    is_flat(&["--shared"]);
}

/// F53
#[test]
fn five_thousand_slots_cost_as_much_as_ten() {
    is_flat(&["--slots", "6000"]);
}

/// F53: readers that wait for a writer are granted the lock one after another.
#[test]
fn five_thousand_waiting_readers_cost_as_much_as_a_hundred() {
    let cost = |waiters: usize| {
        let redis = Redis::start();
        let mut crowd = Crowd::of(&redis, &["--shared"]);
        redis.command(&["SET", "dlock:x", "foreign"]);
        for waiter in 0..waiters {
            assert_eq!(crowd.claim(waiter, LONG, true)["outcome"], "busy");
        }
        redis.command(&["DEL", "dlock:x"]);
        crowd.client.command(&["CONFIG", "RESETSTAT"]);
        for waiter in 0..waiters {
            let reply = crowd.claim(waiter, LONG, true);
            assert_eq!(reply["outcome"], "granted", "{waiter}: {reply:?}");
        }
        calls(&mut crowd.client).iter().map(|(_, calls)| calls).sum::<u64>() / waiters as u64
    };
    let (few, many) = (cost(100), cost(MANY));
    assert!(many * 2 <= few * 3, "{few} and {many} commands for each");
}

/// F53: many members that expire at the same time are removed in several steps, and delay no waiter.
#[test]
fn expired_members_are_removed_in_several_steps() {
    let redis = Redis::start();
    let mut crowd = Crowd::of(&redis, &["--slots", "6000"]);
    crowd.join(MANY, LONG);
    for member in 0..MANY {
        crowd.join(member, 30_000);
    }
    // As if the server had been stopped for that time.
    for member in 0..MANY {
        let token = format!("{member:032}");
        redis.command(&["DEL", &format!("dlock#member:{{dlock:x}}:{token}")]);
        redis.command(&["ZADD", "dlock#member-ends:{dlock:x}", "1", &token]);
    }
    let mut most = 0;
    until(SOON, "a lock that has forgotten its expired members", || {
        crowd.client.command(&["CONFIG", "RESETSTAT"]);
        crowd.join(100_000, LONG);
        assert_eq!(crowd.leave(100_000), "released");
        most = most.max(calls(&mut crowd.client).iter().map(|(_, calls)| calls).sum());
        redis.command(&["ZCARD", "dlock#member-ends:{dlock:x}"]) == Value::Int(1)
    });
    assert!(most <= 5_000, "{most} commands in one step");
    assert_eq!(crowd.claim(100_000, LONG, false)["slot"], 1, "slot 0 has a living owner");
}

/// F53: a crowd that has expired completely delays no waiter.
#[test]
fn a_lock_whose_members_have_all_expired_is_acquired_at_once() {
    let redis = Redis::start();
    let mut crowd = Crowd::of(&redis, &["--shared"]);
    for member in 0..1_000 {
        crowd.join(member, 2_000);
    }
    let ended = |member: usize| {
        redis.command(&["EXISTS", &format!("dlock#member:{{dlock:x}}:{member:032}")]) == Value::Int(0)
    };
    until(SOON, "the end of the leases", || ended(0) && ended(999));
    redis.command(&["PEXPIRE", "dlock:x", "600000"]);
    let place = Place::new();
    let run = place.run().backend(redis.url()).sh("echo ran").output();
    assert_eq!(run.outcome(), (Exit::Code(0), "ran\n", ""));
}

/// A different slot count is refused by comparing it with one of the waiters.
#[test]
fn a_different_slot_count_is_refused_without_reading_the_queue() {
    let cost = |waiters: usize| {
        let redis = Redis::start();
        let mut crowd = Crowd::of(&redis, &["--slots", "4"]);
        redis.command(&["SET", "dlock:x", "foreign"]);
        for waiter in 0..waiters {
            crowd.claim(waiter, LONG, true);
        }
        let place = Place::new();
        let run = place.run().backend(redis.url()).args(["--slots", "5"]).command(["true"]);
        let output = run.output();
        assert_eq!(output.exit, Exit::Code(64), "{}", output.stderr);
        crowd.claim["slots"] = json!(5);
        let cost = crowd.cost("a refusal", |crowd, index| {
            let reply = crowd.claim(200_000 + index, LONG, true);
            assert_eq!(reply, json!({"outcome": "other_slots", "slots": 4}));
        });
        crowd.claim["slots"] = json!(4);
        for waiter in 0..waiters {
            crowd.leave(waiter);
        }
        crowd.claim["slots"] = json!(5);
        assert_eq!(crowd.claim(0, LONG, true)["outcome"], "busy", "no waiter wants four any more");
        cost
    };
    assert_flat(&[cost(FEW)], &[cost(MANY)]);
}

/// Reading 100 MB would stop the server, and every lease on it, for half a second.
#[test]
fn a_large_foreign_value_is_not_read() {
    let redis = Redis::start();
    let place = Place::new();
    let mut client = redis.connect();
    let run = || place.run().backend(redis.url()).command(["true"]).output();
    assert_eq!(run().exit, Exit::Code(0));
    client.command(&["SETRANGE", "dlock:x", "104857600", "x"]);
    client.command(&["CONFIG", "RESETSTAT"]);
    let output = run();
    assert_eq!(output.exit, Exit::Code(75), "{}", output.stderr);
    let calls = calls(&mut client);
    // That of a freeze, which there is not; a small value would be read as well.
    let reads: Vec<_> = calls.iter().filter(|(name, _)| name == "get").map(|(_, times)| *times).collect();
    assert_eq!(reads, [1], "{calls:?}");
}

/// One at the head may be called at any moment; one at the end has to wait for all others first.
#[test]
fn waiters_without_pushes_poll_less_often_further_back() {
    let redis = Redis::start_with_args(&["--rename-command", "SUBSCRIBE", ""]);
    let place = Place::new();
    redis.command(&["SET", "dlock:x", "foreign"]);
    let queue = "dlock#queue:{dlock:x}";
    let mut waiters = Vec::new();
    for waiter in 1..=6 {
        let run = place.run().backend(redis.url()).args(["--wait", "forever"]);
        waiters.push(run.sh("echo ran").spawn());
        until(SOON, "a waiter in the queue", || redis.command(&["ZCARD", queue]) == Value::Int(waiter));
    }
    let queue = redis.command(&["ZRANGE", queue, "0", "-1"]).texts();
    let monitor = crate::support::monitor::Monitor::of(&redis);
    let mut asked = (0, 0);
    until(SOON * 2, "questions of the first waiter", || {
        std::thread::sleep(Duration::from_millis(200));
        let requests = monitor.requests();
        let of = |token: &str| requests.iter().filter(|request| request.token() == Some(token)).count();
        asked = (of(&queue[0]), of(&queue[5]));
        asked.0 >= 40
    });
    assert!(asked.1 > 0 && asked.1 * 2 <= asked.0, "{asked:?}");
    redis.command(&["DEL", "dlock:x"]);
    for mut waiter in waiters {
        let output = waiter.wait();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", output.stderr);
    }
}

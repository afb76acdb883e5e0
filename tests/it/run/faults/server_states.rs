//! A server that replies, but cannot serve: named, waited for, and never mistaken for contention.

use super::fixture::Fixture;
use crate::admin::doctor::{Findings, doctor};
use crate::support::SOON;
use crate::support::fake::Fake;
use crate::support::place::Place;
use crate::support::redis::{Connection, Redis};
use crate::support::resp::{self, Value};
use crate::support::running::Exit;
use crate::support::server::free_port;
use crate::support::wait::{eventually, until};

/// A state that a server can be put into and taken out of.
#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Readonly,
    Masterdown,
    Busy,
    Misconf,
    Noreplicas,
    Clusterdown,
}

use State::{Busy, Clusterdown, Masterdown, Misconf, Noreplicas, Readonly};

impl State {
    /// The server's error reply in it.
    fn code(self) -> String {
        format!("{self:?}").to_uppercase()
    }

    fn server(self) -> Redis {
        if self != Clusterdown {
            return Redis::start_with_args(&["--busy-reply-threshold", "1", "--dbfilename", "taken"]);
        }
        let bus = free_port().to_string();
        let redis = Redis::start_with_args(&["--cluster-enabled", "yes", "--cluster-port", &bus]);
        self.leave(&redis);
        redis
    }

    fn enter(self, redis: &Redis) {
        let ok = |words: &[&str]| assert_eq!(redis.command(words), Value::Text("OK".into()), "{words:?}");
        match self {
            Readonly => ok(&["REPLICAOF", "127.0.0.1", "1"]),
            Masterdown => {
                ok(&["CONFIG", "SET", "replica-serve-stale-data", "no"]);
                ok(&["REPLICAOF", "127.0.0.1", "1"]);
            }
            Busy => {
                let port = redis.port();
                std::thread::spawn(move || {
                    Connection::to(port)
                        .and_then(|mut client| client.try_command(&["EVAL", "while true do end", "0"]))
                });
            }
            Misconf => {
                ok(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "yes"]);
                ok(&["CONFIG", "SET", "save", "3600 1"]);
                // A directory cannot be replaced by the file to be written.
                let directory = redis.command(&["CONFIG", "GET", "dir"]).texts().remove(1);
                std::fs::create_dir_all(format!("{directory}/taken/full")).unwrap();
                redis.command(&["BGSAVE"]);
            }
            Noreplicas => ok(&["CONFIG", "SET", "min-replicas-to-write", "1"]),
            Clusterdown => ok(&["CLUSTER", "DELSLOTSRANGE", "0", "1"]),
        }
        until(SOON, &self.code(), || self.is_entered(redis));
    }

    fn is_entered(self, redis: &Redis) -> bool {
        let words: &[&str] = match self {
            Busy => &["PING"],
            // Before that, a write is refused for another reason.
            Masterdown => &["GET", "state"],
            _ => &["SET", "state", "entered"],
        };
        matches!(redis.command(words), Value::Error(text) if text.starts_with(&self.code()))
    }

    fn leave(self, redis: &Redis) {
        let set = |name: &str, value: &str| drop(redis.command(&["CONFIG", "SET", name, value]));
        match self {
            Readonly => drop(redis.command(&["REPLICAOF", "NO", "ONE"])),
            Masterdown => {
                redis.command(&["REPLICAOF", "NO", "ONE"]);
                set("replica-serve-stale-data", "yes");
            }
            Busy => drop(redis.command(&["SCRIPT", "KILL"])),
            Misconf => set("stop-writes-on-bgsave-error", "no"),
            Noreplicas => set("min-replicas-to-write", "0"),
            Clusterdown => drop(redis.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"])),
        }
        if self == Clusterdown {
            redis.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "1"]);
        }
        until(SOON, "a server that serves", || {
            redis.command(&["SET", "state", "left"]) == Value::Text("OK".into())
        });
    }
}

/// F27
fn is_named(state: State) {
    let redis = state.server();
    state.enter(&redis);
    let output = Fixture::on(&redis).direct().sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""), "{}", output.stderr);
    assert!(output.stderr.contains(&state.code()), "{}", output.stderr);
    assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
    let found = Findings::of(doctor(&Place::new(), &redis.url()));
    let is_meant = |finding: &&serde_json::Value| {
        let found = finding["found"].as_str().unwrap();
        finding["level"] == "problem" && (found.contains(&state.code()) || found.starts_with("a replica of "))
    };
    let finding = found.all().iter().find(is_meant).unwrap_or_else(|| panic!("{found:?}"));
    let remedy = finding["remedy"].as_str().unwrap();
    for shrug in ["what the server says", "is a Redis server that listens"] {
        assert!(!remedy.contains(shrug), "{finding}");
    }
    state.leave(&redis);
    Fixture::on(&redis).assert_succession();
}

/// F27
fn is_waited_out(state: State) {
    let redis = state.server();
    let fixture = Fixture::on(&redis);
    state.enter(&redis);
    let mut run = fixture.run().args(["--wait", "forever"]).sh("echo ran; exit 3").spawn();
    until(SOON, "two attempts", || {
        fixture.leases().iter().filter(|flight| flight.answered.is_some()).count() >= 2
    });
    state.leave(&redis);
    assert_eq!(run.wait().outcome(), (Exit::Code(3), "ran\n", ""));
    assert!(!fixture.is_held());
}

/// F27
fn is_survived_when_it_is_short(state: State) {
    let redis = state.server();
    let fixture = Fixture::on(&redis).ttl(9);
    let run = fixture.witness();
    fixture.await_renewals(1);
    state.enter(&redis);
    let before = fixture.leases().len();
    eventually(SOON, "a renewal in that state", || fixture.leases().get(before)?.answered);
    state.leave(&redis);
    fixture.await_renewals(2);
    fixture.assert_survived(run);
}

macro_rules! each_state {
    ($($name:ident: $state:expr;)+) => { $( mod $name {
        #[allow(unused_imports)]
        use super::*;

        #[test]
        fn is_named() {
            super::is_named($state);
        }

        #[test]
        fn is_waited_out() {
            super::is_waited_out($state);
        }

        #[test]
        fn is_survived_when_it_is_short() {
            super::is_survived_when_it_is_short($state);
        }
    } )+ };
}

each_state! {
    a_replica_that_may_only_be_read: Readonly;
    a_replica_without_its_master: Masterdown;
    a_server_that_runs_a_long_script: Busy;
    a_server_that_cannot_save: Misconf;
    a_master_without_replicas: Noreplicas;
    a_cluster_that_is_down: Clusterdown;
}

/// F27, F05: permanently in that state.
#[track_caller]
fn ends_the_command_in_time(state: State) {
    let redis = state.server();
    let fixture = Fixture::on(&redis);
    let run = fixture.ticker();
    fixture.await_renewals(1);
    state.enter(&redis);
    // Requests sent from here on are not renewals.
    let good = fixture.last_replied();
    let output = fixture.assert_killed_in_time_after(run, &good);
    assert!(output.stderr.contains(&state.code()), "the reason: {}", output.stderr);
}

/// F27
#[test]
fn a_server_that_becomes_a_replica_ends_the_command_in_time() {
    ends_the_command_in_time(Readonly);
}

/// F27
#[test]
fn a_server_stuck_in_a_script_ends_the_command_in_time() {
    ends_the_command_in_time(Busy);
}

/// F27
#[test]
fn a_server_that_lost_its_replicas_ends_the_command_in_time() {
    ends_the_command_in_time(Noreplicas);
}

/// F27
#[test]
fn a_server_that_is_still_loading_is_named_and_waited_out() {
    let mut redis = Redis::start_with_args(&["--rdbcompression", "no"]);
    let fill = "for i = 1, 400 do redis.call('SET', 'key' .. i, string.rep('x', 1024)) end";
    redis.command(&["EVAL", fill, "0"]);
    assert_eq!(redis.command(&["SAVE"]), Value::Text("OK".into()));
    // A fifth of a second for each key, until that is ended.
    redis.restart_slowly(&["--key-load-delay", "200000", "--loading-process-events-interval-bytes", "1024"]);
    let fixture = Fixture::on(&redis);
    let output = fixture.direct().sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""), "{}", output.stderr);
    assert!(output.stderr.contains("LOADING"), "{}", output.stderr);
    let rejected = || redis.command(&["INFO", "errorstats"]).text();
    let before = rejected();
    let mut run = fixture.direct().args(["--wait", "forever"]).sh("echo ran; exit 3").spawn();
    until(SOON, "a request that is rejected", || rejected() != before);
    redis.command(&["CONFIG", "SET", "key-load-delay", "0"]);
    assert_eq!(run.wait().outcome(), (Exit::Code(3), "ran\n", ""));
}

/// F27
#[test]
fn a_migrating_slot_is_named_and_tried_again() {
    // TRYAGAIN takes two nodes of a cluster; the error reply is sufficient here.
    let fake = Fake::scripted(|words| {
        Some(match words[0].as_str() {
            "EVAL" | "EVALSHA" => b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n".to_vec(),
            "HELLO" => [b"%1\r\n".to_vec(), resp::bulk("server"), resp::bulk("redis")].concat(),
            _ => b"+OK\r\n".to_vec(),
        })
    });
    let run = || Place::new().run().backend(format!("redis://127.0.0.1:{}/0", fake.port())).sh("echo ran");
    let output = run().output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""), "{}", output.stderr);
    assert!(output.stderr.contains("TRYAGAIN"), "{}", output.stderr);
    let claims = || fake.commands().iter().filter(|words| words[0].starts_with("EVAL")).count();
    let before = claims();
    // The pauses between attempts are random.
    let mut run = run().args(["--retry", "1h"]).spawn();
    until(SOON, "three attempts", || claims() > before + 2);
    run.assert_running();
    assert_eq!(run.stdout(), "");
}

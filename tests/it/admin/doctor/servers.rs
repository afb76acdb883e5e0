//! Servers in states that endanger locks, and the level of each.

use super::{Findings, doctor};
use crate::run::faults::shim::{Clocks, HOUR};
use crate::support::SOON;
use crate::support::doctor::assert_run_agrees;
use crate::support::fake::Fake;
use crate::support::place::Place;
use crate::support::redis::{Connection, Options, Redis};
use crate::support::resp::Value;
use crate::support::server::{self, free_port, server};
use crate::support::tls::Flaw;
use crate::support::wait::until;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

fn findings(redis: &Redis) -> Findings {
    Findings::of(doctor(&Place::new(), &redis.url()))
}

#[track_caller]
fn set(redis: &Redis, name: &str, value: &str) {
    assert_eq!(redis.command(&["CONFIG", "SET", name, value]), Value::Text("OK".into()), "{name} {value}");
}

/// F32: volatile policies as well; without a limit nothing is evicted yet.
#[test]
fn an_evicting_server_is_a_problem() {
    let redis = Redis::start();
    for policy in ["allkeys-lru", "allkeys-random", "volatile-lru", "volatile-ttl"] {
        set(&redis, "maxmemory-policy", policy);
        set(&redis, "maxmemory", "100mb");
        let found = findings(&redis);
        assert_eq!(found.only("eviction", "problem"), format!("maxmemory-policy {policy} at 100 MiB"));
        assert_eq!(found.at("problem"), ["eviction"]);
        set(&redis, "maxmemory", "0");
        let found = findings(&redis);
        assert!(found.only("eviction", "warning").contains("without a limit"), "{found:?}");
        assert_eq!(found.at("problem"), [""; 0]);
    }
}

/// `accept` is for `run`, which would print the warning each time.
#[test]
fn accepted_warnings_are_still_reported() {
    let place = Place::new();
    let args = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru", "--requirepass", "s3cret"];
    let redis = Redis::start_with(Options {
        args: args.map(str::to_owned).to_vec(),
        tls: Some(Flaw::None),
        ..Options::default()
    });
    let password = place.write("password", "s3cret\n");
    std::fs::set_permissions(&password, Permissions::from_mode(0o444)).unwrap();
    let file = place.write(
        "config.toml",
        &format!(
            "backend = \"p\"\n[backends.p]\nurl = \"rediss://127.0.0.1:{}/0\"\ninsecure = true\n\
             password_file = \"{}\"\naccept = [\"eviction\", \"insecure\"]\n",
            redis.port(),
            password.display()
        ),
    );
    let found = Findings::of(place.bare().arg("doctor").env("DLOCK_CONFIG", file));
    found.only("eviction", "problem");
    found.only("tls", "warning");
    found.only("password file", "warning");
}

/// F31
#[test]
fn a_full_or_nearly_full_server_is_reported() {
    let redis = Redis::start();
    set(&redis, "maxmemory", "1gb");
    assert!(findings(&redis).only("memory", "ok").ends_with("% of 1.0 GiB used"));
    let info = redis.command(&["INFO", "memory"]).text();
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
    let used: u64 = used.trim().parse().unwrap();
    set(&redis, "maxmemory", &(used + used / 18).to_string());
    let found = findings(&redis);
    assert!(found.only("memory", "warning").contains("% of "), "{found:?}");
    set(&redis, "maxmemory", "1000");
    let found = findings(&redis);
    assert!(found.only("writing", "problem").starts_with("the server refuses: OOM "), "{found:?}");
    assert_eq!(found.check("lock").len(), 0);
}

/// F26: what a restart loses, from nothing to everything.
#[test]
fn a_server_without_persistence_is_a_warning() {
    let redis = Redis::start();
    let persistence = || {
        let found = findings(&redis);
        (found.check("persistence")[0]["level"].clone(), found.check("persistence")[0]["found"].clone())
    };
    assert_eq!(persistence(), ("warning".into(), "nothing is written to disk".into()));
    set(&redis, "save", "3600 1");
    assert_eq!(persistence(), ("warning".into(), "snapshots only".into()));
    set(&redis, "appendonly", "yes");
    set(&redis, "appendfsync", "everysec");
    assert_eq!(persistence().0, "ok");
    set(&redis, "appendfsync", "no");
    assert_eq!(persistence().0, "warning");
}

/// F27: the disk of the server is full.
#[test]
fn a_server_that_cannot_save_is_a_problem() {
    let redis = Redis::start_with_args(&["--dbfilename", "taken"]);
    set(&redis, "save", "3600 1");
    // A directory cannot be replaced by the file to be written.
    let directory = redis.command(&["CONFIG", "GET", "dir"]).texts().remove(1);
    std::fs::create_dir_all(format!("{directory}/taken/full")).unwrap();
    redis.command(&["BGSAVE"]);
    until(
        SOON,
        "a snapshot that failed",
        || matches!(redis.command(&["SET", "x", "y"]), Value::Error(text) if text.starts_with("MISCONF")),
    );
    let found = findings(&redis);
    assert_eq!(found.only("persistence", "problem"), "the last snapshot failed");
    assert!(found.only("writing", "problem").contains("MISCONF"));
}

/// F27
#[test]
fn a_replica_is_a_problem_and_names_its_master() {
    let (master, replica) = (Redis::start(), Redis::start());
    let port = master.port().to_string();
    replica.command(&["REPLICAOF", "127.0.0.1", &port]);
    until(SOON, "a replica that is up", || {
        replica.command(&["INFO", "replication"]).text().contains("master_link_status:up")
    });
    let found = findings(&replica);
    assert_eq!(found.only("role", "problem"), format!("a replica of 127.0.0.1:{port}"));
    assert_eq!(found.check("role")[0]["remedy"], format!("name the master, 127.0.0.1:{port}"));
    assert_run_agrees(&replica.url(), "role", 69, "name the master");
    assert_eq!(found.at("problem"), ["role"]);
    // Its master may lose writes that the replica does not have yet.
    let found = findings(&master);
    assert_eq!(found.only("role", "warning"), "a master with 1 replica");
    set(&master, "min-replicas-to-write", "1");
    until(SOON, "a replica that has said so", || {
        master.command(&["SET", "x", "y"]) == Value::Text("OK".into())
    });
    assert_eq!(
        findings(&master).only("role", "warning"),
        "a master with 1 replica, at least 1 of them in sync when it writes"
    );
    drop(replica);
    until(SOON, "a lost replica", || {
        master.command(&["INFO", "replication"]).text().contains("connected_slaves:0")
    });
    assert!(findings(&master).only("writing", "problem").contains("NOREPLICAS"));
}

/// F27
#[test]
fn a_replica_without_a_master_is_reported_as_a_replica() {
    let redis = Redis::start();
    set(&redis, "replica-serve-stale-data", "no");
    redis.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let found = findings(&redis);
    assert_eq!(found.only("role", "problem"), "a replica of 127.0.0.1:1");
}

/// F27
#[test]
fn a_server_that_is_busy_with_a_script_is_a_problem() {
    let redis = Redis::start_with_args(&["--busy-reply-threshold", "1"]);
    let port = redis.port();
    let busy = std::thread::spawn(move || {
        Connection::to(port).and_then(|mut client| client.try_command(&["EVAL", "while true do end", "0"]))
    });
    until(
        SOON,
        "a busy server",
        || matches!(redis.command(&["PING"]), Value::Error(text) if text.starts_with("BUSY")),
    );
    let found = findings(&redis);
    assert!(found.only("information", "warning").starts_with("BUSY "), "{found:?}");
    assert!(found.only("writing", "problem").contains("BUSY"), "{found:?}");
    redis.command(&["SCRIPT", "KILL"]);
    let _ = busy.join();
}

/// F28
#[test]
fn a_node_of_a_cluster_is_a_problem() {
    let bus = free_port().to_string();
    let redis = Redis::start_with_args(&["--cluster-enabled", "yes", "--cluster-port", &bus]);
    let found = findings(&redis);
    assert_eq!(found.only("cluster", "problem"), "the server is a node of a Redis Cluster");
    assert!(found.only("writing", "problem").contains("CLUSTERDOWN"), "{found:?}");
}

#[test]
fn a_sentinel_is_a_problem() {
    let (place, port) = (Place::new(), free_port());
    let file = place.write("sentinel.conf", &format!("bind 127.0.0.1\nport {port}\n"));
    let mut command = server("redis-server", "redis-server");
    command.arg(file).args(["--sentinel", "--dir"]).arg(place.path(".")).stdout(Stdio::null());
    let mut sentinel = server::start(command);
    until(SOON, "a Sentinel", || Connection::to(port).is_ok());
    let found = Findings::of(doctor(&place, &format!("redis://127.0.0.1:{port}/0")));
    assert_eq!(found.only("role", "problem"), "a Sentinel");
    assert_eq!(found.at("problem"), ["role"]);
    assert_run_agrees(&format!("redis://127.0.0.1:{port}/0"), "role", 78, "name the server that it monitors");
    sentinel.kill().unwrap();
    sentinel.wait().unwrap();
}

#[test]
fn connections_that_are_closed_soon_are_a_warning() {
    let redis = Redis::start();
    for (timeout, level) in [("0", "ok"), ("10", "warning"), ("300", "ok")] {
        set(&redis, "timeout", timeout);
        findings(&redis).only("idle", level);
    }
}

/// F20, F21
#[test]
fn a_skewed_clock_is_a_warning_and_an_hour_is_a_problem() {
    let place = Place::new();
    let clocks = Clocks::new(&place);
    let redis = Redis::start_preloaded(&clocks.variables());
    for (seconds, level, words) in [
        (0, "ok", "this host's"),
        (5, "warning", "s ahead of this host's"),
        (-60, "warning", " behind this host's"),
        (2 * HOUR, "problem", " ahead of this host's"),
        (-2 * HOUR, "problem", " behind this host's"),
    ] {
        clocks.set_wall(seconds);
        // The server reads its clock only now and then.
        until(SOON, "a server that has seen its clock", || {
            let found = Findings::read(&doctor(&place, &redis.url()).arg("--json").output());
            found.check("clock")[0]["level"] == level
                && found.check("clock")[0]["found"].as_str().is_some_and(|text| text.contains(words))
        });
    }
}

/// Each ping is a step, so that all of them together may take longer than a step may.
#[test]
fn a_slow_server_needs_a_longer_lease() {
    let pings = AtomicU32::new(0);
    let slow = Fake::scripted(move |words| {
        if words[0] == "PING" && pings.fetch_add(1, Ordering::Relaxed) < 11 {
            std::thread::sleep(Duration::from_millis(350));
        }
        Some(match words[0].as_str() {
            "HELLO" => b"%1\r\n+server\r\n+redis\r\n".to_vec(),
            _ => b"-ERR\r\n".to_vec(),
        })
    });
    let url = format!("redis://127.0.0.1:{}/0", slow.port());
    let found = Findings::of(doctor(&Place::new(), &url).args(["--connect-timeout", "3s"]));
    found.only("latency", "warning");
    assert!(found.recommended_ttl_ms().is_some_and(|ms| ms >= 35_000), "{found:?}");
}

/// Two servers behind one name.
#[test]
fn two_servers_behind_one_address_are_a_problem() {
    let (one, other) = (Redis::start(), Redis::start());
    let balancer = crate::admin::doctor::protocol::balancer(&[one.port(), other.port()]);
    let found = Findings::of(doctor(&Place::new(), &format!("redis://127.0.0.1:{balancer}/0")));
    assert_eq!(found.only("one server", "problem"), "two connections have reached two servers");
    assert_eq!(found.answer("one_server"), ("no", "two connections have reached two servers"));
    // Each grants the lock to one of its clients.
    let raced = found.only("race", "problem");
    assert_eq!(raced, "20 of 20 races of 8 connections for a free lock had several winners");
    assert_eq!(found.answer("atomic_grant"), ("no", raced));
}

/// A proxy that distributes the requests of a session among its own, or shares one of its own among all clients.
#[test]
fn a_proxy_that_shares_sessions_is_a_problem() {
    for (session, expected) in [
        (None, "two requests of one connection have reached two sessions"),
        (Some(7), "two connections have reached the same session"),
    ] {
        let requests = AtomicU32::new(0);
        let session = move || session.unwrap_or_else(|| requests.fetch_add(1, Ordering::Relaxed));
        let proxy = Fake::scripted(move |words| {
            Some(match words[0].as_str() {
                "HELLO" => format!("%2\r\n+server\r\n+redis\r\n+id\r\n:{}\r\n", session()).into_bytes(),
                "INFO" => b"$14\r\nrun_id:the-one\r\n".to_vec(),
                _ => b"-ERR\r\n".to_vec(),
            })
        });
        let found = Findings::of(doctor(&Place::new(), &format!("redis://127.0.0.1:{}/0", proxy.port())));
        assert_eq!(found.only("one server", "problem"), expected);
        assert_eq!(found.answer("one_server"), ("no", expected));
    }
}

/// What can lose a lock follows from persistence, eviction and replication.
#[test]
fn each_cause_of_a_lost_lock_is_named() {
    let redis = Redis::start();
    let loss = || {
        let found = findings(&redis);
        let (answer, detail) = found.answer("loss");
        format!("{answer}: {detail}")
    };
    assert_eq!(loss(), "yes: by a restart of the server (all locks)");
    set(&redis, "save", "3600 1");
    assert_eq!(loss(), "yes: by a crash of the server (the locks since its last snapshot, or all)");
    set(&redis, "appendonly", "yes");
    for (appendfsync, time) in [("everysec", "second"), ("no", "half minute")] {
        set(&redis, "appendfsync", appendfsync);
        assert_eq!(loss(), format!("yes: by a crash of the server's host (the locks of the last {time})"));
    }
    set(&redis, "appendfsync", "always");
    set(&redis, "maxmemory", "100mb");
    let by_hand = "no: only if its key is removed by hand (DEL, FLUSHALL) or the server's disk is lost";
    assert_eq!(loss(), by_hand);
    set(&redis, "maxmemory-policy", "allkeys-lru");
    assert_eq!(loss(), "yes: by eviction when the memory of the server is full");
    let replica = Redis::start();
    replica.command(&["REPLICAOF", "127.0.0.1", &redis.port().to_string()]);
    until(SOON, "a replica that is up", || {
        redis.command(&["INFO", "replication"]).text().contains("state=online")
    });
    assert_eq!(
        loss(),
        "yes: by a fail-over (the locks that were not replicated yet); eviction when the memory of the server is full"
    );
}

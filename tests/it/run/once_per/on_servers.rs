//! On a server its clock counts, and what it keeps.

use super::{NIGHTLY, assert_open, is_done, nightly};
use crate::run::faults::shim::{Clocks, HOUR};
use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::proxy::Proxy;
use crate::support::redis::Redis;
use crate::support::resp::Value;
use crate::support::running::{Exit, Output};
use crate::support::store::Store;
use std::process::Stdio;

const MINUTE: i64 = 60;

#[test]
fn hosts_whose_clocks_differ_by_minutes_run_the_job_once() {
    for ahead in [3 * MINUTE, -3 * MINUTE, 2 * HOUR] {
        assert_run_once(&Store::redis(), ahead);
    }
}

#[test]
fn hosts_whose_clocks_differ_by_minutes_run_the_job_once_on_zookeeper() {
    let servers = crate::support::zookeeper::ZooKeeper::lent();
    for ahead in [3 * MINUTE, 2 * HOUR] {
        assert_run_once(&Store::at(format!("{}?prefix=/{ahead}/", servers.url())), ahead);
    }
}

/// The job is over long before the second host starts it by its own clock.
#[track_caller]
fn assert_run_once(store: &Store, ahead: i64) {
    let mut ran = Vec::new();
    for wrong in [ahead, 0, -ahead] {
        let place = Place::new();
        let clocks = Clocks::new(&place);
        clocks.set_wall(wrong);
        let output = clocks.of(nightly(store)).sh("unset LD_PRELOAD; echo ran").output();
        ran.push(!is_done(&output));
    }
    assert_eq!(ran, [true, false, false]);
}

#[test]
fn the_next_night_comes_by_the_clock_of_the_server() {
    let place = Place::new();
    let clocks = Clocks::new(&place);
    let redis = Redis::start_preloaded(&clocks.variables());
    let store = Store::on(&redis);
    assert!(!is_done(&nightly(&store).sh("echo ran").output()));
    clocks.set_wall(22 * HOUR);
    let early = nightly(&store).sh("echo ran").output();
    // An hour, without the time between the two runs.
    let due_in = early.stderr.trim_end().rsplit_once(" ago; not due for another ").map(|(_, due_in)| due_in);
    let is_due = due_in.is_some_and(|due_in| due_in == "1h" || due_in.starts_with("59m"));
    assert!(is_due, "{}", early.stderr);
    clocks.set_wall(23 * HOUR + MINUTE);
    assert!(!is_done(&nightly(&store).sh("echo ran").output()));
}

#[test]
fn a_restart_of_a_server_that_keeps_its_data_keeps_the_success() {
    let mut redis = Redis::start_with_args(&["--appendonly", "yes", "--appendfsync", "always"]);
    let store = Store::on(&redis);
    assert!(!is_done(&nightly(&store).sh("echo ran").output()));
    redis.restart();
    assert!(is_done(&nightly(&store).sh("echo ran").output()));
    let key = format!("dlock#success:{{{}}}", store.space().key("x"));
    let Value::Int(left) = redis.command(&["TTL", &key]) else { panic!("{key}") };
    assert!((30 * 24 * HOUR..=31 * 24 * HOUR).contains(&left), "{left}");
    // A server that forgets lets the job run again.
    redis.command(&["FLUSHALL"]);
    assert_open(&store);
}

#[test]
fn a_job_that_lost_its_lock_is_not_done() {
    for how in ["kill", "warn"] {
        let store = Store::redis();
        let text = "echo ready; while [ ! -e go ]; do sleep 0.05; done";
        let mut run = nightly(&store).args(["--on-lost", how]).sh(text).spawn();
        run.await_ready();
        store.space().command(&["DEL", &store.space().key("x")]);
        if how == "warn" {
            run.await_stderr("the command goes on");
            store.place.write("go", "");
        }
        let output = run.wait();
        assert_eq!(output.exit, Exit::Code(if how == "warn" { 0 } else { 76 }), "{output:?}");
        assert_open(&store);
    }
}

/// Runs the job, and changes the server while it runs.
fn change_during_the_job(store: &Store, run: Dlock, change: &[&[&str]]) -> Output {
    let mut run = run.sh("echo ready; while [ ! -e go ]; do sleep 0.05; done").spawn();
    run.await_ready();
    for words in change {
        assert_eq!(store.space().command(words), Value::Text("OK".into()));
    }
    store.place.write("go", "");
    run.wait()
}

#[test]
fn a_success_that_cannot_be_recorded_is_reported() {
    let redis = Redis::start();
    let store = Store::on(&redis);
    redis.command(&["ACL", "SETUSER", "job", "on", ">s3cret", "~*", "&*", "+@all"]);
    let url = format!("redis://job@127.0.0.1:{}/?prefix={}", redis.port(), store.space().prefix());
    let run = nightly(&store).backend(&url).env("REDISCLI_AUTH", "s3cret");
    let output = change_during_the_job(&store, run, &[&["ACL", "SETUSER", "job", "-set"]]);
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ready\n"));
    assert!(output.stderr.starts_with("dlock: x on redis://job@127.0.0.1:"), "{}", output.stderr);
    let what =
        ": its success could not be recorded: ERR The user executing the script can't run this command";
    assert!(output.stderr.contains(what), "{}", output.stderr);
    assert!(output.stderr.ends_with("; it may run again before it is due\n"), "{}", output.stderr);
    assert_eq!(output.stderr.lines().count(), 1);
    assert!(!store.is_held());
    assert_open(&store);
}

#[test]
fn a_success_that_may_not_have_arrived_is_reported() {
    let store = Store::redis();
    let proxy = Proxy::to(store.space().port());
    let behind = store.behind(proxy.port());
    let run = nightly(&behind).args(["--connect-timeout", "3s"]).stdin(Stdio::piped());
    let mut run = run.sh("echo ready; read line; exit 0").spawn();
    run.await_ready();
    proxy.hold_both();
    drop(run.take_stdin());
    let output = run.wait();
    let begin = format!(
        "dlock: x on {}: could not be released, nor its success be recorded: no answer within 3000 ms; it expires within ",
        behind.url()
    );
    assert!(output.stderr.starts_with(&begin), "{}", output.stderr);
    assert_eq!((output.stdout.as_str(), output.stderr.lines().count()), ("ready\n", 1), "{}", output.stderr);
}

#[test]
fn a_success_is_recorded_on_a_full_server() {
    let redis = Redis::start();
    let store = Store::on(&redis);
    let full: [&[&str]; 2] =
        [&["CONFIG", "SET", "maxmemory-policy", "noeviction"], &["CONFIG", "SET", "maxmemory", "1"]];
    let output = change_during_the_job(&store, nightly(&store), &full);
    assert_eq!(output.outcome(), (Exit::Code(0), "ready\n", ""));
    assert!(is_done(&nightly(&store).sh("echo ran").output()));
}

/// One flight to be granted and one to release, as without the option; one to find it done.
#[test]
fn it_costs_no_round_trip() {
    let store = Store::redis();
    let proxy = Proxy::to(store.space().port());
    let behind = store.behind(proxy.port());
    let flights = || {
        // No renewal is due before the end of the command.
        let output = behind.run_with_ttl("60s").args(NIGHTLY).arg("-q").sh("true").output();
        assert_eq!(output.outcome(), (Exit::Code(0), "", ""));
        let flights = proxy.flights().len();
        proxy.forget_flights();
        flights
    };
    assert_eq!(store.run().sh("true").output().exit, Exit::Code(0), "the server knows the script now");
    assert_eq!((flights(), flights()), (2, 1));
}

//! The item of a lock: what other programs see of it, what is kept beside it, and by which clock its entries end.

use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::memcached::Memcached;
use crate::support::place::Place;
use crate::support::running::{Exit, Output};
use crate::support::wait::until;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::time::{Duration, Instant};

/// The item of a holder as dlock 0.1 has stored it.
const BEFORE: &str = r#"{"dlock":1,"id":"7f","members":[{"token":"t","lease_ms":30000,"acquired_at":1769824800123,"identity":{"host":"h","pid":1}}]}"#;

fn status(place: &Place, memcached: &Memcached, options: &[&str]) -> Output {
    place.bare().args(["status", "-b", &memcached.url()]).args(options).arg("x").output()
}

fn item(memcached: &Memcached) -> Value {
    serde_json::from_str(&memcached.get("dlock:x").expect("an item")).expect("JSON")
}

fn history_key(memcached: &Memcached) -> String {
    // The server does not list an item that is in use at that moment.
    let is_history = |key: &String| key.starts_with("dlock#history:");
    let mut found = None;
    until(SOON, "the item of the history", || {
        found = memcached.keys().into_iter().find(is_history);
        found.is_some()
    });
    found.expect("a key")
}

/// It cannot be read as that of a holder, and the dlock that has stored it does not know this one's.
#[test]
fn the_item_of_the_version_before_excludes_and_is_not_touched() {
    let (memcached, place) = (Memcached::start(), Place::new());
    assert!(memcached.add("dlock:x", None, BEFORE));
    let run = |options: &[&str]| place.run().backend(memcached.url()).arg("-q").args(options).sh("echo ran");
    for options in [&["--no-wait"][..], &["--shared", "--no-wait"], &["--slots", "2", "--wait", "300ms"]] {
        assert_eq!(run(options).output().exit, Exit::Code(75));
    }
    let output = place.bare().args(["break", "-b", &memcached.url(), "--yes", "x"]).output();
    assert_eq!(output.exit, Exit::Code(75), "{}", output.stderr);
    let shown = status(&place, &memcached, &["--json"]);
    assert!(shown.stdout.contains(r#""state":"held""#), "{}", shown.stdout);
    assert_eq!(memcached.get("dlock:x").as_deref(), Some(BEFORE));
    let mut waiter = place.run().backend(memcached.url()).args(["-v", "--wait", "1m"]).sh("echo ran").spawn();
    waiter.await_stderr("; waiting");
    assert!(memcached.delete("dlock:x"));
    let output = waiter.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", output.stderr);
}

/// To the version before, an item without this member belongs to another program.
#[test]
fn an_item_is_not_one_of_the_version_before() {
    let memcached = Memcached::start();
    let mut run = Dlock::run().backend(memcached.url()).arg("-q").sh("echo ready; exec sleep 600").spawn();
    run.await_ready();
    assert_eq!(item(&memcached)["dlock"], Value::Null);
    assert_eq!(item(&memcached)["format"], 1);
}

/// Programs that use `add` do not overtake the queue.
#[test]
fn a_waiter_keeps_other_programs_out() {
    let (memcached, place) = (Memcached::start(), Place::new());
    let url = memcached.url();
    let mut holder = place.run().backend(&url).arg("-q").sh("echo ready; exec sleep 600").spawn();
    holder.await_ready();
    let run = || place.run().backend(&url).args(["-v", "--wait", "1m"]).sh("echo ready; exec sleep 600");
    let mut waiter = run().spawn();
    waiter.await_stderr("; waiting at position 1");
    let shown = status(&place, &memcached, &["--json"]);
    let shown: Value = serde_json::from_str(&shown.stdout).expect("JSON");
    let lock = &shown["locks"][0];
    assert_eq!(lock["waiters"].as_array().map(Vec::len), Some(1), "{lock}");
    assert_eq!(lock["holders"][0]["fencing_token"], Value::Null, "{lock}");
    holder.signal(Signal::SIGTERM);
    while item(&memcached)["line"].as_array().is_some_and(|line| !line.is_empty()) {
        assert!(!memcached.add("dlock:x", None, "worker 3"));
    }
    waiter.await_ready();
    holder.wait();
}

#[test]
fn outcomes_are_kept_beside_the_item() {
    let (memcached, place) = (Memcached::start(), Place::new());
    let run = |text: &str| place.run().backend(memcached.url()).arg("-q").sh(text).output();
    assert_eq!(run("exit 3").exit, Exit::Code(3));
    assert!(memcached.add("dlock:x", None, "worker 3"));
    // Each client knows the clock to the second only: the outcomes are to be in order.
    std::thread::sleep(Duration::from_millis(2100));
    assert_eq!(run("echo ran").exit, Exit::Code(75));
    assert!(memcached.delete("dlock:x"));
    let shown = status(&place, &memcached, &["--history", "--json"]);
    assert_eq!(shown.exit, Exit::Code(0), "{}", shown.stderr);
    let shown: Value = serde_json::from_str(&shown.stdout).expect("JSON");
    let outcomes: Vec<&str> = shown["locks"][0]["history"]
        .as_array()
        .unwrap_or_else(|| panic!("{shown}"))
        .iter()
        .filter_map(|record| record["outcome"].as_str())
        .collect();
    assert_eq!(outcomes, ["contended", "ran"]);
    let month = 30 * 24 * 3600;
    let remaining = memcached.remaining(&history_key(&memcached)).expect("seconds");
    assert!((month - 60..=month).contains(&remaining), "{remaining}");
    assert_eq!(memcached.get("dlock:x"), None);
}

#[test]
fn a_long_history_is_shortened() {
    let (memcached, place) = (Memcached::start(), Place::new());
    let run = || place.run().backend(memcached.url()).arg("-q").sh("true").output();
    assert_eq!(run().exit, Exit::Code(0));
    let key = history_key(&memcached);
    let line = memcached.get(&key).expect("an item");
    let long = line.repeat((100 << 10) / line.len());
    assert_eq!(memcached.command(&format!("set {key} 0 0 {}\r\n{long}", long.len())), "STORED");
    assert_eq!(run().exit, Exit::Code(0));
    let kept = memcached.get(&key).expect("an item");
    assert_eq!(kept.lines().count(), 20, "{kept}");
}

/// As by an eviction. Without it no client knows the time.
#[test]
fn the_clock_is_stored_again() {
    let memcached = Memcached::start();
    let run = Dlock::run().backend(memcached.url()).args(["-q", "--ttl", "6s"]);
    let mut run = run.sh("echo ready; exec sleep 600").spawn();
    run.await_ready();
    assert!(memcached.delete("dlock#clock"));
    // Longer than the item is kept without a renewal.
    std::thread::sleep(Duration::from_secs(10));
    assert!(memcached.remaining("dlock#clock").is_some());
    assert!(memcached.get("dlock:x").is_some());
    assert!(run.poll().is_none(), "it was stopped");
}

/// Times are those of the server's clock: a lease that a client at another time has stored ends when it should.
#[test]
fn the_item_expires_with_its_last_entry() {
    let (memcached, place) = (Memcached::start(), Place::new());
    let url = memcached.url();
    let run = |ttl: &str| {
        place.run().backend(&url).args(["-q", "--shared", "--ttl", ttl]).sh("echo ready; exec sleep 600")
    };
    let began = Instant::now();
    let (mut long, mut short) = (run("60s").spawn(), run("10s").spawn());
    long.await_ready();
    short.await_ready();
    let remaining = memcached.remaining("dlock:x").expect("seconds");
    // On a busy machine some seconds have passed since the grant.
    let least = 59 - i64::try_from(began.elapsed().as_secs()).unwrap();
    assert!((least..=63).contains(&remaining) && remaining > 20, "{remaining}, of at least {least}");
}

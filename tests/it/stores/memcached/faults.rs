//! What happens to the item and the server while a lock is held or awaited.

use crate::support::dlock::Dlock;
use crate::support::memcached::Memcached;
use crate::support::process;
use crate::support::running::{Exit, Output, Running};
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

/// Long enough for a difference between a third of the lease and two thirds, also on a busy machine.
const TTL: Duration = Duration::from_secs(24);

/// Starts a run that holds the lock.
fn holder(memcached: &Memcached, ttl: &str) -> Running {
    let run = Dlock::run().backend(memcached.url()).args(["-q", "--ttl", ttl]);
    let mut run = run.sh("echo ready; exec sleep 600").spawn();
    run.await_ready();
    run
}

/// The run must be stopped within a third of the lease, because its item is gone.
#[track_caller]
fn assert_lost(memcached: &Memcached, run: &mut Running, command: i32, since: Instant) -> Output {
    let output = run.wait();
    assert!(since.elapsed() < TTL / 3 + Duration::from_secs(7), "stopped after {:?}", since.elapsed());
    let beginning = format!("dlock: x on {}: the lock was lost: ", memcached.url());
    assert!(output.stderr.starts_with(&beginning), "{}", output.stderr);
    assert_eq!(output.exit, Exit::Code(76));
    assert!(!process::alive(command));
    output
}

#[test]
fn a_restart_stops_the_command() {
    let mut memcached = Memcached::start();
    let mut run = holder(&memcached, "24s");
    let (command, began) = (run.command(), Instant::now());
    memcached.restart();
    assert_lost(&memcached, &mut run, command, began);
    assert_eq!(memcached.get("dlock:x"), None, "it was created again");
}

/// CAS values begin again after a restart: that of the holder may be that of another item.
#[test]
fn a_cas_value_from_before_a_restart_proves_nothing() {
    let mut memcached = Memcached::start();
    let mut run = holder(&memcached, "24s");
    let (command, began) = (run.command(), Instant::now());
    let cas = |memcached: &Memcached| memcached.command("mg dlock:x c");
    let before = cas(&memcached);
    run.signal(Signal::SIGSTOP);
    memcached.restart();
    while !memcached.add("dlock:x", None, "worker 3") || cas(&memcached) != before {
        assert!(memcached.delete("dlock:x"));
        assert!(began.elapsed() < TTL, "{before}");
    }
    run.signal(Signal::SIGCONT);
    assert_lost(&memcached, &mut run, command, began);
    assert_eq!(memcached.get("dlock:x").as_deref(), Some("worker 3"));
}

#[test]
fn another_item_in_its_place_is_not_touched() {
    let memcached = Memcached::start();
    let mut run = holder(&memcached, "24s");
    let (command, began) = (run.command(), Instant::now());
    assert_eq!(memcached.command("set dlock:x 0 0 1\r\n7"), "STORED");
    let output = assert_lost(&memcached, &mut run, command, began);
    assert!(output.stderr.contains("another client"), "{}", output.stderr);
    assert_eq!(memcached.get("dlock:x").as_deref(), Some("7"));
}

/// A server that is full and does not evict stores no renewal, and deletes the item instead.
#[test]
fn a_full_server_loses_the_lock() {
    let memcached = Memcached::start_with(&["-M", "-m", "2"]);
    let mut run = holder(&memcached, "24s");
    let command = run.command();
    memcached.fill();
    let output = assert_lost(&memcached, &mut run, command, Instant::now());
    assert!(output.stderr.contains("it is gone from the store"), "{}", output.stderr);
    assert_eq!(memcached.get("dlock:x"), None);
}

/// An item is kept for longer than the lease: the server's clock may be two seconds ahead of what it counts from.
#[test]
fn an_item_outlasts_the_lease() {
    let memcached = Memcached::start();
    let began = Instant::now();
    let _run = holder(&memcached, "3500ms");
    let remaining = memcached.remaining("dlock:x").unwrap();
    // In whole seconds; on a busy machine some have passed since the grant.
    let least = 5 - i64::try_from(began.elapsed().as_secs()).unwrap();
    assert!((least..=6).contains(&remaining), "{remaining}, of at least {least}");
}

#[test]
fn a_waiter_outlasts_a_restart_and_gets_the_lock() {
    let mut memcached = Memcached::start();
    assert!(memcached.add("dlock:x", None, "worker 3"));
    let mut waiter =
        Dlock::run().backend(memcached.url()).args(["-v", "--wait", "1m"]).sh("echo ran").spawn();
    waiter.await_stderr("; waiting");
    memcached.restart();
    let output = waiter.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", output.stderr);
}

/// It polls: nobody tells it.
#[test]
fn a_waiter_gets_the_lock_of_another_program_when_it_is_deleted_or_expires() {
    let memcached = Memcached::start();
    for lease in [None, Some(Duration::from_secs(2))] {
        assert!(memcached.add("dlock:x", lease, "worker 3"));
        let mut waiter =
            Dlock::run().backend(memcached.url()).args(["--wait", "1m", "-v"]).sh("echo ran").spawn();
        waiter.await_stderr("; waiting");
        if lease.is_none() {
            assert!(memcached.delete("dlock:x"));
        }
        let output = waiter.wait();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", output.stderr);
    }
}

#[test]
fn a_signal_ends_a_wait_and_leaves_the_holder_alone() {
    let memcached = Memcached::start();
    assert!(memcached.add("dlock:x", None, "worker 3"));
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let run = Dlock::run().backend(memcached.url()).args(["-v", "--wait", "forever"]);
        let mut waiter = run.sh("echo ran").spawn();
        waiter.await_stderr("; waiting");
        waiter.signal(signal);
        let output = waiter.wait();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::by(signal), ""), "{}", output.stderr);
    }
    assert_eq!(memcached.get("dlock:x").as_deref(), Some("worker 3"));
}

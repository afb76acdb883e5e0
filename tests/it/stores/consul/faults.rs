//! What happens to the session, the keys and the agent while a lock is held.

use crate::stores::conformance::client::Client;
use crate::stores::conformance::rig::on_one_thread;
use crate::support::SOON;
use crate::support::consul::{Consul, path};
use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::process;
use crate::support::running::{Exit, Running};
use crate::support::wait::{throughout, until};
use dlock::backend::Attempt;
use dlock::backend::ledger::Ledger;
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

const TTL: Duration = Duration::from_secs(10);
const KEY: &str = "dlock/x/.lock";
const LEDGER: &str = "dlock/x/.lock.dlock";

fn run(consul: &Consul) -> Dlock {
    run_for(consul, TTL)
}

fn run_for(consul: &Consul, ttl: Duration) -> Dlock {
    Dlock::run().backend(consul.url()).args(["--ttl", &format!("{}s", ttl.as_secs())])
}

/// Starts a run that holds the lock.
fn holder(consul: &Consul) -> Running {
    holder_for(consul, TTL)
}

/// Starts a run that holds the lock for this long without a renewal.
fn holder_for(consul: &Consul, ttl: Duration) -> Running {
    let mut run = run_for(consul, ttl).sh("echo ready; exec sleep 600").spawn();
    run.await_ready();
    run
}

fn ledger(consul: &Consul) -> Ledger {
    Ledger::parse(consul.value(LEDGER).unwrap().as_bytes()).unwrap()
}

/// When the lease of the holder ends, by the ledger.
fn lease_end(consul: &Consul) -> Option<Duration> {
    ledger(consul).holders.first().and_then(|holder| holder.lease_ends)
}

/// Has it end then, as if the clock of the holder's host had been set.
fn set_lease_end(consul: &Consul, ends: Duration) {
    let mut ledger = ledger(consul);
    ledger.holders[0].lease_ends = Some(ends);
    assert_eq!(consul.ask("PUT", &format!("kv/{}", path(LEDGER)), &ledger.to_json()).0, 200);
}

/// Nobody gets the lock before the command of the holder is dead, although its session was ended by others.
#[test]
fn an_ended_session_stops_the_command_before_others_get_the_lock() {
    let consul = Consul::lent();
    let mut first = holder(&consul);
    let command = first.command();
    let session = consul.holder(KEY).unwrap();
    let foreign = consul.session(None);
    consul.ask("PUT", &format!("session/destroy/{session}"), b"");
    until(SOON, "the lock", || {
        let is_locked = consul.lock(KEY, &foreign);
        assert!(!is_locked || !process::alive(command), "two holders");
        is_locked
    });
    let output = first.wait();
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
    assert!(output.stderr.contains("the lock was lost"), "{}", output.stderr);
    assert_eq!(consul.holder(KEY), Some(foreign), "it was touched");
}

/// The holder does not wait for its next renewal.
#[test]
fn a_key_that_is_gone_stops_the_command_at_once() {
    let consul = Consul::lent();
    let mut first = holder_for(&consul, Duration::from_secs(180));
    let command = first.command();
    let began = Instant::now();
    consul.ask("DELETE", "kv/dlock/x/.lock", b"");
    assert_eq!(first.wait().exit, Exit::Code(76));
    // The next renewal is due after a third of the lease.
    assert!(began.elapsed() < Duration::from_secs(50), "{:?}", began.elapsed());
    assert!(!process::alive(command));
    assert_eq!(consul.holder(KEY), None, "it was locked again");
    assert_eq!(consul.sessions(), [""; 0]);
}

/// Its session had a delay when it ended: everybody is refused, and each attempt has a session of its own.
#[test]
fn a_lock_that_is_delayed_leaves_no_sessions() {
    let consul = Consul::lent();
    // No other test's lock.
    let key = "dlock/delayed/.lock";
    let ended = consul.session_with(None, "15s");
    assert!(consul.lock(key, &ended));
    consul.ask("PUT", &format!("session/destroy/{ended}"), b"");
    on_one_thread(async {
        let attempt = Client::at(&consul.url(), "delayed").try_acquire().await;
        assert!(matches!(attempt, Attempt::Busy(_)), "{attempt:?}");
    });
    assert_eq!(consul.sessions(), [""; 0]);
}

/// F08
#[test]
fn a_restart_does_not_disturb_the_command() {
    let mut consul = Consul::start();
    // With time for the restart on a busy machine, and for a renewal after it.
    let ttl = TTL * 3;
    let mut first = holder_for(&consul, ttl);
    let session = consul.holder(KEY).unwrap();
    consul.restart();
    throughout(ttl / 3 + Duration::from_secs(2), "the command runs on", || {
        let ended = first.poll().is_some();
        assert!(!ended, "{}", first.wait().stderr);
        true
    });
    assert_eq!(consul.holder(KEY), Some(session));
    first.signal(Signal::SIGTERM);
    first.wait();
    until(SOON, "the release", || consul.holder(KEY).is_none());
}

/// F24: both halves are killed, and the node is healthy. The checks of the node do not renew the session.
#[test]
fn the_lock_of_a_crashed_holder_is_free_after_its_session_and_the_delay() {
    let (place, consul) = (Place::new(), Consul::lent());
    let first = holder(&consul);
    let (session, guard, dlock) = (consul.holder(KEY).unwrap(), first.guard(), first.pid());
    let mut waiter =
        place.run().backend(consul.url()).args(["--ttl", "10s", "--wait", "2m"]).sh("echo ran").spawn();
    until(SOON, "the waiter", || consul.value(&format!("{KEY}.dlock")).unwrap().contains("\"line\":[{"));
    for pid in [dlock, guard] {
        process::send(pid, Signal::SIGSTOP);
    }
    for pid in [dlock, guard] {
        process::send(pid, Signal::SIGKILL);
    }
    let killed = Instant::now();
    throughout(TTL - TTL / 3 - Duration::from_secs(1), "the session", || {
        consul.holder(KEY).as_ref() == Some(&session)
    });
    assert_eq!(waiter.wait_within(SOON * 2).outcome(), (Exit::Code(0), "ran\n", ""));
    let worst = TTL * 3 + Duration::from_secs(15);
    assert!(killed.elapsed() > TTL && killed.elapsed() < worst, "{:?}", killed.elapsed());
    drop(first);
}

/// The clock is set forward: by the ledger the lease has ended, although the session keeps the lock.
#[test]
fn a_clock_that_is_set_neither_ends_a_run_nor_leaves_its_lock() {
    for has_waiter in [false, true] {
        let consul = Consul::lent();
        let mut first = holder(&consul);
        let session = consul.holder(KEY);
        let waiter = has_waiter.then(|| {
            let waiter = run(&consul).args(["--wait", "5m"]).sh("echo ran").spawn();
            until(SOON, "the waiter", || !ledger(&consul).waiters.is_empty());
            waiter
        });
        for _ in 0..2 {
            let past = Duration::from_secs(1);
            set_lease_end(&consul, past);
            until(SOON, "a renewal", || {
                let ended = first.poll().is_some();
                assert!(!ended, "{}", first.wait().stderr);
                lease_end(&consul).is_some_and(|ends| ends > past)
            });
        }
        assert_eq!(consul.holder(KEY), session);
        first.signal(Signal::SIGTERM);
        first.wait();
        if let Some(mut waiter) = waiter {
            assert_eq!(waiter.wait().outcome(), (Exit::Code(0), "ran\n", ""));
        }
        until(SOON, "the release", || consul.holder(KEY).is_none() && consul.sessions().is_empty());
        assert!(ledger(&consul).holders.is_empty(), "{:?}", ledger(&consul));
    }
}

#[test]
fn nothing_but_the_two_keys_is_left_of_runs() {
    let consul = Consul::lent();
    for _ in 0..3 {
        assert_eq!(run(&consul).sh("echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""));
    }
    let missing = run(&consul).command(["/nonexistent/command"]).output();
    assert_eq!(missing.exit, Exit::Code(127));
    assert_eq!(
        run(&consul).args(["--once-per", "1h"]).sh("echo ran").output().outcome(),
        (Exit::Code(0), "ran\n", "")
    );
    assert_eq!(
        run(&consul).args(["-q", "--once-per", "1h"]).sh("echo ran").output().outcome(),
        (Exit::Code(0), "", "")
    );
    assert_eq!(consul.keys(), [KEY, LEDGER]);
    assert_eq!((consul.holder(KEY), consul.sessions()), (None, Vec::new()));
}

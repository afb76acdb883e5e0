//! Signals to a dlock that waits for its lock.

use super::{ENDING, holder, reported};
use crate::support::SOON;
use crate::support::place::Place;
use crate::support::process;
use crate::support::running::{Exit, Running};
use crate::support::wait::{throughout, until};
use nix::sys::signal::Signal;
use std::time::Duration;

/// Starts a dlock that waits for `x` and would write a file, and waits until it reports that it waits.
fn waiter(place: &Place) -> Running {
    let mut waiter = place.run().args(["-v", "--wait", "forever"]).sh("touch started").spawn();
    waiter.await_stderr("waiting");
    waiter
}

/// S05
#[test]
fn a_signal_ends_a_waiting_dlock_and_its_command_never_starts() {
    let place = Place::new();
    let holder = holder(&place);
    let quiet = std::fs::read(place.lock_file("x")).unwrap();
    for signal in ENDING {
        let mut waiter = waiter(&place);
        waiter.signal(signal);
        assert_eq!(waiter.wait_within(Duration::from_secs(10)).exit, Exit::by(signal));
        waiter.marker().await_end();
    }
    assert!(!place.path("started").exists());
    assert!(!place.lock_is_free("x"), "the holder's lock is untouched");
    assert_eq!(std::fs::read(place.lock_file("x")).unwrap(), quiet);
    drop(holder);
    until(SOON, "the lock of a holder that was killed", || place.lock_is_free("x"));
    let next = place.run().command(["true"]).output();
    assert_eq!(next.outcome(), (Exit::Code(0), "", ""), "no dead waiter is ahead");
}

/// S05
#[test]
fn signals_that_are_ignored_by_default_do_not_end_a_waiting_dlock() {
    let place = Place::new();
    let holder = holder(&place);
    let mut waiter = waiter(&place);
    for signal in [Signal::SIGWINCH, Signal::SIGCONT, Signal::SIGCHLD, Signal::SIGURG] {
        waiter.signal(signal);
    }
    throughout(Duration::from_millis(500), "it waits", || waiter.poll().is_none());
    drop(holder);
    assert_eq!(waiter.wait().exit, Exit::Code(0));
    assert!(place.path("started").exists());
}

/// S05
#[test]
fn a_signal_that_was_ignored_at_start_does_not_end_a_waiting_dlock() {
    let place = Place::new();
    let holder = holder(&place);
    for signal in ENDING {
        let run = place.run().args(["-v", "--wait", "forever"]).sh("exit 3");
        let mut waiter = run.ignoring(signal).spawn();
        waiter.await_stderr("waiting");
        waiter.signal(signal);
        throughout(Duration::from_millis(100), "it waits", || waiter.poll().is_none());
    }
    drop(holder);
}

/// S05
#[test]
fn a_stopped_waiter_queues_again_when_continued() {
    let place = Place::new();
    let holder = holder(&place);
    // In a separate session the group would be orphaned, and the kernel drops TSTP for such groups.
    let mut waiter = waiter(&place);
    waiter.signal(Signal::SIGTSTP);
    until(SOON, "a stopped waiter", || process::stopped(waiter.pid()));
    waiter.signal(Signal::SIGCONT);
    until(SOON, "a waiter that goes on", || !process::stopped(waiter.pid()));
    throughout(Duration::from_millis(300), "it waits", || waiter.poll().is_none());
    drop(holder);
    assert_eq!(waiter.wait().exit, Exit::Code(0));
    assert!(place.path("started").exists());
}

/// S05
#[test]
fn a_waiter_stopped_during_its_turn_takes_it_later() {
    let place = Place::new();
    let holder = holder(&place);
    let mut sleeper = waiter(&place);
    sleeper.signal(Signal::SIGTSTP);
    until(SOON, "a stopped waiter", || process::stopped(sleeper.pid()));
    drop(holder);
    // A stopped waiter blocks others no longer than its claim lasts.
    let other = place.run().args(["--wait", "20s"]).sh("echo other").output();
    assert_eq!((other.exit, other.stdout.as_str()), (Exit::Code(0), "other\n"), "{}", other.stderr);
    sleeper.signal(Signal::SIGCONT);
    assert_eq!(sleeper.wait().exit, Exit::Code(0));
    assert!(place.path("started").exists());
}

/// A stop for dlock's process group during the wait ends when dlock is continued, by whatever process.
#[test]
fn a_stop_signal_before_the_start_does_not_stop_the_command() {
    for signal in [Signal::SIGTSTP, Signal::SIGSTOP] {
        let place = Place::new();
        let holder = holder(&place);
        let mut waiter =
            place.run().args(["-v", "--wait", "forever"]).probe(["signals", "exit:TERM=0"]).spawn();
        waiter.await_stderr("waiting");
        process::send(-waiter.pid(), signal);
        until(SOON, "a stopped waiter", || process::stopped(waiter.pid()));
        waiter.signal(Signal::SIGCONT);
        until(SOON, "a waiter that goes on", || !process::stopped(waiter.pid()));
        drop(holder);
        waiter.await_ready();
        waiter.signal(Signal::SIGTERM);
        let output = waiter.wait();
        // The CONT that continues dlock may be read when the command already runs, and is forwarded then.
        let got: Vec<_> = reported(&output.stdout).into_iter().filter(|name| *name != "CONT").collect();
        assert_eq!((output.exit, got), (Exit::Code(0), vec!["TERM"]), "{signal}");
    }
}

/// The guard may hear that the command is to start before it hears that it was stopped.
#[test]
fn a_command_that_was_stopped_with_its_guard_before_the_start_is_continued() {
    let place = Place::new();
    let holder = holder(&place);
    let mut waiter = place.run().args(["-v", "--wait", "forever"]).command(["true"]).spawn();
    waiter.await_stderr("waiting");
    for pid in [waiter.pid(), waiter.guard(), waiter.command()] {
        process::send(pid, Signal::SIGSTOP);
        until(SOON, "a stopped process", || process::stopped(pid));
    }
    drop(holder);
    waiter.signal(Signal::SIGCONT);
    assert_eq!(waiter.wait().exit, Exit::Code(0));
}

/// A stop for dlock's process group may reach the guard too, before that has left the group.
#[test]
fn a_guard_that_is_stopped_during_the_wait_is_continued() {
    let place = Place::new();
    let holder = holder(&place);
    let mut waiter = place.run().args(["-v", "--wait", "forever"]).command(["true"]).spawn();
    waiter.await_stderr("waiting");
    let guard = waiter.guard();
    let switches = || {
        let status = std::fs::read_to_string(format!("/proc/{guard}/status")).unwrap();
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count.unwrap().trim().parse::<u64>().unwrap()
    };
    let before = switches();
    process::send(guard, Signal::SIGSTOP);
    // It sleeps until it is stopped, which is a switch.
    until(SOON, "a guard that has been stopped", || switches() > before);
    until(SOON, "a guard that goes on", || !process::stopped(guard));
    drop(holder);
    assert_eq!(waiter.wait().exit, Exit::Code(0));
}

//! A waiting acquire is in the same queue as runs.

use super::on_redis::{acquire, assert_free, left, printed, token, with};
use crate::support::SOON;
use crate::support::resp::Value;
use crate::support::running::{Exit, Running};
use crate::support::store::Store;
use crate::support::wait::{throughout, until};
use nix::sys::signal::Signal;
use std::process::Stdio;
use std::time::Duration;

fn waiter(store: &Store, position: usize) -> Running {
    let run = acquire(store, "60s").args(["-v", "--wait", "forever"]);
    standing(run.spawn(), position)
}

fn standing(mut run: Running, position: usize) -> Running {
    run.await_stderr(&format!("waiting at position {position}"));
    run
}

fn holding(store: &Store) -> Running {
    let mut run = store.run_with_ttl("60s").stdin(Stdio::piped()).sh("echo ready; exec cat").spawn();
    run.await_ready();
    run
}

/// The token that a waiter was granted.
#[track_caller]
fn served(run: &mut Running) -> String {
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stderr);
    output.stdout.trim_end().to_owned()
}

/// Every lease is a minute long: a waiter served sooner was notified.
#[test]
fn runs_and_acquires_are_served_first_come_first_served() {
    let store = Store::redis();
    let mut holder = holding(&store);
    let mut first = waiter(&store, 1);
    let second = store.run_with_ttl("60s").args(["-v", "--wait", "forever"]).sh("echo ran").spawn();
    let mut second = standing(second, 2);
    let mut third = waiter(&store, 3);
    drop(holder.take_stdin());
    let token = served(&mut first);
    throughout(Duration::from_millis(200), "the others wait", || {
        second.poll().is_none() && third.poll().is_none()
    });
    assert_eq!(with(&store, &token, "release", &[]).exit, Exit::Code(0));
    assert_eq!((second.wait().exit, second.stdout().as_str()), (Exit::Code(0), "ran\n"));
    let token = served(&mut third);
    assert_eq!(with(&store, &token, "release", &[]).exit, Exit::Code(0));
    assert_free(&store);
}

#[test]
fn a_waiter_is_served_when_a_lease_ends() {
    let store = Store::redis();
    token(&store, "4s");
    let next = printed(&acquire(&store, "60s").args(["--wait", "forever"]).output());
    assert_eq!(with(&store, &next, "check", &[]).exit, Exit::Code(0));
}

#[test]
fn a_signal_ends_the_wait_and_leaves_nothing() {
    for signal in [
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGQUIT,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
        Signal::SIGALRM,
    ] {
        let store = Store::redis();
        let token = token(&store, "60s");
        let mut run = waiter(&store, 1);
        run.signal(signal);
        let output = run.wait();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::by(signal), ""));
        // Gone when dlock has ended, and not when the next one runs.
        let queue = format!("dlock#queue:{{{}}}", store.space().key("x"));
        assert_eq!(store.space().command(&["EXISTS", &queue]), Value::Int(0), "after {signal}");
        assert_eq!(with(&store, &token, "release", &[]).exit, Exit::Code(0));
        assert_free(&store);
    }
}

#[test]
fn under_nohup_the_wait_continues() {
    let store = Store::redis();
    let token = token(&store, "60s");
    let run = acquire(&store, "60s").args(["-v", "--wait", "forever"]).ignoring(Signal::SIGHUP);
    let mut run = standing(run.spawn(), 1);
    run.signal(Signal::SIGHUP);
    throughout(Duration::from_millis(200), "it waits", || run.poll().is_none());
    assert_eq!(with(&store, &token, "release", &[]).exit, Exit::Code(0));
    served(&mut run);
}

#[test]
fn giving_up_is_reported_like_that_of_a_run() {
    let store = Store::redis();
    token(&store, "600s");
    let line = |output: &crate::support::running::Output| output.stderr.clone();
    let at_once = acquire(&store, "60s").output();
    assert_eq!((at_once.exit, at_once.stdout.as_str()), (Exit::Code(75), ""));
    assert!(line(&at_once).ends_with("; not waiting, see --wait\n"), "{}", at_once.stderr);
    let later = acquire(&store, "60s").args(["--wait", "100ms"]).output();
    assert_eq!((later.exit, later.stdout.as_str()), (Exit::Code(75), ""));
    assert!(line(&later).contains("; gave up after "), "{}", later.stderr);
    let other = acquire(&store, "60s").args(["-E", "7", "-q"]).output();
    assert_eq!(other.outcome(), (Exit::Code(7), "", ""));
    let by_variable = acquire(&store, "60s").env("DLOCK_WAIT", "100ms").output();
    assert!(line(&by_variable).contains("; gave up after "), "{}", by_variable.stderr);
    assert!(left(&store) > 500_000);
}

/// It would wait for the command that it is itself a part of.
#[test]
fn inside_a_run_of_the_same_name_acquire_is_refused_at_once() {
    let store = Store::redis();
    let inner = format!(
        "'{}' acquire -b '{}' --ttl 60s --wait forever x",
        crate::support::dlock::BINARY,
        store.url()
    );
    let output = store.run_with_ttl("30s").sh(&inner).output();
    let line = "dlock: x is held by the dlock that runs this very command: waiting for it would never end, and \
    a separate token cannot be acquired inside it: omit dlock acquire, or use another name\n";
    assert_eq!(output.outcome(), (Exit::Code(75), "", line));
    assert_free(&store);
}

#[test]
fn an_unreachable_store_is_tried_until_the_wait_expires() {
    let store = Store::redis();
    let run = || store.place.bare().args(["acquire", "--ttl", "60s", "-b", "redis://127.0.0.1:1"]);
    let output = run().arg("x").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""));
    assert!(output.stderr.ends_with("; see --retry\n"), "{}", output.stderr);
    let output = run().args(["--retry", "300ms", "x"]).output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""));
    assert!(output.elapsed >= Duration::from_millis(300) && !output.stderr.contains("--retry"));
    assert!(output.stderr.contains("; gave up after "), "{}", output.stderr);
    for command in ["renew", "release", "check"] {
        let output = store.place.bare().args([command, "-b", "redis://127.0.0.1:1", "x"]);
        let output = output.env("DLOCK_TOKEN", "t").output();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""), "{}", output.stderr);
        assert!(!output.stderr.contains("command"), "no command was to run: {}", output.stderr);
    }
}

/// A killed waiter leaves a queue position, which blocks no other.
#[test]
fn a_killed_waiter_hardly_delays_the_next_one() {
    let store = Store::redis();
    let token = token(&store, "60s");
    let mut killed = waiter(&store, 1);
    let mut next = waiter(&store, 2);
    killed.signal(Signal::SIGKILL);
    assert_eq!(killed.wait().exit, Exit::by(Signal::SIGKILL));
    assert_eq!(with(&store, &token, "release", &[]).exit, Exit::Code(0));
    served(&mut next);
    let key = store.space().key("x");
    until(SOON, "the lock of the next one", || store.space().command(&["EXISTS", &key]) == Value::Int(1));
}

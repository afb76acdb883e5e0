//! Holders in a store that claim to be other processes.

use crate::support::SOON;
use crate::support::dlock::BINARY;
use crate::support::process;
use crate::support::resp::Value;
use crate::support::running::{Exit, Running};
use crate::support::store::Store;
use crate::support::wait::{throughout, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The identity of a process in dlock's format.
fn identity_of(pid: u32) -> serde_json::Value {
    let us = serde_json::to_value(dlock::identity::of_this_process(String::new(), None)).unwrap();
    let start = dlock::child::start_of(pid as i32).expect("a living process");
    serde_json::json!({"pid": pid, "start": start, "boot": us["boot"], "pid_ns": us["pid_ns"]})
}

/// A client that holds the lock `x` until its standard input ends, and claims to be another process.
fn forged_holder(store: &Store, forged: &serde_json::Value) -> Running {
    let mut holder = store.run_with_ttl("5m").stdin(Stdio::piped()).sh("echo ready; exec cat").spawn();
    holder.await_ready();
    let space = store.space();
    let members = space.command(&["KEYS", &format!("dlock#member:{{{}}}:*", space.key("x"))]).texts();
    let [member] = members.as_slice() else { panic!("one member: {members:?}") };
    let text = space.command(&["GET", member]).text();
    let said: serde_json::Value = serde_json::from_str(&text).unwrap();
    let mut identity = said["identity"].clone();
    for (key, value) in forged.as_object().unwrap() {
        identity[key] = value.clone();
    }
    let mut new = said.clone();
    new["identity"] = identity;
    assert_ne!(new, said);
    assert_eq!(space.command(&["SET", member, &new.to_string(), "KEEPTTL"]), Value::Text("OK".into()));
    holder
}

/// Waits until the run waits for the holder, whatever it claims to be, ends the holder, and expects that the waiter
/// runs.
#[track_caller]
fn assert_waited_for(mut holder: Running, mut waiter: Running) {
    waiter.await_stderr("waiting at position 1");
    throughout(Duration::from_millis(200), "it waits", || waiter.poll().is_none());
    drop(holder.take_stdin());
    assert_eq!(holder.wait().exit, Exit::Code(0));
    let output = waiter.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", output.stderr);
}

/// The tests are an ancestor of every dlock that they start, and not a dlock.
#[test]
fn an_ancestor_that_is_not_a_dlock_does_not_end_a_wait() {
    let store = Store::redis();
    let holder = forged_holder(&store, &identity_of(std::process::id()));
    let waiter = store.run_with_ttl("60s").args(["-v", "--wait", "forever"]).sh("echo ran").spawn();
    assert_waited_for(holder, waiter);
}

/// A run of another lock, and of the same lock in another container whose process has the same number and start tick.
#[test]
fn a_dlock_above_us_that_cannot_hold_the_lock_does_not_end_a_wait() {
    for (outer, pid_ns) in [("y", None), ("x", Some(1))] {
        let store = Store::redis();
        let elsewhere = Store::file();
        let inner = format!("exec env -u DLOCK_HELD '{BINARY}' run -b '{}' -v --wait forever x", store.url());
        let text = format!("echo ready; read go; {inner} -- echo ran");
        let mut waiter = elsewhere.run().name(outer).stdin(Stdio::piped()).sh(&text).spawn();
        waiter.await_stdout("ready\n");
        let mut forged = identity_of(waiter.pid() as u32);
        if let Some(pid_ns) = pid_ns {
            forged["pid_ns"] = pid_ns.into();
        }
        let mut holder = forged_holder(&store, &forged);
        std::io::Write::write_all(&mut waiter.take_stdin(), b"go\n").unwrap();
        waiter.await_stderr("waiting at position 1");
        drop(holder.take_stdin());
        assert_eq!(holder.wait().exit, Exit::Code(0));
        let output = waiter.wait();
        assert_eq!(
            (output.exit, output.stdout.as_str()),
            (Exit::Code(0), "ready\nran\n"),
            "{}",
            output.stderr
        );
    }
}

/// F55: an operator may have stopped it on purpose.
#[test]
fn a_process_that_is_not_a_dlock_is_not_continued_by_break() {
    let store = Store::redis();
    let mut stranger = Command::new("sleep").arg("1000").spawn().unwrap();
    let pid = Pid::from_raw(stranger.id() as i32);
    kill(pid, Signal::SIGSTOP).unwrap();
    until(SOON, "a stopped process", || process::stopped(pid.as_raw()));
    let mut holder = forged_holder(&store, &identity_of(stranger.id()));
    let output = store.place.bare().args(["break", "-b", store.url(), "--yes", "--wait", "0", "x"]).output();
    let is_stopped = process::stopped(pid.as_raw());
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    assert!(matches!(output.exit, Exit::Code(0 | 75)), "{output:?}");
    assert!(is_stopped, "it was continued");
    drop(holder.take_stdin());
    let _ = holder.wait();
}

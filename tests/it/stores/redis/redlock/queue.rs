//! Waiting for a lock at a majority: by notification, in one queue.

use super::fixture::{ALL, Fixture, KEY};
use crate::support::monitor::Monitor;
use crate::support::running::Exit;
use nix::sys::signal::Signal;
use std::time::Duration;

#[test]
fn a_waiter_is_notified_when_the_lock_is_released() {
    let fixture = Fixture::old().ttl("10m");
    let run = fixture.witness();
    let mut next_holder = fixture.next_holder();
    fixture.assert_undisturbed(run);
    let output = next_holder.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "clean\n"), "{}", output.stderr);
    fixture.assert_no_traces(&ALL);
}

#[test]
fn waiters_are_served_first_come_first_served() {
    let fixture = Fixture::old().ttl("10m");
    let run = fixture.witness();
    let order = fixture.place.arg("order");
    let waiters: Vec<_> = (0..4)
        .map(|number| {
            let text = format!("echo {number} >>'{order}'");
            let mut waiter = fixture.run().args(["-v", "--wait", "forever"]).sh(&text).spawn();
            waiter.await_stderr(&format!("position {}", number + 1));
            waiter
        })
        .collect();
    fixture.assert_undisturbed(run);
    for mut waiter in waiters {
        assert_eq!(waiter.wait().exit, Exit::Code(0));
    }
    assert_eq!(fixture.place.read("order"), "0\n1\n2\n3\n");
    fixture.assert_no_traces(&ALL);
}

/// F41
#[test]
fn a_dead_waiter_at_the_head_blocks_no_other() {
    let fixture = Fixture::old().ttl("10m");
    let run = fixture.witness();
    let head = fixture.next_holder();
    let mut next = fixture.next_holder();
    head.signal(Signal::SIGKILL);
    fixture.assert_undisturbed(run);
    assert_eq!(next.wait().exit, Exit::Code(0));
}

/// F41
#[test]
fn a_stopped_waiter_at_the_head_blocks_no_other() {
    let fixture = Fixture::old().ttl("10m");
    let run = fixture.witness();
    let mut head = fixture.next_holder();
    let mut next = fixture.next_holder();
    head.signal(Signal::SIGSTOP);
    fixture.assert_undisturbed(run);
    assert_eq!(next.wait().exit, Exit::Code(0));
    head.signal(Signal::SIGCONT);
    assert_eq!(head.wait().exit, Exit::Code(0));
    fixture.assert_no_traces(&ALL);
}

#[test]
fn an_expired_wait_leaves_no_trace() {
    let fixture = Fixture::old();
    let run = fixture.witness();
    let output = fixture.run().args(["--wait", "300ms"]).command(["true"]).output();
    assert_eq!(output.exit, Exit::Code(75), "{}", output.stderr);
    fixture.assert_no_traces_of(&ALL, "queue");
    fixture.assert_no_traces_of(&ALL, "waiters");
    fixture.assert_undisturbed(run);
}

/// S05
#[test]
fn a_signal_ends_a_wait_and_leaves_no_trace() {
    let fixture = Fixture::old().ttl("10m");
    let run = fixture.witness();
    let mut next_holder = fixture.next_holder();
    next_holder.signal(Signal::SIGTERM);
    assert_eq!(next_holder.wait().exit, Exit::by(Signal::SIGTERM));
    fixture.assert_no_traces_of(&ALL, "queue");
    fixture.assert_no_traces_of(&ALL, "waiters");
    fixture.assert_undisturbed(run);
}

#[test]
fn a_run_without_waiting_does_not_overtake_waiters() {
    let fixture = Fixture::old().ttl("10m");
    let run = fixture.witness();
    let next_holder = fixture.next_holder();
    // Called, it cannot claim.
    next_holder.signal(Signal::SIGSTOP);
    fixture.assert_undisturbed(run);
    let output = fixture.run().command(["true"]).output();
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stderr);
    next_holder.signal(Signal::SIGCONT);
    let mut next_holder = next_holder;
    assert_eq!(next_holder.wait().exit, Exit::Code(0));
}

/// F09
#[test]
fn the_end_of_a_foreign_hold_is_noticed_at_once() {
    let fixture = Fixture::old().ttl("10m");
    fixture.foreign_lock(&ALL, "somebody else's");
    let mut waiter = fixture.run().args(["-v", "--wait", "forever"]).command(["echo", "ran"]).spawn();
    waiter.await_stderr("waiting");
    for node in ALL {
        fixture.masters.node(node).command(&["DEL", KEY]);
    }
    assert_eq!(waiter.wait().stdout, "ran\n");
}

#[test]
fn waiters_do_not_poll() {
    let fixture = Fixture::old().ttl("10m");
    // From here on the nodes have the scripts.
    assert_eq!(fixture.run().command(["true"]).output().exit, Exit::Code(0));
    let run = fixture.witness();
    let mut waiter = fixture.run().args(["-v", "--wait", "2s"]).command(["true"]).spawn();
    waiter.await_stderr("waiting");
    let monitor = Monitor::of(fixture.masters.node(0));
    assert_eq!(waiter.wait().exit, Exit::Code(75));
    let asked = monitor.requests().len();
    assert!(asked <= 3, "{asked} requests within two seconds: a last question, and the end of it");
    fixture.assert_undisturbed(run);
}

#[test]
fn a_hold_survives_failing_nodes_while_another_client_waits() {
    let mut fixture = Fixture::old().ttl("6s");
    let run = fixture.witness();
    let mut next_holder = fixture.next_holder();
    for node in [0, 3] {
        fixture.masters.restart_empty(node);
        fixture.await_held_at(&[node]);
    }
    crate::support::wait::throughout(Duration::from_secs(2), "one waiter", || next_holder.poll().is_none());
    fixture.assert_undisturbed(run);
    let output = next_holder.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "clean\n"), "{}", output.stderr);
}

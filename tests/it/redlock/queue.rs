//! Waiting for a lock at a majority: by notification, in one queue.

use super::scene::{ALL, KEY, Scene};
use crate::support::monitor::Monitor;
use crate::support::running::Exit;
use nix::sys::signal::Signal;
use std::time::Duration;

#[test]
fn a_waiter_is_notified_when_the_lock_is_released() {
    let scene = Scene::old().ttl("10m");
    let run = scene.witness();
    let mut heir = scene.heir();
    scene.assert_undisturbed(run);
    let output = heir.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "clean\n"), "{}", output.stderr);
    assert_eq!(scene.traces(&ALL), [""; 0]);
}

#[test]
fn waiters_are_served_first_come_first_served() {
    let scene = Scene::old().ttl("10m");
    let run = scene.witness();
    let order = scene.place.arg("order");
    let waiters: Vec<_> = (0..4)
        .map(|number| {
            let text = format!("echo {number} >>'{order}'");
            let mut waiter = scene.run().args(["-v", "--wait", "forever"]).sh(&text).spawn();
            waiter.await_stderr(&format!("position {}", number + 1));
            waiter
        })
        .collect();
    scene.assert_undisturbed(run);
    for mut waiter in waiters {
        assert_eq!(waiter.wait().exit, Exit::Code(0));
    }
    assert_eq!(scene.place.read("order"), "0\n1\n2\n3\n");
    assert_eq!(scene.traces(&ALL), [""; 0]);
}

/// F41
#[test]
fn a_dead_waiter_at_the_head_blocks_no_other() {
    let scene = Scene::old().ttl("10m");
    let run = scene.witness();
    let head = scene.heir();
    let mut next = scene.heir();
    head.signal(Signal::SIGKILL);
    scene.assert_undisturbed(run);
    assert_eq!(next.wait().exit, Exit::Code(0));
}

/// F41
#[test]
fn a_stopped_waiter_at_the_head_blocks_no_other() {
    let scene = Scene::old().ttl("10m");
    let run = scene.witness();
    let mut head = scene.heir();
    let mut next = scene.heir();
    head.signal(Signal::SIGSTOP);
    scene.assert_undisturbed(run);
    assert_eq!(next.wait().exit, Exit::Code(0));
    head.signal(Signal::SIGCONT);
    assert_eq!(head.wait().exit, Exit::Code(0));
    assert_eq!(scene.traces(&ALL), [""; 0]);
}

#[test]
fn an_expired_wait_leaves_no_trace() {
    let scene = Scene::old();
    let run = scene.witness();
    let output = scene.run().args(["--wait", "300ms"]).command(["true"]).output();
    assert_eq!(output.exit, Exit::Code(75), "{}", output.stderr);
    let lines = scene.traces(&ALL).into_iter().filter(|key| key.contains("queue") || key.contains("waiters"));
    assert_eq!(lines.count(), 0);
    scene.assert_undisturbed(run);
}

/// S05
#[test]
fn a_signal_ends_a_wait_and_leaves_no_trace() {
    let scene = Scene::old().ttl("10m");
    let run = scene.witness();
    let mut heir = scene.heir();
    heir.signal(Signal::SIGTERM);
    assert_eq!(heir.wait().exit, Exit::by(Signal::SIGTERM));
    let lines = scene.traces(&ALL).into_iter().filter(|key| key.contains("queue") || key.contains("waiters"));
    assert_eq!(lines.count(), 0);
    scene.assert_undisturbed(run);
}

#[test]
fn a_run_without_waiting_does_not_overtake_waiters() {
    let scene = Scene::old().ttl("10m");
    let run = scene.witness();
    let heir = scene.heir();
    // Called, it cannot claim.
    heir.signal(Signal::SIGSTOP);
    scene.assert_undisturbed(run);
    let output = scene.run().command(["true"]).output();
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stderr);
    heir.signal(Signal::SIGCONT);
    let mut heir = heir;
    assert_eq!(heir.wait().exit, Exit::Code(0));
}

/// F09
#[test]
fn the_end_of_a_foreign_hold_is_noticed_at_once() {
    let scene = Scene::old().ttl("10m");
    scene.foreign_lock(&ALL, "somebody else's");
    let mut waiter = scene.run().args(["-v", "--wait", "forever"]).command(["echo", "ran"]).spawn();
    waiter.await_stderr("waiting");
    for node in ALL {
        scene.masters.node(node).command(&["DEL", KEY]);
    }
    assert_eq!(waiter.wait().stdout, "ran\n");
}

#[test]
fn waiters_do_not_poll() {
    let scene = Scene::old().ttl("10m");
    let run = scene.witness();
    let mut waiter = scene.run().args(["-v", "--wait", "2s"]).command(["true"]).spawn();
    waiter.await_stderr("waiting");
    let monitor = Monitor::of(scene.masters.node(0));
    assert_eq!(waiter.wait().exit, Exit::Code(75));
    let asked = monitor.requests().len();
    assert!(asked <= 3, "{asked} requests within two seconds: a last question, and the end of it");
    scene.assert_undisturbed(run);
}

#[test]
fn a_hold_survives_failing_nodes_while_another_client_waits() {
    let mut scene = Scene::old();
    let run = scene.witness();
    let mut heir = scene.heir();
    for node in [0, 3] {
        scene.masters.restart_empty(node);
        scene.await_held_at(&[node]);
    }
    crate::support::wait::throughout(Duration::from_secs(2), "one who waits", || heir.poll().is_none());
    scene.assert_undisturbed(run);
    let output = heir.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "clean\n"), "{}", output.stderr);
}

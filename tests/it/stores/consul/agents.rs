//! The agent through which a lock was taken ends, and with it or not the session, which belongs to its node.

use crate::support::SOON;
use crate::support::consul::Consul;
use crate::support::consul::ensemble::Ensemble;
use crate::support::dlock::Dlock;
use crate::support::process;
use crate::support::running::{Exit, Running};
use crate::support::wait::{throughout, until};
use nix::sys::signal::Signal;
use serde_json::json;
use std::time::{Duration, Instant};

const TTL: Duration = Duration::from_secs(10);
const KEY: &str = "dlock/x/.lock";

/// Starts a run that holds the lock through this agent.
fn holder(agent: &Consul, ttl: &str) -> Running {
    let run = Dlock::run().backend(agent.url()).args(["--ttl", ttl, "--grace", "0s"]);
    let mut run = run.sh("trap '' TERM; echo ready; while :; do sleep 600; done").spawn();
    run.await_ready();
    run
}

/// Waits until another client gets the lock of a run, which is when its command is dead and at most this long after it was
/// lost. Returns what the run has said.
fn assert_handed_over(mut run: Running, command: i32, other: &Consul, limit: Duration) -> String {
    let began = Instant::now();
    let foreign = other.session(None);
    until(limit + SOON, "the lock", || {
        let is_locked = other.lock(KEY, &foreign);
        assert!(!is_locked || !process::alive(command), "two holders after {:?}", began.elapsed());
        is_locked
    });
    assert!(began.elapsed() < limit + Duration::from_secs(10), "{:?}", began.elapsed());
    let ended = run.wait();
    assert_eq!(ended.exit, Exit::Code(76));
    assert!(other.unlock(KEY, &foreign));
    ended.stderr
}

/// An agent that leaves removes its node, and all sessions of the node with it (hashicorp/consul#20424), whatever checks they
/// have.
#[test]
fn an_agent_that_leaves_ends_the_command_before_others_get_the_lock() {
    let ensemble = Ensemble::start();
    let leader = ensemble.leader(0, None);
    let (leaving, other) = (&ensemble.servers[(leader + 1) % 3], &ensemble.servers[leader]);
    let run = holder(leaving, "10s");
    let command = run.command();
    let mut leave = std::process::Command::new(Consul::program());
    leave.args(["leave", &format!("-http-addr=127.0.0.1:{}", leaving.port())]);
    let left = leave.output().unwrap();
    assert!(left.status.success(), "{left:?}");
    until(SOON, "the end of the session", || other.holder(KEY).is_none());
    assert_handed_over(run, command, other, TTL);
}

/// What a service manager does to the agent of a host that is shut down: it leaves, too, as an agent that is not a server does
/// by itself then (`leave_on_terminate`).
#[test]
fn an_agent_that_is_terminated_ends_the_command_before_others_get_the_lock() {
    let ensemble = Ensemble::start();
    let other = &ensemble.servers[0];
    let run = holder(&ensemble.client, "10s");
    let command = run.command();
    process::send(ensemble.client.daemon().pid(), Signal::SIGTERM);
    until(SOON, "the end of the session", || other.holder(KEY).is_none());
    let said = assert_handed_over(run, command, other, TTL);
    assert!(said.contains(": the lock was lost: it is gone from the store"), "{said}");
}

/// A node that is removed while its agent hangs: the run cannot know that its session has ended.
#[test]
fn nobody_gets_the_lock_before_the_command_is_dead_although_nobody_can_tell_it() {
    let ensemble = Ensemble::start();
    let other = &ensemble.servers[0];
    let run = holder(&ensemble.client, "10s");
    let command = run.command();
    ensemble.client.daemon().stop();
    let removed = other.json("PUT", "catalog/deregister", &json!({"Node": "node3"}));
    assert_eq!(removed, json!(true));
    assert_eq!(other.holder(KEY), None);
    assert_handed_over(run, command, other, TTL);
}

/// The node of an agent that has crashed stays.
#[test]
fn an_agent_that_crashes_and_returns_does_not_disturb_the_command() {
    let mut ensemble = Ensemble::start();
    let mut run = holder(&ensemble.client, "45s");
    let session = ensemble.servers[0].holder(KEY);
    ensemble.client.restart();
    throughout(Duration::from_secs(17), "the command runs on", || run.poll().is_none());
    assert!(session.is_some() && ensemble.servers[0].holder(KEY) == session);
}

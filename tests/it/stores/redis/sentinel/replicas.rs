//! `wait_replicas`: a lock that only the master has is not granted.

use super::stage::FakeService;
use crate::support::SOON;
use crate::support::redis::Redis;
use crate::support::resp::Value;
use crate::support::running::Exit;
use crate::support::wait::until;

fn url(stage: &FakeService, count: u32) -> String {
    format!("{}?wait_replicas={count}", stage.url())
}

fn too_few(stage: &FakeService, count: u32, wanted: u32, ms: u32) -> String {
    format!(
        "dlock: x on {}: only {count} of {wanted} replicas have confirmed the lock within {ms} ms (wait_replicas); the \
         command did not run, see --retry\n",
        url(stage, wanted)
    )
}

#[test]
fn a_lock_confirmed_by_a_replica_is_granted() {
    let stage = FakeService::with_replica();
    let key = "dlock:x";
    let mut run = stage.witness(stage.run().backend(url(&stage, 1)));
    // Confirmed data needs no further wait.
    assert_eq!(stage.servers[0].command(&["GET", key]), stage.servers[1].command(&["GET", key]));
    assert!(stage.is_held(1));
    stage.await_renewal(0);
    stage.go();
    assert_eq!(run.wait().outcome(), (Exit::Code(5), "ready\n", ""));
}

#[test]
fn a_lock_confirmed_by_too_few_replicas_is_released() {
    let stage = FakeService::with_replica();
    let run = stage.run().backend(url(&stage, 2)).command(["touch", "ran"]);
    let output = run.output();
    assert_eq!(output.outcome(), (Exit::Code(69), "", too_few(&stage, 1, 2, 1000).as_str()));
    assert!(!stage.is_held(0), "the lock is left");
    assert!(!stage.place.path("ran").exists(), "the command ran");
}

#[test]
fn a_lock_that_a_hung_replica_does_not_confirm_is_released() {
    let stage = FakeService::with_replica();
    stage.servers[1].stop();
    let output = stage.run_with_ttl("60s").backend(url(&stage, 1)).command(["touch", "ran"]).output();
    assert_eq!(output.outcome(), (Exit::Code(69), "", too_few(&stage, 0, 1, 1000).as_str()));
    assert!(!stage.is_held(0), "the lock is left");
    assert!(!stage.place.path("ran").exists(), "the command ran");
    // With a wait it is granted when the replica replies again.
    let mut run = stage.run().backend(url(&stage, 1)).args(["--retry", "25s"]).command(["true"]).spawn();
    until(SOON, "an attempt", || stage.is_held(0));
    stage.servers[1].resume();
    assert_eq!(run.wait().outcome(), (Exit::Code(0), "", ""));
}

/// Notifications of the master reach a client whose replicas are silent.
#[test]
fn a_waiter_is_granted_a_lock_confirmed_by_a_replica() {
    let stage = FakeService::with_replica();
    let first = stage.witness(stage.run().backend(url(&stage, 1)));
    let mut next = stage.run().backend(url(&stage, 1)).args(["--wait", "forever"]).command(["true"]).spawn();
    until(SOON, "one waiter", || stage.waiters(0) == 1);
    stage.go();
    let mut first = first;
    assert_eq!(first.wait().exit, Exit::Code(5));
    assert_eq!(next.wait().outcome(), (Exit::Code(0), "", ""));
}

/// That the lock is held is known without the replicas.
#[test]
fn busy_is_reported_when_replicas_hang() {
    let stage = FakeService::with_replica();
    stage.take_for_another(0);
    stage.servers[1].stop();
    let output = stage.run().backend(url(&stage, 1)).command(["true"]).output();
    assert_eq!(output.exit, Exit::Code(75), "{}", output.stderr);
}

#[test]
fn a_single_server_waits_for_its_replicas() {
    let master = Redis::start();
    let place = crate::support::place::Place::new();
    let url = format!("{}?wait_replicas=1", master.url());
    let output = place.run().backend(&url).args(["--ttl", "3s"]).command(["true"]).output();
    let line = format!(
        "dlock: x on {url}: only 0 of 1 replicas have confirmed the lock within 750 ms (wait_replicas); the command did not \
         run, see --retry\n"
    );
    assert_eq!(output.outcome(), (Exit::Code(69), "", line.as_str()));
    let replica = Redis::start_with_args(&["--replicaof", "127.0.0.1", &master.port().to_string()]);
    let run = place.run().backend(&url).args(["--ttl", "3s", "--retry", "25s"]).command(["true"]);
    assert_eq!(run.output().outcome(), (Exit::Code(0), "", ""));
    drop(replica);
}

#[test]
fn a_missing_right_is_named_and_the_lock_is_released() {
    let redis = Redis::start_with_args(&["--user", "default", "on", "nopass", "~*", "&*", "+@all", "-wait"]);
    let url = format!("{}?wait_replicas=1", redis.url());
    let output = crate::support::place::Place::new().run().backend(url).command(["true"]).output();
    assert_eq!(output.exit, Exit::Code(77), "{}", output.stderr);
    assert!(output.stderr.contains("'wait'"), "{}", output.stderr);
    assert_eq!(redis.command(&["EXISTS", "dlock:x"]), Value::Int(0));
}

#[test]
fn a_lease_without_a_process_waits_for_replicas() {
    let stage = FakeService::new();
    let acquire = stage.place.bare().args(["acquire", "--ttl", "3s", "-b", &url(&stage, 1), "x"]).output();
    assert_eq!((acquire.exit, acquire.stdout.as_str()), (Exit::Code(69), ""), "{}", acquire.stderr);
    assert!(!stage.is_held(0), "the lock is left");
}

#[test]
fn status_shows_the_required_replicas() {
    let stage = FakeService::new();
    let status = stage.place.bare().args(["status", "-b", &url(&stage, 3)]).output();
    assert_eq!(status.stdout.lines().next(), Some(url(&stage, 3).as_str()));
}

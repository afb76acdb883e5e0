//! What happens to the key, the lease and the members while a lock is held or awaited.

use super::forger::Forger;
use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::etcd::{Ensemble, Etcd};
use crate::support::process;
use crate::support::proxy::Proxy;
use crate::support::running::{Exit, Running};
use crate::support::wait::until;
use std::time::{Duration, Instant};

/// Long enough for renewals on a busy machine, and for a difference between a loss that is noticed and the end of a lease.
const TTL: Duration = Duration::from_secs(6);

fn run(url: &str) -> Dlock {
    Dlock::run().backend(url)
}

/// Starts a run that holds the lock.
fn holder(url: &str) -> Running {
    let mut run = run(url).args(["--ttl", "6s"]).sh("echo ready; exec sleep 600").spawn();
    run.await_ready();
    run
}

/// The run that uses this URL must be stopped because its key is gone, and not because its lease ends.
#[track_caller]
fn assert_stopped(url: &str, run: &mut Running, command: i32, etcd: &Etcd, since: Instant) {
    let output = run.wait();
    assert!(since.elapsed() < TTL, "stopped after {:?}", since.elapsed());
    let lost = format!(
        "dlock: x on {url}: the lock was lost: it is gone from the store (deleted, expired or evicted); the command was stopped\n"
    );
    assert_eq!((output.exit, output.stderr), (Exit::Code(76), lost));
    assert!(!process::alive(command));
    assert!(etcd.client().keys("/dlock/x/").is_empty(), "a key was created again");
}

/// A keep-alive that succeeds proves nothing, even if no watch reports the end of the key: only a read does.
#[test]
fn a_keep_alive_that_lies_does_not_keep_the_command() {
    for withholds_events in [false, true] {
        let etcd = Etcd::lent();
        let forger = Forger::to(etcd.port(0));
        let url = format!("etcd://127.0.0.1:{}", forger.port());
        let mut run = holder(&url);
        let (command, lease) = (run.command(), etcd.client().keys("/dlock/x/")[0].lease);
        forger.forge_keep_alives();
        if withholds_events {
            forger.withhold_events();
        }
        // Its read comes after the keep-alive.
        let is_heartbeat = |replies: &[String]| replies == ["LeaseKeepAlive", "Txn"];
        until(SOON, "a heartbeat", || forger.methods().windows(2).any(is_heartbeat));
        let (began, before) = (Instant::now(), forger.keep_alives());
        assert!(etcd.client().revoke(lease));
        assert_stopped(&url, &mut run, command, &etcd, began);
        assert!(forger.keep_alives() > before, "no keep-alive was sent after the revocation");
    }
}

/// A key of the same name is not the same entry.
#[test]
fn a_key_that_was_created_anew_is_not_touched() {
    let etcd = Etcd::lent();
    let mut run = holder(&etcd.url());
    let (client, key) = (etcd.client(), etcd.client().keys("/dlock/x/").remove(0));
    client.delete(&key.name);
    client.put(&key.name, "", 0);
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
    let left = client.keys("/dlock/x/");
    assert_eq!(left.iter().map(|key| key.value.as_str()).collect::<Vec<_>>(), [""]);
}

/// F35: what happened while the waiter was away is not in the store any more.
#[test]
fn a_waiter_survives_a_compaction() {
    let etcd = Etcd::lent();
    let proxy = Proxy::to(etcd.port(0));
    let mut holder = holder(&etcd.url());
    let url = format!("etcd://127.0.0.1:{}", proxy.port());
    let mut waiter = run(&url).args(["--wait", "1m"]).sh("echo ran").spawn();
    until(SOON, "a waiter", || etcd.client().keys("/dlock/x/").len() == 2);
    proxy.refuse();
    proxy.close();
    etcd.client().put("other", "", 0);
    holder.signal(nix::sys::signal::Signal::SIGTERM);
    holder.wait();
    etcd.client().put("other", "", 0);
    etcd.client().compact();
    proxy.heal();
    let output = waiter.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", output.stderr);
}

/// F35
#[test]
fn a_run_survives_the_loss_of_the_leader() {
    let mut ensemble = Ensemble::lent();
    let etcd = &mut ensemble.0;
    let mut run = run(&etcd.url())
        .args(["--ttl", "12s"])
        .sh("echo ready; read line; exit 5")
        .stdin(std::process::Stdio::piped())
        .spawn();
    run.await_ready();
    let leader = etcd.leader();
    etcd.kill(leader);
    let began = Instant::now();
    // Longer than the lease that was extended before.
    until(SOON, "a time", || began.elapsed() > TTL * 2 + Duration::from_secs(1));
    run.assert_running();
    drop(run.take_stdin());
    assert_eq!(run.wait().exit, Exit::Code(5));
    assert!(etcd.client().keys("/dlock/x/").is_empty());
    etcd.restart(leader);
}

/// F04: a single member that restarts keeps its keys and leases.
#[test]
fn a_run_survives_a_restart_of_the_member() {
    let mut etcd = Etcd::start();
    let mut run = run(&etcd.url())
        .args(["--ttl", "15s"])
        .sh("echo ready; read line; exit 5")
        .stdin(std::process::Stdio::piped())
        .spawn();
    run.await_ready();
    let key = etcd.client().keys("/dlock/x/").remove(0).name;
    etcd.restart_all();
    let began = Instant::now();
    // Longer than the lease that was extended before.
    until(SOON, "a time", || began.elapsed() > Duration::from_secs(16));
    assert_eq!(etcd.client().keys("/dlock/x/").remove(0).name, key);
    drop(run.take_stdin());
    assert_eq!(run.wait().exit, Exit::Code(5));
}

/// Nothing of a run is left but what the history needs.
#[test]
fn a_run_leaves_no_key_and_no_lease() {
    let etcd = Etcd::lent();
    let mut holder = holder(&etcd.url());
    let refused = run(&etcd.url()).arg("--no-wait").sh("echo ran").output();
    assert_eq!(refused.exit, Exit::Code(75), "{}", refused.stderr);
    let given_up = run(&etcd.url()).args(["--wait", "100ms"]).sh("echo ran").output();
    assert_eq!(given_up.exit, Exit::Code(75), "{}", given_up.stderr);
    assert_eq!(etcd.client().leases().unwrap().len(), 1, "that of the holder");
    holder.signal(nix::sys::signal::Signal::SIGTERM);
    holder.wait();
    let names: Vec<String> = etcd.client().keys("").into_iter().map(|key| key.name).collect();
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["dlock#beside//dlock/x", "dlock#last//dlock/x"]);
    assert_eq!(etcd.client().leases().unwrap(), [0; 0]);
}

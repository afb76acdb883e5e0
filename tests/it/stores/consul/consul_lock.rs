//! `consul lock`, which takes the same key.

use crate::stores::conformance::client::Client;
use crate::stores::conformance::rig::on_one_thread;
use crate::support::SOON;
use crate::support::consul::{Consul, SEMAPHORE_FLAGS, path};
use crate::support::place::Place;
use crate::support::proxy::Proxy;
use crate::support::running::Exit;
use crate::support::wait::{throughout, until};
use dlock::backend::Renewal;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Starts `consul lock` with these arguments before the prefix of the lock x, around a command.
pub fn consul_lock(consul: &Consul, arguments: &[&str], command: &str) -> Child {
    let mut lock = Command::new(Consul::program());
    lock.args(["lock", &format!("-http-addr=127.0.0.1:{}", consul.port())]).args(arguments);
    lock.args(["dlock/x", command]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    lock.spawn().unwrap()
}

/// Starts one that holds the lock until its standard input ends.
pub fn foreign_holder(consul: &Consul, arguments: &[&str]) -> Child {
    let mut holder = consul_lock(consul, arguments, "echo ready; exec cat");
    let mut line = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    holder
}

#[test]
fn a_run_is_excluded_by_consul_lock_and_notified_of_its_end() {
    let (place, consul) = (Place::new(), Consul::lent());
    let mut holder = foreign_holder(&consul, &["-pass-stdin"]);
    let run = || place.run().backend(consul.url());
    let hasty = run().sh("echo ran").output();
    assert_eq!((hasty.exit, hasty.stdout.as_str()), (Exit::Code(75), ""), "{}", hasty.stderr);
    assert!(hasty.stderr.contains("is held by another program"), "{hasty:?}");
    let status = place.bare().args(["status", "-b", &consul.url(), "x"]).output();
    assert!(status.stdout.contains("foreign") || status.stdout.contains("session "), "{status:?}");
    let mut waiter = run().args(["-v", "--wait", "5m", "--ttl", "90s"]).sh("echo ran").spawn();
    waiter.await_stderr("waiting");
    throughout(Duration::from_secs(1), "excluded", || waiter.poll().is_none());
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
    let left = Instant::now();
    let waited = waiter.wait();
    assert_eq!((waited.exit, waited.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", waited.stderr);
    // Long before it would ask again by itself, about once in a lease.
    assert!(left.elapsed() < Duration::from_secs(20), "{:?}", left.elapsed());
    assert_eq!(consul.sessions(), [""; 0], "a session was left");
}

#[test]
fn consul_lock_is_excluded_by_a_run_and_gets_the_lock_after_it() {
    let (place, consul) = (Place::new(), Consul::lent());
    let run = place.run().backend(consul.url()).args(["--ttl", "90s"]).stdin(Stdio::piped());
    let mut run = run.sh("echo ready; exec cat").spawn();
    run.await_ready();
    let hasty = consul_lock(&consul, &["-try=1s"], "echo ran").wait_with_output().unwrap();
    assert!(!hasty.status.success() && hasty.stdout.is_empty(), "{hasty:?}");
    let mut waiter = consul_lock(&consul, &[], "echo ran");
    throughout(Duration::from_secs(1), "excluded", || waiter.try_wait().unwrap().is_none());
    drop(run.take_stdin());
    assert_eq!(run.wait().outcome(), (Exit::Code(0), "ready\n", ""));
    let left = Instant::now();
    let waited = waiter.wait_with_output().unwrap();
    assert_eq!((waited.status.success(), String::from_utf8_lossy(&waited.stdout).as_ref()), (true, "ran\n"));
    // The lock was released before its session was ended, so that there is no delay, which would be 60s.
    assert!(left.elapsed() < Duration::from_secs(25), "{:?}", left.elapsed());
}

/// Both use the same key in different ways: neither touches that of the other.
#[test]
fn the_key_of_a_semaphore_is_refused_and_left_alone() {
    let (place, consul) = (Place::new(), Consul::lent());
    let mut holder = foreign_holder(&consul, &["-n=2", "-pass-stdin"]);
    let before = consul.ask("GET", "kv/dlock/x/.lock", b"");
    let run = || place.run().backend(consul.url());
    let refused = run().args(["--wait", "1m"]).sh("echo ran").output();
    let expected = format!(
        "dlock: x on {}: the key dlock/x/.lock is not that of a lock (it lacks the flags 3304740253564472344): another program \
         uses it, such as consul lock -n (see recipe=semaphore); the command did not run\n",
        consul.url()
    );
    assert_eq!(refused.outcome(), (Exit::Code(78), "", expected.as_str()));
    assert_eq!(consul.ask("GET", "kv/dlock/x/.lock", b""), before);
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
    assert!(consul.wipe());
    let mut run = run().stdin(Stdio::piped()).sh("echo ready; exec cat").spawn();
    run.await_ready();
    let semaphore = consul_lock(&consul, &["-n=2", "-try=1s"], "echo ran").wait_with_output().unwrap();
    assert!(!semaphore.status.success() && semaphore.stdout.is_empty(), "{semaphore:?}");
    drop(run.take_stdin());
    assert_eq!(run.wait().outcome(), (Exit::Code(0), "ready\n", ""));
}

/// Locking a key does not look at what it is.
#[test]
fn a_key_that_another_program_has_made_after_the_read_is_refused_and_left_alone() {
    let (place, consul) = (Place::new(), Consul::lent());
    for flags in [SEMAPHORE_FLAGS, 0] {
        let proxy = Proxy::to(consul.port());
        // The keys are read, and the session is made.
        proxy.hold_reply_after(1);
        let run = place.run().backend(format!("consul://127.0.0.1:{}", proxy.port()));
        let mut run = run.args(["--wait", "1m"]).sh("echo ran").spawn();
        until(SOON, "a session", || proxy.is_holding());
        let key = format!("kv/{}?flags={flags}", path("dlock/x/.lock"));
        assert_eq!(consul.ask("PUT", &key, b"{}").0, 200);
        let before = consul.ask("GET", "kv/dlock/x/.lock", b"");
        proxy.heal();
        let output = run.wait();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(78), ""), "{}", output.stderr);
        assert!(output.stderr.contains("is not that of a lock"), "{}", output.stderr);
        assert_eq!(consul.ask("GET", "kv/dlock/x/.lock", b""), before);
        assert_eq!(consul.sessions(), [""; 0], "a session was left");
        assert!(consul.wipe());
    }
}

/// The session of a foreign client is not taken for that of the outer hold, and not ended with the inner one.
#[test]
fn an_inner_hold_does_not_adopt_the_session_of_a_foreign_client() {
    let consul = Consul::lent();
    on_one_thread(async {
        let [mut outer, mut inner] = [(); 2].map(|()| Client::at(&consul.url(), "x"));
        outer.acquire().await;
        inner.claim.outer = vec![outer.claim.token.clone()];
        inner.acquire().await;
        let foreign = consul.session(None);
        consul.ask("DELETE", "kv/dlock/x/.lock", b"");
        assert!(consul.lock("dlock/x/.lock", &foreign));
        for client in [&mut inner, &mut outer] {
            assert!(matches!(client.renew().await, Renewal::Lost(_)));
            client.release().await;
        }
        assert_eq!(consul.holder("dlock/x/.lock"), Some(foreign), "it was ended, or has lost the lock");
    });
}

/// The session is that of the outer hold: the inner one has to notice its end before a foreign client is granted the lock.
#[test]
fn the_lease_of_an_inner_hold_is_no_longer_than_the_session() {
    let consul = Consul::lent();
    on_one_thread(async {
        let [mut outer, mut inner, mut short] = [30, 600, 12]
            .map(|seconds| Client::at(&consul.url(), "x").with_ttl(Duration::from_secs(seconds)));
        let lease = outer.acquire().await.lease;
        assert!(lease.is_some_and(|lease| lease <= outer.claim.ttl));
        for inner in [&mut inner, &mut short] {
            inner.claim.outer = vec![outer.claim.token.clone()];
            let granted = inner.acquire().await.lease;
            assert_eq!(granted, lease.map(|lease| lease.min(inner.claim.ttl)));
            assert!(matches!(inner.renew().await, Renewal::Held { lease, .. } if lease == granted));
        }
        for client in [&mut short, &mut inner, &mut outer] {
            client.release().await;
        }
    });
}

/// A foreign client that waits is served although dlocks wait: it is not in their queue.
#[test]
fn waiters_of_both_kinds_are_all_served() {
    let (place, consul) = (Place::new(), Consul::lent());
    let log = place.arg("log");
    let mut first =
        place.run().backend(consul.url()).stdin(Stdio::piped()).sh("echo ready; exec cat").spawn();
    first.await_ready();
    let mut foreign: Vec<Child> =
        (0..2).map(|number| consul_lock(&consul, &[], &format!("echo f{number} >> {log}"))).collect();
    let mut own: Vec<_> = (0..3)
        .map(|number| {
            let text = format!("echo d{number} >> {log}");
            place.run().backend(consul.url()).args(["--wait", "2m"]).sh(&text).spawn()
        })
        .collect();
    until(SOON, "the queue", || {
        let ledger = consul.value("dlock/x/.lock.dlock").unwrap_or_default();
        let ledger: serde_json::Value = serde_json::from_str(&ledger).unwrap_or_default();
        ledger["line"].as_array().is_some_and(|line| line.len() == 3)
    });
    drop(first.take_stdin());
    assert_eq!(first.wait().exit, Exit::Code(0));
    own.iter_mut().for_each(|run| assert_eq!(run.wait().exit, Exit::Code(0)));
    foreign.iter_mut().for_each(|lock| assert!(lock.wait().unwrap().success()));
    let mut ran: Vec<String> = place.read("log").lines().map(str::to_owned).collect();
    ran.sort();
    assert_eq!(ran, ["d0", "d1", "d2", "f0", "f1"]);
}

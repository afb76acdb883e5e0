//! What is wrong with the servers or the URL, in a sentence.

use super::forger::Forger;
use crate::stores::refusal::{assert_invalid, assert_refused};
use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::etcd::{Ensemble, Etcd, Plan};
use crate::support::fake::Fake;
use crate::support::place::Place;
use crate::support::process;
use crate::support::running::Exit;
use crate::support::wait::until;
use serde_json::{Value, json};
use std::process::Stdio;
use std::time::{Duration, Instant};

#[test]
fn a_url_names_the_members_and_nothing_else() {
    assert_invalid([
        ("etcd://", "etcd:// takes the members of a cluster, such as etcd://h1,h2,h3"),
        ("etcds://h/locks", "etcds:// has no path: set the prefix of keys with prefix="),
        ("etcd://h,h:2379", "h:2379 is named twice"),
        (
            "etcd://h?db=1",
            "unknown option 'db' for etcd:// (known: prefix, username, password_file, ca_file, cert_file, key_file, server_name, insecure, require_verified_tls)",
        ),
        ("etcd://h?ca_file=/x", "'ca_file' needs TLS: use etcds:// instead of etcd://"),
        (
            "etcd://me@h",
            "a username without a password: add it to the URL, as password_file=, or as ETCDCTL_USER",
        ),
    ]);
}

#[test]
fn a_server_of_another_kind_is_recognised() {
    let http = Fake::answering_once(*b"HTTP/1.1 400 Bad Request\r\n\r\n");
    let url = format!("etcd://127.0.0.1:{}", http.port());
    let message = format!(
        "x on {url}: the server does not speak HTTP/2: it is not etcd with the v3 API, or this is not its client port; the command did not run"
    );
    assert_refused(&url, 78, &message);
}

/// A lock can be given back without space, but not taken.
#[test]
fn a_cluster_without_space_is_named() {
    let etcd = Etcd::start();
    let mut holder = Dlock::run().backend(etcd.url()).name("held").sh("echo ready; exec sleep 600").spawn();
    holder.await_ready();
    let once = Dlock::run().backend(etcd.url()).name("once").args(["--once-per", "1h"]);
    let mut once = once.stdin(Stdio::piped()).sh("echo ready; exec cat").spawn();
    once.await_ready();
    etcd.client().post("maintenance/alarm", &json!({"action": "ACTIVATE", "alarm": "NOSPACE"}));
    let message = format!(
        "x on {}: the NOSPACE alarm is active (mvcc: database space exceeded): see dlock doctor; the command did not run, see --retry",
        etcd.url()
    );
    assert_refused(&etcd.url(), 69, &message);
    holder.signal(nix::sys::signal::Signal::SIGTERM);
    holder.wait();
    assert!(etcd.client().keys("/dlock/held/").is_empty());
    drop(once.take_stdin());
    let ended = once.wait();
    let why = "its success could not be recorded: the NOSPACE alarm is active (mvcc: database space exceeded): see dlock doctor";
    assert!(ended.exit == Exit::Code(0) && ended.stderr.contains(why), "{ended:?}");
    assert!(etcd.client().keys("/dlock/once/").is_empty());
}

/// It speaks gRPC.
#[test]
fn a_server_without_the_api_is_recognised() {
    let etcd = Etcd::lent();
    let forger = Forger::to(etcd.port(0));
    forger.hide_services();
    let url = format!("etcd://127.0.0.1:{}", forger.port());
    let message = format!(
        "x on {url}: the server does not provide the etcd v3 API (unknown service other.Service); the command did not run"
    );
    assert_refused(&url, 78, &message);
}

#[test]
fn a_name_with_a_slash_is_one_key() {
    let etcd = Etcd::lent();
    let mut holder = Dlock::run().backend(etcd.url()).name("a/b").sh("echo ready; exec sleep 600").spawn();
    holder.await_ready();
    let [key] = etcd.client().keys("/dlock/").try_into().unwrap();
    assert_eq!(key.name, format!("/dlock/a%2Fb/{:x}", key.lease));
}

/// The keys and the metadata of all locks are in one range.
#[test]
fn a_frozen_lock_without_a_prefix_is_listed_once() {
    let etcd = Etcd::lent();
    let url = format!("{}?prefix=", etcd.url());
    let dlock = |line: &str| Place::new().bare().backend(&url).args(line.split(' ')).output();
    let frozen = dlock("freeze --forever --now a b");
    assert_eq!(frozen.exit, Exit::Code(0), "{}", frozen.stderr);
    let seen: Value = serde_json::from_str(&dlock("status --json").stdout).unwrap();
    let names: Vec<_> = seen["locks"].as_array().unwrap().iter().map(|lock| &lock["name"]).collect();
    assert_eq!(names, ["a", "b"]);
}

/// The cluster grants 9 s, half more than its election takes: the shorter one of both counts.
#[test]
fn a_lease_that_the_cluster_lengthens_does_not_count() {
    let args = ["--heartbeat-interval=600", "--election-timeout=6000"].map(str::to_owned).to_vec();
    let etcd = Etcd::start_with(Plan { args, ..Plan::default() });
    let run = Dlock::run().backend(etcd.url()).args(["--ttl", "6s"]);
    let mut run = run.sh("echo ready; exec sleep 600").spawn();
    run.await_ready();
    let command = run.command();
    let lease = etcd.client().keys("/dlock/x/")[0].lease;
    let shown = etcd.client().post("lease/timetolive", &json!({"ID": lease.to_string()}));
    let granted = shown["grantedTTL"].as_str().and_then(|seconds| seconds.parse::<u64>().ok());
    assert!(granted.is_some_and(|granted| granted > 6), "{shown}");
    etcd.daemon(0).stop();
    let began = Instant::now();
    until(SOON, "the end of the command", || !process::alive(command));
    let took = began.elapsed();
    let output = run.wait();
    etcd.daemon(0).resume();
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
    assert!(took < Duration::from_secs(6), "stopped after {took:?}");
}

/// F01
#[test]
fn a_cluster_without_a_quorum_is_unavailable_in_time() {
    let mut ensemble = Ensemble::lent();
    let etcd = &mut ensemble.0;
    (0..2).for_each(|member| etcd.kill(member));
    let message = format!("x on {}: no leader; the command did not run, see --retry", etcd.url());
    let output = Dlock::run().backend(etcd.url()).args(["--connect-timeout", "20s"]).sh("echo ran").output();
    assert_eq!(output.outcome(), (Exit::Code(69), "", format!("dlock: {message}\n").as_str()));
    let output = Dlock::run().backend(etcd.url()).args(["--connect-timeout", "2s"]).sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""), "{}", output.stderr);
    assert!(output.elapsed < SOON, "{:?}", output.elapsed);
    (0..2).for_each(|member| etcd.restart(member));
}

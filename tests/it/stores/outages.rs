//! Networks that drop all packets for a while, under locks that end with a session or are renewed over one connection.

use crate::support::daemon::Host;
use crate::support::kubernetes::Kubernetes;
use crate::support::mariadb::{self, MariaDb};
use crate::support::namespace::Namespace;
use crate::support::place::Place;
use crate::support::postgres::{self, Postgres};
use crate::support::running::{Exit, Running};
use crate::support::wait::throughout;
use crate::support::zookeeper::{self, ZooKeeper};
use std::process::Stdio;
use std::time::Duration;

const TTL: Duration = Duration::from_secs(36);
/// Longer than a connection lives otherwise whose packets are not acknowledged.
const OUTAGE: Duration = Duration::from_secs(12);
/// From the grant to the outage, which begins just before the first renewal.
const BEGIN: Duration = Duration::from_millis(11_500);
/// From the grant to the moment when the command would have been stopped if it had not been renewed, and more.
const STOP: Duration = Duration::from_secs(31);

/// Starts a run under this lock that ends with its standard input.
fn hold(place: &Place, url: &str, name: &str) -> Running {
    let run = place.run().backend(url).name(name).args(["--ttl", &format!("{}s", TTL.as_secs())]);
    let mut run = run.stdin(Stdio::piped()).sh("echo ready; read line; echo done").spawn();
    run.await_ready();
    run
}

/// An outage of a third of the lease ends neither the hold whose renewal falls into it nor one that is renewed at its end.
#[track_caller]
fn assert_survived<S: 'static>(start: impl FnOnce(Host) -> (S, String, u16) + Send) {
    let network = Namespace::new();
    network.sh("nft 'add table inet f; add chain inet f i { type filter hook input priority 0; }'");
    network.enter(|| {
        let host = Host { prefix: network.prefix().to_vec(), ..Host::default() };
        let (_server, url, port) = start(host);
        let place = Place::new();
        let mut early = hold(&place, &url, "early");
        std::thread::sleep(BEGIN - Duration::from_millis(500));
        let mut late = hold(&place, &url, "late");
        std::thread::sleep(Duration::from_millis(500));
        network.sh(&format!(
            "nft 'add rule inet f i tcp dport {port} drop; add rule inet f i tcp sport {port} drop'"
        ));
        std::thread::sleep(OUTAGE);
        network.sh("nft flush chain inet f i");
        throughout(STOP - BEGIN - OUTAGE, "both commands run", || {
            early.assert_running();
            late.assert_running();
            true
        });
        for mut run in [early, late] {
            drop(run.take_stdin());
            let output = run.wait();
            assert_eq!(
                (output.exit, output.stdout.as_str()),
                (Exit::Code(0), "ready\ndone\n"),
                "{}",
                output.stderr
            );
        }
    });
}

#[test]
fn an_advisory_lock_survives_an_outage_of_a_third_of_its_lease() {
    assert_survived(|host| {
        let server = Postgres::start_with(postgres::Plan { host, ..postgres::Plan::current() });
        let (url, port) = (format!("{}?recipe=advisory", server.url()), server.port());
        (server, url, port)
    });
}

#[test]
fn a_lock_of_get_lock_survives_an_outage_of_a_third_of_its_lease() {
    assert_survived(|host| {
        let server = MariaDb::start_with(mariadb::Plan { host, ..mariadb::Plan::current() });
        let (url, port) = (format!("{}?recipe=get_lock", server.url()), server.port());
        (server, url, port)
    });
}

#[test]
fn a_session_of_zookeeper_survives_an_outage_of_a_third_of_its_lease() {
    assert_survived(|host| {
        let plan = zookeeper::Plan { hosts: vec![host], ..zookeeper::Plan::current() };
        let server = ZooKeeper::start_with(&plan);
        let (url, port) = (server.url(), server.port(0));
        (server, url, port)
    });
}

#[test]
fn a_lease_of_kubernetes_survives_an_outage_of_a_third_of_it() {
    assert_survived(|host| {
        let server = Kubernetes::start_on(&host);
        let (url, port) = (server.url(), server.port());
        (server, url, port)
    });
}

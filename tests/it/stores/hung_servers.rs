//! Servers that hang while a lock is held (F01, F12, F17, F36): a table of the stores whose servers are one process. Redis
//! is in `run::faults`.

use crate::support::SOON;
use crate::support::consul::Consul;
use crate::support::daemon::Daemon;
use crate::support::dlock::Dlock;
use crate::support::dynamodb::Dynamo;
use crate::support::etcd::Etcd;
use crate::support::kubernetes::Kubernetes;
use crate::support::mariadb::{MariaDb, Product};
use crate::support::memcached::Memcached;
use crate::support::process;
use crate::support::running::Exit;
use crate::support::s3::S3;
use crate::support::wait::until;
use crate::support::zookeeper::ZooKeeper;
use std::time::{Duration, Instant};

/// The command is dead before a lease of this many seconds can end, and the run ends although the server hangs.
#[track_caller]
fn assert_stopped_in_time(url: &str, ttl: u64, daemon: &Daemon) {
    let run = Dlock::run().backend(url).args(["-q", "--ttl", &format!("{ttl}s")]);
    let mut run = run.sh("echo ready; exec sleep 600").spawn();
    run.await_ready();
    let command = run.command();
    daemon.stop();
    let began = Instant::now();
    until(SOON, "the end of the command", || !process::alive(command));
    let took = began.elapsed();
    let output = run.wait();
    daemon.resume();
    // The lease was extended before the server hung.
    assert!(took < Duration::from_secs(ttl), "stopped after {took:?}");
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
}

/// Leases are long enough for a renewal on a busy machine; those of Consul and S3 are not shorter.
mod a_hung_server_stops_the_command_before_its_lease_ends {
    use super::*;

    #[test]
    fn etcd() {
        let etcd = Etcd::start();
        assert_stopped_in_time(&etcd.url(), 6, etcd.daemon(0));
    }

    /// SUSPENDED is not LOST, but the deadline is that of the last check.
    #[test]
    fn zookeeper() {
        let zookeeper = ZooKeeper::start();
        assert_stopped_in_time(&zookeeper.url(), 6, zookeeper.daemon(0));
    }

    #[test]
    fn mysql() {
        let server = MariaDb::lent_of(Product::Mysql9_7);
        assert_stopped_in_time(&server.url(), 6, server.daemon());
    }

    #[test]
    fn mariadb_get_lock() {
        let server = MariaDb::lent();
        assert_stopped_in_time(&format!("{}?recipe=get_lock", server.url()), 6, server.daemon());
        server.await_free("x");
    }

    #[test]
    fn memcached() {
        let memcached = Memcached::start();
        assert_stopped_in_time(&memcached.url(), 6, memcached.daemon());
    }

    #[test]
    fn consul() {
        let consul = Consul::lent();
        assert_stopped_in_time(&consul.url(), 10, consul.daemon());
    }

    #[test]
    fn dynamodb() {
        let dynamo = Dynamo::start();
        assert_stopped_in_time(&dynamo.url(), 10, dynamo.daemon());
    }

    #[test]
    fn kubernetes() {
        let server = Kubernetes::start();
        assert_stopped_in_time(&server.url(), 10, server.daemon());
    }

    #[test]
    fn s3() {
        let s3 = S3::start();
        assert_stopped_in_time(&s3.url(), 10, s3.daemon());
    }
}

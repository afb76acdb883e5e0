//! Locks that are gone from their store while a command runs (F35, F36): a table of all stores, each with the ways in which
//! that happens there. Redis and files are in `run::faults`; other locks in the place of a held one are with their stores.

use crate::support::dlock::Dlock;
use crate::support::etcd::Etcd;
use crate::support::kubernetes::Kubernetes;
use crate::support::mariadb::{MariaDb, Product};
use crate::support::memcached::Memcached;
use crate::support::postgres::Postgres;
use crate::support::process;
use crate::support::running::Exit;
use crate::support::zookeeper::ZooKeeper;
use crate::support::zookeeper::session::Session;
use std::time::{Duration, Instant};

/// Long enough for a difference between a third of the lease and all of it.
const TTL: Duration = Duration::from_secs(12);

/// The command is stopped because the lock is gone, which the next renewal notices at the latest, and not because its lease
/// ends.
#[track_caller]
fn assert_stopped(url: &str, take_away: impl FnOnce()) {
    let run = Dlock::run().backend(url).args(["-q", "--ttl", &format!("{}s", TTL.as_secs())]);
    let mut run = run.sh("echo ready; exec sleep 600").spawn();
    run.await_ready();
    let command = run.command();
    take_away();
    let began = Instant::now();
    let output = run.wait();
    // Twice the time between two renewals, for a busy machine.
    assert!(began.elapsed() < TTL * 2 / 3, "stopped after {:?}", began.elapsed());
    let lost = format!(
        "dlock: x on {url}: the lock was lost: it is gone from the store (deleted, expired or evicted); the command was stopped\n"
    );
    assert_eq!((output.exit, output.stderr), (Exit::Code(76), lost));
    assert!(!process::alive(command));
}

mod a_lock_that_is_gone_stops_the_command_and_is_not_created_again {
    use super::*;

    #[test]
    fn kubernetes_with_a_deleted_lease() {
        let server = Kubernetes::lent();
        assert_stopped(&server.url(), || server.delete("x"));
        assert!(server.ledger("x").is_idle() && server.lease("x")["spec"]["holderIdentity"].is_null());
    }

    #[test]
    fn etcd_with_a_revoked_lease() {
        let etcd = Etcd::lent();
        assert_stopped(&etcd.url(), || {
            let lease = etcd.client().keys("/dlock/x/")[0].lease;
            assert!(etcd.client().revoke(lease));
        });
        assert!(etcd.client().keys("/dlock/x/").is_empty());
    }

    /// The lease goes on, so that keep-alives succeed (etcd-io/etcd#14758).
    #[test]
    fn etcd_with_a_lease_that_goes_on() {
        let etcd = Etcd::lent();
        assert_stopped(&etcd.url(), || {
            let key = etcd.client().keys("/dlock/x/").remove(0);
            assert!(etcd.client().delete(&key.name));
            assert!(etcd.client().time_to_live(key.lease) > 0);
        });
        assert!(etcd.client().keys("/dlock/x/").is_empty());
    }

    #[test]
    fn zookeeper_with_an_expired_session() {
        let zookeeper = ZooKeeper::lent();
        let mut session = zookeeper.session();
        assert_stopped(&zookeeper.url(), || {
            let [node] = session.children("/dlock/x").unwrap().try_into().unwrap();
            let (_, stat) = session.get(&format!("/dlock/x/{node}")).unwrap();
            Session::expire(zookeeper.address(0), stat.owner).unwrap();
        });
        assert_eq!(zookeeper.session().children("/dlock/x").unwrap(), [""; 0]);
    }

    #[test]
    fn mysql_with_a_deleted_row() {
        let server = MariaDb::lent_of(Product::Mysql9_7);
        assert_stopped(&server.url(), || {
            server.sql("DELETE FROM dlock_locks");
        });
    }

    #[test]
    fn postgres_with_a_deleted_row() {
        let server = Postgres::lent();
        assert_stopped(&server.url(), || {
            server.sql("DELETE FROM dlock_locks");
        });
    }

    /// As an eviction.
    #[test]
    fn memcached_with_a_deleted_item() {
        let memcached = Memcached::start();
        for gone in ["delete dlock:x", "flush_all"] {
            assert_stopped(&memcached.url(), || {
                assert!(["DELETED", "OK"].contains(&memcached.command(gone).as_str()));
            });
            assert_eq!(memcached.get("dlock:x"), None, "{gone}");
        }
    }
}

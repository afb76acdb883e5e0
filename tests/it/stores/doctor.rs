//! `dlock doctor` on a healthy store: a table of all stores. Redis is in `admin::doctor::healthy`, what only one store has in
//! its own `doctor`.

use crate::support::consul::Consul;
use crate::support::doctor::{answer, assert_answered, assert_found, doctor, findings, init};
use crate::support::etcd::Ensemble as EtcdEnsemble;
use crate::support::mariadb::MariaDb;
use crate::support::memcached::Memcached;
use crate::support::postgres::Postgres;
use crate::support::running::{Exit, Output};
use crate::support::s3::S3;
use crate::support::zookeeper::Ensemble as ZooKeeperEnsemble;
use crate::support::zookeeper::session::Kind;

/// There are these findings, those of every healthy store, and no further warning; and the four questions are answered.
#[track_caller]
fn assert_healthy(output: &Output, expected: &[(&str, &str, &str)]) {
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stdout);
    let always = [
        ("ok", "lock", "taken, renewed and given back in"),
        ("ok", "race", "20 races of 8 connections for a free lock had one winner each"),
    ];
    for (level, check, found) in expected.iter().chain(&always) {
        assert_found(output, level, check, found);
    }
    let warnings = findings(output).iter().filter(|finding| finding["level"] != "ok").count();
    let expected = expected.iter().filter(|(level, _, _)| *level != "ok").count();
    assert_eq!(warnings, expected, "{}", output.stdout);
    assert_answered(output);
}

/// The scratch locks of the examination are gone afterwards.
mod a_healthy_store_has_only_the_findings_of_its_kind {
    use super::*;

    #[test]
    fn consul() {
        let consul = Consul::lent();
        let output = doctor(&consul.url());
        assert_healthy(
            &output,
            &[
                ("ok", "protocol", "the HTTP API of Consul"),
                ("ok", "leader", "leads the servers"),
                ("ok", "version", "Consul 1.8."),
                ("warning", "agent", "the agent is one of the servers"),
                ("ok", "clock", "this host and the agent agree to the second"),
                ("ok", "latency", "of 100 requests"),
            ],
        );
        let (whose, detail) = answer(&output, "lease_clock");
        assert!(whose == "server" && detail.contains("1m30s"), "{whose}: {detail}");
        assert_eq!((consul.keys(), consul.sessions()), (Vec::new(), Vec::new()), "left behind");
    }

    #[test]
    fn etcd() {
        let ensemble = EtcdEnsemble::lent();
        let etcd = &ensemble.0;
        assert_healthy(
            &doctor(&etcd.url()),
            &[
                ("ok", "authentication", "no user"),
                ("warning", "version", "etcd 3.4."),
                ("ok", "quorum", "3 of 3 members have the same leader"),
                ("ok", "alarms", "none is active"),
                ("ok", "latency", "of 100 reads"),
            ],
        );
        assert!(etcd.client().keys("").is_empty(), "left behind");
        assert_eq!(etcd.client().leases().unwrap(), [0; 0]);
    }

    #[test]
    fn zookeeper() {
        let ensemble = ZooKeeperEnsemble::lent();
        let zookeeper = &ensemble.0;
        assert_healthy(
            &doctor(&zookeeper.url()),
            &[
                ("ok", "server", "ZooKeeper 3.8.0, leader"),
                ("ok", "server", "ZooKeeper 3.8.0, follower"),
                ("ok", "session", "for a --ttl from 66ms to 16h"),
                ("ok", "latency", "of 100 requests to the leader"),
            ],
        );
        let mut session = zookeeper.session();
        // A server that has taken part in this write knows of all before it.
        session.create("/seen", "", Kind::Persistent).unwrap();
        let left = session.children("/").unwrap();
        assert!(!left.contains(&"dlock".to_owned()), "left behind: {left:?}");
    }

    #[test]
    fn memcached() {
        let memcached = Memcached::start();
        assert_healthy(
            &doctor(&memcached.url()),
            &[
                ("ok", "protocol", "meta commands with CAS"),
                ("warning", "efficiency", "Memcached may forget a lock at any time"),
                ("ok", "version", "memcached 1.6."),
                ("ok", "memory", "no item has been evicted"),
                ("ok", "latency", "of 100 requests"),
            ],
        );
        assert_eq!(memcached.keys(), ["dlock#clock"], "left behind");
    }

    #[test]
    fn postgres() {
        let server = Postgres::lent();
        let output = doctor(&server.url());
        assert_eq!(output.exit, Exit::Code(0), "{}", output.stdout);
        assert_found(&output, "warning", "table", "there is no table public.dlock_locks");
        assert_eq!(server.sql("SELECT to_regclass('dlock_locks') IS NULL"), "t", "it was created");
        assert_healthy(
            &init(&server.url()),
            &[
                ("ok", "authentication", "role postgres"),
                ("ok", "version", "PostgreSQL "),
                ("ok", "notifications", "a release notifies the next waiter"),
                // As the tests start it.
                ("warning", "durability", "fsync is off"),
                ("ok", "availability", "one server: while it is down no lock can be taken"),
                ("ok", "table", "public.dlock_locks exists"),
                // As the tests connect.
                ("warning", "role", "postgres can act as a superuser"),
                ("ok", "latency", "of 100 reads"),
            ],
        );
        assert_eq!(server.sql("SELECT count(*) FROM dlock_locks"), "0", "left behind");
    }

    #[test]
    fn mysql() {
        let server = MariaDb::lent();
        server.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 1");
        let missing = doctor(&server.url());
        assert_eq!(server.sql("SHOW TABLES"), "", "it was created");
        let output = init(&server.url());
        server.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 2");
        assert_eq!(missing.exit, Exit::Code(0), "{}", missing.stdout);
        assert_found(&missing, "warning", "table", "there is no table dlock_locks");
        let log_bin = server.sql("SELECT @@GLOBAL.log_bin").trim() == "1";
        let (loss, detail) = answer(&output, "loss");
        assert_eq!((loss == "yes", loss == "no"), (log_bin, !log_bin), "{detail}");
        assert_healthy(
            &output,
            &[
                ("ok", "authentication", "user root"),
                ("ok", "availability", "one server: while it is down no lock can be taken"),
                ("ok", "version", "MariaDB"),
                ("ok", "primary", "it accepts writes"),
                // As the tests connect.
                ("warning", "rights", "the user may write to a read-only server"),
                ("ok", "table", "dlock_locks, stored by InnoDB"),
                ("ok", "durability", "on the disk"),
                ("ok", "latency", "of 100 reads"),
            ],
        );
        assert_eq!(server.sql("SELECT COUNT(*) FROM dlock_locks"), "0\n", "left behind");
    }

    /// It says what a lock costs.
    #[test]
    fn s3() {
        let s3 = S3::lent();
        let output = doctor(&s3.url());
        assert_healthy(
            &output,
            &[
                // As the tests keep it.
                ("warning", "password file", "can be read by every user"),
                ("ok", "bucket", "locks in us-east-1"),
                ("ok", "credentials", "from the URL"),
                ("ok", "versioning", "the bucket keeps no versions"),
                ("ok", "cost", "a holder sends 720 requests an hour and the first waiter 4800"),
                ("ok", "clock", "this host and the store agree to the minute"),
                ("ok", "conditions", "If-Match and If-None-Match are honoured"),
                ("ok", "writers", "20 races of 32 conditional writes had one winner each"),
            ],
        );
        let (whose, detail) = answer(&output, "lease_clock");
        assert!(whose == "server" && detail.contains("33s"), "{whose}: {detail}");
        let keys = s3.keys();
        let is_scratch = |key: &String| key.starts_with("jobs/dlock-doctor-");
        assert!(keys.len() == 2 && keys.iter().all(is_scratch), "{keys:?}");
    }
}

//! Replies that are lost after the request was carried out (F03, F07, F35, F36, F37; ZK-1262): a table of all stores, each
//! with what a recovered run must not leave behind.

use crate::support::SOON;
use crate::support::consul::Consul;
use crate::support::dlock::Dlock;
use crate::support::dynamodb::Dynamo;
use crate::support::etcd::Etcd;
use crate::support::kubernetes::Kubernetes;
use crate::support::mariadb::{self, DATABASE, MariaDb};
use crate::support::memcached::Memcached;
use crate::support::postgres::Postgres;
use crate::support::proxy::Proxy;
use crate::support::running::{Exit, Output};
use crate::support::s3::{Bucket, S3};
use crate::support::wait::until;
use crate::support::zookeeper::ZooKeeper;

/// Runs a command as often as a run gets replies from the server on this port, through a proxy that has this URL, and
/// loses another one each time: the command runs nevertheless. `assert_clean` follows, with the number of the lost reply.
/// Returns the number of replies.
#[track_caller]
fn assert_recovered(
    url: impl Fn(u16) -> String,
    port: u16,
    ttl: &str,
    assert_clean: impl Fn(usize),
) -> usize {
    lose_each(url, port, ttl, |reply, output| {
        assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""), "reply {reply}");
        assert_clean(reply);
    })
}

/// Does the same where a lock ends with the connection: a run that has it may lose it, but none waits for itself, and the
/// command never runs without being reported.
#[track_caller]
fn assert_lost_at_most(url: impl Fn(u16) -> String, port: u16, assert_clean: impl Fn(usize)) {
    lose_each(url, port, "10m", |reply, output| {
        let end = (output.exit, output.stdout.as_str());
        let ends = [(Exit::Code(0), "ran\n"), (Exit::Code(76), "ran\n"), (Exit::Code(76), "")];
        assert!(ends.contains(&end), "reply {reply}: {output:?}");
        assert_clean(reply);
    });
}

#[track_caller]
fn lose_each(url: impl Fn(u16) -> String, port: u16, ttl: &str, check: impl Fn(usize, &Output)) -> usize {
    let proxy = Proxy::to(port);
    let url = url(proxy.port());
    let more = match &url {
        // That it may forget a lock is not what this is about.
        url if url.starts_with("memcached") => &["-q"][..],
        url if url.ends_with("recipe=semaphore") => &["--slots", "2"],
        _ => &[],
    };
    let run = || Dlock::run().backend(&url).args(["--ttl", ttl]).args(more).sh("echo ran").output();
    // After the first run, each one sends the same requests.
    assert_eq!(run().outcome(), (Exit::Code(0), "ran\n", ""));
    await_quiet(&proxy);
    let before = proxy.replies();
    assert_eq!(run().outcome(), (Exit::Code(0), "ran\n", ""));
    await_quiet(&proxy);
    let replies = proxy.replies() - before;
    assert!(replies >= 3, "{replies} replies");
    for reply in 0..replies {
        proxy.lose_reply_after(reply);
        check(reply, &run());
        await_quiet(&proxy);
    }
    replies
}

/// Waits until no reply to the last run can arrive any more: it would be counted with those to the next one.
#[track_caller]
fn await_quiet(proxy: &Proxy) {
    until(SOON, "the end of the connections", || proxy.is_quiet());
}

/// Loses each reply to a run with `--once-per`: its success is recorded, or it says that it may run again.
#[track_caller]
fn assert_success_is_recorded(url: impl Fn(u16) -> String, port: u16) {
    let proxy = Proxy::to(port);
    let (direct, url) = (url(port), url(proxy.port()));
    let run = |url: &str, name: &str| {
        let run = Dlock::run().backend(url).name(name).args(["--ttl", "10m", "--once-per", "1h"]);
        run.sh("echo ran").output()
    };
    assert_eq!(run(&url, "one").outcome(), (Exit::Code(0), "ran\n", ""));
    await_quiet(&proxy);
    let before = proxy.replies();
    assert_eq!(run(&url, "two").outcome(), (Exit::Code(0), "ran\n", ""));
    await_quiet(&proxy);
    let replies = proxy.replies() - before;
    assert!(replies >= 3, "{replies} replies");
    for reply in 0..replies {
        proxy.lose_reply_after(reply);
        let name = format!("x{reply}");
        let output = run(&url, &name);
        await_quiet(&proxy);
        if output.outcome() == (Exit::Code(0), "ran\n", "") {
            let again = run(&direct, &name);
            assert_eq!((again.exit, again.stdout.as_str()), (Exit::Code(0), ""), "reply {reply}");
        }
    }
}

#[test]
fn a_success_on_mariadb_get_lock_is_recorded() {
    let server = MariaDb::lent();
    let url = |port| format!("mysql://root@127.0.0.1:{port}/{DATABASE}?recipe=get_lock&ssl_mode=disabled");
    assert_success_is_recorded(url, server.port());
}

#[test]
fn a_success_on_postgres_advisory_is_recorded() {
    let server = Postgres::lent();
    let url = |port| format!("postgres://postgres@127.0.0.1:{port}/postgres?recipe=advisory");
    assert_success_is_recorded(url, server.port());
}

/// The ttl is so long that a lease that was left behind would outlast the test, where the store has leases.
mod a_run_survives_every_lost_reply {
    use super::*;

    #[test]
    fn etcd() {
        let etcd = Etcd::lent();
        let url = |port| format!("etcd://127.0.0.1:{port}");
        assert_recovered(url, etcd.port(0), "10m", |reply| {
            let left = || (etcd.client().keys("/dlock/x/"), etcd.client().leases().unwrap());
            until(SOON, &format!("the end of all leases after the loss of reply {reply}"), || {
                left() == (Vec::new(), Vec::new())
            });
        });
    }

    #[test]
    fn zookeeper() {
        let zookeeper = ZooKeeper::lent();
        let url = |port| format!("zookeeper://127.0.0.1:{port}");
        // The end of a session is not awaited.
        assert_recovered(url, zookeeper.port(0), "6s", |reply| {
            let nodes = zookeeper.session().children("/dlock/x").unwrap();
            assert_eq!(nodes, [""; 0], "reply {reply}");
        });
    }

    #[test]
    fn postgres() {
        let server = Postgres::lent();
        let url = |port| format!("postgres://postgres@127.0.0.1:{port}/postgres");
        assert_recovered(url, server.port(), "10m", |reply| assert_unused(&server, reply));
    }

    #[test]
    fn postgres_shedlock() {
        let server = Postgres::lent();
        server.sql(crate::stores::postgres::shedlock::TABLE);
        let recipe = crate::stores::postgres::shedlock::DB_UTC;
        let url = |port| format!("postgres://postgres@127.0.0.1:{port}/postgres?{recipe}");
        assert_recovered(url, server.port(), "10m", |reply| {
            assert_eq!(crate::stores::postgres::shedlock::holder(&server), "", "reply {reply}");
            assert_unused(&server, reply);
        });
    }

    #[track_caller]
    fn assert_unused(server: &Postgres, reply: usize) {
        let used = "SELECT count(*) FROM dlock_locks WHERE ends_at > extract(epoch FROM now()) * 1000000";
        assert_eq!(server.sql(used), "0", "reply {reply}");
    }

    /// Also the reply to a commit.
    #[test]
    fn mysql() {
        let server = MariaDb::lent_of(mariadb::Product::Mysql9_7);
        // Each reply of the server is one packet then.
        let url = |port| format!("mysql://root@127.0.0.1:{port}/{DATABASE}?ssl_mode=disabled");
        assert_recovered(url, server.port(), "10m", |reply| {
            let used = "SELECT leases FROM dlock_locks WHERE leases <> ''";
            assert_eq!(server.sql(used), "", "reply {reply}");
        });
    }

    #[test]
    fn mariadb_shedlock() {
        let server = MariaDb::lent();
        server.sql(crate::stores::mysql::shedlock::TABLE);
        let recipe = crate::stores::mysql::shedlock::DB_UTC;
        let url = |port| format!("mysql://root@127.0.0.1:{port}/{DATABASE}?{recipe}");
        assert_recovered(url, server.port(), "10m", |reply| {
            let used = "SELECT COUNT(*) FROM shedlock WHERE lock_until > UTC_TIMESTAMP(3)";
            assert_eq!(server.sql(used).trim(), "0", "reply {reply}");
        });
    }

    #[test]
    fn memcached() {
        let memcached = Memcached::start();
        let url = |port| format!("memcached://127.0.0.1:{port}");
        let replies = assert_recovered(url, memcached.port(), "20s", |reply| {
            assert_eq!(memcached.get("dlock:x"), None, "reply {reply}");
        });
        assert_eq!(replies, 3, "the probe, the grant and the release take one round trip each");
    }

    #[test]
    fn consul() {
        let consul = Consul::lent();
        let url = |port| format!("consul://127.0.0.1:{port}");
        assert_recovered(url, consul.port(), "20s", |reply| {
            assert_eq!(consul.holder("dlock/x/.lock"), None, "reply {reply}");
            assert_given_back(&consul, reply);
        });
    }

    #[test]
    fn consul_semaphore() {
        let consul = Consul::lent();
        let url = |port| format!("consul://127.0.0.1:{port}?recipe=semaphore");
        assert_recovered(url, consul.port(), "20s", |reply| {
            assert_eq!(consul.keys(), ["dlock/x/.lock.dlock"], "reply {reply}");
            assert_given_back(&consul, reply);
        });
    }

    #[track_caller]
    fn assert_given_back(consul: &Consul, reply: usize) {
        let ledger = consul.value("dlock/x/.lock.dlock").unwrap();
        assert!(ledger.contains("\"members\":[],\"line\":[]"), "reply {reply}: {ledger}");
        // The session whose creation was not answered, after the keys were read, ends by itself.
        let unknown = usize::from(reply == 1);
        until(SOON, &format!("the sessions after the loss of reply {reply}"), || {
            consul.sessions().len() == unknown
        });
        for session in consul.sessions() {
            consul.ask("PUT", &format!("session/destroy/{session}"), b"");
        }
    }

    #[test]
    fn dynamodb() {
        let dynamo = Dynamo::lent();
        assert_recovered(
            |port| dynamo.url_by(port),
            dynamo.port(),
            "20s",
            |reply| {
                assert!(dynamo.ledger("x").is_idle(), "reply {reply}: {:?}", dynamo.ledger("x"));
            },
        );
    }

    #[test]
    fn dynamodb_lock_client() {
        let dynamo = Dynamo::lent();
        assert_recovered(
            |port| format!("{}&recipe=lock-client", dynamo.url_by(port)),
            dynamo.port(),
            "20s",
            |reply| {
                let ledger = dynamo.ledger_in("jobs/x%dlock");
                assert!(ledger.is_idle(), "reply {reply}: {ledger:?}");
                let item = dynamo.item("jobs/x");
                assert_eq!(item["isReleased"]["S"], "1", "reply {reply}: {item}");
            },
        );
    }

    #[test]
    fn kubernetes() {
        let server = Kubernetes::lent();
        assert_recovered(
            |port| server.url_by(port),
            server.port(),
            "20s",
            |reply| {
                assert!(server.ledger("x").is_idle(), "reply {reply}: {:?}", server.ledger("x"));
            },
        );
    }

    #[test]
    fn s3() {
        let s3 = S3::lent();
        let url = |port| s3.url_by(&format!("http://127.0.0.1:{port}"));
        assert_recovered(url, s3.port(), "20s", |reply| {
            assert!(s3.ledger("x").is_idle(), "reply {reply}: {:?}", s3.ledger("x"));
        });
    }
}

mod a_lost_reply_ends_the_session_and_no_run_waits_for_itself {
    use super::*;

    #[test]
    fn postgres_advisory() {
        let server = Postgres::lent();
        let url = |port| format!("postgres://postgres@127.0.0.1:{port}/postgres?recipe=advisory");
        assert_lost_at_most(url, server.port(), |reply| {
            let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
            until(SOON, &format!("no lock after the loss of reply {reply}"), || server.sql(locks) == "0");
        });
    }

    #[test]
    fn mariadb_get_lock() {
        let server = MariaDb::lent();
        let url = |port| format!("mysql://root@127.0.0.1:{port}/{DATABASE}?recipe=get_lock");
        assert_lost_at_most(url, server.port(), |_| server.await_free("x"));
    }
}

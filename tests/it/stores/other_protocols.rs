//! A URL that leads to a server of another kind.

use crate::support::etcd::Etcd;
use crate::support::fake::Fake;
use crate::support::mariadb::MariaDb;
use crate::support::memcached::Memcached;
use crate::support::place::Place;
use crate::support::postgres::Postgres;
use crate::support::redis::Redis;
use crate::support::running::Exit;
use crate::support::zookeeper::ZooKeeper;

/// Every client names every other kind of server, and does not take it for one that is down.
#[test]
fn a_server_of_another_kind_is_named_and_is_78() {
    let (redis, memcached) = (Redis::start(), Memcached::start());
    let (etcd, zookeeper, postgres, mariadb) =
        (Etcd::lent(), ZooKeeper::lent(), Postgres::lent(), MariaDb::lent());
    let web = Fake::answering_once("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
    let mail = Fake::saying("SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n");
    let servers = [
        ("Redis", redis.port(), &["redis", "redlock", "redis-sentinel", "redis-cluster"][..]),
        ("Memcached", memcached.port(), &["memcached"]),
        ("etcd", etcd.port(0), &["etcd"]),
        ("ZooKeeper", zookeeper.port(0), &["zookeeper"]),
        ("PostgreSQL", postgres.port(), &["postgres"]),
        ("MySQL", mariadb.port(), &["mysql"]),
        // etcd speaks HTTP/2, and says that this is another version.
        ("HTTP", web.port(), &["etcd"]),
        ("SSH", mail.port(), &[]),
    ];
    let place = Place::new();
    let mut wrong = Vec::new();
    for (kind, port, own) in servers {
        for url in [
            "redis://HOST/0",
            "redis-sentinel://HOST/service",
            "redis-cluster://HOST",
            "redlock://HOST,localhost:PORT,127.0.0.1:1/0",
            "memcached://HOST",
            "etcd://HOST",
            "zookeeper://HOST",
            "postgres://u@HOST/d",
            "mysql://u@HOST/d",
        ] {
            if own.iter().any(|scheme| url.split(':').next() == Some(scheme)) {
                continue;
            }
            let url = url.replace("HOST", &format!("127.0.0.1:{port}")).replace("PORT", &port.to_string());
            for command in [&["run", "x", "--ttl", "9s", "--", "true"][..], &["status", "x"]] {
                let output = place.bare().args(["-q", "-b", &url]).args(command).output();
                let expected = format!("of {kind}");
                let is_named = output.stderr.contains(&expected) && output.stderr.lines().count() == 1;
                if output.exit != Exit::Code(78) || !is_named {
                    wrong.push(format!(
                        "{kind}, {command:?} {:?} {:?} {}",
                        output.elapsed, output.exit, output.stderr
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.concat());
}

/// A server that has spoken the protocol of the URL is not suspected: it would log each probe as an error.
#[test]
fn a_server_of_the_right_kind_that_fails_is_not_probed() {
    /// A fatal error of PostgreSQL.
    fn fatal(code: &str, text: &str) -> Vec<u8> {
        let fields = format!("SFATAL\0C{code}\0M{text}\0\0");
        let length = u32::try_from(fields.len() + 4).expect("it is short");
        [b"E", &length.to_be_bytes()[..], fields.as_bytes()].concat()
    }
    let error = b"\xff\x69\x04Too many connections";
    let refusal = [&[u8::try_from(error.len()).expect("it is short"), 0, 0, 0][..], error].concat();
    for (url, server) in [
        ("postgres://u@HOST/d?sslmode=disable", Fake::in_turns([fatal("3D000", "database does not exist")])),
        ("memcached://HOST", Fake::in_turns(["HD c0\r\nHD\r\n"])),
        ("mysql://u@HOST/d?ssl_mode=disabled", Fake::saying(refusal)),
    ] {
        let url = url.replace("HOST", &format!("127.0.0.1:{}", server.port()));
        let output = Place::new().bare().args(["status", "-b", &url, "x"]).output();
        assert!(matches!(output.exit, Exit::Code(69 | 78)), "{url}: {output:?}");
        assert_eq!(server.connections(), 1, "{url}: {output:?}");
    }
}

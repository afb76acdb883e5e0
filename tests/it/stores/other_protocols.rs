//! A URL that leads to a server of another kind.

use std::sync::Mutex;

use serde_json::Value;

use crate::support::doctor::{doctor, findings};
use crate::support::etcd::Etcd;
use crate::support::fake::Fake;
use crate::support::kubernetes;
use crate::support::mariadb::MariaDb;
use crate::support::memcached::Memcached;
use crate::support::place::Place;
use crate::support::postgres::Postgres;
use crate::support::redis::Redis;
use crate::support::running::{Exit, Output};
use crate::support::wait::side_by_side;
use crate::support::zookeeper::ZooKeeper;

/// A URL of each scheme, and the protocol that it is for. `HOST` is the address of the server, `PORT` its port.
const URLS: [(&str, &str); 13] = [
    ("redis://HOST/0", "Redis"),
    ("redis-sentinel://HOST/service", "Redis"),
    ("redis-cluster://HOST", "Redis"),
    ("redlock://HOST,localhost:PORT,127.0.0.1:1/0", "Redis"),
    ("memcached://HOST", "Memcached"),
    ("etcd://HOST", "etcd"),
    ("zookeeper://HOST", "ZooKeeper"),
    ("postgres://u@HOST/d", "PostgreSQL"),
    ("mysql://u@HOST/d", "MySQL and MariaDB"),
    ("consul://HOST", "HTTP"),
    ("s3://key:secret@b?endpoint=http://HOST", "HTTP"),
    ("dynamodb://key:secret@abc?endpoint=http://HOST", "HTTP"),
    ("k8s://HOST", "HTTP"),
];

/// A kind of server.
struct Kind {
    name: &'static str,
    port: u16,
    /// The schemes of its own.
    own: &'static [&'static str],
    /// The beginning of the advice.
    advice: &'static str,
}

/// Calls this with each kind of server, each URL with the scheme of another kind, and what a message says of both; asserts
/// that nothing is returned.
fn assert_none_wrong(check: impl Fn(&Kind, &str, &str) -> Option<String> + Sync) {
    let (redis, memcached) = (Redis::start(), Memcached::start());
    let (etcd, zookeeper, postgres, mariadb) =
        (Etcd::lent(), ZooKeeper::lent(), Postgres::lent(), MariaDb::lent());
    let web = Fake::answering_once("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
    let mail = Fake::saying("SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n");
    let kind = |name, port, own, advice| Kind { name, port, own, advice };
    let kinds = [
        kind(
            "Redis",
            redis.port(),
            &["redis", "redlock", "redis-sentinel", "redis-cluster"][..],
            "use redis://, or check",
        ),
        kind("Memcached", memcached.port(), &["memcached"], "use memcached://, or check"),
        kind("etcd", etcd.port(0), &["etcd"], "use etcd://, or check"),
        kind("ZooKeeper", zookeeper.port(0), &["zookeeper"], "use zookeeper://, or check"),
        kind("PostgreSQL", postgres.port(), &["postgres"], "use postgres://, or check"),
        kind("MySQL and MariaDB", mariadb.port(), &["mysql"], "use mysql://, or check"),
        // etcd speaks HTTP/2, and says that this is another version. Consul and S3 speak HTTP.
        kind("HTTP", web.port(), &["etcd", "consul", "s3", "dynamodb", "k8s"], "check"),
        kind("SSH", mail.port(), &[], "check"),
    ];
    let configuration = tempfile::tempdir().expect("a directory");
    let wrong = Mutex::new(String::new());
    side_by_side(&kinds, |kind| {
        for (url, protocol) in URLS {
            if kind.own.iter().any(|scheme| url.split(':').next() == Some(scheme)) {
                continue;
            }
            let port = kind.port.to_string();
            let url = match url {
                // Its server is in its configuration.
                "k8s://HOST" => {
                    let directory = configuration.path().join(&port);
                    std::fs::create_dir(&directory).expect("a directory");
                    kubernetes::url_of(&directory, &format!("http://127.0.0.1:{port}"))
                }
                url => url.replace("HOST", &format!("127.0.0.1:{port}")).replace("PORT", &port),
            };
            let mismatch = format!("the server speaks the protocol of {}, not of {protocol}", kind.name);
            if let Some(found) = check(kind, &url, &mismatch) {
                wrong.lock().unwrap().push_str(&format!("{}, {url}: {found}\n", kind.name));
            }
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{wrong}");
}

/// Every client names every other kind of server, and does not take it for one that is down.
#[test]
fn a_server_of_another_kind_is_named_and_is_78() {
    assert_none_wrong(|kind, url, mismatch| {
        let place = Place::new();
        let run = ["run", "x", "--ttl", "10s", "--", "true"];
        // Memcached cannot list its keys.
        let lists = if url.starts_with("memcached") { &[][..] } else { &[&["status"][..]] };
        let outputs: Vec<Output> = [&run[..], &["status", "x"]]
            .iter()
            .chain(lists)
            .map(|command| place.bare().args(["-q", "-b", url]).args(*command).output())
            .collect();
        let is_named = |output: &Output| {
            output.exit == Exit::Code(78)
                && output.stderr.lines().count() == 1
                && output.stderr.contains(mismatch)
                && output.stderr.contains(&format!(": {} the host and the port of the URL", kind.advice))
        };
        let says_end = outputs[0].stderr.ends_with(" of the URL; the command did not run\n");
        (!says_end || !outputs.iter().all(is_named)).then(|| format!("{outputs:?}"))
    });
}

/// The examination finds that as well, and advises the scheme that the server is for.
#[test]
fn doctor_names_a_server_of_another_kind() {
    assert_none_wrong(|kind, url, mismatch| {
        let output = doctor(url);
        // Where there are several servers, that is the fault of one of them.
        let is_meant = |finding: &Value| {
            let text = |field: &str| finding[field].as_str().unwrap_or_default();
            text("found").contains(mismatch)
                && text("remedy") == format!("{} the host and the port of the URL", kind.advice)
                && !text("found").contains("check the host")
                && matches!(text("check"), "protocol" | "sentinels" | "reachability")
        };
        let found = findings(&output);
        let is_problem = found.iter().any(|finding| finding["level"] == "problem");
        let is_right = output.exit == Exit::Code(1) && is_problem && found.iter().any(is_meant);
        (!is_right).then(|| format!("{output:?}"))
    });
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
        ("memcached://HOST", Fake::in_turns(["HD c0\r\nHD\r\nHD t300000000\r\n"])),
        ("mysql://u@HOST/d?ssl_mode=disabled", Fake::saying(refusal)),
    ] {
        let url = url.replace("HOST", &format!("127.0.0.1:{}", server.port()));
        let output = Place::new().bare().args(["status", "-b", &url, "x"]).output();
        assert!(matches!(output.exit, Exit::Code(69 | 78)), "{url}: {output:?}");
        assert_eq!(server.connections(), 1, "{url}: {output:?}");
    }
}

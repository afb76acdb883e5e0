//! What a newer dlock, or another program, keeps in the place of a lock, or beside it: tables of the stores that keep a
//! document.

use crate::support::SOON;
use crate::support::consul::Consul;
use crate::support::dlock::Dlock;
use crate::support::etcd::Etcd;
use crate::support::kubernetes::{Kubernetes, LEDGER};
use crate::support::mariadb::MariaDb;
use crate::support::memcached::Memcached;
use crate::support::place::Place;
use crate::support::postgres::Postgres;
use crate::support::running::Exit;
use crate::support::s3::{S3, key};
use crate::support::wait::until;
use crate::support::zookeeper::ZooKeeper;
use serde_json::json;
use std::process::Stdio;

/// A run is refused for this reason, and what is stored stays as it is.
#[track_caller]
fn assert_left_alone(url: &str, why: &str, stored: impl Fn() -> String) {
    let before = stored();
    let output = Dlock::run().backend(url).sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(78), ""), "{}", output.stderr);
    assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
    assert!(output.stderr.starts_with("dlock: x on "), "{}", output.stderr);
    assert!(output.stderr.ends_with(&format!("{why}; the command did not run\n")), "{}", output.stderr);
    assert_eq!(stored(), before);
}

/// What no dlock has written, and what one has written that this one does not know.
fn foreign() -> [(String, &'static str); 2] {
    [
        (json!({"format": 9}).to_string(), "written by another dlock (format 9, known: 1 and 2)"),
        ("x".to_owned(), "not written by dlock, or damaged"),
    ]
}

mod an_entry_in_another_format_is_refused_and_not_overwritten {
    use super::*;

    #[test]
    fn postgres() {
        let server = Postgres::lent();
        assert_eq!(Dlock::run().backend(server.url()).sh("true").output().outcome(), (Exit::Code(0), "", ""));
        server.sql("UPDATE dlock_locks SET format = 3, entries = 'new'");
        let why = format!("{}: x: written by another dlock (format 3, known: 1 and 2)", server.url());
        assert_left_alone(&server.url(), &why, || server.sql("SELECT * FROM dlock_locks"));
    }

    #[test]
    fn mysql() {
        let server = MariaDb::lent();
        let run = |name: &str| Dlock::run().backend(server.url()).name(name).sh("echo ran").output();
        assert_eq!(run("x").outcome(), (Exit::Code(0), "ran\n", ""));
        server.sql("UPDATE dlock_locks SET format = 3");
        let why = format!("{}: x: written by another dlock (format 3, known: 1 and 2)", server.url());
        assert_left_alone(&server.url(), &why, || server.sql("SELECT * FROM dlock_locks"));
        assert_eq!(run("y").outcome(), (Exit::Code(0), "ran\n", ""), "another row");
    }

    /// Nor is it broken.
    #[test]
    fn memcached() {
        let (memcached, place) = (Memcached::start(), Place::new());
        assert!(memcached.add("dlock:x", None, r#"{"format":3,"holders":[]}"#));
        let stored = || memcached.get("dlock:x").unwrap_or_default();
        let why =
            format!("{}: its item was written by another dlock (format 3, known: 1 and 2)", memcached.url());
        assert_left_alone(&memcached.url(), &why, stored);
        let before = stored();
        let dlock = |words: &[&str]| place.bare().args(words).args(["-b", &memcached.url()]).output();
        let status = dlock(&["status", "--json", "x"]);
        assert!(status.stdout.contains(r#""state":"unknown""#), "{}", status.stdout);
        let broken = dlock(&["break", "--yes", "--force", "x"]);
        assert_eq!(broken.exit, Exit::Code(78), "{}", broken.stderr);
        assert_eq!(stored(), before);
    }

    #[test]
    fn consul() {
        let consul = Consul::lent();
        for (ledger, why) in foreign() {
            consul.ask("PUT", "kv/dlock/x/.lock.dlock", ledger.as_bytes());
            assert_left_alone(&consul.url(), why, || consul.value("dlock/x/.lock.dlock").unwrap_or_default());
        }
        assert_eq!(consul.sessions(), [""; 0]);
    }

    #[test]
    fn kubernetes() {
        let server = Kubernetes::lent();
        for (ledger, why) in foreign() {
            server.delete("x");
            let metadata = json!({"annotations": {LEDGER: ledger}});
            assert!(server.put("x", json!({"kind": "Lease", "metadata": metadata, "spec": {}})));
            assert_left_alone(&server.url(), why, || server.lease("x").to_string());
        }
    }

    #[test]
    fn s3() {
        let (place, s3) = (Place::new(), S3::lent());
        for (object, why) in foreign() {
            s3.put(&key("x"), &object);
            assert_left_alone(&s3.url(), why, || s3.object(&key("x")).unwrap_or_default());
            let status = place.bare().args(["status", "-b", &s3.url(), "--exit-code", "x"]).output();
            assert_eq!(status.exit, Exit::Code(77), "{status:?}");
            assert!(status.stdout.contains(why), "{status:?}");
        }
    }
}

/// A host is upgraded while a command runs on another one: the command runs on, and the next one is refused (78). `upgrade`
/// replaces the document beside the entries, and waits for some heartbeats after that.
#[track_caller]
fn assert_runs_on(url: &str, upgrade: impl FnOnce()) {
    let run = Dlock::run().backend(url).args(["--ttl", "6s"]).stdin(Stdio::piped());
    let mut run = run.sh("echo ready; read line; echo done").spawn();
    run.await_ready();
    upgrade();
    drop(run.take_stdin());
    assert_eq!(run.wait().outcome(), (Exit::Code(0), "ready\ndone\n", ""));
    let next = Dlock::run().backend(url).sh("echo ran").output();
    assert_eq!((next.exit, next.stdout.as_str()), (Exit::Code(78), ""), "{}", next.stderr);
}

mod a_document_of_a_newer_dlock_does_not_stop_the_command {
    use super::*;

    const NEWER: &str = r#"{"format":99,"fencing_token":1}"#;

    #[test]
    fn etcd() {
        let etcd = Etcd::lent();
        assert_runs_on(&etcd.url(), || {
            etcd.client().put("dlock#beside//dlock/x", NEWER, 0);
            // Each heartbeat is a keep-alive and a read.
            let before = etcd.client().messages();
            until(SOON, "two heartbeats", || etcd.client().messages() >= before + 4);
        });
        assert!(etcd.client().keys("/dlock/x/").is_empty());
    }

    #[test]
    fn zookeeper() {
        let (zookeeper, path) = (ZooKeeper::lent(), "/dlock/dlock#beside/x");
        let mut session = zookeeper.session();
        assert_runs_on(&zookeeper.url(), || {
            until(SOON, "the document beside the entries", || session.get(path).is_some());
            session.set(path, NEWER).unwrap();
            // Several heartbeats, of some packets each, beside the pings.
            let before = zookeeper.figure(0, "packets_received");
            until(SOON, "heartbeats", || zookeeper.figure(0, "packets_received") >= before + 40);
        });
        assert_eq!(session.children("/dlock/x").unwrap(), [""; 0]);
        assert_eq!(session.get(path).unwrap().0, NEWER, "it is not written");
        session.close().unwrap();
    }
}

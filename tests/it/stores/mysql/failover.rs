//! F37: a replica that takes over, and a server without space.

use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::doctor::{answer, init};
use crate::support::mariadb::{DATABASE, MariaDb, Plan, Product};
use crate::support::running::{Exit, Output, Running};
use crate::support::wait::{eventually, until};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

/// An address that moves from one server to another, for new connections.
fn address_of(target: &Arc<AtomicU16>) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let (port, target) = (listener.local_addr().unwrap().port(), Arc::clone(target));
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect(("127.0.0.1", target.load(Ordering::SeqCst))) else {
                continue;
            };
            let (mut down, mut up) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            let (mut from, mut to) = (client, server);
            std::thread::spawn(move || {
                let _ = io::copy(&mut from, &mut to);
                let _ = to.shutdown(std::net::Shutdown::Both);
            });
            std::thread::spawn(move || {
                let _ = io::copy(&mut down, &mut up);
                let _ = up.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    port
}

fn held(url: &str, name: &str, ttl: &str) -> Running {
    let run = Dlock::run().backend(url).name(name).args(["--ttl", ttl]).stdin(Stdio::piped());
    let mut run = run.sh("echo ready; read line; echo done").spawn();
    run.await_ready();
    run
}

fn finish(mut run: Running) -> Output {
    drop(run.take_stdin());
    run.wait()
}

/// A server that follows another one from now on.
fn replica_of(primary: &MariaDb) -> MariaDb {
    let replica = MariaDb::start_with(Plan { args: vec!["--server-id=2".to_owned()], ..Plan::current() });
    primary.sql("CREATE USER follower; GRANT REPLICATION SLAVE ON *.* TO follower");
    let status = primary.sql("SHOW BINARY LOG STATUS");
    let (file, position) = status.split_once('\t').expect("a binary log");
    let position = position.split('\t').next().expect("a position").trim();
    replica.sql(&format!(
        "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {}, SOURCE_USER = 'follower', SOURCE_LOG_FILE = '{file}', \
         SOURCE_LOG_POS = {position}, SOURCE_CONNECT_RETRY = 1, GET_SOURCE_PUBLIC_KEY = 1; START REPLICA; SET GLOBAL read_only = 1",
        primary.port()
    ));
    replica
}

/// As on PostgreSQL.
#[test]
fn a_lock_can_be_lost_where_a_replica_could_take_over() {
    let primary = MariaDb::start_with(Plan::current());
    primary.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 1, GLOBAL sync_binlog = 1");
    primary.create_user("me", "", "ALL ON locks.*");
    let loss = |url: &str| answer(&init(url), "loss").0;
    assert_eq!(loss(&primary.url()), "no");
    assert_eq!(loss(&primary.url().replace("root", "me")), "unknown", "the user may not know");
    let _replica = replica_of(&primary);
    until(SOON, "the replica", || loss(&primary.url()) == "yes");
}

#[test]
fn a_replica_takes_over_without_the_last_locks() {
    let args = ["--server-id=1", "--log-bin=binlog", "--binlog-format=MIXED"].map(str::to_owned).to_vec();
    let mut primary = MariaDb::start_with(Plan { args, ..Plan::current() });
    let replica = replica_of(&primary);
    let user = "CREATE USER me; GRANT ALL ON locks.* TO me";
    primary.sql(user);
    let target = Arc::new(AtomicU16::new(primary.port()));
    let url = |recipe: &str| format!("mysql://me@127.0.0.1:{}/{DATABASE}{recipe}", address_of(&target));
    let (table, sessions) = (url(""), url("?recipe=get_lock"));
    // Its renewals do not get to the replica, where it must not have ended.
    let kept = held(&table, "kept", "2m");
    let row = "SELECT COUNT(*) FROM dlock_locks";
    until(SOON, "the row on the replica", || replica.try_sql(row).is_ok_and(|count| count == "1\n"));
    replica.sql("STOP REPLICA");
    let mut lost = held(&table, "lost", "2m");
    let mut session = held(&sessions, "session", "2m");

    let standby = format!("mysql://me@127.0.0.1:{}/{DATABASE}", replica.port());
    for recipe in ["", "?recipe=get_lock"] {
        let refused = Dlock::run().backend(format!("{standby}{recipe}")).sh("echo ran").output();
        assert_eq!((refused.exit, refused.stdout.as_str()), (Exit::Code(69), ""), "{recipe}");
        assert!(refused.stderr.contains("the server is read-only: name the primary"), "{}", refused.stderr);
    }

    replica.sql("SET GLOBAL read_only = 0");
    target.store(replica.port(), Ordering::SeqCst);
    primary.kill();
    for run in [&mut lost, &mut session] {
        let output = run.wait();
        assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
        assert!(output.stderr.contains("the lock was lost: it is gone from the store"), "{}", output.stderr);
    }
    let output = finish(kept);
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ready\ndone\n"), "{}", output.stderr);
    let next = Dlock::run().backend(&sessions).name("session").sh("echo ran").output();
    assert_eq!(next.outcome(), (Exit::Code(0), "ran\n", ""));
}

/// A user with rights above `read_only` could write to the former primary, and every user can keep a lock of `GET_LOCK`
/// there.
#[test]
fn a_demoted_primary_keeps_no_holder() {
    let server = MariaDb::start_with(Plan::current());
    server.sql(
        "CREATE USER me; GRANT ALL ON locks.* TO me; CREATE USER guest; CREATE TABLE shedlock (name varchar(64) PRIMARY \
         KEY, lock_until timestamp(3) NOT NULL, locked_at timestamp(3) NOT NULL, locked_by varchar(255) NOT NULL)",
    );
    let url =
        |user: &str, recipe: &str| format!("mysql://{user}@127.0.0.1:{}/{DATABASE}{recipe}", server.port());
    let administrator = server.url();
    let urls = [
        administrator.to_owned(),
        url("me", ""),
        format!("{administrator}?recipe=get_lock"),
        url("me", "?recipe=get_lock"),
        url("guest", "?recipe=get_lock"),
        format!("{administrator}?recipe=shedlock&clock=db-utc"),
    ];
    let mut runs: Vec<_> =
        urls.iter().enumerate().map(|(number, url)| held(url, &format!("held{number}"), "10s")).collect();
    server.sql("SET GLOBAL read_only = 1");
    for (run, url) in runs.iter_mut().zip(&urls) {
        let output = run.wait();
        assert_eq!(
            (output.exit, output.stdout.as_str()),
            (Exit::Code(76), "ready\n"),
            "{url}: {}",
            output.stderr
        );
        assert!(
            output.stderr.contains("the server is read-only: name the primary"),
            "{url}: {}",
            output.stderr
        );
    }
    server.sql("SET GLOBAL read_only = 0");
}

/// There is no space for another value of the row.
#[test]
fn a_full_server_is_unavailable() {
    let server = MariaDb::lent_of(Product::Mysql9_7);
    assert_eq!(Dlock::run().backend(server.url()).sh("true").output().exit, Exit::Code(0));
    for (code, text) in [(1114, "The table is full"), (1021, "Disk full (/data); waiting for space")] {
        let fails =
            format!("FOR EACH ROW SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = '{text}'");
        server.sql(&format!(
            "DROP TRIGGER IF EXISTS full_insert; DROP TRIGGER IF EXISTS full_update; CREATE TRIGGER full_insert BEFORE INSERT \
             ON dlock_locks {fails}; CREATE TRIGGER full_update BEFORE UPDATE ON dlock_locks {fails}"
        ));
        for recipe in ["", "?recipe=get_lock"] {
            let url = format!("{}{recipe}", server.url());
            let output = Dlock::run().backend(&url).sh("echo ran").output();
            let message = format!(
                "dlock: x on {url}: no space is left (error {code}: {text}); the command did not run, see --retry\n"
            );
            assert_eq!(output.outcome(), (Exit::Code(69), "", message.as_str()));
        }
    }
    server.await_free("x");
}

/// The space of InnoDB is limited, and a large table has all of it.
#[test]
fn a_server_without_space_for_the_table_is_unavailable() {
    let args =
        ["--innodb-file-per-table=0", "--innodb-data-file-path=ibdata1:12M"].map(str::to_owned).to_vec();
    let server = MariaDb::start_with(Plan { args, ..Plan::current() });
    server.sql("CREATE TABLE jobs (id integer PRIMARY KEY AUTO_INCREMENT, text longblob) ENGINE = InnoDB");
    // Few large ones, then as small as a page.
    for bytes in [1_000_000, 100_000, 6_000] {
        let full = eventually(4 * SOON, "a full server", || {
            server.try_sql(&format!("INSERT INTO jobs (text) VALUES (REPEAT('x', {bytes}))")).err()
        });
        assert!(full.contains("is full"), "{full}");
    }
    let output = Dlock::run().backend(server.url()).sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""), "{}", output.stderr);
    assert!(output.stderr.contains("no space is left (error 1114: "), "{}", output.stderr);
}

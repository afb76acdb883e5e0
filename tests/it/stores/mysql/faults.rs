//! What happens to the connection and the server while a lock is held or awaited.

use crate::stores::lost_replies::assert_recovered;
use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::mariadb::{DATABASE, MariaDb, Plan, Product};
use crate::support::process;
use crate::support::running::{Exit, Running};
use crate::support::wait::{eventually, until};
use std::process::Stdio;

/// Starts a run that holds the lock.
fn holder(url: &str) -> Running {
    let mut run = Dlock::run().backend(url).args(["--ttl", "3s"]).sh("echo ready; exec sleep 600").spawn();
    run.await_ready();
    run
}

/// Ends the connections of everyone else.
fn kill_connections(server: &MariaDb) -> usize {
    let ids = server.sql(
        "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND command <> 'Daemon' AND user <> 'system user'",
    );
    ids.lines().for_each(|id| {
        let _ = server.try_sql(&format!("KILL {id}"));
    });
    ids.lines().count()
}

fn waiters(server: &MariaDb) -> usize {
    let entries = server.sql("SELECT entries FROM dlock_locks WHERE name = 'x'");
    entries.matches("\"turn\"").count()
}

/// F37
#[test]
fn killed_connections_are_opened_again() {
    let server = MariaDb::lent_of(Product::Mysql9_7);
    let mut holder = holder(&server.url());
    let waiter = || {
        let run = Dlock::run().backend(server.url()).args(["--ttl", "3s", "--wait", "1m"]);
        run.sh("echo ran").spawn()
    };
    let mut first = waiter();
    until(SOON, "a waiter", || waiters(&server) == 1);
    let leases = || server.sql("SELECT leases FROM dlock_locks WHERE name = 'x'");
    for _ in 0..3 {
        assert!(kill_connections(&server) >= 1);
        let before = leases();
        until(SOON, "a renewal over another connection", || leases() != before);
    }
    assert!(process::alive(holder.command()));
    holder.signal(nix::sys::signal::Signal::SIGTERM);
    holder.wait();
    assert_eq!(first.wait().exit, Exit::Code(0));
}

/// F37: the renewals of a user without the right to ignore it fail, and the command is stopped before its lease ends.
#[test]
fn a_server_that_becomes_read_only_stops_the_command() {
    let server = MariaDb::lent_of(Product::Mysql9_7);
    server.create_user("me", "secret", "ALL ON locks.*");
    let run = Dlock::run().backend(server.url().replace("root", "me")).args(["--ttl", "3s"]);
    let mut run = run.env("MYSQL_PWD", "secret").sh("echo ready; exec sleep 600").spawn();
    run.await_ready();
    let command = run.command();
    server.sql("SET GLOBAL read_only = 1");
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
    assert!(output.stderr.contains("the server is read-only"), "{}", output.stderr);
    assert!(!process::alive(command));
    server.sql("SET GLOBAL read_only = 0");
}

/// F37: too many connections are a matter of moments.
#[test]
fn a_server_without_a_free_connection_is_asked_again() {
    let plan = Plan { args: vec!["--max-connections=10".to_owned()], ..Plan::current() };
    let server = MariaDb::start_with(plan);
    server.create_user("me", "secret", "ALL ON locks.*");
    let connect = || {
        let mut client = server.client("me");
        client.args(["--password=secret", "--execute", "SELECT SLEEP(600)"]);
        client.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    // The server has one more connection for root, which may still be that of the last query.
    let count = || server.try_sql("SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'me'");
    let mut others = Vec::new();
    // One may be refused because the test itself is connected.
    until(SOON, "ten connections", || {
        others.push(connect());
        count().is_ok_and(|count| count == "10\n")
    });
    let url = server.url().replace("root", "me");
    let run = Dlock::run().backend(url).args(["--connect-timeout", "30s", "-v"]).env("MYSQL_PWD", "secret");
    let refused = || server.try_sql("SHOW GLOBAL STATUS LIKE 'Connection_errors_max_connections'").ok();
    let before = eventually(SOON, "a count of refused connections", refused);
    let mut run = run.sh("echo ran").spawn();
    until(SOON, "a connection that is refused", || refused().is_some_and(|count| count != before));
    for other in &mut others {
        other.kill().unwrap();
        other.wait().unwrap();
    }
    let output = run.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", output.stderr);
}

/// F01: the command is dead before its lease ends, although the server is silent.
#[test]
fn a_server_that_hangs_stops_the_command_in_time() {
    let server = MariaDb::lent_of(Product::Mysql9_7);
    let mut run = holder(&server.url());
    let command = run.command();
    server.daemon().stop();
    let output = run.wait();
    server.daemon().resume();
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
    assert!(!process::alive(command));
}

#[test]
fn a_row_that_is_deleted_stops_the_command() {
    let server = MariaDb::lent_of(Product::Mysql9_7);
    let mut run = holder(&server.url());
    server.sql("DELETE FROM dlock_locks");
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
    let message = "the lock was lost: it is gone from the store (deleted, expired or evicted); the command was stopped\n";
    assert!(output.stderr.ends_with(message), "{}", output.stderr);
}

/// F03, F07, F37: also the reply to a commit.
#[test]
fn a_lost_reply_is_recovered_at_every_step() {
    let server = MariaDb::lent_of(Product::Mysql9_7);
    // Each reply of the server is one packet then.
    let url = |port| format!("mysql://root@127.0.0.1:{port}/{DATABASE}?ssl_mode=disabled");
    assert_recovered(url, server.port(), "10m", |step| {
        let sql = "SELECT leases FROM dlock_locks WHERE leases <> ''";
        assert_eq!(server.sql(sql), "", "left behind after the loss of reply {step}");
    });
}

/// The host's clock, and the time zone of the server, mean nothing.
#[test]
fn leases_do_not_depend_on_time_zones() {
    let server = MariaDb::lent_of(Product::Mysql9_7);
    let mut run = holder(&server.url());
    for zone in ["-11:00", "+13:00"] {
        server.sql(&format!("SET GLOBAL time_zone = '{zone}'"));
        let other = Dlock::run().backend(server.url()).arg("--no-wait").sh("echo ran").output();
        assert_eq!(other.exit, Exit::Code(75), "{}", other.stderr);
    }
    server.sql("SET GLOBAL time_zone = SYSTEM");
    run.signal(nix::sys::signal::Signal::SIGTERM);
    run.wait();
}

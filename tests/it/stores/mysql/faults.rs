//! What happens to the connection and the server while a lock is held or awaited.

use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::mariadb::{MariaDb, Plan, Product};
use crate::support::process;
use crate::support::running::{Exit, Running};
use crate::support::wait::{eventually, until};
use std::io::Read;
use std::net::TcpStream;

/// Starts a run that holds the lock.
fn holder(url: &str) -> Running {
    let mut run = Dlock::run().backend(url).args(["--ttl", "6s"]).sh("echo ready; exec sleep 600").spawn();
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
        let run = Dlock::run().backend(server.url()).args(["--ttl", "6s", "--wait", "1m"]);
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
    let run = Dlock::run().backend(server.url().replace("root", "me")).args(["--ttl", "6s"]);
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
    let plan = Plan {
        args: ["--max-connections=10", "--connect-timeout=600"].map(str::to_owned).to_vec(),
        ..Plan::current()
    };
    let server = MariaDb::start_with(plan);
    server.create_user("me", "secret", "ALL ON locks.*");
    // Clients that never log in, as many as the server accepts but one: that connection is for root, and whoever else gets it
    // is refused at the login.
    let mut others: Vec<_> = std::iter::from_fn(|| greeted(server.port())).collect();
    others.pop();
    let refused = || server.try_sql("SHOW GLOBAL STATUS LIKE 'Connection_errors_max_connections'").ok();
    let before = eventually(SOON, "a count of refused connections", refused);
    let url = server.url().replace("root", "me");
    let run = Dlock::run().backend(url).args(["--connect-timeout", "2m"]).env("MYSQL_PWD", "secret");
    let mut run = run.sh("echo ran").spawn();
    until(SOON, "a connection that is refused", || refused().is_some_and(|count| count != before));
    drop(others);
    let output = run.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", output.stderr);
}

/// Connects and reads the greeting; returns `None` if the server has no free connection.
fn greeted(port: u16) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    // The length and number of the packet, and the version of the protocol or the mark of an error.
    let mut beginning = [0; 5];
    stream.read_exact(&mut beginning).unwrap();
    (beginning[4] != 0xff).then_some(stream)
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

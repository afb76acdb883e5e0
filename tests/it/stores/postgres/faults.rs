//! F37: what servers do to connections and statements.

use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::pgbouncer::PgBouncer;
use crate::support::place::Place;
use crate::support::postgres::{Plan, Postgres};
use crate::support::running::{Exit, Running};
use crate::support::wait::until;
use std::time::Duration;

const KILL: &str =
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'dlock'";

fn held(run: Dlock, ttl: &str) -> Running {
    let mut held = run.args(["--ttl", ttl]).sh("echo ready; read line; echo done").spawn();
    held.await_ready();
    held
}

fn finish(mut run: Running) -> crate::support::running::Output {
    drop(run.take_stdin());
    run.wait()
}

/// The command of a holder does not notice, and a waiter keeps its position.
#[test]
fn killed_connections_are_replaced() {
    let (server, place) = (Postgres::lent_with(Plan::current()), Place::new());
    let run = || place.run().backend(server.url());
    let holder = held(run().stdin(std::process::Stdio::piped()), "6s");
    let mut waiter = run().args(["--wait", "60s", "--ttl", "6s"]).sh("echo granted").spawn();
    let waits = "SELECT count(*) FROM dlock_locks WHERE entries LIKE '%\"line\":[{%'";
    until(SOON, "a waiter", || server.sql(waits) == "1");
    let mut since = "-infinity".to_owned();
    for _ in 0..3 {
        let opened = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dlock' AND backend_start > '{since}'"
        );
        until(SOON, "two new connections", || server.sql(&opened) == "2");
        since = server.sql("SELECT clock_timestamp()");
        server.sql(KILL);
    }
    let output = finish(holder);
    assert_eq!(output.outcome(), (Exit::Code(0), "ready\ndone\n", ""));
    assert_eq!(waiter.wait().outcome(), (Exit::Code(0), "granted\n", ""));
}

/// The pooler has one SQLSTATE for this and for a fault of its configuration.
#[test]
fn a_server_that_is_down_behind_a_pooler_is_retried() {
    let (mut server, place) = (Postgres::start(), Place::new());
    let settings = ["client_login_timeout = 1", "server_login_retry = 1"];
    let pooler = PgBouncer::start_with(server.port(), "transaction", 20, &settings);
    server.kill();
    let run = place.run().backend(pooler.url()).args(["-v", "--retry", "60s", "--connect-timeout", "10s"]);
    let mut run = run.sh("echo ran").spawn();
    run.await_stderr("(server");
    run.assert_running();
    server.restart();
    let output = run.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", output.stderr);
}

#[test]
fn sessions_and_statements_with_time_limits_do_not_matter() {
    let settings =
        ["idle_session_timeout=1s", "idle_in_transaction_session_timeout=1s", "statement_timeout=5s"];
    let plan = Plan { settings: settings.map(str::to_owned).to_vec(), ..Plan::current() };
    let (server, place) = (Postgres::start_with(plan), Place::new());
    let holder = held(place.run().backend(server.url()).stdin(std::process::Stdio::piped()), "6s");
    let mut waiter =
        place.run().backend(server.url()).args(["--wait", "60s", "--ttl", "6s"]).sh("echo granted").spawn();
    // Two renewals, each over a connection that the server has not closed for being idle.
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(finish(holder).outcome(), (Exit::Code(0), "ready\ndone\n", ""));
    assert_eq!(waiter.wait().outcome(), (Exit::Code(0), "granted\n", ""));
}

/// The row is locked for longer than the lease lasts.
#[test]
fn a_server_that_does_not_answer_renewals_loses_the_command() {
    let (server, place) = (Postgres::lent_with(Plan::current()), Place::new());
    let mut holder = held(place.run().backend(server.url()).stdin(std::process::Stdio::piped()), "6s");
    let directory = server.directory().display().to_string();
    let port = server.port().to_string();
    let lock = "BEGIN; SELECT 1 FROM dlock_locks FOR UPDATE; SELECT pg_sleep(600)";
    let mut locker = std::process::Command::new("psql")
        .args(["-X", "-q", "-h", &directory, "-p", &port, "-U", "postgres", "-c", lock, "postgres"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let output = holder.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(76), "ready\n"), "{}", output.stderr);
    locker.kill().unwrap();
    locker.wait().unwrap();
    until(SOON, "the end of all sessions", || {
        server.sql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE 'BEGIN;%'")
            == "0"
    });
}

#[test]
fn a_standby_is_passed_over_and_takes_over_when_it_is_promoted() {
    let mut primary = Postgres::start_with(Plan::current());
    let standby = primary.standby();
    let url =
        format!("postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres", standby.port(), primary.port());
    let place = Place::new();
    let run = || place.run().backend(&url);
    for _ in 0..4 {
        assert_eq!(run().sh("echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""));
    }
    let alone = format!("postgres://postgres@127.0.0.1:{}/postgres", standby.port());
    let output = place.run().backend(&alone).sh("echo ran").output();
    let message = format!(
        "dlock: x on {alone}: the server is read-only (it is a standby): locks are taken on the primary; the command did not run, see --retry\n"
    );
    assert_eq!(output.outcome(), (Exit::Code(69), "", message.as_str()));
    let replayed = |row: &str| standby.try_sql(&format!("SELECT count(*) FROM dlock_locks WHERE {row}"));
    // The standby may take long to become the primary.
    let kept = held(run().name("kept").stdin(std::process::Stdio::piped()), "30s");
    let mut lost = held(run().name("lost").stdin(std::process::Stdio::piped()), "30s");
    until(SOON, "both rows on the standby", || {
        replayed("ends_at > extract(epoch FROM now()) * 1000000").is_ok_and(|count| count == "2")
    });
    primary.kill();
    standby.promote();
    standby.sql("DELETE FROM dlock_locks WHERE name = 'lost'");
    let output = lost.wait();
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
    let output = finish(kept);
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ready\ndone\n"), "{}", output.stderr);
}

#[test]
fn a_read_only_database_is_named() {
    let server = Postgres::start_with(Plan::current());
    server.sql("ALTER DATABASE postgres SET default_transaction_read_only = on");
    let output = Dlock::run().backend(server.url()).sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""));
    assert!(output.stderr.contains("the server is read-only ("), "{}", output.stderr);
}

/// There is no space for another value of the row.
#[test]
fn a_full_server_is_unavailable() {
    let server = Postgres::start_with(Plan::current());
    assert_eq!(Dlock::run().backend(server.url()).sh("true").output().exit, Exit::Code(0));
    // The trigger is there when the table has been checked, and the claim waits for its lock.
    let full = "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'could not extend \
         file: No space left on device' USING ERRCODE = '53100'; END $$; CREATE TRIGGER full_disk BEFORE INSERT OR \
         UPDATE ON dlock_locks FOR EACH ROW EXECUTE FUNCTION full_disk(); DO $$ BEGIN WHILE NOT EXISTS (SELECT FROM pg_locks \
         WHERE NOT granted) LOOP PERFORM pg_sleep(0.01); END LOOP; END $$";
    let output = std::thread::scope(|scope| {
        scope.spawn(|| server.sql(full));
        let locked = "SELECT count(*) FROM pg_locks WHERE relation = 'dlock_locks'::regclass AND mode = \
                      'ShareRowExclusiveLock'";
        until(SOON, "the lock of the trigger", || server.sql(locked) == "1");
        Dlock::run().backend(server.url()).sh("echo ran").output()
    });
    let message = format!(
        "dlock: x on {}: could not extend file: No space left on device; the command did not run, see --retry\n",
        server.url()
    );
    assert_eq!(output.outcome(), (Exit::Code(69), "", message.as_str()));
}

/// A role may have another default isolation level.
#[test]
fn every_isolation_level_works() {
    let server = Postgres::start_with(Plan::current());
    for level in ["serializable", "repeatable read"] {
        server.sql(&format!("ALTER ROLE postgres SET default_transaction_isolation = '{level}'"));
        let place = Place::new();
        let run = || place.run().backend(server.url()).args(["--wait", "60s"]).sh("echo x >> log").spawn();
        let mut runs: Vec<_> = (0..8).map(|_| run()).collect();
        for run in &mut runs {
            assert_eq!(run.wait().outcome(), (Exit::Code(0), "", ""), "{level}");
        }
        assert_eq!(place.read("log").lines().count(), 8);
    }
}

//! Statements that dlock has given up: they do not pile up at the server, and what they did is not believed.

use crate::support::SOON;
use crate::support::pgbouncer::PgBouncer;
use crate::support::place::Place;
use crate::support::postgres::{Plan, Postgres};
use crate::support::proxy::Proxy;
use crate::support::psql::Psql;
use crate::support::running::Exit;
use crate::support::wait::{throughout, until};
use nix::sys::signal::Signal;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// The sessions of dlock, or of a pooler for it.
const BACKENDS: &str = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dlock'";
/// Those of its statements that wait for a lock.
const BLOCKED: &str =
    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dlock' AND wait_event_type = 'Lock'";

fn count(server: &Postgres, query: &str) -> usize {
    server.sql(query).parse().unwrap()
}

/// Locks the row of a holder and three waiters for many attempts of each, and returns the largest number of sessions
/// that was seen meanwhile.
fn sessions_while_a_row_is_locked(server: &Postgres, port: u16) -> usize {
    let (proxy, place) = (Proxy::to(port), Place::new());
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", proxy.port());
    let run = |ttl| {
        let run = place.run().backend(&url).args(["--wait", "60s", "--retry", "60s"]);
        run.args(["--ttl", ttl, "--connect-timeout", "500ms"])
    };
    let mut holder =
        run("30s").arg("-v").stdin(Stdio::piped()).sh("echo ready; read line; echo done").spawn();
    holder.await_ready();
    let mut waiters: Vec<_> = (0..3).map(|_| run("6s").sh("echo granted").spawn()).collect();
    let waits = "SELECT jsonb_array_length(entries::jsonb->'line') FROM dlock_locks";
    until(SOON, "three waiters", || server.sql(waits) == "3");
    let mut psql = Psql::open(&server.url());
    psql.ask("BEGIN; SELECT name FROM dlock_locks FOR UPDATE");
    let (before, began) = (proxy.attempts(), Instant::now());
    let mut most = 0;
    let mut failing: Option<Instant> = None;
    // Past the first renewals of the holder, the first of which is due within ten seconds.
    until(SOON, "attempts", || {
        most = most.max(count(server, BACKENDS));
        if failing.is_none() && holder.stderr().contains("cannot renew") {
            failing = Some(Instant::now());
        }
        let are_past = failing.is_some_and(|since| since.elapsed() > Duration::from_secs(3));
        are_past && began.elapsed() > Duration::from_secs(9) && proxy.attempts() - before > 16
    });
    assert!(holder.poll().is_none());
    psql.ask("ROLLBACK; SELECT 1");
    drop(holder.take_stdin());
    let output = holder.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ready\ndone\n"), "{}", output.stderr);
    for waiter in &mut waiters {
        let output = waiter.wait();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "granted\n"), "{}", output.stderr);
    }
    most
}

#[test]
fn statements_behind_a_locked_row_are_cancelled() {
    let server = Postgres::lent_with(Plan::current());
    let most = sessions_while_a_row_is_locked(&server, server.port());
    // One is being cancelled while the next one connects.
    assert!(most <= 8, "{most} sessions of 4 dlocks");
}

/// The pooler distributes transactions over its own sessions, and takes cancellations for its clients.
#[test]
fn statements_behind_a_pooler_are_cancelled() {
    let server = Postgres::lent_with(Plan::current());
    let pooler = PgBouncer::start(server.port(), "transaction", 20);
    let most = sessions_while_a_row_is_locked(&server, pooler.port());
    assert!(most <= 8, "{most} sessions for 4 dlocks");
}

/// The session of an advisory lock is neither closed nor are its statements cancelled: the lock would be lost.
#[test]
fn the_session_of_an_advisory_lock_outlasts_its_abandoned_statements() {
    let (server, place) = (Postgres::lent_with(Plan::current()), Place::new());
    let run = place.run().backend(format!("{}?recipe=advisory", server.url()));
    let run = run.args(["--ttl", "20s", "--connect-timeout", "500ms", "--retry", "60s"]);
    let mut holder = run.stdin(Stdio::piped()).sh("echo ready; read line; echo done").spawn();
    holder.await_ready();
    const LOCK: &str = "SELECT count(*), min(pid) FROM pg_locks WHERE locktype = 'advisory'";
    let lock = server.sql(LOCK);
    let mut psql = Psql::open(&server.url());
    psql.ask("BEGIN; SELECT name FROM dlock_locks FOR UPDATE");
    until(SOON, "an abandoned renewal", || {
        holder.stderr().contains("cannot renew") || count(&server, BLOCKED) == 1
    });
    throughout(Duration::from_secs(2), "one session", || count(&server, BACKENDS) == 1);
    psql.ask("ROLLBACK; SELECT 1");
    until(SOON, "no statement that waits", || count(&server, BLOCKED) == 0);
    assert_eq!(server.sql(LOCK), lock);
    drop(holder.take_stdin());
    let output = holder.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ready\ndone\n"), "{}", output.stderr);
}

/// Nobody is left to cancel it: the server ends it.
#[test]
fn the_statement_of_a_killed_dlock_does_not_wait_for_ever() {
    let server = Postgres::lent_with(Plan::current());
    let pooler = PgBouncer::start(server.port(), "transaction", 20);
    let place = Place::new();
    assert_eq!(place.run().backend(server.url()).sh("true").output().exit, Exit::Code(0));
    let mut psql = Psql::open(&server.url());
    psql.ask("BEGIN; SELECT name FROM dlock_locks FOR UPDATE");
    for url in [server.url(), pooler.url()] {
        let mut run = place.run().backend(&url).args(["--connect-timeout", "60s"]).sh("true").spawn();
        until(SOON, "a statement that waits", || count(&server, BLOCKED) == 1);
        run.signal(Signal::SIGKILL);
        run.wait();
        assert_eq!(count(&server, BLOCKED), 1, "{url}");
        until(Duration::from_secs(30), "the end of the statement", || count(&server, BLOCKED) == 0);
    }
}

/// No standby answers. The server shows what is stored on the primary alone as soon as the statement is cancelled.
#[test]
fn a_change_whose_wait_for_a_standby_was_cancelled_is_no_grant() {
    let server = Postgres::start_with(Plan::current());
    let place = Place::new();
    assert_eq!(place.run().backend(server.url()).sh("true").output().exit, Exit::Code(0));
    server.sql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
    server.sql("SELECT pg_reload_conf()");
    until(SOON, "the setting", || server.sql("SHOW synchronous_standby_names") == "nobody");
    for (name, options) in [("taken", &[][..]), ("swapped", &["--once-per", "1h"])] {
        let run = place.run().backend(server.url()).name(name).args(options);
        let run = run.args(["--connect-timeout", "500ms", "--retry", "4s", "--ttl", "2s"]);
        let output = run.sh("echo ran").output();
        assert_eq!(
            (output.exit, output.stdout.as_str()),
            (Exit::Code(69), ""),
            "{options:?} {}",
            output.stderr
        );
    }
}

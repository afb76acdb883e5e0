//! `recipe=advisory`: what ends the session, what other clients of the server see, and poolers.

use super::waiters::assert_waiters_keep_no_snapshot;
use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::doctor::{assert_found, assert_run_agrees, doctor, init};
use crate::support::pgbouncer::PgBouncer;
use crate::support::place::Place;
use crate::support::postgres::{Plan, Postgres};
use crate::support::process;
use crate::support::proxy::Proxy;
use crate::support::psql::Psql;
use crate::support::running::{Exit, Running};
use crate::support::wait::{throughout, until};
use nix::sys::signal::Signal;
use std::process::Stdio;
use std::time::Duration;

/// The number of waiters.
const JOINED: &str = "SELECT coalesce(sum(json_array_length(entries::json -> 'line')), 0) FROM dlock_locks";
const LOCKED: &str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
const TRY: &str = "SELECT pg_try_advisory_lock(4711)";

fn advisory(url: &str) -> String {
    format!("{url}?recipe=advisory&key=raw")
}

/// A run under the lock 4711, until its standard input is closed.
fn holding(run: Dlock, ttl: &str) -> Running {
    let run = run.name("4711").args(["--ttl", ttl]).stdin(Stdio::piped());
    let mut held = run.sh("echo ready; read line; echo done").spawn();
    held.await_ready();
    held
}

/// The session of the holder ends, and so does its command, although the lease would last for long.
#[test]
fn a_terminated_session_ends_the_command_at_once() {
    let (server, place) = (Postgres::lent(), Place::new());
    let mut holder = holding(place.run().backend(advisory(&server.url())), "10m");
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'");
    let output = holder.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(76), "ready\n"), "{}", output.stderr);
    assert!(output.stderr.contains("the lock was lost: it is gone from the store"), "{}", output.stderr);
    holder.marker().await_end();
}

/// dlock does not wait for the server to return.
#[test]
fn the_end_of_the_server_ends_the_command_at_once() {
    let (mut server, place) = (Postgres::start(), Place::new());
    let mut holder = holding(place.run().backend(advisory(&server.url())), "10m");
    server.kill();
    let output = holder.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(76), "ready\n"), "{}", output.stderr);
}

/// The heartbeat asks for the lock, not only for the session.
#[test]
fn a_lock_that_the_session_has_lost_ends_the_command() {
    let (server, place) = (Postgres::lent(), Place::new());
    let mut holder = holding(place.run().backend(advisory(&server.url())), "6s");
    // What a pooler does between two of its clients, done to the session of dlock by another row than that of the lock.
    server.sql(
        "CREATE OR REPLACE FUNCTION unlock() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM \
         pg_advisory_unlock_all(); RETURN NEW; END $$; CREATE TRIGGER unlock BEFORE UPDATE ON dlock_locks FOR EACH ROW \
         EXECUTE FUNCTION unlock()",
    );
    let output = holder.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(76), "ready\n"), "{}", output.stderr);
}

/// Shorter than the time between two heartbeats.
#[test]
fn time_limits_of_the_role_do_not_end_the_session() {
    let (server, place) = (Postgres::start(), Place::new());
    server.sql("CREATE ROLE web LOGIN; GRANT ALL ON SCHEMA public TO web");
    for setting in ["idle_session_timeout", "idle_in_transaction_session_timeout"] {
        server.sql(&format!("ALTER ROLE web SET {setting} = '1s'"));
    }
    server.sql("ALTER ROLE web SET statement_timeout = '2s'");
    let url = server.url().replace("postgres@", "web@");
    let mut holder = holding(place.run().backend(advisory(&url)), "6s");
    let process = server.sql("SELECT pid FROM pg_locks WHERE locktype = 'advisory'");
    let beats =
        format!("SELECT state_change - backend_start > '5s' FROM pg_stat_activity WHERE pid = {process}");
    until(SOON, "two heartbeats of one session", || server.sql(&beats) == "t");
    drop(holder.take_stdin());
    assert_eq!(holder.wait().outcome(), (Exit::Code(0), "ready\ndone\n", ""));
}

/// A run whose command ignores SIGTERM and leaves its pid in a file.
fn stubborn(place: &Place, url: &str) -> (Running, i32) {
    let run = place.run().backend(advisory(url)).name("4711").args(["--ttl", "6s"]);
    let text = "trap '' TERM; echo $$ >pid; echo ready; while :; do sleep 0.05; done";
    let mut holder = run.sh(text).spawn();
    holder.await_ready();
    (holder, place.read("pid").trim().parse().expect("a pid"))
}

/// The guard stops the tree before the server ends the session.
#[test]
fn the_lock_of_a_stopped_dlock_ends_after_its_tree() {
    let (server, place) = (Postgres::lent(), Place::new());
    let (mut holder, command) = stubborn(&place, &server.url());
    let mut psql = Psql::open(&server.url());
    holder.signal(Signal::SIGSTOP);
    psql.send("SELECT 'taken' FROM pg_advisory_lock(4711)");
    assert_eq!(psql.reply(), "taken");
    assert!(!process::alive(command));
    holder.signal(Signal::SIGCONT);
    assert_eq!(holder.wait().exit, Exit::Code(76));
}

/// The guard keeps the session open until then.
#[test]
fn the_lock_of_a_killed_dlock_ends_after_its_tree() {
    let (server, place) = (Postgres::lent(), Place::new());
    let (mut holder, command) = stubborn(&place, &server.url());
    let mut psql = Psql::open(&server.url());
    assert_eq!(psql.ask(TRY), "f");
    psql.send("SELECT 'taken' FROM pg_advisory_lock(4711)");
    holder.signal(Signal::SIGKILL);
    assert_eq!(psql.reply(), "taken");
    assert!(!process::alive(command));
    assert_eq!(holder.wait().exit, Exit::by(Signal::SIGKILL));
}

#[test]
fn psql_and_dlock_exclude_each_other_in_every_mode() {
    let (server, place) = (Postgres::lent(), Place::new());
    let run = |options: &[&str]| place.run().backend(advisory(&server.url())).name("4711").args(options);
    let shared: (&[&str], _) = (&["--shared"], "_shared");
    let (exclusive, slots): ((&[&str], _), (&[&str], _)) = ((&[], ""), (&["--slots", "3"], "_shared"));
    let mut psql = Psql::open(&server.url());
    for (options, sql) in [exclusive, shared, slots] {
        let mut holder = run(options).stdin(Stdio::piped()).sh("echo ready; read line; true").spawn();
        holder.await_ready();
        assert_eq!(psql.ask(TRY), "f", "{options:?}");
        let is_shared = if sql.is_empty() { "f" } else { "t" };
        assert_eq!(psql.ask("SELECT pg_try_advisory_lock_shared(4711)"), is_shared, "{options:?}");
        drop(holder.take_stdin());
        assert_eq!(holder.wait().exit, Exit::Code(0));
        psql.ask("SELECT 1 FROM pg_advisory_unlock_all()");

        assert_eq!(psql.ask(&format!("SELECT pg_try_advisory_lock{sql}(4711)")), "t");
        assert_eq!(run(&[]).sh("echo ran").output().exit, Exit::Code(75), "{sql}");
        let beside = if sql.is_empty() { Exit::Code(75) } else { Exit::Code(0) };
        assert_eq!(run(&["--shared"]).sh("true").output().exit, beside, "{sql}");
        assert_eq!(
            run(&["--slots", "3"]).sh("true").output().exit,
            Exit::Code(75),
            "slots are counted by dlock"
        );
        let mut waiter = run(&["--wait", "forever"]).sh("echo ran").spawn();
        until(SOON, "a waiter", || server.sql(JOINED) == "1");
        let status = place.bare().args(["status", "4711", "-b", &advisory(&server.url())]).output();
        assert!(status.stdout.contains("role postgres, psql"), "{}", status.stdout);
        psql.ask("SELECT 1 FROM pg_advisory_unlock_all()");
        assert_eq!(waiter.wait().outcome(), (Exit::Code(0), "ran\n", ""));
    }
}

/// Each rule on the key that another library would take for the name.
#[test]
fn every_rule_takes_the_key_of_its_library() {
    let (server, place) = (Postgres::lent(), Place::new());
    let mut psql = Psql::open(&server.url());
    for (option, name, key) in [
        ("key=raw", "9223372036854775807", "9223372036854775807"),
        ("key=pair", "47,-11", "47, -11"),
        ("key=rails", "nightly", "267906906, 0"),
        ("key=rails&prefix=7", "nightly", "267906906, 7"),
        ("key=hashtext", "nightly", "hashtext('nightly')"),
        ("key=medallion", "nightly", "-576242034, -1690517505"),
        ("key=medallion", "backup-database", "7962705011275754972"),
    ] {
        let url = format!("{}?recipe=advisory&{option}", server.url());
        let run = || place.bare().args(["run", "-b", &url, name, "--", "sh", "-c", "exit 5"]).output().exit;
        assert_eq!(run(), Exit::Code(5), "{option}");
        assert_eq!(psql.ask(&format!("SELECT pg_try_advisory_lock({key})")), "t");
        assert_eq!(run(), Exit::Code(75), "{option}");
        assert_eq!(psql.ask(&format!("SELECT pg_advisory_unlock({key})")), "t");
    }
}

#[test]
fn unfit_options_and_names_are_refused() {
    let url = "postgres://web@127.0.0.1:1/app";
    for (code, options, name, message) in [
        (64, "recipe=advisory&key=raw", "nightly", "with key=raw a name is a number"),
        (64, "recipe=advisory&key=pair", "1,99999999999", "with key=pair a name is two numbers"),
        (78, "recipe=advisory&key=md5", "x", "key= is raw, pair, rails, hashtext or medallion, not 'md5'"),
        (78, "recipe=advisory&key=raw&prefix=1", "1", "prefix= is for key=rails"),
        (78, "recipe=advisory&key=rails&prefix=x", "1", "prefix= is a number, not 'x'"),
        (78, "recipe=get_lock", "x", "recipe= is table, advisory or shedlock, not 'get_lock'"),
        (78, "key=raw", "1", "key= is for recipe=advisory"),
    ] {
        let output = Dlock::run().backend(format!("{url}?{options}")).name(name).sh("echo ran").output();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(code), ""), "{options}");
        assert!(output.stderr.contains(message), "{options}: {}", output.stderr);
    }
}

#[test]
fn a_lock_without_a_process_is_refused() {
    let url = "postgres://web@127.0.0.1:1/app?recipe=advisory";
    let output = Place::new().bare().args(["acquire", "--ttl", "1m", "-b", url, "x"]).output();
    let message = format!(
        "dlock: {url} holds a lock only as long as a process does: use dlock run, or a store that keeps leases, such as -b \
         redis://HOST\n"
    );
    assert_eq!(output.outcome(), (Exit::Code(64), "", message.as_str()));
}

/// Two clients would hold the lock at the same time.
#[test]
fn a_pooler_of_transactions_is_refused() {
    let (server, place) = (Postgres::lent(), Place::new());
    for connections in [1, 2, 20] {
        let pooler = PgBouncer::start(server.port(), "transaction", connections);
        for _ in 0..3 {
            let output = place.run().backend(advisory(&pooler.url())).name("4711").sh("echo ran").output();
            assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(78), ""), "{}", output.stderr);
            assert!(output.stderr.contains("a pooler gives each transaction"), "{}", output.stderr);
        }
        assert_eq!(server.sql(LOCKED), "0");
    }
}

/// Behind a Unix socket there could be a pooler, which a second connection finds out.
#[test]
fn a_direct_connection_needs_no_other_one() {
    let plan = Plan { settings: vec!["log_connections=on".into()], ..Plan::default() };
    let (server, place) = (Postgres::start_with(plan), Place::new());
    let connections = || server.daemon().log().matches("connection authorized: user=web").count();
    server.sql("CREATE ROLE web LOGIN SUPERUSER");
    let (directory, port) = (server.directory().display().to_string(), server.port());
    let over_unix = format!("postgres://web@/postgres?host={directory}&port={port}&recipe=advisory&key=raw");
    for (url, count) in [(advisory(&server.url().replace("postgres@", "web@")), 1), (over_unix, 2)] {
        let before = connections();
        let output = place.run().backend(&url).name("4711").sh("true").output();
        assert_eq!((output.outcome(), connections() - before), ((Exit::Code(0), "", ""), count), "{url}");
    }
}

/// The lock ends with the session behind the pooler too.
#[test]
fn a_pooler_of_sessions_works() {
    let (server, place) = (Postgres::lent(), Place::new());
    let pooler = PgBouncer::start(server.port(), "session", 20);
    let mut holder = holding(place.run().backend(advisory(&pooler.url())), "6s");
    let mut psql = Psql::open(&server.url());
    assert_eq!(psql.ask(TRY), "f");
    throughout(Duration::from_secs(7), "it is kept", || psql.ask(TRY) == "f");
    drop(holder.take_stdin());
    assert_eq!(holder.wait().outcome(), (Exit::Code(0), "ready\ndone\n", ""));
    assert_eq!(psql.ask(TRY), "t");
}

/// The role can neither create the table nor use it.
#[test]
fn a_role_without_the_table_has_exclusive_locks() {
    let (server, place) = (Postgres::start(), Place::new());
    server.sql("CREATE ROLE web LOGIN");
    let url = advisory(&server.url().replace("postgres@", "web@"));
    for _ in 0..2 {
        let run = |options: &[&str]| place.run().backend(&url).name("4711").args(options);
        let mut holder = holding(run(&[]), "6s");
        assert_eq!(server.sql(LOCKED), "1");
        assert_eq!(run(&[]).sh("true").output().exit, Exit::Code(75));
        let mut waiter = run(&["--wait", "forever"]).sh("echo granted $DLOCK_FENCING_TOKEN").spawn();
        throughout(Duration::from_secs(7), "the lock is kept", || server.sql(LOCKED) == "1");
        drop(holder.take_stdin());
        assert_eq!(holder.wait().outcome(), (Exit::Code(0), "ready\ndone\n", ""));
        assert_eq!(waiter.wait().outcome(), (Exit::Code(0), "granted\n", ""));
        for options in [&["--shared"][..], &["--slots", "2"], &["--once-per", "1h"]] {
            let output = run(options).sh("echo ran").output();
            assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(64), ""), "{}", output.stderr);
            assert!(output.stderr.contains("locks are exclusive only"), "{}", output.stderr);
            assert!(output.stderr.contains("see dlock doctor --policy"), "{}", output.stderr);
        }
        assert_eq!(server.sql(LOCKED), "0");
        // The second time there is a table, of another role.
        assert_eq!(place.run().backend(server.url()).sh("true").output().exit, Exit::Code(0));
    }
}

#[test]
fn waiters_keep_no_snapshot() {
    let (server, place) = (Postgres::start(), Place::new());
    assert_waiters_keep_no_snapshot(&server, || place.run().backend(advisory(&server.url())).name("4711"));
}

/// An advisory lock is not replicated: the new primary does not have it.
#[test]
fn a_standby_is_passed_over_and_a_fail_over_ends_the_command() {
    let mut primary = Postgres::start();
    let standby = primary.standby();
    let both =
        format!("postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres", standby.port(), primary.port());
    let place = Place::new();
    let mut holder = holding(place.run().backend(advisory(&both)), "10m");
    assert_eq!(primary.sql(LOCKED), "1");
    let alone = place.run().backend(advisory(&standby.url())).name("4711").sh("echo ran").output();
    assert_eq!((alone.exit, alone.stdout.as_str()), (Exit::Code(69), ""));
    assert!(alone.stderr.contains("the server is read-only (it is a standby)"), "{}", alone.stderr);
    primary.kill();
    standby.promote();
    let output = holder.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(76), "ready\n"), "{}", output.stderr);
    assert_eq!(standby.sql(LOCKED), "0");
}

/// As before PostgreSQL 14. A standby can take an advisory lock.
#[test]
fn a_standby_that_does_not_report_it_is_passed_over() {
    let primary = Postgres::start();
    primary.sql("CREATE ROLE web LOGIN");
    let standby = primary.standby();
    let (proxy, place) = (Proxy::to(standby.port()), Place::new());
    proxy.rename("in_hot_standby", "in_old_standby");
    let alone = format!("postgres://web@127.0.0.1:{}/postgres", proxy.port());
    let both = alone.replace("/postgres", &format!(",127.0.0.1:{}/postgres", primary.port()));
    let run = |url: &str| place.run().backend(advisory(url)).name("4711").sh("echo ran").output();
    let refused = run(&alone);
    assert_eq!((refused.exit, refused.stdout.as_str()), (Exit::Code(69), ""), "{}", refused.stderr);
    assert!(refused.stderr.contains("the server is read-only (it is a standby)"), "{}", refused.stderr);
    let pooler = PgBouncer::start(proxy.port(), "transaction", 1);
    let refused = place.run().backend(pooler.url()).sh("echo ran").output();
    assert_eq!((refused.exit, refused.stdout.as_str()), (Exit::Code(69), ""), "{}", refused.stderr);
    assert!(refused.stderr.contains("the server is read-only (it is a standby)"), "{}", refused.stderr);
    for _ in 0..4 {
        assert_eq!(run(&both).outcome(), (Exit::Code(0), "ran\n", ""));
    }
}

#[test]
fn a_read_only_database_is_named() {
    let server = Postgres::start_with(Plan::default());
    server.sql("ALTER DATABASE postgres SET default_transaction_read_only = on");
    let output = Dlock::run().backend(advisory(&server.url())).name("4711").sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""));
    assert!(output.stderr.contains("the server is read-only ("), "{}", output.stderr);
    assert_eq!(server.sql(LOCKED), "0");
}

#[test]
fn doctor_says_what_ends_the_lock_and_what_a_role_lacks() {
    let server = Postgres::start();
    server.sql("CREATE ROLE web LOGIN");
    for (user, level, found) in [("web", "warning", "permission denied"), ("postgres", "ok", "exists")] {
        let url = advisory(&server.url().replace("postgres@", &format!("{user}@")));
        let output = if user == "postgres" { init(&url) } else { doctor(&url) };
        assert_eq!(output.exit, Exit::Code(0), "{}", output.stdout);
        assert_found(&output, level, "table", found);
        assert_found(&output, "ok", "race", "20 races of 8 connections for a free lock had one winner each");
        assert!(output.stdout.contains("the end of its session"), "{}", output.stdout);
        assert_eq!(server.sql(LOCKED), "0");
    }
    let pooler = PgBouncer::start(server.port(), "transaction", 20);
    let output = doctor(&advisory(&pooler.url()));
    assert_eq!(output.exit, Exit::Code(1), "{}", output.stdout);
    assert_found(&output, "problem", "session", "a pooler gives each transaction");
    assert_run_agrees(&format!("{}?recipe=advisory", pooler.url()), "session", 78, "use recipe=table");
    let url = advisory(&server.url());
    let policy = Place::new().bare().args(["doctor", "--policy", "-b", &url]).output();
    assert!(
        policy.stdout.contains("GRANT SELECT, INSERT, UPDATE, DELETE ON \"public\".\"dlock_locks\""),
        "{}",
        policy.stdout
    );
    assert!(policy.stderr.replace('\n', " ").contains("Advisory locks need no right"), "{}", policy.stderr);
}

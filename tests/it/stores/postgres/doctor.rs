//! `dlock doctor` on PostgreSQL.

use crate::support::SOON;
use crate::support::doctor::{answer, assert_answered, assert_found, assert_refused, doctor, init};
use crate::support::pgbouncer::PgBouncer;
use crate::support::postgres::{Plan, Postgres};
use crate::support::running::{Exit, Output};
use crate::support::wait::until;

#[track_caller]
fn assert_loss(output: &Output, is_possible: &str, by: &str) {
    let (answer, detail) = answer(output, "loss");
    assert_eq!(answer, is_possible, "{detail}");
    assert!(detail.contains(by), "{detail}");
}

#[test]
fn a_healthy_server_has_only_a_warning_of_its_durability() {
    let server = Postgres::lent();
    let output = doctor(&server.url());
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stdout);
    assert_found(&output, "warning", "table", "there is no table public.dlock_locks");
    assert_eq!(server.sql("SELECT to_regclass('dlock_locks') IS NULL"), "t", "it was created");
    let output = init(&server.url());
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stdout);
    for (level, check, found) in [
        ("ok", "authentication", "role postgres"),
        ("ok", "version", "PostgreSQL "),
        ("ok", "notifications", "a release notifies the next waiter"),
        // As the tests start it.
        ("warning", "durability", "fsync is off"),
        ("ok", "availability", "one server: while it is down no lock can be taken"),
        ("ok", "table", "public.dlock_locks exists"),
        // As the tests connect.
        ("warning", "role", "postgres can act as a superuser"),
        ("ok", "latency", "of 100 reads"),
        ("ok", "lock", "taken, renewed and given back in"),
        ("ok", "race", "20 races of 8 connections for a free lock had one winner each"),
    ] {
        assert_found(&output, level, check, found);
    }
    assert_answered(&output);
    assert_eq!(server.sql("SELECT count(*) FROM dlock_locks"), "0", "left behind");
}

/// A pooler hides which process serves a request.
#[test]
fn a_pooler_is_a_warning() {
    let server = Postgres::lent();
    init(&server.url());
    for mode in ["transaction", "session"] {
        let pooler = PgBouncer::start(server.port(), mode, 20);
        let output = doctor(&pooler.url());
        assert_eq!(output.exit, Exit::Code(0), "{}", output.stdout);
        assert_found(&output, "warning", "notifications", "a pooler stands between");
        assert_found(&output, "ok", "race", "20 races of 8 connections for a free lock had one winner each");
    }
}

#[test]
fn a_standby_and_a_missing_right_are_problems() {
    let server = Postgres::start_with(Plan { settings: vec!["fsync=on".into()], ..Plan::default() });
    server.sql("CREATE ROLE web LOGIN");
    let url = |server: &Postgres| format!("postgres://web@127.0.0.1:{}/postgres", server.port());
    let output = doctor(&url(&server));
    assert_eq!(output.exit, Exit::Code(1), "{}", output.stdout);
    assert_found(&output, "ok", "durability", "a commit is on disk when it is acknowledged");
    assert_found(&output, "problem", "table", "permission denied for schema public");
    assert_refused(&init(&url(&server)), "init", 77, "the rights that dlock doctor --policy prints");
    assert_loss(&init(&server.url()), "no", "it has no standby now");
    let standby = server.standby();
    let output = doctor(&url(&standby));
    assert_eq!(output.exit, Exit::Code(1), "{}", output.stdout);
    assert_found(&output, "problem", "server", "the server is read-only (it is a standby)");
    assert_loss(&doctor(&server.url()), "yes", "by a fail-over to a standby that has not received it");
    server.sql("ALTER SYSTEM SET synchronous_standby_names = '*'");
    server.sql("SELECT pg_reload_conf()");
    let is_safe = || answer(&doctor(&server.url()), "loss").0 == "no";
    until(SOON, "synchronous replication", is_safe);
}

/// The check of each refusal, and the status of a run.
#[test]
fn a_refused_connection_is_a_problem_of_its_cause() {
    let server = Postgres::lent();
    let at = |authority: &str| format!("postgres://{authority}@127.0.0.1:{}", server.port());
    for (url, check, status, remedy) in [
        (format!("{}/postgres", at("nobody")), "authentication", 77, "check the role and its password"),
        (format!("{}/missing", at("postgres")), "database", 78, "check the name of the database"),
    ] {
        let output = doctor(&url);
        assert_eq!(output.exit, Exit::Code(1), "{output:?}");
        assert_refused(&output, check, status, remedy);
        for question in ["atomic_grant", "loss", "one_server", "lease_clock"] {
            assert_eq!(answer(&output, question).0, "unknown", "{output:?}");
        }
    }
    server.sql("CREATE ROLE reader LOGIN");
    server.sql("ALTER ROLE reader SET default_transaction_read_only = on");
    let output = doctor(&server.url().replace("postgres@", "reader@"));
    assert_eq!(output.exit, Exit::Code(1), "{output:?}");
    assert_found(&output, "problem", "primary", "read-only transactions");
}

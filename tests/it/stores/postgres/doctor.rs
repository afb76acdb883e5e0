//! `dlock doctor` on PostgreSQL.

use crate::support::SOON;
use crate::support::doctor::{
    answer, assert_found, assert_refused, assert_run_agrees, assert_unknown, doctor, init,
};
use crate::support::pgbouncer::PgBouncer;
use crate::support::place::Place;
use crate::support::postgres::{Plan, Postgres};
use crate::support::running::{Exit, Output};
use crate::support::wait::until;

#[track_caller]
fn assert_loss(output: &Output, is_possible: &str, by: &str) {
    let (answer, detail) = answer(output, "loss");
    assert_eq!(answer, is_possible, "{detail}");
    assert!(detail.contains(by), "{detail}");
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
    assert_refused(&init(&url(&server)), "table", 77, "what dlock doctor --policy prints");
    assert_loss(&init(&server.url()), "no", "it has no replica now");
    let standby = server.standby();
    let output = doctor(&url(&standby));
    assert_eq!(output.exit, Exit::Code(1), "{}", output.stdout);
    assert_found(&output, "problem", "server", "the server is read-only (it is a standby)");
    assert_loss(&doctor(&server.url()), "yes", "by a fail-over to a replica that has not received it");
    server.sql("ALTER SYSTEM SET synchronous_standby_names = '*'");
    server.sql("SELECT pg_reload_conf()");
    let is_safe = || answer(&doctor(&server.url()), "loss").0 == "no";
    until(SOON, "synchronous replication", is_safe);
}

/// Without a right, with another table, or where nothing can be written.
#[test]
fn a_run_ends_with_the_status_that_is_found() {
    let server = Postgres::start();
    server.sql("CREATE ROLE web LOGIN; CREATE ROLE reader LOGIN");
    server.sql("ALTER ROLE reader SET default_transaction_read_only = on");
    server.sql("CREATE TABLE others (name text); GRANT ALL ON others TO web");
    server.sql("CREATE ROLE viewer LOGIN");
    init(&format!("{}?table=closed", server.url()));
    let web = server.url().replace("postgres@", "web@");
    let nobody = server.url().replace("postgres@", "nobody@");
    let reader = server.url().replace("postgres@", "reader@");
    let missing = format!("postgres://postgres@127.0.0.1:{}/missing", server.port());
    let policy = "what dlock doctor --policy prints";
    for (url, check, status, remedy) in [
        (&nobody, "authentication", 77, "check the role and its password"),
        (&missing, "database", 78, "check the name of the database"),
        (&reader, "primary", 69, "name the primary"),
        (&web, "table", 77, policy),
        (&format!("{web}?table=closed"), "table", 77, policy),
        (&format!("{}?table=others", server.url()), "table", 78, ""),
        (&format!("{web}?table=others"), "table", 78, ""),
        (&format!("{web}?recipe=shedlock&clock=db-utc"), "shedlock", 78, "dlock doctor --policy"),
    ] {
        assert_run_agrees(url, check, status, remedy);
    }
    for url in [&nobody, &missing] {
        assert_unknown(url);
    }
    assert_found(&doctor(&reader), "problem", "primary", "read-only transactions");
    assert_eq!(server.sql("SELECT to_regclass('dlock_locks') IS NULL"), "t", "it was created");
    let advisory = format!("{web}?recipe=advisory");
    assert_eq!(doctor(&advisory).exit, Exit::Code(0), "locks need no table");
    let output = init(&advisory);
    assert_eq!(output.exit, Exit::Code(1), "it was not created: {}", output.stdout);
    assert_found(&output, "problem", "table", "permission denied for schema public");
    init(&server.url());
    server.sql("GRANT SELECT ON dlock_locks TO viewer");
    assert_run_agrees(
        &server.url().replace("postgres@", "viewer@"),
        "lock",
        77,
        "that dlock doctor --policy prints",
    );
    let floor = Place::new().bare().args(["doctor", "-b", &web, "--fencing-floor", "7", "x"]).output();
    assert_eq!((floor.exit, floor.stdout.as_str()), (Exit::Code(77), ""), "{}", floor.stderr);
    let standby = server.standby();
    assert_run_agrees(&standby.url(), "server", 69, "");
}

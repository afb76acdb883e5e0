//! `dlock doctor` on PostgreSQL.

use crate::support::pgbouncer::PgBouncer;
use crate::support::place::Place;
use crate::support::postgres::{Plan, Postgres};
use crate::support::running::{Exit, Output};
use serde_json::Value;

pub fn doctor(url: &str) -> Output {
    Place::new().bare().args(["doctor", "-b", url, "--json", "--connect-timeout", "5s"]).output()
}

#[track_caller]
pub fn assert_found(output: &Output, level: &str, check: &str, found: &str) {
    let report: Value = serde_json::from_str(&output.stdout).expect("JSON");
    let is_meant = |finding: &&Value| {
        finding["level"] == level
            && finding["check"] == check
            && finding["found"].as_str().is_some_and(|text| text.contains(found))
    };
    let findings = report["findings"].as_array().expect("findings");
    assert!(findings.iter().any(|finding| is_meant(&finding)), "{level} {check} {found}: {}", output.stdout);
}

#[test]
fn a_healthy_server_has_only_a_warning_of_its_durability() {
    let server = Postgres::lent();
    let output = doctor(&server.url());
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stdout);
    for (level, check, found) in [
        ("ok", "authentication", "role postgres"),
        ("ok", "version", "PostgreSQL "),
        ("ok", "notifications", "a release notifies the next waiter"),
        // As the tests start it.
        ("warning", "durability", "fsync is off"),
        ("ok", "table", "was created"),
        ("ok", "latency", "of 100 reads"),
        ("ok", "lock", "taken, renewed and given back in"),
        ("ok", "race", "20 races of 8 connections for a free lock had one winner each"),
    ] {
        assert_found(&output, level, check, found);
    }
    let report: Value = serde_json::from_str(&output.stdout).expect("JSON");
    let answers = report["answers"].to_string();
    for answer in ["atomic_grant", "loss", "one_server", "lease_clock"] {
        assert!(answers.contains(answer), "{answers}");
    }
    assert_eq!(server.sql("SELECT count(*) FROM dlock_locks"), "0", "left behind");
}

/// A pooler hides which process serves a request.
#[test]
fn a_pooler_is_a_warning() {
    let server = Postgres::lent();
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
    let standby = server.standby();
    let output = doctor(&url(&standby));
    assert_eq!(output.exit, Exit::Code(1), "{}", output.stdout);
    assert_found(&output, "problem", "server", "the server is read-only (it is a standby)");
}

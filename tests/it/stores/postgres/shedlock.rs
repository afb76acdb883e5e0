//! `recipe=shedlock` on PostgreSQL, beside the statements that ShedLock itself sends.

use crate::stores::gate_alone::assert_exclusive_only;
use crate::stores::host_clock::assert_the_hosts_clock_does_not_matter;
use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::doctor::{assert_found, doctor};
use crate::support::place::Place;
use crate::support::pool::Lent;
use crate::support::postgres::Postgres;
use crate::support::running::{Exit, Output};
use crate::support::wait::until;

pub const TABLE: &str = "CREATE TABLE shedlock (name VARCHAR(64) NOT NULL, lock_until TIMESTAMP NOT NULL, locked_at TIMESTAMP NOT \
                     NULL, locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name))";
pub const DB_UTC: &str = "recipe=shedlock&clock=db-utc";
const NOW: &str = "timezone('utc', CURRENT_TIMESTAMP)";

fn server() -> Lent<Postgres> {
    let server = Postgres::lent();
    server.sql(TABLE);
    server
}

fn url(server: &Postgres, options: &str) -> String {
    format!("{}?{options}", server.url())
}

fn run(server: &Postgres, options: &str) -> Dlock {
    Dlock::run().backend(url(server, options))
}

/// Who has the row, by the clock of the server.
pub fn holder(server: &Postgres) -> String {
    server.sql(&format!("SELECT locked_by FROM shedlock WHERE name = 'x' AND lock_until > {NOW}"))
}

/// Takes the lock as `usingDbTime()` does.
fn take(server: &Postgres, until: &str) -> bool {
    let taken = format!(
        "INSERT INTO shedlock (name, lock_until, locked_at, locked_by) VALUES ('x', {until}, {NOW}, 'app-1') ON CONFLICT \
         (name) DO UPDATE SET lock_until = {until}, locked_at = {NOW}, locked_by = 'app-1' WHERE shedlock.name = 'x' AND \
         shedlock.lock_until <= {NOW} RETURNING 1"
    );
    !server.sql(&taken).is_empty()
}

#[test]
fn the_row_names_the_holder_and_not_its_token() {
    let server = server();
    let mut held = run(&server, DB_UTC).sh("echo ready; exec sleep 600").spawn();
    held.await_ready();
    let by = holder(&server);
    let parts: Vec<&str> = by.split(':').collect();
    assert_eq!((parts.len(), parts[2].len()), (3, 32), "{by}");
    assert!(!take(&server, NOW));
    held.signal(nix::sys::signal::Signal::SIGTERM);
    held.wait();
    assert_eq!(holder(&server), "");
    assert_eq!(server.sql("SELECT count(*) FROM shedlock"), "1", "rows are never deleted");
}

#[test]
fn a_scheduler_is_shown_with_its_name_and_its_times() {
    let server = server();
    assert!(take(&server, &format!("{NOW} + interval '1 hour'")));
    let output = run(&server, DB_UTC).args(["--wait", "0"]).sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(75), ""), "{}", output.stderr);
    let status = |option: &str| {
        Place::new().bare().args(["status", option, "-b", &url(&server, DB_UTC), "x"]).output().stdout
    };
    assert!(status("--wide").contains("locked by app-1"), "{}", status("--wide"));
    let json: serde_json::Value = serde_json::from_str(&status("--json")).expect("JSON");
    let holder = &json["locks"][0]["holders"][0];
    assert_eq!(holder["foreign"], true);
    assert!(holder["expires_in_ms"].as_u64().is_some_and(|rest| rest > 3_000_000), "{holder}");
    assert!(holder["acquired_at"].is_string(), "{holder}");
    let broken = Place::new().bare().args(["break", "-b", &url(&server, DB_UTC), "x", "--yes"]).output();
    assert_eq!(broken.exit, Exit::Code(75), "{}", broken.stdout);
    assert!(broken.stderr.contains("it is not a dlock, and cannot be notified"), "{}", broken.stderr);
}

#[test]
fn a_minimum_hold_time_is_in_the_row_until_it_is_ended_by_a_break() {
    let server = server();
    let kept = run(&server, DB_UTC).args(["--min-hold", "1h"]).sh("echo ran").output();
    assert_eq!(kept.outcome(), (Exit::Code(0), "ran\n", ""));
    assert_ne!(holder(&server), "");
    let ended = Place::new().bare().args(["break", "-b", &url(&server, DB_UTC), "x", "--yes"]).output();
    assert_eq!(ended.exit, Exit::Code(0), "{}", ended.stderr);
    assert_eq!(holder(&server), "");
    assert!(take(&server, NOW));
}

#[track_caller]
fn assert_refused(output: &Output, exit: i32, text: &str) {
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(exit), ""), "{}", output.stderr);
    assert!(output.stderr.contains(text), "{}", output.stderr);
}

#[test]
fn a_missing_table_is_not_created_and_another_one_not_changed() {
    let server = Postgres::lent();
    let attempt = || run(&server, DB_UTC).sh("echo ran").output();
    assert_refused(&attempt(), 78, "there is no table public.shedlock");
    assert_eq!(server.sql("SELECT to_regclass('shedlock') IS NULL"), "t");
    server.sql(
        "CREATE TABLE shedlock (name text PRIMARY KEY, lock_until timestamptz, locked_at timestamptz, locked_by text)",
    );
    assert_refused(&attempt(), 78, "lock_until is timestamp with time zone");
    assert_eq!(server.sql("SELECT count(*) FROM shedlock"), "0");
    assert_found(&doctor(&url(&server, DB_UTC)), "problem", "shedlock", "is not one of ShedLock");
    server.sql("DROP TABLE shedlock");
    let init = Place::new().bare().args(["doctor", "--init", "-b", &url(&server, DB_UTC)]).output();
    assert_eq!(init.exit, Exit::Code(0), "{}{}", init.stdout, init.stderr);
    assert_eq!(attempt().outcome(), (Exit::Code(0), "ran\n", ""));
    let healthy = doctor(&url(&server, DB_UTC));
    assert_found(&healthy, "ok", "clock", "which does not matter");
    assert_found(&healthy, "ok", "race", "had one winner each");
}

#[test]
fn a_role_without_the_table_has_exclusive_locks_only() {
    let server = Postgres::start();
    server.sql(TABLE);
    server.sql("CREATE ROLE web LOGIN");
    server.sql("GRANT SELECT, INSERT, UPDATE ON shedlock TO web");
    let owner = url(&server, DB_UTC);
    let web = owner.replace("postgres@", "web@");
    for _ in 0..2 {
        assert_exclusive_only(&web, &owner, "the role web may not have the table public.dlock_locks");
        assert_eq!(server.sql("SELECT count(*) FROM shedlock WHERE name = 'y'"), "1");
        assert_found(&doctor(&web), "warning", "table", "permission denied");
        // The second time there is a table, of another role.
        server.sql("UPDATE shedlock SET lock_until = locked_at");
        assert_eq!(run(&server, DB_UTC).sh("true").output().exit, Exit::Code(0));
    }
}

#[test]
fn what_shedlock_cannot_do_is_refused_before_it_is_asked() {
    let nowhere = "postgres://app@127.0.0.1:1/app";
    let refused = |options: &str, args: &[&str], name: &str| {
        let url = format!("{nowhere}?{options}");
        Place::new().bare().args(["run", "-b", &url]).args(args).args([name, "--", "true"]).output()
    };
    assert_refused(&refused(DB_UTC, &[], &"n".repeat(65)), 64, "at most 64 characters");
    assert_refused(&refused(DB_UTC, &["--shared"], "x"), 64, "ShedLock has one holder");
    assert_refused(&refused(DB_UTC, &["--slots", "2"], "x"), 64, "ShedLock has one holder");
    assert_refused(&refused("recipe=shedlock", &[], "x"), 78, "clock=db-utc, if the other programs use");
    assert_refused(
        &refused("recipe=shedlock&clock=jvm-zone&zone=Nowhere", &[], "x"),
        78,
        "unknown time zone",
    );
}

#[test]
fn a_hosts_clock_that_is_an_hour_wrong_changes_nothing() {
    let server = server();
    assert_the_hosts_clock_does_not_matter(&["recipe=table", DB_UTC], |options| run(&server, options));
}

/// As a scheduler without `usingDbTime()` writes it, in the zone of its JVM.
#[test]
fn local_times_of_a_zone_are_read_and_written() {
    let server = server();
    let zone = "recipe=shedlock&clock=jvm-zone&zone=Pacific/Kiritimati";
    let local = "timezone('Pacific/Kiritimati', clock_timestamp())";
    server.sql(&format!("INSERT INTO shedlock VALUES ('x', {local} + interval '1 hour', {local}, 'app-1')"));
    let busy = run(&server, zone).args(["--wait", "0"]).sh("echo ran").output();
    assert_eq!((busy.exit, busy.stdout.as_str()), (Exit::Code(75), ""), "{}", busy.stderr);
    server.sql(&format!("UPDATE shedlock SET lock_until = {local}"));
    let mut held = run(&server, zone).args(["--ttl", "10m"]).sh("echo ready; exec sleep 600").spawn();
    held.await_ready();
    let until_now = format!(
        "SELECT lock_until - {local} BETWEEN interval '9 minutes' AND interval '11 minutes' FROM shedlock"
    );
    assert_eq!(server.sql(&until_now), "t");
    held.signal(nix::sys::signal::Signal::SIGTERM);
    held.wait();
    until(SOON, "a free row", || server.sql(&format!("SELECT lock_until <= {local} FROM shedlock")) == "t");
}

/// A token is of use to any process that has it.
#[test]
fn a_token_keeps_the_row_across_processes() {
    let server = server();
    let place = Place::new();
    let command = |command: &str| place.bare().args([command, "-b", &url(&server, DB_UTC)]);
    let token = command("acquire").args(["--ttl", "10m", "x"]).output();
    assert_eq!(token.exit, Exit::Code(0), "{}", token.stderr);
    let token = token.stdout.trim();
    assert!(!take(&server, NOW));
    let before = server.sql("SELECT lock_until FROM shedlock");
    assert_eq!(command("renew").env("DLOCK_TOKEN", token).arg("x").output().exit, Exit::Code(0));
    assert_ne!(server.sql("SELECT lock_until FROM shedlock"), before);
    assert_eq!(command("release").env("DLOCK_TOKEN", token).arg("x").output().exit, Exit::Code(0));
    assert!(take(&server, NOW));
    assert_eq!(command("renew").env("DLOCK_TOKEN", token).arg("x").output().exit, Exit::Code(76));
}

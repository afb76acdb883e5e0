//! `dlock doctor` on MySQL and MariaDB.

use crate::support::dlock::Dlock;
use crate::support::doctor::{answer, assert_answered, assert_found, assert_refused, init};
use crate::support::fake::Fake;
use crate::support::mariadb::MariaDb;
use crate::support::place::Place;
use crate::support::running::{Exit, Output};

fn doctor(url: &str) -> Output {
    Place::new().bare().args(["doctor", "-b", url, "--json"]).env("MYSQL_PWD", "").output()
}

#[test]
fn a_healthy_server_answers_four_questions() {
    let server = MariaDb::lent();
    server.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 1");
    let missing = doctor(&server.url());
    assert_eq!(server.sql("SHOW TABLES"), "", "it was created");
    let output = init(&server.url());
    server.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 2");
    assert_eq!(missing.exit, Exit::Code(0), "{}", missing.stdout);
    assert_found(&missing, "warning", "table", "there is no table dlock_locks");
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stdout);
    let log_bin = server.sql("SELECT @@GLOBAL.log_bin").trim() == "1";
    let (loss, detail) = answer(&output, "loss");
    assert_eq!((loss == "yes", loss == "no"), (log_bin, !log_bin), "{detail}");
    for (check, found) in [
        ("authentication", "user root"),
        ("availability", "one server: while it is down no lock can be taken"),
        ("version", "MariaDB"),
        ("primary", "it accepts writes"),
        ("table", "dlock_locks, stored by InnoDB"),
        ("durability", "on the disk"),
        ("latency", "of 100 reads"),
        ("lock", "taken, renewed and given back in"),
        ("race", "20 races of 8 connections for a free lock had one winner each"),
    ] {
        assert_found(&output, "ok", check, found);
    }
    assert_answered(&output);
    assert_eq!(server.sql("SELECT COUNT(*) FROM dlock_locks"), "0\n", "left behind");
}

#[test]
fn what_endangers_locks_is_found() {
    let server = MariaDb::lent();
    let output = init(&server.url());
    assert_found(&output, "warning", "durability", "innodb_flush_log_at_trx_commit is 2");
    server.sql("ALTER TABLE dlock_locks ENGINE = MyISAM");
    assert_found(&doctor(&server.url()), "warning", "table", "is not stored by InnoDB");
    server.sql("ALTER TABLE dlock_locks DROP COLUMN calls");
    let output = doctor(&server.url());
    assert_eq!(output.exit, Exit::Code(1), "{}", output.stdout);
    assert_found(&output, "problem", "table", "Unknown column 'calls'");
    server.sql("SET GLOBAL read_only = 1");
    assert_found(&doctor(&server.url()), "problem", "primary", "the server is read-only");
    server.sql("SET GLOBAL read_only = 0");
}

/// A server that is demoted does not stop the writes of such a user.
#[test]
fn the_rights_of_an_administrator_are_found() {
    let server = MariaDb::lent();
    let rights = "the user may write to a read-only server (READ_ONLY ADMIN, SUPER)";
    let output = doctor(&server.url());
    assert_found(&output, "warning", "rights", rights);
    server.create_user("me", "", "ALL ON locks.*");
    let output = doctor(&server.url().replace("root", "me"));
    assert_found(&output, "ok", "rights", "the user cannot write to a read-only server");
}

/// Other users then need no right to create it.
#[test]
fn the_table_is_created_on_request() {
    let server = MariaDb::lent();
    server.create_user("me", "", "SELECT, INSERT, UPDATE, DELETE ON locks.*");
    let init = |url: &str| Place::new().bare().args(["doctor", "--init", "--json", "-b", url]).output();
    let url = server.url().replace("root", "me");
    let refused = init(&url);
    assert_eq!(refused.exit, Exit::Code(1), "{}", refused.stdout);
    assert_found(&refused, "problem", "init", "there is no table dlock_locks, and a right is missing");
    assert_refused(&refused, "init", 77, "the rights that dlock doctor --policy prints");
    assert_eq!(server.sql("SHOW TABLES"), "");
    for _ in 0..2 {
        let created = init(&server.url());
        assert_eq!(created.exit, Exit::Code(0), "{}", created.stdout);
    }
    let output = Dlock::run().backend(&url).sh("echo ran").output();
    assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
}

/// The check of each refusal, and the status of a run.
#[test]
fn a_refused_connection_is_a_problem_of_its_cause() {
    let server = MariaDb::lent();
    let old = Fake::saying({
        let greeting =
            b"\x0a5.6.51-log\0\x01\0\0\0abcdefgh\0\xff\xf7\x2d\x02\0\x0f\x80\x15\0\0\0\0\0\0\0\0\0\0ijklmnopqrst\0mysql_native_password\0";
        [&[u8::try_from(greeting.len()).expect("it is short"), 0, 0, 0][..], greeting].concat()
    });
    for (url, check, status, remedy) in [
        (server.url().replace("root", "nobody"), "authentication", 77, "check the user and password"),
        (format!("mysql://me@127.0.0.1:{}/db", old.port()), "protocol", 78, "change the URL"),
    ] {
        let output = doctor(&url);
        assert_eq!(output.exit, Exit::Code(1), "{output:?}");
        assert_refused(&output, check, status, remedy);
        for question in ["atomic_grant", "loss", "one_server", "lease_clock"] {
            assert_eq!(answer(&output, question).0, "unknown", "{output:?}");
        }
    }
}

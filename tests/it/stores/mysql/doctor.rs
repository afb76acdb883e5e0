//! `dlock doctor` on MySQL and MariaDB.

use crate::support::dlock::Dlock;
use crate::support::doctor::{assert_found, assert_refused, assert_run_agrees, assert_unknown, init};
use crate::support::fake::Fake;
use crate::support::mariadb::MariaDb;
use crate::support::place::Place;
use crate::support::running::{Exit, Output};

fn doctor(url: &str) -> Output {
    Place::new().bare().args(["doctor", "-b", url, "--json"]).env("MYSQL_PWD", "").output()
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
    assert_found(&refused, "problem", "table", "there is no table dlock_locks, and a right is missing");
    assert_refused(&refused, "table", 77, "what dlock doctor --policy prints");
    assert_eq!(server.sql("SHOW TABLES"), "");
    for _ in 0..2 {
        let created = init(&server.url());
        assert_eq!(created.exit, Exit::Code(0), "{}", created.stdout);
    }
    let output = Dlock::run().backend(&url).sh("echo ran").output();
    assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
}

/// Without a right, with another table, or where nothing can be written.
#[test]
fn a_run_ends_with_the_status_that_is_found() {
    let server = MariaDb::lent();
    let me = server.url().replace("root", "me");
    server.create_user("me", "", "SELECT ON locks.*");
    assert_run_agrees(
        &server.url().replace("root", "nobody"),
        "authentication",
        77,
        "check the user and password",
    );
    assert_run_agrees(&me, "table", 77, "what dlock doctor --policy prints");
    init(&server.url());
    assert_run_agrees(&me, "table", 77, "what dlock doctor --policy prints");
    server.sql("ALTER TABLE dlock_locks DROP COLUMN calls");
    assert_run_agrees(&server.url(), "table", 78, "rename that table");
    server.sql("SET GLOBAL read_only = 1");
    assert_run_agrees(&server.url(), "primary", 69, "name the primary");
    server.sql("SET GLOBAL read_only = 0");
}

/// It answers no question about a server that refuses the connection, or that is refused.
#[test]
fn a_refused_connection_is_a_problem_of_its_cause() {
    let server = MariaDb::lent();
    assert_unknown(&server.url().replace("root", "nobody"));
    let old = Fake::saying({
        let greeting =
            b"\x0a5.6.51-log\0\x01\0\0\0abcdefgh\0\xff\xf7\x2d\x02\0\x0f\x80\x15\0\0\0\0\0\0\0\0\0\0ijklmnopqrst\0mysql_native_password\0";
        [&[u8::try_from(greeting.len()).expect("it is short"), 0, 0, 0][..], greeting].concat()
    });
    let old = format!("mysql://me@127.0.0.1:{}/db", old.port());
    assert_refused(&doctor(&old), "protocol", 78, "change the URL");
    assert_unknown(&old);
}

//! Why waiters on the table poll, and do not wait in `GET_LOCK` for a name of dlock's own.

use crate::support::SOON;
use crate::support::mariadb::MariaDb;
use crate::support::wait::{throughout, until};
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::Duration;

/// How long nothing may happen.
const A_WHILE: Duration = Duration::from_millis(500);

fn await_waiting(server: &MariaDb, id: u64) {
    let sql = format!("SELECT state FROM information_schema.processlist WHERE id = {id}");
    until(SOON, "a session that waits", || server.sql(&sql) == "User lock\n");
}

/// The entry of a waiter would end meanwhile.
#[test]
fn a_session_that_waits_in_get_lock_cannot_send_its_heartbeat() {
    let server = MariaDb::lent();
    server.sql("CREATE TABLE heartbeats (id integer PRIMARY KEY)");
    let (mut holder, mut waiter) = (server.session(), server.session());
    assert_eq!(holder.ask("SELECT GET_LOCK('wake up', 0)"), "1");
    waiter.send("SELECT GET_LOCK('wake up', 600)");
    await_waiting(&server, waiter.id());
    waiter.send("INSERT INTO heartbeats VALUES (1)");
    let heartbeats = || server.sql("SELECT COUNT(*) FROM heartbeats");
    throughout(A_WHILE, "no heartbeat", || heartbeats() == "0\n");
    assert_eq!(holder.ask("SELECT RELEASE_LOCK('wake up')"), "1");
    assert_eq!(waiter.row(), "1");
    until(SOON, "a heartbeat", || heartbeats() == "1\n");
}

/// Names belong to everyone on the server.
#[test]
fn a_user_without_rights_can_keep_a_waiter_in_get_lock() {
    let server = MariaDb::lent();
    server.create_user("nobody", "", "USAGE ON *.*");
    let mut holder = server.session();
    assert_eq!(holder.ask("SELECT GET_LOCK('wake up', 0)"), "1");
    let mut intruder = server
        .client("nobody")
        .args(["--unbuffered"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut to_intruder = intruder.stdin.take().unwrap();
    let mut row = String::new();
    let mut from_intruder = BufReader::new(intruder.stdout.take().unwrap());
    writeln!(to_intruder, "SELECT CONNECTION_ID(); SELECT GET_LOCK('wake up', 600);").unwrap();
    from_intruder.read_line(&mut row).unwrap();
    await_waiting(&server, row.trim().parse().unwrap());
    let mut waiter = server.session();
    waiter.send("SELECT GET_LOCK('wake up', 600)");
    await_waiting(&server, waiter.id());
    // Whoever was first is woken, and keeps the others asleep for as long as it wants.
    assert_eq!(holder.ask("SELECT RELEASE_LOCK('wake up')"), "1");
    row.clear();
    from_intruder.read_line(&mut row).unwrap();
    assert_eq!(row, "1\n");
    throughout(A_WHILE, "a waiter that is not woken", || {
        server.sql(&format!("SELECT state FROM information_schema.processlist WHERE id = {}", waiter.id()))
            == "User lock\n"
    });
    intruder.kill().unwrap();
    intruder.wait().unwrap();
    assert_eq!(waiter.row(), "1");
}

/// A reader would have to wait for each of the holders: of two sessions that wait for each other's lock, one fails.
#[test]
fn sessions_that_wait_for_several_names_end_in_a_deadlock() {
    let server = MariaDb::lent();
    let (mut one, mut other) = (server.session(), server.session());
    assert_eq!(one.ask("SELECT GET_LOCK('one', 0)"), "1");
    assert_eq!(other.ask("SELECT GET_LOCK('other', 0)"), "1");
    one.send("SELECT GET_LOCK('other', 600)");
    await_waiting(&server, one.id());
    // Its statement fails with 1213 (3058 on MySQL), without a row, and it keeps its lock.
    other.send("SELECT GET_LOCK('one', 600)");
    assert_eq!(other.ask("SELECT IS_USED_LOCK('one') = CONNECTION_ID()"), "0");
    assert_eq!(other.ask("SELECT RELEASE_LOCK('other')"), "1");
    assert_eq!(one.row(), "1");
}

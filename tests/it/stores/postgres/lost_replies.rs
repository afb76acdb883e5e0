//! Replies that are lost after the request was carried out.

use crate::stores::lost_replies::{assert_lost_at_most, assert_recovered};
use crate::support::SOON;
use crate::support::postgres::Postgres;
use crate::support::wait::until;

/// F03, F07, F35
#[test]
fn a_lost_reply_is_recovered_at_every_step() {
    let server = Postgres::lent();
    let url = |port| format!("postgres://postgres@127.0.0.1:{port}/postgres");
    // A lease that was left behind would outlast the test.
    assert_recovered(url, server.port(), "10m", |step| {
        let used = "SELECT count(*) FROM dlock_locks WHERE ends_at > extract(epoch FROM now()) * 1000000";
        assert_eq!(server.sql(used), "0", "after the loss of reply {step}");
    });
}

/// F03, F07, F35
#[test]
fn a_lost_reply_ends_the_session_of_an_advisory_lock_and_no_run_waits_for_itself() {
    let server = Postgres::lent();
    let url = |port| format!("postgres://postgres@127.0.0.1:{port}/postgres?recipe=advisory");
    assert_lost_at_most(url, server.port(), |reply| {
        let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
        until(SOON, &format!("no lock after the loss of reply {reply}"), || server.sql(locks) == "0");
    });
}

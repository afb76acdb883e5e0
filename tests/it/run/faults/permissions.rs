//! A server with authentication and access rules.

use super::fixture::Fixture;
use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::redis::{Redis, is_memory};
use crate::support::resp::Value;
use crate::support::running::{Exit, Output};
use crate::support::wait::eventually;

/// The rights that dlock needs, besides a connection.
const RIGHTS: &[&str] = &["on", ">secret", "~*", "&*", "+@all"];

#[track_caller]
fn assert_refused(run: Dlock, word: &str) -> Output {
    let output = run.args(["--wait", "forever"]).sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(77), ""), "{}", output.stderr);
    assert!(output.stderr.starts_with("dlock: x on redis://"), "{}", output.stderr);
    assert!(output.stderr.to_lowercase().contains(word), "{word}: {}", output.stderr);
    assert!(!output.stderr.contains("secret"), "a password: {}", output.stderr);
    assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
    output
}

fn user(redis: &Redis, rules: &[&str]) {
    let words: Vec<&str> = ["ACL", "SETUSER", "alice"].iter().chain(rules).copied().collect();
    assert_eq!(redis.command(&words), Value::Text("OK".into()), "{words:?}");
}

/// A run as `user@`, or without a user, with a password that is not on its command line.
fn at(redis: &Redis, user: &str, password: &str) -> Dlock {
    let run = Place::new().run().backend(format!("redis://{user}127.0.0.1:{}/0", redis.port()));
    run.env("REDISCLI_AUTH", password)
}

/// No lock and no record of a holder; a counter only ever grows, and may remain.
#[track_caller]
fn nothing_is_left(redis: &Redis) {
    let mut keys = redis.command(&["KEYS", "*"]).texts();
    keys.retain(|key| !is_memory(key));
    assert_eq!(keys, [""; 0]);
}

/// F29
#[test]
fn a_server_that_requires_a_password_refuses_a_client_without_one() {
    let redis = Redis::start_with_args(&["--requirepass", "secret"]);
    for protocol in ["2", "3"] {
        let url = format!("redis://127.0.0.1:{}/0?protocol={protocol}", redis.port());
        assert_refused(Place::new().run().backend(url), "password");
    }
    let output = at(&redis, "", "secret").sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", output.stderr);
}

/// F29
#[test]
fn a_wrong_password_is_refused_and_leaves_no_trace() {
    let guarded = Redis::start_with_args(&["--requirepass", "secret"]);
    assert_refused(at(&guarded, "", "wrong"), "password");
    // Here unauthenticated clients have all rights, as by default.
    let open = Redis::start();
    user(&open, RIGHTS);
    for (user, protocol) in [("alice", 3), ("alice", 2), ("nobody", 3), ("nobody", 2)] {
        let url = format!("redis://{user}@127.0.0.1:{}/0?protocol={protocol}", open.port());
        let run = Place::new().run().backend(url).env("REDISCLI_AUTH", "wrong");
        assert_refused(run.args(["--ttl", "1h"]), "password");
        nothing_is_left(&open);
    }
}

/// F29
#[test]
fn a_disabled_user_is_refused() {
    let redis = Redis::start();
    user(&redis, &["off", ">secret", "~*", "+@all"]);
    assert_refused(at(&redis, "alice@", "secret"), "password");
    nothing_is_left(&redis);
}

/// F29
#[test]
fn a_missing_right_is_named() {
    for (rules, word) in [
        (["-eval", "~*"], "eval"),
        (["-@scripting", "~*"], "eval"),
        (["-pexpire", "resetkeys"], "alice has no access to dlock:*: a right is missing: "),
        (["-time", "~*"], "alice may not run time ("),
        (["-set", "~*"], "alice may not run set ("),
        (["-hset", "~*"], "alice may not run hset ("),
    ] {
        let redis = Redis::start();
        user(&redis, RIGHTS);
        user(&redis, &rules);
        assert_refused(at(&redis, "alice@", "secret"), word);
        nothing_is_left(&redis);
    }
}

/// F29
#[test]
fn optional_rights_are_not_required() {
    let redis = Redis::start();
    user(&redis, RIGHTS);
    user(&redis, &["-client", "-publish", "-subscribe", "-psubscribe", "-info", "-keys", "resetchannels"]);
    let output = at(&redis, "alice@", "secret").sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", output.stderr);
}

/// A fixture whose dlocks log in as alice.
fn as_alice(redis: &Redis) -> Fixture {
    user(redis, RIGHTS);
    Fixture::on(redis).logged_in("alice", "secret")
}

/// F29
#[test]
fn a_user_deleted_during_the_run_loses_the_lock_in_time() {
    let redis = Redis::start();
    let fixture = as_alice(&redis);
    let run = fixture.ticker();
    fixture.await_renewals(1);
    assert_eq!(redis.command(&["ACL", "DELUSER", "alice"]), Value::Int(1));
    // Requests sent from here on are not renewals.
    let good = fixture.last_replied();
    fixture.store.await_death_under_lock(&fixture.inherited_lock);
    let output = fixture.assert_killed_in_time_after(run, &good);
    assert!(output.stderr.contains("password"), "the reason: {}", output.stderr);
    user(&redis, RIGHTS);
    fixture.assert_succession();
}

/// F29
#[test]
fn a_user_whose_rights_are_revoked_during_the_run_loses_the_lock_in_time() {
    let redis = Redis::start();
    let fixture = as_alice(&redis);
    let run = fixture.ticker();
    fixture.await_renewals(1);
    user(&redis, &["-eval", "-evalsha"]);
    // Requests sent from here on are not renewals.
    let good = fixture.last_replied();
    fixture.store.await_death_under_lock(&fixture.inherited_lock);
    let output = fixture.assert_killed_in_time_after(run, &good);
    assert!(output.stderr.contains("eval"), "the reason: {}", output.stderr);
    user(&redis, RIGHTS);
    fixture.assert_succession();
}

/// F29
#[test]
fn a_changed_password_is_read_again_from_its_file() {
    let redis = Redis::start();
    let fixture = as_alice(&redis);
    let file = fixture.place().write("password", "secret\n");
    let fixture = fixture.logged_in_by_file("alice", &file);
    let run = fixture.witness();
    fixture.await_renewals(1);
    user(&redis, &["resetpass", ">another"]);
    fixture.place().write("password", "another\n");
    // Redis closes no connection when a password changes; a new one needs the new password.
    fixture.proxy.close();
    fixture.await_renewals(2);
    fixture.assert_undisturbed(run);
}

/// F29: existing connections stay; the next connection is refused.
#[test]
fn a_user_disabled_during_the_run_loses_the_lock_with_the_connection() {
    let redis = Redis::start();
    let fixture = as_alice(&redis);
    let run = fixture.ticker();
    user(&redis, &["off"]);
    fixture.await_renewals(2);
    // Requests sent from here on are not renewals.
    let good = fixture.last_replied();
    fixture.proxy.close();
    let output = fixture.assert_killed_in_time_after(run, &good);
    assert!(output.stderr.contains("password"), "the reason: {}", output.stderr);
    user(&redis, &["on"]);
    fixture.assert_succession();
}

/// F29
#[test]
fn a_temporarily_missing_password_file_loses_nothing() {
    let redis = Redis::start();
    let fixture = as_alice(&redis);
    let file = fixture.place().write("password", "secret\n");
    let fixture = fixture.logged_in_by_file("alice", &file).ttl(9);
    let run = fixture.witness();
    fixture.await_renewals(1);
    std::fs::remove_file(&file).unwrap();
    fixture.proxy.close();
    // Without a password nothing can be requested; a wrong one is refused.
    fixture.place().write("password", "wrong\n");
    let before = fixture.leases().len();
    eventually(SOON, "a refused renewal", || fixture.leases().get(before)?.answered);
    fixture.place().write("password", "secret\n");
    fixture.await_renewals(2);
    fixture.assert_survived(run);
}

/// F29
#[test]
fn a_right_restored_in_time_suffices() {
    let redis = Redis::start();
    let fixture = as_alice(&redis).ttl(9);
    let run = fixture.witness();
    fixture.await_renewals(1);
    user(&redis, &["-eval", "-evalsha"]);
    let before = fixture.leases().len();
    eventually(SOON, "a refused renewal", || fixture.leases().get(before)?.answered);
    user(&redis, &["+eval"]);
    fixture.await_renewals(2);
    fixture.assert_survived(run);
}

/// F29: the greeting fails, and the request sent with it must not take effect.
#[test]
fn a_database_that_does_not_exist_leaves_nothing_in_another() {
    let redis = Redis::start();
    for protocol in [2, 3] {
        let url = format!("redis://127.0.0.1:{}/99?protocol={protocol}", redis.port());
        let output = Place::new().run().backend(url).args(["--ttl", "1h"]).sh("echo ran").output();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(78), ""), "{}", output.stderr);
        nothing_is_left(&redis);
    }
}

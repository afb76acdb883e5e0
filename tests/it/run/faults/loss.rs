//! The store loses the lock, or grants it to another client, while the command runs.

use super::fixture::Fixture;
use crate::support::SOON;
use crate::support::proxy::Way;
use crate::support::redis::Redis;
use crate::support::resp::Value;
use crate::support::running::{Exit, Running};
use crate::support::store::Store;
use crate::support::wait::{eventually, until};
use std::time::{Duration, Instant};

/// How the store reports the loss: by a push, long before the next renewal, or by the next renewal.
#[derive(Clone, Copy)]
enum Notified {
    AtOnce,
    ByTheNextRenewal,
}

impl Notified {
    fn fixture(self, redis: Option<&Redis>) -> Fixture {
        let fixture = redis.map_or_else(Fixture::new, Fixture::on);
        match self {
            // A third of this is longer than any of these tests may take.
            Self::AtOnce => fixture.ttl(600),
            // The grace after a loss is a second then.
            Self::ByTheNextRenewal => fixture.ttl(6).without_push(),
        }
    }
}

/// The lock is gone without a new holder: SIGTERM, a grace, and never created again.
#[track_caller]
fn is_lost_and_free(fixture: &Fixture, lose: impl FnOnce()) {
    let mut run = fixture.witness();
    lose();
    run.await_stdout("TERM ");
    let output = run.wait();
    fixture.assert_reports_loss(&output);
    assert!(output.stderr.contains("it is gone from the store"), "{}", output.stderr);
    assert_eq!(output.stdout.matches("TERM ").count(), 1, "{}", output.stdout);
    assert!(!fixture.is_held(), "the lock was made anew");
    fixture.assert_succession();
}

macro_rules! each_notification {
    ($($name:ident: $lose:expr;)+) => { $( mod $name {
        use super::*;

        #[test]
        fn ends_the_command_at_once_where_the_store_can_push() {
            let redis = Redis::start();
            let fixture = Notified::AtOnce.fixture(Some(&redis));
            is_lost_and_free(&fixture, || $lose(&fixture));
        }

        #[test]
        fn ends_the_command_at_the_next_renewal() {
            let redis = Redis::start();
            let fixture = Notified::ByTheNextRenewal.fixture(Some(&redis));
            is_lost_and_free(&fixture, || $lose(&fixture));
        }
    } )+ };
}

// F09
each_notification! {
    a_key_that_is_deleted: |fixture: &Fixture| drop(fixture.command(&["DEL", &fixture.key()]));
    a_key_that_is_unlinked: |fixture: &Fixture| drop(fixture.command(&["UNLINK", &fixture.key()]));
    a_store_that_is_flushed: |fixture: &Fixture| drop(fixture.command(&["FLUSHALL"]));
    a_database_that_is_flushed: |fixture: &Fixture| drop(fixture.command(&["FLUSHDB", "ASYNC"]));
    a_key_that_expires: |fixture: &Fixture| drop(fixture.command(&["PEXPIRE", &fixture.key(), "1"]));
    a_key_that_is_renamed: |fixture: &Fixture| drop(fixture.command(&["RENAME", &fixture.key(), "other"]));
    a_key_that_is_moved: |fixture: &Fixture| drop(fixture.command(&["MOVE", &fixture.key(), "1"]));
    a_key_that_is_evicted: evict;
}

/// Makes the server evict every key that may expire.
fn evict(fixture: &Fixture) {
    fixture.command(&["CONFIG", "SET", "maxmemory-policy", "volatile-random"]);
    fixture.command(&["CONFIG", "SET", "maxmemory", "1"]);
    until(SOON, "an eviction", || {
        fixture.command(&["SET", "something", "else"]);
        !fixture.is_held()
    });
    fixture.command(&["CONFIG", "SET", "maxmemory", "0"]);
}

/// F09
#[test]
fn a_server_that_restarts_without_its_memory_ends_the_command_at_once() {
    let mut redis = Redis::start();
    let fixture = Notified::AtOnce.fixture(Some(&redis));
    let mut run = fixture.witness();
    redis.restart();
    run.await_stdout("TERM ");
    fixture.assert_reports_loss(&run.wait());
    assert!(!fixture.is_held(), "the lock was made anew");
    // The counter was lost with the data.
    fixture.assert_succession();
}

/// F09
#[test]
fn a_command_that_ignores_sigterm_is_killed_after_at_most_a_second() {
    let fixture = Fixture::new().ttl(600);
    let run = fixture.ticker_of(fixture.run().args(["--grace", "120s"]));
    let lost = Instant::now();
    fixture.command(&["DEL", &fixture.key()]);
    fixture.inherited_lock.await_free();
    assert!(lost.elapsed() < Duration::from_secs(30));
    let mut run = run;
    fixture.assert_reports_loss(&run.wait());
}

/// F09
#[test]
fn a_lost_lock_is_noticed_at_the_next_renewal() {
    // The next renewal is 3 s away then, and a busy server has more than a second to reply to it.
    let fixture = Fixture::new().ttl(9).without_push();
    let mut run = fixture.witness();
    fixture.await_renewals(1);
    fixture.command(&["DEL", &fixture.key()]);
    let lost = Instant::now();
    fixture.assert_reports_loss(&run.wait());
    let asked = fixture.leases().into_iter().filter(|flight| flight.at > lost).count();
    assert_eq!(asked, 2, "it takes one question, and there is nothing to release, but an outcome to note");
}

/// F09
#[test]
fn a_lost_lock_on_a_store_that_then_hangs_ends_the_command_in_time() {
    let fixture = Fixture::new();
    let run = fixture.ticker();
    fixture.await_renewals(1);
    fixture.proxy.hold_both();
    fixture.command(&["DEL", &fixture.key()]);
    fixture.assert_killed_in_time(run);
}

/// Another client has it: SIGKILL at once, and that client's lock stays unchanged.
#[track_caller]
fn is_taken(fixture: &Fixture, mut run: Running, take: &[&str]) {
    let [command, arguments @ ..] = take else { panic!("a command") };
    let key = fixture.key();
    let words: Vec<&str> = [*command, &key].into_iter().chain(arguments.iter().copied()).collect();
    // In one step: between two steps the lock would be free.
    let mut client = crate::support::redis::Connection::to(fixture.store.space().port()).unwrap();
    client.command(&["MULTI"]);
    client.command(&["DEL", &fixture.key()]);
    client.command(&words);
    client.command(&["EXEC"]);
    let theirs = client.command(&["DUMP", &fixture.key()]);
    let output = run.wait();
    fixture.assert_reports_loss(&output);
    assert_eq!(output.stdout, "ready\n", "it was given time beside somebody else");
    assert!(output.stderr.contains("another client holds it now"), "{}", output.stderr);
    assert_eq!(client.command(&["DUMP", &fixture.key()]), theirs);
    assert_eq!(client.command(&["PTTL", &fixture.key()]), Value::Int(-1), "theirs was given an end");
    client.command(&["DEL", &fixture.key()]);
    fixture.assert_succession();
}

macro_rules! each_foreign_value {
    ($($name:ident: $take:expr;)+) => { $( mod $name {
        use super::*;

        #[test]
        fn kills_the_command_at_once_where_the_store_can_push() {
            let fixture = Notified::AtOnce.fixture(None);
            let run = fixture.witness();
            is_taken(&fixture, run, &$take);
        }

        #[test]
        fn kills_the_command_at_the_next_renewal() {
            let fixture = Notified::ByTheNextRenewal.fixture(None);
            let run = fixture.witness();
            is_taken(&fixture, run, &$take);
        }
    } )+ };
}

// F10
each_foreign_value! {
    another_token: ["SET", "somebody else"];
    an_empty_value: ["SET", ""];
    a_list: ["RPUSH", "1", "2"];
    a_hash: ["HSET", "field", "value"];
    a_sorted_set: ["ZADD", "1", "member"];
    a_stream: ["XADD", "1-1", "field", "value"];
}

/// F10
#[test]
fn a_lock_taken_over_by_another_dlock_is_lost() {
    // The key is deleted, and another dlock acquires the lock first, before the first one has to stop its command.
    let fixture = Fixture::new().ttl(12).without_push();
    let mut first = fixture.with_inherited_lock(fixture.run(), &["ignore-term"]).spawn();
    first.await_ready();
    fixture.proxy.hold_both();
    fixture.command(&["DEL", &fixture.key()]);
    let second = fixture.stranger();
    fixture.proxy.heal();
    let output = first.wait();
    fixture.assert_reports_loss(&output);
    assert!(output.stderr.contains("another client holds it now"), "{}", output.stderr);
    fixture.assert_undisturbed(second);
}

/// F11: an operator's change of the key's expiry is undone by the next renewal.
#[track_caller]
fn is_put_right(notified: Notified, change: &[&str]) {
    let fixture = match notified {
        Notified::AtOnce => Fixture::new().ttl(60),
        Notified::ByTheNextRenewal => Fixture::new().ttl(6).without_push(),
    };
    let run = fixture.witness();
    let key = fixture.key();
    let words: Vec<&str> = [change[0], &key].into_iter().chain(change[1..].iter().copied()).collect();
    assert_eq!(fixture.command(&words), Value::Int(1));
    let (least, most) = match notified {
        Notified::AtOnce => (50_000, 60_000),
        Notified::ByTheNextRenewal => (5_000, 6_000),
    };
    eventually(SOON, "a lease as long as it was", || (least..=most).contains(&fixture.pttl()).then_some(()));
    fixture.assert_undisturbed(run);
}

/// F11
#[test]
fn a_removed_expiry_is_restored() {
    for notified in [Notified::AtOnce, Notified::ByTheNextRenewal] {
        is_put_right(notified, &["PERSIST"]);
    }
}

/// F11
#[test]
fn a_changed_expiry_is_restored() {
    is_put_right(Notified::AtOnce, &["PEXPIRE", "20000"]);
    is_put_right(Notified::ByTheNextRenewal, &["PEXPIRE", "4900"]);
    for notified in [Notified::AtOnce, Notified::ByTheNextRenewal] {
        is_put_right(notified, &["PEXPIRE", "86400000"]);
    }
}

/// F11
#[test]
fn a_lock_with_a_removed_expiry_is_free_after_the_command() {
    let fixture = Fixture::new().ttl(600).without_push();
    let run = fixture.witness();
    fixture.command(&["PERSIST", &fixture.key()]);
    fixture.assert_undisturbed(run);
}

/// F11: no notification is sent before the next renewal, and until then other clients send requests.
#[test]
fn a_shared_lock_is_kept_although_every_expiry_was_removed() {
    let store = Store::redis();
    let url = format!("{}&protocol=resp2", store.url());
    let mut reader = store.run_with_ttl("600s").backend(&url).arg("-s").probe(["ignore-term"]).spawn();
    reader.await_ready();
    let space = store.space();
    let keys = space.command(&["KEYS", &format!("*{}*", space.key("x"))]).texts();
    let ends: i64 = keys.iter().map(|key| space.command(&["PERSIST", key]).int()).sum();
    assert!(ends >= 3, "the lock, who holds it, and the member: {keys:?}");
    for attempt in 1..=3 {
        let writer = store.run().sh("echo ran").output();
        assert_eq!(
            (writer.exit, writer.stdout.as_str()),
            (Exit::Code(75), ""),
            "attempt {attempt}: {writer:?}"
        );
    }
    drop(reader);
}

/// F11
#[test]
fn a_lock_that_expires_before_the_next_renewal_is_lost() {
    let fixture = Fixture::new().without_push();
    let mut run = fixture.witness();
    fixture.await_renewals(1);
    fixture.command(&["PEXPIRE", &fixture.key(), "50"]);
    fixture.assert_reports_loss(&run.wait());
    fixture.assert_succession();
}

/// Checks the rig: a held reply may be a push.
#[test]
fn a_lost_push_is_compensated_by_the_next_renewal() {
    let fixture = Fixture::new();
    let mut run = fixture.witness();
    fixture.await_renewals(1);
    fixture.proxy.drop_all(Way::Down);
    fixture.command(&["DEL", &fixture.key()]);
    std::thread::sleep(Duration::from_millis(50));
    fixture.proxy.heal();
    fixture.assert_reports_loss(&run.wait());
}

/// F09, S24: the second loss says no more about another holder than the first one.
#[test]
fn the_loss_of_two_locks_at_once_leaves_the_command_its_grace() {
    let fixture = Fixture::new().ttl(600);
    let run = fixture.run().args(["x", "y"]).no_name();
    // A tenth of the second that it has.
    let text = "trap 'sleep 0.1; echo ended; exit' TERM; echo ready; while :; do sleep 0.05; done";
    let mut run = run.sh(text).spawn();
    run.await_ready();
    fixture.command(&["DEL", &fixture.key(), &fixture.store.space().key("y")]);
    let output = run.wait();
    assert_eq!(
        (output.exit, output.stdout.as_str()),
        (Exit::Code(76), "ready\nended\n"),
        "{}",
        output.stderr
    );
}

/// F09
#[test]
fn a_lock_that_is_gone_at_the_release_is_reported_whatever_has_ended_the_command() {
    // No renewal comes before the end.
    let fixture = Fixture::new().ttl(600).without_push();
    let mut run = fixture.witness_of(fixture.run().args(["--max-runtime", "10s", "--grace", "200ms"]));
    fixture.command(&["DEL", &fixture.key()]);
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(124), "{}", output.stderr);
    assert!(output.stderr.contains(": was no longer held when the command ended: "), "{}", output.stderr);
}

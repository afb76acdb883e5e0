//! `recipe=lock-client`, beside the requests that AWS's lock client for Java sends. What it has in common with the gates of other
//! stores is in the conformance suite.

mod races;

use crate::stores::conformance::client::Client;
use crate::stores::conformance::rig::on_one_thread;
use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::doctor::{answer, assert_answered, assert_found, doctor};
use crate::support::dynamodb::{Dynamo, key};
use crate::support::java_lock_client::{JavaLockClient, Release, version_of};
use crate::support::place::Place;
use crate::support::running::{Exit, Output, Running};
use crate::support::wait::{throughout, until};
use dlock::backend::{Intent, StoreError};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// A lease that outlasts every test.
const LONG: Duration = Duration::from_secs(600);
const FOREIGN: &str = "x is held by another program";

fn url(server: &Dynamo) -> String {
    format!("{}&recipe=lock-client", server.url())
}

fn run(server: &Dynamo) -> Dlock {
    Dlock::run().backend(url(server))
}

fn held(server: &Dynamo, ttl: &str) -> Running {
    let mut held = run(server).args(["--ttl", ttl]).sh("echo ready; exec sleep 600").spawn();
    held.await_ready();
    held
}

/// A run at the first queue position.
fn waiting(server: &Dynamo) -> Running {
    let mut waiting = run(server).args(["-v", "--wait", "forever"]).sh("echo ready; exec sleep 600").spawn();
    waiting.await_stderr("; waiting at position 1\n");
    waiting
}

/// The item of the lock.
fn item(server: &Dynamo) -> Value {
    server.item(&key("x"))
}

fn end(mut run: Running) {
    run.signal(Signal::SIGTERM);
    run.wait();
}

#[track_caller]
fn assert_refused(output: &Output, exit: i32, text: &str) {
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(exit), ""), "{}", output.stderr);
    assert!(output.stderr.contains(text), "{}", output.stderr);
}

#[test]
fn a_run_keeps_the_java_client_out_until_it_has_released_the_lock() {
    let (server, mut java) = (Dynamo::lent(), JavaLockClient::new(LONG));
    let held = held(&server, "30s");
    let found = item(&server);
    assert_eq!(found["leaseDuration"], json!({"S": "30000"}), "{found}");
    let owner = found["ownerName"]["S"].as_str().expect("an owner");
    let parts: Vec<usize> = owner.split(':').map(str::len).collect();
    assert!(parts.len() == 3 && parts[2] == 32, "host, pid and a digest of the token: {owner}");
    let groups: Vec<usize> = version_of(&found).split('-').map(str::len).collect();
    assert_eq!(groups, [8, 4, 4, 4, 12], "a UUID: {found}");
    assert!(found["isReleased"].is_null(), "{found}");
    assert!(!java.take(&server, &key("x")));
    end(held);
    // It is kept, so that nothing needs the right to delete it.
    assert_eq!(item(&server)["isReleased"], json!({"S": "1"}));
    assert!(java.take(&server, &key("x")));
}

#[test]
fn the_java_client_keeps_a_run_out_and_is_shown_with_its_name() {
    let (server, mut java, place) = (Dynamo::lent(), JavaLockClient::new(LONG), Place::new());
    for how in [Release::Delete, Release::Keep] {
        assert!(java.take(&server, &key("x")));
        assert_refused(&run(&server).sh("echo ran").output(), 75, FOREIGN);
        let status = |option| place.bare().args(["status", option, "-b", &url(&server), "x"]).output().stdout;
        let wide = status("--wide");
        assert!(wide.contains(&format!("owned by {}", java.owner())), "{wide}");
        let status: Value = serde_json::from_str(&status("--json")).expect("JSON");
        let holder = &status["locks"][0]["holders"][0];
        assert_eq!((&holder["foreign"], &holder["host"]), (&json!(true), &json!(null)), "{holder}");
        assert!(java.has(&server, &key("x")));
        assert!(java.release(&server, &key("x"), how));
        assert_eq!(run(&server).sh("echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""));
    }
}

/// What the other program has added to its item stays, and what dlock has added does not mislead.
#[test]
fn a_run_keeps_what_others_have_added_to_the_item() {
    let server = Dynamo::lent();
    server.put(
        &key("x"),
        json!({
            "ownerName": {"S": "java"}, "leaseDuration": {"S": "600000"}, "recordVersionNumber": {"S": "1"},
            "isReleased": {"S": "1"}, "data": {"B": "AQI="}, "note": {"S": "of another program"},
        }),
    );
    assert_eq!(run(&server).sh("echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""));
    let mut found = item(&server);
    assert_eq!(
        (&found["data"], &found["note"]),
        (&json!({"B": "AQI="}), &json!({"S": "of another program"})),
        "{found}"
    );
    // As withUpdateExistingLockRecord leaves it: with the end of a lease of dlock that is over.
    found["ownerName"] = json!({"S": "java"});
    found["recordVersionNumber"] = json!({"S": "2"});
    found["dlockEnds"] = json!({"S": "1"});
    found.as_object_mut().expect("an item").remove("isReleased");
    server.put(&key("x"), found);
    assert_refused(&run(&server).sh("echo ran").output(), 75, FOREIGN);
}

#[test]
fn a_waiter_notices_a_release_of_either_kind() {
    for how in [Release::Delete, Release::Keep] {
        let (server, mut java) = (Dynamo::lent(), JavaLockClient::new(LONG));
        assert!(java.take(&server, &key("x")));
        let mut waiting = waiting(&server);
        assert!(java.release(&server, &key("x"), how));
        waiting.await_ready();
        assert!(!java.take(&server, &key("x")));
        end(waiting);
    }
}

/// A client is dead when its version has not changed for its lease, by the clock of whoever looks.
#[test]
fn a_waiter_takes_over_from_a_dead_client_and_from_no_other() {
    const LEASE: Duration = Duration::from_secs(5);
    let (server, mut java) = (Dynamo::lent(), JavaLockClient::new(LEASE));
    assert!(java.take(&server, &key("x")));
    let mut waiting = waiting(&server);
    throughout(LEASE * 2, "a client that is alive keeps its lock", || {
        std::thread::sleep(LEASE / 20);
        java.heartbeat(&server, &key("x"))
    });
    // A run that does not wait has not seen it for long enough.
    assert_refused(&run(&server).arg("--no-wait").sh("echo ran").output(), 75, FOREIGN);
    waiting.await_ready();
    assert!(!java.heartbeat(&server, &key("x")));
    end(waiting);
}

/// By then the command of the dlock is dead, with all its descendants.
#[test]
fn the_java_client_takes_over_from_a_dead_dlock() {
    let (server, mut java, place) = (Dynamo::lent(), JavaLockClient::new(LONG), Place::new());
    let inherited_lock = place.inherited_lock();
    let held = place.run().backend(url(&server)).args(["--ttl", "10s"]);
    let mut held = held.probe(["--inherited-lock", inherited_lock.path(), "ignore-term"]).spawn();
    held.await_ready();
    let first = version_of(&item(&server));
    until(SOON, "a renewal", || version_of(&item(&server)) != first);
    held.signal(Signal::SIGSTOP);
    let lease = item(&server)["leaseDuration"]["S"].as_str().and_then(|lease| lease.parse().ok());
    let lease = Duration::from_millis(lease.expect("milliseconds"));
    let (mut version, mut seen) = (String::new(), Instant::now());
    until(SOON * 2, "a version that does not change", || {
        let now = version_of(&item(&server));
        if now != version {
            (version, seen) = (now, Instant::now());
        }
        seen.elapsed() > lease
    });
    assert!(java.take_over(&server, &key("x"), &version));
    assert!(inherited_lock.is_free(), "the command lives when the other program has the lock");
    held.signal(Signal::SIGCONT);
    let output = held.wait();
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
    assert!(java.has(&server, &key("x")));
}

#[test]
fn a_lock_that_was_taken_over_is_lost() {
    let (server, mut java) = (Dynamo::lent(), JavaLockClient::new(LONG));
    let mut held = held(&server, "10s");
    until(SOON, "a takeover between two renewals", || {
        java.take_over(&server, &key("x"), &version_of(&item(&server)))
    });
    let output = held.wait();
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
    assert!(output.stderr.contains("the lock was lost"), "{}", output.stderr);
    assert!(java.has(&server, &key("x")));
}

#[test]
fn an_item_of_another_kind_is_never_overwritten() {
    let (place, server) = (Place::new(), Dynamo::lent());
    let other = "is not a lock of AWS's lock client: another program uses it";
    for another in [
        json!({"ownerName": {"S": "java"}, "recordVersionNumber": {"S": "1"}}),
        json!({"isReleased": {"S": "1"}}),
        // Of cirello.io/dynamolock, a client for Go.
        json!({"ownerName": {"S": "go"}, "leaseDuration": {"S": "20s"}, "recordVersionNumber": {"S": "1"}}),
        json!({
            "ownerName": {"S": "go"}, "leaseDuration": {"S": "20s"}, "recordVersionNumber": {"S": "1"},
            "isReleased": {"S": "1"}, "data": {"B": "AQI="},
        }),
        json!({"version": {"S": "1"}, "ledger": {"S": "{\"format\":1,\"fencing_token\":1}"}}),
    ] {
        server.put(&key("x"), another);
        let before = item(&server);
        for options in [["--wait", "0"], ["--wait", "60s"]] {
            assert_refused(&run(&server).args(options).sh("echo ran").output(), 78, other);
        }
        let status = place.bare().args(["status", "-b", &url(&server), "--exit-code", "x"]).output();
        assert_eq!(status.exit, Exit::Code(77), "{status:?}");
        assert!(status.stdout.contains(other), "{status:?}");
        assert_eq!(item(&server), before);
        server.wipe();
    }
    // One that takes the place of a held lock ends the command.
    let mut held = held(&server, "10s");
    server.put(&key("x"), json!({"note": {"S": "of another program"}}));
    let before = item(&server);
    let output = held.wait();
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
    assert_eq!(item(&server), before);
}

/// The queue, the history and the counter of fencing tokens outlast an item that the other program has deleted.
#[test]
fn the_ledger_is_in_an_item_of_its_own() {
    let (server, mut java) = (Dynamo::lent(), JavaLockClient::new(LONG));
    let token = || run(&server).sh("echo $DLOCK_FENCING_TOKEN").output().stdout;
    let first: u64 = token().trim().parse().expect("a token");
    assert!(java.take(&server, &key("x")));
    assert!(java.release(&server, &key("x"), Release::Delete));
    let second: u64 = token().trim().parse().expect("a token");
    assert!(second > first, "{first} {second}");
    assert_eq!(server.keys(), ["jobs/x", "jobs/x%dlock"]);
    let ledger = server.ledger_in("jobs/x%dlock");
    assert_eq!((ledger.fencing_token, ledger.history.len()), (second, 2), "{ledger:?}");
    // To the other program, which lists all items of a table, it is one more lock.
    let beside = server.item("jobs/x%dlock");
    for (attribute, value) in [("ownerName", "dlock"), ("leaseDuration", "0"), ("isReleased", "1")] {
        assert_eq!(beside[attribute], json!({"S": value}), "{beside}");
    }
    assert!(beside["recordVersionNumber"]["S"].is_string(), "{beside}");
    let held = held(&server, "30s");
    let status = Place::new().bare().args(["status", "--json", "-b", &url(&server)]).output().stdout;
    let status: Value = serde_json::from_str(&status).expect("JSON");
    let locks = status["locks"].as_array().expect("locks");
    assert_eq!((locks.len(), &locks[0]["name"]), (1, &json!("x")), "{status}");
    end(held);
}

#[test]
fn a_minimum_hold_time_keeps_the_java_client_out_until_it_is_ended_by_a_break() {
    let (server, mut java) = (Dynamo::lent(), JavaLockClient::new(LONG));
    let kept = run(&server).args(["--min-hold", "1h"]).sh("echo ran").output();
    assert_eq!(kept.outcome(), (Exit::Code(0), "ran\n", ""));
    let lease = item(&server)["leaseDuration"]["S"].as_str().and_then(|lease| lease.parse::<u64>().ok());
    assert!(lease.is_some_and(|lease| lease > 3_500_000), "{}", item(&server));
    assert!(!java.take(&server, &key("x")));
    let ended = Place::new().bare().args(["break", "-b", &url(&server), "x", "--yes"]).output();
    assert_eq!(ended.exit, Exit::Code(0), "{}", ended.stderr);
    assert!(java.take(&server, &key("x")));
}

/// Its next heartbeat tells it.
#[test]
fn a_forced_break_ends_the_lock_of_the_java_client() {
    let (server, mut java) = (Dynamo::lent(), JavaLockClient::new(LONG));
    assert!(java.take(&server, &key("x")));
    let place = Place::new();
    let broken = |options: &[&str]| {
        place.bare().args(["break", "-b", &url(&server), "x", "--yes"]).args(options).output()
    };
    let asked = broken(&[]);
    assert_eq!(asked.exit, Exit::Code(75), "{}", asked.stdout);
    assert!(java.heartbeat(&server, &key("x")));
    let forced = broken(&["--force"]);
    assert_eq!(forced.exit, Exit::Code(0), "{}", forced.stderr);
    assert!(!java.heartbeat(&server, &key("x")));
    assert_eq!(run(&server).sh("echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""));
}

/// A token is of use to any process that has it.
#[test]
fn a_token_keeps_the_item_across_processes() {
    let (server, mut java, place) = (Dynamo::lent(), JavaLockClient::new(LONG), Place::new());
    let command = |command: &str| place.bare().args([command, "-b", &url(&server)]);
    let token = command("acquire").args(["--ttl", "10m", "x"]).output();
    assert_eq!(token.exit, Exit::Code(0), "{}", token.stderr);
    let token = token.stdout.trim();
    let before = version_of(&item(&server));
    assert_eq!(command("renew").env("DLOCK_TOKEN", token).arg("x").output().exit, Exit::Code(0));
    assert_ne!(version_of(&item(&server)), before);
    assert!(!java.take(&server, &key("x")));
    assert_eq!(command("release").env("DLOCK_TOKEN", token).arg("x").output().exit, Exit::Code(0));
    assert!(java.take(&server, &key("x")));
    assert_eq!(command("renew").env("DLOCK_TOKEN", token).arg("x").output().exit, Exit::Code(76));
    assert!(java.has(&server, &key("x")));
}

#[test]
fn what_the_java_client_cannot_do_is_refused_before_the_store_is_asked() {
    let refused = |recipe: &str, args: &[&str]| {
        let url = format!("dynamodb://abc?endpoint=http://127.0.0.1:1&recipe={recipe}");
        Place::new().bare().args(["run", "-b", &url]).args(args).args(["x", "--", "true"]).output()
    };
    let exclusive = "AWS's lock client has one holder: take the lock exclusively, or use recipe=dlock";
    assert_refused(&refused("lock-client", &["--shared"]), 64, exclusive);
    assert_refused(&refused("lock-client", &["--slots", "2"]), 64, exclusive);
    assert_refused(&refused("java", &[]), 78, "lock-client");
}

/// After the connection: one request for each of the two items, and one to read the ledger.
#[test]
fn an_uncontended_run_takes_three_requests_to_acquire_and_three_to_release() {
    let server = Dynamo::lent();
    for _ in 0..2 {
        let count = || ["UpdateItem", "GetItem", "Scan", "DeleteItem"].map(|action| server.count(action));
        let before = count();
        let output = run(&server).sh("echo ran").output();
        assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
        let after = count();
        let sent: Vec<u64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
        assert_eq!(sent, [4, 2, 0, 0]);
    }
}

/// Something in front of the store repeats each write: the second one is refused.
#[test]
fn a_write_that_was_repeated_on_its_way_is_recognised() {
    let server = Dynamo::with_fault("repeats-writes");
    let output = run(&server).args(["--ttl", "10s"]).sh("sleep 4; echo ran").output();
    assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
    assert_eq!(item(&server)["isReleased"], json!({"S": "1"}));
}

/// An attempt that has taken the item, and could not store its ledger, is repeated much later.
#[test]
fn a_lock_that_was_lost_between_two_attempts_is_not_granted() {
    on_one_thread(async {
        for is_taken in [false, true] {
            // The first write takes the item, the second one stores the ledger.
            let (server, mut java) = (Dynamo::with_fault("fails-at-2"), JavaLockClient::new(LONG));
            let mut client = Client::at(&url(&server), "x");
            let failed = client.backend.try_acquire(&client.claim, Intent::TakeNow).await;
            assert!(matches!(failed, Err(StoreError::Unavailable { .. })), "{failed:?}");
            let version = version_of(&item(&server));
            if is_taken {
                assert!(java.take_over(&server, &key("x"), &version));
                client.busy().await;
                assert!(java.has(&server, &key("x")));
            } else {
                client.acquire().await;
                assert_ne!(version_of(&item(&server)), version, "its lease counts from the second attempt");
            }
        }
    });
}

/// The item is written before the ledger: one write may be allowed, or within the capacity, and the other one not.
#[test]
fn a_claim_whose_ledger_cannot_be_stored_leaves_the_item() {
    let lacks = "lack the right to dynamodb:UpdateItem";
    for (error, exit, text) in [
        ("ProvisionedThroughputExceededException", 69, "ProvisionedThroughputExceededException"),
        ("AccessDeniedException", 77, lacks),
    ] {
        let server = Dynamo::with_fault(&format!("ledgers-{error}"));
        let mut java = JavaLockClient::new(LONG);
        let refused = run(&server).args(["--ttl", "10m", "--connect-timeout", "2s"]).sh("echo ran").output();
        assert_refused(&refused, exit, text);
        let found = item(&server);
        assert_eq!(found["isReleased"], json!({"S": "1"}), "{error}: {found}");
        assert!(java.take(&server, &key("x")), "{error}");
    }
}

#[test]
fn doctor_says_what_a_crashed_program_costs() {
    let server = Dynamo::lent();
    let output = doctor(&url(&server));
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stdout);
    assert_found(&output, "ok", "cost", "for each KB of the lock's two items");
    assert_found(&output, "ok", "race", "20 races of 8 connections for a free lock had one winner each");
    assert_answered(&output);
    let (whose, detail) = answer(&output, "lease_clock");
    assert!(whose == "server" && detail.contains("--no-wait does not get it"), "{whose}: {detail}");
}

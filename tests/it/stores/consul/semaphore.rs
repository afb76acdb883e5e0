//! `recipe=semaphore`: `consul lock -n`, with which dlock shares the slots.

use super::consul_lock::{consul_lock, foreign_holder};
use crate::stores::conformance::client::Client;
use crate::stores::conformance::rig::on_one_thread;
use crate::support::SOON;
use crate::support::consul::{Consul, SEMAPHORE_FLAGS, path};
use crate::support::dlock::{BINARY, Dlock};
use crate::support::process;
use crate::support::running::{Exit, Running};
use crate::support::wait::{throughout, until};
use dlock::backend::Renewal;
use dlock::backend::ledger::Ledger;
use dlock::lock::Mode;
use serde_json::{Value, json};
use std::process::Stdio;
use std::time::Duration;

const KEY: &str = "dlock/x/.lock";
const LEDGER: &str = "dlock/x/.lock.dlock";

fn url(consul: &Consul) -> String {
    format!("{}?recipe=semaphore", consul.url())
}

/// A run that would ask for its slot again only after its lease.
fn run(consul: &Consul, slots: u32) -> Dlock {
    Dlock::run().backend(url(consul)).args(["--ttl", "10m", "--slots", &slots.to_string()])
}

/// Starts one that has a slot until its standard input ends.
fn holder(consul: &Consul, slots: u32) -> Running {
    let mut run = run(consul, slots).stdin(Stdio::piped()).sh("echo ready; exec cat").spawn();
    run.await_ready();
    run
}

fn let_end(mut run: Running) {
    drop(run.take_stdin());
    assert_eq!(run.wait().outcome(), (Exit::Code(0), "ready\n", ""));
}

/// The document of the holders.
fn document(consul: &Consul) -> Value {
    consul.value(KEY).map(|text| serde_json::from_str(&text).unwrap()).unwrap_or_default()
}

/// The sessions in it.
fn sessions(consul: &Consul) -> Vec<String> {
    let holders = document(consul)["Holders"].as_object().cloned().unwrap_or_default();
    let mut sessions: Vec<String> = holders.into_iter().map(|(session, _)| session).collect();
    sessions.sort();
    sessions
}

/// How many holders there may be, and how many there are.
fn counts(consul: &Consul) -> (u64, usize) {
    (document(consul)["Limit"].as_u64().unwrap_or_default(), sessions(consul).len())
}

fn store(consul: &Consul, flags: u64, value: &Value) {
    let (status, _) =
        consul.ask("PUT", &format!("kv/{}?flags={flags}", path(KEY)), value.to_string().as_bytes());
    assert_eq!(status, 200);
}

#[test]
fn runs_and_consul_lock_count_each_other() {
    let consul = Consul::lent();
    let mut foreign = foreign_holder(&consul, &["-n=2", "-pass-stdin"]);
    let first = holder(&consul, 2);
    assert_eq!(counts(&consul), (2, 2));
    let hasty = run(&consul, 2).sh("echo ran").output();
    assert_eq!((hasty.exit, hasty.stdout.as_str()), (Exit::Code(75), ""), "{}", hasty.stderr);
    assert!(hasty.stderr.contains("x is held by ") && hasty.stderr.contains(" and one other"), "{hasty:?}");
    let late = consul_lock(&consul, &["-n=2", "-try=1s"], "echo ran").wait_with_output().unwrap();
    assert!(!late.status.success() && late.stdout.is_empty(), "{late:?}");

    let mut waiter = run(&consul, 2).args(["-v", "--wait", "5m"]).sh("echo ran $DLOCK_SLOT").spawn();
    waiter.await_stderr("waiting");
    throughout(Duration::from_secs(1), "excluded", || waiter.poll().is_none());
    drop(foreign.stdin.take());
    let waited = waiter.wait();
    assert_eq!((waited.exit, waited.stdout.as_str()), (Exit::Code(0), "ran 1\n"), "{}", waited.stderr);
    assert!(foreign.wait().unwrap().success());
    assert_eq!(counts(&consul), (2, 1));

    let second = holder(&consul, 2);
    let mut foreign = consul_lock(&consul, &["-n=2"], "echo ran");
    throughout(Duration::from_secs(1), "excluded", || foreign.try_wait().unwrap().is_none());
    let_end(first);
    let waited = foreign.wait_with_output().unwrap();
    assert_eq!((waited.status.success(), String::from_utf8_lossy(&waited.stdout).as_ref()), (true, "ran\n"));
    let_end(second);
    until(SOON, "nothing but the ledger", || consul.keys() == [LEDGER]);
    assert_eq!(consul.sessions(), [""; 0], "a session was left");
}

#[test]
fn other_programs_are_shown_with_their_sessions() {
    let consul = Consul::lent();
    let mut foreign = foreign_holder(&consul, &["-n=3", "-pass-stdin"]);
    let [session] = sessions(&consul).try_into().unwrap();
    let own = holder(&consul, 3);
    let status = Dlock::bare().args(["status", "-b", &url(&consul), "x"]).output().stdout;
    assert!(status.contains("slot 0 of 3") && status.contains("held, foreign"), "{status}");
    assert!(status.contains(&format!("session {session}")), "{status}");
    let status = Dlock::bare().args(["status", "--json", "-b", &url(&consul), "x"]).output().stdout;
    let status: Value = serde_json::from_str(&status).unwrap();
    let lock = &status["locks"][0];
    assert_eq!((&lock["mode"], &lock["slots"]), (&json!("slots"), &json!(3)));
    let holders: Vec<_> =
        lock["holders"].as_array().unwrap().iter().map(|one| (&one["foreign"], &one["slot"])).collect();
    assert_eq!(holders, [(&json!(false), &json!(0)), (&json!(true), &Value::Null)]);
    let_end(own);
    drop(foreign.stdin.take());
    assert!(foreign.wait().unwrap().success());
}

/// Its session ends between one and two of its leases of 15s later.
#[test]
fn the_slot_of_a_killed_foreign_holder_is_free_when_its_session_has_ended() {
    let consul = Consul::lent();
    let mut foreign = foreign_holder(&consul, &["-n=2", "-pass-stdin"]);
    let own = holder(&consul, 2);
    let dead = sessions(&consul).into_iter().find(|session| !consul.sessions().contains(session)).unwrap();
    foreign.kill().unwrap();
    foreign.wait().unwrap();
    let waiter = run(&consul, 2).args(["--wait", "5m"]).sh("echo ready; read line").stdin(Stdio::piped());
    let mut waiter = waiter.spawn();
    throughout(Duration::from_secs(5), "the session lives", || waiter.poll().is_none());
    waiter.await_stdout_within(2 * SOON, "ready\n");
    assert_eq!((counts(&consul), sessions(&consul).contains(&dead)), ((2, 2), false));
    drop(waiter.take_stdin());
    waiter.wait();
    let_end(own);
}

/// Its dlock may be paused, or its clock may be behind: the session still has its slot.
#[test]
fn the_slot_of_a_hold_that_was_not_renewed_is_given_to_nobody_until_its_session_ends() {
    let consul = Consul::lent();
    let mut late = holder(&consul, 3);
    let mut ledger = Ledger::parse(consul.value(LEDGER).unwrap().as_bytes()).unwrap();
    assert_eq!(ledger.holders[0].slot, Some(0));
    ledger.holders[0].lease_ends = Some(Duration::from_secs(1));
    assert_eq!(consul.ask("PUT", &format!("kv/{}", path(LEDGER)), &ledger.to_json()).0, 200);
    let slot = || {
        let mut run = run(&consul, 3).stdin(Stdio::piped()).sh("echo slot $DLOCK_SLOT; exec cat").spawn();
        run.await_stdout("slot ");
        run
    };
    let mut others = [slot(), slot()];
    let excluded = run(&consul, 3).sh("echo ran").output();
    assert_eq!((excluded.exit, excluded.stdout.as_str()), (Exit::Code(75), ""), "{}", excluded.stderr);
    drop(late.take_stdin());
    late.wait();
    let mut slots = others.each_mut().map(|run| {
        drop(run.take_stdin());
        run.wait().stdout
    });
    slots.sort();
    assert_eq!(slots, ["slot 1\n", "slot 2\n"]);
}

#[test]
fn holders_without_a_session_do_not_count_and_their_number_does_not_bind() {
    let consul = Consul::lent();
    let dead = ["11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"];
    store(&consul, SEMAPHORE_FLAGS, &json!({"Limit": 2, "Holders": {dead[0]: true, dead[1]: true}}));
    let own = holder(&consul, 2);
    assert_eq!(counts(&consul), (2, 1));
    let_end(own);
    for holders in [json!({dead[0]: true}), Value::Null] {
        store(&consul, SEMAPHORE_FLAGS, &json!({"Limit": 5, "Holders": holders}));
        let own = holder(&consul, 3);
        assert_eq!(counts(&consul), (3, 1));
        let_end(own);
    }
    assert_eq!(consul.keys(), [LEDGER]);
}

#[test]
fn another_number_of_slots_is_refused_by_both() {
    let consul = Consul::lent();
    let mut foreign = foreign_holder(&consul, &["-n=3", "-pass-stdin"]);
    let refused = run(&consul, 2).sh("echo ran").output();
    let expected = format!(
        "dlock: x on {}: --slots 2, but it is in use with 3 slots: give --slots 3, or wait until it has no holder and no waiter\n",
        url(&consul)
    );
    assert_eq!(refused.outcome(), (Exit::Code(64), "", expected.as_str()));
    let mut waiter = run(&consul, 2).args(["-v", "--wait", "5m"]).sh("echo ran").spawn();
    waiter.await_stderr("x is in use with 3 slots; waiting ");
    drop(foreign.stdin.take());
    assert!(foreign.wait().unwrap().success());
    let waited = waiter.wait();
    assert_eq!((waited.exit, waited.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", waited.stderr);

    let own = holder(&consul, 2);
    let refused = consul_lock(&consul, &["-n=3"], "echo ran").wait_with_output().unwrap();
    assert!(!refused.status.success() && refused.stdout.is_empty(), "{refused:?}");
    let_end(own);
}

#[test]
fn an_exclusive_run_waits_for_all_slots_and_keeps_all_others_out() {
    let consul = Consul::lent();
    let mut foreign = foreign_holder(&consul, &["-n=2", "-pass-stdin"]);
    let exclusive = Dlock::run().backend(url(&consul)).args(["--ttl", "10m", "--wait", "5m", "-v"]);
    let mut exclusive = exclusive.stdin(Stdio::piped()).sh("echo ready; exec cat").spawn();
    exclusive.await_stderr("waiting");
    throughout(Duration::from_secs(1), "excluded", || exclusive.poll().is_none());
    drop(foreign.stdin.take());
    assert!(foreign.wait().unwrap().success());
    exclusive.await_ready();
    assert_eq!(counts(&consul), (1, 1));
    for arguments in [&["-n=2", "-try=1s"][..], &["-try=1s"]] {
        let refused = consul_lock(&consul, arguments, "echo ran").wait_with_output().unwrap();
        assert!(!refused.status.success() && refused.stdout.is_empty(), "{refused:?}");
    }
    assert_eq!(run(&consul, 2).sh("echo ran").output().exit, Exit::Code(75));
    drop(exclusive.take_stdin());
    assert_eq!(exclusive.wait().exit, Exit::Code(0));
    let foreign = consul_lock(&consul, &["-n=2"], "echo ran").wait_with_output().unwrap();
    assert!(foreign.status.success(), "{foreign:?}");
}

/// Both use the same key in different ways: neither touches that of the other.
#[test]
fn the_key_of_a_lock_is_refused_and_left_alone() {
    let consul = Consul::lent();
    let expected = format!(
        "dlock: x on {}: the key dlock/x/.lock is not that of a semaphore (flags 16210313421097356768, with Limit and \
         Holders): another program uses it, such as consul lock, or a dlock without recipe=semaphore; the command did not run\n",
        url(&consul)
    );
    let assert_refused = || {
        let before = consul.ask("GET", "kv/dlock/x/.lock", b"").1;
        let refused = run(&consul, 2).args(["--wait", "1m"]).sh("echo ran").output();
        assert_eq!(refused.outcome(), (Exit::Code(78), "", expected.as_str()));
        assert_eq!(consul.ask("GET", "kv/dlock/x/.lock", b"").1, before);
    };
    let mut foreign = foreign_holder(&consul, &["-pass-stdin"]);
    assert_refused();
    drop(foreign.stdin.take());
    assert!(foreign.wait().unwrap().success());
    store(&consul, SEMAPHORE_FLAGS, &json!("a text"));
    assert_refused();
    assert!(consul.wipe());
    let plain = || Dlock::run().backend(consul.url()).sh("echo ran").output();
    assert_eq!(plain().outcome(), (Exit::Code(0), "ran\n", ""));
    assert_refused();
    assert!(consul.wipe());
    let own = holder(&consul, 2);
    assert_eq!(plain().exit, Exit::Code(78));
    let_end(own);
    assert_eq!(plain().outcome(), (Exit::Code(0), "ran\n", ""), "a semaphore leaves no key");
}

#[test]
fn a_nested_run_has_the_slot_of_the_outer_one() {
    let consul = Consul::lent();
    let mut foreign = foreign_holder(&consul, &["-n=2", "-pass-stdin"]);
    let inner = format!("'{BINARY}' run -b '{}' --slots 2 x -- sh -c 'echo $DLOCK_SLOT'", url(&consul));
    let outer = run(&consul, 2).sh(&format!("{inner}; {inner}")).output();
    assert_eq!(outer.outcome(), (Exit::Code(0), "0\n0\n", ""));
    assert_eq!(counts(&consul), (2, 1));
    drop(foreign.stdin.take());
    assert!(foreign.wait().unwrap().success());
}

/// The session is that of the outer hold, whose owner is dead: it is adopted, and its slot is not taken a second time.
#[test]
fn an_inner_hold_keeps_the_slot_of_a_dead_outer_one() {
    let consul = Consul::lent();
    on_one_thread(async {
        let [mut outer, mut inner] = [2, 60].map(|seconds| {
            let client = Client::at(&url(&consul), "x").in_mode(Mode::Slots(2));
            client.with_ttl(Duration::from_secs(seconds))
        });
        outer.acquire().await;
        inner.claim.outer = vec![outer.claim.token.clone()];
        inner.acquire().await;
        let [session] = sessions(&consul).try_into().unwrap();
        let other = consul.session(None);
        assert!(consul.take_slot("dlock/x", 2, &other));
        drop(outer);
        for _ in 0..30 {
            assert!(matches!(inner.renew().await, Renewal::Held { .. }));
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let mut expected = [session, other.clone()];
        expected.sort();
        assert_eq!(sessions(&consul), expected);
        inner.release().await;
        assert_eq!(sessions(&consul), [other]);
    });
}

/// The holder is notified: its next renewal is due after minutes.
#[test]
fn a_slot_that_is_lost_stops_the_command_at_once() {
    let consul = Consul::lent();
    for lost in ["session", "key", "document"] {
        let mut run = holder(&consul, 2);
        let command = run.command();
        let [session] = sessions(&consul).try_into().unwrap();
        match lost {
            "session" => drop(consul.ask("PUT", &format!("session/destroy/{session}"), b"")),
            "key" => drop(consul.ask("DELETE", &format!("kv/dlock/x/{session}"), b"")),
            _ => store(&consul, SEMAPHORE_FLAGS, &json!({"Limit": 2, "Holders": {}})),
        }
        let output = run.wait();
        assert_eq!(output.exit, Exit::Code(76), "{lost}: {}", output.stderr);
        assert!(output.stderr.contains("the lock was lost"), "{lost}: {}", output.stderr);
        assert!(!process::alive(command));
        assert_eq!((consul.semaphore("dlock/x").0, consul.sessions()), (Vec::new(), Vec::new()), "{lost}");
    }
}

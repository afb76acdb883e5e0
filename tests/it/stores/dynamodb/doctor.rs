//! `dlock doctor` on DynamoDB.

use crate::support::dlock::Dlock;
use crate::support::doctor::{answer, assert_answered, assert_found, doctor, init};
use crate::support::dynamodb::Dynamo;
use crate::support::running::Exit;
use serde_json::json;

#[test]
fn a_healthy_table_has_no_warning_and_the_cost_of_a_lock() {
    let server = Dynamo::lent();
    let output = doctor(&server.url());
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stdout);
    for (check, found) in [
        ("table", "Locks in us-east-1, with the key name"),
        ("credentials", "from the URL"),
        ("expiry", "the table has no TTL attribute"),
        ("cost", "a holder takes 360 write request units an hour"),
        ("cost", "the first waiter 4800 read request units"),
        ("cost", "$0.16 and $0.44 for a month"),
        ("clock", "this host and the store agree to the minute"),
        ("conditions", "ConditionExpression is honoured"),
        ("writers", "20 races of 32 conditional writes had one winner each"),
        ("lock", "taken, renewed and given back in"),
        ("race", "20 races of 8 connections for a free lock had one winner each"),
    ] {
        assert_found(&output, "ok", check, found);
    }
    assert_answered(&output);
    let (whose, detail) = answer(&output, "lease_clock");
    assert!(whose == "server" && detail.contains("33s"), "{whose}: {detail}");
    let keys = server.keys();
    assert!(keys.len() == 2 && keys.iter().all(|key| key.starts_with("jobs/dlock-doctor-")), "{keys:?}");
}

#[test]
fn doctor_creates_the_table_only_if_it_is_to() {
    let server = Dynamo::without_table();
    let missing = doctor(&server.url());
    assert_eq!(missing.exit, Exit::Code(1), "{}", missing.stdout);
    assert_found(&missing, "problem", "table", "there is no table Locks in us-east-1");
    for _ in 0..2 {
        let created = init(&server.url());
        assert_eq!(created.exit, Exit::Code(0), "{}", created.stdout);
        assert_found(&created, "ok", "table", "Locks in us-east-1, with the key key");
    }
    let run = Dlock::run().backend(server.url()).sh("echo ran").output();
    assert_eq!(run.outcome(), (Exit::Code(0), "ran\n", ""));
}

#[test]
fn a_store_that_ignores_conditions_or_checks_them_too_early_is_a_problem() {
    for (fault, check, found) in [
        ("ignores-conditions", "conditions", "a write that expects an old version succeeds"),
        ("is-not-atomic", "writers", "races of 32 conditional writes had several winners, or none"),
    ] {
        let server = Dynamo::with_fault(fault);
        let output = doctor(&server.url());
        assert_eq!(output.exit, Exit::Code(1), "{}", output.stdout);
        assert_found(&output, "problem", check, found);
        assert_eq!(answer(&output, "atomic_grant").0, "no");
    }
}

#[test]
fn a_table_that_deletes_items_is_a_problem() {
    let server = Dynamo::without_table();
    server.create("key");
    let ttl = json!({"TimeToLiveSpecification": {"Enabled": true, "AttributeName": "ttl"}});
    server.ask("UpdateTimeToLive", ttl);
    let output = doctor(&server.url());
    assert_eq!(output.exit, Exit::Code(1), "{}", output.stdout);
    assert_found(&output, "problem", "expiry", "the table deletes items by their TTL attribute ttl");
    assert!(server.keys().is_empty(), "{:?}", server.keys());
}

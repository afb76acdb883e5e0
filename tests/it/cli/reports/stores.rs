//! The report of a failed store, and of a lost lock.

use super::{Expected, ran, refused, said};
use crate::support::redis::Redis;
use crate::support::running::Exit;
use crate::support::store::Store;
use nix::sys::signal::Signal;

#[test]
fn an_unreachable_store_is_reported() {
    let store = Store::file();
    let url = "redis://127.0.0.1:1/0";
    let output = store.place.run().backend(url).args(["--report", "r"]).command(["true"]).output();
    let expected = Expected { backend: Some(url), ..refused("unavailable", 69, &store) };
    Expected { error: Some(said(&output)), ..expected }.assert(&store.place, &output);
}

/// No password is in a report, wherever it was given.
#[test]
fn a_refused_login_is_reported_without_the_password() {
    let redis = Redis::start_with_args(&["--requirepass", "hunter2"]);
    let store = Store::file();
    let with = format!("redis://:wrong-hunter3@127.0.0.1:{}/0", redis.port());
    let without = redis.url();
    let run = store.place.run().no_backend().env("DLOCK_BACKEND", with).args(["--report", "r"]);
    let output = run.command(["true"]).output();
    assert!(!store.place.read("r").contains("hunter"), "{}", store.place.read("r"));
    let expected = Expected { backend: Some(&without), ..refused("denied", 77, &store) };
    Expected { error: Some(said(&output)), ..expected }.assert(&store.place, &output);
}

#[test]
fn no_token_is_in_a_report() {
    for store in Store::each() {
        let run = store.run_with_ttl("60s").args(["--report", "r", "--metrics-file", "m"]);
        let output = run.sh("echo $DLOCK_TOKEN").output();
        let token = output.stdout.trim();
        assert_eq!((output.exit, token.len()), (Exit::Code(0), 32));
        for file in ["r", "m"] {
            let text = store.place.read(file);
            assert!(!text.is_empty() && !text.contains(token), "{text}");
        }
    }
}

#[test]
fn a_lost_lock_is_reported_with_how_the_command_was_stopped() {
    let store = Store::redis();
    let mut run = store.run_with_ttl("60s").args(["--report", "r"]).sh("echo ready; exec sleep 1000").spawn();
    run.await_ready();
    store.space().command(&["DEL", &store.space().key("x")]);
    let output = run.wait();
    let expected = Expected {
        outcome: "lost",
        dlock_exit: 76,
        released: Some(false),
        error: Some(said(&output)),
        ..ran(&store, Exit::by(Signal::SIGTERM))
    };
    expected.assert(&store.place, &output);
}

/// With `--on-lost warn` dlock exits with the command's status, and only the report shows the loss.
#[test]
fn a_lost_lock_is_reported_when_the_command_continues() {
    let store = Store::redis();
    let run = store.run_with_ttl("60s").args(["--on-lost", "warn", "--report", "r"]);
    let mut run = run.sh("echo ready; until [ -e go ]; do sleep 0.05; done").spawn();
    run.await_ready();
    store.space().command(&["DEL", &store.space().key("x")]);
    run.await_stderr("was lost");
    store.place.write("go", "");
    let output = run.wait();
    let expected = Expected {
        outcome: "lost",
        released: Some(false),
        error: Some(said(&output)),
        ..ran(&store, Exit::Code(0))
    };
    expected.assert(&store.place, &output);
}

#[test]
fn a_lock_that_could_not_be_released_is_reported() {
    let mut redis = Redis::start();
    let store = Store::on(&redis);
    let run = store.run_with_ttl("30s").args(["--report", "r"]);
    let mut run = run.sh("echo ready; until [ -e go ]; do sleep 0.05; done").spawn();
    run.await_ready();
    redis.kill();
    store.place.write("go", "");
    let output = run.wait();
    assert!(output.stderr.contains("could not be released"), "{}", output.stderr);
    let url = redis.url();
    let expected = Expected { backend: Some(&url), released: Some(false), ..ran(&store, Exit::Code(0)) };
    expected.assert(&store.place, &output);
}

#[test]
fn a_holder_other_than_dlock_is_reported_as_foreign() {
    let store = Store::redis();
    let key = store.space().key("x");
    let foreign = |expires: &str, immortal: bool| {
        format!(
            "{{\"host\":null,\"pid\":null,\"user\":null,\"command\":null,\"note\":null,\"url\":null,\
             \"phase\":\"unknown\",\"slot\":null,\"acquired_at\":null,\"expires_in_ms\":{expires},\
             \"immortal\":{immortal},\"fencing_token\":null,\"foreign\":true,\"waits_for\":null}}"
        )
    };
    for (set, holder) in [
        (&["SET", &key, "other", "PX", "60000"][..], foreign("MS", false)),
        (&["SET", &key, "other"], foreign("null", true)),
    ] {
        store.space().command(set);
        let output = store.run_with_ttl("60s").args(["--report", "r"]).command(["true"]).output();
        let expected = Expected { holder: &holder, ..refused("contended", 75, &store) };
        Expected { error: Some(said(&output)), ..expected }.assert(&store.place, &output);
    }
}

/// An option that contradicts what other clients agreed on, which only the store can detect.
#[test]
fn a_refusal_by_the_store_is_reported() {
    for store in Store::each() {
        let run = store.run_with_ttl("60s").args(["--slots", "2"]).stdin(std::process::Stdio::piped());
        let mut holder = run.sh("echo ready; exec cat").spawn();
        holder.await_ready();
        let output =
            store.run_with_ttl("60s").args(["--slots", "3", "--report", "r"]).command(["true"]).output();
        Expected { error: Some(said(&output)), ..refused("usage", 64, &store) }.assert(&store.place, &output);
    }
}

/// Renewals of all locks are counted.
#[test]
fn renewals_are_counted() {
    let store = Store::redis();
    let run = store.run_with_ttl("6s").args(["--report", "r", "--metrics-file", "m", "y"]);
    let mut run = run.sh("echo ready; until [ -e go ]; do sleep 0.05; done").spawn();
    run.await_ready();
    let left = || match store.space().command(&["PTTL", &store.space().key("x")]) {
        crate::support::resp::Value::Int(left) => left,
        other => panic!("{other:?}"),
    };
    crate::support::redis::await_renewal(left);
    crate::support::redis::await_renewal(left);
    store.place.write("go", "");
    assert_eq!(run.wait().exit, Exit::Code(0));
    let report: serde_json::Value = serde_json::from_str(&store.place.read("r")).unwrap();
    let renewals = report["renewals"].as_u64().unwrap();
    assert!(renewals >= 3, "{report}");
    let metrics = store.place.read("m");
    let count = |name: &str| -> u64 {
        let series = format!("dlock_renewal_seconds_count{{name=\"{name}\"}} ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&series));
        line.unwrap_or_else(|| panic!("{metrics}")).parse().unwrap()
    };
    assert!(count("x") >= 2, "{metrics}");
    assert_eq!(count("x") + count("y"), renewals);
}

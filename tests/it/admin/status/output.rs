//! The output about a lock, its holders and its waiters.

use super::{cells, fencing, holding, host, seen, status, the_lock, user, waiting};
use crate::support::SOON;
use crate::support::running::Exit;
use crate::support::store::Store;
use crate::support::wait::until;
use serde_json::Value;

/// Every key, in the order of the contract.
#[test]
fn a_holder_and_a_waiter_are_shown_completely() {
    for store in Store::each() {
        let run = store
            .run_with_ttl("30s")
            .args(["--note", "a \"note\""])
            .env("CI_JOB_URL", "https://ci.example/1");
        let run = holding(run);
        let waiter = waiting(
            store.run_with_ttl("30s").args(["--note", "me, too"]).env("BUILD_URL", "https://ci.example/2"),
        );
        let output = status(&store).arg("--json").output();
        assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
        let seen = super::parse(&output.stdout);
        let lock = &seen["locks"][0];
        let (holder, waits) = (&lock["holders"][0], &lock["waiters"][0]);
        assert_eq!(holder["expires_in_ms"].is_null(), store.url().starts_with("file:"));
        assert!(waits["waiting_ms"].is_u64(), "{waits}");
        let (host, user) = (host(), user());
        let (acquired, expires) = (&holder["acquired_at"], &holder["expires_in_ms"]);
        let holder = format!(
            r#"{{"host":"{host}","pid":{},"user":"{user}","command":"sh","note":"a \"note\"","url":"https://ci.example/1","phase":"running","slot":null,"acquired_at":{acquired},"expires_in_ms":{expires},"immortal":false,"fencing_token":{},"foreign":false,"waits_for":null}}"#,
            run.pid(),
            fencing(&run),
        );
        let waiter = format!(
            r#"{{"host":"{host}","pid":{},"user":"{user}","mode":"exclusive","waiting_ms":{},"command":"sh","note":"me, too","url":"https://ci.example/2"}}"#,
            waiter.pid(),
            waits["waiting_ms"],
        );
        let whole = format!(
            "{{\"version\":1,\"backend\":\"{}\",\"locks\":[{{\"name\":\"x\",\"state\":\"held\",\"mode\":\"exclusive\",\
             \"slots\":1,\"holders\":[{holder}],\"waiters\":[{waiter}],\"freeze\":null,\"last_success\":null}}]}}\n",
            store.url()
        );
        assert_eq!(output.stdout, whole);
        // The start time does not depend on the time of the query.
        assert_eq!(&super::seen(&store, [])["locks"][0]["holders"][0]["acquired_at"], acquired);
    }
}

#[test]
fn the_table_names_the_store_and_contains_the_same() {
    for store in Store::each() {
        let run =
            store.run_with_ttl("1h").args(["--note", "by hand"]).env("CI_JOB_URL", "https://ci.example/1");
        let run = holding(run);
        let reader = waiting(store.run_with_ttl("30s").arg("--shared"));
        let output = status(&store).arg("--wide").output();
        assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
        let lines: Vec<&str> = output.stdout.lines().collect();
        let [backend, heading, held, waits] = lines[..] else { panic!("{}", output.stdout) };
        assert_eq!(backend, store.url());
        // Columns that a store does not have are omitted.
        let has_lease = !store.url().starts_with("file:");
        let columns =
            ["LOCK", "STATE", "HOST", "PID", "USER", "COMMAND", "FOR", "LEASE", "FENCING TOKEN", "NOTE"];
        let columns = columns.into_iter().filter(|column| has_lease || *column != "LEASE");
        assert_eq!(cells(heading), columns.collect::<Vec<_>>());
        let (host, user) = (host(), user());
        let (pid, token) = (run.pid().to_string(), fencing(&run).to_string());
        let mut held = cells(held);
        let age = held.remove(6);
        assert!(age.ends_with('s'), "{age}");
        if has_lease {
            let lease = held.remove(6);
            assert!(lease == "1h" || lease.starts_with("59m"), "{lease}");
        }
        assert_eq!(
            held,
            ["x", "exclusive", &host, &pid, &user, "sh", &token, "by hand; https://ci.example/1"]
        );
        let mut waits = cells(waits);
        let age = waits.remove(5);
        assert!(age.ends_with('s'), "{age}");
        let pid = reader.pid().to_string();
        assert_eq!(waits[..5], ["waits #1, shared", &host, &pid, &user, "sh"]);
        // Columns are aligned with their headings.
        let at = |line: &str, text: &str| line.find(text).unwrap();
        assert_eq!(at(heading, "STATE"), at(lines[2], "exclusive"));
        assert_eq!(at(heading, "STATE"), at(lines[3], "waits"));
        assert_eq!(at(heading, "FENCING"), at(lines[2], &token));
    }
}

#[test]
fn readers_and_slots_are_all_shown() {
    for store in Store::each() {
        let readers = [(); 3].map(|()| holding(store.run_with_ttl("30s").arg("--shared")));
        let lock = the_lock(&store, []);
        assert_eq!(
            (&lock["mode"], &lock["slots"], &lock["state"]),
            (&"shared".into(), &Value::Null, &"held".into())
        );
        let pids = |lock: &Value| -> Vec<i64> {
            lock["holders"].as_array().unwrap().iter().map(|holder| holder["pid"].as_i64().unwrap()).collect()
        };
        let mut expected: Vec<i64> = readers.iter().map(|run| i64::from(run.pid())).collect();
        assert_eq!(pids(&lock), expected, "the oldest first");
        drop(readers);

        // Those that were killed are there until their leases end.
        let run = || store.run_with_ttl("30s").name("slots").args(["--slots", "3"]);
        let runs = [(); 3].map(|()| holding(run()));
        let next = waiting(run());
        let lock = the_lock(&store, ["slots"]);
        assert_eq!((&lock["mode"], &lock["slots"]), (&"slots".into(), &3.into()));
        expected = runs.iter().map(|run| i64::from(run.pid())).collect();
        assert_eq!(pids(&lock), expected);
        let slots: Vec<&Value> =
            lock["holders"].as_array().unwrap().iter().map(|holder| &holder["slot"]).collect();
        assert_eq!(slots, [0, 1, 2]);
        assert_eq!(
            (&lock["waiters"][0]["mode"], &lock["waiters"][0]["pid"]),
            (&"slots".into(), &next.pid().into())
        );
        let table = status(&store).arg("slots").output().stdout;
        let states: Vec<&str> =
            table.lines().skip(2).map(|line| cells(line.trim_start_matches("slots"))[0]).collect();
        assert_eq!(states, ["slot 0 of 3", "slot 1 of 3", "slot 2 of 3", "waits #1, slots"]);
    }
}

#[test]
fn waiters_are_shown_in_their_order_with_their_ages() {
    for store in Store::each() {
        let _holder = holding(store.run_with_ttl("30s"));
        let waiters = [(); 3].map(|()| waiting(store.run_with_ttl("30s")));
        let lock = the_lock(&store, []);
        let shown = lock["waiters"].as_array().unwrap();
        let pids: Vec<_> = shown.iter().map(|waiter| waiter["pid"].as_i64().unwrap()).collect();
        assert_eq!(pids, waiters.each_ref().map(|run| i64::from(run.pid())));
        let ages: Vec<_> = shown.iter().map(|waiter| waiter["waiting_ms"].as_u64().unwrap()).collect();
        assert!(ages.is_sorted_by(|one, next| one >= next), "{ages:?}");
        until(SOON, "waiters that grow older", || {
            the_lock(&store, [])["waiters"][2]["waiting_ms"].as_u64() > Some(ages[2])
        });
        let table = status(&store).output().stdout;
        for (line, place) in table.lines().skip(3).zip(1..) {
            assert!(line.contains(&format!("waits #{place} ")), "{table}");
        }
    }
}

#[test]
fn a_lock_kept_by_min_hold_is_marked() {
    for store in Store::each() {
        let mut run = store.run_with_ttl("30s").args(["--min-hold", "1h"]).sh("echo done").spawn();
        run.await_stdout("done\n");
        until(SOON, "the end of the command", || {
            the_lock(&store, ["x"])["holders"][0]["phase"] == "min_hold"
        });
        let table = status(&store).output().stdout;
        assert!(table.contains("exclusive, min_hold") && table.contains("ended "), "{table}");
        let left = the_lock(&store, [])["holders"][0]["expires_in_ms"].as_u64();
        assert!(left.is_some_and(|left| left > 3_000_000), "{left:?}");
    }
}

/// Two names that are taken together are two locks.
#[test]
fn every_lock_of_a_run_is_shown() {
    for store in Store::each() {
        let run = holding(store.run_with_ttl("30s").arg("y"));
        let seen = seen(&store, []);
        let locks = seen["locks"].as_array().unwrap();
        assert_eq!((&locks[0]["name"], &locks[1]["name"]), (&"x".into(), &"y".into()), "{seen}");
        for lock in locks {
            assert_eq!(lock["holders"][0]["pid"], run.pid());
        }
    }
}

/// How an actions runner, GitLab, Buildkite and Jenkins pass the page of a job; empty is unset.
#[test]
fn the_page_of_a_ci_job_is_shown() {
    let actions = |id| {
        vec![
            ("GITHUB_SERVER_URL", "https://git.example"),
            ("GITHUB_REPOSITORY", "o/r"),
            ("GITHUB_RUN_ID", id),
        ]
    };
    let store = Store::file();
    for (variables, url) in [
        (actions("17"), Value::from("https://git.example/o/r/actions/runs/17")),
        (actions(""), Value::Null),
        (vec![("GITHUB_RUN_ID", "17"), ("CI_JOB_URL", "https://ci/1")], "https://ci/1".into()),
        (vec![("CI_JOB_URL", ""), ("BUILDKITE_BUILD_URL", "https://ci/2")], "https://ci/2".into()),
        (vec![("BUILD_URL", "https://ci/3")], "https://ci/3".into()),
        (vec![], Value::Null),
    ] {
        let all = [
            "GITHUB_SERVER_URL",
            "GITHUB_REPOSITORY",
            "GITHUB_RUN_ID",
            "CI_JOB_URL",
            "BUILDKITE_BUILD_URL",
            "BUILD_URL",
        ];
        let run = all.into_iter().fold(store.run_with_ttl("30s"), |run, name| run.env_remove(name));
        let run = variables.into_iter().fold(run, |run, (name, value)| run.env(name, value));
        let mut run = holding(run);
        assert_eq!(the_lock(&store, [])["holders"][0]["url"], url);
        drop(run.take_stdin());
        run.wait();
    }
    let mut run = holding(store.run_with_ttl("30s").env("BUILD_URL", "x".repeat(1001)));
    assert_eq!(the_lock(&store, [])["holders"][0]["url"], Value::Null);
    drop(run.take_stdin());
    run.wait();
}

/// No token that proves ownership is ever shown.
#[test]
fn tokens_are_not_shown() {
    for store in Store::each() {
        let mut run = store
            .run_with_ttl("30s")
            .stdin(std::process::Stdio::piped())
            .sh("echo $DLOCK_TOKEN; echo ready; exec cat")
            .spawn();
        run.await_ready();
        let token = run.stdout().lines().next().unwrap().to_owned();
        let _waiter = waiting(store.run_with_ttl("30s"));
        for args in
            [&["--json"][..], &[], &["--history", "x"], &["--json", "--history", "x"], &["--json", "x", "-v"]]
        {
            let output = status(&store).args(args).output();
            assert_eq!((output.exit, token.len()), (Exit::Code(0), 32));
            assert!(!output.stdout.contains(&token) && !output.stderr.contains(&token), "{}", output.stdout);
        }
    }
}

/// It has no process, whoever acquired it.
#[test]
fn a_lease_without_a_process_is_marked() {
    let store = Store::redis();
    let acquire = ["acquire", "--backend", store.url(), "--ttl", "1h", "--note", "pipeline 7", "x"];
    let token = store.place.bare().args(acquire).output();
    assert_eq!((token.exit, token.stderr.as_str()), (Exit::Code(0), ""));
    let output = status(&store).arg("--json").output();
    assert!(!output.stdout.contains(token.stdout.trim()), "{}", output.stdout);
    let holder = super::parse(&output.stdout)["locks"][0]["holders"][0].take();
    assert_eq!((&holder["phase"], &holder["note"]), (&"token".into(), &"pipeline 7".into()));
    let left = holder["expires_in_ms"].as_u64();
    assert!(left.is_some_and(|left| (3_000_000..=3_600_000).contains(&left)), "{holder}");
    let table = status(&store).output().stdout;
    assert!(table.contains("exclusive, token"), "{table}");
}

//! `--any` on a file and on Redis: many runs, the number of requests and connections, messages, and what is recorded.

mod fakes;

use crate::stores::conformance::client::Client;
use crate::stores::conformance::rig::on_one_thread;
use crate::support::SOON;
use crate::support::dlock::{BINARY, Dlock};
use crate::support::monitor::{Monitor, Request};
use crate::support::redis::Redis;
use crate::support::running::{Exit, Running};
use crate::support::store::Store;
use crate::support::wait::{throughout, until};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;
use std::time::Duration;

/// `dlock run` on any one of these names.
fn any(store: &Store, names: &str) -> Dlock {
    store.run_with_ttl("60s").no_name().args(["--any", names])
}

/// A run that holds this lock until its standard input is closed.
fn holder(store: &Store, name: &str) -> Running {
    let mut run =
        store.run_with_ttl("60s").name(name).stdin(Stdio::piped()).sh("echo ready; exec cat").spawn();
    run.await_ready();
    run
}

#[track_caller]
fn let_end(mut run: Running) {
    drop(run.take_stdin());
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stderr);
}

/// Each run logs its start and its end under its lock; between the two no other run may have that lock.
#[test]
fn fifty_runs_share_five_locks() {
    for store in Store::each() {
        let text = "echo start $DLOCK_NAME >>log; sleep 0.05; echo end $DLOCK_NAME >>log";
        let run = |_| any(&store, "a,b,c,d,e").args(["--wait", "forever"]).sh(text).spawn();
        let mut runs: Vec<Running> = (0..50).map(run).collect();
        for run in &mut runs {
            assert_eq!(run.wait_within(4 * SOON).outcome(), (Exit::Code(0), "", ""));
        }
        let log = store.place.read("log");
        let (mut inside, mut most, mut used) = (BTreeSet::new(), 0, BTreeSet::new());
        for line in log.lines() {
            let (what, name) = line.split_once(' ').expect("two words");
            match what {
                "start" => assert!(inside.insert(name), "{name} twice in\n{log}"),
                _ => assert!(inside.remove(name), "{name} in\n{log}"),
            }
            used.insert(name);
            most = most.max(inside.len());
        }
        assert_eq!((log.lines().count(), inside.len(), used.len()), (100, 0, 5), "{log}");
        assert!((2..=5).contains(&most), "{most} at a time");
    }
}

/// Two requests for each lock: to take it without waiting, and to join its queue. Then one in a third of a lease, as for a
/// single lock, and when one of them is free, one to take it and one to leave each of the other queues.
#[test]
fn ten_locks_cost_two_requests_each_and_are_not_polled() {
    let redis = Redis::start();
    let store = Store::on(&redis);
    // From here on the server has the scripts.
    assert_eq!(store.run().command(["true"]).output().exit, Exit::Code(0));
    let names: Vec<String> = (0..10).map(|number| format!("lock-{number}")).collect();
    let mut holders: BTreeMap<&str, Running> =
        names.iter().map(|name| (name.as_str(), holder(&store, name))).collect();
    let monitor = Monitor::of(&redis);
    let scripts =
        |requests: Vec<Request>| requests.iter().filter(|request| request.token().is_some()).count();
    let mut run = any(&store, &names.join(",")).args(["-v", "--wait", "forever"]);
    run = run.stdin(Stdio::piped()).sh("echo has $DLOCK_NAME; exec cat");
    let mut run = run.spawn();
    run.await_stderr("; waiting at position 1\n");
    assert_eq!(scripts(monitor.requests()), 20);
    throughout(Duration::from_secs(2), "no further request", || scripts(monitor.requests()) == 20);
    let connections =
        || redis.command(&["CLIENT", "LIST"]).text().lines().filter(|line| line.contains("resp=3")).count();
    let waiting = connections();
    let_end(holders.remove("lock-7").expect("a holder"));
    run.await_stdout("has lock-7\n");
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for request in monitor.requests().into_iter().filter(|request| request.token().is_some()) {
        *counts.entry(request.client).or_default() += 1;
    }
    let mut counts: Vec<usize> = counts.into_values().collect();
    counts.sort_unstable();
    // The holder has released its lock; nine clients have left their queues. The one that took it may have been notified of
    // the release and of its turn separately.
    assert_eq!(counts[..10], [1, 3, 3, 3, 3, 3, 3, 3, 3, 3], "{counts:?}");
    assert!(counts.len() == 11 && counts[10] <= 4, "{counts:?}");
    until(SOON, "nine connections less, and that of the holder", || connections() + 10 == waiting);
    let_end(run);
    holders.into_values().for_each(let_end);
}

#[test]
fn a_free_lock_costs_one_request_for_each_one_before_it() {
    let redis = Redis::start();
    let store = Store::on(&redis);
    // From here on the server has the scripts.
    assert_eq!(store.run().command(["true"]).output().exit, Exit::Code(0));
    let holders = ["a", "b"].map(|name| holder(&store, name));
    let monitor = Monitor::of(&redis);
    let output = any(&store, "d,c,b,a").args(["--wait", "forever"]).sh("echo $DLOCK_NAME").output();
    assert_eq!(output.outcome(), (Exit::Code(0), "c\n", ""));
    let requests = monitor.requests();
    let scripts = requests.iter().filter(|request| request.token().is_some());
    let clients: BTreeSet<&str> = requests.iter().map(|request| request.client.as_str()).collect();
    // To try a and b, to take c, and to release it.
    assert_eq!((scripts.count(), clients.len()), (4, 3), "{requests:#?}");
    holders.into_iter().for_each(let_end);
}

#[test]
fn readers_share_the_first_lock_that_can_be_shared() {
    for store in Store::each() {
        let writer = holder(&store, "a");
        let mut reader = any(&store, "a,b").arg("--shared").stdin(Stdio::piped());
        reader = reader.sh("echo ready; exec cat");
        let mut reader = reader.spawn();
        reader.await_ready();
        let second = any(&store, "a,b").arg("--shared").sh("echo $DLOCK_NAME").output();
        assert_eq!(second.outcome(), (Exit::Code(0), "b\n", ""));
        let_end(reader);
        let_end(writer);
    }
}

/// The inner run waits for an ancestor only if it has no other choice: with the variable removed, it cannot enter its lock.
#[test]
fn a_lock_of_an_ancestor_is_not_waited_for() {
    for store in Store::each() {
        let inner = |names: &str, text: &str| {
            format!(
                "env -u DLOCK_HELD '{BINARY}' run -b '{}' --wait forever --any {names} -- {text}",
                store.url()
            )
        };
        let other = holder(&store, "b");
        let outer = store.run_with_ttl("60s").name("a").stdin(Stdio::piped());
        let mut outer =
            outer.sh(&format!("echo ready; {}", inner("a,b", "sh -c 'echo has $DLOCK_NAME'"))).spawn();
        outer.await_ready();
        outer.assert_running();
        let_end(other);
        outer.await_stdout("has b\n");
        assert_eq!(outer.wait().exit, Exit::Code(0));
        let outer = any(&store, "a,b").sh(&inner("a,b", "true")).output();
        assert_eq!(outer.outcome(), (Exit::Code(0), "", ""), "the outer one has a, and b is free");
    }
}

/// What the line of a wait says: the first lock that is held, and again when its holder changes.
#[test]
fn a_wait_names_what_was_tried() {
    let store = Store::file();
    let holders = ["a", "b", "c", "d"].map(|name| holder(&store, name));
    let run = any(&store, "a,b,c,d").args(["--wait", "50ms", "-v"]).sh("echo ran").output();
    let lines: Vec<&str> = run.stderr.lines().collect();
    let [waiting, gave_up] = lines[..] else { panic!("{}", run.stderr) };
    let none = "dlock: none of a, b and 2 others is free: a is held by ";
    assert!(waiting.starts_with(none) && waiting.contains("; waiting at position 1, "), "{waiting}");
    assert!(gave_up.starts_with(none) && gave_up.contains("; gave up after "), "{gave_up}");
    let quiet = any(&store, "a,b,c,d").arg("-q").sh("echo ran").output();
    assert_eq!(quiet.outcome(), (Exit::Code(75), "", ""));
    let json = any(&store, "a,b").args(["--log-format", "json", "-E", "9"]).sh("echo ran").output();
    let line: Value = serde_json::from_str(&json.stderr).expect("one object");
    assert_eq!((json.exit, &line["event"], &line["lock"]), (Exit::Code(9), &json!("contended"), &json!("a")));
    holders.into_iter().for_each(let_end);
}

#[test]
fn the_report_names_what_was_wanted_and_what_was_taken() {
    for store in Store::each() {
        let a = holder(&store, "a");
        let report = |names: &str| {
            let output = any(&store, names).args(["-q", "--report", "-"]).sh("true").output();
            let report: Value = serde_json::from_str(&output.stderr).expect("a report");
            assert_eq!(
                output.exit,
                report["dlock_exit"].as_i64().map_or(Exit::Code(-1), |code| Exit::Code(code as i32))
            );
            report
        };
        let taken = report("b,a");
        assert_eq!(taken["any"], json!({"names": ["a", "b"], "taken": "b"}));
        assert_eq!(taken["locks"].as_array().map(Vec::len), Some(1), "{taken}");
        assert_eq!(taken["locks"][0]["name"], "b");
        let b = holder(&store, "b");
        let none = report("a,b");
        assert_eq!(
            (&none["any"], &none["outcome"]),
            (&json!({"names": ["a", "b"], "taken": null}), &json!("contended"))
        );
        let locks = json!([{"name": "a", "fencing_token": null}, {"name": "b", "fencing_token": null}]);
        assert_eq!(none["locks"], locks);
        assert_eq!(none["holder"]["pid"], json!(a.pid()));
        let plain = store.run().arg("--report").arg("-").sh("true").output();
        let plain: Value = serde_json::from_str(&plain.stderr).expect("a report");
        assert_eq!(plain["any"], Value::Null);
        let failed = any(&store, "b,a").args(["--ttl", "1ms", "-q", "--report", "-"]).sh("true").output();
        let failed = failed.stderr.lines().last().unwrap_or_default();
        let failed: Value = serde_json::from_str(failed).expect("a report");
        assert_eq!(failed["any"], json!({"names": ["a", "b"], "taken": null}), "{failed}");
        [a, b].into_iter().for_each(let_end);
    }
}

/// An operator finds under each lock that a run wanted it and who had it then; a run that took another one is not there.
#[test]
fn a_run_that_got_none_is_in_the_history_of_each_with_its_holder() {
    for store in Store::each() {
        let [a, b] = ["a", "b"].map(|name| holder(&store, name));
        assert_eq!(any(&store, "a,b,c").sh("true").output().exit, Exit::Code(0));
        assert_eq!(any(&store, "a,b").sh("true").output().exit, Exit::Code(75));
        let pids = [a.pid(), b.pid()];
        for (name, pid) in ["a", "b"].into_iter().zip(pids) {
            let command = ["status", "--history", "--json", "-b", store.url(), name];
            let history = store.place.bare().args(command).output();
            let history: Value = serde_json::from_str(&history.stdout).expect("JSON");
            let records = history["locks"][0]["history"].as_array().expect("records");
            let [record] = &records[..] else { panic!("{name}: {records:#?}") };
            assert_eq!(
                (&record["outcome"], &record["holder"]["pid"]),
                (&json!("contended"), &json!(pid)),
                "{name}"
            );
        }
        let table = store.place.bare().args(["status", "--history", "-b", store.url(), "b"]).output().stdout;
        assert!(table.contains(&format!("  held by {} (pid {}, ", hostname(), pids[1])), "{table}");
        [a, b].into_iter().for_each(let_end);
    }
}

#[test]
fn a_frozen_lock_and_a_held_one_each_have_a_record_of_the_run() {
    for store in Store::each() {
        let dlock = |words: &[&str]| store.place.bare().args(words).args(["-b", store.url()]).output();
        let freeze = dlock(&["freeze", "--forever", "--now", "a"]);
        assert_eq!(freeze.exit, Exit::Code(0), "{freeze:?}");
        let b = holder(&store, "b");
        assert_eq!(any(&store, "a,b").sh("true").output().exit, Exit::Code(75));
        let record = |name: &str| {
            let history: Value = serde_json::from_str(&dlock(&["history", "--json", name]).stdout).unwrap();
            let records = history["locks"][0]["history"].as_array().expect("records").clone();
            let [record] = &records[..] else { panic!("{name}: {records:#?}") };
            record.clone()
        };
        let (frozen, held) = (record("a"), record("b"));
        let why = frozen["error"].as_str().unwrap_or_default();
        assert!(why.starts_with("frozen by ") && frozen["holder"].is_null(), "{frozen}");
        let why = held["error"].as_str().unwrap_or_default();
        assert!(!why.starts_with("frozen by ") && held["holder"]["pid"] == b.pid(), "{held}");
        assert_eq!(dlock(&["thaw", "a"]).exit, Exit::Code(0));
        let_end(b);
    }
}

fn hostname() -> String {
    nix::unistd::gethostname().expect("a name").to_string_lossy().into_owned()
}

/// A store that cannot be reached is retried, and is never reported as busy.
#[test]
fn a_store_that_cannot_be_reached_is_retried_for_all_of_them() {
    let place = crate::support::place::Place::new();
    let run = |arguments: &[&str]| {
        let run = place.run().backend("redis://127.0.0.1:1").no_name().args(["--any", "a,b"]);
        run.args(arguments).sh("echo ran").output()
    };
    let at_once = run(&[]);
    assert_eq!((at_once.exit, at_once.stdout.as_str()), (Exit::Code(69), ""));
    assert!(at_once.stderr.starts_with("dlock: a on redis://127.0.0.1:1/0: "), "{}", at_once.stderr);
    for patience in ["--retry", "--wait"] {
        let output = run(&[patience, "300ms"]);
        assert_eq!((output.exit, output.stderr.lines().count()), (Exit::Code(69), 1), "{}", output.stderr);
        assert!(output.elapsed >= Duration::from_millis(300), "{:?}", output.elapsed);
    }
    // It recovers: a server on the same port.
    let redis = Redis::start();
    let port = redis.port();
    let store = Store::on(&redis);
    let b = holder(&store, "b");
    let mut run = any(&store.behind(port), "a,b").args(["--retry", "1m"]).sh("echo $DLOCK_NAME").spawn();
    run.await_stdout("a\n");
    assert_eq!(run.wait().exit, Exit::Code(0));
    let_end(b);
}

/// A lock whose turn is another waiter's is tried again, and taken when that waiter does not come.
#[test]
fn without_waiting_an_unclaimed_lock_is_taken() {
    for store in Store::each() {
        let y = holder(&store, "y");
        on_one_thread(async {
            let (mut x, mut silent) = (Client::at(store.url(), "x"), Client::at(store.url(), "x"));
            x.acquire().await;
            silent.wait_in_line().await;
            x.release().await;
        });
        let output = any(&store, "x,y").sh("echo $DLOCK_NAME").output();
        assert_eq!(output.outcome(), (Exit::Code(0), "x\n", ""));
        let_end(y);
    }
}

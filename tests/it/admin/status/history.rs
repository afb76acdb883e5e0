//! `--history`: why did my job not run last night?

mod in_files;
mod of_all_locks;

use super::{holding, host, parse, status, user, waiting};
use crate::support::running::{Exit, Output};
use crate::support::store::Store;
use nix::sys::signal::Signal;
use serde_json::Value;

/// The last outcomes of a lock, the latest first.
#[track_caller]
fn history(store: &Store, name: &str) -> Vec<Value> {
    let output = status(store).args(["--json", "--history", name]).output();
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
    let mut seen = parse(&output.stdout);
    assert_eq!((&seen["locks"][0]["name"], seen["locks"].as_array().map(Vec::len)), (&name.into(), Some(1)));
    match seen["locks"][0]["history"].take() {
        Value::Array(history) => history,
        other => panic!("{other}"),
    }
}

/// The last one.
#[track_caller]
fn last(store: &Store) -> Value {
    history(store, "x").into_iter().next().expect("an outcome")
}

/// Outcome, dlock's exit, the command's status and its signal.
fn outcome_of(record: &Value) -> (&str, i64, Option<i64>, Option<i64>) {
    let number = |key: &str| record[key].as_i64();
    (
        record["outcome"].as_str().unwrap(),
        number("dlock_exit").unwrap(),
        number("exit_status"),
        number("signal"),
    )
}

fn run(store: &Store, text: &str) -> Output {
    store.run().sh(text).output()
}

/// Of several locks, the one that was held is named in the history of the others.
#[test]
fn the_reason_names_the_lock_that_was_held() {
    for store in Store::each() {
        let mut held = holding(store.run().no_name().name("zz"));
        let output = store.run().no_name().args(["aa", "zz"]).command(["true"]).output();
        assert_eq!(output.exit, Exit::Code(75));
        drop(held.take_stdin());
        held.wait();
        let why = |name: &str| {
            let shown = status(&store).args(["--history", name]).output().stdout;
            shown.lines().find(|line| line.contains("contended")).expect("the run").to_owned()
        };
        assert!(why("aa").contains("zz is held by "), "{}", why("aa"));
        assert!(why("zz").contains("held by ") && !why("zz").contains("is held by "), "{}", why("zz"));
    }
}

/// Every key, in a fixed order.
#[test]
fn an_outcome_is_recorded_completely() {
    for store in Store::each() {
        let run = store.run().args(["--note", "by hand"]).env("CI_JOB_URL", "https://ci.example/1");
        let mut run = holding(run);
        let refused = store.run().command(["true"]).output();
        assert_eq!(refused.exit, Exit::Code(75));
        let token = super::fencing(&run);
        drop(run.take_stdin());
        run.wait();
        let output = status(&store).args(["--json", "--history", "x"]).output();
        let seen = parse(&output.stdout);
        let records = seen["locks"][0]["history"].as_array().unwrap();
        // The latest began last.
        let (missed, ran) = (&records[0], &records[1]);
        let (host, user, pid) = (host(), user(), run.pid());
        let ran = format!(
            r#"{{"began_at":{},"outcome":"ran","dlock_exit":0,"exit_status":0,"signal":null,"host":"{host}","pid":{pid},"user":"{user}","command":"sh","note":"by hand","url":"https://ci.example/1","fencing_token":{token},"waited_ms":{},"held_ms":{},"holder":null,"reason":null,"error":null}}"#,
            ran["began_at"], ran["waited_ms"], ran["held_ms"],
        );
        let error = Value::from(refused.stderr.trim_end().trim_start_matches("dlock: "));
        let missed = format!(
            r#"{{"began_at":{},"outcome":"contended","dlock_exit":75,"exit_status":null,"signal":null,"host":"{host}","pid":{},"user":"{user}","command":"true","note":null,"url":null,"fencing_token":null,"waited_ms":{},"held_ms":null,"holder":{{"host":"{host}","pid":{pid},"user":"{user}","command":"sh"}},"reason":null,"error":{error}}}"#,
            missed["began_at"], missed["pid"], missed["waited_ms"],
        );
        let whole = format!(
            "{{\"version\":1,\"backend\":\"{}\",\"locks\":[{{\"name\":\"x\",\"history\":[{missed},{ran}]}}]}}\n",
            store.url()
        );
        assert_eq!(output.outcome(), (Exit::Code(0), &*whole, ""));
    }
}

#[test]
fn every_end_of_a_command_is_distinguished() {
    for store in Store::each() {
        run(&store, "true");
        assert_eq!(outcome_of(&last(&store)), ("ran", 0, Some(0), None));
        run(&store, "exit 3");
        assert_eq!(outcome_of(&last(&store)), ("ran", 3, Some(3), None));
        // A status that dlock has a meaning for, too.
        run(&store, "exit 75");
        assert_eq!(outcome_of(&last(&store)), ("ran", 75, Some(75), None));
        run(&store, "kill -KILL $$");
        assert_eq!(outcome_of(&last(&store)), ("ran", 137, None, Some(9)));
        store.run().args(["--max-runtime", "100ms"]).sh("exec sleep 1000").output();
        assert_eq!(outcome_of(&last(&store)), ("max_runtime", 124, None, Some(15)));
        let mut interrupted = holding(store.run());
        interrupted.signal(Signal::SIGTERM);
        interrupted.wait();
        assert_eq!(outcome_of(&last(&store)), ("ran", 143, None, Some(15)));
        assert_eq!(history(&store, "x").len(), 6);
        let table = status(&store).args(["--history", "x"]).output().stdout;
        let outcomes: Vec<&str> = table.lines().skip(3).map(|line| super::cells(line)[1]).collect();
        assert_eq!(outcomes, ["signal 15", "max_runtime", "signal 9", "exit 75", "exit 3", "ok"], "{table}");
    }
}

#[test]
fn every_reason_not_to_run_is_recorded() {
    for store in Store::each() {
        let mut holder = holding(store.run());
        let contended = store.run().command(["true"]).output();
        assert_eq!(contended.exit, Exit::Code(75));
        let at_once = last(&store);
        assert_eq!(outcome_of(&at_once), ("contended", 75, None, None));
        assert_eq!(at_once["holder"]["pid"], holder.pid());
        let timed_out = store.run().args(["-E", "0", "-q", "--wait", "200ms"]).command(["true"]).output();
        assert_eq!(timed_out.exit, Exit::Code(0));
        let waited = history(&store, "x").into_iter().find(|record| record["dlock_exit"] == 0).unwrap();
        assert_eq!(outcome_of(&waited), ("contended", 0, None, None));
        assert!(waited["waited_ms"].as_u64() >= Some(200), "{waited}");
        let mut waiter = waiting(store.run());
        waiter.signal(Signal::SIGINT);
        waiter.wait();
        let interrupted =
            history(&store, "x").into_iter().find(|record| record["outcome"] == "interrupted").unwrap();
        assert_eq!(outcome_of(&interrupted), ("interrupted", 130, None, None));
        let table = status(&store).args(["--history", "x"]).output().stdout;
        let who = format!("held by {} (pid {}, {}, sh)", host(), holder.pid(), user());
        assert!(table.contains(&who) && table.contains("interrupted"), "{table}");
        drop(holder.take_stdin());
        holder.wait();
    }
}

#[test]
fn a_broken_hold_is_recorded_with_the_reason() {
    for store in Store::each() {
        let mut run = holding(store.run_with_ttl("1h"));
        let broken = store
            .place
            .bare()
            .args(["break", "-b", store.url(), "--yes", "--reason", "it hung", "x"])
            .output();
        assert_eq!(broken.exit, Exit::Code(0), "{}", broken.stderr);
        assert_eq!(run.wait().exit, Exit::Code(76));
        // The operator began later than the run.
        let [operator, record] = &history(&store, "x")[..] else { panic!("two records") };
        assert_eq!(outcome_of(operator), ("broken", 0, None, None));
        assert_eq!(outcome_of(record), ("lost", 76, None, Some(15)));
        assert_eq!((&record["reason"], &operator["reason"]), (&"it hung".into(), &"it hung".into()));
        let table = status(&store).args(["--history", "x"]).output().stdout;
        assert!(table.contains("it hung"), "{table}");
    }
}

#[cfg(feature = "redis")]
#[test]
fn a_lost_lock_is_recorded() {
    let store = Store::redis();
    let mut run = holding(store.run());
    store.space().command(&["DEL", &store.space().key("x")]);
    assert_eq!(run.wait().exit, Exit::Code(76));
    let record = last(&store);
    assert_eq!(outcome_of(&record), ("lost", 76, None, Some(15)));
    assert_eq!(record["error"], "gone from the store");
    // Name and store are in the lines above.
    let table = status(&store).args(["--history", "x"]).output().stdout;
    assert_eq!(table.matches(store.url()).count(), 1, "{table}");
    let row = table.lines().find(|line| line.contains("  lost  ")).expect("the run");
    assert!(row.ends_with("  gone from the store"), "{table}");
}

/// Its command has ended with status 0, and yet something went wrong.
#[cfg(feature = "redis")]
#[test]
fn a_lock_that_was_lost_under_a_command_that_went_on_is_recorded_with_the_reason() {
    let store = Store::redis();
    let mut run = holding(store.run().args(["--on-lost", "warn"]));
    store.space().command(&["DEL", &store.space().key("x")]);
    run.await_stderr("the command goes on");
    drop(run.take_stdin());
    assert_eq!(run.wait().exit, Exit::Code(0));
    let record = last(&store);
    assert_eq!(outcome_of(&record), ("lost", 0, Some(0), None));
    assert_eq!(record["error"], "gone from the store; the command went on");
    let table = status(&store).args(["--history", "--failed", "x"]).output().stdout;
    assert!(table.ends_with("  gone from the store; the command went on\n"), "{table}");
}

/// Of several locks, the one that was lost is named in the history of the others.
#[cfg(feature = "redis")]
#[test]
fn the_reason_names_the_lock_that_was_lost() {
    let store = Store::redis();
    let mut run = holding(store.run().arg("y"));
    store.space().command(&["DEL", &store.space().key("y")]);
    assert_eq!(run.wait().exit, Exit::Code(76));
    assert_eq!(history(&store, "x")[0]["error"], "y: gone from the store");
    assert_eq!(history(&store, "y")[0]["error"], "gone from the store");
}

/// A run of several locks is recorded for each; a nested one is a separate run.
#[test]
fn nested_runs_and_runs_of_several_locks_are_recorded() {
    for store in Store::each() {
        let inner = format!(
            "'{}' run -b '{}' x -- sh -c 'exit 4'; exit 5",
            crate::support::dlock::BINARY,
            store.url()
        );
        let output = store.run().arg("y").sh(&inner).output();
        assert_eq!(output.exit, Exit::Code(5));
        // Not in their order: when a run began is the time of its record less the time it held, to some milliseconds.
        let statuses = |name: &str| {
            let mut statuses: Vec<_> =
                history(&store, name).iter().map(|record| outcome_of(record).2).collect();
            statuses.sort_unstable();
            statuses
        };
        assert_eq!(statuses("x"), [Some(4), Some(5)]);
        assert_eq!(statuses("y"), [Some(5)]);
        let output = status(&store).args(["--json", "--history", "y", "none", "x", "y"]).output();
        let seen = parse(&output.stdout);
        let names: Vec<&Value> = seen["locks"].as_array().unwrap().iter().map(|lock| &lock["name"]).collect();
        assert_eq!(names, ["y", "none", "x"]);
        assert_eq!(seen["locks"][1]["history"], serde_json::json!([]));
        let table = status(&store).args(["--history", "none", "y"]).output().stdout;
        assert!(
            table
                .starts_with(&format!("{}\nnone\nnothing is known of earlier runs\n\ny\nBEGAN", store.url())),
            "{table}"
        );
    }
}

/// A job that is due each minute on many hosts is refused far more often than it runs.
#[test]
fn attempts_that_did_not_run_do_not_displace_the_last_run() {
    for store in Store::each() {
        assert_eq!(run(&store, "exit 9").exit, Exit::Code(9));
        let mut holder = holding(store.run());
        let mut crowd: Vec<_> = (0..50).map(|_| store.run().arg("-q").command(["true"]).spawn()).collect();
        for run in &mut crowd {
            assert_eq!(run.wait().exit, Exit::Code(75));
        }
        drop(holder.take_stdin());
        holder.wait();
        let history = history(&store, "x");
        let of =
            |outcome: &str| history.iter().filter(|record| record["outcome"] == outcome).collect::<Vec<_>>();
        assert_eq!((of("contended").len(), of("ran").len()), (20, 2));
        assert_eq!(outcome_of(of("ran")[1]).2, Some(9));
        for record in of("contended") {
            assert_eq!(record["holder"]["pid"], holder.pid());
        }
    }
}

/// The twenty last of those that ran.
#[test]
fn the_history_is_bounded() {
    for store in Store::each() {
        for status in 0..23 {
            run(&store, &format!("exit {status}"));
        }
        let statuses: Vec<_> =
            history(&store, "x").iter().map(|record| outcome_of(record).2.unwrap()).collect();
        assert_eq!(statuses, (3..23).rev().collect::<Vec<i64>>());
    }
}

#[test]
fn concurrent_writers_lose_no_record() {
    for store in Store::each() {
        let mut readers: Vec<_> = (0..19)
            .map(|number| {
                store.run().args(["--shared", "--wait", "30s"]).sh(&format!("exit {number}")).spawn()
            })
            .collect();
        for run in &mut readers {
            run.wait();
        }
        let mut statuses: Vec<_> =
            history(&store, "x").iter().map(|record| outcome_of(record).2.unwrap()).collect();
        statuses.sort_unstable();
        assert_eq!(statuses, (0..19).collect::<Vec<i64>>());
    }
}

/// Times are those of the store, whatever the clock of the host of the run.
#[test]
fn the_start_of_a_run_is_recorded() {
    for store in Store::each() {
        let before = time_now();
        let mut holder = holding(store.run());
        let between = time_now();
        drop(holder.take_stdin());
        holder.wait();
        let record = last(&store);
        let began = record["began_at"].as_str().unwrap();
        assert!(before.as_str() <= began && began <= between.as_str(), "{before} {began} {between}");
        let table = status(&store).args(["--history", "x"]).env("TZ", "UTC").output().stdout;
        let shown = table.lines().nth(3).unwrap()[..19].replace(' ', "T");
        assert_eq!(shown, began[..19]);
    }
}

/// Now, a millisecond wide, as dlock writes it.
fn time_now() -> String {
    let output = std::process::Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%S.%3NZ"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

//! `--history`: why did my job not run last night?

mod in_files;
mod of_all_locks;
mod planted;
mod selected;
mod timeline;
mod times;

use super::{holding, host, parse, status, user, waiting};
use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::inherited_lock::store_clock;
use crate::support::running::{Exit, Output};
use crate::support::store::Store;
use crate::support::wait::eventually;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::time::Duration;

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

/// The last one: that of the run with the latest fencing token, if any ran. When a run began is the time of its
/// record less the time it held, and so too late by as long as its dlock or the store stood still in between.
#[track_caller]
fn last(store: &Store) -> Value {
    let outcomes = history(store, "x").into_iter().rev();
    outcomes.max_by_key(|record| record["fencing_token"].as_u64()).expect("an outcome")
}

/// Asserts that those that began last come first.
#[track_caller]
fn assert_latest_first(history: &[Value]) {
    let began: Vec<&str> = history.iter().map(|record| record["began_at"].as_str().unwrap()).collect();
    assert!(began.is_sorted_by(|one, next| one >= next), "{began:?}");
}

/// The output of an attempt that does not get the lock, of which there is a record in the history of `x`: only a
/// store that is quick keeps one.
#[track_caller]
fn refused(store: &Store, attempt: impl Fn() -> Dlock) -> Output {
    eventually(SOON, "a record of an attempt", || {
        let output = attempt().output();
        assert_eq!(output.exit, Exit::Code(75), "{output:?}");
        let records = history(store, "x");
        records.iter().any(|record| record["outcome"] == "contended").then_some(output)
    })
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
    store.run_with_ttl("30s").sh(text).output()
}

/// Of several locks, the one that was held is named in the history of the others.
#[test]
fn the_reason_names_the_lock_that_was_held() {
    for store in Store::each() {
        let mut held = holding(store.run_with_ttl("30s").no_name().name("zz"));
        let why = |name: &str| {
            let shown = status(&store).args(["--history", name]).output().stdout;
            shown.lines().find(|line| line.contains("contended")).map(str::to_owned)
        };
        // Only a store that is quick keeps a record of it.
        eventually(SOON, "records of a run", || {
            let run = store.run_with_ttl("30s").no_name().args(["aa", "zz"]).command(["true"]);
            assert_eq!(run.output().exit, Exit::Code(75));
            why("aa").and(why("zz"))
        });
        drop(held.take_stdin());
        held.wait();
        let why = |name: &str| why(name).expect("the run");
        assert!(why("aa").contains("zz is held by "), "{}", why("aa"));
        assert!(why("zz").contains("held by ") && !why("zz").contains("is held by "), "{}", why("zz"));
    }
}

/// Every key, in a fixed order.
#[test]
fn an_outcome_is_recorded_completely() {
    for store in Store::each() {
        let run =
            store.run_with_ttl("30s").args(["--note", "by hand"]).env("CI_JOB_URL", "https://ci.example/1");
        let mut run = holding(run);
        let refused = refused(&store, || store.run_with_ttl("30s").command(["true"]));
        let token = super::fencing(&run);
        drop(run.take_stdin());
        run.wait();
        let output = status(&store).args(["--json", "--history", "x"]).output();
        let seen = parse(&output.stdout);
        let records = seen["locks"][0]["history"].as_array().unwrap();
        assert_latest_first(records);
        let of = |outcome: &str| records.iter().find(|record| record["outcome"] == outcome).unwrap();
        let (missed, ran) = (of("contended"), of("ran"));
        // See `last`.
        let is_ran_first = records[0] == *ran;
        let (host, user, pid) = (host(), user(), run.pid());
        let ran = format!(
            r#"{{"began_at":{},"outcome":"ran","dlock_exit":0,"exit_status":0,"signal":null,"interrupted":false,"host":"{host}","pid":{pid},"user":"{user}","command":"sh","note":"by hand","url":"https://ci.example/1","fencing_token":{token},"waited_ms":{},"held_ms":{},"kept_ms":null,"holder":null,"reason":null,"error":null}}"#,
            ran["began_at"], ran["waited_ms"], ran["held_ms"],
        );
        let error = Value::from(refused.stderr.trim_end().trim_start_matches("dlock: "));
        let missed = format!(
            r#"{{"began_at":{},"outcome":"contended","dlock_exit":75,"exit_status":null,"signal":null,"interrupted":false,"host":"{host}","pid":{},"user":"{user}","command":"true","note":null,"url":null,"fencing_token":null,"waited_ms":{},"held_ms":null,"kept_ms":null,"holder":{{"host":"{host}","pid":{pid},"user":"{user}","command":"sh"}},"reason":null,"error":{error}}}"#,
            missed["began_at"], missed["pid"], missed["waited_ms"],
        );
        let [first, second] = if is_ran_first { [ran, missed] } else { [missed, ran] };
        let whole = format!(
            "{{\"version\":1,\"backend\":\"{}\",\"locks\":[{{\"name\":\"x\",\"history\":[{first},{second}]}}]}}\n",
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
        store.run_with_ttl("30s").args(["--max-runtime", "100ms"]).sh("exec sleep 1000").output();
        assert_eq!(outcome_of(&last(&store)), ("max_runtime", 124, None, Some(15)));
        let mut interrupted = holding(store.run_with_ttl("30s"));
        interrupted.signal(Signal::SIGTERM);
        interrupted.wait();
        assert_eq!(outcome_of(&last(&store)), ("ran", 143, None, Some(15)));
        let history = history(&store, "x");
        assert_latest_first(&history);
        let table = status(&store).args(["--history", "x"]).output().stdout;
        let mut outcomes: Vec<&str> = table.lines().skip(3).map(|line| super::cells(line)[1]).collect();
        // In the same order.
        let shown = history.iter().map(|record| match outcome_of(record) {
            ("ran", _, Some(0), _) => "ok".to_owned(),
            ("ran", _, Some(status), _) => format!("exit {status}"),
            ("ran", _, _, Some(signal)) => format!("signal {signal}"),
            (other, ..) => other.to_owned(),
        });
        assert_eq!(outcomes, shown.collect::<Vec<_>>(), "{table}");
        outcomes.sort_unstable();
        assert_eq!(outcomes, ["exit 3", "exit 75", "max_runtime", "ok", "signal 15", "signal 9"], "{table}");
    }
}

#[test]
fn every_reason_not_to_run_is_recorded() {
    for store in Store::each() {
        let mut holder = holding(store.run_with_ttl("30s"));
        refused(&store, || store.run_with_ttl("30s").command(["true"]));
        let at_once = last(&store);
        assert_eq!(outcome_of(&at_once), ("contended", 75, None, None));
        assert_eq!(at_once["holder"]["pid"], holder.pid());
        let waited = eventually(SOON, "a record of a run that waited", || {
            let run = store.run_with_ttl("30s").args(["-E", "0", "-q", "--wait", "200ms"]);
            assert_eq!(run.command(["true"]).output().exit, Exit::Code(0));
            history(&store, "x").into_iter().find(|record| record["dlock_exit"] == 0)
        });
        assert_eq!(outcome_of(&waited), ("contended", 0, None, None));
        assert!(waited["waited_ms"].as_u64() >= Some(200), "{waited}");
        // An interrupted run ends at once, with a record only if the store is quick.
        let interrupted = eventually(SOON, "a record of an interrupted run", || {
            let mut waiter = waiting(store.run_with_ttl("30s"));
            waiter.signal(Signal::SIGINT);
            waiter.wait();
            history(&store, "x").into_iter().find(|record| record["outcome"] == "interrupted")
        });
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
        // Only a store that is quick keeps the record of the operator.
        let history = eventually(SOON, "a record of a break", || {
            let mut run = holding(store.run_with_ttl("1h").args(["--min-hold", "2h"]));
            let broken = store
                .place
                .bare()
                .args(["break", "-b", store.url(), "--yes", "--reason", "it hung", "x"])
                .output();
            assert_eq!(broken.exit, Exit::Code(0), "{}", broken.stderr);
            assert_eq!(run.wait().exit, Exit::Code(76));
            let records = history(&store, "x");
            records.iter().any(|record| record["outcome"] == "broken").then_some(records)
        });
        assert_latest_first(&history);
        let of = |outcome: &str| history.iter().find(|record| record["outcome"] == outcome).unwrap();
        let (operator, record) = (of("broken"), of("lost"));
        assert_eq!(outcome_of(operator), ("broken", 0, None, None));
        assert_eq!(outcome_of(record), ("lost", 76, None, Some(15)));
        assert_eq!(record["kept_ms"], Value::Null, "a broken lock is free at once");
        assert_eq!((&record["reason"], &operator["reason"]), (&"it hung".into(), &"it hung".into()));
        let table = status(&store).args(["--history", "x"]).output().stdout;
        assert!(table.contains("it hung"), "{table}");
    }
}

#[test]
fn a_lost_lock_is_recorded() {
    let store = Store::redis();
    let mut run = holding(store.run_with_ttl("30s"));
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
#[test]
fn a_lock_that_was_lost_under_a_command_that_went_on_is_recorded_with_the_reason() {
    let store = Store::redis();
    let mut run = holding(store.run_with_ttl("30s").args(["--on-lost", "warn"]));
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
#[test]
fn the_reason_names_the_lock_that_was_lost() {
    let store = Store::redis();
    let mut run = holding(store.run_with_ttl("30s").arg("y"));
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
        let output = store.run_with_ttl("30s").arg("y").sh(&inner).output();
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
        assert!(table.starts_with(&format!("{}\nBEGAN", store.url())), "{table}");
        assert!(table.ends_with("\nnone: no runs are recorded\n"), "{table}");
    }
}

/// A job that is due each minute on many hosts is refused far more often than it runs.
#[test]
fn attempts_that_did_not_run_do_not_displace_the_last_run() {
    for store in Store::each() {
        assert_eq!(run(&store, "exit 9").exit, Exit::Code(9));
        let mut holder = holding(store.run_with_ttl("30s"));
        let mut crowd: Vec<_> =
            (0..50).map(|_| store.run_with_ttl("30s").arg("-q").command(["true"]).spawn()).collect();
        for run in &mut crowd {
            assert_eq!(run.wait().exit, Exit::Code(75));
        }
        drop(holder.take_stdin());
        holder.wait();
        let history = history(&store, "x");
        let of =
            |outcome: &str| history.iter().filter(|record| record["outcome"] == outcome).collect::<Vec<_>>();
        assert_eq!((of("contended").len(), of("ran").len()), (20, 2));
        assert!(of("ran").iter().any(|record| outcome_of(record).2 == Some(9)), "{history:?}");
        for record in of("contended") {
            assert_eq!(record["holder"]["pid"], holder.pid());
        }
    }
}

/// The twenty last of those that failed, and the success before them.
#[test]
fn the_history_is_bounded() {
    for store in Store::each() {
        for status in 0..23 {
            run(&store, &format!("exit {status}"));
        }
        let history = history(&store, "x");
        assert_latest_first(&history);
        let mut statuses: Vec<_> = history.iter().map(|record| outcome_of(record).2.unwrap()).collect();
        statuses.sort_unstable();
        assert_eq!(statuses, [0].into_iter().chain(3..23).collect::<Vec<i64>>());
    }
}

#[test]
fn concurrent_writers_lose_no_record() {
    for store in Store::each() {
        let mut readers: Vec<_> = (0..19)
            .map(|number| {
                store
                    .run_with_ttl("30s")
                    .args(["--shared", "--wait", "30s"])
                    .sh(&format!("exit {number}"))
                    .spawn()
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
        let before = milliseconds();
        let mut holder = holding(store.run_with_ttl("30s"));
        let between = milliseconds();
        // Longer than the release takes.
        std::thread::sleep(Duration::from_secs(1));
        let released = milliseconds();
        drop(holder.take_stdin());
        holder.wait();
        // See `last`.
        let late = milliseconds() - released;
        let record = last(&store);
        let began = record["began_at"].as_str().unwrap();
        let time = began.parse::<jiff::Timestamp>().unwrap().as_millisecond();
        assert!(before <= time && time <= between + late, "{before} {time} {between} {late}");
        let table = status(&store).args(["--history", "x"]).env("TZ", "UTC").output().stdout;
        let shown = table.lines().nth(3).unwrap()[..19].replace(' ', "T");
        assert_eq!(shown, began[..19]);
    }
}

/// Now, in ms since 1970.
fn milliseconds() -> i64 {
    store_clock() / 1000
}

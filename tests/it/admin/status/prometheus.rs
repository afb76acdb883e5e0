//! `--prometheus`: the locks of a store as metrics.

use super::{holding, status};
use crate::cli::metrics::prometheus::assert_understood;
use crate::support::redis::Redis;
use crate::support::running::Exit;
use crate::support::store::Store;

fn metrics(store: &Store, words: &[&str]) -> String {
    let output = status(store).arg("--prometheus").args(words).output();
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""), "{output:?}");
    assert_understood(&output.stdout);
    output.stdout
}

#[track_caller]
fn assert_has(text: &str, lines: &[&str]) {
    for line in lines {
        assert_eq!(text.lines().filter(|found| found == line).count(), 1, "{line} in\n{text}");
    }
}

#[test]
fn holders_waiters_and_outcomes_are_counted() {
    for store in [Store::file(), Store::redis()] {
        assert_eq!(metrics(&store, &[]), metrics(&store, &["y*"]), "of an empty store");
        assert_eq!(store.run().sh("exit 0").output().exit, Exit::Code(0));
        assert_eq!(store.run().sh("exit 3").output().exit, Exit::Code(3));
        let held = holding(store.run_with_ttl("30s"));
        let mut waiter =
            store.run_with_ttl("30s").args(["-v", "--wait", "forever"]).command(["true"]).spawn();
        waiter.await_stderr("; waiting at position 1\n");
        let text = metrics(&store, &[]);
        assert_has(
            &text,
            &[
                "dlock_lock_readable{name=\"x\"} 1",
                "dlock_locks_omitted 0",
                "dlock_lock_holders{name=\"x\"} 1",
                "dlock_lock_waiters{name=\"x\"} 1",
                "dlock_lock_outcomes{name=\"x\",outcome=\"ran\"} 2",
            ],
        );
        let value = |metric: &str| -> f64 {
            let line = text.lines().find(|line| line.starts_with(&format!("{metric}{{name=\"x\"}} ")));
            line.unwrap_or_else(|| panic!("{metric} in\n{text}")).rsplit(' ').next().unwrap().parse().unwrap()
        };
        assert!(value("dlock_lock_oldest_wait_seconds") > 0.0);
        assert!(value("dlock_lock_last_success_timestamp_seconds") > 1.7e9);
        // It waits for nothing, and nothing is known of it.
        let named = metrics(&store, &["other"]);
        assert_has(
            &named,
            &["dlock_lock_readable{name=\"other\"} 1", "dlock_lock_holders{name=\"other\"} 0"],
        );
        assert!(!named.contains("name=\"x\"") && !named.contains("last_success"), "{named}");
        drop(held);
        waiter.wait();
    }
}

/// Names are chosen by users, and may contain anything but control characters.
#[test]
fn hostile_names_are_understood() {
    let store = Store::file();
    for name in ["\"", "\\", "a\"} 1\\", "{name=\"x\"}", "#", "größe", "\u{202e}x", "\",le=\"1"] {
        let run = store.place.bare().args(["run", "-b", store.url(), name]);
        assert_eq!(run.args(["--", "true"]).output().exit, Exit::Code(0));
    }
    let text = metrics(&store, &[]);
    assert_eq!(text.lines().filter(|line| line.starts_with("dlock_lock_holders{")).count(), 8, "{text}");
}

#[test]
fn only_so_many_locks_are_listed_unless_they_are_named() {
    let redis = Redis::start();
    let store = Store::on(&redis);
    let script = "for i = 1, 1003 do \
                  redis.call('ZADD', 'dlock#recorded', redis.call('TIME')[1] * 1000, 'dlock:l' .. i) end";
    redis.command(&["EVAL", script, "0"]);
    let text = metrics(&store, &[]);
    assert_has(&text, &["dlock_locks_omitted 3"]);
    assert_eq!(text.lines().filter(|line| line.starts_with("dlock_lock_readable{")).count(), 1000);
}

#[test]
fn other_forms_of_output_contradict_it() {
    let store = Store::file();
    for (words, other) in [
        (&["--json"][..], "--json"),
        (&["--watch"], "--watch"),
        (&["--wide"], "--wide"),
        (&["--exit-code"], "--exit-code"),
        (&["--history"], "--history"),
        (&["--failed"], "--failed"),
    ] {
        let output = status(&store).arg("--prometheus").args(words).output();
        let message = format!("dlock: --prometheus and {other} contradict each other: give one of them\n");
        assert_eq!(output.outcome(), (Exit::Code(64), "", &*message), "{words:?}");
    }
}

//! The counters of a run, and that no run is missed.

use super::{counts, runs, value};
use crate::cli::reports::assert_nothing_else;
use crate::support::SOON;
use crate::support::running::{Exit, Running};
use crate::support::store::Store;
use nix::sys::signal::Signal;
use std::process::Stdio;

#[test]
fn every_outcome_is_counted_under_its_name() {
    for store in Store::each() {
        let run = || store.run_with_ttl("60s").args(["--metrics-file", "m"]);
        store.place.write("plain", "");
        assert_eq!(run().command(["true"]).output().outcome(), (Exit::Code(0), "", ""));
        assert_eq!(run().sh("exit 75").output().exit, Exit::Code(75));
        assert_eq!(run().sh("kill -9 $$").output().exit, Exit::Signal(9));
        let output = run().args(["--max-runtime", "1ms"]).command(["sleep", "1000"]).output();
        assert_eq!(output.exit, Exit::Code(124));
        assert_eq!(run().command(["no-such-command"]).output().exit, Exit::Code(127));
        assert_eq!(run().command(["./plain"]).output().exit, Exit::Code(126));
        assert_eq!(run().backend("nonsense:").command(["true"]).output().exit, Exit::Code(78));
        let mut holder = store
            .run_with_ttl("60s")
            .args(["--slots", "2"])
            .stdin(Stdio::piped())
            .sh("echo ready; exec cat")
            .spawn();
        holder.await_ready();
        assert_eq!(run().command(["true"]).output().exit, Exit::Code(75));
        assert_eq!(run().args(["--slots", "3"]).command(["true"]).output().exit, Exit::Code(64));
        let mut waiter = run().args(["-v", "--wait", "forever"]).command(["true"]).spawn();
        waiter.await_stderr("waiting at position 1");
        waiter.signal(Signal::SIGTERM);
        assert_eq!(waiter.wait().exit, Exit::by(Signal::SIGTERM));
        let expected = counts([
            ("config", 1),
            ("contended", 1),
            ("interrupted", 1),
            ("max_runtime", 1),
            ("not_executable", 2),
            ("ran", 3),
            ("usage", 1),
        ]);
        assert_eq!(runs(&store.place, "x"), expected);
        // Those that requested the lock, and those that held it.
        assert_eq!(value(&store.place, "dlock_wait_seconds_count{name=\"x\"}"), Some(7.0));
        assert_eq!(value(&store.place, "dlock_hold_seconds_count{name=\"x\"}"), Some(4.0));
    }
}

#[test]
fn failures_of_a_store_are_counted() {
    use crate::support::redis::Redis;
    let closed = Redis::start_with_args(&["--requirepass", "secret"]);
    let store = Store::redis();
    let run = || store.run_with_ttl("60s").args(["--metrics-file", "m"]);
    assert_eq!(run().backend(closed.url()).command(["true"]).output().exit, Exit::Code(77));
    assert_eq!(run().backend("redis://127.0.0.1:1").command(["true"]).output().exit, Exit::Code(69));
    let mut lost = run().sh("echo ready; exec sleep 1000").spawn();
    lost.await_ready();
    store.space().command(&["DEL", &store.space().key("x")]);
    assert_eq!(lost.wait().exit, Exit::Code(76));
    assert_eq!(runs(&store.place, "x"), counts([("denied", 1), ("lost", 1), ("unavailable", 1)]));
}

/// The word in the position of a name in an invalid command line may not be a name: such a run is counted without one.
#[test]
fn usage_errors_are_counted_under_the_valid_names() {
    let store = Store::file();
    let run = || store.run_with_ttl("60s").args(["--metrics-file", "m"]);
    assert_eq!(run().args(["-n", "-w", "5"]).command(["true"]).output().exit, Exit::Code(64));
    assert_eq!(runs(&store.place, "x"), counts([("usage", 1)]));
    assert_eq!(run().arg("--bad").command(["true"]).output().exit, Exit::Code(64));
    assert_eq!(run().args(["--ttl", "1x"]).command(["true"]).output().exit, Exit::Code(64));
    assert_eq!(run().arg("./backup.sh").output().exit, Exit::Code(64));
    assert_eq!(runs(&store.place, "x"), counts([("usage", 1)]));
    assert_eq!(runs(&store.place, ""), counts([("usage", 3)]));
    let file = std::fs::read_to_string(store.place.path("m")).unwrap();
    assert!(!file.contains("backup.sh"), "{file}");
    let times = file.lines().filter(|line| line.starts_with("dlock_last_run_timestamp_seconds"));
    assert!(times.clone().all(|line| !line.contains("name=\"\"")), "{file}");
    assert_eq!(times.count(), 1, "{file}");
}

#[test]
fn the_last_outcome_is_recorded() {
    let store = Store::file();
    let run = || store.run_with_ttl("60s").args(["--metrics-file", "m"]);
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    let gauge = |gauge: &str| value(&store.place, &format!("{gauge}{{name=\"x\"}}"));
    let last_run = || gauge("dlock_last_run_timestamp_seconds").unwrap();

    // A run that never started its command has no data about one.
    assert_eq!(run().command(["no-such-command"]).output().exit, Exit::Code(127));
    assert_eq!(gauge("dlock_last_exit_status"), None);
    assert_eq!(gauge("dlock_last_fencing_token"), None);

    assert_eq!(run().sh("exit 3").output().exit, Exit::Code(3));
    assert_eq!(gauge("dlock_last_exit_status"), Some(3.0));
    assert_eq!(gauge("dlock_last_success_timestamp_seconds"), None);

    let before = now();
    let output = run().sh("echo $DLOCK_FENCING_TOKEN").output();
    let success = gauge("dlock_last_success_timestamp_seconds").unwrap();
    // Written in milliseconds.
    assert!(success >= before - 0.001 && success <= now(), "{before} {success}");
    assert_eq!(last_run(), success);
    assert_eq!(gauge("dlock_last_exit_status"), Some(0.0));
    assert_eq!(gauge("dlock_last_fencing_token"), Some(output.stdout.trim().parse().unwrap()));

    // A success stays the last one whatever happens later.
    assert_eq!(run().sh("kill -TERM $$").output().exit, Exit::Signal(15));
    assert_eq!(gauge("dlock_last_exit_status"), Some(143.0));
    assert_eq!(gauge("dlock_last_success_timestamp_seconds"), Some(success));
    assert!(last_run() > success);
}

#[test]
fn each_of_several_names_has_its_own_series() {
    for store in Store::each() {
        let run = store.run_with_ttl("60s").args(["--metrics-file", "m", "a", "b", "a"]);
        assert_eq!(run.command(["true"]).output().outcome(), (Exit::Code(0), "", ""));
        for name in ["a", "b", "x"] {
            assert_eq!(runs(&store.place, name), counts([("ran", 1)]), "{name}");
            assert_eq!(
                value(&store.place, &format!("dlock_hold_seconds_count{{name=\"{name}\"}}")),
                Some(1.0)
            );
        }
    }
}

/// Each adds to the counts of the others, whatever their outcomes.
#[test]
fn concurrent_runs_lose_no_count() {
    let store = Store::file();
    let mut started: Vec<Running> = (0..50)
        .map(|n| {
            store
                .run_with_ttl("60s")
                .name(format!("x{}", n % 5))
                .args(["--metrics-file", "m"])
                .command(["true"])
                .spawn()
        })
        .collect();
    let ended: Vec<_> = started.iter_mut().map(|run| run.wait_within(2 * SOON)).collect();
    for output in &ended {
        assert!([Exit::Code(0), Exit::Code(75)].contains(&output.exit), "{output:?}");
        assert!(!output.stderr.contains("--metrics-file"), "{}", output.stderr);
    }
    let all: Vec<_> = (0..5).flat_map(|n| runs(&store.place, &format!("x{n}"))).collect();
    let total = |outcome: &str| -> u64 {
        all.iter().filter(|(found, _)| found == outcome).map(|(_, count)| count).sum()
    };
    let exits = |code: i32| ended.iter().filter(|output| output.exit == Exit::Code(code)).count() as u64;
    assert_eq!((total("ran"), total("contended")), (exits(0), exits(75)));
    assert_eq!(total("ran") + total("contended"), 50);
    assert_nothing_else(&store.place);
}

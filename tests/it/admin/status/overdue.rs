//! `--overdue`: is the job still being done?

use super::{parse, status};
use crate::support::dlock::Dlock;
use crate::support::running::{Exit, Output};
use crate::support::store::Store;
use nix::sys::signal::Signal;
use std::time::Duration;

fn overdue(store: &Store, words: &[&str]) -> Output {
    status(store).arg("--overdue").args(words).output()
}

fn run(store: &Store, name: &str) -> Dlock {
    store.place.bare().args(["run", "--backend", store.url(), name])
}

fn succeed(store: &Store, name: &str) {
    let output = run(store, name).sh("exit 0").output();
    assert_eq!(output.exit, Exit::Code(0), "{output:?}");
}

#[test]
fn contradictions_and_invalid_limits_are_refused() {
    let store = Store::file();
    let limit = "--overdue";
    for (words, message) in [
        (&[limit, "26h"][..], "--overdue needs the locks to check: names, patterns, or '*' for all"),
        (
            &[limit, "26h", "--history", "x"],
            "--overdue and --history contradict each other: give one of them",
        ),
        (&[limit, "26h", "--watch", "x"], "--overdue and --watch contradict each other: give one of them"),
        (&[limit, "26h", "--wide", "x"], "--overdue and --wide contradict each other: give one of them"),
        (
            &[limit, "26h", "--exit-code", "x"],
            "--overdue and --exit-code contradict each other: give one of them",
        ),
        (
            &[limit, "26h", "--json", "--nagios", "x"],
            "--nagios and --json contradict each other: give one of them",
        ),
        (
            &["--nagios", "--prometheus", "x"],
            "--nagios prints what is overdue: did you mean dlock status --nagios --overdue 26h NAME",
        ),
        (
            &["--nagios", "x"],
            "--nagios prints what is overdue: did you mean dlock status --nagios --overdue 26h NAME",
        ),
    ] {
        let output = status(&store).args(words).output();
        let expected = match words.contains(&"--nagios") {
            true => (Exit::Code(3), format!("DLOCK UNKNOWN - {message}\n"), String::new()),
            false => (Exit::Code(64), String::new(), format!("dlock: {message}\n")),
        };
        assert_eq!((output.exit, output.stdout, output.stderr), expected, "{words:?}");
    }
    for (limits, reason) in [
        ("0", "must be longer than zero"),
        ("31d", "31d is longer than 30d: stores forget a success after 31d"),
        ("26h,26h", "the second limit, 1d2h, is not longer than the first, 1d2h"),
        ("26h,", "expected a duration"),
        ("1h,2h,3h", "expected a duration"),
    ] {
        let output = overdue(&store, &[limits, "x"]);
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(64), ""), "{limits}");
        assert!(output.stderr.contains(reason), "{}", output.stderr);
        // A plug-in has no other status for that.
        let output = overdue(&store, &[limits, "--nagios", "x"]);
        assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(3), ""), "{limits}");
        assert!(output.stdout.starts_with("DLOCK UNKNOWN - "), "{}", output.stdout);
        assert!(output.stdout.contains(reason) && output.stdout.lines().count() == 1, "{}", output.stdout);
    }
}

#[test]
fn a_lock_without_a_known_success_is_beyond_all_limits() {
    for store in [Store::file(), Store::redis()] {
        succeed(&store, "done");
        let fine = overdue(&store, &["1h,2h", "done"]);
        assert_eq!(fine.outcome(), (Exit::Code(0), "", ""));
        let never = "never: no success is known\n";
        assert_eq!(overdue(&store, &["1h", "done", "never"]).outcome(), (Exit::Code(1), never, ""));
        assert_eq!(overdue(&store, &["1h,2h", "never", "done"]).outcome(), (Exit::Code(2), never, ""));
        // A pattern is for jobs that have succeeded: others of that name may not be jobs.
        assert_eq!(run(&store, "nope").sh("exit 3").output().exit, Exit::Code(3));
        assert_eq!(overdue(&store, &["1h", "*o*"]).outcome(), (Exit::Code(0), "", ""));
        let unmatched = "no*: no matching lock has a recorded success\n";
        assert_eq!(overdue(&store, &["1h", "no*"]).outcome(), (Exit::Code(1), unmatched, ""));
    }
}

#[test]
fn nagios_reads_one_line_and_programs_an_object() {
    let store = Store::file();
    succeed(&store, "a");
    succeed(&store, "b");
    let fine = overdue(&store, &["1h", "--nagios", "a", "b"]);
    let (text, data) = fine.stdout.split_once(" | ").unwrap();
    assert_eq!(
        (fine.exit, text, fine.stderr.as_str()),
        (Exit::Code(0), format!("DLOCK OK - 2 locks succeeded within 1h on {}", store.url()).as_str(), "")
    );
    assert!(data.starts_with("locks=2 overdue=0 oldest=") && data.ends_with("s;3600;;0\n"), "{data}");
    let critical = overdue(&store, &["1h,2h", "--nagios", "a", "c"]);
    let text =
        format!("DLOCK CRITICAL - c: no success is known on {} | locks=2 overdue=1 oldest=", store.url());
    assert!(critical.stdout.starts_with(&text), "{critical:?}");
    assert_eq!((critical.exit, critical.stderr.as_str()), (Exit::Code(2), ""));
    let json = overdue(&store, &["1h", "--json", "a", "c", "z*"]);
    let seen = parse(&json.stdout);
    assert_eq!(
        (json.exit, seen["version"].as_u64(), &seen["overdue"]),
        (Exit::Code(1), Some(1), &"warning".into())
    );
    let locks = seen["locks"].as_array().unwrap();
    let of =
        |lock: &serde_json::Value| (lock["name"].clone(), lock["overdue"].clone(), lock["age_ms"].is_u64());
    let expected = [("a".into(), "no".into(), true), ("c".into(), "warning".into(), false)];
    assert_eq!(locks.iter().map(of).collect::<Vec<_>>(), expected);
    assert_eq!(locks[0]["last_success"]["host"], dlock::identity::host().as_str());
    assert_eq!(
        (&locks[1]["last_success"], &seen["unmatched"]),
        (&serde_json::Value::Null, &serde_json::json!(["z*"]))
    );
}

#[test]
fn nagios_is_told_of_every_failure_with_status_3() {
    let store = Store::file();
    for (url, expected) in [
        ("redis://127.0.0.1:1", "DLOCK UNKNOWN - redis://127.0.0.1:1/0: "),
        ("redis://h?what=1", "DLOCK UNKNOWN - "),
        ("no-such-alias", "DLOCK UNKNOWN - "),
    ] {
        let status = store.place.bare().args(["status", "-b", url, "--overdue", "26h", "--nagios", "x"]);
        let output = status.output();
        assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(3), ""), "{output:?}");
        assert!(
            output.stdout.starts_with(expected) && output.stdout.lines().count() == 1,
            "{}",
            output.stdout
        );
        let plain = store.place.bare().args(["status", "-b", url, "--overdue", "26h", "x"]).output();
        assert!(
            ![Exit::Code(0), Exit::Code(1), Exit::Code(2), Exit::Code(3)].contains(&plain.exit),
            "{plain:?}"
        );
    }
}

/// As with `--once-per`: a job that was told to end may have left its work unfinished, whatever its status.
#[test]
fn a_run_that_was_told_to_end_has_not_succeeded() {
    for store in [Store::file(), Store::redis()] {
        let mut run =
            run(&store, "x").sh("trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done").spawn();
        run.await_ready();
        run.signal(Signal::SIGTERM);
        assert_eq!(run.wait().exit, Exit::Code(0));
        assert_eq!(overdue(&store, &["1h", "x"]).outcome(), (Exit::Code(1), "x: no success is known\n", ""));
        let seen = parse(&status(&store).args(["--history", "--json", "x"]).output().stdout);
        let record = &seen["locks"][0]["history"][0];
        assert_eq!(
            (&record["outcome"], &record["exit_status"], &record["interrupted"]),
            (&"ran".into(), &0.into(), &true.into())
        );
    }
}

/// The age is that of the beginning, as with `--once-per`: a job that hangs for a day is late.
#[test]
fn the_age_is_counted_from_the_grant() {
    let store = Store::file();
    assert_eq!(run(&store, "x").sh("sleep 1.2").output().exit, Exit::Code(0));
    let json = parse(&overdue(&store, &["1s", "--json", "x"]).stdout);
    let age = Duration::from_millis(json["locks"][0]["age_ms"].as_u64().unwrap());
    assert!(age >= Duration::from_millis(1200), "{age:?}");
}

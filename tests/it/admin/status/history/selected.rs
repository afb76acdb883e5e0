//! What is selected of a history: `--failed`, `--since`, `--until`.

use super::planted::{MINUTE, contended, history, plant, ran};
use super::{assert_latest_first, holding, refused};
use crate::support::running::Exit;
use crate::support::store::Store;
use serde_json::Value;

/// The outcomes that `dlock history` shows, each with its host.
#[track_caller]
fn shown(store: &Store, args: &[&str]) -> Vec<String> {
    let output = history(store).arg("--json").args(args).output();
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
    let seen = super::parse(&output.stdout);
    let records: Vec<&Value> = seen["locks"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|lock| lock["history"].as_array().unwrap())
        .collect();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    records.iter().map(|record| format!("{} {}", text(&record["host"]), text(&record["outcome"]))).collect()
}

/// A job that is started on two hosts.
#[test]
fn the_twin_of_a_run_that_succeeded_did_not_fail() {
    for store in Store::each() {
        // A run that failed, and its twin.
        for (end, has_failed) in [("exit 0", false), ("exit 3", true)] {
            let text = format!("echo $DLOCK_FENCING_TOKEN; echo ready; cat; {end}");
            let mut winner = store.run_with_ttl("30s").stdin(std::process::Stdio::piped()).sh(&text).spawn();
            winner.await_ready();
            refused(&store, || store.run_with_ttl("30s").command(["true"]));
            // Whether it succeeds is not known yet.
            let failed = shown(&store, &["--failed", "x"]);
            assert!(
                !failed.is_empty() && failed.iter().all(|line| line.ends_with(" contended")),
                "{failed:?}"
            );
            drop(winner.take_stdin());
            winner.wait();
            let failed = shown(&store, &["--failed", "x"]);
            assert_eq!(
                failed.iter().any(|line| line.ends_with(" contended")),
                has_failed,
                "{end}: {failed:?}"
            );
            assert_eq!(failed.iter().any(|line| line.ends_with(" ran")), has_failed, "{end}: {failed:?}");
            assert!(shown(&store, &["x"]).iter().any(|line| line.ends_with(" contended")));
        }
    }
}

/// Of several locks, that which another run held.
#[test]
fn the_lock_that_kept_the_twin_out_need_not_be_shown() {
    for store in Store::each() {
        let mut winner = holding(store.run_with_ttl("30s").no_name().name("zz"));
        crate::support::wait::eventually(crate::support::SOON, "a record of an attempt", || {
            let run = store.run_with_ttl("30s").no_name().args(["aa", "zz"]).command(["true"]);
            assert_eq!(run.output().exit, Exit::Code(75));
            (!shown(&store, &["--failed", "aa"]).is_empty()).then_some(())
        });
        drop(winner.take_stdin());
        assert_eq!(winner.wait().exit, Exit::Code(0));
        assert_eq!(shown(&store, &["--failed", "aa"]), [""; 0]);
        assert!(!shown(&store, &["aa"]).is_empty());
    }
}

#[test]
fn a_window_selects_what_overlaps_it() {
    for store in Store::each() {
        // 22:00 to 22:30, 23:00 to 23:20, and 00:30.
        let records = [ran("a", 30, 30, 0), ran("b", 80, 20, 1), contended("c", 150, 0, "b")];
        plant(&store, "x", &records);
        let all = &["c contended", "b ran", "a ran"][..];
        for (args, expected) in [
            (&[][..], all),
            (&["--since", "2026-11-26"], all),
            (&["--since", "2026-11-26 22:30"], all),
            (&["--since", "2026-11-26 22:30:01"], &all[..2]),
            (&["--until", "2026-11-27"], &all[1..]),
            (&["--until", "2026-11-26 23:10"], &all[1..]),
            (&["--until", "2026-11-26 22:00"], &[]),
            (&["--until", "2026-11-26T21:00:01Z"], &all[2..]),
            (&["--since", "2026-11-26T23:10:00+01:00", "--until", "2026-11-26 23:11"], &all[1..2]),
            (&["--failed", "--since", "2026-11-26", "--until", "2026-11-27 00:30"], &all[1..2]),
            (&["--since", "2027-01-01"], &[]),
        ] {
            assert_eq!(shown(&store, &[args, &["x"]].concat()), expected, "{args:?}");
            let other = store.place.bare().args(["status", "--history", "--json", "-b", store.url(), "x"]);
            let other = other.args(args).env("TZ", "Europe/Berlin").output();
            assert_eq!(other.stdout, history(&store).args(["--json", "x"]).args(args).output().stdout);
        }
    }
}

/// Ago, and the last time of day.
#[test]
fn a_window_may_end_now() {
    for store in Store::each() {
        let now = u64::try_from(super::milliseconds()).unwrap();
        let at = |ago: u64| (now - ago * MINUTE, ran("b", 0, 1, 1).1);
        plant(&store, "x", &[at(90 * 24 * 60), at(90), at(30)]);
        for (since, count) in [("1h", 1), ("2h", 2), ("100d", 3)] {
            assert_eq!(shown(&store, &["--since", since, "x"]).len(), count, "{since}");
        }
        assert_eq!(shown(&store, &["--since", "2h", "--until", "1h", "x"]).len(), 1);
        // Both times are a minute ago on a clock, and the first one after it.
        let clock = |ago: u64| {
            let time = jiff::Timestamp::from_millisecond((now - ago * MINUTE) as i64).unwrap();
            time.to_zoned(jiff::tz::TimeZone::get("Europe/Berlin").unwrap()).strftime("%H:%M:%S").to_string()
        };
        assert_eq!(shown(&store, &["--since", &clock(100), "--until", &clock(60), "x"]).len(), 1);
        assert_eq!(shown(&store, &["--since", &clock(100), "x"]).len(), 2);
    }
}

/// Several locks are one list, with a column for their names.
#[test]
fn the_outcomes_of_several_locks_are_one_list() {
    for store in Store::each() {
        plant(&store, "a", &[ran("web-1", 30, 10, 0), ran("web-1", 90, 10, 1)]);
        plant(&store, "b", &[ran("web-2", 60, 10, 0)]);
        let output = history(&store).args(["a", "none", "b"]).output();
        let expected = format!(
            "{}\n\
             BEGAN (UTC+01:00)    NAME  OUTCOME  HOST   PID  USER  COMMAND    WAITED  HELD\n\
             2026-11-26 23:20:00  a     exit 1   web-1  7    root  backup.sh  0ms     10m\n\
             2026-11-26 22:50:00  b     ok       web-2  7    root  backup.sh  0ms     10m\n\
             2026-11-26 22:20:00  a     ok       web-1  7    root  backup.sh  0ms     10m\n\
             none: no runs are recorded\n",
            store.url()
        );
        assert_eq!(output.outcome(), (Exit::Code(0), &*expected, ""));
        let output = history(&store).args(["--failed", "--since", "2026-11-26", "a", "b"]).output();
        let rows: Vec<&str> = output.stdout.lines().skip(2).collect();
        assert!(rows[0].contains("  exit 1  "), "{}", output.stdout);
        assert_eq!(rows[1..], ["b: no matching runs are recorded"], "{}", output.stdout);
        // For programs they are grouped.
        let seen = super::parse(&history(&store).args(["--json", "a", "none", "b"]).output().stdout);
        let names: Vec<&str> =
            seen["locks"].as_array().unwrap().iter().map(|lock| lock["name"].as_str().unwrap()).collect();
        assert_eq!((names, &seen["version"]), (vec!["a", "none", "b"], &1.into()));
        assert_latest_first(seen["locks"][0]["history"].as_array().unwrap());
    }
}

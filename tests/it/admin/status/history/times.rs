//! The times of a history.

use super::{history, milliseconds, refused};
use crate::admin::status::status;
use crate::support::SOON;
use crate::support::running::Exit;
use crate::support::store::Store;
use crate::support::wait::until;
use std::time::Duration;

/// The lines of the history that show runs, the latest first.
fn lines(store: &Store) -> Vec<String> {
    let output = status(store).env("TZ", "UTC").args(["--history", "x"]).output();
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
    output.stdout.lines().skip(3).map(str::to_owned).collect()
}

/// A clock without its date, such as `09:43:51`, or with it, if that is tomorrow's.
#[track_caller]
fn assert_kept_until(why: &str) {
    let until = why.strip_prefix("kept until ").and_then(|why| why.strip_suffix(" by --min-hold"));
    let clock = until.map(|until| until.rsplit(' ').next().unwrap());
    assert!(clock.is_some_and(|clock| clock.len() == 8 && clock.matches(':').count() == 2), "{why}");
}

#[test]
fn a_lock_that_min_hold_keeps_is_explained_as_such() {
    for store in Store::each() {
        // Where only a running dlock keeps the lock, this one does.
        let mut keeper = store.run_with_ttl("30s").args(["--min-hold", "1h"]).sh("true").spawn();
        let shown = || status(&store).args(["--json", "x"]).output().stdout;
        until(SOON, "the end of the command", || shown().contains("\"phase\":\"min_hold\""));
        let ended = milliseconds();
        refused(&store, || store.run_with_ttl("30s").command(["true"]));
        let of = |outcome: &str| {
            history(&store, "x").into_iter().find(|record| record["outcome"] == outcome).expect("a record")
        };
        let kept_ms = of("contended")["kept_ms"].as_u64();
        assert!(kept_ms.is_some_and(|ms| ms > 3_500_000 && ms <= 3_600_000), "{kept_ms:?}");
        let found = lines(&store);
        let (_, why) = found.iter().find_map(|line| line.split_once("held by ")).expect("why");
        let (_, why) = why.rsplit_once("), ").expect("until when");
        assert_kept_until(why);
        // Longer than the release takes.
        std::thread::sleep(Duration::from_secs(1));
        let released = milliseconds();
        let freed = store.place.bare().args(["break", "--yes", "-b", store.url(), "x"]).output();
        assert_eq!(freed.exit, Exit::Code(0), "{}", freed.stderr);
        assert_eq!(keeper.wait().exit, Exit::Code(0));
        // It began before its command ended, however long a running dlock has kept the lock. See `last`.
        let late = milliseconds() - released;
        let began = of("ran")["began_at"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
        assert!(began.as_millisecond() <= ended + late, "{began} {ended} {late}");
        let found = lines(&store);
        let ran = found.iter().find(|line| line.contains("  ok  ")).expect("the run");
        assert_kept_until(&ran[ran.find("kept until").expect("why")..]);
    }
}

/// Others may have written them.
#[test]
fn times_beyond_the_calendar_leave_the_columns_straight() {
    let store = Store::file();
    assert_eq!(store.run_with_ttl("30s").command(["true"]).output().exit, Exit::Code(0));
    let path = store.place.path("locks/x%history.dlock");
    let line = std::fs::read_to_string(&path).unwrap().lines().next().unwrap().to_owned();
    let record: serde_json::Value = serde_json::from_str(&line).unwrap();
    let times = [u64::MAX, 253_402_300_800_000, 253_402_207_200_000, 1_000];
    let dated = times.map(|at| {
        let mut record = record.clone();
        record["at"] = at.into();
        record["kept_ms"] = u64::MAX.into();
        format!("{record}\n")
    });
    std::fs::write(&path, dated.concat()).unwrap();
    let output = status(&store).env("TZ", "UTC").args(["--history", "x"]).output();
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
    let table: Vec<&str> = output.stdout.lines().skip(2).collect();
    let column = table[0].find("OUTCOME").unwrap();
    for (line, began) in table[1..].iter().zip(["after 9999", "after 9999", "9999-12-", "1970-01-01 00:00:0"])
    {
        assert!(line.starts_with(began) && line[column..].starts_with("ok "), "{}", output.stdout);
        assert!(line.ends_with("kept until after 9999 by --min-hold"), "{}", output.stdout);
    }
    assert_eq!(table.len(), 5, "{}", output.stdout);
}

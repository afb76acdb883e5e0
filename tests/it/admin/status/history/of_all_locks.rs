//! The history without a name, and of what did not go well.

use super::{parse, run, status};
use crate::support::running::Exit;
use crate::support::store::Store;
use serde_json::Value;

/// The names and outcomes in a history.
fn shown(store: &Store, args: &[&str]) -> Vec<(String, Vec<String>)> {
    let output = status(store).args(["--json", "--history"]).args(args).output();
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let outcomes = |lock: &Value| {
        lock["history"].as_array().unwrap().iter().map(|record| text(&record["outcome"])).collect()
    };
    let seen = parse(&output.stdout);
    seen["locks"].as_array().unwrap().iter().map(|lock| (text(&lock["name"]), outcomes(lock))).collect()
}

#[test]
fn without_a_name_the_history_of_every_lock_is_shown() {
    for store in Store::each() {
        assert_eq!(shown(&store, &[]), []);
        let nothing = status(&store).arg("--history").output();
        let text = format!("{}\nno runs are recorded\n", store.url());
        assert_eq!(nothing.outcome(), (Exit::Code(0), text.as_str(), ""));
        run(&store, "true");
        let long = "l\u{f6}ng/".repeat(33);
        for name in ["a b", long.as_str()] {
            store.run_with_ttl("30s").no_name().name(name).sh("exit 3").output();
        }
        let ran = || vec!["ran".to_owned()];
        let expected = [("a b".to_owned(), ran()), (long.clone(), ran()), ("x".to_owned(), ran())];
        assert_eq!(shown(&store, &[]), expected);
        assert_eq!(shown(&store, &["a*", "x"]), [expected[2].clone(), expected[0].clone()]);
        assert_eq!(shown(&store, &["--failed"]), expected[..2]);
        assert_eq!(shown(&store, &["--failed", "x"]), [("x".to_owned(), vec![])]);
        let table = status(&store).args(["--history", "--failed"]).env("TZ", "Europe/Berlin").output().stdout;
        let headings: Vec<&str> = table.lines().filter(|line| line.starts_with("BEGAN")).collect();
        assert_eq!(headings.len(), 1, "{table}");
        assert!(headings[0].starts_with("BEGAN (UTC+0") && headings[0].contains("  NAME  "), "{table}");
        let table = status(&store).args(["--history", "--wide", "x"]).env("TZ", "UTC").output().stdout;
        assert!(table.contains("BEGAN (UTC)  ") && table.contains("  FENCING TOKEN"), "{table}");
    }
}

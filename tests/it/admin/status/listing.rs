//! Which locks are listed: all that a dlock uses, or those that were named.

use super::{holding, names, seen, status, the_lock};
use crate::support::running::Exit;
use crate::support::store::Store;

const NAMES: [&str; 8] = ["a", "a*", "a/b", "ab", "abc", "b[1]", "größe", "it\u{2009}is {x}"];

fn held(store: &Store, names: &[&str]) -> crate::support::running::Running {
    let mut run = store.run_with_ttl("30s");
    for name in &names[1..] {
        run = run.arg(name);
    }
    holding(run.name(names[0]))
}

#[test]
fn without_a_name_all_used_locks_are_listed_in_order() {
    for store in Store::each() {
        assert_eq!(names(&store, []), [""; 0]);
        assert_eq!(
            status(&store).output().outcome(),
            (Exit::Code(0), &*format!("{}\nno lock is held or awaited\n", store.url()), "")
        );
        let _run = held(&store, &NAMES);
        assert_eq!(names(&store, []), NAMES);
        let table = status(&store).output().stdout;
        let first = |line: &str| line.split("  ").next().unwrap().to_owned();
        assert_eq!(table.lines().skip(2).map(first).collect::<Vec<_>>(), NAMES);
    }
}

/// The same on every store, whatever order it lists them in.
#[test]
fn numbers_in_names_are_sorted_as_numbers() {
    let sorted = ["job-2", "job-9", "job-10", "job-10b", "job-100", "nightly"];
    for store in Store::each() {
        for name in sorted.iter().rev() {
            assert_eq!(store.run_with_ttl("30s").name(name).command(["true"]).output().exit, Exit::Code(0));
        }
        let recorded = seen(&store, ["--history"]);
        let recorded: Vec<_> =
            recorded["locks"].as_array().unwrap().iter().map(|lock| &lock["name"]).collect();
        assert_eq!(recorded, sorted);
        let _run = held(&store, &["nightly", "job-9", "job-10b", "job-2", "job-100", "job-10"]);
        assert_eq!(names(&store, []), sorted);
        assert_eq!(names(&store, ["job-1*"]), ["job-10", "job-10b", "job-100"]);
        // Names that are given come first, in their order.
        assert_eq!(names(&store, ["job-9", "job-2", "job-10?"]), ["job-9", "job-2", "job-10b", "job-100"]);
    }
}

/// `*` is any text, including slashes, and a backslash takes the next character literally.
#[test]
fn patterns_select_locks() {
    for store in Store::each() {
        let _run = held(&store, &NAMES);
        for (patterns, expected) in [
            (&["a*"][..], &["a", "a*", "a/b", "ab", "abc"][..]),
            (&["a\\*"], &["a*"]),
            (&["a?"], &["a*", "ab"]),
            (&["a[b-d]*"], &["ab", "abc"]),
            (&["*b*"], &["a/b", "ab", "abc", "b[1]"]),
            (&["b\\[1]"], &["b[1]"]),
            (&["gr??e"], &["größe"]),
            (&["*"], &NAMES),
            // Explicit names come first, once, and also if they are free.
            (&["none", "ab", "a?", "ab"], &["none", "ab", "a*"]),
            (&["?"], &["a"]),
            (&["none*"], &[]),
        ] {
            let output = status(&store).arg("--json").args(patterns).output();
            assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""), "{patterns:?}");
            let seen = super::parse(&output.stdout);
            let names: Vec<_> =
                seen["locks"].as_array().unwrap().iter().map(|lock| lock["name"].as_str().unwrap()).collect();
            assert_eq!(names, expected, "{patterns:?}");
        }
        let output = status(&store).arg("none*").output();
        assert_eq!(
            output.outcome(),
            (Exit::Code(0), &*format!("{}\nno lock is held or awaited\n", store.url()), "")
        );
    }
}

#[test]
fn a_free_lock_is_shown_when_it_is_named() {
    for store in Store::each() {
        let free = r#"{"name":"x","state":"free","mode":null,"slots":null,"holders":[],"waiters":[],"freeze":null,"last_success":null}"#;
        let whole = format!("{{\"version\":1,\"backend\":\"{}\",\"locks\":[{free}]}}\n", store.url());
        assert_eq!(status(&store).args(["--json", "x"]).output().outcome(), (Exit::Code(0), &*whole, ""));
        let table = format!("{}\nLOCK  STATE\nx     free\n", store.url());
        assert_eq!(status(&store).arg("x").output().outcome(), (Exit::Code(0), &*table, ""));
        // Status has not made it a used lock either, and left no trace.
        assert_eq!(names(&store, []), [""; 0]);
        assert_eq!(std::fs::read_dir(store.place.locks()).unwrap().count(), 0);
        if !store.url().starts_with("file:") {
            assert_eq!(
                store.space().command(&["KEYS", &format!("*{}*", store.space().prefix())]).texts(),
                [""; 0]
            );
        }
    }
}

/// Also names that a file name cannot represent, and those that a shell or a terminal might misinterpret.
#[test]
fn every_name_is_listed_unchanged() {
    let long = "long/".repeat(40);
    let wide = "\u{1F512}".repeat(50);
    let percent = "%2F".repeat(60);
    let names =
        [" ", "%", "%2F", "*", "..a", "a\\b", "{}", "{a}b", "a}b", "\u{202e}abc", &long, &wide, &percent];
    for store in Store::each() {
        let mut expected = names.to_vec();
        expected.sort_unstable();
        for name in names {
            assert!(name.len() <= 200);
        }
        let _runs: Vec<_> = names.iter().map(|name| holding(store.run_with_ttl("30s").name(name))).collect();
        assert_eq!(super::names(&store, []), expected);
        for name in names {
            let escaped: String = name.chars().flat_map(|c| ['\\', c]).collect();
            let lock = the_lock(&store, ["--", &escaped]);
            assert_eq!((&lock["name"], &lock["state"]), (&name.into(), &"held".into()));
        }
        let table = status(&store).output().stdout;
        assert!(table.contains("\\u{202e}abc") && !table.contains('\u{202e}'), "{table}");
    }
}

/// F49: lock names of one application do not affect another.
#[test]
fn prefixes_of_one_store_are_separate() {
    let (one, other) = (Store::redis(), Store::redis());
    let _one = holding(one.run_with_ttl("30s").name("one"));
    let _waiter = crate::admin::status::waiting(one.run_with_ttl("30s").name("one"));
    let _other = holding(other.run_with_ttl("30s").name("other"));
    assert_eq!(names(&one, []), ["one"]);
    assert_eq!(names(&other, ["*"]), ["other"]);
    assert_eq!(the_lock(&other, ["one"])["state"], "free");
    // Without a prefix they are all there, each under its whole key.
    let all = Store::redis();
    let url = format!("redis://127.0.0.1:{}/0?prefix=", one.space().port());
    let output = all
        .place
        .bare()
        .args(["status", "--json", "-b", &url])
        .args([one.space().key("*"), other.space().key("*")])
        .output();
    let seen = super::parse(&output.stdout);
    let keys: Vec<_> = seen["locks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|lock| lock["name"].as_str().unwrap().to_owned())
        .collect();
    let mut expected = [one.space().key("one"), other.space().key("other")];
    // Numbers in names are sorted as numbers.
    expected.sort_by_key(|key| {
        key.matches(|char: char| char.is_ascii_digit()).collect::<String>().parse::<u32>().unwrap()
    });
    assert_eq!(keys, expected);
}

#[test]
fn other_files_in_the_lock_directory_are_ignored() {
    let store = Store::file();
    let _run = holding(store.run_with_ttl("30s"));
    for file in ["README", "y.lock", ".dlock", "%zz.dlock", "%sha256-00.dlock", "a%2f.dlock", "z.dlock.tmp"] {
        store.place.write(&format!("locks/{file}"), "{}\n");
    }
    std::fs::create_dir(store.place.path("locks/dir.dlock")).unwrap();
    let seen = seen(&store, []);
    let held: Vec<_> = seen["locks"].as_array().unwrap().iter().map(|lock| lock["name"].clone()).collect();
    // A directory at the path of a lock file blocks that lock.
    assert_eq!(held, ["dir", "x"], "{seen}");
}

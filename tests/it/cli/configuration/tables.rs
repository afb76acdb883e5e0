//! Backends by name, and defaults of locks by name and by pattern.

use super::{counts, printed, refused, run, show};
use crate::support::place::Place;
use crate::support::running::Exit;

#[test]
fn an_alias_can_be_named_everywhere() {
    let place = Place::new();
    let table = format!("[backends.prod-1]\nurl = \"{}\"\nsuffix = \".lk\"\n", place.url());
    let ran = (Exit::Code(0), "ran\n", "");
    let plain = || run(&place, &table).command(["echo", "ran"]);
    assert_eq!(plain().backend("prod-1").output().outcome(), ran);
    assert!(place.path("locks/x.lk").exists());
    assert_eq!(plain().env("DLOCK_BACKEND", "prod-1").output().outcome(), ran);
    let top = format!("backend = \"prod-1\"\n{table}");
    assert_eq!(run(&place, &top).command(["echo", "ran"]).output().outcome(), ran);
    let of_lock = format!("backend = \"file:///none\"\n{table}[locks.x]\nbackend = \"prod-1\"\n");
    assert_eq!(run(&place, &of_lock).command(["echo", "ran"]).output().outcome(), ran);
}

#[test]
fn every_command_reads_the_configuration() {
    let place = Place::new();
    let file =
        super::write(&place, "c.toml", format!("backend = \"p\"\n[backends.p]\nurl = \"{}\"\n", place.url()));
    for arguments in [&["status"][..], &["break", "--yes", "x"], &["doctor"]] {
        let output = place.bare().args(arguments).arg("--config").arg(&file).output();
        assert_eq!(output.exit, Exit::Code(0), "{arguments:?}: {output:?}");
        let output = place.bare().args(arguments).env("DLOCK_CONFIG", "/no/such/file").output();
        assert_eq!(refused(&place, &output, 78), "DLOCK_CONFIG: /no/such/file: no such file");
        let output =
            place.bare().args(arguments).arg("--config").arg(super::write(&place, "c.toml", "")).output();
        assert!(refused(&place, &output, 78).starts_with("no backend configured: "), "{arguments:?}");
        super::write(&place, "c.toml", format!("backend = \"{}\"\n", place.url()));
    }
}

#[test]
fn an_unknown_alias_is_reported_with_its_position_and_the_known_ones() {
    let place = Place::new();
    let table = "[backends.prod]\nurl = \"file:///a\"\n[backends.test]\nurl = \"file:///b\"\n";
    let known = "no backend of this name: known are prod, test; a URL has a colon, such as file:///srv/locks";
    let top = format!("backend = \"prdo\"\n{table}");
    let of_lock = format!("{table}[locks.other]\nttl = \"1m\"\nbackend = \"prdo\"\n");
    for (run, place_named) in [
        (run(&place, table).backend("prdo"), "--backend"),
        (run(&place, table).env("DLOCK_BACKEND", "prdo"), "DLOCK_BACKEND"),
    ] {
        let output = run.command(["touch", "t"]).output();
        assert_eq!(refused(&place, &output, 78), format!("{place_named}: {known}"));
    }
    for (text, place_named) in [(top, "FILE:1:11: backend"), (of_lock, "FILE:7:11: backend")] {
        let output = run(&place, &text).command(["touch", "t"]).output();
        assert_eq!(refused(&place, &output, 78), format!("{place_named}: {known}"));
    }
    let output = run(&place, "").backend("prod").command(["touch", "t"]).output();
    let line = "--backend: no backend of this name: no configuration file defines any; a URL has a colon, such as \
                file:///srv/locks";
    assert_eq!(refused(&place, &output, 78), line);
}

#[test]
fn an_exact_name_overrides_patterns_and_the_longest_pattern_the_others() {
    let place = Place::new();
    let text = "[locks.\"*\"]\nnote = \"all\"\nttl = \"9s\"\n[locks.\"nightly-*\"]\nnote = \"nightly\"\n\
                [locks.\"nightly-db-[0-9]\"]\nnote = \"db\"\n[locks.nightly-db]\nnote = \"exact\"\n\
                [locks.\"a/?\"]\nnote = \"slash\"\n[locks.'lit\\*']\nnote = \"star\"\n[locks.\"größe-*\"]\nnote = \"g\"\n";
    for (name, note) in [
        ("x", "all"),
        ("nightly-x", "nightly"),
        ("nightly-a/b", "nightly"),
        ("nightly-db-7", "db"),
        ("nightly-db-77", "nightly"),
        ("nightly-db", "exact"),
        ("a/b", "slash"),
        ("lit*", "star"),
        ("lite", "all"),
        ("größe-1", "g"),
    ] {
        assert_eq!(counts(&place, text, name, "note"), note, "{name}");
    }
    // What the longest does not set comes from the next.
    for name in ["x", "nightly-x", "nightly-db-7", "nightly-db"] {
        assert_eq!(counts(&place, text, name, "ttl"), "9s", "{name}");
    }
}

/// A table for one name, added for its wait, must not take the backend of the pattern away.
#[test]
fn a_table_for_one_name_leaves_the_other_keys_of_a_pattern_in_effect() {
    let place = Place::new();
    let text = format!(
        "backend = \"file:///nowhere\"\n[locks.\"nightly-*\"]\nbackend = \"{}\"\nnote = \"all\"\n[locks.nightly-db]\nwait = \"1s\"\n",
        place.url()
    );
    let output = run(&place, &text).name("nightly-db").command(["echo", "ran"]).output();
    assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
    assert!(place.lock_file("nightly-db").exists());
    let shown = printed(show(&place, &text).arg("nightly-db")).replace(&place.arg("c.toml"), "FILE");
    let line = |key: &str| {
        let found = shown.lines().find(|line| line.starts_with(key)).unwrap_or_else(|| panic!("{shown}"));
        found.split_once('#').unwrap().1.trim().to_owned()
    };
    assert_eq!(line("[locks."), "by [locks.\"nightly-db\"], FILE:5; [locks.\"nightly-*\"], FILE:2");
    assert_eq!(line("backend"), "FILE:3, [locks.\"nightly-*\"]");
    assert_eq!(line("wait"), "FILE:6, [locks.\"nightly-db\"]");
    assert_eq!(line("ttl"), "default");
    let object = printed(show(&place, &text).args(["--json", "nightly-db"]));
    let object: serde_json::Value = serde_json::from_str(&object).unwrap();
    assert_eq!(object["locks"]["nightly-db"]["note"]["table"], "nightly-*");
    // The same store for every command.
    let status = place.bare().args(["status", "--config", "c.toml", "nightly-db"]).output();
    assert!(status.stdout.starts_with(&format!("{}\n", place.url())), "{status:?}");
}

#[test]
fn two_equally_long_patterns_that_set_the_same_key_are_refused() {
    let place = Place::new();
    let text = format!(
        "backend = \"{}\"\n[locks.\"a*\"]\nttl = \"1m\"\n[locks.\"*b\"]\nttl = \"1m\"\n[locks.\"?b\"]\nnote = \"n\"\n[locks.\"*\"]\nttl = \"2m\"\n",
        place.url()
    );
    let output = run(&place, &text).name("ab").command(["touch", "t"]).output();
    let line = "FILE:3:7: ttl: NAME 'ab' matches [locks.\"a*\"] and [locks.\"*b\"] (FILE:4:8) equally well, and both set \
                this key: make one of the patterns longer, or set ttl in a table for this name";
    assert_eq!(refused(&place, &output, 78), line);
    for name in ["ac", "cb", "c"] {
        let output = run(&place, &text).name(name).command(["echo", "ran"]).output();
        assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""), "{name}");
    }
    let output = run(&place, &format!("{text}[locks.ab]\n")).name("ab").command(["touch", "t"]).output();
    assert_eq!(refused(&place, &output, 78), line);
    for (decided, note) in [("[locks.ab]\nttl = \"3m\"\n", "n"), ("[locks.'a[b]']\nttl = \"3m\"\n", "n")] {
        let decided = format!("{text}{decided}");
        let output = run(&place, &decided).name("ab").command(["echo", "ran"]).output();
        assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
        assert_eq!(counts(&place, &decided, "ab", "note"), note);
    }
}

#[test]
fn a_setting_of_one_table_applies_to_all_locks_of_a_run() {
    let place = Place::new();
    let text = format!(
        "backend = \"{}\"\n[locks.b]\nconflict_exit_code = 7\n[locks.c]\nquiet = true\n",
        place.url()
    );
    let mut holder = place.run().name("a").sh("echo ready; exec sleep 1000").spawn();
    holder.await_ready();
    let output = run(&place, &text).args(["a", "b"]).name("c").command(["true"]).output();
    assert_eq!(output.outcome(), (Exit::Code(7), "", ""));
}

/// It would have several holders, or a command that runs on without it, although its own table does not say so.
#[test]
fn a_setting_that_protects_less_must_be_that_of_all_locks_of_a_run() {
    let place = Place::new();
    for (setting, option, why) in [
        (
            "slots = 3",
            "--exclusive",
            "slots: a lock that is taken together with this one has one holder: use --slots or --exclusive",
        ),
        (
            "on_lost = \"warn\"",
            "--on-lost=kill",
            "on_lost: a lock that is taken together with this one has a command that is stopped with it: use --on-lost",
        ),
    ] {
        let text = format!("backend = \"{}\"\n[locks.b]\n{setting}\n", place.url());
        let both = || run(&place, &text).arg("a").name("b").command(["true"]);
        let output = both().output();
        let line = refused(&place, &output, 78);
        assert!(line.starts_with("FILE:3:") && line.ends_with(why), "{line}");
        assert_eq!(both().arg(option).output().outcome(), (Exit::Code(0), "", ""));
        let text = format!("{text}[locks.a]\n{setting}\n");
        let both = run(&place, &text).arg("a").name("b").command(["true"]);
        assert_eq!(both.output().outcome(), (Exit::Code(0), "", ""), "they agree");
    }
}

#[test]
fn conflicting_tables_of_several_locks_are_refused() {
    let place = Place::new();
    let text = |second: &str| {
        format!("backend = \"{}\"\n[locks.a]\nttl = \"1m\"\n[locks.b]\nttl = \"{second}\"\n", place.url())
    };
    let both = |text: &str| run(&place, text).arg("a").name("b").command(["touch", "t"]);
    let output = both(&text("2m")).output();
    let line = "FILE:3:7: ttl: FILE:5 sets a different value for another lock of this run: use --ttl";
    assert_eq!(refused(&place, &output, 78), line);
    assert_eq!(both(&text("60")).output().outcome(), (Exit::Code(0), "", ""), "they agree");
    assert_eq!(both(&text("2m")).args(["--ttl", "5s"]).output().outcome(), (Exit::Code(0), "", ""));
    assert_eq!(both(&text("2m")).env("DLOCK_TTL", "5s").output().outcome(), (Exit::Code(0), "", ""));
    let backends = "[locks.a]\nbackend = \"file:///a\"\n[locks.b]\nbackend = \"file:///b\"\n";
    std::fs::remove_file(place.path("t")).unwrap();
    let line = "NAME 'a' is on file:///a (FILE:2) and NAME 'b' is on file:///b (FILE:4): a run is on one store: give \
                --backend, or nest one dlock run in the other";
    assert_eq!(refused(&place, &both(backends).output(), 78), line);
}

/// A name is shown unchanged, except that control characters are escaped.
#[test]
fn hostile_text_in_a_file_is_escaped() {
    let place = Place::new();
    let text = "[locks.x]\nnote = \"\\u001b]52;c\\u0007 \\u202e \\\" \\\\ ü\"\n[locks.\"\\u001b*\"]\n";
    let shown = printed(show(&place, text).arg("x"));
    assert!(shown.contains(r#"= "\U0000001B]52;c\U00000007 \U0000202E \" \\ ü""#), "{shown}");
    let shown = printed(show(&place, text));
    assert!(!shown.contains('\u{1b}'), "{shown}");
}

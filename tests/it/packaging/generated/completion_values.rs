//! The requests of the completion scripts to dlock.

use std::process::Stdio;

use crate::support::place::Place;
use crate::support::running::{Exit, Output, Running};
use crate::support::store::Store;

/// The completions of the text before the cursor.
fn ask(place: &Place, words: &[&str]) -> Output {
    let (current, before) = words.split_last().unwrap();
    place.bare().args(["__complete", &format!("={current}")]).args(before).output()
}

#[test]
fn a_reply_is_a_kind_and_values_with_descriptions() {
    let place = Place::new();
    let orphans = "values\nleave\tLeave them running without the lock\nwait\tHold the lock until they have ended\n\
                   kill\tKill them, then release the lock\n";
    for (words, answer) in [
        (&["dlock", "run", "--orphans", ""][..], orphans),
        (&["dlock", "run", "x", "--", ""], "command 4\n"),
        (&["dlock", "man", "co"], "values\ncompletions\nconfig\nconfig.5\nconsul\n"),
        (&["dlock", "nonsense", ""], "values\n"),
        (&["dlock", "run", "--wait", ""], "values\nforever\n"),
    ] {
        assert_eq!(ask(&place, words).outcome(), (Exit::Code(0), answer, ""), "{words:?}");
    }
}

/// What the manual lists of each store is offered: those that are not given yet, and the words that one may have.
#[test]
fn the_options_of_a_url_are_offered() {
    let place = Place::new();
    let offered = |url: &str| ask(&place, &["dlock", "status", "-b", url]).stdout;
    let prefix = "prefix=\tThe prefix of the keys. If it is empty, the name is the exact key.\n";
    assert_eq!(offered("redis://h/?pre"), format!("values\nredis://h/?{prefix}"));
    assert_eq!(offered("REDIS://h/?db=1&pre"), format!("values\nREDIS://h/?db=1&{prefix}"));
    assert_eq!(offered("redis://h/?prefix=a&pre"), "values\n");
    assert_eq!(
        offered("redis://h/?protocol=r"),
        "values\nredis://h/?protocol=resp3\nredis://h/?protocol=resp2\n"
    );
    assert_eq!(
        offered("redis://h/?a&insecure="),
        "values\nredis://h/?a&insecure=yes\nredis://h/?a&insecure=no\n"
    );
    // By either name, it is the same option.
    assert_eq!(offered("postgres://h/?sslcert=/a&cert"), "values\n");
    for none in
        ["redis://h/?prefix=", "redis://h/?nonsense", "nonsense://h/?", "?", "redis://h/?sentinel_user"]
    {
        assert_eq!(offered(none), "values\n", "{none}");
    }
    let word = ask(&place, &["dlock", "status", "--backend=dynamodb://t?reci"]).stdout;
    let meaning = "lock-client for the locks of AWS's lock client for Java.";
    assert_eq!(word, format!("values\n--backend=dynamodb://t?recipe=\t{meaning}\n"));
}

/// A lock that has ended cannot be broken; it can be run again.
#[test]
fn break_is_offered_the_locks_that_are_held() {
    for store in crate::support::store::Store::each() {
        let ended = store.run().command(["true"]).output();
        assert_eq!(ended.exit, Exit::Code(0), "{}", ended.stderr);
        let mut held = store.run().no_name().name("held").stdin(std::process::Stdio::piped());
        held = held.sh("echo ready; exec cat");
        let mut held = held.spawn();
        held.await_ready();
        let offered = |command: &str| {
            let words = ["dlock", command, "-b", store.url(), ""];
            ask(&store.place, &words).stdout
        };
        assert_eq!(offered("break"), "values\nheld\tlock\n");
        // A store may list the others too.
        assert!(offered("run").contains("held\tlock\n"));
        drop(held.take_stdin());
        assert_eq!(held.wait().exit, Exit::Code(0));
    }
}

#[test]
fn thaw_is_offered_the_locks_that_are_frozen() {
    for store in Store::each() {
        let _held = hold(&store, "held");
        let freeze = store.place.bare().args(["freeze", "-b", store.url(), "--for", "1h", "frozen"]).output();
        assert_eq!(freeze.exit, Exit::Code(0), "{freeze:?}");
        let offered = |command: &str| ask(&store.place, &["dlock", command, "-b", store.url(), ""]).stdout;
        assert_eq!(offered("thaw"), "values\nfrozen\tlock\n");
        assert_eq!(offered("break"), "values\nfrozen\tlock\nheld\tlock\n");
    }
}

/// Where the store lists only what is held or awaited, the names of the history are found all the same.
#[test]
fn status_history_is_offered_the_locks_with_a_history() {
    for store in Store::each() {
        let ended = store.run().no_name().name("ended").command(["true"]).output();
        assert_eq!(ended.exit, Exit::Code(0), "{}", ended.stderr);
        let _held = hold(&store, "held");
        for words in [
            &["dlock", "status", "--history", "-b", store.url(), "e"][..],
            &["dlock", "-b", store.url(), "status", "--failed", "--history", "e"],
            &["dlock", "history", "-b", store.url(), "--since", "22:00", "e"],
            &["dlock", "-b", store.url(), "history", "--timeline", "e"],
        ] {
            assert_eq!(ask(&store.place, words).stdout, "values\nended\tlock\n", "{words:?}");
        }
    }
}

/// A name with a comma can only be given in a pool.
#[test]
fn any_is_offered_pools_and_lists_of_locks() {
    for store in Store::each() {
        let _holders = ["phone-1", "phone-2", "a,b"].map(|name| hold(&store, name));
        let text = "[pools.phones]\nnames = [\"phone-1\", \"phone-2\"]\n[pools.ports]\nnames = [\"a,b\"]\n";
        let config = crate::cli::configuration::write(&store.place, "c.toml", text);
        let config = config.to_str().unwrap();
        let offered = |words: &[&str]| {
            let words = [&["dlock", "run", "-b", store.url(), "--config", config][..], words].concat();
            ask(&store.place, &words).stdout
        };
        let (one, two) = ("phone-1\tlock\n", "phone-2\tlock\n");
        assert_eq!(offered(&["--any", "p"]), format!("values\nphones\tpool\nports\tpool\n{one}{two}"));
        assert_eq!(offered(&["--any", "phone-1,"]), format!("values\nphone-1,{two}"));
        assert_eq!(offered(&["--any=phone-2,ph"]), format!("values\n--any=phone-2,{one}"));
        assert_eq!(offered(&["--any", "phone-1,phone-2,"]), "values\n");
    }
}

/// Messages would disturb the command line.
#[test]
fn an_unreachable_backend_yields_no_values() {
    let place = Place::new();
    for backend in ["nonsense:", "redis://127.0.0.1:1", "file:///no/such/directory", "redis://[", "\u{1b}"] {
        let words = ["dlock", "run", "-b", backend, ""];
        assert_eq!(ask(&place, &words).outcome(), (Exit::Code(0), "values\n", ""), "{backend}");
    }
    let output = place.bare().arg("__complete").output();
    assert_eq!(output.outcome(), (Exit::Code(0), "values\n", ""));
    let output = place.bare().args(["__complete", "x"]).env("DLOCK_CONFIG", "/nowhere").output();
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
}

/// A server that accepts connections and never replies is not waited for.
#[test]
fn a_silent_store_does_not_delay_completion() {
    let place = Place::new();
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", server.local_addr().unwrap());
    let output = ask(&place, &["dlock", "run", "-b", &url, "--connect-timeout", "1h", ""]);
    assert_eq!(output.outcome(), (Exit::Code(0), "values\n", ""));
}

fn hold(store: &Store, name: &str) -> Running {
    let mut run =
        store.run_with_ttl("30s").name(name).stdin(Stdio::piped()).sh("echo ready; exec cat").spawn();
    run.await_ready();
    run
}

#[test]
fn lock_names_come_from_the_given_backend() {
    for store in Store::each() {
        let _holders = ["nightly", "night shift", "team:a/b"].map(|name| hold(&store, name));
        let url = store.url();
        let elsewhere = Place::new();
        for words in [
            &["dlock", "run", "-b", url, ""][..],
            &["dlock", "run", "--wait", "5", "--backend", url, "-q", ""],
            &["dlock", "run", &format!("--backend={url}"), ""],
            &["dlock", "run", &format!("-qb{url}"), ""],
        ] {
            let answer = "values\nnight shift\tlock\nnightly\tlock\nteam:a/b\tlock\n";
            assert_eq!(ask(&elsewhere, words).outcome(), (Exit::Code(0), answer, ""), "{words:?}");
        }
        for (words, answer) in [
            (&["dlock", "run", "nightl"][..], "values\nnightly\tlock\n"),
            (&["dlock", "run", "nightly", "night"], "values\nnight shift\tlock\n"),
            (&["dlock", "run", "nothing"], "values\n"),
        ] {
            let (current, before) = words.split_last().unwrap();
            let question = elsewhere.bare().args(["__complete", &format!("={current}")]).args(before);
            let output = question.env("DLOCK_BACKEND", url).output();
            assert_eq!(output.outcome(), (Exit::Code(0), answer, ""), "{words:?}");
        }
        let none = ask(&elsewhere, &["dlock", "run", "-b", &elsewhere.url(), ""]);
        assert_eq!(none.outcome(), (Exit::Code(0), "values\n", ""));
    }
}

/// Where a name may be a pattern, or may not.
#[test]
fn the_special_characters_of_a_pattern_are_escaped() {
    let store = Store::file();
    let _holders = ["a[b", "back\\slash", "glob*", "what?"].map(|name| hold(&store, name));
    let raw = "values\na[b\tlock\nback\\slash\tlock\nglob*\tlock\nwhat?\tlock\n";
    let escaped = "values\na\\[b\tlock\nback\\\\slash\tlock\nglob\\*\tlock\nwhat\\?\tlock\n";
    for (command, answer) in [
        ("run", raw),
        ("release", raw),
        ("break", escaped),
        ("freeze", escaped),
        ("history", "values\n"),
        ("status", escaped),
        ("thaw", "values\n"),
    ] {
        let words = ["dlock", command, "-b", store.url(), ""];
        assert_eq!(ask(&store.place, &words).outcome(), (Exit::Code(0), answer, ""), "{command}");
    }
    // They mean that lock, and no other.
    for name in ["a\\[b", "back\\\\slash", "glob\\*", "what\\?"] {
        let line = ["dlock", "status", "-b", store.url(), name, ""];
        assert_eq!(ask(&store.place, &line).stdout.lines().count(), 4, "{name}");
        let shown = store.place.bare().args(["status", "--exit-code", "-b", store.url(), name]).output();
        assert_eq!(
            (shown.exit, shown.stdout.lines().count()),
            (Exit::Code(75), 3),
            "{name}: {}",
            shown.stdout
        );
    }
}

#[test]
fn every_position_on_a_line_has_its_completions() {
    let store = Store::file();
    let _holders = ["nightly", "night shift"].map(|name| hold(&store, name));
    let complete = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let (current, before) = words.split_last().unwrap();
        let question = store.place.bare().args(["__complete", &format!("={current}")]).args(before);
        question.env("DLOCK_BACKEND", store.url()).output().stdout
    };
    let offered = |line: &str| -> Vec<String> {
        let reply = complete(line);
        let values = reply.strip_prefix("values\n").unwrap_or_else(|| panic!("{line}: {reply}"));
        values.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect()
    };
    for (line, expected) in [
        ("dlock ru", &["run"][..]),
        ("dlock run ", &["night shift", "nightly"]),
        ("dlock run nightl", &["nightly"]),
        ("dlock run nightly ", &["--", "night shift"]),
        ("dlock run -n nightly ", &["--", "night shift"]),
        ("dlock run --wait 5 nightl", &["nightly"]),
        ("dlock run -nw 5 nightl", &["nightly"]),
        ("dlock run --wait=5 nightl", &["nightly"]),
        ("dlock run --wait ", &["forever"]),
        ("dlock run -w fo", &["forever"]),
        ("dlock run --orphans ", &["leave", "wait", "kill"]),
        ("dlock run --orphans=w", &["--orphans=wait"]),
        ("dlock run --orp", &["--orphans"]),
        ("dlock run --orphans wait --orp", &[]),
        ("dlock run -v --verb", &["--verbose"]),
        ("dlock run --no", &["--no-wait", "--nonblock", "--note"]),
        ("dlock run --ttl ", &[]),
        ("dlock run -c ", &[]),
        ("dlock run --unknown=", &[]),
        ("dlock status --watch ni", &["night shift", "nightly"]),
        ("dlock status -- nightly ni", &["night shift"]),
        ("dlock status -- --his", &[]),
        ("dlock hi", &["history"]),
        ("dlock help hi", &["history"]),
        ("dlock history --ti", &["--timeline"]),
        ("dlock history --timeline --since ", &[]),
        ("dlock history --until=", &[]),
        ("dlock status --history --fa", &["--failed"]),
        ("dlock -b file:/ ru", &["run"]),
        ("dlock -q --backend file:/ status --wat", &["--watch"]),
        ("dlock --log-f", &["--log-format"]),
        ("dlock --log-format te", &["text"]),
        ("dlock -q run --qui", &[]),
        ("dlock hel", &["help"]),
        ("dlock help sta", &["status"]),
        ("dlock help red", &["redis"]),
        ("dlock help config sh", &["show"]),
        ("dlock run --stop-signal US", &["USR1", "USR2"]),
        ("dlock run --stop-signal=TE", &["--stop-signal=TERM"]),
        ("dlock run --stop-signal SIGT", &["SIGTRAP", "SIGTERM", "SIGTSTP", "SIGTTIN", "SIGTTOU"]),
        ("dlock run --stop-signal K", &[]),
        ("dlock doctor --fencing-floor 7 ni", &["night shift", "nightly"]),
        ("dlock doctor --fencing-floor=7 ", &["night shift", "nightly"]),
        ("dlock doctor --fencing-floor ", &[]),
        ("dlock doctor ", &[]),
        ("dlock completions z", &["zsh"]),
        ("dlock completions zsh ", &[]),
        ("dlock nonsense ", &[]),
    ] {
        assert_eq!(offered(line), expected, "{line}");
    }
    assert!(offered("dlock run -").contains(&"-c".to_owned()));
    assert!(!offered("dlock run -").contains(&"--".to_owned()));
    assert!(offered("dlock run nightly -").contains(&"--".to_owned()));
    assert!(offered("dlock run -b ").iter().all(|url| url.contains(':')));
    assert_eq!(complete("dlock run nightly -- rsync --orphans "), "command 4\n");
    assert_eq!(complete("dlock man -- redi"), "values\nredis\n");
}

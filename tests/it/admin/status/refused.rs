//! Exit statuses and messages: for command lines, for stores, and for programs.

mod on_redis;

use super::{holding, status};
use crate::support::pty::Terminal;
use crate::support::running::Exit;
use crate::support::store::Store;
use std::process::{Command, Stdio};

#[test]
fn contradictions_and_invalid_names_are_refused_before_the_store_is_queried() {
    let store = Store::file();
    let long = "x".repeat(201);
    let too_long =
        format!("NAME '{}': a lock name may have at most 200 bytes, this one has 201", "x".repeat(40));
    for (args, message) in [
        (&["--failed", "x"][..], "--failed selects outcomes: did you mean dlock history --failed"),
        (&["--since", "1h", "x"], "--since selects outcomes: did you mean dlock history --since"),
        (&["--until", "1h"], "--until selects outcomes: did you mean dlock history --until"),
        (&["--timeline"], "--timeline selects outcomes: did you mean dlock history --timeline"),
        (&["--watch", "--history", "x"], "--watch and --history contradict each other: give one of them"),
        (&["--watch", "--exit-code", "x"], "--watch and --exit-code contradict each other: give one of them"),
        (
            &["--history", "--exit-code", "x"],
            "--history and --exit-code contradict each other: give one of them",
        ),
        (&["--watch=99ms"], "--watch: 99ms is too short, at least 100ms"),
        (&["--watch=0"], "--watch: 0ms is too short, at least 100ms"),
        (&[""], "NAME '': a lock name may not be empty"),
        (&["."], "NAME '.': '.' and '..' are not lock names"),
        (&["a\nb"], "NAME 'a\\u{a}b': a lock name may not contain control characters"),
        (&[&long], &too_long),
    ] {
        let url = "redis://127.0.0.1:1";
        let output = store.place.bare().args(["status", "-q", "-b", url]).args(args).output();
        assert_eq!(output.outcome(), (Exit::Code(64), "", &*format!("dlock: {message}\n")), "{args:?}");
    }
    for args in [&["--watch=1M"][..], &["--watch="], &["--what"], &["--json=1"], &["--connect-timeout", "0"]]
    {
        let output = status(&store).args(args).output();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(64), ""), "{args:?}");
        assert_eq!(
            (output.stderr.lines().count(), output.stderr.contains("dlock: ")),
            (1, true),
            "{}",
            output.stderr
        );
    }
    use std::os::unix::ffi::OsStrExt;
    let output = status(&store).arg(std::ffi::OsStr::from_bytes(b"a\xff")).output();
    assert_eq!(output.exit, Exit::Code(64));
}

/// The same for both commands.
#[test]
fn contradictions_and_bad_times_of_a_history_are_refused_before_the_store_is_queried() {
    let store = Store::file();
    let bad = |flag: &str, value: &str| {
        format!(
            "invalid value '{value}' for '{flag} <TIME>': expected a time like 12h (ago), 22:00, 2026-11-26, \
             '2026-11-26 22:00' or 2026-11-26T22:00:00Z"
        )
    };
    let between = |since: &str, until: &str| {
        format!("--since {since} is not before --until {until}: nothing lies between them")
    };
    for (args, message) in [
        (
            &["--timeline", "--json"][..],
            "--timeline and --json contradict each other: give one of them".to_owned(),
        ),
        (
            &["--timeline", "--wide", "x"],
            "--timeline and --wide contradict each other: give one of them".to_owned(),
        ),
        (&["--since", "yesterday"], bad("--since", "yesterday")),
        (&["--since", "25:00"], bad("--since", "25:00")),
        (&["--since", "-1h"], bad("--since", "-1h")),
        (&["--since", " "], bad("--since", " ")),
        (&["--until", "2026-02-30"], bad("--until", "2026-02-30")),
        (&["--until", "26.11.2026", "x"], bad("--until", "26.11.2026")),
        (
            &["--since", "2026-11-27", "--until", "2026-11-26"],
            between("2026-11-27 00:00:00", "2026-11-26 00:00:00"),
        ),
        (
            &["--until", "2026-11-26T22:00:00Z", "--since", "2026-11-26 23:00"],
            between("2026-11-26 23:00:00", "2026-11-26 23:00:00"),
        ),
    ] {
        for command in [&["history"][..], &["status", "--history"]] {
            let dlock = store.place.bare().args(command).args(["-q", "-b", "redis://127.0.0.1:1"]);
            let output = dlock.args(args).env("TZ", "Europe/Berlin").output();
            assert_eq!(output.outcome(), (Exit::Code(64), "", &*format!("dlock: {message}\n")), "{args:?}");
        }
    }
    let output = store.place.bare().args(["history", "--since", "1h", "--until", "2h"]).output();
    assert!(output.stderr.ends_with(": nothing lies between them\n"), "{}", output.stderr);
    for args in [&["--watch"][..], &["--exit-code"], &["--history"]] {
        assert_eq!(store.place.bare().arg("history").args(args).output().exit, Exit::Code(64), "{args:?}");
    }
}

#[test]
fn an_invalid_backend_is_an_error_of_the_configuration() {
    let store = Store::file();
    for (url, json) in [("ftp://x", false), ("redis://h?what=1", false), ("no-such-alias", true)] {
        let run =
            store.place.bare().args(["status", "-b", url]).args(if json { &["--json"][..] } else { &[] });
        let output = run.output();
        assert_eq!(
            (output.exit, output.stdout.as_str(), output.stderr.lines().count()),
            (Exit::Code(78), "", 1),
            "{}",
            output.stderr
        );
    }
    let output = store.place.bare().arg("status").env("DLOCK_BACKEND", "ftp://x").output();
    assert_eq!(
        (output.exit, output.stderr.starts_with("dlock: DLOCK_BACKEND: ")),
        (Exit::Code(78), true),
        "{}",
        output.stderr
    );
}

/// Without a backend it names the one it uses, in the first line and as a notice.
#[test]
fn the_default_backend_is_named() {
    let store = Store::file();
    let default = if super::user() == "root" {
        "file:///var/lib/dlock".to_owned()
    } else {
        format!("file://{}/.local/state/dlock", store.place.home().display())
    };
    let output = store.place.bare().args(["status", "x*"]).output();
    let notice = format!(
        "dlock: no backend configured: locking for user {} on this host only ({default})\n",
        super::user()
    );
    assert_eq!(
        output.outcome(),
        (Exit::Code(0), &*format!("{default}\nno lock is held or awaited\n"), &*notice)
    );
    let output = store.place.bare().args(["status", "-q", "x*"]).output();
    assert_eq!(output.outcome(), (Exit::Code(0), &*format!("{default}\nno lock is held or awaited\n"), ""));
}

#[test]
fn a_missing_directory_is_an_error_and_not_an_empty_store() {
    let store = Store::file();
    let file = store.place.write("file", "");
    for directory in [store.place.path("none"), file] {
        let url = format!("file://{}", directory.display());
        for args in [&[][..], &["x"], &["--json", "x*"], &["--history", "x"]] {
            let output = store.place.bare().args(["status", "-b", &url]).args(args).output();
            assert_eq!(
                (output.exit, output.stdout.as_str(), output.stderr.lines().count()),
                (Exit::Code(78), "", 1),
                "{args:?}: {}",
                output.stderr
            );
        }
    }
}

#[test]
fn the_exit_status_shows_whether_any_lock_is_held() {
    for store in Store::each() {
        let code = |args: &[&str]| {
            let output = status(&store).arg("--exit-code").args(args).output();
            assert_eq!(output.stderr, "");
            output.exit
        };
        for args in [&[][..], &["x"], &["x*"], &["-q", "x", "y"]] {
            assert_eq!(code(args), Exit::Code(0), "{args:?}");
        }
        let _run = holding(store.run_with_ttl("30s"));
        for args in [&[][..], &["x"], &["x*"], &["-q", "y", "x"], &["--json", "x"]] {
            assert_eq!(code(args), Exit::Code(75), "{args:?}");
        }
        for args in [&["y"][..], &["y*"], &["--json", "y"]] {
            assert_eq!(code(args), Exit::Code(0), "{args:?}");
        }
        // Without it, to have shown it is a success.
        assert_eq!(status(&store).arg("x").output().exit, Exit::Code(0));
    }
}

/// The requested output is also printed with -q.
#[test]
fn quiet_does_not_silence_the_output() {
    for store in Store::each() {
        let _run = holding(store.run_with_ttl("30s"));
        let output = status(&store).args(["-q", "--json"]).output();
        assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
        assert_eq!(super::parse(&output.stdout)["locks"][0]["state"], "held");
    }
}

#[test]
fn colour_is_for_terminals_only_and_not_with_no_color() {
    let store = Store::file();
    let _run = holding(store.run_with_ttl("30s"));
    assert!(!status(&store).output().stdout.contains('\u{1b}'));
    let mut terminal = Terminal::bash(&store.place);
    let shown = terminal.ask("\"$DLOCK\" status");
    assert!(shown.contains("\u{1b}[33mexclusive\u{1b}[0m"), "{shown:?}");
    for command in ["NO_COLOR=1 \"$DLOCK\" status", "\"$DLOCK\" status --json", "\"$DLOCK\" status | cat"] {
        let shown = terminal.ask(command);
        assert!(shown.contains("exclusive") && !shown.contains('\u{1b}'), "{shown:?}");
    }
    // Empty is unset.
    assert!(terminal.ask("NO_COLOR= \"$DLOCK\" status").contains("\u{1b}[33m"));
}

/// `dlock status | head -1` is not a failure, and a full disk is.
#[test]
fn a_closed_output_is_not_a_failure_but_a_full_disk_is() {
    let store = Store::file();
    let _run = holding(store.run_with_ttl("30s"));
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(status(&store).stdout(writer).output().outcome(), (Exit::Code(0), "", ""));
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = status(&store).stdout(full).output();
    let line = "dlock: cannot write to standard output: no space left on device\n";
    assert_eq!(output.outcome(), (Exit::Code(70), "", line));
}

#[test]
fn help_has_examples_and_the_exit_statuses() {
    let output = Command::new(crate::support::dlock::BINARY)
        .args(["status", "--help"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    for part in ["dlock status [OPTIONS] [NAME|GLOB]...", "Examples:", "Exit status:", "NO_COLOR"] {
        assert!(help.contains(part), "{help}");
    }
}

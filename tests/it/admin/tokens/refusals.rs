//! Invalid usage is refused before a store is contacted.

use crate::acquire::refusal::{assert_usage, refused_with};
use crate::support::place::Place;
use crate::support::running::Exit;
use crate::support::store::Store;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

#[test]
fn acquire_names_missing_options() {
    let ttl = "no --ttl: the lease of a token is not renewed automatically: give its length, such as --ttl 10m (DLOCK_TTL \
               is ignored here)";
    let one =
        "one NAME, and no command: dlock acquire takes the lock for later steps; dlock run is for a command";
    let waits = "--no-wait and --wait contradict each other: give one of them";
    assert_usage([
        (&["acquire", "x"][..], ttl),
        (&["acquire", "--ttl", "10m"], "no lock name: did you mean: dlock acquire --ttl 10m nightly"),
        (&["acquire", "--ttl", "10m", "x", "y"], one),
        (&["acquire", "--ttl", "10m", "x", "--", "touch", "t"], one),
        (&["acquire", "--ttl", "10m", "-n", "-w", "5", "x"], waits),
        (&["acquire", "--ttl", "500ms", "x"], "--ttl: 500ms is not between 1s and 24h"),
        (&["acquire", "--ttl", "25h", "x"], "--ttl: 1d1h is not between 1s and 24h"),
        (&["acquire", "--ttl", "10m", ""], "NAME '': a lock name may not be empty"),
        (&["acquire", "--ttl", "10m", "--shared", "x"], "unexpected argument '--shared' found"),
        (&["acquire", "--ttl", "10m", "--slots", "2", "x"], "unexpected argument '--slots' found"),
        (
            &["acquire", "--ttl", "10m", "--connect-timeout", "0", "x"],
            "--connect-timeout: 0 leaves no time to connect",
        ),
    ]);
    let output = refused_with(|run| run.args(["acquire", "x"]).env("DLOCK_TTL", "10m"));
    assert_eq!((output.exit, output.stderr), (Exit::Code(64), format!("dlock: {ttl}\n")));
    let note = "n".repeat(1001);
    let line = "--note: 1001 bytes are too many, at most 1000";
    assert_usage([(&["acquire", "--ttl", "10m", "--note", &note, "x"][..], line)]);
}

/// A secret on a command line is already exposed; it is not printed a second time.
#[test]
fn a_token_on_the_command_line_is_refused_and_not_repeated() {
    let line = "one NAME, and no token: every user of this host can read a command line; use \
                DLOCK_TOKEN or --token-file";
    let flag = "unexpected argument '--token' found; did you mean --token-file";
    for command in ["renew", "release", "check"] {
        assert_usage([
            (&[command, "x", "0123456789abcdef0123456789abcdef"][..], line),
            (&[command, "--token", "0123456789abcdef0123456789abcdef", "x"], flag),
            (&[command, "--token=0123456789abcdef0123456789abcdef", "x"], flag),
        ]);
    }
}

#[test]
fn a_missing_token_is_reported_with_where_to_put_it() {
    let none =
        "no token: set DLOCK_TOKEN to what dlock acquire has printed, or give the file with --token-file";
    let no_name = "no lock name, and no DLOCK_HELD to find it in: run this under dlock run, or did you mean: dlock check \
                   nightly";
    assert_usage([
        (&["renew", "x"][..], none),
        (&["release", "x"], none),
        (&["check", "x"], none),
        (&["check"], no_name),
        (&["check", "--token-file", "t"], no_name),
        (&["renew"], "no lock name: did you mean: dlock renew nightly"),
        (&["release"], "no lock name: did you mean: dlock release nightly"),
        (&["renew", "--ttl", "1ms", "x"], "--ttl: 1ms is not between 1s and 24h"),
    ]);
    for garbage in ["", "[]", "garbage", "[{\"name\":\"x\"}]", "null"] {
        let output = refused_with(|run| run.args(["check", "x"]).env("DLOCK_HELD", garbage));
        assert_eq!((output.exit, output.stderr), (Exit::Code(64), format!("dlock: {none}\n")), "{garbage}");
    }
}

#[test]
fn a_token_file_without_a_token_is_named() {
    let elsewhere = Place::new();
    let long = "f".repeat(257);
    for (content, why) in [
        (&b""[..], "is empty"),
        (b"\n", "is empty"),
        (b"a\nb\n", "has line breaks or control characters: a token is one line"),
        (b"a\n\n", "has line breaks or control characters: a token is one line"),
        (b"a\r\n", "has line breaks or control characters: a token is one line"),
        (b"a\0", "has line breaks or control characters: a token is one line"),
        (b"\x1b[2J", "has line breaks or control characters: a token is one line"),
        (b"\xff", "is not UTF-8: this is not a token"),
        (long.as_bytes(), "has more than 256 bytes: this is not a token"),
    ] {
        let path = elsewhere.path("token");
        std::fs::write(&path, content).unwrap();
        assert_token_file(&path.display().to_string(), &format!("'{}' {why}", path.display()));
    }
    assert_token_file("/dev/zero", "cannot read '/dev/zero': not a regular file");
    let missing = elsewhere.arg("no-such");
    assert_token_file(&missing, &format!("cannot read '{missing}': no such file or directory"));
    assert_token_file(&"0a".repeat(16), "cannot read 'TOKEN': no such file or directory");
    let directory = elsewhere.arg("home");
    assert_token_file(&directory, &format!("cannot read '{directory}': is a directory"));
}

#[track_caller]
fn assert_token_file(path: &str, why: &str) {
    for command in ["renew", "release", "check"] {
        let line = format!("--token-file: {why}");
        assert_usage([(&[command, "--token-file", path, "x"][..], line.as_str())]);
    }
}

#[test]
fn a_variable_with_an_invalid_token_is_named() {
    let long = "f".repeat(257);
    let garbage = "the token has line breaks or control characters: a token is one line";
    for (value, why) in [
        (OsStr::new("a\nb"), garbage),
        (OsStr::new("\u{9b}2J"), garbage),
        (OsStr::from_bytes(b"\xff"), "the token is not UTF-8: this is not a token"),
        (OsStr::new(&long), "the token has more than 256 bytes: this is not a token"),
    ] {
        for command in ["renew", "release", "check"] {
            let output = refused_with(|run| run.args([command, "x"]).env("DLOCK_TOKEN", value));
            assert_eq!(output.exit, Exit::Code(78));
            assert_eq!(output.stderr, format!("dlock: DLOCK_TOKEN: {why}\n"));
        }
    }
}

#[test]
fn a_store_without_leases_refuses_acquire_and_names_stores_with_them() {
    let store = Store::file();
    let run =
        || store.place.bare().args(["acquire", "--ttl", "10m", "--token-file", &store.place.arg("t"), "x"]);
    let why = |directory: &str| {
        format!(
            "file://{directory} holds a lock only as long as a process does: use dlock run, or a store that keeps leases, such \
             as -b redis://HOST\n"
        )
    };
    let named = run().args(["-b", store.url()]).output();
    let line = format!("dlock: {}", why(&store.place.locks().display().to_string()));
    assert_eq!(named.outcome(), (Exit::Code(64), "", line.as_str()));
    let unnamed = run().output();
    assert_eq!((unnamed.exit, unnamed.stderr.lines().count()), (Exit::Code(64), 1));
    assert!(unnamed.stderr.starts_with("dlock: no backend configured, and file://"), "{}", unnamed.stderr);
    assert!(crate::acquire::refusal::left_behind(&store.place).is_empty());
}

#[test]
fn the_token_of_a_run_is_refused() {
    for store in Store::each() {
        for command in ["renew", "release"] {
            let inner = format!("'{}' {command} -b '{}' x", crate::support::dlock::BINARY, store.url());
            let output = store.run_with_ttl("30s").sh(&inner).output();
            let line = format!(
                "dlock: x on {}: this is the token of a dlock run, which renews and releases the lock itself\n",
                store.url()
            );
            assert_eq!(output.outcome(), (Exit::Code(64), "", line.as_str()), "{command}");
        }
    }
}

#[test]
fn help_has_examples_and_every_exit_status() {
    for command in ["acquire", "renew", "release", "check"] {
        let long = Place::new().bare().args([command, "--help"]).output();
        assert_eq!((long.exit, long.stderr.as_str()), (Exit::Code(0), ""));
        for part in ["Examples:", "Environment:", "Exit status:", "--token-file", "DLOCK_BACKEND", "\n  64 "]
        {
            assert!(long.stdout.contains(part), "{command}: {part}: {}", long.stdout);
        }
        let short = Place::new().bare().args([command, "-h"]).output();
        assert!(short.stdout.contains("With --help: ") && !short.stdout.contains("Examples:"));
    }
}

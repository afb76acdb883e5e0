//! The output format.

use super::doctor;
use crate::support::dlock::{BINARY, Dlock};
use crate::support::place::Place;
use crate::support::pty::Terminal;
use crate::support::running::Exit;
use std::process::Command;

/// Colours are for terminals, and can be disabled.
#[test]
fn colours_are_for_terminals_only() {
    let screen = |no_color: Option<&str>| {
        let place = Place::new();
        let mut dlock = Command::new(BINARY);
        dlock.args(["doctor", "-b", "file:///nonexistent"]).env_remove("NO_COLOR");
        dlock.envs(no_color.map(|value| ("NO_COLOR", value)));
        let mut terminal = Terminal::start(&place, dlock);
        terminal.expect("1 problem, no warnings\n");
        terminal.screen().to_owned()
    };
    assert!(screen(None).contains("\u{1b}[31mproblem\u{1b}[0m  directory  no such file"));
    assert!(screen(Some("")).contains('\u{1b}'), "an empty NO_COLOR counts as unset");
    assert!(!screen(Some("1")).contains('\u{1b}'));
    let output = doctor(&Place::new(), "file:///nonexistent").output();
    assert!(!output.stdout.contains('\u{1b}'), "{output:?}");
}

/// `--quiet` silences warnings of `run`; the output of doctor was requested.
#[test]
fn quiet_silences_notices_and_not_the_findings() {
    let place = Place::new();
    let doctor = || place.bare().arg("doctor").env("HOME", place.home());
    let loud = doctor().output();
    assert!(loud.stderr.starts_with("dlock: no backend configured: "), "{loud:?}");
    assert_eq!(loud.stderr.lines().count(), 1, "{loud:?}");
    let quiet = doctor().arg("-q").output();
    assert_eq!((quiet.exit, quiet.stderr.as_str()), (loud.exit, ""));
    assert!(quiet.stdout.contains("exclusion"), "{quiet:?}");
}

#[test]
fn an_unsupported_option_is_64() {
    let run = |args: &[&str]| Dlock::bare().arg("doctor").args(args).output();
    for (args, line) in [
        (&["--jsn"][..], "dlock: unexpected argument '--jsn' found; did you mean --json\n"),
        (
            &["x", "y"],
            "dlock: doctor checks a store, and takes no NAME: for the state of a lock, see dlock status NAME\n",
        ),
        (
            &["--", "true"],
            "dlock: doctor checks a store, and takes no NAME: for the state of a lock, see dlock status NAME\n",
        ),
    ] {
        assert_eq!(run(args).outcome(), (Exit::Code(64), "", line));
    }
}

#[test]
fn help_has_examples_and_every_exit_status() {
    let help = Dlock::bare().args(["doctor", "--help"]).output();
    assert_eq!((help.exit, help.stderr.as_str()), (Exit::Code(0), ""));
    for words in ["Examples:", "Exit status:", "\n  1    problems", "NO_COLOR", "--json"] {
        assert!(help.stdout.contains(words), "{words}: {}", help.stdout);
    }
    assert!(help.stdout.lines().all(|line| line.chars().count() <= 120));
}

/// A closed standard output is not a healthy store.
#[test]
fn a_failure_to_print_is_a_failure() {
    let place = Place::new();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = doctor(&place, &place.url()).stdout(full).output();
    assert_eq!(output.exit, Exit::Code(70), "{output:?}");
}

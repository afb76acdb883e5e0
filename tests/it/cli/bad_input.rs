//! Invalid options, names and durations: one line that names the flag and the value, 64, and no effect.

use crate::acquire::refusal::{assert_usage, refused, refused_with};
use crate::support::running::Exit;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

const DURATION: &str = "expected a duration like 250ms, 90s, 5m, 1h30m or 1d (a bare number is seconds)";

#[test]
fn a_subcommand_is_needed() {
    assert_usage([
        (&[][..], "no subcommand: try dlock run nightly -- ./backup.sh, or dlock --help"),
        (&["frobnicate", "x"], "unknown command 'frobnicate': did you mean: dlock run frobnicate -- x"),
    ]);
}

#[test]
fn a_name_and_a_command_are_needed() {
    assert_usage([
        (&["run"][..], "no command: did you mean: dlock run nightly -- ./backup.sh"),
        (&["run", "x"], "no command: did you mean: dlock run x -- ./backup.sh"),
        (&["run", "x", "--"], "no command: did you mean: dlock run x -- ./backup.sh"),
        (&["run", "nightly", "./backup.sh"], "no command: did you mean: dlock run nightly -- ./backup.sh"),
        (&["run", "x", "./b.sh", "1", "2"], "no command: did you mean: dlock run x -- ./b.sh 1 2"),
        (&["run", "--", "touch", "t"], "no lock name: did you mean: dlock run nightly -- touch t"),
        (&["run", "-c", "touch t"], "no lock name: did you mean: dlock run -c 'touch t' nightly"),
        (&["run", "x", "-c"], "a value is required for '-c <SHELL TEXT>' but none was supplied"),
    ]);
}

#[test]
fn contradictions_name_both_flags_and_the_figures() {
    let grace = |grace: &str, ttl: &str, most: &str| {
        format!(
            "--grace {grace} is too long for a ttl of {ttl}: the maximum is {most}, because SIGTERM must not come \
             before half of the lease has elapsed; shorten --grace or lengthen --ttl"
        )
    };
    let (short, usual) = (grace("2s", "3s", "1.268s"), grace("20s", "30s", "14s"));
    let waits = "--no-wait and --wait contradict each other: give one of them";
    let command = "-c and -- contradict each other: give the command once";
    assert_usage([
        (&["run", "-n", "-w", "5", "x", "--", "touch", "t"][..], waits),
        (&["run", "--nb", "--timeout", "forever", "x", "--", "touch", "t"], waits),
        (&["run", "x", "--wait", "5", "--nonblock", "-c", "touch t"], waits),
        (&["run", "x", "-c", "touch t", "--", "touch", "t"], command),
        (&["run", "x", "-c", "touch t", "--"], command),
        (&["run", "--ttl", "3s", "--grace", "2s", "x", "--", "touch", "t"], &short),
        (&["run", "--grace", "20s", "x", "--", "touch", "t"], &usual),
    ]);
}

#[test]
fn durations_out_of_range_are_named() {
    assert_usage([
        (&["run", "--ttl", "500ms", "x", "--", "touch", "t"][..], "--ttl: 500ms is not between 1s and 24h"),
        (&["run", "--ttl", "0", "x", "--", "touch", "t"], "--ttl: 0ms is not between 1s and 24h"),
        (&["run", "--ttl", "25h", "x", "--", "touch", "t"], "--ttl: 1d1h is not between 1s and 24h"),
        (
            &["run", "--connect-timeout", "0", "x", "--", "touch", "t"],
            "--connect-timeout: 0 leaves no time to connect",
        ),
    ]);
}

#[test]
fn every_duration_option_rejects_what_is_not_a_duration() {
    let unknown = |unit: &str| format!("unknown unit '{unit}': known are ms, s, m, h, d");
    let values = [
        ("5M", unknown("M")),
        ("5S", unknown("S")),
        ("5 months", unknown("months")),
        ("1 2s", DURATION.to_owned()),
        ("1e3", unknown("e")),
        ("s", DURATION.to_owned()),
        (" ", DURATION.to_owned()),
        ("1..5", DURATION.to_owned()),
        ("1h 30", DURATION.to_owned()),
        ("inf", DURATION.to_owned()),
        ("nope", DURATION.to_owned()),
        ("9999999999d", "longer than a hundred years".to_owned()),
    ];
    let options = [
        ("--wait", "--wait <DURATION|forever>", ", or forever"),
        ("--timeout", "--wait <DURATION|forever>", ", or forever"),
        ("-w", "--wait <DURATION|forever>", ", or forever"),
        ("--retry", "--retry <DURATION>", ""),
        ("--ttl", "--ttl <DURATION>", ""),
        ("--grace", "--grace <DURATION>", ""),
        ("--max-runtime", "--max-runtime <DURATION>", ""),
        ("--connect-timeout", "--connect-timeout <DURATION>", ""),
    ];
    for (option, shown, more) in options {
        for (value, why) in &values {
            let line = format!("invalid value '{value}' for '{shown}': {why}{more}");
            assert_usage([(&["run", option, value, "x", "--", "touch", "t"][..], line.as_str())]);
        }
    }
}

#[test]
fn options_with_a_choice_list_the_values() {
    assert_usage([
        (
            &["run", "--orphans", "eat", "x", "--", "touch", "t"][..],
            "invalid value 'eat' for '--orphans <WHAT>'; possible: leave, wait, kill",
        ),
        (
            &["run", "--on-lost", "eat", "x", "--", "touch", "t"],
            "invalid value 'eat' for '--on-lost <WHAT>'; possible: kill, warn",
        ),
        (
            &["run", "--log-format", "xml", "x", "--", "touch", "t"],
            "invalid value 'xml' for '--log-format <FORMAT>'; possible: text, json",
        ),
    ]);
}

#[test]
fn exit_codes_are_0_to_255() {
    for value in ["256", "1000000000000000000000", "x", "7.5"] {
        let why = "expected a number from 0 to 255";
        let line = format!("invalid value '{value}' for '--conflict-exit-code <N>': {why}");
        assert_usage([
            (&["run", "-E", value, "x", "--", "touch", "t"][..], line.as_str()),
            (&["run", "--conflict-exit-code", value, "x", "--", "touch", "t"], &line),
        ]);
    }
}

#[test]
fn unknown_options_are_named() {
    assert_usage([
        (
            &["run", "--tll", "5", "x", "--", "touch", "t"][..],
            "unexpected argument '--tll' found; did you mean --ttl",
        ),
        (&["run", "-Z", "x", "--", "touch", "t"], "unexpected argument '-Z' found"),
        (&["run", "-leading", "--", "touch", "t"], "unexpected argument '-l' found"),
        (
            &["run", "--exclusive=yes", "x", "--", "touch", "t"],
            "unexpected value 'yes' for '--exclusive' found; no more were expected",
        ),
    ]);
}

#[test]
fn options_of_flock_without_meaning_here_are_explained() {
    let o = "-o is an option of flock: dlock never passes the lock's descriptor on, so omit it";
    let u = "-u is an option of flock: dlock releases the lock itself when the command ends, so omit it";
    let f = "-F is an option of flock: dlock must keep running to guard the command, so omit it";
    for (line, options) in [(o, ["-o", "--close"]), (u, ["-u", "--unlock"]), (f, ["-F", "--no-fork"])] {
        for option in options {
            assert_usage([(&["run", option, "x", "--", "touch", "t"][..], line)]);
            assert_usage([(&["run", "x", option, "-c", "touch t"][..], line)]);
        }
    }
}

#[test]
fn a_note_that_is_too_long_is_refused() {
    let note = "n".repeat(1001);
    let line = "--note: 1001 bytes are too many, at most 1000";
    assert_usage([(&["run", "--note", &note, "x", "--", "touch", "t"][..], line)]);
}

/// A value that starts with a dash is an invalid value of its option, not an unknown option.
#[test]
fn a_negative_value_is_named_with_its_flag() {
    for (option, value) in [
        ("--ttl", "-1s"),
        ("--wait", "-1"),
        ("--retry", "-5m"),
        ("--grace", "-1s"),
        ("--max-runtime", "-2h"),
        ("--connect-timeout", "-1"),
        ("--conflict-exit-code", "-1"),
    ] {
        let output = refused(&["run", option, value, "x", "--", "touch", "t"]);
        assert_eq!(output.exit, Exit::Code(64));
        let line = output.stderr;
        assert!(line.contains(option) && line.contains(&format!("'{value}'")), "{line}");
    }
}

/// The message stays on one line, and escapes unprintable characters.
#[test]
fn a_value_with_a_line_break_is_shown_whole() {
    for (option, shown) in [
        ("--ttl", "--ttl <DURATION>"),
        ("--orphans", "--orphans <WHAT>"),
        ("--conflict-exit-code", "--conflict-exit-code <N>"),
    ] {
        let output = refused(&["run", option, "5s\nrm -rf\u{1b}[2J", "x", "--", "touch", "t"]);
        assert_eq!(output.exit, Exit::Code(64));
        let beginning = format!("dlock: invalid value '5s\\u{{a}}rm -rf\\u{{1b}}[2J' for '{shown}'");
        assert!(output.stderr.starts_with(&beginning), "{}", output.stderr);
    }
}

#[test]
fn a_value_that_is_not_text_is_named_with_its_flag() {
    let bytes = OsStr::from_bytes(b"\xff5s");
    for option in
        ["--ttl", "--wait", "--grace", "--note", "--orphans", "--conflict-exit-code", "--log-format"]
    {
        let arguments = [OsStr::new("run"), OsStr::new(option), bytes];
        let rest = ["x", "--", "touch", "t"].map(OsStr::new);
        let output = refused_with(|run| run.args(arguments).args(rest));
        assert_eq!(output.exit, Exit::Code(64));
        assert!(output.stderr.contains(option), "{option}: {}", output.stderr);
    }
}

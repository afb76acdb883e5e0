//! What dlock suggests for a wrong first word, name or backend, and the forms that it accepts.

use crate::acquire::refusal::assert_usage;
use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::running::{Exit, Output};

#[test]
fn a_wrong_first_word_suggests_a_command_with_the_words_that_were_typed() {
    assert_usage([
        (&["rnu", "x"][..], "unknown command 'rnu': did you mean: dlock run x -- ./backup.sh"),
        (&["rnu", "x", "--", "ls", "-l"], "unknown command 'rnu': did you mean: dlock run x -- ls -l"),
        (&["statsu", "x"], "unknown command 'statsu': did you mean: dlock status x"),
        (&["ls"], "unknown command 'ls': did you mean: dlock status"),
        (&["list", "a*"], "unknown command 'list': did you mean: dlock status a*"),
        (&["ps"], "unknown command 'ps': did you mean: dlock status"),
        (&["top"], "unknown command 'top': did you mean: dlock status"),
        (&["log", "x"], "unknown command 'log': did you mean: dlock history x"),
        (&["timeline"], "unknown command 'timeline': did you mean: dlock history --timeline"),
        (&["kill", "x"], "unknown command 'kill': did you mean: dlock break x"),
        (&["-b", "file:/", "kill", "x"], "unknown command 'kill': did you mean: dlock break -b file:/ x"),
        (&["force-unlock", "a b"], "unknown command 'force-unlock': did you mean: dlock break 'a b'"),
        (&["unlock", "x"], "unknown command 'unlock': did you mean: dlock release x, or dlock break x"),
        (&["lock", "n", "--", "c"], "unknown command 'lock': did you mean: dlock run n -- c"),
        (&["lock", "-n", "n", "c", "d"], "unknown command 'lock': did you mean: dlock run -n n -- c d"),
        (&["nightly"], "unknown command 'nightly': did you mean: dlock run nightly -- ./backup.sh"),
        (
            &["-q", "nightly", "--", "ls", "-l"],
            "unknown command 'nightly': did you mean: dlock run -q nightly -- ls -l",
        ),
        (&["nightly", "ls", "-la"], "unknown command 'nightly': did you mean: dlock run nightly -- ls -la"),
        (&["nightly", "--wait", "x"], "unknown command 'nightly': did you mean: dlock run nightly --wait x"),
    ]);
}

#[test]
fn an_option_of_run_without_run_suggests_it() {
    assert_usage([
        (&["-n", "nightly", "./b"][..], "no subcommand: did you mean: dlock run -n nightly -- ./b"),
        (&["-nw5", "x", "--", "b", "-c"], "no subcommand: did you mean: dlock run -nw5 x -- b -c"),
        (&["-c", "ls | wc", "x"], "no subcommand: did you mean: dlock run -c 'ls | wc' x"),
        (&["--", "true"], "no subcommand: did you mean: dlock run nightly -- true"),
        (&["-q"], "no subcommand: did you mean: dlock run -q nightly -- ./backup.sh"),
        (&["--wait", "5", "run", "x", "--", "b"], "no subcommand: did you mean: dlock run --wait 5 x -- b"),
        (&["--json", "status", "x"], "no subcommand: did you mean: dlock status --json x"),
        (&["-q", "config"], "no subcommand: try dlock config show"),
        (&["--nonsense", "x"], "unexpected argument '--nonsense' found"),
    ]);
}

#[test]
fn a_run_without_a_separator_suggests_the_words_that_were_typed() {
    assert_usage([
        (&["run", "x", "ls", "-l"][..], "no command: did you mean: dlock run x -- ls -l"),
        (&["run", "x", "ls", "-la"], "no command: did you mean: dlock run x -- ls -la"),
        (&["run", "x", "ls", "-v", "a"], "no command: did you mean: dlock run x -- ls -v a"),
        (&["run", "-q", "x", "ls", "--color"], "no command: did you mean: dlock run -q x -- ls --color"),
        (&["run", "x", "-l"], "unexpected argument '-l' found"),
        (&["run", "-w", "5", "x"], "no command: did you mean: dlock run -w 5 x -- ./backup.sh"),
    ]);
}

#[test]
fn a_run_without_a_name_suggests_the_words_that_were_typed() {
    assert_usage([
        (&["run", "--", "true"][..], "no lock name: did you mean: dlock run nightly -- true"),
        (
            &["run", "-w", "5", "--", "ls", "a b", ""],
            "no lock name: did you mean: dlock run -w 5 nightly -- ls 'a b' ''",
        ),
        (&["run", "-c", "it's"], r"no lock name: did you mean: dlock run -c 'it'\''s' nightly"),
    ]);
}

#[test]
fn no_secret_is_repeated() {
    assert_usage([
        (
            &["run", "-b", "redis://u:s3cret@h", "x", "curl", "-s", "ftp://u:s3cret@h"][..],
            "no command: did you mean: dlock run -b redis://u:***@h x -- curl -s ftp://u:***@h",
        ),
        (
            &["run", "--backend=redis://u:s3cret@h", "x", "ls", "-l"],
            "no command: did you mean: dlock run --backend=redis:*** x -- ls -l",
        ),
        (
            &["redis://u:s3cret@h", "x"],
            "unknown command 'redis://u:***@h': did you mean: dlock run redis://u:***@h -- x",
        ),
    ]);
}

/// An option before it that takes no value, or one that is unset in a script, puts a URL there.
#[test]
fn the_password_of_a_url_in_the_place_of_another_value_is_not_repeated() {
    let place = Place::new();
    let url = "redis://u:s3cret@h/0";
    let run = ["run", "x", "--", "true"];
    let hides_it = |dlock: Dlock, what: &str| {
        let Output { exit, stderr, .. } = dlock.output();
        let is_hidden = stderr.contains("redis://u:***@h/0") && !stderr.contains("s3cret");
        assert!(is_hidden && stderr.lines().count() == 1, "{what}: {stderr}");
        exit
    };
    for option in ["--wait", "-E", "--orphans", "--slots", "--stop-signal", "--report", "--metrics-file"] {
        let words = [&["run", option, url][..], &run[1..]].concat();
        assert_eq!(hides_it(place.bare().backend("file:/").args(words), option), Exit::Code(64), "{option}");
    }
    let (watch, json) = (format!("--watch={url}"), format!("--json={url}"));
    for words in [
        &["status", &watch][..],
        &["status", &json],
        &["check", "--fencing-token", url, "x"],
        &["config", "show", "x", url],
        &["--connect-timeout", url, "status"],
        &["man", url],
    ] {
        assert_eq!(hides_it(place.bare().args(words), words[0]), Exit::Code(64), "{words:?}");
    }
    assert_eq!(hides_it(place.bare().args(["status", "--config", url]), "--config"), Exit::Code(78));
    for variable in ["DLOCK_WAIT", "DLOCK_TTL", "DLOCK_CONFIG"] {
        assert_eq!(hides_it(place.bare().args(run).env(variable, url), variable), Exit::Code(78));
    }
    for key in ["wait", "orphans", "report"] {
        place.write("c.toml", &format!("[locks.x]\n{key} = \"{url}\"\n"));
        let dlock = place.bare().args(run).env("DLOCK_CONFIG", "c.toml");
        assert_eq!(hides_it(dlock, key), Exit::Code(78), "{key}");
    }
}

#[test]
fn a_name_that_is_a_url_or_has_a_dash_says_what_was_meant() {
    let command = ["--", "touch", "t"];
    for (name, why) in [
        ("redis://h", "NAME 'redis://h' is a URL: did you mean -b redis://h"),
        ("redis://u:s3cret@h", "NAME 'redis://u:***@h' is a URL: did you mean -b redis://u:***@h"),
        ("\u{2014}wait", "NAME '\u{2014}wait' begins with a dash that is not a hyphen: did you mean --wait"),
        ("\u{2013}wait", "NAME '\u{2013}wait' begins with a dash that is not a hyphen: did you mean --wait"),
    ] {
        let words = ["run", name, "nightly"].into_iter().chain(command).collect::<Vec<_>>();
        assert_usage([(words.as_slice(), why)]);
        assert_usage([(&["status", name][..], why)]);
    }
}

#[test]
fn an_address_or_a_directory_suggests_a_backend_url() {
    let place = Place::new();
    for (backend, why) in [
        ("localhost", "'localhost' is not a backend URL: did you mean redis://localhost"),
        ("127.0.0.1", "'127.0.0.1' is not a backend URL: did you mean redis://127.0.0.1"),
        ("127.0.0.1:6379", "'127.0.0.1:6379' is not a backend URL: did you mean redis://127.0.0.1:6379"),
        ("db-1:6379", "'db-1:6379' is not a backend URL: did you mean redis://db-1:6379"),
        ("[::1]:6379", "'[::1]:6379' is not a backend URL: did you mean redis://[::1]:6379"),
        (
            "redis.example.com",
            "'redis.example.com' is not a backend URL: did you mean redis://redis.example.com",
        ),
        ("reids://h/1", "unknown scheme 'reids': did you mean redis://h/1"),
        ("reids://u:s3cret@h", "unknown scheme 'reids': did you mean redis://..."),
    ] {
        let output = place.bare().args(["status", "-b", backend]).output();
        let line = format!("dlock: --backend: {why}\n");
        assert_eq!(output.outcome(), (Exit::Code(78), "", line.as_str()), "{backend}");
    }
}

#[test]
fn common_options_may_stand_before_the_command() {
    let place = Place::new();
    let url = place.url();
    for before in [&["-b", url.as_str(), "-q"][..], &["--log-format", "json", &format!("-qb{url}")]] {
        let output = place.bare().args(before).args(["run", "x", "--", "echo", "ran"]).output();
        assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""), "{before:?}");
    }
    let after = place.bare().args(["config", "show", "-b", &url, "--json", "x"]).output();
    for words in [
        &["-b", url.as_str(), "config", "show", "--json", "x"][..],
        &["-v", "config", &format!("--backend={url}"), "show", "--json", "x"],
        &["-b", "file:", "config", "-b", &url, "show", "--json", "x"],
    ] {
        let shown = place.bare().args(words).output();
        assert_eq!(shown.outcome(), (Exit::Code(0), after.stdout.as_str(), ""), "{words:?}");
    }
}

/// What is wrong is said of the option, and not of its place; the command may know what else to do.
#[test]
fn a_bad_value_before_the_command_is_reported_as_after_it() {
    let line = "invalid value 'abc' for '--connect-timeout <DURATION>': expected a duration like 250ms, 90s, 5m, 1h30m or \
                1d (a bare number is seconds)";
    let format = "invalid value 'xml' for '--log-format <FORMAT>'; possible: text, json";
    assert_usage([
        (&["--connect-timeout", "abc", "status"][..], line),
        (&["-q", "--connect-timeout=abc", "run", "x", "--", "true"], line),
        (&["--log-format", "xml", "history", "x"], format),
    ]);
    let place = Place::new();
    let nagios = ["--connect-timeout", "abc", "status", "--nagios", "--overdue", "1h", "x"];
    let output = place.bare().args(nagios).output();
    assert_eq!(output.outcome(), (Exit::Code(3), format!("DLOCK UNKNOWN - {line}\n").as_str(), ""));
    let run = ["--connect-timeout", "abc", "run", "--report", "r", "x", "--", "true"];
    assert_eq!(place.bare().args(run).output().exit, Exit::Code(64));
    assert!(place.read("r").contains("\"usage\""), "{}", place.read("r"));
}

/// So that the options of a shell alias can be overridden.
#[test]
fn the_last_occurrence_of_an_option_applies() {
    let place = Place::new();
    let url = place.url();
    let elsewhere = "redis://127.0.0.1:1";
    for words in [
        &["-b", elsewhere, "run", "-b", &url, "-w", "9s", "-w", "1s", "-q", "-q", "n"][..],
        &["-b", elsewhere, "-b", &url, "run", "--slots", "2", "--slots=1", "-n", "-x", "-nx", "n"],
        &["run", "--report", "/nowhere/r", "--report", "r.json", "--backend", elsewhere, "-b", &url, "n"],
    ] {
        let output = place.bare().args(words).args(["--", "echo", "ran"]).output();
        assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
    }
    assert!(place.read("r.json").contains("\"ran\""));
    let twice = place.bare().args(["status", "-b", elsewhere, "--json", "--json", "-b", &url]).output();
    assert_eq!((twice.exit, twice.stderr.as_str()), (Exit::Code(0), ""));
    assert_usage([(
        &["run", "-c", "true", "-c", "false", "x"][..],
        "the argument '-c <SHELL TEXT>' cannot be used multiple times",
    )]);
}

/// The last one is where the outcome of a line that is not valid is written, too.
#[test]
fn the_last_report_of_a_wrong_line_is_written() {
    let place = Place::new();
    let words = ["run", "--report", "one", "--report=two", "x", "--ttl", "nonsense", "--", "true"];
    assert_eq!(place.bare().args(words).output().exit, Exit::Code(64));
    assert_eq!((place.read("one").as_str(), place.read("two").contains("\"usage\"")), ("", true));
}

#[test]
fn help_and_version_are_commands_too() {
    let place = Place::new();
    for (words, options) in [
        (&["help"][..], &["--help"][..]),
        (&["help", "run"], &["run", "--help"]),
        (&["help", "config", "show"], &["config", "show", "--help"]),
        (&["version"], &["-V"]),
        (&["-q", "version"], &["-V"]),
        (&["-b", "file:", "help"], &["--help"]),
        (&["help", "redis"], &["man", "redis"]),
    ] {
        let (word, option) = (place.bare().args(words).output(), place.bare().args(options).output());
        assert_eq!((word.exit, &word.stdout), (Exit::Code(0), &option.stdout), "{words:?}");
        assert!(!word.stdout.is_empty());
    }
}

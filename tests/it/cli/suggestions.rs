//! What dlock suggests for a wrong first word, name or backend, and the forms that it accepts.

use crate::support::place::Place;
use crate::support::running::Exit;
use crate::wait::refusal::assert_usage;

#[test]
fn a_wrong_first_word_suggests_a_command() {
    assert_usage([
        (&["rnu", "x"][..], "unknown command 'rnu': did you mean: dlock run"),
        (&["statsu"], "unknown command 'statsu': did you mean: dlock status"),
        (&["ls"], "unknown command 'ls': did you mean: dlock status"),
        (&["list"], "unknown command 'list': did you mean: dlock status"),
        (&["ps"], "unknown command 'ps': did you mean: dlock status"),
        (&["unlock", "x"], "unknown command 'unlock': did you mean: dlock release, or dlock break"),
        (&["nightly"], "unknown command 'nightly': did you mean: dlock run nightly -- ./backup.sh"),
        (
            &["nightly", "--", "ls", "-l"],
            "unknown command 'nightly': did you mean: dlock run nightly -- ls -l",
        ),
        (&["nightly", "ls", "-l"], "unknown command 'nightly': did you mean: dlock run nightly -- ls -l"),
    ]);
}

#[test]
fn a_run_without_a_separator_suggests_the_words_that_were_typed() {
    assert_usage([
        (&["run", "x", "ls", "-l"][..], "no command: did you mean: dlock run x -- ls -l"),
        (&["run", "x", "ls", "-v", "a"], "no command: did you mean: dlock run x -- ls -v a"),
        (&["run", "-q", "x", "ls", "--color"], "no command: did you mean: dlock run -q x -- ls --color"),
        (&["run", "x", "-l"], "unexpected argument '-l' found"),
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
}

#[test]
fn help_and_version_are_commands_too() {
    let place = Place::new();
    for (words, options) in [
        (&["help"][..], &["--help"][..]),
        (&["help", "run"], &["run", "--help"]),
        (&["help", "config", "show"], &["config", "show", "--help"]),
        (&["version"], &["-V"]),
    ] {
        let (word, option) = (place.bare().args(words).output(), place.bare().args(options).output());
        assert_eq!((word.exit, &word.stdout), (Exit::Code(0), &option.stdout), "{words:?}");
        assert!(!word.stdout.is_empty());
    }
}

//! Invalid files: one line with file, line and column, 78, and no effect.

use super::{refused, run, show, write};
use crate::support::place::Place;
use crate::support::running::Exit;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

const LOCKS: &str = "backend, wait, retry, ttl, stop_signal, grace, max_runtime, min_hold, once_per, supersede, orphans, \
                     on_lost, slots, conflict_exit_code, note, quiet, require_server, report, metrics_file";
const DURATION: &str = "expected a duration like 250ms, 90s, 5m, 1h30m or 1d (a bare number is seconds)";

/// Asserts that each of these texts is refused with this line, whatever command is run.
#[track_caller]
fn assert_wrong<'a>(cases: impl IntoIterator<Item = (&'a str, String)>) {
    let mut otherwise = Vec::new();
    for (text, line) in cases {
        let place = Place::new();
        let file = place.arg("c.toml");
        let ran = run(&place, text).backend(place.url()).name("other").command(["touch", "t"]).output();
        let shown = show(&place, text).output();
        for output in [ran, shown] {
            let found = output.stderr.replace(&file, "FILE");
            let is_refused = (output.exit, output.stdout.as_str()) == (Exit::Code(78), "");
            if !is_refused || place.path("t").exists() || found != format!("dlock: {line}\n") {
                otherwise.push(format!("{text:?}: {:?} {found}", output.exit));
            }
        }
    }
    assert!(otherwise.is_empty(), "{}", otherwise.join(""));
}

#[test]
fn an_unknown_key_is_named_with_line_and_column_and_the_known_ones() {
    let locks = |pattern: &str| format!("in [locks.\"{pattern}\"]: known are {LOCKS}");
    assert_wrong([
        (
            "bakend = \"x\"",
            "FILE:1:1: unknown key 'bakend': known are backend, require_server, require_verified_tls, backends, locks, pools".to_owned(),
        ),
        (
            "# ü\n\n[lock.x]\n",
            "FILE:3:2: unknown key 'lock': known are backend, require_server, require_verified_tls, backends, locks, pools".into(),
        ),
        ("[locks.x]\nttl = 1\n  tll = 1\n", format!("FILE:3:3: unknown key 'tll' {}", locks("x"))),
        ("locks.\"ü*\" = { tll = 1 }", format!("FILE:1:16: unknown key 'tll' {}", locks("ü*"))),
        ("[locks]\nx.ttl.y = 1\n", "FILE:2:3: ttl: expected a string or a number, found a table".into()),
        (
            "[backends.p]\nprefix = \"a\"\nurl = \"file:\"\n",
            "FILE:2:1: unknown key 'prefix' in [backends.p]: known for \
          file: are url, username, password, accept, suffix"
                .into(),
        ),
    ]);
}

#[test]
fn an_option_that_a_store_does_not_have_is_named_with_those_it_has() {
    let known = "url, username, password, accept, db, recipe, prefix, wait_replicas, protocol, password_file, ca_file, \
                 cert_file, key_file, server_name, insecure, require_verified_tls";
    assert_wrong([(
        "[backends.p]\nurl = \"redis://h\"\npasword = \"s3cret\"\n",
        format!("FILE:3:1: unknown key 'pasword' in [backends.p]: known for redis: are {known}"),
    )]);
}

#[test]
fn an_invalid_value_is_named_with_line_and_column() {
    assert_wrong([
        (
            "[locks.x]\nttl = \"5M\"",
            "FILE:2:7: ttl: invalid value '5M': unknown unit 'M': known are ms, s, m, h, d".to_owned(),
        ),
        ("[locks.x]\nttl = -1", format!("FILE:2:7: ttl: invalid value '-1': {DURATION}")),
        ("[locks.x]\nttl = true", "FILE:2:7: ttl: expected a string or a number, found true or false".into()),
        (
            "[locks.x]\nwait = \"never\"",
            format!("FILE:2:8: wait: invalid value 'never': {DURATION}, or forever"),
        ),
        (
            "[locks.x]\norphans = \"eat\"",
            "FILE:2:11: orphans: invalid value 'eat'; possible: leave, wait, kill".into(),
        ),
        (
            "[locks.x]\non_lost = \"eat\"",
            "FILE:2:11: on_lost: invalid value 'eat'; possible: kill, warn".into(),
        ),
        (
            "[locks.x]\nstop_signal = \"KILL\"",
            "FILE:2:15: stop_signal: invalid value 'KILL': KILL always follows, after --grace: name the signal before \
             it"
                .into(),
        ),
        (
            "[locks.x]\nstop_signal = 99",
            "FILE:2:15: stop_signal: invalid value '99': expected the name or the number of a signal, such as INT or 2"
                .into(),
        ),
        (
            "[locks.x]\nslots = 0",
            "FILE:2:9: slots: invalid value '0': expected a number from 1 to 10000".into(),
        ),
        (
            "[locks.x]\nconflict_exit_code = 256",
            "FILE:2:22: conflict_exit_code: invalid value '256': expected a number \
          from 0 to 255"
                .into(),
        ),
        ("[locks.x]\nquiet = \"yes\"", "FILE:2:9: quiet: expected true or false, found a string".into()),
        ("[locks.x]\nnote = 5", "FILE:2:8: note: expected a string, found a number".into()),
        ("[locks.x]\nnote = \"a\\u0000\"", "FILE:2:8: note: a text may not contain \\u0000".into()),
        (
            "[locks.x]\nreport = \"r.json\"",
            "FILE:2:10: report: invalid value 'r.json': expected an absolute path".into(),
        ),
        ("backend = [\"file:\"]", "FILE:1:11: backend: expected a string, found an array".into()),
        (
            "backend = \"file:///a b\"",
            "FILE:1:11: backend: a backend URL may not contain spaces or control characters".into(),
        ),
        ("backends = 5", "FILE:1:12: backends: expected a table, found a number".into()),
        ("[locks]\nx = 1979-05-27", "FILE:2:5: x: expected a table, found a date".into()),
        ("[backends.p]\n", "FILE:1:11: p: this backend has no url: add url = \"redis://HOST\"".into()),
        (
            "[backends.\"p:q\"]\n",
            "FILE:1:11: p:q: the name of a backend is made of letters, digits, '-', '_' and '.'".into(),
        ),
        (
            "[backends.p]\nurl = \"nonsense\"",
            "FILE:2:7: url: a backend URL begins with a scheme and a colon".into(),
        ),
        (
            "[backends.p]\nurl = \"file:\"\naccept = \"eviction\"",
            "FILE:3:10: accept: expected an array of strings, found a \
          string"
                .into(),
        ),
        (
            "[backends.p]\nurl = \"file:\"\naccept = [\"eviction\", \"evil\"]",
            "FILE:3:23: accept: unknown warning 'evil': \
          known are eviction, insecure, efficiency"
                .into(),
        ),
    ]);
}

#[test]
fn invalid_toml_is_named_with_line_and_column() {
    assert_wrong([
        ("[locks.x]\nttl = \n", "FILE:2:7: string values must be quoted, expected literal string".to_owned()),
        ("a = 1\na = 2\n", "FILE:2:1: duplicate key".into()),
        ("[locks.x\n", "FILE:1:9: unclosed table, expected `]`".into()),
        (
            "[backends.p]\npassword = hunter2\n",
            "FILE:2:12: string values must be quoted, expected literal string".into(),
        ),
    ]);
    let place = Place::new();
    let path = write(&place, "c.toml", b"# \xc3\xbc\nnote = \"\xc3\xbc\xff\"");
    let output = place.run().arg("--config").arg(path).command(["touch", "t"]).output();
    assert_eq!(refused(&place, &output, 78), "FILE:2:10: not valid UTF-8");
}

/// Errors that only the complete settings of a run show, and URL options that are in a table.
#[test]
fn a_value_that_a_run_cannot_use_is_named_with_line_and_column() {
    let place = Place::new();
    let grace = "because SIGTERM must not come before half of the lease has elapsed; shorten";
    let with_table = |text: &str| format!("backend = \"{}\"\n[locks.x]\n{text}", place.url());
    for (text, flags, line) in [
        ("ttl = \"25h\"", &[][..], "FILE:3:7: ttl: 1d1h is not between 1s and 24h".to_owned()),
        ("min_hold = \"32d\"", &[], "FILE:3:12: min_hold: 32d is longer than 24h: use --once-per".into()),
        (
            "ttl = \"3s\"\ngrace = \"2s\"",
            &[],
            format!(
                "FILE:4:9: grace: 2s is too long for a ttl of 3s (FILE:3): \
          the maximum is 1.268s, {grace} it or lengthen --ttl"
            ),
        ),
        (
            "grace = \"2s\"",
            &["--ttl", "3s"],
            format!(
                "FILE:3:9: grace: 2s is too long for a ttl of 3s: the maximum is 1.268s, \
          {grace} it or lengthen --ttl"
            ),
        ),
        (
            "ttl = \"3s\"",
            &["--grace", "2s"],
            format!(
                "--grace 2s is too long for a ttl of 3s (FILE:3): the maximum is 1.268s, \
          {grace} --grace or lengthen --ttl"
            ),
        ),
    ] {
        let output = run(&place, &with_table(text)).args(flags).command(["touch", "t"]).output();
        assert_eq!(refused(&place, &output, 78), line);
    }
    let note = with_table(&format!("note = \"{}\"", "n".repeat(1001)));
    let output = run(&place, &note).command(["touch", "t"]).output();
    assert_eq!(refused(&place, &output, 78), "FILE:3:8: note: 1001 bytes are too many, at most 1000");
    let option = "backend = \"p\"\n[backends.p]\nurl = \"file:///srv\"\nsuffix = \"a/b\"\n";
    let output = run(&place, option).command(["touch", "t"]).output();
    assert_eq!(refused(&place, &output, 78), "FILE:4:10: suffix: suffix= may not contain a slash");
}

/// Whether the store would have needed it or not.
#[test]
fn a_password_readable_by_others_is_refused() {
    let place = Place::new();
    let why = |mode: u32| {
        format!(
            "a password in a file that others can read (mode {mode:04o}): chmod o= FILE, or name a password_file instead"
        )
    };
    for (text, at) in [
        ("[backends.p]\nurl = \"file:\"\npassword = \"s3cret\"\n", "FILE:3:12: password"),
        ("[backends.p]\nurl = \"redis://:s3cret@h\"\n", "FILE:2:7: url"),
        ("backend = \"redis://me:s3cret@h\"\n", "FILE:1:11: backend"),
        ("[locks.y]\nbackend = \"redis://:s3cret@h:port\"\n", "FILE:2:11: backend"),
    ] {
        for mode in [0o644, 0o604] {
            let run = run(&place, text).backend(place.url()).command(["touch", "t"]);
            std::fs::set_permissions(place.path("c.toml"), Permissions::from_mode(mode)).unwrap();
            assert_eq!(refused(&place, &run.output(), 78), format!("{at}: {}", why(mode)));
        }
    }
    // The group may read it; and so may everyone where there is no password.
    for (mode, text) in [
        (0o640, "[backends.p]\nurl = \"file:\"\n[backends.q]\nurl = \"etcd://me:s3cret@h\"\n"),
        (0o644, "[backends.p]\nurl = \"etcd://me@h\"\npassword_file = \"/x\"\n"),
    ] {
        let run = run(&place, text).backend(place.url()).command(["echo", "ran"]);
        std::fs::set_permissions(place.path("c.toml"), Permissions::from_mode(mode)).unwrap();
        assert_eq!(run.output().outcome(), (Exit::Code(0), "ran\n", ""));
    }
}

/// Neither the value nor its line.
#[test]
fn no_error_repeats_a_secret() {
    let place = Place::new();
    for text in [
        "[backends.p]\nurl = \"redis://h\"\npassword = \"hunter2",
        "[backends.p]\nurl = \"redis://h\"\npassword = hunter2\n",
        "[backends.p]\nurl = \"redis://h\"\npassword = [\"hunter2\"]\n",
        "[backends.p]\nurl = \"redis://:hunter2@h:port\"\n",
        "[backends.p]\nurl = \"hunter2\"\n",
        "[backends.p]\nurl = \"redis://me:hunter2@h/x y\"\n",
        "[backends.p]\nurl = \"redis://:hunter2@h\"\npassword = \"hunter2\"\n",
        "[backends.p]\nurl = \"redis://h\"\npassword = \"hunter2\"\npassword_file = \"/x\"\n",
        "[backends.p]\nurl = \"redis://:hunter2@h\"\nnonsense = \"x\"\n",
        "backend = \"hunter2\"\n",
        "backend = \"redis://:hunter2@h#\"\n",
        "[locks.x]\nbackend = \"redis://:hunter2@h:0\"\n",
    ] {
        let output = run(&place, text).backend(place.url()).command(["touch", "t"]).output();
        let line = refused(&place, &output, 78);
        assert!(line.starts_with("FILE:") && !line.contains("hunter2"), "{text:?}: {line}");
        let output = show(&place, text).output();
        assert!(!output.stderr.contains("hunter2") && output.stdout.is_empty(), "{text:?}: {output:?}");
    }
}

#[test]
fn no_input_causes_a_panic() {
    let place = Place::new();
    let deep = format!("a = {}", "[".repeat(100_000));
    let dots = format!("[locks{}]", ".x".repeat(100_000));
    let long = format!("[locks.x]\nnote = \"{}\"", "n".repeat(900_000));
    for text in [&deep, &dots, &long, "\u{feff}backend = \"file:\"\n\u{0}", "\r\r\r=", "[locks.\"\"]\n'' = 1"]
    {
        let output = run(&place, text).command(["touch", "t"]).output();
        refused(&place, &output, 78);
    }
}

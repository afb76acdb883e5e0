//! What Memcached cannot do, each in a sentence, before anything is contacted.

use crate::support::dlock::Dlock;
use crate::support::memcached::Memcached;
use crate::support::place::Place;
use crate::support::running::{Exit, Output};

/// Nothing listens there.
const URL: &str = "memcached://127.0.0.1:1";

#[track_caller]
fn assert_refused(output: &Output, flag: &str, why: &str) {
    let message = format!("dlock: {flag}{URL}: {why}\n");
    assert_eq!(output.outcome(), (Exit::Code(64), "", message.as_str()));
}

#[test]
fn a_run_is_not_short_and_not_once_per_anything() {
    for (options, flag, why) in [
        (
            &["--once-per", "1h"],
            "--once-per: ",
            "Memcached may forget that a run has succeeded: use another store",
        ),
        (
            &["--ttl", "2900ms"],
            "--ttl: ",
            "Memcached counts leases in whole seconds, and not exactly: at least 3s",
        ),
    ] {
        let output = Dlock::run().backend(URL).args(options).sh("echo ran").output();
        assert_refused(&output, flag, why);
    }
}

#[test]
fn a_refused_setting_that_is_not_on_the_command_line_is_wrong_configuration() {
    let output = Dlock::run().backend(URL).env("DLOCK_TTL", "2s").sh("echo ran").output();
    let message = format!(
        "dlock: DLOCK_TTL: {URL}: Memcached counts leases in whole seconds, and not exactly: at least 3s\n"
    );
    assert_eq!(output.outcome(), (Exit::Code(78), "", message.as_str()));
}

#[test]
fn there_is_no_list_and_no_fencing_token() {
    let dlock = |words: &[&str]| Place::new().bare().args(words).env("DLOCK_BACKEND", URL).output();
    for words in
        [&["status"][..], &["status", "nightly-*"], &["status", "--json", "x", "*"], &["status", "--history"]]
    {
        assert_refused(&dlock(words), "", "Memcached cannot list its locks: name each of them");
    }
    let output = dlock(&["check", "--fencing-token", "7", "x"]);
    assert_refused(&output, "--fencing-token: ", "Memcached has no fencing tokens: use another store");
    for words in [&["acquire", "--ttl", "1s", "x"][..], &["renew", "--ttl", "1s", "x"]] {
        let output =
            Place::new().bare().args(words).env("DLOCK_BACKEND", URL).env("DLOCK_TOKEN", "t").output();
        let why = "Memcached counts leases in whole seconds, and not exactly: at least 3s";
        assert_refused(&output, "--ttl: ", why);
    }
}

/// Whether the token in a file still owns a lock could be found out only with a list of all locks.
#[test]
fn a_token_in_a_file_is_not_overwritten() {
    let (memcached, place) = (Memcached::start(), Place::new());
    let (url, file) = (memcached.url(), place.arg("token"));
    let acquire = |name: &'static str| {
        let words = ["acquire", "-q", "-b", &url, "--ttl", "1m", "--token-file", &file, name];
        place.bare().args(words).output()
    };
    assert_eq!(acquire("x").outcome(), (Exit::Code(0), "", ""));
    let token = place.read("token");
    let message = format!(
        "dlock: --token-file: the token in '{file}' may still own a lock on {url}, and Memcached cannot list its locks: \
         name each of them: remove the file, or name another one\n"
    );
    assert_eq!(acquire("y").outcome(), (Exit::Code(64), "", message.as_str()));
    assert_eq!(place.read("token"), token);
    assert_eq!(memcached.get("dlock:y"), None);
    for (command, code) in [("check", 0), ("renew", 0), ("release", 0), ("check", 76), ("release", 76)] {
        let output = place.bare().args([command, "-b", &url, "--token-file", &file, "x"]).output();
        assert_eq!(output.exit, Exit::Code(code), "{command}: {}", output.stderr);
    }
    assert_eq!(memcached.get("dlock:x"), None);
}

#[test]
fn a_run_warns_once_that_its_lock_is_for_efficiency_only() {
    let (memcached, place) = (Memcached::start(), Place::new());
    let url = memcached.url();
    let message = format!(
        "dlock: {url} is for efficiency only: it may forget a lock at any time, and then the command runs twice; see \
         dlock doctor\n"
    );
    let run = || place.run().backend(&url).args(["--ttl", "6s"]);
    // Two renewals later.
    let output = run().name("y").sh("sleep 4.5; echo ${DLOCK_FENCING_TOKEN-unset}").output();
    assert_eq!(output.outcome(), (Exit::Code(0), "unset\n", message.as_str()));
    assert_eq!(run().arg("-q").sh("echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""));
    let table = format!("[backends.mc]\nurl = '{url}'\naccept = ['efficiency']\n");
    let file = place.write("config.toml", &table);
    let output = place.run().backend("mc").arg("--config").arg(file).sh("echo ran").output();
    assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
}

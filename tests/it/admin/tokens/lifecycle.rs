//! A token from acquire to release.

use super::dlock;
use super::on_redis::{acquire, assert_free, left, token, with};
use crate::support::SOON;
use crate::support::resp::Value;
use crate::support::running::{Exit, Output};
use crate::support::store::Store;
use crate::support::wait::until;

/// The message for a token that owns nothing.
fn not_ours(store: &Store) -> String {
    format!("dlock: x on {}: this token does not own the lock, or no longer does: it is free\n", store.url())
}

#[track_caller]
fn assert_silent(output: &Output) {
    assert_eq!(output.outcome(), (Exit::Code(0), "", ""));
}

#[test]
fn a_token_owns_the_lock_until_its_release() {
    let store = Store::redis();
    let token = token(&store, "60s");
    let refused = store.run_with_ttl("30s").command(["touch", "t"]).output();
    assert_eq!((refused.exit, refused.stdout.as_str()), (Exit::Code(75), ""));
    assert!(refused.stderr.contains("x is held by a token of ") && refused.stderr.contains("dlock acquire"));
    assert_eq!(acquire(&store, "60s").output().exit, Exit::Code(75));
    for command in ["check", "renew", "check"] {
        assert_silent(&with(&store, &token, command, &[]));
    }
    assert_silent(&with(&store, &token, "release", &[]));
    assert_free(&store);
    for command in ["release", "renew", "check", "release"] {
        let output = with(&store, &token, command, &[]);
        assert_eq!(output.outcome(), (Exit::Code(76), "", not_ours(&store).as_str()), "{command}");
        // Not even this silences it.
        assert_eq!(with(&store, &token, command, &["-q"]).stderr, not_ours(&store), "{command}");
    }
    assert_free(&store);
    assert_silent(&store.run_with_ttl("30s").command(["true"]).output());
    assert!(!store.place.path("t").exists());
}

#[test]
fn an_unrenewed_lease_ends_and_is_never_created_again() {
    let store = Store::redis();
    let token = token(&store, "4s");
    until(SOON, "the end of the lease", || !store.is_held());
    for command in ["renew", "check", "release"] {
        let output = with(&store, &token, command, &[]);
        assert_eq!(output.outcome(), (Exit::Code(76), "", not_ours(&store).as_str()), "{command}");
        assert!(!store.is_held(), "after {command}");
    }
    assert_silent(&store.run_with_ttl("30s").command(["true"]).output());
}

#[test]
fn renewal_restarts_the_lease_with_the_former_or_the_given_duration() {
    let store = Store::redis();
    let token = token(&store, "600s");
    assert!((590_000..=600_000).contains(&left(&store)));
    assert_silent(&with(&store, &token, "renew", &["--ttl", "60s"]));
    assert!((50_000..=60_000).contains(&left(&store)), "{}", left(&store));
    assert_silent(&with(&store, &token, "renew", &[]));
    assert!((590_000..=600_000).contains(&left(&store)), "{}", left(&store));
    assert_silent(&with(&store, &token, "renew", &["--ttl", "1h"]));
    assert!((3_590_000..=3_600_000).contains(&left(&store)), "{}", left(&store));
}

#[test]
fn json_output_reports_the_same() {
    let store = Store::redis();
    let acquired = acquire(&store, "60s").arg("--json").output();
    let object: serde_json::Value = serde_json::from_str(&acquired.stdout).unwrap();
    let (token, fencing) = (object["token"].as_str().unwrap(), object["fencing_token"].as_u64().unwrap());
    let rest = object["expires_in_ms"].as_u64().unwrap();
    assert!((50_000..=60_000).contains(&rest), "{rest}");
    let line = format!(
        "{{\"version\":1,\"name\":\"x\",\"token\":\"{token}\",\"fencing_token\":{fencing},\"expires_in_ms\":{rest},\
         \"backend\":\"{}\"}}\n",
        store.url()
    );
    assert_eq!(acquired.outcome(), (Exit::Code(0), line.as_str(), ""));

    let renewed = with(&store, token, "renew", &["--json", "--ttl", "5m"]);
    let object: serde_json::Value = serde_json::from_str(&renewed.stdout).unwrap();
    let rest = object["expires_in_ms"].as_u64().unwrap();
    assert!((290_000..=300_000).contains(&rest), "{rest}");
    let line = format!(
        "{{\"version\":1,\"name\":\"x\",\"fencing_token\":{fencing},\"expires_in_ms\":{rest},\"backend\":\"{}\"}}\n",
        store.url()
    );
    assert_eq!(renewed.outcome(), (Exit::Code(0), line.as_str(), ""));
}

#[test]
fn a_token_of_another_lock_or_an_unknown_one_changes_nothing() {
    let store = Store::redis();
    let ours = token(&store, "600s");
    let other = dlock(&store, "acquire").args(["--ttl", "60s", "y"]).output();
    let other = other.stdout.trim_end();
    let long = "f".repeat(256);
    for wrong in [other, "nonsense", " ", "größe", &long, &ours[..31], &ours.to_uppercase()] {
        for command in ["renew", "release", "check"] {
            let output = with(&store, wrong, command, &[]);
            assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(76), ""), "{command} {wrong}");
            assert!(output.stderr.contains("it is held by a token of "), "{}", output.stderr);
            assert!(!output.stderr.contains(ours.as_str()), "{}", output.stderr);
            assert!(wrong == " " || !output.stderr.contains(wrong), "{}", output.stderr);
        }
        assert!(left(&store) > 500_000, "it was not renewed to another length");
    }
    assert_silent(&with(&store, &ours, "check", &[]));
    assert_eq!(store.space().command(&["GET", &store.space().key("x")]), Value::Text(ours));
}

#[test]
fn status_shows_a_lease_without_a_process() {
    let store = Store::redis();
    let token = acquire(&store, "60s").args(["--note", "release 1.2"]).output();
    let token = token.stdout.trim_end().to_owned();
    let seen = dlock(&store, "status").args(["--json", "x"]).output();
    let object: serde_json::Value = serde_json::from_str(&seen.stdout).unwrap();
    let holder = &object["locks"][0]["holders"][0];
    assert_eq!((&holder["phase"], &holder["command"]), (&"token".into(), &"dlock acquire".into()));
    assert_eq!(holder["note"], "release 1.2");
    assert!(!seen.stdout.contains(&token), "{}", seen.stdout);
    let refused = store.run_with_ttl("30s").command(["true"]).output();
    assert!(refused.stderr.contains("dlock acquire, note: release 1.2) for "), "{}", refused.stderr);
}

/// There is no process to notify; a forced break leaves a token that owns nothing.
#[test]
fn a_token_owns_nothing_after_a_forced_break() {
    let store = Store::redis();
    let token = token(&store, "60s");
    assert_eq!(dlock(&store, "break").args(["--yes", "x"]).output().exit, Exit::Code(75));
    assert_silent(&with(&store, &token, "renew", &[]));
    let forced = dlock(&store, "break").args(["--yes", "--force", "x"]).output();
    assert_eq!(forced.exit, Exit::Code(0), "{}", forced.stderr);
    for command in ["renew", "check", "release"] {
        let output = with(&store, &token, command, &[]);
        assert_eq!(output.outcome(), (Exit::Code(76), "", not_ours(&store).as_str()), "{command}");
    }
}

#[test]
fn fencing_tokens_grow_from_one_lease_to_the_next() {
    let store = Store::redis();
    let mut last = 0;
    for _ in 0..3 {
        let acquired = acquire(&store, "60s").arg("--json").output();
        let object: serde_json::Value = serde_json::from_str(&acquired.stdout).unwrap();
        let fencing = object["fencing_token"].as_u64().unwrap();
        assert!(fencing > last);
        last = fencing;
        assert_silent(&with(&store, object["token"].as_str().unwrap(), "release", &[]));
    }
    let run = store.run_with_ttl("30s").sh("echo $DLOCK_FENCING_TOKEN").output();
    assert!(run.stdout.trim_end().parse::<u64>().unwrap() > last);
}

/// Where the environment is not passed between steps, the file has the token; the flag overrides the variable.
#[test]
fn a_token_file_replaces_the_variable() {
    let store = Store::redis();
    let file = store.place.arg("token");
    let acquired = acquire(&store, "60s").args(["--token-file", &file]).output();
    assert_silent(&acquired);
    for command in ["check", "renew", "release"] {
        let run = dlock(&store, command).args(["--token-file", &file, "x"]);
        assert_silent(&run.env("DLOCK_TOKEN", "nonsense").output());
    }
    assert_free(&store);
    // Without a line break, or from a pipe, it works the same.
    let token = token(&store, "60s");
    store.place.write("token", &token);
    assert_silent(&dlock(&store, "check").args(["--token-file", &file, "x"]).output());
    let piped = dlock(&store, "check").args(["--token-file", "/dev/stdin", "x"]);
    assert_silent(&piped.stdin(std::fs::File::open(&file).unwrap()).output());
}

/// All settings of the lock in the configuration, except its lease; and under a run no file has to name the store.
#[test]
fn the_configuration_of_a_lock_applies_to_its_tokens() {
    let store = Store::redis();
    let text = format!(
        "[locks.x]\nbackend = \"{}\"\nttl = \"2h\"\nnote = \"configured\"\nconflict_exit_code = 9\nquiet = true\n",
        store.url()
    );
    let file = store.place.write("config.toml", &text).display().to_string();
    let run = |command: &str| store.place.bare().args([command, "--config", &file]);
    let acquired = run("acquire").args(["--ttl", "60s", "x"]).output();
    let token = acquired.stdout.trim_end();
    assert_eq!((acquired.exit, acquired.stderr.as_str(), token.len()), (Exit::Code(0), "", 32));
    assert!(left(&store) <= 60_000);
    assert_eq!(run("acquire").arg("x").output().exit, Exit::Code(64), "--ttl is not configured");
    let refused = run("acquire").args(["--ttl", "60s", "x"]).output();
    assert_eq!(refused.outcome(), (Exit::Code(9), "", ""));
    assert!(store.run_with_ttl("30s").command(["true"]).output().stderr.contains("note: configured"));
    for command in ["renew", "check", "release"] {
        assert_silent(&run(command).arg("x").env("DLOCK_TOKEN", token).output());
    }
    let inner = format!("'{}' check --config '{file}'", crate::support::dlock::BINARY);
    assert_silent(&store.run_with_ttl("30s").sh(&inner).output());
}

//! `dlock check`: is the lock still held?

use super::dlock;
use crate::support::SOON;
use crate::support::dlock::BINARY;
use crate::support::running::{Exit, Running};
use crate::support::store::Store;
use crate::support::wait::until;

/// `dlock check` as a command line for the shell.
fn check(arguments: &str) -> String {
    format!("'{BINARY}' check {arguments}")
}

/// It needs neither a name nor a store: the hold names both.
#[test]
fn under_a_run_check_succeeds() {
    for store in Store::each() {
        for arguments in ["", "x", &format!("-b '{}'", store.url()), &format!("-b '{}' x", store.url())] {
            let output = store.run_with_ttl("30s").sh(&check(arguments)).output();
            assert_eq!(output.outcome(), (Exit::Code(0), "", ""), "{arguments}");
        }
        let output = store.run_with_ttl("30s").sh(&check("-v")).output();
        let line = format!("dlock: x on {}: held", store.url());
        assert!(output.stderr.starts_with(&line), "{}", output.stderr);
        let shared = store.run_with_ttl("30s").arg("--shared").sh(&check("")).output();
        assert_eq!(shared.outcome(), (Exit::Code(0), "", ""));
    }
}

/// All holds of the enclosing runs, in any stores.
#[test]
fn without_a_name_every_hold_is_checked() {
    let outer = Store::file();
    for inner in Store::each() {
        let text = format!("'{BINARY}' run -b '{}' y -- '{BINARY}' check", inner.url());
        assert_eq!(outer.run().sh(&text).output().outcome(), (Exit::Code(0), "", ""));
        let text = format!(
            "'{BINARY}' run -b '{}' y -- sh -c 'rm \"{}\"; \"{BINARY}\" check y && \"{BINARY}\" check'",
            inner.url(),
            outer.place.lock_file("x").display()
        );
        let output = outer.run().args(["--on-lost", "warn", "-q"]).sh(&text).output();
        let lost =
            format!("dlock: x on {}: this token does not own the lock, or no longer does: ", outer.url());
        assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
        assert!(output.stderr.lines().any(|line| line.starts_with(&lost)), "{}", output.stderr);
    }
}

/// Repeats the check until it fails; the run's own message about the loss comes sooner or later.
fn lose(store: &Store, lose: impl FnOnce()) -> Running {
    let text = format!("echo ready; until [ -e lost ]; do sleep 0.05; done; {}; echo $? >answer", check(""));
    let mut run = store.run_with_ttl("60s").args(["--on-lost", "warn"]).sh(&text).spawn();
    run.await_ready();
    lose();
    store.place.write("lost", "");
    until(SOON, "an answer", || store.place.read("answer").ends_with('\n'));
    run
}

#[test]
fn check_fails_for_a_lost_lock() {
    let store = Store::file();
    let run = lose(&store, || std::fs::remove_file(store.place.lock_file("x")).unwrap());
    assert_eq!(store.place.read("answer"), "76\n", "{}", run.stderr());
    // Another file in its place is another lock.
    let store = Store::file();
    let lock = store.place.lock_file("x");
    let run = lose(&store, || {
        std::fs::write(store.place.path("new"), "").unwrap();
        std::fs::rename(store.place.path("new"), &lock).unwrap();
    });
    assert_eq!(store.place.read("answer"), "76\n", "{}", run.stderr());
    {
        let store = Store::redis();
        let key = store.space().key("x");
        let run = lose(&store, || drop(store.space().command(&["DEL", &key])));
        assert_eq!(store.place.read("answer"), "76\n", "{}", run.stderr());
        let store = Store::redis();
        let key = store.space().key("x");
        let run = lose(&store, || drop(store.space().command(&["SET", &key, "another's", "PX", "60000"])));
        assert_eq!(store.place.read("answer"), "76\n", "{}", run.stderr());
        assert!(run.stderr().contains("it is held by another program on "), "{}", run.stderr());
    }
}

#[test]
fn check_fails_for_another_name() {
    for store in Store::each() {
        let output = store.run_with_ttl("30s").sh(&check(&format!("-b '{}' y", store.url()))).output();
        let line = format!(
            "dlock: y on {}: this token does not own the lock, or no longer does: it is free\n",
            store.url()
        );
        assert_eq!(output.outcome(), (Exit::Code(76), "", line.as_str()));
    }
}

/// The traces of an ended run hold nothing.
#[test]
fn check_fails_after_the_run() {
    for store in Store::each() {
        let held = store.run_with_ttl("30s").sh("printf %s \"$DLOCK_HELD\"").output().stdout;
        let output = store.place.bare().arg("check").env("DLOCK_HELD", &held).output();
        let line = format!(
            "dlock: x on {}: this token does not own the lock, or no longer does: it is free\n",
            store.url()
        );
        assert_eq!(output.outcome(), (Exit::Code(76), "", line.as_str()));
        // An explicit other store is queried instead, where the lock is not held either.
        let other = Store::file();
        let output = dlock(&other, "check").env("DLOCK_HELD", &held).output();
        let line = format!(
            "dlock: x on {}: this token does not own the lock, or no longer does: it is free\n",
            other.url()
        );
        assert_eq!(output.outcome(), (Exit::Code(76), "", line.as_str()));
        // The environment of a pipeline names a store for everything; the hold names its own.
        let inside = store.run_with_ttl("30s").env("DLOCK_BACKEND", other.url()).sh(&check("x")).output();
        assert_eq!(inside.outcome(), (Exit::Code(0), "", ""));
    }
}

#[test]
fn a_directory_with_special_characters_is_found_again() {
    let place = crate::support::place::Place::new();
    let directory = place.path("a b%41#c");
    std::fs::create_dir(&directory).unwrap();
    let url = format!("file://{}", directory.display());
    let url = url.replace('%', "%25").replace(' ', "%20").replace('#', "%23");
    let output = place.run().backend(url).sh(&check("")).output();
    assert_eq!(output.outcome(), (Exit::Code(0), "", ""));
    // A value that cannot be parsed is not guessed.
    let held = r#"[{"name":"x","token":"t","backend":"redis://h/0?prefix=a&b"}]"#;
    let output = place.bare().arg("check").env("DLOCK_HELD", held).output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(78), ""));
    assert!(output.stderr.contains("name the store with DLOCK_BACKEND or -b"), "{}", output.stderr);
}

/// `DLOCK_HELD` has no passwords; the usual variable has, or the named store.
#[test]
fn a_store_with_a_password_needs_a_backend_or_the_password() {
    use crate::support::redis::Redis;
    let redis = Redis::start_with_args(&["--requirepass", "secret"]);
    let url = format!("redis://:secret@127.0.0.1:{}/0", redis.port());
    let place = crate::support::place::Place::new();
    let run = |text: &str| place.run().no_backend().env("URL", &url).sh(text);
    let outer = |inner: &str| {
        let text = format!("DLOCK_BACKEND=\"$URL\" '{BINARY}' run y -- env -u DLOCK_BACKEND {inner}");
        run(&text).arg("-q").output()
    };
    let output = outer(&format!("'{BINARY}' check y"));
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(77), ""), "{}", output.stderr);
    assert!(
        output.stderr.ends_with(
            "; DLOCK_HELD contains no passwords and certificates: name the store with DLOCK_BACKEND or -b\n"
        ),
        "{}",
        output.stderr
    );
    assert!(!output.stderr.contains("secret"));
    let by_variable = outer(&format!("REDISCLI_AUTH=secret '{BINARY}' check y"));
    assert_eq!(by_variable.outcome(), (Exit::Code(0), "", ""));
    let by_name = outer(&format!("sh -c 'DLOCK_BACKEND=\"$URL\" exec \"{BINARY}\" check y'"));
    assert_eq!(by_name.outcome(), (Exit::Code(0), "", ""));
}

/// The option checks its own token, whatever the enclosing run is.
#[test]
fn a_token_file_overrides_the_enclosing_run() {
    let store = Store::redis();
    let file = store.place.write("token", "nonsense\n");
    let inner = check(&format!("-b '{}' --token-file '{}' x", store.url(), file.display()));
    let output = store.run_with_ttl("30s").sh(&inner).output();
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
    let inner = check(&format!("-b '{}' x", store.url()));
    let output = store.run_with_ttl("30s").sh(&format!("DLOCK_TOKEN=nonsense {inner}")).output();
    assert_eq!(output.outcome(), (Exit::Code(0), "", ""), "DLOCK_HELD comes before DLOCK_TOKEN");
}

/// The store of the hold is queried.
#[test]
fn under_a_run_a_fencing_token_is_checked_at_the_store_of_its_hold() {
    let other = Store::file();
    for store in Store::each() {
        let text = check("-v --fencing-token $DLOCK_FENCING_TOKEN x; echo $? $DLOCK_FENCING_TOKEN");
        let output = store.run_with_ttl("30s").env("DLOCK_BACKEND", other.url()).sh(&text).output();
        let (status, token) = output.stdout.trim().split_once(' ').expect("two words");
        let line = format!("dlock: x on {}: no later fencing token than {token}\n", store.url());
        assert_eq!((output.exit, status, output.stderr.as_str()), (Exit::Code(0), "0", line.as_str()));
        let text = check("--fencing-token $(($DLOCK_FENCING_TOKEN - 1)) x");
        let output = store.run_with_ttl("30s").sh(&text).output();
        let newer = token.parse::<u64>().unwrap();
        assert_eq!((output.exit, output.stderr.lines().count()), (Exit::Code(76), 1), "{}", output.stderr);
        assert!(
            output.stderr.starts_with(&format!("dlock: x on {}: fencing token ", store.url())),
            "{newer}"
        );
        // A name that this run does not hold is looked up in the named store.
        let text = check(&format!("-b '{}' --fencing-token 1 y", other.url()));
        assert_eq!(store.run_with_ttl("30s").sh(&text).output().outcome(), (Exit::Code(0), "", ""));
    }
}

#[test]
fn a_fencing_token_is_checked_for_one_lock_and_without_another_token() {
    let name = "--fencing-token: of which lock? dlock check --fencing-token N nightly";
    let both = "--fencing-token and --token-file contradict each other: give one of them";
    crate::acquire::refusal::assert_usage([
        (&["check", "--fencing-token", "7"][..], name),
        (&["check", "--fencing-token", "7", "--token-file", "t", "x"], both),
    ]);
    for number in ["0", "-1", "x", "1.5", "9007199254740992"] {
        let line = format!(
            "invalid value '{number}' for '--fencing-token <N>': expected a positive integer, as dlock status --wide shows it"
        );
        crate::acquire::refusal::assert_usage([(
            &["check", "--fencing-token", number, "x"][..],
            line.as_str(),
        )]);
    }
}

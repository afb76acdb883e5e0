//! Is the lock still ours?

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
fn under_a_run_it_is_ours() {
    for store in Store::each() {
        for arguments in ["", "x", &format!("-b '{}'", store.url()), &format!("-b '{}' x", store.url())] {
            let output = store.run().sh(&check(arguments)).output();
            assert_eq!(output.outcome(), (Exit::Code(0), "", ""), "{arguments}");
        }
        let output = store.run().sh(&check("-v")).output();
        let line = format!("dlock: x on {}: ours", store.url());
        assert!(output.stderr.starts_with(&line), "{}", output.stderr);
        let shared = store.run().arg("--shared").sh(&check("")).output();
        assert_eq!(shared.outcome(), (Exit::Code(0), "", ""));
    }
}

/// All of what we run under, in whatever stores.
#[test]
fn without_a_name_every_hold_has_to_be_ours() {
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
        let lost = format!("dlock: x on {}: not ours, or not any more: ", outer.url());
        assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
        assert!(output.stderr.lines().any(|line| line.starts_with(&lost)), "{}", output.stderr);
    }
}

/// Asks again and again until told that it is not ours; the run's own line about the loss comes sooner or later.
fn lose(store: &Store, lose: impl FnOnce()) -> Running {
    let text = format!("echo ready; until [ -e lost ]; do sleep 0.01; done; {}; echo $? >told", check(""));
    let mut run = store.run_with_ttl("60s").args(["--on-lost", "warn"]).sh(&text).spawn();
    run.await_ready();
    lose();
    store.place.write("lost", "");
    until(SOON, "an answer", || store.place.read("told").ends_with('\n'));
    run
}

#[test]
fn a_lock_that_was_lost_is_not_ours() {
    let store = Store::file();
    let run = lose(&store, || std::fs::remove_file(store.place.lock_file("x")).unwrap());
    assert_eq!(store.place.read("told"), "76\n", "{}", run.stderr());
    // Another file in its place is another lock.
    let store = Store::file();
    let lock = store.place.lock_file("x");
    let run = lose(&store, || {
        std::fs::write(store.place.path("new"), "").unwrap();
        std::fs::rename(store.place.path("new"), &lock).unwrap();
    });
    assert_eq!(store.place.read("told"), "76\n", "{}", run.stderr());
    #[cfg(feature = "redis")]
    {
        let store = Store::redis();
        let key = store.space().key("x");
        let run = lose(&store, || drop(store.space().command(&["DEL", &key])));
        assert_eq!(store.place.read("told"), "76\n", "{}", run.stderr());
        let store = Store::redis();
        let key = store.space().key("x");
        let run = lose(&store, || drop(store.space().command(&["SET", &key, "another's", "PX", "60000"])));
        assert_eq!(store.place.read("told"), "76\n", "{}", run.stderr());
        assert!(run.stderr().contains("it is held by another program on "), "{}", run.stderr());
    }
}

#[test]
fn another_name_is_not_ours() {
    for store in Store::each() {
        let output = store.run().sh(&check(&format!("-b '{}' y", store.url()))).output();
        let line = format!("dlock: y on {}: not ours, or not any more: it is free\n", store.url());
        assert_eq!(output.outcome(), (Exit::Code(76), "", line.as_str()));
    }
}

/// What a run has left behind does not hold anything.
#[test]
fn after_the_run_it_is_not_ours() {
    for store in Store::each() {
        let held = store.run().sh("printf %s \"$DLOCK_HELD\"").output().stdout;
        let output = store.place.bare().arg("check").env("DLOCK_HELD", &held).output();
        let line = format!("dlock: x on {}: not ours, or not any more: it is free\n", store.url());
        assert_eq!(output.outcome(), (Exit::Code(76), "", line.as_str()));
        // Another store that was named is asked instead, on which nobody has it either.
        let other = Store::file();
        let output = dlock(&other, "check").env("DLOCK_HELD", &held).output();
        let line = format!("dlock: x on {}: not ours, or not any more: it is free\n", other.url());
        assert_eq!(output.outcome(), (Exit::Code(76), "", line.as_str()));
        // The environment of a pipeline names a store for everything; the hold names its own.
        let inside = store.run().env("DLOCK_BACKEND", other.url()).sh(&check("x")).output();
        assert_eq!(inside.outcome(), (Exit::Code(0), "", ""));
    }
}

#[test]
fn a_directory_with_odd_characters_is_found_again() {
    let place = crate::support::place::Place::new();
    let directory = place.path("a b%41#c");
    std::fs::create_dir(&directory).unwrap();
    let url = format!("file://{}", directory.display());
    let url = url.replace('%', "%25").replace(' ', "%20").replace('#', "%23");
    let output = place.run().backend(url).sh(&check("")).output();
    assert_eq!(output.outcome(), (Exit::Code(0), "", ""));
    // What cannot be read back is not guessed.
    let held = r#"[{"name":"x","token":"t","backend":"redis://h/0?prefix=a&b"}]"#;
    let output = place.bare().arg("check").env("DLOCK_HELD", held).output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(78), ""));
    assert!(output.stderr.contains("name the store by DLOCK_BACKEND or -b"), "{}", output.stderr);
}

/// `DLOCK_HELD` has no passwords; the usual variable has, or the named store.
#[cfg(feature = "redis")]
#[test]
fn a_store_with_a_password_has_to_be_named_or_the_password_given() {
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
            "; DLOCK_HELD tells no passwords and certificates: name the store by DLOCK_BACKEND or -b\n"
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

/// The option asks about its own token, whatever we run under.
#[cfg(feature = "redis")]
#[test]
fn a_token_file_is_asked_about_before_what_we_run_under() {
    let store = Store::redis();
    let file = store.place.write("token", "nonsense\n");
    let inner = check(&format!("-b '{}' --token-file '{}' x", store.url(), file.display()));
    let output = store.run().sh(&inner).output();
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
    let inner = check(&format!("-b '{}' x", store.url()));
    let output = store.run().sh(&format!("DLOCK_TOKEN=nonsense {inner}")).output();
    assert_eq!(output.outcome(), (Exit::Code(0), "", ""), "DLOCK_HELD comes before DLOCK_TOKEN");
}

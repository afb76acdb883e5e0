//! `dlock doctor --fencing-floor`: what is refused, and what remains. That tokens grow from there is checked on every
//! store.

use crate::support::place::Place;
use crate::support::redis::Redis;
use crate::support::resp::Value;
use crate::support::running::Exit;
use crate::support::store::Store;

#[test]
fn bad_input_is_refused() {
    let place = Place::new();
    let largest = "9007199254740990";
    let number = "expected a positive integer below 9007199254740991, which leaves a larger token";
    for (arguments, message) in [
        (
            &["--fencing-floor", "0", "x"][..],
            format!("invalid value '0' for '--fencing-floor <N>': {number}"),
        ),
        (&["--fencing-floor", "-1", "x"], format!("invalid value '-1' for '--fencing-floor <N>': {number}")),
        (
            &["--fencing-floor", "9007199254740992", "x"],
            format!("invalid value '9007199254740992' for '--fencing-floor <N>': {number}"),
        ),
        (
            &["--fencing-floor", "9007199254740991", "x"],
            format!("invalid value '9007199254740991' for '--fencing-floor <N>': {number}"),
        ),
        (
            &["--fencing-floor", "7"],
            "--fencing-floor: of which lock? dlock doctor --fencing-floor N nightly".into(),
        ),
        (
            &["--fencing-floor", "7", "x", "y"],
            "--fencing-floor: one NAME is needed, not 2: repeat it for each lock".into(),
        ),
        (
            &["x"],
            "doctor checks a store, and takes no NAME: for the state of a lock, see dlock status NAME".into(),
        ),
        (
            &["-b", "memcached://127.0.0.1:1", "--fencing-floor", "7", "x"],
            "--fencing-floor: memcached://127.0.0.1:1: Memcached has no fencing tokens: use another store"
                .into(),
        ),
    ] {
        let output = place.bare().arg("doctor").args(arguments).output();
        let message = format!("dlock: {message}\n");
        assert_eq!(output.outcome(), (Exit::Code(64), "", message.as_str()), "{arguments:?}");
    }
    let output = place.bare().args(["doctor", "-b", &place.url(), "--fencing-floor", largest, "x"]).output();
    assert_eq!(output.outcome(), (Exit::Code(0), "", ""));
    let output =
        place.bare().args(["run", "-b", &place.url(), "x", "-c", "echo $DLOCK_FENCING_TOKEN"]).output();
    assert_eq!(output.outcome(), (Exit::Code(0), "9007199254740991\n", ""));
}

/// A counter that was raised is ahead of the server's time, at which a new one begins: it must not expire.
#[test]
fn a_raised_counter_does_not_expire() {
    let redis = Redis::start();
    let store = Store::on(&redis);
    let expiry = || {
        let keys = redis.command(&["KEYS", "dlock#fencing:*"]).texts();
        assert_eq!(keys.len(), 1, "{keys:?}");
        redis.command(&["PTTL", &keys[0]])
    };
    let expires = || expiry() != Value::Int(-1);
    assert_eq!(store.run_with_ttl("30s").sh("true").output().exit, Exit::Code(0));
    assert!(expires(), "{:?}", expiry());
    let raise = || {
        let url = store.url();
        store.place.bare().args(["doctor", "-b", url, "--fencing-floor", "4503599627370496", "x"]).output()
    };
    assert_eq!(raise().outcome(), (Exit::Code(0), "", ""));
    assert!(!expires(), "{:?}", expiry());
    assert_eq!(store.run_with_ttl("30s").sh("true").output().exit, Exit::Code(0));
    assert!(!expires(), "{:?}", expiry());
}

#[test]
fn a_user_without_rights_is_refused() {
    let redis = Redis::start();
    let store = Store::on(&redis);
    for words in [
        &["ACL", "SETUSER", "none", "on", ">s3cret", "-@all", "+ping"][..],
        &["ACL", "SETUSER", "read", "on", ">s3cret", "%R~*", "&*", "+@all"],
    ] {
        redis.command(words);
        let url = format!("redis://{}:s3cret@127.0.0.1:{}/0", words[2], redis.port());
        let raise =
            store.place.bare().args(["doctor", "--fencing-floor", "7", "x"]).env("DLOCK_BACKEND", url);
        let output = raise.output();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(77), ""), "{words:?}: {output:?}");
        assert!(output.stderr.starts_with("dlock: x on redis://"), "{}", output.stderr);
        assert!(!output.stderr.contains("s3cret"), "{}", output.stderr);
    }
}

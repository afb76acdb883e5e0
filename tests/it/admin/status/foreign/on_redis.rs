//! Possible content of the keys of a Redis.

use super::{holders, stranger};
use crate::admin::status::{holding, names, status, the_lock, waiting};
use crate::stores::foreign_clients::redis_py::Client;
use crate::support::redis::Redis;
use crate::support::resp::Value;
use crate::support::running::Exit;
use crate::support::store::Store;

/// F49
#[test]
fn the_lock_of_redis_py_is_shown_when_it_is_named() {
    let store = Store::redis();
    for (timeout, immortal) in [("60", false), ("0", true)] {
        let mut client = Client::new(&store.place, store.space(), "x", timeout);
        assert_eq!(client.ask("try"), "try True");
        let shown = holders(&store, "x");
        let expires = the_lock(&store, ["x"])["holders"][0]["expires_in_ms"].clone();
        assert_eq!(expires.is_null(), immortal);
        assert!(immortal || expires.as_u64().is_some_and(|ms| (50_000..=60_000).contains(&ms)), "{expires}");
        let from = shown.find("expires_in_ms\":").unwrap() + "expires_in_ms\":".len();
        let to = from + shown[from..].find(',').unwrap();
        assert_eq!(shown, stranger(&shown[from..to], immortal));
        assert_eq!(names(&store, []), [""; 0], "it is listed when it is named");
        let table = status(&store).arg("x").output().stdout;
        let state = if immortal { "held, immortal" } else { "held, foreign" };
        assert!(table.contains(state), "{table}");
        assert_eq!(client.ask("release"), "release None");
        assert_eq!(the_lock(&store, ["x"])["state"], "free");
    }
}

/// A dlock waiter makes it a known lock.
#[test]
fn a_foreign_lock_is_listed_while_a_dlock_waits_for_it() {
    let store = Store::redis();
    store.space().command(&["SET", &store.space().key("x"), "foreign", "PX", "60000"]);
    assert_eq!(names(&store, ["*"]), [""; 0]);
    let waiter = waiting(store.run_with_ttl("30s"));
    let lock = the_lock(&store, ["*"]);
    assert_eq!(
        (&lock["name"], &lock["mode"], &lock["slots"]),
        (&"x".into(), &serde_json::Value::Null, &serde_json::Value::Null)
    );
    assert_eq!(lock["holders"][0]["foreign"], true);
    assert_eq!(lock["waiters"][0]["pid"], waiter.pid());
}

/// F46: any value counts as a foreign lock, status does not change it, and it is never printed.
#[test]
fn any_value_in_the_key_is_shown_as_an_unknown_holder() {
    let store = Store::redis();
    let key = store.space().key("x");
    for (command, says) in [
        (&["SET", &key, "\u{1b}[2J secret"][..], "a key without expiry"),
        (&["SET", &key, ""], "a key without expiry"),
        (&["SETRANGE", &key, "5000000", "x"], "a key without expiry"),
        (&["HSET", &key, "uuid:1", "1"], "a key of type hash, as Redisson makes it"),
        (&["RPUSH", &key, "a"], "a key of type list"),
        (&["SADD", &key, "a"], "a key of type set"),
        (&["ZADD", &key, "1", "a"], "a key of type zset"),
        (&["XADD", &key, "1-1", "a", "b"], "a key of type stream"),
    ] {
        store.space().command(&["DEL", &key]);
        assert!(!matches!(store.space().command(command), Value::Error(_)));
        let before = store.space().command(&["DUMP", &key]);
        assert_eq!(holders(&store, "x"), stranger("null", true), "{command:?}");
        let output = status(&store).args(["--exit-code", "x"]).output();
        assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(75), ""));
        assert!(
            output.stdout.contains("held, immortal") && output.stdout.contains(says),
            "{}",
            output.stdout
        );
        assert!(!output.stdout.contains("secret"), "{}", output.stdout);
        assert_eq!(store.space().command(&["DUMP", &key]), before);
    }
    store.space().command(&["DEL", &key]);
}

/// F46
#[test]
fn garbage_in_side_keys_does_not_crash_status() {
    let redis = Redis::start();
    let store = Store::on(&redis);
    let run = holding(store.run_with_ttl("1h"));
    let client = || redis.connect();
    let pid = || the_lock(&store, ["x"])["holders"][0]["pid"].clone();
    assert_eq!(pid(), run.pid());
    // The holder's own description.
    let member = client().command(&["KEYS", "dlock#member:*"]).texts().remove(0);
    let said = client().command(&["GET", &member]).text();
    for garbage in ["", "{", "[]", "null", "17", "\u{0}\u{1b}", "{\"at\":1}", "{\"at\":-1,\"identity\":{}}"] {
        client().command(&["SET", &member, garbage, "PX", "3600000"]);
        let lock = the_lock(&store, ["x"]);
        assert_eq!(
            (&lock["state"], &lock["mode"], &lock["holders"][0]["foreign"]),
            (&"held".into(), &serde_json::Value::Null, &true.into()),
            "{garbage}"
        );
    }
    client().command(&["DEL", &member]);
    client().command(&["LPUSH", &member, "a"]);
    assert_eq!(the_lock(&store, ["x"])["state"], "held");
    client().command(&["DEL", &member]);
    client().command(&["SET", &member, &said, "PX", "3600000"]);
    assert_eq!(pid(), run.pid());
    // The queue, the history and the index.
    for key in [
        "dlock#queue:{dlock:x}",
        "dlock#waiters:{dlock:x}",
        "dlock#succeeded:{dlock:x}",
        "dlock#history:{dlock:x}",
        "dlock#missed:{dlock:x}",
    ] {
        for garbage in [
            &["SET", key, "x"][..],
            &["HSET", key, "a", "b"],
            &["RPUSH", key, "a b", "1 {}", "99999999999999999999 {}"],
            &["ZADD", key, "inf", "a", "-inf", "b"],
        ] {
            client().command(&["DEL", key]);
            assert!(!matches!(client().command(garbage), Value::Error(_)));
            assert_eq!(pid(), run.pid(), "{garbage:?}");
            let output = status(&store).args(["--json", "--history", "x"]).output();
            assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""), "{garbage:?}");
            assert_eq!(
                crate::admin::status::parse(&output.stdout)["locks"][0]["history"],
                serde_json::json!([])
            );
        }
        client().command(&["DEL", key]);
    }
    let entries = [
        "ZADD",
        "dlock#locks",
        "inf",
        "dlock:",
        "1",
        "dlock:a\u{1b}",
        "2",
        "else",
        "-inf",
        "dlock:..",
        "3",
        "\u{0}",
    ];
    assert_eq!(client().command(&entries), Value::Int(5));
    assert_eq!(names(&store, []), ["x"]);
    // The key of the index has another type: locks cannot be listed, but each can be named.
    client().command(&["DEL", "dlock#locks"]);
    client().command(&["SET", "dlock#locks", "x"]);
    assert_eq!(pid(), run.pid());
    let output = status(&store).output();
    assert_eq!(
        (output.exit, output.stdout.as_str(), output.stderr.lines().count()),
        (Exit::Code(78), "", 1),
        "{}",
        output.stderr
    );
    assert!(output.stderr.contains("dlock#locks"), "{}", output.stderr);
}

/// A newer dlock may store other data: the lock is held, and the holder is not guessed.
#[test]
fn a_hold_of_another_dlock_version_is_shown() {
    let store = Store::redis();
    let mut run = holding(store.run_with_ttl("1h"));
    let holder = format!("dlock#holder:{{{}}}", store.space().key("x"));
    store.space().command(&["HSET", &holder, "format", "2"]);
    let lock = the_lock(&store, ["x"]);
    assert_eq!(
        (&lock["state"], &lock["mode"], &lock["holders"][0]["foreign"]),
        (&"held".into(), &serde_json::Value::Null, &true.into())
    );
    let table = status(&store).output().stdout;
    assert!(table.contains("stored by another dlock"), "{table}");
    store.space().command(&["HSET", &holder, "format", "1"]);
    drop(run.take_stdin());
    assert_eq!(run.wait().exit, Exit::Code(0));
}

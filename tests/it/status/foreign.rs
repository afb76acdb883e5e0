//! Locks that somebody else than a dlock has taken, and what else may lie where a lock is.

use super::{names, status, the_lock};
use crate::support::SOON;
use crate::support::running::Exit;
use crate::support::store::Store;
use crate::support::wait::until;
use std::process::{Child, Command, Stdio};

/// The one holder of which nothing is known but what is left of its lease.
fn stranger(expires: &str, immortal: bool) -> String {
    format!(
        r#"[{{"host":null,"pid":null,"user":null,"command":null,"note":null,"url":null,"phase":"unknown","slot":null,"acquired_at":null,"expires_in_ms":{expires},"immortal":{immortal},"fencing_token":null,"foreign":true}}]"#
    )
}

fn holders(store: &Store, name: &str) -> String {
    let output = status(store).args(["--json", name]).output();
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
    let from = output.stdout.find("\"holders\":").unwrap() + "\"holders\":".len();
    let to = output.stdout.find(",\"waiters\"").unwrap();
    output.stdout[from..to].to_owned()
}

/// `flock FILE`, which holds until this value goes.
struct Flock(Child);

impl Flock {
    fn new(store: &Store, options: &[&str]) -> Self {
        let ready = store.place.path("flock-has-it");
        let _ = std::fs::remove_file(&ready);
        let mut command = Command::new("flock");
        command.args(options).arg(store.place.lock_file("x"));
        command.args(["sh", "-c", "touch \"$1\"; exec cat", "sh"]).arg(&ready);
        let child =
            command.stdin(Stdio::piped()).spawn().expect("flock: install the Debian package util-linux");
        until(SOON, "the lock of flock(1)", || ready.exists());
        Self(child)
    }
}

impl Drop for Flock {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// F49
#[test]
fn flock_is_shown_when_its_lock_is_named() {
    let store = Store::file();
    for (options, mode) in [(&[][..], "exclusive"), (&["--shared"], "shared")] {
        let flock = Flock::new(&store, options);
        let lock = the_lock(&store, ["x"]);
        assert_eq!((&lock["state"], &lock["mode"]), (&"held".into(), &mode.into()));
        assert_eq!(holders(&store, "x"), stranger("null", false));
        assert_eq!(status(&store).args(["--exit-code", "x"]).output().exit, Exit::Code(75));
        let table = status(&store).arg("x").output().stdout;
        let expected = format!(
            "{}\nLOCK  STATE{:width$}NOTE\nx     {mode}, foreign  process {}, flock\n",
            store.url(),
            "",
            flock.0.id(),
            width = mode.len() + 6
        );
        assert_eq!(table, expected);
        assert_eq!(names(&store, []), [""; 0], "it is listed when it is named");
        drop(flock);
        assert_eq!(the_lock(&store, ["x"])["state"], "free");
    }
}

/// Nobody who tries the lock for a moment ever fails because somebody looks.
#[test]
fn looking_never_makes_another_program_fail() {
    let store = Store::file();
    let script = "for i in $(seq 300); do flock -n \"$1\" true || echo failed; done";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(store.place.lock_file("x"));
    let mut loop_ = command.stdout(Stdio::piped()).spawn().unwrap();
    while loop_.try_wait().unwrap().is_none() {
        assert_eq!(status(&store).args(["--json", "x", "*"]).output().exit, Exit::Code(0));
    }
    assert_eq!(String::from_utf8_lossy(&loop_.wait_with_output().unwrap().stdout), "");
}

/// Nor does a dlock that takes the lock while somebody looks.
#[test]
fn looking_never_makes_a_dlock_fail() {
    for store in Store::each() {
        let mut watch = status(&store).args(["--json", "--watch=100ms", "x", "*"]).spawn();
        for _ in 0..30 {
            assert_eq!(store.run().command(["true"]).output().outcome(), (Exit::Code(0), "", ""));
            assert_eq!(status(&store).arg("x").output().exit, Exit::Code(0));
        }
        watch.assert_running();
    }
}

#[cfg(feature = "redis")]
mod on_redis {
    use super::{holders, stranger};
    use crate::foreign_clients::redis_py::Client;
    use crate::status::{holding, names, status, the_lock, waiting};
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
            assert!(
                immortal || expires.as_u64().is_some_and(|ms| (50_000..=60_000).contains(&ms)),
                "{expires}"
            );
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

    /// One who waits for it makes it a lock of ours.
    #[test]
    fn a_foreign_lock_is_listed_while_a_dlock_waits_for_it() {
        let store = Store::redis();
        store.space().command(&["SET", &store.space().key("x"), "foreign", "PX", "60000"]);
        assert_eq!(names(&store, ["*"]), [""; 0]);
        let waiter = waiting(store.run());
        let lock = the_lock(&store, ["*"]);
        assert_eq!(
            (&lock["name"], &lock["mode"], &lock["slots"]),
            (&"x".into(), &serde_json::Value::Null, &serde_json::Value::Null)
        );
        assert_eq!(lock["holders"][0]["foreign"], true);
        assert_eq!(lock["waiters"][0]["pid"], waiter.pid());
    }

    /// F46: whatever lies there is somebody's lock, looking does not change it, and it is never read aloud.
    #[test]
    fn whatever_is_in_the_key_is_an_unknown_holder() {
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
    fn garbage_where_dlock_keeps_its_own_is_no_crash() {
        let redis = Redis::start();
        let store = Store::on(&redis);
        let run = holding(store.run_with_ttl("1h"));
        let client = || redis.connect();
        let pid = || the_lock(&store, ["x"])["holders"][0]["pid"].clone();
        assert_eq!(pid(), run.pid());
        // What it says of itself.
        let member = client().command(&["KEYS", "dlock#member:*"]).texts().remove(0);
        let said = client().command(&["GET", &member]).text();
        for garbage in
            ["", "{", "[]", "null", "17", "\u{0}\u{1b}", "{\"at\":1}", "{\"at\":-1,\"identity\":{}}"]
        {
            client().command(&["SET", &member, garbage, "PX", "3600000"]);
            let lock = the_lock(&store, ["x"]);
            assert_eq!(
                (&lock["state"], &lock["mode"], &lock["holders"][0]["foreign"]),
                (&"held".into(), &"exclusive".into(), &true.into()),
                "{garbage}"
            );
        }
        client().command(&["DEL", &member]);
        client().command(&["LPUSH", &member, "a"]);
        assert_eq!(the_lock(&store, ["x"])["state"], "held");
        client().command(&["DEL", &member]);
        client().command(&["SET", &member, &said, "PX", "3600000"]);
        assert_eq!(pid(), run.pid());
        // The line, the history and the index.
        for key in [
            "dlock#queue:{dlock:x}",
            "dlock#waiters:{dlock:x}",
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
                    crate::status::parse(&output.stdout)["locks"][0]["history"],
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
        // Where the index should be is something else: which locks there are cannot be told, but each can be named.
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

    /// A newer dlock may store other things: the lock is held, and by whom is not guessed.
    #[test]
    fn what_another_dlock_has_stored_is_held() {
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
}

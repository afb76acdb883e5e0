//! Any foreign value in the key of a lock counts as a held lock: never touched, never trusted.

use crate::support::place::Place;
use crate::support::redis::{Connection, Keyspace};
use crate::support::resp::Value;
use crate::support::running::Exit;

/// Commands that put a value into a key, and the resulting type of the key.
const VALUES: &[(&[&str], &str)] = &[
    (&["SET", "KEY", "somebody-elses-token"], "string"),
    (&["SET", "KEY", ""], "string"),
    (&["SET", "KEY", "\u{1b}[2J\r\n\u{0}"], "string"),
    (&["SET", "KEY", "17"], "string"),
    (&["SETRANGE", "KEY", "1000000", "x"], "string"),
    (&["HSET", "KEY", "3f1e5b5e-0000-4000-8000-000000000000:1", "1"], "hash"),
    (&["RPUSH", "KEY", "a", "b"], "list"),
    (&["SADD", "KEY", "a"], "set"),
    (&["ZADD", "KEY", "1", "__write__"], "zset"),
    (&["XADD", "KEY", "1-1", "a", "b"], "stream"),
    (&["PFADD", "KEY", "a"], "string"),
];

fn put(client: &mut Connection, command: &[&str], key: &str) {
    let words: Vec<&str> = command.iter().map(|word| if *word == "KEY" { key } else { *word }).collect();
    let answer = client.command(&words);
    assert!(!matches!(answer, Value::Error(_)), "{words:?}: {answer:?}");
}

/// F46
#[test]
fn any_value_in_the_key_counts_as_held_and_is_not_touched() {
    let (space, place) = (Keyspace::new(), Place::new());
    let key = space.key("x");
    let mut client = Connection::to(space.port()).unwrap();
    for (command, kind) in VALUES {
        for expiry in [None, Some("600000")] {
            client.command(&["DEL", &key]);
            put(&mut client, command, &key);
            if let Some(ms) = expiry {
                client.command(&["PEXPIRE", &key, ms]);
            }
            let ending = client.command(&["PEXPIRETIME", &key]);
            let before = client.command(&["DUMP", &key]);
            for options in [&["--no-wait"][..], &["--wait", "120ms"]] {
                let run = place.run().backend(space.url()).args(options).command(["touch", "t"]).output();
                assert_eq!(
                    (run.exit, run.stdout.as_str()),
                    (Exit::Code(75), ""),
                    "{command:?}: {}",
                    run.stderr
                );
                let line = &run.stderr;
                let beginning =
                    format!("dlock: x is held by another program on {} (not a dlock", space.url());
                assert!(line.starts_with(&beginning) && line.lines().count() == 1, "{line}");
                assert!(*kind == "string" || line.contains(&format!("a key of type {kind}")), "{line}");
                assert_eq!(line.contains("for another "), expiry.is_some(), "{line}");
            }
            assert_eq!(client.command(&["DUMP", &key]), before, "{command:?}");
            assert_eq!(client.command(&["PEXPIRETIME", &key]), ending, "{command:?}");
        }
    }
    assert!(!place.path("t").exists());
    client.command(&["DEL", &key]);
    assert_eq!(space.keys(), [""; 0]);
    let run = place.run().backend(space.url()).sh("echo ran").output();
    assert_eq!(run.outcome(), (Exit::Code(0), "ran\n", ""));
}

/// A lock held by a dlock with this description. Returns its side keys.
fn held_by(space: &Keyspace, identity: &serde_json::Value) -> [String; 2] {
    let [holder, member] = [side_key(space, "holder"), format!("{}:token", side_key(space, "member"))];
    space.command(&["SET", &space.key("x"), "token", "PX", "600000"]);
    let fields = ["format", "1", "value", "token", "mode", "x", "slots", "1", "m:token", ""];
    let words: Vec<&str> = ["HSET", &holder].into_iter().chain(fields).collect();
    space.command(&words);
    let said = format!("{{\"fencing\":1,\"at\":1,\"identity\":{identity}}}");
    space.command(&["SET", &member, &said, "PX", "600000"]);
    [holder, member]
}

/// The side keys of the lock in a separate keyspace.
fn side_key(space: &Keyspace, which: &str) -> String {
    format!("dlock#{which}:{{{}}}", space.key("x"))
}

/// F46: side keys can contain garbage, too. The lock decides, and it is held.
#[test]
fn garbage_in_side_keys_does_not_affect_a_held_lock() {
    let place = Place::new();
    for (command, _) in VALUES {
        for which in ["holder", "fencing"] {
            let space = Keyspace::new();
            let mut client = Connection::to(space.port()).unwrap();
            client.command(&["SET", &space.key("x"), "foreign"]);
            put(&mut client, command, &side_key(&space, which));
            let run = place.run().backend(space.url()).command(["touch", "t"]).output();
            assert_eq!(run.exit, Exit::Code(75), "{which} {command:?}: {}", run.stderr);
            assert_eq!(client.command(&["GET", &space.key("x")]).text(), "foreign");
            client.command(&["DEL", &side_key(&space, which)]);
        }
    }
}

/// F46: they do not block a free lock either, or the cause is reported; nothing is left half done.
#[test]
fn garbage_in_side_keys_does_not_occupy_a_free_lock() {
    let place = Place::new();
    for (command, _) in VALUES {
        for which in ["holder", "fencing"] {
            let space = Keyspace::new();
            let mut client = Connection::to(space.port()).unwrap();
            put(&mut client, command, &side_key(&space, which));
            let run = place.run().backend(space.url()).sh("echo ran").output();
            match run.exit {
                Exit::Code(0) => assert_eq!((run.stdout.as_str(), run.stderr.as_str()), ("ran\n", "")),
                Exit::Code(69 | 78) => {
                    assert_eq!((run.stdout.as_str(), run.stderr.lines().count()), ("", 1), "{}", run.stderr);
                    assert!(
                        run.stderr.contains("WRONGTYPE") || run.stderr.contains("dlock#"),
                        "{}",
                        run.stderr
                    );
                }
                _ => panic!("{which} {command:?}: {run:?}"),
            }
            assert_eq!(space.keys(), [""; 0], "{which} {command:?}");
            client.command(&["DEL", &side_key(&space, which)]);
        }
    }
}

/// An invalid fencing counter yields no invalid token.
#[test]
fn a_corrupt_fencing_counter_yields_no_corrupt_token() {
    let place = Place::new();
    for counter in [
        "",
        "garbage",
        "-5",
        "0x7f",
        "1e300",
        "inf",
        "nan",
        "-nan",
        "9007199254740992",
        "18446744073709551615",
    ] {
        let space = Keyspace::new();
        space.command(&["SET", &side_key(&space, "fencing"), counter]);
        let run = place.run().backend(space.url()).sh("echo ${DLOCK_FENCING_TOKEN-unset}").output();
        let token = run.stdout.trim();
        let valid = token.parse::<u64>().is_ok_and(|token| token > 1_700_000_000_000_000 && token < 1 << 53);
        // No larger number can be issued forever: a refusal is the other correct reply.
        assert!(valid || token == "unset" || matches!(run.exit, Exit::Code(69 | 78)), "{counter}: {run:?}");
        space.command(&["DEL", &side_key(&space, "fencing")]);
    }
}

/// The description of a holder is untrusted text, and is printed with all control characters escaped.
#[test]
fn hostile_text_of_a_holder_is_escaped() {
    let hostile =
        "\u{1b}[2J\u{1b}]52;c;ZXZpbA==\u{7}\u{9b}31m\u{9d}0;t\u{9c}\u{202e}\u{2066}\r\n\u{7f}\u{0}end";
    let (space, place) = (Keyspace::new(), Place::new());
    let mut client = Connection::to(space.port()).unwrap();
    let identity = serde_json::json!({
        "host": hostile, "pid": 7, "user": hostile, "command": hostile, "note": hostile, "start": 1, "boot": hostile,
    });
    let keys = held_by(&space, &identity);
    for options in [&["--no-wait"][..], &["-vvv", "--wait", "120ms"], &["--log-format", "json"]] {
        let run = place.run().backend(space.url()).args(options).command(["true"]).output();
        assert_eq!(run.exit, Exit::Code(75));
        let bad = |c: char| c != '\n' && c.is_control() || "\u{202e}\u{2066}".contains(c);
        assert!(!run.stderr.contains(bad), "{:?}", run.stderr);
        assert!(run.stderr.contains("end"), "{:?}", run.stderr);
        for line in run.stderr.lines() {
            assert!(line.starts_with("dlock: ") || line.starts_with("{\"version\":1,"), "{line}");
        }
    }
    client.command(&["DEL", &keys[0], &keys[1]]);
}

/// However long its description is, a holder has the lock, and the message stays one line of acceptable length.
#[test]
fn a_holder_record_of_a_megabyte_counts_as_a_holder() {
    let (space, place) = (Keyspace::new(), Place::new());
    let mut client = Connection::to(space.port()).unwrap();
    let keys = held_by(
        &space,
        &serde_json::json!({"host": "h".repeat(1 << 20), "pid": 7, "user": "u", "command": "c"}),
    );
    let run = place.run().backend(space.url()).command(["true"]).output();
    assert_eq!(run.exit, Exit::Code(75), "{}", run.stderr.chars().take(300).collect::<String>());
    assert!(run.stderr.len() < 8192, "{} bytes", run.stderr.len());
    client.command(&["DEL", &keys[0], &keys[1]]);
}

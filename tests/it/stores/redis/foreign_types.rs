//! Values in the key of a lock that dlock did not write: they count as a foreign lock. The message names the likely
//! owner, and nothing is overwritten, whatever the mode and the wait.

use crate::support::SOON;
use crate::support::place::Place;
use crate::support::redis::{Connection, Keyspace, Redis, is_memory};
use crate::support::resp::Value;
use crate::support::running::Exit;
use crate::support::wait::until;

/// Commands that put a value into a key, and the message about it.
const VALUES: &[(&[&str], &str)] = &[
    (
        &["HSET", "KEY", "3f1e5b5e-0000-4000-8000-000000000000:1", "1"],
        "a key of type hash, as Redisson makes it (recipe=redisson)",
    ),
    (
        &["HSET", "KEY", "mode", "read", "3f1e5b5e-0000-4000-8000-000000000000:1", "1"],
        "a key of type hash, as Redisson's RReadWriteLock makes it (no recipe supports it: use another name)",
    ),
    (
        &["ZADD", "KEY", "1769824800", "token", "1769824800", "__write__"],
        "a key of type zset, as Symfony makes it (no recipe supports it)",
    ),
    (
        &["RPUSH", "KEY", "1"],
        "a key of type list, as python-redis-lock's signals are (recipe=python-redis-lock takes its locks)",
    ),
    (&["SADD", "KEY", "a"], "a key of type set, perhaps data, not a lock"),
    (&["XADD", "KEY", "1-1", "a", "b"], "a key of type stream, perhaps data, not a lock"),
];

/// The message about a string without expiry.
const IMMORTAL: &str = "a key without expiry, which stays until it is deleted";

const MODES: [&[&str]; 3] = [&["--exclusive"], &["--shared"], &["--slots", "3"]];

fn put(client: &mut Connection, command: &[&str], key: &str) {
    client.command(&["DEL", key]);
    let words: Vec<&str> = command.iter().map(|word| if *word == "KEY" { key } else { *word }).collect();
    let answer = client.command(&words);
    assert!(!matches!(answer, Value::Error(_)), "{words:?}: {answer:?}");
}

/// Type, content and expiry of a key, and all its side keys.
fn state(space: &Keyspace, client: &mut Connection) -> [Value; 4] {
    let key = space.key("x");
    let mut keys = client.command(&["KEYS", &format!("*{key}*")]).texts();
    keys.retain(|key| !is_memory(key));
    [
        client.command(&["TYPE", &key]),
        client.command(&["DUMP", &key]),
        client.command(&["PEXPIRETIME", &key]),
        Value::List(keys.into_iter().map(Value::Text).collect()),
    ]
}

/// A message without the rest of a lease and the time of the wait.
fn without_times(line: &str) -> String {
    let cut = |text: &str, from: &str, to: &str| match text.split_once(from) {
        Some((before, after)) => {
            let end = after.find(to).unwrap_or_else(|| panic!("{text}"));
            format!("{before}{from}TIME{}", &after[end..])
        }
        None => text.to_owned(),
    };
    cut(&cut(line, ", for another ", " at most"), "gave up after ", "\n")
}

/// Requests `x` in every mode, with and without waiting: 75 with a message that contains `hint`, and `x` is
/// unchanged.
#[track_caller]
fn assert_refused(space: &Keyspace, place: &Place, hint: &str) {
    let mut client = Connection::to(space.port()).unwrap();
    let before = state(space, &mut client);
    let mut runs = Vec::new();
    for mode in MODES {
        for (patience, end) in
            [("--no-wait", "not waiting, see --wait"), ("--wait=300ms", "gave up after TIME")]
        {
            let run = place.run().backend(space.url()).args(mode).arg(patience).command(["touch", "t"]);
            runs.push((run.spawn(), end));
        }
    }
    for (mut run, end) in runs {
        let run = run.wait();
        let line =
            format!("dlock: x is held by another program on {} (not a dlock{hint}); {end}\n", space.url());
        let said = without_times(&run.stderr);
        assert_eq!((run.exit, run.stdout.as_str(), said), (Exit::Code(75), "", line));
    }
    assert_eq!(state(space, &mut client), before, "{hint}");
    assert!(!place.path("t").exists());
}

/// F46
#[test]
fn a_value_of_another_type_is_reported_with_its_likely_owner_and_not_touched() {
    let (space, place) = (Keyspace::new(), Place::new());
    let mut client = Connection::to(space.port()).unwrap();
    let key = space.key("x");
    for (command, hint) in VALUES {
        put(&mut client, command, &key);
        assert_refused(&space, &place, &format!(", {hint}"));
        client.command(&["PEXPIRE", &key, "600000"]);
        assert_refused(&space, &place, &format!(", {hint}, for another TIME at most"));
    }
    client.command(&["DEL", &key]);
}

/// F46: redis-py creates such a key by default. When it ends is unknown.
#[test]
fn a_foreign_key_without_expiry_is_reported_and_not_touched() {
    let (space, place) = (Keyspace::new(), Place::new());
    let mut client = Connection::to(space.port()).unwrap();
    let key = space.key("x");
    for value in ["b1946ac92492d2347c6235b4d2611184", "", "dlock:s:1", "dlock:c3:1769824800123456"] {
        put(&mut client, &["SET", "KEY", value], &key);
        assert_refused(&space, &place, &format!(", {IMMORTAL}"));
        client.command(&["PEXPIRE", &key, "600000"]);
        assert_refused(&space, &place, ", for another TIME at most");
    }
    client.command(&["DEL", &key]);
}

/// Whatever the value, a waiter is notified when it is deleted: none of these has an expiry to wait for, and
/// the next poll is minutes away.
#[test]
fn a_waiter_is_granted_the_lock_when_a_foreign_value_is_deleted() {
    let redis = Redis::start();
    let (space, place) = (Keyspace::of(&redis), Place::new());
    let mut client = redis.connect();
    let key = space.key("x");
    let immortal: (&[&str], &str) = (&["SET", "KEY", "somebody-elses"], IMMORTAL);
    for (command, hint) in VALUES.iter().chain([&immortal]) {
        for mode in MODES {
            put(&mut client, command, &key);
            let run =
                place.run().backend(redis.url()).args(mode).args(["-v", "--ttl", "10m", "--wait", "forever"]);
            let mut run = run.sh("echo ran").spawn();
            let line = format!(
                "dlock: x is held by another program on {} (not a dlock, {hint}); waiting at position 1\n",
                redis.url()
            );
            run.await_stderr("waiting at");
            assert_eq!(run.stderr(), line);
            until(SOON, "a waiter that is told of changes", || is_notified_of_changes(&mut client));
            client.command(&["DEL", &key]);
            let output = run.wait();
            assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", output.stderr);
        }
    }
}

/// Whether a client has tracking on (CLIENT LIST, "flags").
fn is_notified_of_changes(client: &mut Connection) -> bool {
    let clients = client.command(&["CLIENT", "LIST"]).text();
    let mut flags = clients.split_whitespace().filter_map(|word| word.strip_prefix("flags="));
    flags.any(|flags| flags.contains('t'))
}

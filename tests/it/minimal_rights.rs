//! A user of Redis who may do as little as possible.

use crate::support::SOON;
use crate::support::place::Place;
use crate::support::redis::{Connection, Redis, await_renewal};
use crate::support::resp::Value;
use crate::support::running::Exit;
use crate::support::wait::until;
use std::process::Stdio;

const PASSWORD: &str = "s3cret";

/// All that a lock needs: one script runs these, on the lock's key and on the keys beside it; and to be called when it
/// is our turn.
const NEEDED: &[&str] = &[
    "eval",
    "evalsha",
    "time",
    "get",
    "set",
    "exists",
    "pexpire",
    "pttl",
    "type",
    "del",
    "hset",
    "hget",
    "hmget",
    "hgetall",
    "hexists",
    "hlen",
    "hdel",
    "zadd",
    "zrange",
    "zrem",
    "zscore",
    "zrank",
    "zcard",
    "publish",
    "subscribe",
];

/// The keys and channels that it needs them on.
const PLACES: &[&str] = &["~dlock:*", "~dlock#*", "&dlock#call:*"];

/// Makes the user `dlock` anew, with these commands and keys.
fn allow(client: &mut Connection, commands: &[&str], keys: &[&str]) {
    client.command(&["ACL", "DELUSER", "dlock"]);
    let password = format!(">{PASSWORD}");
    let mut words = vec!["ACL", "SETUSER", "dlock", "on", &password, "resetchannels", "-@all"];
    let commands: Vec<String> = commands.iter().map(|command| format!("+{command}")).collect();
    words.extend(commands.iter().map(String::as_str));
    words.extend(keys);
    assert_eq!(client.command(&words), Value::Text("OK".into()), "{words:?}");
}

fn url(redis: &Redis) -> String {
    format!("redis://dlock:{PASSWORD}@127.0.0.1:{}/0", redis.port())
}

#[test]
fn a_user_with_the_rights_that_are_needed_can_do_everything() {
    let (redis, place) = (Redis::start(), Place::new());
    allow(&mut redis.connect(), NEEDED, PLACES);
    for url in [url(&redis), format!("{}?protocol=resp2", url(&redis))] {
        let mut holder = place.run().no_backend().env("DLOCK_BACKEND", &url).args(["--ttl", "1s"]);
        holder = holder.stdin(Stdio::piped()).sh("echo ready; exec cat");
        let mut holder = holder.spawn();
        holder.await_ready();
        let run = || place.run().no_backend().env("DLOCK_BACKEND", &url);
        let refused = run().command(["true"]).output();
        assert_eq!(refused.exit, Exit::Code(75), "{}", refused.stderr);
        assert!(refused.stderr.contains("(pid "), "the holder is named: {}", refused.stderr);
        await_renewal(|| redis.command(&["PTTL", "dlock:x"]).int());
        let mut waiter = run().args(["-v", "--wait", "forever"]).sh("echo ran").spawn();
        waiter.await_stderr("waiting");
        drop(holder.take_stdin());
        assert_eq!(holder.wait().outcome(), (Exit::Code(0), "ready\n", ""));
        let output = waiter.wait();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", output.stderr);
        assert_eq!(redis.command(&["EXISTS", "dlock:x"]), Value::Int(0));
    }
}

/// F29: before the command starts, and naming what is missing; nothing is left half done.
#[test]
fn a_missing_right_is_77_and_named() {
    let (redis, place) = (Redis::start(), Place::new());
    let mut client = redis.connect();
    // The first grant does not need what a repeated or refused one does.
    let at_once = ["eval", "time", "get", "set", "pexpire", "del", "hset"];
    let mut wrong = Vec::new();
    for missing in at_once {
        let rest: Vec<&str> = NEEDED.iter().copied().filter(|command| *command != missing).collect();
        allow(&mut client, &rest, PLACES);
        let run = place.run().no_backend().env("DLOCK_BACKEND", url(&redis)).command(["touch", "t"]).output();
        // Inside a script the server does not say which right it was.
        let is_named =
            run.stderr.contains("a right is missing") && (missing != "eval" || run.stderr.contains("eval"));
        if run.exit != Exit::Code(77) || !is_named || run.stderr.lines().count() != 1 {
            wrong.push(format!("without {missing}: {:?} {}", run.exit, run.stderr));
        }
        if std::fs::remove_file(place.path("t")).is_ok() {
            wrong.push(format!("without {missing} the command ran\n"));
        }
        // What was set before the right was found missing must not stay for a lease.
        if client.command(&["DEL", "dlock:x"]) != Value::Int(0) {
            wrong.push(format!("without {missing} the lock stays behind\n"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join(""));
}

/// F29
#[test]
fn a_missing_key_pattern_is_77() {
    let (redis, place) = (Redis::start(), Place::new());
    let mut client = redis.connect();
    for keys in [&["~dlock:*"][..], &["~dlock#*"], &["~other:*", "~dlock#*"], &[]] {
        allow(&mut client, NEEDED, keys);
        let run = place.run().no_backend().env("DLOCK_BACKEND", url(&redis)).command(["touch", "t"]).output();
        assert_eq!((run.exit, run.stdout.as_str()), (Exit::Code(77), ""), "{keys:?}: {}", run.stderr);
        assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
        assert!(!place.path("t").exists());
        assert_eq!(client.command(&["KEYS", "*"]), Value::List(Vec::new()), "{keys:?}");
    }
}

/// F29: whether the lock is still ours cannot be asked; that is not yet a loss.
#[test]
fn a_right_that_is_taken_away_for_a_while_loses_nothing() {
    let (redis, place) = (Redis::start(), Place::new());
    let mut client = redis.connect();
    for missing in [&["get"][..], &["pexpire"], &["eval", "evalsha"]] {
        let rights =
            |sign: &str| -> Vec<String> { missing.iter().map(|right| format!("{sign}{right}")).collect() };
        let set = |client: &mut Connection, sign: &str| {
            let rights = rights(sign);
            let words = ["ACL", "SETUSER", "dlock"].into_iter().chain(rights.iter().map(String::as_str));
            client.command(&words.collect::<Vec<_>>());
        };
        allow(&mut client, NEEDED, PLACES);
        let mut run = place.run().no_backend().env("DLOCK_BACKEND", url(&redis)).args(["--ttl", "6s"]);
        run = run.stdin(Stdio::piped()).sh("echo ready; exec cat");
        let mut run = run.spawn();
        run.await_ready();
        // The greeting has asked for tracking, which this user may not have.
        client.command(&["ACL", "LOG", "RESET"]);
        set(&mut client, "-");
        until(SOON, "a renewal that is denied", || {
            client.command(&["ACL", "LOG"]) != Value::List(Vec::new()) || run.poll().is_some()
        });
        set(&mut client, "+");
        await_renewal(|| {
            assert!(run.poll().is_none(), "without {missing:?}: {}", run.stderr());
            client.command(&["PTTL", "dlock:x"]).int()
        });
        drop(run.take_stdin());
        assert_eq!(run.wait().outcome(), (Exit::Code(0), "ready\n", ""), "without {missing:?}");
    }
}

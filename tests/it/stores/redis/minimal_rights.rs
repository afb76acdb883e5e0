//! A user of Redis with minimal rights: exactly the rules in dlock-redis(7).

use crate::packaging::documents::blocks;
use crate::stores::conformance::rig::locate;
use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::redis::{Connection, Redis, await_renewal};
use crate::support::resp::Value;
use crate::support::running::{Exit, Output};
use crate::support::versions::{Version, each_version};
use crate::support::wait::until;
use std::process::Stdio;

const PASSWORD: &str = "s3cret";

/// The rules in dlock-redis(7): the required ones, and the optional ones.
pub fn rules() -> [Vec<&'static str>; 2] {
    let rules = blocks("acl").into_iter().map(|block| {
        let words = block.lines.into_iter().flat_map(str::split_whitespace);
        let mut words = words.skip_while(|word| *word != "dlock");
        assert_eq!(words.next(), Some("dlock"));
        words.filter(|word| !["on", ">PASSWORD", "-@all"].contains(word)).collect()
    });
    rules.collect::<Vec<_>>().try_into().expect("two rules")
}

fn needed() -> Vec<&'static str> {
    rules().into_iter().next().expect("what is needed")
}

/// Creates the user `dlock` again, with these rules.
fn allow(client: &mut Connection, rules: &[&str]) {
    client.command(&["ACL", "DELUSER", "dlock"]);
    let password = format!(">{PASSWORD}");
    let mut words = vec!["ACL", "SETUSER", "dlock", "on", &password, "-@all"];
    words.extend(rules);
    assert_eq!(client.command(&words), Value::Text("OK".into()), "{words:?}");
}

/// The same without the rules that this version does not know.
fn known(rules: &[&'static str], version: Version) -> Vec<&'static str> {
    let is_known = |rule: &&str| version != Version::Redis6_0 || !rule.starts_with('&');
    rules.iter().copied().filter(is_known).collect()
}

each_version! {
    a_loss_is_noticed_at_once_with_both_rules;
    the_documented_rights_suffice_for_every_operation;
    doctor_finds_no_missing_right_with_both_rules;
    each_missing_right_is_77_and_named;
}

fn url(redis: &Redis) -> String {
    format!("redis://dlock:{PASSWORD}@127.0.0.1:{}/0", redis.port())
}

fn run(place: &Place, redis: &Redis) -> Dlock {
    place.run().no_backend().env("DLOCK_BACKEND", url(redis))
}

fn a_loss_is_noticed_at_once_with_both_rules(version: Version) {
    let redis = version.start();
    allow(&mut redis.connect(), &known(&rules().concat(), version));
    let place = Place::new();
    let mut run = run(&place, &redis).args(["--ttl", "10m"]).sh("echo ready; exec sleep 600").spawn();
    run.await_ready();
    redis.command(&["DEL", "dlock:x"]);
    // Long before the next renewal.
    assert_eq!(run.wait_within(SOON).exit, Exit::Code(76), "{}", run.stderr());
}

/// A lock is held, refused, waited for, renewed, shared, divided into slots, kept, inspected, and released.
fn every_operation_is_permitted(redis: &Redis, query: &str) {
    let place = Place::new();
    let url = url(redis) + query;
    let run = || place.run().no_backend().env("DLOCK_BACKEND", &url);
    for mode in [&[][..], &["--shared"], &["--slots", "2"]] {
        let mut holder = run().args(["--ttl", "6s"]).args(mode).stdin(Stdio::piped());
        holder = holder.sh("echo ready; exec cat");
        let mut holder = holder.spawn();
        holder.await_ready();
        let refused = run().command(["true"]).output();
        assert_eq!(refused.exit, Exit::Code(75), "{}", refused.stderr);
        assert!(refused.stderr.contains("(pid "), "the holder is named: {}", refused.stderr);
        if !mode.is_empty() {
            let beside = run().args(mode).sh("echo ran").output();
            assert_eq!(beside.outcome(), (Exit::Code(0), "ran\n", ""), "{mode:?}");
        }
        let status = place.bare().arg("status").env("DLOCK_BACKEND", &url).args(["--json", "x"]).output();
        assert!(status.stdout.contains("\"command\":\"sh\""), "{status:?}");
        await_renewal(|| redis.command(&["PTTL", "dlock:x"]).int());
        let mut waiter = run().args(["-v", "--wait", "forever"]).sh("echo ran").spawn();
        waiter.await_stderr("waiting");
        drop(holder.take_stdin());
        assert_eq!(holder.wait().outcome(), (Exit::Code(0), "ready\n", ""));
        let output = waiter.wait();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", output.stderr);
        assert_eq!(redis.command(&["EXISTS", "dlock:x"]), Value::Int(0));
    }
    let kept = run().args(["--ttl", "3s", "--min-hold", "3200ms"]).command(["true"]).output();
    assert_eq!(kept.outcome(), (Exit::Code(0), "", ""));
    let entered = run().args(["--wait", "10s"]).command(["sh", "-c", "echo ran"]).output();
    assert_eq!(entered.outcome(), (Exit::Code(0), "ran\n", ""));
}

fn the_documented_rights_suffice_for_every_operation(version: Version) {
    let redis = version.start();
    allow(&mut redis.connect(), &needed());
    every_operation_is_permitted(&redis, "");
    if version == Version::System {
        every_operation_is_permitted(&redis, "?protocol=resp2");
    }
}

fn doctor_finds_no_missing_right_with_both_rules(version: Version) {
    let redis = version.start();
    let all = known(&rules().concat(), version);
    allow(&mut redis.connect(), &all);
    every_operation_is_permitted(&redis, "");
    let place = Place::new();
    let doctor = || crate::admin::doctor::doctor(&place, &url(&redis));
    let found = crate::admin::doctor::Findings::of(doctor());
    assert_eq!(
        found.only("rights", "ok"),
        "dlock has all rights needed on dlock:* and dlock#*",
        "{version:?}"
    );
    found.only("lock", "ok");
    found.only("notifications", "ok");
    // And it knows the use of each right in the second rule.
    for missing in known(&rules()[1], version).into_iter().filter(|right| right.starts_with('+')) {
        let rest: Vec<&str> = all.iter().copied().filter(|right| *right != missing).collect();
        allow(&mut redis.connect(), &rest);
        let found = crate::admin::doctor::Findings::of(doctor());
        assert!(found.at("warning").contains(&"rights"), "{version:?} without {missing}: {found:?}");
    }
}

/// An administrator who watches the log of denials sees none of dlock.
#[test]
fn nothing_is_denied_with_the_rights_of_the_policy() {
    for query in ["", "?recipe=redisson"] {
        let (redis, place) = (Redis::start(), Place::new());
        let url = url(&redis) + query;
        let policy = locate(&url).unwrap().policy().commands.remove(0);
        let policy = policy.replace(">PASSWORD", &format!(">{PASSWORD}"));
        let words: Vec<&str> = policy.split(' ').collect();
        assert_eq!(redis.command(&words), Value::Text("OK".into()), "{policy}");
        every_operation_is_permitted(&redis, query);
        // Of another program, with a value of the recipe and with one of another kind.
        redis.command(&["HSET", "dlock:y", "other:1", "1"]);
        redis.command(&["SET", "dlock:z", "other"]);
        for words in [
            &["status"][..],
            &["status", "x", "y", "z"],
            &["history", "x"],
            &["freeze", "--now", "--forever", "x"],
            &["thaw", "x"],
            &["break", "--yes", "--force", "y"],
            &["break", "--yes", "--force", "z"],
        ] {
            let output = place.bare().args(words).env("DLOCK_BACKEND", &url).output();
            assert_eq!(output.exit, Exit::Code(0), "{words:?}: {}", output.stderr);
        }
        assert_eq!(redis.command(&["ACL", "LOG"]), Value::List(Vec::new()), "{query}");
    }
}

#[track_caller]
fn assert_named(output: &Output, name: &str, remedy: &str, place: &Place, what: &str) {
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(77), ""), "{what}: {}", output.stderr);
    assert!(output.stderr.contains("a right is missing"), "{what}: {}", output.stderr);
    assert!(output.stderr.contains(name) && output.stderr.contains(remedy), "{what}: {}", output.stderr);
    assert_eq!(output.stderr.lines().count(), 1, "{what}: {}", output.stderr);
    assert!(!place.path("t").exists(), "{what}: the command ran");
}

/// F29: before the command starts, and with the name of the missing right; nothing is left half done.
fn each_missing_right_is_77_and_named(version: Version) {
    let (redis, place) = (version.start(), Place::new());
    let mut client = redis.connect();
    for missing in needed() {
        let rest: Vec<&str> = needed().into_iter().filter(|right| *right != missing).collect();
        allow(&mut client, &rest);
        let output = run(&place, &redis).command(["touch", "t"]).output();
        let what = format!("{version:?} without {missing}");
        let (name, remedy) = match missing {
            "+eval" => ("'eval'".to_owned(), String::new()),
            "~dlock:*" => ("no access to dlock:*".to_owned(), String::new()),
            "~dlock#*" => ("no access to dlock#*".to_owned(), "(ACL SETUSER dlock ~dlock#*)".to_owned()),
            right => (
                format!("dlock may not run {};", right[1..].to_uppercase()).replace(';', " "),
                format!("(ACL SETUSER dlock {right})"),
            ),
        };
        assert_named(&output, &name, &remedy, &place, &what);
        assert_eq!(client.command(&["KEYS", "*"]), Value::List(Vec::new()), "{what}");
    }
    // Several at once.
    let rest: Vec<&str> =
        needed().into_iter().filter(|right| !["+hlen", "+zrank", "~dlock#*"].contains(right)).collect();
    allow(&mut client, &rest);
    let output = run(&place, &redis).command(["touch", "t"]).output();
    assert_named(
        &output,
        "dlock may not run HLEN, ZRANK; dlock has no access to dlock#*",
        "",
        &place,
        "several",
    );
}

/// One line, without the words of the server.
#[test]
fn the_message_says_what_to_do() {
    let (redis, place) = (Redis::start(), Place::new());
    let see = "see dlock doctor, and dlock doctor --policy for the whole rule";
    for (missing, why) in [
        (&["+eval"][..], format!("a right is missing to run 'eval': {see}")),
        (&["~dlock:*"], format!("dlock has no access to dlock:*: a right is missing: {see}")),
        (&["+hlen"], "a right is missing: dlock may not run HLEN (ACL SETUSER dlock +hlen)".to_owned()),
        (&["+hlen", "+zrank", "+type", "~dlock#*"], format!("4 rights of dlock are missing: {see}")),
    ] {
        let rest: Vec<&str> = needed().into_iter().filter(|right| !missing.contains(right)).collect();
        allow(&mut redis.connect(), &rest);
        let output = run(&place, &redis).command(["touch", "t"]).output();
        let store = format!("redis://dlock@127.0.0.1:{}/0", redis.port());
        let line = format!("dlock: x on {store}: {why}; the command did not run\n");
        assert_eq!(output.outcome(), (Exit::Code(77), "", line.as_str()), "{missing:?}");
    }
}

/// F29
#[test]
fn read_only_or_write_only_keys_are_77() {
    for version in [Version::System, Version::Redis8_0, Version::Valkey8_1] {
        let (redis, place) = (version.start(), Place::new());
        let mut client = redis.connect();
        for (keys, name) in [
            (["%R~dlock:*", "~dlock#*"], "no access to dlock:*"),
            (["%W~dlock:*", "~dlock#*"], "no access to dlock:*"),
            (["~dlock:*", "%R~dlock#*"], "no access to dlock#"),
            (["~dlock:*", "%W~dlock#*"], "no access to dlock#"),
        ] {
            let commands: Vec<&str> = needed().into_iter().filter(|right| right.starts_with('+')).collect();
            allow(&mut client, &[&commands[..], &keys].concat());
            let output = run(&place, &redis).command(["touch", "t"]).output();
            assert_named(&output, name, "", &place, &format!("{version:?} {keys:?}"));
            assert_eq!(client.command(&["KEYS", "*"]), Value::List(Vec::new()), "{keys:?}");
        }
        // Both parts are the whole.
        let both = ["%R~dlock:*", "%W~dlock:*", "%RW~dlock#*"];
        allow(&mut client, &[&needed(), &both[..]].concat());
        assert_eq!(run(&place, &redis).sh("echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""));
    }
}

/// F29
#[test]
fn another_prefix_is_named_literally() {
    let (redis, place) = (Redis::start(), Place::new());
    allow(&mut redis.connect(), &needed());
    let url = format!("{}?prefix=app:", url(&redis));
    let output = place.run().no_backend().env("DLOCK_BACKEND", url).command(["touch", "t"]).output();
    assert_named(&output, "dlock has no access to app:*", "", &place, "app:");
}

/// Without the right to the channel the notification is missing, not the lock.
#[test]
fn without_the_channel_waiters_poll() {
    let redis = Redis::start();
    let all: Vec<&str> = rules().concat().into_iter().filter(|rule| !rule.starts_with('&')).collect();
    allow(&mut redis.connect(), &[&["resetchannels"], &all[..]].concat());
    every_operation_is_permitted(&redis, "");
    allow(&mut redis.connect(), &[&["resetchannels", "&other:*"], &all[..]].concat());
    every_operation_is_permitted(&redis, "");
}

/// F29: whether the lock is still held cannot be queried; that is not yet a loss.
#[test]
fn a_temporarily_revoked_right_loses_nothing() {
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
        allow(&mut client, &needed());
        let mut run = run(&place, &redis).args(["--ttl", "6s", "--grace", "100ms"]);
        run = run.stdin(Stdio::piped()).sh("echo ready; exec cat");
        let mut run = run.spawn();
        run.await_ready();
        // The greeting has requested tracking, which this user may not use.
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
        let output = run.wait();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ready\n"), "without {missing:?}");
        // On a busy machine, the right may be missing until half of the lease has passed.
        assert_eq!(output.after_renewal_warnings(), [""; 0], "without {missing:?}");
    }
}

//! Users with restricted rights: a missing right is named together with its consequence.

use super::{Findings, doctor};
use crate::support::place::Place;
use crate::support::redis::Redis;
use crate::support::resp::Value;
use crate::support::running::Exit;

const PASSWORD: &str = "s3cret";

/// The commands that dlock uses, and the others that doctor checks.
pub const ALL: &[&str] = &[
    "+eval",
    "+evalsha",
    "+time",
    "+get",
    "+set",
    "+exists",
    "+pexpire",
    "+pttl",
    "+type",
    "+del",
    "+hset",
    "+hget",
    "+hmget",
    "+hgetall",
    "+hexists",
    "+hlen",
    "+hdel",
    "+zadd",
    "+zrange",
    "+zrem",
    "+zscore",
    "+zrank",
    "+zcard",
    "+zremrangebyscore",
    "+zscan",
    "+publish",
    "+subscribe",
    "+client|tracking",
    "+lpush",
    "+ltrim",
    "+lrange",
    "+dump",
    "+strlen",
    "+memory|usage",
    "+info",
];
const PLACES: &[&str] = &["~dlock:*", "~dlock#*", "&dlock#call:*"];

/// Creates the user `dlock` again.
fn allow(redis: &Redis, rules: &[&str]) {
    let password = format!(">{PASSWORD}");
    redis.command(&["ACL", "DELUSER", "dlock"]);
    let mut words = vec!["ACL", "SETUSER", "dlock", "on", &password, "resetchannels", "-@all"];
    words.extend(rules);
    assert_eq!(redis.command(&words), Value::Text("OK".into()), "{words:?}");
}

fn findings(redis: &Redis) -> Findings {
    let url = format!("redis://dlock:{PASSWORD}@127.0.0.1:{}/0", redis.port());
    let output = doctor(&Place::new(), &url).arg("--json").output();
    assert!(!output.stdout.contains(PASSWORD) && !output.stderr.contains(PASSWORD), "{output:?}");
    Findings::read(&output)
}

#[test]
fn a_user_with_the_needed_rights_misses_none() {
    let redis = Redis::start();
    allow(&redis, &[ALL, PLACES].concat());
    let found = findings(&redis);
    assert_eq!(found.only("rights", "ok"), "dlock has all rights needed on dlock:* and dlock#*");
    assert_eq!(found.at("problem"), [""; 0], "{found:?}");
    found.only("lock", "ok");
}

/// F29: each right separately, and no trace remains whichever is missing.
#[test]
fn each_forbidden_command_is_named_with_its_consequence() {
    let redis = Redis::start();
    let mut wrong = Vec::new();
    for missing in ALL {
        let rest: Vec<&str> = ALL.iter().copied().filter(|right| right != missing).collect();
        allow(&redis, &[&rest, PLACES].concat());
        let found = findings(&redis);
        let name = missing[1..].replace('|', " ").to_uppercase();
        let rights = found.check("rights");
        let expected = format!("dlock may not run {name}");
        let is_named = rights.iter().all(|finding| finding["found"] == expected.as_str())
            && rights.iter().all(|finding| finding["remedy"] == format!("ACL SETUSER dlock {missing}"));
        if !is_named || rights.is_empty() {
            wrong.push(format!("without {missing}: {rights:?}"));
        }
        let is_needed = !["+evalsha", "+zremrangebyscore", "+zscan", "+publish", "+subscribe", "+info"]
            .iter()
            .chain(&["+client|tracking", "+lpush", "+ltrim", "+lrange", "+dump", "+strlen", "+memory|usage"])
            .any(|right| right == missing);
        if is_needed == found.at("problem").is_empty() {
            wrong.push(format!("without {missing}: problems {:?}", found.at("problem")));
        }
        for key in redis.command(&["KEYS", "*"]).texts() {
            let left = redis.command(&["PTTL", &key]).int();
            if !(0..=10_000).contains(&left) {
                wrong.push(format!("without {missing}: {key} stays behind ({left})"));
            }
            redis.command(&["DEL", &key]);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// F29
#[test]
fn several_missing_rights_are_all_named() {
    let redis = Redis::start();
    let rest: Vec<&str> =
        ALL.iter().copied().filter(|right| !["+hlen", "+publish", "+info"].contains(right)).collect();
    allow(&redis, &[&rest, &["~dlock:*", "&dlock#call:*"][..]].concat());
    let found = findings(&redis);
    let said: Vec<(&str, &str)> = found
        .check("rights")
        .iter()
        .map(|finding| (finding["level"].as_str().unwrap(), finding["found"].as_str().unwrap()))
        .collect();
    assert_eq!(
        said,
        [
            ("problem", "dlock may not run HLEN; dlock has no access to dlock#*"),
            ("warning", "dlock may not run INFO, PUBLISH"),
        ]
    );
    assert_eq!(found.check("rights")[0]["remedy"], "ACL SETUSER dlock +hlen ~dlock#*");
    assert_eq!(redis.command(&["KEYS", "*"]), Value::List(Vec::new()));
}

/// F29
#[test]
fn missing_patterns_of_keys_and_channels_are_named() {
    let redis = Redis::start();
    for (places, expected) in [
        (&["~dlock:*", "~dlock#*"][..], "dlock has no access to dlock#call:*"),
        (&["~dlock#*", "&dlock#call:*"], "dlock has no access to dlock:*"),
        (&["%R~dlock:*", "~dlock#*", "&dlock#call:*"], "dlock has no access to dlock:*"),
        (
            &["~dlock:*", "~dlock#h*", "~dlock#m*", "~dlock#w*", "~dlock#f*", "~dlock#l*", "&dlock#call:*"],
            "dlock has no access to dlock#*",
        ),
    ] {
        allow(&redis, &[ALL, places].concat());
        let found = findings(&redis);
        assert_eq!(found.check("rights")[0]["found"], expected, "{places:?}: {found:?}");
        assert_eq!(redis.command(&["KEYS", "*"]), Value::List(Vec::new()), "{places:?}");
    }
    // The configured prefix is used.
    allow(&redis, &[ALL, &["~dlock#*", "&dlock#call:*"]].concat());
    let url = format!("redis://dlock:{PASSWORD}@127.0.0.1:{}/0?prefix=app:", redis.port());
    let found = Findings::of(doctor(&Place::new(), &url));
    assert_eq!(found.check("rights")[0]["found"], "dlock has no access to app:*");
}

/// As many hosted servers do.
#[test]
fn a_command_unknown_to_the_server_is_named() {
    let redis =
        Redis::start_with_args(&["--rename-command", "EVALSHA", "", "--rename-command", "CONFIG", ""]);
    let found = Findings::of(doctor(&Place::new(), &redis.url()));
    assert_eq!(found.only("rights", "warning"), "the server does not know EVALSHA");
    found.only("lock", "ok");
    assert_eq!(found.check("idle").len(), 0, "not known without CONFIG");
}

/// F29
#[test]
fn a_wrong_password_is_a_problem_and_is_not_shown() {
    let redis = Redis::start_with_args(&["--requirepass", "s3cret"]);
    let place = Place::new();
    let wrong = format!("redis://:wr0ng@127.0.0.1:{}/0", redis.port());
    let none = format!("redis://127.0.0.1:{}/0", redis.port());
    let old = format!("{wrong}?protocol=resp2");
    for (url, words) in [
        (&wrong, "wrong username or password"),
        (&none, "a password is needed"),
        (&old, "wrong username or password"),
    ] {
        for json in [false, true] {
            let run = doctor(&place, url);
            let output = if json { run.arg("--json") } else { run }.output();
            assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(1), ""), "{output:?}");
            assert!(output.stdout.contains(words), "{output:?}");
            assert!(!output.stdout.contains("wr0ng") && !output.stdout.contains("s3cret"), "{output:?}");
        }
    }
}

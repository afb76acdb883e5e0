//! What `dlock doctor` reports about a recipe.

use crate::admin::doctor::{Findings, doctor};
use crate::support::place::Place;
use crate::support::redis::Redis;
use crate::support::resp::Value;

const PASSWORD: &str = "s3cret";

/// The rights of a user who shares locks with other programs.
const RIGHTS: &[(&str, &[&str])] = &[
    (
        "redisson",
        &["~dlock:*", "~redisson_lock_token:*", "~redisson_lock_queue:*", "&redisson_lock__channel:*"],
    ),
    ("python-redis-lock", &["~lock:*", "~lock-signal:*"]),
];

fn findings(redis: &Redis, recipe: &str, user: &str) -> Findings {
    let url = format!("redis://{user}127.0.0.1:{}/0?recipe={recipe}", redis.port());
    Findings::of(doctor(&Place::new(), &url))
}

#[test]
fn the_recipe_and_its_clients_are_reported() {
    let redis = Redis::start();
    let found = |recipe: &str| findings(&redis, recipe, "").only("recipe", "ok").to_owned();
    assert!(found("redisson").contains("shares the fencing counter with dlock (redisson_lock_token:*)"));
    assert!(found("python-redis-lock").contains("notified through lock-signal:*"));
    assert!(findings(&redis, "plain", "").check("recipe").is_empty());
    // The scratch keys are gone, or expire within a second.
    for key in redis.command(&["KEYS", "*"]).texts() {
        assert!(key.starts_with("lock-signal:{dlock-doctor-"), "{key}");
        assert!((-2..=1_000).contains(&redis.command(&["PTTL", &key]).int()), "{key}");
    }
}

/// F29
#[test]
fn a_missing_right_for_a_recipe_is_named() {
    let redis = Redis::start();
    let user = format!("dlock:{PASSWORD}@");
    let allow = |recipe: &str, places: &[&str]| {
        let password = format!(">{PASSWORD}");
        redis.command(&["ACL", "DELUSER", "dlock"]);
        let mut words = vec!["ACL", "SETUSER", "dlock", "on", &password, "resetchannels", "+@all"];
        words.extend(["~dlock#*", "&dlock#call:*"]);
        words.extend(places);
        assert_eq!(redis.command(&words), Value::Text("OK".into()), "{words:?}");
        findings(&redis, recipe, &user)
    };
    for (recipe, places) in RIGHTS {
        let found = allow(recipe, places);
        found.only("rights", "ok");
        found.only("lock", "ok");
        for missing in &places[1..] {
            let others: Vec<&str> = places.iter().copied().filter(|place| place != missing).collect();
            let found = allow(recipe, &others);
            let level = if missing.contains("token") { "problem" } else { "warning" };
            let text = found.only("rights", level);
            assert_eq!(text, format!("dlock has no access to {}", &missing[1..]), "{recipe}");
            let remedy = found.check("rights")[0]["remedy"].as_str().unwrap().to_owned();
            assert_eq!(remedy, format!("ACL SETUSER dlock {missing}"), "{recipe}");
            if level == "warning" {
                // Other clients are not notified, but the lock is acquired and released.
                found.only("lock", "ok");
            }
        }
    }
}

//! The recipes in a Redis Cluster, where every key of a lock must be in one slot.

use crate::support::cluster::Cluster;
use crate::support::place::Place;
use crate::support::resp::Value;
use crate::support::running::Exit;

#[test]
fn a_name_with_keys_in_different_slots_is_refused() {
    let place = Place::new();
    let run = |recipe: &str, name: &str| {
        // No server is contacted.
        let url = format!("redis-cluster://127.0.0.1:1?recipe={recipe}");
        place.run().backend(url).name(name).command(["touch", "t"]).output()
    };
    for (recipe, name, other) in [
        ("python-redis-lock", "x", "lock-signal:x has to be in the slot of lock:x"),
        ("redisson", "x}", "redisson_lock_token:{dlock:x}} has to be in the slot of dlock:x}"),
    ] {
        let refused = run(recipe, name);
        assert_eq!((refused.exit, refused.stdout.as_str()), (Exit::Code(64), ""), "{}", refused.stderr);
        let said = format!(
            "recipe={recipe} in a Redis Cluster needs a name with a part in braces, such as {{name}}: {other}\n"
        );
        assert!(refused.stderr.ends_with(&said), "{}", refused.stderr);
    }
    assert!(!place.path("t").exists());
}

/// F49: acquired, counted and released, on whichever node it is.
#[test]
fn the_recipes_work_in_a_cluster() {
    let (cluster, place) = (Cluster::lent(), Place::new());
    for name in ["{a}", "{b}", "{c}"] {
        for (recipe, prefix, take) in [
            ("redisson", "dlock:", &["HSET", "KEY", "uuid:1", "1"][..]),
            ("python-redis-lock", "lock:", &["SET", "KEY", "somebody"]),
        ] {
            let key = format!("{prefix}{name}");
            let signal = format!("lock-signal:{name}");
            if recipe == "python-redis-lock" {
                // The release is announced once more, instead.
                cluster.command_at(&key, &["RPUSH", &signal, "stale"]);
            }
            let url = format!("{}?recipe={recipe}", cluster.url());
            let run = || place.run().backend(&url).name(name).sh("echo $DLOCK_FENCING_TOKEN").output();
            let ran = run();
            assert_eq!((ran.exit, ran.stderr.as_str()), (Exit::Code(0), ""));
            if recipe == "redisson" {
                let counter = format!("redisson_lock_token:{key}");
                let counted = cluster.command_at(&key, &["GET", &counter]);
                assert_eq!(counted, Value::Text(ran.stdout.trim_end().to_owned()));
            } else {
                let ends = cluster.command_at(&key, &["PTTL", &signal]).int();
                assert!(ends != -1 && ends <= 1_000, "{ends}");
            }
            let words: Vec<&str> =
                take.iter().map(|word| if *word == "KEY" { key.as_str() } else { *word }).collect();
            cluster.command_at(&key, &words);
            assert_eq!(run().exit, Exit::Code(75));
            cluster.command_at(&key, &["DEL", &key]);
            assert_eq!(run().exit, Exit::Code(0));
        }
    }
}

//! Keys of different recipes: a lock held by one recipe cannot be acquired by another, and the message names the
//! option.

use super::Fixture;
use super::simulated_clients::Thread;
use crate::support::resp::Value;
use crate::support::running::Exit;

const RECIPES: [&str; 3] = ["plain", "redisson", "python-redis-lock"];

/// Commands that acquire a lock as other programs do, and the message of each recipe about it.
const HOLDERS: &[(&[&str], [Option<&str>; 3])] = &[
    (&["SET", "KEY", "token", "PX", "600000"], [None, Some(STRING), None]),
    (
        &["HSET", "KEY", "3f1e5b5e-0000-4000-8000-000000000000:1", "1"],
        [Some(HASH), Some(IMMORTAL), Some(HASH)],
    ),
    (
        &["HSET", "KEY", "mode", "write", "3f1e5b5e-0000-4000-8000-000000000000:1:write", "1"],
        [Some(READ_WRITE); 3],
    ),
    (&["ZADD", "KEY", "1769824800", "token", "1769824800", "__write__"], [Some(ZSET); 3]),
    (&["LPUSH", "KEY", "1"], [Some(LIST); 3]),
];
const STRING: &str = ", a key of type string, as most clients make it (recipe=plain)";
const HASH: &str = ", a key of type hash, as Redisson makes it (recipe=redisson)";
const IMMORTAL: &str = ", a key without expiry, which stays until it is deleted";
const READ_WRITE: &str =
    ", a key of type hash, as Redisson's RReadWriteLock makes it (no recipe supports it: use another name)";
const ZSET: &str = ", a key of type zset, as Symfony makes it (no recipe supports it)";
const LIST: &str =
    ", a key of type list, as python-redis-lock's signals are (recipe=python-redis-lock takes its locks)";

/// The same key for every recipe: its prefix is `lock:` for all.
fn fixtures() -> [Fixture; 3] {
    let space = crate::support::redis::Keyspace::new();
    let prefix = format!("lock:{}", space.prefix());
    RECIPES.map(|recipe| Fixture::with_prefix(recipe, &prefix, space.clone()))
}

/// F46, F49
#[test]
fn any_foreign_value_excludes_every_recipe_and_is_named() {
    let fixtures = fixtures();
    for (command, hints) in HOLDERS {
        let key = fixtures[0].key.clone();
        let words: Vec<&str> = command.iter().map(|word| if *word == "KEY" { &key } else { *word }).collect();
        assert!(!matches!(fixtures[0].command(&words), Value::Error(_)), "{words:?}");
        let before = fixtures[0].content();
        for (fixture, hint) in fixtures.iter().zip(hints) {
            for mode in [&["--exclusive"][..], &["--shared"], &["--slots", "2"], &["--wait=100ms"]] {
                let refused = fixture.run().args(mode).command(["touch", "t"]).output();
                assert_eq!(
                    (refused.exit, refused.stdout.as_str()),
                    (Exit::Code(75), ""),
                    "{}",
                    refused.stderr
                );
                let said = format!("(not a dlock{}", hint.unwrap_or(", for another "));
                assert!(refused.stderr.contains(&said), "{}: {} {said}", fixture.url, refused.stderr);
            }
            assert_eq!(fixture.content(), before, "{}", fixture.url);
            assert!(!fixture.place.path("t").exists());
            // The shown hold can be removed, whichever recipe inspected it.
            let shown = fixture.place.bare().args(["status", "-b", &fixture.url, "x"]).output();
            assert!(shown.stdout.contains("held, "), "{}", shown.stdout);
            let broken =
                fixture.place.bare().args(["break", "-b", &fixture.url, "--yes", "--force", "x"]).output();
            assert_eq!(broken.exit, Exit::Code(0), "{}: {}", fixture.url, broken.stderr);
            assert_eq!(fixture.command(&["EXISTS", &key]), Value::Int(0));
            fixture.command(&words);
        }
        fixtures[0].command(&["DEL", &key]);
    }
}

/// Two dlocks with different recipes exclude each other nevertheless, and a waiter is notified.
#[test]
fn dlocks_of_different_recipes_exclude_each_other() {
    let fixtures = fixtures();
    for holder in &fixtures {
        for other in &fixtures {
            let mut run = holder.holding(&[]);
            assert_eq!(other.run().command(["touch", "t"]).output().exit, Exit::Code(75), "{}", other.url);
            let mut waiter = other.waiting(&[]);
            run.assert_running();
            drop(run.take_stdin());
            assert_eq!(run.wait().outcome(), (Exit::Code(0), "ready\n", ""), "{}", other.url);
            assert_eq!((waiter.wait().exit, waiter.stdout().as_str()), (Exit::Code(0), "ran\n"));
            assert!(!other.place.path("t").exists());
        }
    }
}

/// What other libraries find when a dlock holds the key: the matrix of dlock-recipes(7).
#[test]
fn clients_of_a_recipe_see_the_key_of_dlock_as_their_own_kind() {
    let [plain, redisson, _] = fixtures();
    let key = plain.key.clone();
    let mut java = Thread::new(&plain, 1);
    let set = |fixture: &Fixture| fixture.command(&["SET", &key, "token", "NX", "PX", "60000"]);
    let is_wrong_type = |answer: Value| matches!(answer, Value::Error(text) if text.contains("WRONGTYPE"));

    let run = plain.holding(&[]);
    assert_eq!(set(&plain), Value::Nil);
    assert!(is_wrong_type(java.lock(60_000)));
    assert!(is_wrong_type(java.lock_as_reader()));
    drop(run);
    plain.command(&["DEL", &key]);

    let _run = redisson.holding(&[]);
    assert_eq!(set(&redisson), Value::Nil);
    assert!(matches!(java.lock(60_000), Value::Int(_)));
    // It does not see an RLock, not even that of Redisson itself.
    assert_eq!(java.lock_as_reader(), Value::Nil);
}

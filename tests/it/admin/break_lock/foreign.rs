//! A lock that is held by another program, which cannot be notified.

use super::{assert_not_yet, breaking};
use crate::support::store::Store;
use std::fs::File;

/// Shorthand for `flock(1)`.
fn flock(store: &Store) -> File {
    let file = File::options().create(true).append(true).open(store.place.lock_file("x")).unwrap();
    file.try_lock().unwrap();
    file
}

#[test]
fn a_flock_of_another_program_is_not_removed() {
    let store = Store::file();
    let lock = flock(&store);
    let pid = std::process::id();
    let name = std::fs::read_to_string("/proc/self/comm").unwrap();
    let who = format!("another program on {} (not a dlock, process {pid}, {})", store.url(), name.trim());
    assert_not_yet(
        &breaking(&store).output(),
        &format!(
            "x is still held by {who}: it is not a dlock, and cannot be notified; stop that process, and the \
            lock is free"
        ),
    );
    assert_not_yet(
        &breaking(&store).arg("--force").output(),
        &format!(
            "x is held by {who} in a session or by a descriptor, which --force cannot end: stop that process"
        ),
    );
    assert!(store.is_held());
    drop(lock);
}

/// With an explicit time it waits that long, although no holder can be notified.
#[test]
fn break_can_wait_for_a_foreign_holder() {
    let store = Store::file();
    let lock = flock(&store);
    let mut breaks = breaking(&store).args(["--wait", "forever"]).spawn();
    breaks.await_stdout("x is held by another program");
    breaks.assert_running();
    drop(lock);
    super::assert_ended(&breaks.wait());
}

#[test]
fn force_cannot_remove_the_lock_of_a_dlock_on_a_file() {
    let store = Store::file();
    let inherited_lock = store.place.inherited_lock();
    let mut run = super::lingering(store.run_with_ttl("60s").args(["--grace", "20s"]), &inherited_lock);
    let output = breaking(&store).args(["--force", "--wait", "0"]).output();
    let who = format!("{} (pid PID, {}, probe) for TIME", super::host(), super::user());
    assert_not_yet(
        &output,
        &format!(
            "x is held by {who} in a session or by a descriptor, which --force cannot end: stop that process"
        ),
    );
    assert!(store.is_held() && !inherited_lock.is_free());
    super::let_go(&run);
    super::assert_broken(&store, "x", &mut run);
}

mod on_redis {
    use super::super::confirmation::at_a_terminal;
    use super::*;
    use crate::support::resp::Value;
    use crate::support::running::Exit;

    /// The expected report about a key of another program, and how the key is created.
    fn keys(store: &Store) -> Vec<(Vec<Vec<String>>, String)> {
        let key = store.space().key("x");
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let pexpire = words(&["PEXPIRE", &key, "60000"]);
        vec![
            (
                vec![words(&["SET", &key, "other", "PX", "60000"])],
                "not a dlock, for another TIME at most".into(),
            ),
            (
                vec![words(&["SET", &key, "other"])],
                "not a dlock, a key without expiry, which stays until it is deleted".into(),
            ),
            (
                vec![words(&["HSET", &key, "uuid:1", "1"]), pexpire.clone()],
                "not a dlock, a key of type hash, as Redisson makes it (recipe=redisson), for \
                 another TIME at most"
                    .into(),
            ),
            (
                vec![words(&["ZADD", &key, "1", "one"]), pexpire],
                "not a dlock, a key of type zset, as Symfony makes it (no recipe supports it), for another TIME at \
                most".into(),
            ),
        ]
    }

    #[test]
    fn a_foreign_hold_is_removed_only_with_force() {
        let store = Store::redis();
        for (commands, what) in keys(&store) {
            for command in &commands {
                let words: Vec<&str> = command.iter().map(String::as_str).collect();
                store.space().command(&words);
            }
            let who = format!("another program on {} ({what})", store.url());
            assert_not_yet(
                &breaking(&store).output(),
                &format!(
                    "x is still held by {who}: it is not a dlock, and cannot be notified; --force removes it \
                    even if its command still runs"
                ),
            );
            assert!(store.is_held());
            let mut waiter =
                store.run_with_ttl("30s").args(["-v", "--wait", "forever"]).sh("echo ran").spawn();
            waiter.await_stderr("waiting");
            let output = breaking(&store).arg("--force").output();
            let warning = format!(
                "dlock: x on {}: the hold of another program was removed; that program may still run beside the command \
                 of the next holder\n",
                store.url()
            );
            assert_eq!(output.exit, Exit::Code(0), "{output:?}");
            assert_eq!(output.stderr, warning);
            assert!(output.stdout.ends_with(": that hold has ended\n"), "{}", output.stdout);
            let output = waiter.wait();
            assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", output.stderr);
        }
    }

    /// Another client has it by now.
    #[test]
    fn a_hold_that_changed_since_it_was_shown_is_not_removed() {
        let store = Store::redis();
        let (space, key) = (store.space(), store.space().key("x"));
        let others: [&[&str]; 3] = [
            &["SET", &key, "another", "PX", "60000"],
            &["EVAL", "redis.call('DEL', KEYS[1]) return redis.call('HSET', KEYS[1], 'a', '1')", "1", &key],
            &["EVAL", "redis.call('DEL', KEYS[1]) return redis.call('HSET', KEYS[1], 'a', '2')", "1", &key],
        ];
        space.command(&["SET", &key, "first", "PX", "60000"]);
        for other in others {
            let mut terminal = at_a_terminal(&store, &["--force"]);
            terminal.expect("[y/N] ");
            space.command(other);
            let dump = space.command(&["DUMP", &key]);
            terminal.type_keys("y\n");
            // The shown hold is gone.
            terminal.expect(": that hold has ended\n");
            assert_eq!(terminal.wait(), Exit::Code(0));
            assert_eq!(space.command(&["DUMP", &key]), dump);
        }
        // A dlock has acquired it.
        let mut terminal = at_a_terminal(&store, &["--force"]);
        terminal.expect("[y/N] ");
        assert_eq!(space.command(&["DEL", &key]), Value::Int(1));
        let mut run = super::super::working(store.run_with_ttl("30s"));
        terminal.type_keys("y\n");
        terminal.expect(": that hold has ended\n");
        assert_eq!(terminal.wait(), Exit::Code(0));
        run.assert_running();
        assert!(store.is_held());
    }

    /// By the store's own reply: it is compared in the same step in which it would be deleted.
    #[test]
    fn a_hold_that_changes_just_before_the_removal_is_not_removed() {
        use crate::stores::conformance::rig::locate;
        use dlock::backend::admin::Removal;
        let store = Store::redis();
        let (space, key) = (store.space(), store.space().key("x"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut oversight = locate(store.url()).unwrap().open();
            let name = dlock::lock::LockName::new("x").unwrap();
            space.command(&["SET", &key, "first"]);
            oversight.connect().await.unwrap();
            let seen = oversight.inspect(std::slice::from_ref(&name), None).await.unwrap();
            let shown = seen.locks[0].holders[0].clone();
            space.command(&["SET", &key, "second"]);
            assert_eq!(oversight.remove(&name, &shown).await, Ok(Removal::Changed));
            assert_eq!(space.command(&["GET", &key]), Value::Text("second".into()));
            space.command(&["SET", &key, "first"]);
            assert_eq!(oversight.remove(&name, &shown).await, Ok(Removal::Removed));
            assert_eq!(oversight.remove(&name, &shown).await, Ok(Removal::Changed));
        });
    }
}

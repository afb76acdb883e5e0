//! The traces of crashed dlocks are not shown for longer than they are valid.

use super::{holding, names, seen, status, the_lock, waiting};
use crate::support::SOON;
use crate::support::process;
use crate::support::resp::Value;
use crate::support::running::{Exit, Running};
use crate::support::store::Store;
use crate::support::wait::until;
use nix::sys::signal::Signal;

/// Kills dlock and its guard at the same instant, as far as that is possible, and waits until they are dead.
fn kill(mut run: Running) {
    let guard = run.guard();
    process::send(run.pid(), Signal::SIGSTOP);
    process::send(guard, Signal::SIGKILL);
    process::send(run.pid(), Signal::SIGKILL);
    assert_eq!(run.wait().exit, Exit::by(Signal::SIGKILL));
    until(SOON, "the end of all that it started", || run.marker().bearers().is_empty());
}

/// Whether the lock is in the list of all.
fn is_indexed(store: &Store) -> bool {
    store.space().command(&["ZSCORE", "dlock#locks", &store.space().key("x")]) != Value::Nil
}

#[test]
fn the_lock_of_a_killed_holder_is_shown_until_its_lease_ends() {
    let store = Store::redis();
    // Long enough for a look before its end.
    let run = holding(store.run_with_ttl("7s"));
    let pid = run.pid();
    kill(run);
    let lock = the_lock(&store, []);
    assert_eq!((&lock["state"], &lock["holders"][0]["pid"]), (&"held".into(), &pid.into()), "its lease runs");
    assert!(is_indexed(&store));
    until(SOON, "the end of the lease", || names(&store, []).is_empty());
    assert!(!is_indexed(&store), "whoever looked has taken it out of the list");
    assert_eq!(the_lock(&store, ["x"])["state"], "free");
}

#[test]
fn a_killed_holder_on_this_host_is_not_shown() {
    let store = Store::file();
    kill(holding(store.run_with_ttl("30s")));
    assert_eq!(names(&store, []), [""; 0]);
    assert_eq!(the_lock(&store, ["x"])["holders"], serde_json::json!([]));
}

#[test]
fn killed_waiters_are_soon_no_longer_shown() {
    for store in Store::each() {
        let holder = holding(store.run_with_ttl("1h"));
        let mut first = waiting(store.run_with_ttl("1h"));
        let second = waiting(store.run_with_ttl("1h"));
        first.signal(Signal::SIGKILL);
        first.wait();
        let pids = || {
            let lock = the_lock(&store, []);
            let waiters = lock["waiters"].as_array().unwrap().clone();
            waiters.iter().map(|waiter| waiter["pid"].as_i64().unwrap()).collect::<Vec<_>>()
        };
        if !store.url().starts_with("file:") {
            // Redis is not notified of its end. The expiry of its queue position is brought forward.
            let script = "local id = redis.call('ZRANGE', KEYS[1], 0, 0)[1]
                local text = redis.call('HGET', KEYS[2], id)
                redis.call('HSET', KEYS[2], id, (string.gsub(text, '^(%a %d+ %d) %d+', '%1 1')))";
            assert_eq!(pids().len(), 2);
            let [queue, waiters] =
                ["queue", "waiters"].map(|kind| format!("dlock#{kind}:{{{}}}", store.space().key("x")));
            store.space().command(&["EVAL", script, "2", &queue, &waiters]);
        }
        until(SOON, "one waiter is left", || pids() == [i64::from(second.pid())]);
        let table = status(&store).output().stdout;
        assert!(table.contains("waits #1 "), "{table}");
        drop(holder);
    }
}

/// One of several that share a lock.
#[test]
fn a_killed_reader_disappears_while_the_others_stay() {
    let store = Store::redis();
    let [dead, alive] = ["4s", "30s"].map(|ttl| holding(store.run_with_ttl(ttl).arg("--shared")));
    let pid = alive.pid();
    kill(dead);
    until(SOON, "the end of one lease", || {
        let seen = seen(&store, []);
        let holders = seen["locks"][0]["holders"].as_array().unwrap();
        assert!(holders.iter().any(|holder| holder["pid"] == pid), "{seen}");
        holders.len() == 1
    });
}

/// A disconnected host, or a killed dlock, is silent; its lease determines how long it is valid.
#[test]
fn the_remaining_lease_is_that_reported_by_the_store() {
    let store = Store::redis();
    let run = holding(store.run_with_ttl("1h"));
    kill(run);
    let key = store.space().key("x");
    let member = store.space().command(&["KEYS", &format!("dlock#member:{{{key}}}:*")]).texts().remove(0);
    store.space().command(&["PEXPIRE", &member, "60000"]);
    let left = the_lock(&store, [])["holders"][0]["expires_in_ms"].as_u64().unwrap();
    assert!((30_000..=60_000).contains(&left), "{left}");
}

/// Status writes nothing, except that it removes unused locks from the index.
#[test]
fn status_changes_no_key() {
    let redis = crate::support::redis::Redis::start();
    let store = Store::on(&redis);
    let _holder = holding(store.run_with_ttl("1h"));
    let _waiter = waiting(store.run_with_ttl("1h"));
    redis.command(&["SET", "dlock:foreign", "x"]);
    let all = || {
        let mut keys = redis.command(&["KEYS", "*"]).texts();
        keys.sort();
        keys.iter().map(|key| (key.clone(), redis.command(&["DUMP", key]))).collect::<Vec<_>>()
    };
    redis.command(&["CONFIG", "RESETSTAT"]);
    let before = all();
    for args in
        [&[][..], &["x", "y", "foreign"], &["--json", "*"], &["--history", "x", "y"], &["--exit-code", "x"]]
    {
        status(&store).args(args).output();
    }
    let keys = |state: &[(String, Value)]| state.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>();
    let after = all();
    assert_eq!(keys(&after), keys(&before));
    let index =
        |(key, _): &&(String, Value)| key != "dlock#waiters:{dlock:x}" && key != "dlock#queue:{dlock:x}";
    assert_eq!(
        after.iter().filter(index).collect::<Vec<_>>(),
        before.iter().filter(index).collect::<Vec<_>>()
    );
}

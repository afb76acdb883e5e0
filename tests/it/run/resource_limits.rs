//! Limits on descriptors and queued signals at their extremes: a run is refused with a message, or keeps its
//! guarantees.

use crate::support::dlock::Dlock;
use crate::support::process;
use crate::support::running::Exit;
use crate::support::store::Store;
use nix::sys::signal::Signal;

/// A run whose lease does not end while a test runs; where there are no leases, the lock is looked for each second.
fn run(store: &Store) -> Dlock {
    store.run_with_ttl(if is_redis(store) { "30s" } else { "3s" })
}

fn is_redis(store: &Store) -> bool {
    store.url().starts_with("redis:")
}

/// A run under this limit that works completely: a scattered tree is dead when its lock was lost, and before its lock
/// is free when the guard was killed.
#[track_caller]
fn assert_killed_with_its_lock(store: &Store, limit: &str) {
    let inherited_lock = store.place.inherited_lock();
    for guard_dies in [false, true] {
        let tree = run(store).args(["--grace", "200ms"]);
        let tree =
            tree.probe(["--inherited-lock", inherited_lock.path(), "tree", "3", &store.place.arg("pids")]);
        let mut run = tree.wrapped_by(["prlimit", limit]).spawn();
        run.await_ready();
        let status = if guard_dies {
            process::send(run.guard(), Signal::SIGKILL);
            store.await_death_under_lock(&inherited_lock);
            70
        } else {
            lose(store);
            76
        };
        let output = run.wait();
        assert_eq!(output.exit, Exit::Code(status), "{limit}: {}", output.stderr);
        assert!(inherited_lock.is_free(), "{limit}: somebody is left");
        assert_eq!(store.place.marker().bearers().len(), 0, "{limit}");
    }
}

fn lose(store: &Store) {
    if is_redis(store) {
        store.space().command(&["DEL", &store.space().key("x")]);
        return;
    }
    std::fs::remove_file(store.place.lock_file("x")).unwrap();
}

/// Every limit from where the loader can read the program up to some that are enough.
fn assert_refused_or_works(store: &Store) {
    let limited = |run: Dlock, limit: &str| run.wrapped_by(["prlimit", limit]).output();
    let mut refused = Vec::new();
    let mut enough = 0;
    for descriptors in 3..64 {
        let limit = format!("--nofile={descriptors}");
        let loads =
            limited(store.place.run().backend(store.url()).args(["--ttl", "25h"]).command(["true"]), &limit);
        if loads.exit != Exit::Code(64) {
            assert_eq!((enough, refused.len()), (0, 0), "{limit}: {loads:?}");
            continue;
        }
        let output = limited(run(store).sh("echo ran; exit 3"), &limit);
        assert!(!store.is_held() && store.place.marker().bearers().is_empty(), "{limit}");
        if output.exit == Exit::Code(3) {
            assert_eq!(output.outcome(), (Exit::Code(3), "ran\n", ""), "{limit}");
            assert_killed_with_its_lock(store, &limit);
            enough += 1;
        } else {
            assert_eq!(enough, 0, "{limit}: {output:?}");
            assert!(matches!(output.exit, Exit::Code(69 | 70)), "{limit}: {output:?}");
            let line = &output.stderr;
            assert!(line.starts_with("dlock: ") && line.contains(": too many open files"), "{limit}: {line}");
            assert_eq!((output.stdout.as_str(), line.lines().count()), ("", 1), "{limit}: {line}");
            refused.push(descriptors);
        }
        if enough == 4 {
            break;
        }
    }
    assert!(refused.len() > 4 && enough == 4, "{refused:?}");
}

/// S51
#[test]
fn too_few_descriptors_for_a_directory_are_refused_or_the_promise_is_kept() {
    assert_refused_or_works(&Store::file());
}

/// S51
#[test]
fn too_few_descriptors_for_redis_are_refused_or_the_promise_is_kept() {
    assert_refused_or_works(&Store::redis());
}

/// S51: the kernel delivers a standard signal without room in the queue, and a real-time signal not at all.
#[test]
fn without_room_for_queued_signals_the_promise_is_kept() {
    for store in Store::each() {
        let limit = "--sigpending=0";
        let output = run(&store).sh("echo ran; exit 3").wrapped_by(["prlimit", limit]).output();
        assert_eq!(output.outcome(), (Exit::Code(3), "ran\n", ""));
        assert_killed_with_its_lock(&store, limit);
        let mut run = run(&store).probe(["signals", "exit:TERM=5"]).wrapped_by(["prlimit", limit]).spawn();
        run.await_ready();
        run.signal(Signal::SIGTERM);
        assert_eq!(run.wait().exit, Exit::Code(5));
        assert!(!store.is_held());
    }
}

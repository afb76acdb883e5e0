//! Locks with several holders, and holders of several locks.

use super::{assert_broken, assert_ended, breaking, breaking_of, host, token_of, user, working};
use crate::acquire::queue::fixture::Queue;
use crate::support::dlock::BINARY;
use crate::support::running::Exit;
use crate::support::store::Store;

/// In every mode with several holders.
fn shared() -> Vec<(Store, &'static [&'static str])> {
    let ways: [&[&str]; 2] = [&["--shared"], &["--slots", "3"]];
    ways.into_iter().flat_map(|way| Store::each().into_iter().map(move |store| (store, way))).collect()
}

#[test]
fn all_sharing_holders_are_notified() {
    for (store, way) in shared() {
        let mut runs: Vec<_> = (0..3).map(|_| working(store.run_with_ttl("30s").args(way))).collect();
        let output = breaking(&store).output();
        assert_eq!(output.stdout.matches("x is held by ").count(), 3, "{}", output.stdout);
        assert_ended(&output);
        for run in &mut runs {
            assert_broken(&store, "x", run);
        }
        assert!(!store.is_held());
    }
}

#[test]
fn only_the_named_holder_is_notified() {
    for (store, way) in shared() {
        let mut runs: Vec<_> = (0..3).map(|_| working(store.run_with_ttl("30s").args(way))).collect();
        let output = breaking(&store).args(["--fencing-token", &token_of(&runs[1])]).output();
        assert_eq!(output.stdout.matches("x is held by ").count(), 1, "{}", output.stdout);
        assert_ended(&output);
        assert_broken(&store, "x", &mut runs[1]);
        assert!(store.is_held());
        runs.remove(1);
        for run in &mut runs {
            run.assert_running();
        }
        let shown =
            store.place.bare().args(["status", "-b", store.url(), "--json"]).name("x").output().stdout;
        assert_eq!(shown.matches("\"phase\":\"running\"").count(), 2, "{shown}");
        assert_ended(&breaking(&store).output());
        for run in &mut runs {
            assert_broken(&store, "x", run);
        }
    }
}

/// A writer behind two readers is granted the lock when both are dead.
#[test]
fn a_waiter_for_all_holders_is_granted_the_lock_then() {
    for store in Store::each() {
        let inherited_lock = store.place.inherited_lock();
        let reader = || {
            let run = store.run_with_ttl("30s").args(["--shared", "--grace", "200ms"]);
            let mut run = run.probe(["--inherited-lock", inherited_lock.path(), "ignore-term"]).spawn();
            run.await_ready();
            run
        };
        let (mut one, mut other) = (reader(), reader());
        let mut next_holder = store.next_holder(&inherited_lock);
        assert_ended(&breaking(&store).output());
        let next_holder = next_holder.wait();
        assert_eq!(
            (next_holder.exit, next_holder.stdout.as_str()),
            (Exit::Code(0), "clean\n"),
            "{}",
            next_holder.stderr
        );
        assert_broken(&store, "x", &mut one);
        assert_broken(&store, "x", &mut other);
    }
}

/// They are one hold.
#[test]
fn a_run_and_the_one_inside_it_stop() {
    for store in Store::each() {
        let inherited_lock = store.place.inherited_lock();
        let probe = crate::support::probe::path();
        let inner = format!(
            "trap '' TERM; '{BINARY}' run -b '{}' --ttl 30s --grace 200ms x -- '{}' --inherited-lock '{}' ignore-term 2>inner; \
             echo inner=$? >status",
            store.url(),
            probe.display(),
            inherited_lock.path()
        );
        let mut run = store.run_with_ttl("60s").args(["--grace", "5s"]).sh(&inner).spawn();
        run.await_ready();
        assert_ended(&breaking(&store).args(["--wait", "forever"]).output());
        assert!(inherited_lock.is_free() && !store.is_held());
        // It also gets the stop request of the outer one, which may come first.
        let status = store.place.read("status");
        assert!(["inner=76\n", "inner=143\n", ""].contains(&status.as_str()), "{status}");
        assert_broken(&store, "x", &mut run);
    }
}

/// The outer command sees it end, and continues.
#[test]
fn a_lock_held_only_by_the_inner_run_ends_only_the_inner_run() {
    for store in Store::each() {
        let inner = format!(
            "'{BINARY}' run -b '{}' --ttl 30s y -- sh -c 'echo ready; exec sleep 1000' 2>inner; echo inner=$?",
            store.url()
        );
        let mut run = store.run_with_ttl("30s").sh(&inner).spawn();
        run.await_ready();
        assert_ended(&breaking_of(&store, "y").output());
        let output = run.wait();
        assert_eq!(output.outcome(), (Exit::Code(0), "ready\ninner=76\n", ""));
    }
}

#[test]
fn a_holder_of_several_locks_releases_all() {
    for store in Store::each() {
        let mut run = working(store.run_with_ttl("30s").arg("y").args(["--min-hold", "0"]));
        assert_ended(&breaking_of(&store, "y").output());
        assert_broken(&store, "y", &mut run);
        for name in ["x", "y"] {
            let free = format!("{name} on {} is free\n", store.url());
            assert_eq!(breaking_of(&store, name).output().outcome(), (Exit::Code(0), free.as_str(), ""));
        }
    }
}

/// It already holds the first of two.
#[test]
fn a_holder_of_one_lock_waiting_for_another_gives_up_both() {
    for store in Store::each() {
        let queue = Queue::of(store.clone()).ttl("1h");
        let mut holder = queue.holder("holder");
        let run = store.run_with_ttl("1h").args(["--wait", "forever", "--report", "r", "a"]).sh("echo ran");
        let mut run = queue.joined(run);
        assert_ended(&breaking_of(&store, "a").args(["--wait", "forever", "--reason", "no"]).output());
        let (user, host, url) = (user(), host(), store.url());
        let line =
            format!("dlock: a on {url}: the lock was broken by {user}@{host}: no; the command did not run\n");
        assert_eq!(run.wait().outcome(), (Exit::Code(76), "", line.as_str()));
        let report: serde_json::Value = serde_json::from_str(&store.place.read("r")).unwrap();
        assert_eq!((&report["outcome"], &report["reason"]), (&"lost".into(), &"no".into()), "{report}");
        assert_eq!(queue.pids(), [0; 0], "the queue is empty");
        holder.assert_running();
        queue.let_go("holder");
        assert_eq!(holder.wait().exit, Exit::Code(0));
        queue.assert_nothing_left();
    }
}

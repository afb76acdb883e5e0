//! Processes that a command leaves when it ends.

use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::inherited_lock::InheritedLock;
use crate::support::place::Place;
use crate::support::process;
use crate::support::running::Exit;
use crate::support::store::Store;
use crate::support::wait::{side_by_side, throughout, until};
use nix::sys::signal::Signal;
use std::time::Duration;

/// A command that leaves two daemons (setsid, double fork) and exits 0.
fn leaving(place: &Place, inherited_lock: &InheritedLock, run: Dlock) -> Dlock {
    run.probe(["--inherited-lock", inherited_lock.path(), "tree", "2", &place.arg("pids"), "exit", "0"])
}

/// The pids of those daemons.
fn daemons(place: &Place) -> Vec<i32> {
    place.read("pids").lines().map(|line| line.parse().unwrap()).collect()
}

/// S22
#[test]
fn orphans_are_left_by_default_and_reported_once() {
    let place = Place::new();
    let inherited_lock = place.inherited_lock();
    let output = leaving(&place, &inherited_lock, place.run()).output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ready\n"));
    assert!(output.stderr.starts_with("dlock: ") && output.stderr.contains("--orphans"), "{}", output.stderr);
    assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
    assert!(place.lock_is_free("x"));
    assert!(daemons(&place).len() == 2 && daemons(&place).into_iter().all(process::alive));
    // They continue to run, and hold nothing.
    throughout(Duration::from_millis(300), "the daemons live", || {
        daemons(&place).into_iter().all(process::alive)
    });
    assert_eq!(place.run().command(["true"]).output().outcome(), (Exit::Code(0), "", ""));
    place.marker().kill_all();
}

/// S22
#[test]
fn with_orphans_leave_orphans_are_left_without_a_message() {
    let place = Place::new();
    let inherited_lock = place.inherited_lock();
    for options in [&["--orphans", "leave"][..], &["-q"][..]] {
        let output = leaving(&place, &inherited_lock, place.run().args(options)).output();
        assert_eq!(output.outcome(), (Exit::Code(0), "ready\n", ""));
        assert!(!inherited_lock.is_free());
        place.marker().kill_all();
    }
}

/// S22
#[test]
fn a_command_without_orphans_causes_no_message() {
    let output = Dlock::run().sh("sleep 0.01 & wait; true | true").output();
    assert_eq!(output.outcome(), (Exit::Code(0), "", ""));
}

/// S22
#[test]
fn with_orphans_wait_the_lock_is_held_until_the_last_one_ends() {
    let place = Place::new();
    let inherited_lock = place.inherited_lock();
    let mut run = leaving(&place, &inherited_lock, place.run().args(["--orphans", "wait"])).spawn();
    run.await_ready();
    throughout(Duration::from_millis(500), "the lock is held", || {
        run.poll().is_none() && !place.lock_is_free("x")
    });
    let daemons = daemons(&place);
    process::send(daemons[0], Signal::SIGKILL);
    until(SOON, "the end of one daemon", || !process::alive(daemons[0]));
    throughout(Duration::from_millis(300), "the lock is held", || {
        run.poll().is_none() && !place.lock_is_free("x")
    });
    process::send(daemons[1], Signal::SIGKILL);
    assert_eq!(run.wait().outcome(), (Exit::Code(0), "ready\n", ""));
    assert!(place.lock_is_free("x"));
}

/// S22
#[test]
fn with_orphans_kill_no_process_survives_and_then_the_lock_is_released() {
    for hidden in [false, true] {
        let place = Place::new();
        let inherited_lock = place.inherited_lock();
        let run =
            leaving(&place, &inherited_lock, place.run().args(["--orphans", "kill", "--grace", "200ms"]));
        let run = if hidden { run.without_cgroups() } else { run };
        let output = run.output();
        assert_eq!(output.outcome(), (Exit::Code(0), "ready\n", ""));
        assert!(inherited_lock.is_free());
        assert!(place.lock_is_free("x"));
        place.marker().await_end();
    }
}

/// S22
#[test]
fn the_next_holder_starts_after_the_last_killed_orphan_has_ended() {
    for store in Store::each() {
        let inherited_lock = store.place.inherited_lock();
        let go = store.place.arg("go");
        let pids = store.place.arg("pids");
        let probe = crate::support::probe::command([
            "--inherited-lock",
            inherited_lock.path(),
            "tree",
            "2",
            &pids,
            "exit",
            "0",
        ]);
        let text = format!("'{}'; while ! test -e '{go}'; do sleep 0.05; done", probe.join("' '"));
        let run = store.run_with_ttl("60s").args(["--orphans", "kill", "--grace", "200ms"]);
        let mut run = run.sh(&text).spawn();
        run.await_ready();
        let mut next_holder = store.next_holder(&inherited_lock);
        store.place.write("go", "");
        assert_eq!(next_holder.wait().stdout, "clean\n");
        assert_eq!(run.wait().outcome(), (Exit::Code(0), "ready\n", ""));
    }
}

/// S22
#[test]
fn orphans_get_sigterm_and_grace_before_they_are_killed() {
    let place = Place::new();
    let probe = crate::support::probe::path();
    let log = place.arg("log");
    let text = format!(
        "PROBE_OUTPUT='{log}' setsid '{}' signals exit:TERM=0 & while ! test -s '{log}'; do sleep 0.05; done",
        probe.display()
    );
    let output = place.run().args(["--orphans", "kill"]).sh(&text).output();
    assert_eq!(output.outcome(), (Exit::Code(0), "", ""));
    let log = place.read("log");
    let lines: Vec<&str> = log.lines().collect();
    assert!(matches!(lines[..], ["ready", term] if term.starts_with("TERM ")), "{log}");
}

/// S22
#[test]
fn at_max_runtime_no_process_survives_whatever_the_option() {
    let stops_everybody = |option: &str, hidden: bool| {
        let place = Place::new();
        let inherited_lock = place.inherited_lock();
        // The tree must be complete by then, however slowly it starts.
        let options = ["--orphans", option, "--max-runtime", "6s", "--grace", "200ms"];
        let run = place.run().args(options);
        let run = run.probe(["--inherited-lock", inherited_lock.path(), "tree", "2", &place.arg("pids")]);
        let run = if hidden { run.without_cgroups() } else { run };
        let output = run.output();
        let seen = (output.exit, output.stdout.as_str());
        assert_eq!(seen, (Exit::Code(124), "ready\n"), "--orphans {option}: {}", output.stderr);
        assert!(inherited_lock.is_free(), "--orphans {option}");
        assert!(place.lock_is_free("x"));
        place.marker().await_end();
    };
    crate::support::admission::await_admission();
    let cases = ["leave", "wait", "kill"].map(|option| [(option, false), (option, true)]);
    side_by_side(cases.into_iter().flatten(), |(option, hidden)| stops_everybody(option, hidden));
}

/// S22
#[test]
fn max_runtime_counts_while_orphans_are_waited_for() {
    let place = Place::new();
    let inherited_lock = place.inherited_lock();
    let options = ["--orphans", "wait", "--max-runtime", "6s", "--grace", "200ms"];
    let output = leaving(&place, &inherited_lock, place.run().args(options)).output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(124), "ready\n"), "{}", output.stderr);
    assert!(inherited_lock.is_free());
}

/// S22
#[test]
fn when_the_lock_is_lost_no_process_survives_whatever_the_option() {
    for option in ["leave", "wait", "kill"] {
        let store = Store::redis();
        let inherited_lock = store.place.inherited_lock();
        let run = store.run_with_ttl("30s").args(["--orphans", option]);
        let mut run = run
            .probe(["--inherited-lock", inherited_lock.path(), "tree", "2", &store.place.arg("pids")])
            .spawn();
        run.await_ready();
        store.space().command(&["DEL", &store.space().key("x")]);
        let output = run.wait();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(76), "ready\n"), "{}", output.stderr);
        assert!(inherited_lock.is_free(), "--orphans {option}");
        store.place.marker().await_end();
    }
}

/// S22
#[test]
fn orphans_that_are_waited_for_die_when_the_lock_is_lost() {
    let store = Store::redis();
    let inherited_lock = store.place.inherited_lock();
    let run = store.run_with_ttl("30s").args(["--orphans", "wait"]);
    let mut run = leaving(&store.place, &inherited_lock, run).spawn();
    run.await_ready();
    throughout(Duration::from_millis(300), "it waits", || run.poll().is_none());
    store.space().command(&["SET", &store.space().key("x"), "somebody else"]);
    let output = run.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(76), "ready\n"), "{}", output.stderr);
    assert!(inherited_lock.is_free());
    assert_eq!(store.space().command(&["GET", &store.space().key("x")]).text(), "somebody else");
}

/// S22
#[test]
fn a_signal_while_orphans_are_waited_for_reaches_them() {
    let place = Place::new();
    let inherited_lock = place.inherited_lock();
    let mut run =
        leaving(&place, &inherited_lock, place.run().args(["--orphans", "wait", "--grace", "300ms"])).spawn();
    run.await_ready();
    throughout(Duration::from_millis(300), "it waits", || run.poll().is_none());
    run.signal(Signal::SIGTERM);
    // They ignore TERM: grace, KILL, and only then is the lock released.
    let output = run.wait();
    assert_eq!(output.stdout, "ready\n");
    assert!(inherited_lock.is_free());
    assert!(place.lock_is_free("x"));
}

/// For everything that runs, as when a service is stopped: dlock learns of it only after the command has ended of it.
#[test]
fn what_is_left_after_a_signal_that_dlock_reads_late_is_still_the_command() {
    for store in Store::each() {
        let daemon = "trap '' TERM; echo ready; while :; do sleep 0.05; done";
        let text = format!("trap 'exit 0' TERM; setsid sh -c \"{daemon}\" & while :; do sleep 0.05; done");
        let mut run = store.run_with_ttl("60s").args(["--grace", "200ms"]).sh(&text).spawn();
        run.await_ready();
        let (command, guard) = (run.command(), run.guard());
        run.signal(Signal::SIGSTOP);
        until(SOON, "a stopped dlock", || process::wholly_stopped(run.pid()));
        run.signal(Signal::SIGTERM);
        process::send(command, Signal::SIGTERM);
        until(SOON, "the end of the tree", || !process::alive(command) && !process::alive(guard));
        run.signal(Signal::SIGCONT);
        assert_eq!(run.wait().outcome(), (Exit::Code(0), "ready\n", ""));
        assert_eq!(store.place.marker().bearers().len(), 0, "something is left that runs without the lock");
    }
}

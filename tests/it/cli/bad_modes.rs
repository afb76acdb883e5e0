//! Invalid modes and waits: each with a message and a status, and nothing is acquired, overwritten or left behind.

use crate::acquire::refusal::assert_usage;
use crate::support::dlock::BINARY;
use crate::support::running::{Exit, Running};
use crate::support::store::Store;
use std::process::Stdio;

const DURATION: &str = "expected a duration like 250ms, 90s, 5m, 1h30m or 1d (a bare number is seconds)";

/// A run that holds `x` in this mode until its standard input is closed.
fn hold(store: &Store, mode: &[&str]) -> Running {
    let mut run =
        store.run_with_ttl("60s").args(mode).stdin(Stdio::piped()).sh("echo ready; exec cat").spawn();
    run.await_ready();
    run
}

#[track_caller]
fn end(mut run: Running) {
    drop(run.take_stdin());
    let output = run.wait();
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
}

#[test]
fn slots_are_a_number_from_1_to_10000() {
    for value in ["0", "-1", "x", "10001", "1.5", "3s", "-0", "99999999999999999999"] {
        let line = format!("invalid value '{value}' for '--slots <N>': expected a number from 1 to 10000");
        let joined = format!("--slots={value}");
        assert_usage([
            (&["run", "--slots", value, "x", "--", "touch", "t"][..], line.as_str()),
            (&["run", &joined, "x", "--", "touch", "t"], &line),
            (&["run", "x", "--slots", value, "-c", "touch t"], &line),
        ]);
    }
    let none = "a value is required for '--slots <N>' but none was supplied";
    assert_usage([
        (&["run", "--slots", "", "x", "--", "touch", "t"][..], none),
        (&["run", "x", "--slots", "--", "touch", "t"], none),
    ]);
}

#[test]
fn modes_that_contradict_each_other_are_both_named() {
    let line = |one: &str, other: &str| format!("{one} and {other} contradict each other: give one of them");
    let shared = |slots: u32| line(&format!("--slots {slots}"), "--shared");
    let (both, three) = (line("--exclusive", "--shared"), line("--slots 3", "--exclusive"));
    assert_usage([
        (&["run", "--slots", "3", "--shared", "x", "--", "touch", "t"][..], shared(3).as_str()),
        (&["run", "-s", "--slots", "1", "x", "--", "touch", "t"], &shared(1)),
        (&["run", "-s", "x", "--slots=2", "-c", "touch t"], &shared(2)),
        (&["run", "-x", "-s", "x", "--", "touch", "t"], &both),
        (&["run", "-se", "x", "--", "touch", "t"], &both),
        (&["run", "--shared", "x", "--exclusive", "-c", "touch t"], &both),
        (&["run", "-xs", "--slots", "3", "x", "--", "touch", "t"], &both),
        (&["run", "-x", "--slots", "3", "x", "--", "touch", "t"], &three),
        (&["run", "--slots", "3", "x", "-e", "-c", "touch t"], &three),
    ]);
}

#[test]
fn any_takes_the_place_of_a_name_and_does_not_go_with_slots_or_a_period() {
    let both = |other: &str| format!("--any and {other} contradict each other: give one of them");
    let any = |why: &str| format!("--any: {why}");
    let many = (0..65).map(|number| number.to_string()).collect::<Vec<_>>().join(",");
    assert_usage([
        (&["run", "--any", "a,b", "x", "--", "touch", "t"][..], both("NAME 'x'").as_str()),
        (&["run", "x", "--any=a,b", "-c", "touch t"], &both("NAME 'x'")),
        (&["run", "--any", "a,b", "--slots", "3", "--", "touch", "t"], &both("--slots 3")),
        (&["run", "--any", "a,b", "--slots", "1", "--", "touch", "t"], &both("--slots 1")),
        (&["run", "--once-per", "1h", "--any", "a,b", "--", "touch", "t"], &both("--once-per 1h")),
        (&["run", "--any", "b,a,b", "--", "touch", "t"], &any("'b' is named twice")),
        (&["run", "--any", "a,", "--", "touch", "t"], &any("NAME '': a lock name may not be empty")),
        (&["run", "--any", "a,.", "--", "touch", "t"], &any("NAME '.': '.' and '..' are not lock names")),
        (&["run", "--any", &many, "--", "touch", "t"], &any("at most 64 names")),
        (
            &["run", "--any", "a, b", "--", "touch", "t"],
            &any(
                "the name ' b' begins or ends with a space: leave the space out, or name the lock in a pool",
            ),
        ),
        (
            &["run", "--any", "redis://u:secret@h", "--", "touch", "t"],
            &any("'redis://u:***@h' is a URL: did you mean -b redis://u:***@h"),
        ),
        (
            &["run", "--any", "", "--", "touch", "t"],
            "a value is required for '--any <NAME,NAME...|POOL>' but none was supplied",
        ),
        (&["run", "--any", "a,b"], "no command: did you mean: dlock run --any a,b -- ./backup.sh"),
        (&["run", "--any", "a,b", "ls", "-l"], "no command: did you mean: dlock run --any a,b -- ls -l"),
        (&["run", "--any", "a,b", "ls", "x"], "no command: did you mean: dlock run --any a,b -- ls x"),
    ]);
}

/// One slot is an exclusive lock: both options together are not a contradiction.
#[test]
fn one_slot_may_be_combined_with_exclusive() {
    for store in Store::each() {
        let run =
            store.run_with_ttl("60s").args(["-x", "--slots", "1"]).sh("echo \"slot $DLOCK_SLOT\"").output();
        assert_eq!(run.outcome(), (Exit::Code(0), "slot 0\n", ""), "{}", store.url());
    }
}

#[test]
fn min_hold_is_a_duration_and_not_too_long() {
    let invalid =
        |value: &str, why: &str| format!("invalid value '{value}' for '--min-hold <DURATION>': {why}");
    for (value, line) in [
        ("-1s", invalid("-1s", DURATION)),
        ("-5", invalid("-5", DURATION)),
        ("5M", invalid("5M", "unknown unit 'M': known are ms, s, m, h, d")),
        ("forever", invalid("forever", DURATION)),
        ("9999999999d", invalid("9999999999d", "longer than a hundred years")),
        ("400d", "--min-hold: 400d is longer than 24h: use --once-per".to_owned()),
        ("25h", "--min-hold: 1d1h is longer than 24h: use --once-per".to_owned()),
    ] {
        assert_usage([
            (&["run", "--min-hold", value, "x", "--", "touch", "t"][..], line.as_str()),
            (&["run", "x", "--min-hold", value, "-c", "touch t"], &line),
        ]);
    }
}

/// Holders and waiters have agreed on the number of slots.
#[test]
fn a_different_slot_count_than_that_of_a_live_client_is_refused_with_both() {
    for store in Store::each() {
        let refused = |ours: &str, theirs: u32| {
            let run = store.run_with_ttl("60s").args(["--slots", ours]).command(["touch", "t"]).output();
            let line = format!(
                "dlock: x on {}: --slots {ours}, but it is in use with {theirs} slots: give --slots {theirs}, or wait \
                 until it has no holder and no waiter",
                store.url()
            );
            assert_eq!(run.outcome(), (Exit::Code(64), "", &*format!("{line}\n")));
            // The number may change while it waits.
            let run = store
                .run_with_ttl("60s")
                .args(["--slots", ours, "--wait", "10ms"])
                .command(["touch", "t"])
                .output();
            let url = store.url();
            let gave_up =
                format!("dlock: x on {url} is still in use with {theirs} slots, not {ours}; gave up after ");
            let remedy = format!(": wait longer, or give --slots {theirs}\n");
            assert_eq!((run.exit, run.stdout.as_str()), (Exit::Code(75), ""), "{}", run.stderr);
            assert!(run.stderr.starts_with(&gave_up) && run.stderr.ends_with(&remedy), "{}", run.stderr);
            assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
        };
        let holder = hold(&store, &["--slots", "3"]);
        for ours in ["2", "4", "10000"] {
            refused(ours, 3);
        }
        end(holder);
        // The lock is unused now. An exclusive holder does not determine the number either, but the waiters behind it
        // do.
        let alone = hold(&store, &["--slots", "1"]);
        let mut waiter = store
            .run_with_ttl("60s")
            .args(["-v", "--slots", "4", "--wait", "forever"])
            .command(["true"])
            .spawn();
        waiter.await_stderr("waiting");
        refused("3", 4);
        end(alone);
        assert_eq!(waiter.wait().exit, Exit::Code(0));
        let run = store.run_with_ttl("60s").args(["--slots", "5"]).sh("echo ran").output();
        assert_eq!(run.outcome(), (Exit::Code(0), "ran\n", ""), "{}", store.url());
        assert!(!store.place.path("t").exists());
    }
}

#[test]
fn a_run_with_another_slot_count_waits_until_nobody_uses_the_lock() {
    for store in Store::each() {
        let holders = [(); 2].map(|()| hold(&store, &["--slots", "3"]));
        let run = store.run_with_ttl("60s").args(["-v", "--slots", "5", "--wait", "forever"]);
        let mut run = run.sh("echo slot $DLOCK_SLOT").spawn();
        run.await_stderr(
            "dlock: x is in use with 3 slots; waiting until it has no holder and no waiter, to use it with 5\n",
        );
        let [first, second] = holders;
        end(first);
        // One holder is left, and it does not run beside that.
        let other = store.run_with_ttl("60s").args(["--slots", "3"]).sh("echo ran").output();
        assert_eq!(other.outcome(), (Exit::Code(0), "ran\n", ""));
        run.assert_running();
        assert_eq!(run.stdout(), "");
        end(second);
        let output = run.wait();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "slot 0\n"), "{}", output.stderr);
        // It is reported once, however often it was found.
        assert_eq!(output.stderr.matches("in use with").count(), 1, "{}", output.stderr);
    }
}

/// It would wait for itself.
#[test]
fn a_mode_that_the_outer_hold_does_not_allow_is_refused_at_once() {
    let outer = [(&["--shared"][..], "shared"), (&["--slots", "3"], "slots")];
    let inner =
        [(&["--exclusive"][..], "exclusive"), (&["--shared"], "shared"), (&["--slots", "4"], "slots")];
    for store in Store::each() {
        for (outer, outer_mode) in outer {
            for (inner, inner_mode) in inner {
                if inner_mode == "shared" && outer_mode == "shared" {
                    continue;
                }
                for patience in ["--no-wait", "--wait=forever"] {
                    let nested = [
                        &[BINARY, "run", "-b", store.url(), patience][..],
                        inner,
                        &["x", "--", "touch", "t"],
                    ];
                    let run = store.run_with_ttl("60s").args(outer).command(nested.concat()).output();
                    let line = if inner_mode == "slots" && outer_mode == "slots" {
                        format!(
                            "dlock: x on {}: --slots 4, but it is in use with 3 slots: give --slots 3, or wait \
                            until it has no holder and no waiter\n",
                            store.url()
                        )
                    } else {
                        format!(
                            "dlock: x on {}: cannot be taken {inner_mode} here: this command runs under a hold of it that \
                             is {outer_mode} and would wait for itself; take the outer one with --exclusive, or this \
                             one with the same mode\n",
                            store.url()
                        )
                    };
                    assert_eq!(run.outcome(), (Exit::Code(64), "", line.as_str()), "{outer:?} {inner:?}");
                    assert!(!store.is_held(), "{outer:?} {inner:?}");
                }
            }
        }
        assert!(!store.place.path("t").exists());
    }
}

#[test]
fn a_run_supersedes_others_only_where_it_waits_for_one_exclusive_lock() {
    let store = Store::file();
    let place = &store.place;
    let run = |words: &[&str]| {
        place.bare().args(["run", "--supersede"]).args(words).args(["--", "touch", "t"]).output()
    };
    for (words, message) in [
        (&["x"][..], "--supersede: needs --wait: a run that does not wait supersedes nothing"),
        (&["--no-wait", "x"], "--supersede: needs --wait: a run that does not wait supersedes nothing"),
        (&["--wait", "1m", "-s", "x"], "--supersede: needs an exclusive lock: not with --shared"),
        (&["--wait", "1m", "--slots", "3", "x"], "--supersede: needs an exclusive lock: not with --slots 3"),
        (&["--wait", "1m", "--any", "x,y"], "--supersede: not with --any"),
        (&["--wait", "1m", "x", "y"], "--supersede: takes one NAME, but 2 were given"),
        (&["--wait", "1m", "--once-per", "1h", "x"], "--supersede: does not go with --once-per"),
    ] {
        assert_eq!(run(words).outcome(), (Exit::Code(64), "", &*format!("dlock: {message}\n")), "{words:?}");
    }
    let file = place.write("c.toml", "backend = 'file:'\n[locks.x]\nonce_per = '1h'\n[locks.y]\nslots = 3\n");
    for (name, message) in [
        ("x", format!("does not go with --once-per ({}:3)", file.display())),
        ("y", format!("needs an exclusive lock, not 3 slots ({}:5)", file.display())),
    ] {
        let run = place.bare().args(["run", "--supersede", "--wait", "1m", name, "--", "touch", "t"]);
        let refused = run.env("DLOCK_CONFIG", &file).output();
        let message = format!("dlock: --supersede: {message}\n");
        assert_eq!(refused.outcome(), (Exit::Code(78), "", message.as_str()));
    }
    let unknown =
        place.bare().args(["run", "--supersede=all", "--wait", "1m", "x", "--", "touch", "t"]).output();
    assert_eq!(unknown.exit, Exit::Code(64));
    assert!(!place.path("t").exists());
}

//! `--once-per`: two hosts, one night, one run.

mod on_servers;

use crate::acquire::refusal::assert_usage;
use crate::run::faults::shim::{Clocks, DAY};
use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::process;
use crate::support::running::{Exit, Output, Running};
use crate::support::store::Store;
use crate::support::wait::until;
use nix::sys::signal::Signal;
use serde_json::Value;

const NIGHTLY: [&str; 2] = ["--once-per", "23h"];

fn nightly(store: &Store) -> Dlock {
    store.run_with_ttl("30s").args(NIGHTLY)
}

/// Whether the run found that the job was done.
#[track_caller]
fn is_done(output: &Output) -> bool {
    let host = dlock::identity::host();
    let said = output.stderr.strip_prefix(&format!("dlock: x was done by {host} "));
    let due_in = said.and_then(|said| said.split_once(" ago; not due for another "));
    let is_done = due_in.is_some_and(|(_, due_in)| ["23h\n", "22h59m\n"].contains(&due_in));
    assert_eq!((output.exit, output.stdout.is_empty()), (Exit::Code(0), is_done), "{output:?}");
    is_done
}

/// Asserts that the job is still due: that the next run of it runs, and that the one after finds it done.
#[track_caller]
fn assert_open(store: &Store) {
    assert!(!is_done(&nightly(store).sh("echo ran").output()), "it was taken for done");
    assert!(is_done(&nightly(store).sh("echo ran").output()), "the retry was not recorded");
}

/// A job that ends with status 0 on any of these signals.
fn ending_on(store: &Store, signals: &str) -> Running {
    let text = format!("trap 'exit 0' {signals}; echo ready; while :; do sleep 0.05; done");
    let mut run = nightly(store).sh(&text).spawn();
    run.await_ready();
    run
}

#[test]
fn a_failed_job_is_taken_over_by_the_next_run() {
    for store in Store::each() {
        assert_eq!(nightly(&store).sh("exit 3").output().outcome(), (Exit::Code(3), "", ""));
        assert_eq!(nightly(&store).sh("kill -9 $$").output().exit, Exit::Signal(9));
        let output =
            nightly(&store).args(["--max-runtime", "100ms"]).sh("trap 'exit 0' TERM; sleep 9 & wait");
        assert_eq!(output.output().exit, Exit::Code(124));
        assert_open(&store);
    }
}

/// Whatever its status is then.
#[test]
fn a_job_that_was_asked_to_end_is_not_done() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        for store in Store::each() {
            let mut run = ending_on(&store, "TERM INT HUP QUIT");
            run.signal(signal);
            assert_eq!(run.wait().exit, Exit::Code(0));
            assert_open(&store);
        }
    }
}

/// A signal for a whole process group, of which dlock learns only when the job has ended of it.
#[test]
fn a_job_that_was_asked_to_end_with_a_stopped_dlock_is_not_done() {
    for store in Store::each() {
        let mut run = ending_on(&store, "TERM");
        let (command, guard) = (run.command(), run.guard());
        run.signal(Signal::SIGSTOP);
        until(SOON, "a stopped dlock", || process::wholly_stopped(run.pid()));
        run.signal(Signal::SIGTERM);
        process::send(command, Signal::SIGTERM);
        until(SOON, "the end of the job", || !process::alive(command) && !process::alive(guard));
        run.signal(Signal::SIGCONT);
        assert_eq!(run.wait().exit, Exit::Code(0));
        assert_open(&store);
    }
}

/// As under nohup(1): the job ignores it too.
#[test]
fn a_signal_that_is_ignored_does_not_ask_a_job_to_end() {
    for signal in [Signal::SIGHUP, Signal::SIGINT] {
        for store in Store::each() {
            let job = "echo ready; while [ ! -e go ]; do sleep 0.05; done";
            let mut run = nightly(&store).sh(job).ignoring(signal).spawn();
            run.await_ready();
            run.signal(signal);
            store.place.write("go", "");
            assert_eq!(run.wait().outcome(), (Exit::Code(0), "ready\n", ""), "{signal}");
            assert!(is_done(&nightly(&store).sh("echo ran").output()), "{signal}");
        }
    }
}

#[test]
fn other_signals_do_not_ask_a_job_to_end() {
    for store in Store::each() {
        let mut run = ending_on(&store, "USR1");
        run.signal(Signal::SIGUSR1);
        assert_eq!(run.wait().exit, Exit::Code(0));
        assert!(is_done(&nightly(&store).sh("echo ran").output()));
    }
}

#[test]
fn a_revoked_job_is_not_done() {
    for store in Store::each() {
        let mut run = ending_on(&store, "TERM");
        let broken = store.place.bare().args(["break", "-b", store.url(), "--yes", "x"]).output();
        assert_eq!(broken.exit, Exit::Code(0), "{broken:?}");
        assert_eq!(run.wait().exit, Exit::Code(76));
        assert_open(&store);
    }
}

#[test]
fn a_killed_job_is_not_done() {
    for store in Store::each() {
        let inherited_lock = store.place.inherited_lock();
        let run = store.run_with_ttl("6s").args(NIGHTLY);
        let run = run.probe(["--inherited-lock", inherited_lock.path(), "ignore-term"]);
        let mut run = run.spawn();
        run.await_ready();
        run.signal(Signal::SIGKILL);
        assert_eq!(run.wait().exit, Exit::by(Signal::SIGKILL));
        inherited_lock.await_free();
        // Its lease has to end first.
        let retry = nightly(&store).args(["--wait", "1m"]).sh("echo ran").output();
        assert_eq!(retry.outcome(), (Exit::Code(0), "ran\n", ""));
    }
}

#[test]
fn a_waiting_run_finds_the_job_done_after_its_wait() {
    for store in Store::each() {
        let mut holder = nightly(&store).sh("echo ready; while [ ! -e go ]; do sleep 0.05; done").spawn();
        holder.await_ready();
        let contended = nightly(&store).args(["-n", "-q"]).sh("echo ran").output();
        assert_eq!(contended.outcome(), (Exit::Code(75), "", ""), "it is held, not done");
        let mut waiter = nightly(&store).args(["-v", "--wait", "1m"]).sh("echo ran").spawn();
        waiter.await_stderr("waiting");
        let mut by_hand = store.run_with_ttl("30s").args(["-v", "--wait", "1m"]).sh("echo ran").spawn();
        by_hand.await_stderr("waiting");
        store.place.write("go", "");
        assert_eq!(holder.wait().exit, Exit::Code(0));
        let output = waiter.wait();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), ""));
        assert!(output.stderr.contains("\ndlock: x was done by "), "{}", output.stderr);
        let output = by_hand.wait();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", output.stderr);
    }
}

#[test]
fn a_run_that_finds_it_done_leaves_the_lock_free() {
    for store in Store::each() {
        assert!(!is_done(&nightly(&store).sh("echo ran").output()));
        let done = nightly(&store).args(["--min-hold", "10m", "--metrics-file", "m"]).sh("echo ran").output();
        assert!(is_done(&done));
        assert!(!store.is_held());
        let metrics = store.place.read("m");
        assert!(metrics.contains("dlock_runs_total{name=\"x\",outcome=\"done\"} 1\n"), "{metrics}");
        let status = store.place.bare().args(["status", "-b", store.url(), "--json", "x"]).output();
        let seen: Value = serde_json::from_str(&status.stdout).unwrap();
        let last = &seen["locks"][0]["last_success"];
        let ended: jiff::Timestamp = last["ended_at"].as_str().unwrap().parse().unwrap();
        let success = format!("dlock_last_success_timestamp_seconds{{name=\"x\"}} {}", ended.as_second());
        assert!(metrics.contains(&success), "{success}\n{metrics}");
    }
}

/// On this host its own clock counts.
#[test]
fn a_record_far_in_the_future_is_ignored_with_a_warning() {
    let store = Store::file();
    let clocks = Clocks::new(&store.place);
    clocks.set_wall(2 * DAY);
    let run = |run: Dlock| clocks.of(run).sh("unset LD_PRELOAD; echo ran").output();
    assert_eq!(run(nightly(&store)).outcome(), (Exit::Code(0), "ran\n", ""));
    clocks.set_wall(0);
    let ignored = run(nightly(&store));
    assert_eq!((ignored.exit, ignored.stdout.as_str()), (Exit::Code(0), "ran\n"));
    let line = |ahead: &str| {
        let text =
            format!("its last success is dated {ahead} in the future, and is ignored: check the clock");
        format!("dlock: x on {}: {text}\n", store.url())
    };
    assert!([line("2d"), line("1d23h")].contains(&ignored.stderr), "{}", ignored.stderr);
    assert_eq!(run(nightly(&store).arg("-q")).outcome(), (Exit::Code(0), "", ""), "it has been replaced");
}

#[test]
fn a_success_that_a_damaged_sidecar_cannot_hold_is_reported() {
    let store = Store::file();
    let mut run = nightly(&store).sh("echo ready; while [ ! -e go ]; do sleep 0.05; done").spawn();
    run.await_ready();
    let sidecar = store.place.locks().join("x.dlock");
    std::fs::write(&sidecar, "{\"format\":9}\n").unwrap();
    store.place.write("go", "");
    let line = format!(
        "dlock: x on {}: its success could not be recorded: {} cannot be used; it may run again before it is due\n",
        store.url(),
        sidecar.display()
    );
    assert_eq!(run.wait().outcome(), (Exit::Code(0), "ready\n", &*line));
}

/// It is not guessed, and runs without the option leave it as it is.
#[test]
fn a_record_in_an_unknown_format_is_rejected() {
    for store in Store::each() {
        assert!(!is_done(&nightly(&store).sh("echo ran").output()));
        for (record, format) in [(r#"{"format":2,"at":7}"#, "2"), (r#"{"format":1}"#, "unknown")] {
            store.plant_success(record);
            let by_hand = store.run_with_ttl("30s").sh("echo ran").output();
            assert_eq!(by_hand.outcome(), (Exit::Code(0), "ran\n", ""));
            let line = format!(
                "dlock: x on {}: the record of its last success was stored by another version of dlock (format \
                 {format}, known: 1): use one version on all hosts; the command did not run\n",
                store.url()
            );
            assert_eq!(nightly(&store).sh("echo ran").output().outcome(), (Exit::Code(78), "", &*line));
            assert_eq!(nightly(&store).args(["--wait", "9s"]).sh("echo ran").output().exit, Exit::Code(78));
            assert!(!store.is_held());
        }
    }
}

#[test]
fn it_is_for_one_lock_held_by_one_run() {
    let (run, command) = (["run", "--once-per", "23h"], ["--", "touch", "t"]);
    let line = |more: &[&'static str]| [&run[..], more, &command].concat();
    assert_usage([
        (&line(&["x", "y"])[..], "--once-per: takes one NAME, but 2 were given"),
        (&line(&["-s", "x"]), "--once-per: needs an exclusive lock: not with --shared"),
        (&line(&["--slots", "3", "x"]), "--once-per: needs an exclusive lock: not with --slots 3"),
        (&["run", "--once-per", "31d", "x", "--", "touch", "t"], "--once-per: 31d is not between 1s and 30d"),
        (
            &["run", "--once-per", "0.9", "x", "--", "touch", "t"],
            "--once-per: 900ms is not between 1s and 30d",
        ),
    ]);
}

#[test]
fn it_is_not_for_a_run_inside_a_hold_of_the_lock() {
    for store in Store::each() {
        let inner = format!(
            "{} run -b '{}' x --once-per 23h -- echo ran",
            crate::support::dlock::BINARY,
            store.url()
        );
        let line = "dlock: --once-per: this command runs under a hold of x already: give --once-per to the outer \
                    dlock run\n";
        let outer = store.run_with_ttl("30s").sh(&inner).output();
        assert_eq!(outer.outcome(), (Exit::Code(64), "", line));
    }
}

#[test]
fn a_configuration_file_sets_it() {
    let place = Place::new();
    place.write("c.toml", &format!("backend = \"{}\"\n[locks.\"n*\"]\nonce_per = \"23h\"\n", place.url()));
    let run = |names: &[&str]| {
        place.bare().args(["run", "--config", "c.toml"]).args(names).args(["--", "echo", "ran"]).output()
    };
    assert_eq!(run(&["night"]).outcome(), (Exit::Code(0), "ran\n", ""));
    assert_eq!(run(&["-q", "night"]).outcome(), (Exit::Code(0), "", ""));
    // By hand, although it is done.
    assert_eq!(run(&["--once-per", "0", "night"]).outcome(), (Exit::Code(0), "ran\n", ""));
    assert_eq!(run(&["--once-per", "0", "n1", "n2"]).outcome(), (Exit::Code(0), "ran\n", ""));
    assert_eq!(run(&["--once-per", "0", "--any", "n1,n2"]).outcome(), (Exit::Code(0), "ran\n", ""));
    let line = "dlock: c.toml:3:12: once_per: takes one NAME, but 2 were given\n";
    assert_eq!(run(&["n1", "n2"]).outcome(), (Exit::Code(78), "", line));
}

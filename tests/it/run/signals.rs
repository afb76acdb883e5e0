//! Signals to dlock while its command runs, and at the transitions.

use crate::support::SOON;
use crate::support::place::Place;
use crate::support::process;
use crate::support::running::{Exit, Running};
use crate::support::wait::{throughout, until};
use nix::sys::signal::Signal;
use std::time::Duration;

mod groups;
mod waiting;

/// The forwarded signals, and their names in the probe.
const FORWARDED: [(Signal, &str); 9] = [
    (Signal::SIGHUP, "HUP"),
    (Signal::SIGINT, "INT"),
    (Signal::SIGQUIT, "QUIT"),
    (Signal::SIGTERM, "TERM"),
    (Signal::SIGUSR1, "USR1"),
    (Signal::SIGUSR2, "USR2"),
    (Signal::SIGWINCH, "WINCH"),
    (Signal::SIGALRM, "ALRM"),
    (Signal::SIGCONT, "CONT"),
];

/// The signals that end dlock while it waits.
const ENDING: [Signal; 7] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
];

/// The signals that a probe has reported, without their senders.
fn reported(stdout: &str) -> Vec<&str> {
    stdout.lines().filter_map(|line| line.split_once(' ')).map(|(name, _)| name).collect()
}

/// Runs a probe that holds the lock `x` until it is killed.
fn holder(place: &Place) -> Running {
    let mut holder = place.run().probe(["ignore-term"]).spawn();
    holder.await_ready();
    holder
}

/// S04
#[test]
fn every_signal_is_delivered_to_the_command_exactly_once() {
    let place = Place::new();
    let leave = format!("leave:{}=7", place.arg("leave"));
    let mut run = place.run().probe(["signals", &leave]).spawn();
    run.await_ready();
    for (signal, name) in FORWARDED {
        run.signal(signal);
        run.await_stdout(&format!("{name} "));
    }
    // A second copy of any of them would have arrived by now, or arrives before this is seen.
    run.signal(Signal::SIGURG);
    throughout(Duration::from_millis(200), "each signal came once", || {
        reported(&run.stdout()).into_iter().filter(|name| *name != "URG").eq(FORWARDED.map(|(_, name)| name))
    });
    place.write("leave", "");
    let output = run.wait();
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(7), ""));
}

/// S04
#[test]
fn a_command_may_handle_a_signal_and_choose_its_own_status() {
    for (signal, name) in FORWARDED {
        let mut run = Place::new().run().probe(["signals", &format!("exit:{name}=5")]).spawn();
        run.await_ready();
        run.signal(signal);
        let output = run.wait();
        assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(5), ""));
        assert_eq!(reported(&output.stdout), [name]);
    }
}

/// S04
#[test]
fn dlock_outlives_a_command_that_ignores_the_signal() {
    let place = Place::new();
    let mut run = holder(&place);
    for (signal, _) in FORWARDED {
        run.signal(signal);
    }
    throughout(Duration::from_secs(1), "dlock and its command live, and the lock is held", || {
        run.poll().is_none() && !place.lock_is_free("x")
    });
}

/// S48: a timer survives exec, and its signal comes from the kernel like those of a terminal.
#[test]
fn an_alarm_that_was_set_before_exec_reaches_the_command_once() {
    // A busy machine has started the command before the first alarm.
    let runs = [false, true].map(|in_our_group| {
        let run = Place::new().run().probe(["signals", "exit:TERM=0"]).before_exec(|| {
            nix::unistd::alarm::set(6);
            Ok(())
        });
        let run = if in_our_group { run.in_our_group() } else { run };
        (in_our_group, run.spawn())
    });
    for (in_our_group, mut run) in runs {
        run.await_stdout("ALRM ");
        run.signal(Signal::SIGTERM);
        let output = run.wait();
        assert_eq!((output.exit, reported(&output.stdout)), (Exit::Code(0), vec!["ALRM", "TERM"]));

        let run = Place::new().run().command(["sleep", "1000"]).before_exec(|| {
            nix::unistd::alarm::set(1);
            Ok(())
        });
        let run = if in_our_group { run.in_our_group() } else { run };
        assert_eq!(run.output().outcome(), (Exit::by(Signal::SIGALRM), "", ""));
    }
}

/// S04
#[test]
fn a_command_that_dies_of_the_signal_takes_dlock_with_it() {
    for signal in ENDING {
        let place = Place::new();
        let mut run = place.run().sh("echo ready; exec sleep 1000").spawn();
        run.await_ready();
        run.signal(signal);
        assert_eq!(run.wait().outcome(), (Exit::by(signal), "ready\n", ""));
        assert!(place.lock_is_free("x"));
        place.marker().await_end();
    }
}

/// S04
#[test]
fn a_burst_of_signals_loses_none() {
    for _ in 0..20 {
        let mut run = Place::new().run().probe(["signals", "exit:CONT=0"]).spawn();
        run.await_ready();
        for (signal, _) in FORWARDED {
            run.signal(signal);
            if signal != Signal::SIGCONT {
                run.signal(signal);
            }
        }
        // CONT makes the probe exit, and may overtake: earlier signals arrived once or, unmerged, twice.
        let output = run.wait();
        assert_eq!(output.exit, Exit::Code(0));
        for (_, name) in FORWARDED {
            let times = reported(&output.stdout).into_iter().filter(|reported| reported == &name).count();
            assert!(times <= 2, "{name} came {times} times");
        }
    }
}

/// S04
#[test]
fn other_processes_in_the_group_of_dlock_are_not_signalled() {
    let place = Place::new();
    let probe = crate::support::probe::path();
    let bystander = format!("'{}' signals >'{}' &", probe.display(), place.arg("bystander"));
    let mut run = place.run().probe(["signals", "exit:TERM=0"]).after_shell(&bystander).spawn();
    run.await_ready();
    until(SOON, "the bystander", || place.read("bystander") == "ready\n");
    run.signal(Signal::SIGUSR1);
    run.await_stdout("USR1");
    run.signal(Signal::SIGTERM);
    assert_eq!(run.wait().exit, Exit::Code(0));
    throughout(Duration::from_millis(200), "no signal for the bystander", || {
        place.read("bystander") == "ready\n"
    });
}

/// S04
#[test]
fn a_signal_that_was_ignored_when_dlock_started_stays_ignored() {
    let mut run = Place::new().run().probe(["signals", "exit:TERM=0"]).ignoring(Signal::SIGHUP).spawn();
    run.await_ready();
    run.signal(Signal::SIGHUP);
    run.signal(Signal::SIGUSR1);
    run.await_stdout("USR1");
    run.signal(Signal::SIGTERM);
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(0));
    assert_eq!(reported(&output.stdout), ["USR1", "TERM"]);
}

/// S37
#[test]
fn a_process_that_ignores_the_signal_that_ended_the_shell_is_still_the_command() {
    let place = Place::new();
    let inherited_lock = place.inherited_lock();
    let backup = crate::support::probe::command(["--inherited-lock", inherited_lock.path(), "ignore-term"]);
    place.script("backup.sh", &format!("#!/bin/sh\ntrap '' TERM\nexec '{}'\n", backup.join("' '")));
    let text = format!("cd '{}'; ./backup.sh; true", place.arg("."));
    let mut run = place.run().args(["--grace", "300ms", "-c", &text]).spawn();
    run.await_ready();
    let next_holder = crate::support::probe::command(["next-holder", inherited_lock.path()]);
    let mut next = place.run().args(["-v", "--wait", "forever"]).command(next_holder).spawn();
    next.await_stderr("waiting");
    run.signal(Signal::SIGTERM);
    let output = run.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::by(Signal::SIGTERM), "ready\n"));
    assert!(inherited_lock.is_free(), "backup.sh has outlived its dlock");
    assert_eq!(next.wait().stdout, "clean\n");
}

/// S37
#[test]
fn a_background_process_is_still_the_command_after_a_death_by_signal() {
    let place = Place::new();
    let inherited_lock = place.inherited_lock();
    let left = crate::support::probe::command([
        "--inherited-lock",
        inherited_lock.path(),
        "tree",
        "2",
        &place.arg("pids"),
        "exit",
        "0",
    ]);
    let text = format!("'{}'; kill -9 $$", left.join("' '"));
    let output = place.run().args(["--grace", "300ms"]).sh(&text).output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::by(Signal::SIGKILL), "ready\n"));
    assert!(inherited_lock.is_free(), "what a dead command left has outlived its dlock");
}

/// S32
#[test]
fn signals_and_statuses_traverse_fifty_nested_dlocks() {
    let place = Place::new();
    let mut command = crate::support::probe::command(["signals", "exit:TERM=9"]);
    for depth in 1..50 {
        let dlock = ["run", "-b", &place.url(), &format!("x{depth}"), "--"].map(str::to_owned);
        command.splice(0..0, std::iter::once(crate::support::dlock::BINARY.to_owned()).chain(dlock));
    }
    let mut run = place.run().command(command).spawn();
    run.await_ready();
    assert!((1..50).all(|depth| !place.lock_is_free(&format!("x{depth}"))));
    run.signal(Signal::SIGUSR1);
    run.await_stdout("USR1");
    run.signal(Signal::SIGTERM);
    let output = run.wait();
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(9), ""));
    assert_eq!(reported(&output.stdout), ["USR1", "TERM"]);
    assert!((1..50).all(|depth| place.lock_is_free(&format!("x{depth}"))));
}

/// S50
#[test]
fn events_while_dlock_is_stopped_are_handled_when_it_continues() {
    let place = Place::new();
    let mut run = place.run().sh("echo ready; while ! test -e go; do sleep 0.05; done; exit 7").spawn();
    run.await_ready();
    let (dlock, command) = (run.pid(), run.command());
    process::send(dlock, Signal::SIGSTOP);
    until(SOON, "a stopped dlock", || process::stopped(dlock));
    for _ in 0..600 {
        process::send(command, Signal::SIGSTOP);
        until(SOON, "a stopped command", || process::stopped(command));
        process::send(command, Signal::SIGCONT);
        until(SOON, "a command that goes on", || !process::stopped(command));
    }
    place.write("go", "");
    until(SOON, "the end of the command", || !process::alive(command));
    process::send(dlock, Signal::SIGCONT);
    assert_eq!(run.wait().outcome(), (Exit::Code(7), "ready\n", ""));
}

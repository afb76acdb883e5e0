//! Signals to a whole process group.

use super::{FORWARDED, reported};
use crate::support::SOON;
use crate::support::place::Place;
use crate::support::process;
use crate::support::running::{Exit, Running};
use crate::support::wait::{eventually, throughout, until};
use nix::sys::signal::Signal;
use std::time::Duration;

/// Runs the probe under a dlock that shares its process group with the shell that has started it, as in a script.
fn in_a_script(place: &Place) -> Running {
    let script = "trap : HUP INT QUIT TERM USR1 USR2 ALRM; \"$@\"";
    let run = place.run().probe(["signals", &format!("leave:{}=7", place.arg("leave"))]);
    let mut run = run.wrapped_by(["sh", "-c", script, "sh"]).spawn();
    run.await_ready();
    run
}

/// The dlock that this program has started, once the witness in its process group is running.
fn dlock_in(program: &Running) -> i32 {
    let dlock = eventually(SOON, "dlock", || process::children(program.pid()).first().cloned()).pid;
    let witness = |stat: &process::Stat| stat.comm == "lock-witness";
    until(SOON, "the witness", || process::children(dlock).iter().any(witness));
    dlock
}

/// Sends each signal with `send`; the probe gets each one once.
fn assert_each_arrives_once(run: &Running, send: impl Fn(Signal)) {
    let before = reported(&run.stdout()).len();
    for (signal, name) in FORWARDED {
        let so_far = run.stdout().len();
        send(signal);
        until(SOON, name, || run.stdout()[so_far..].contains(&format!("{name} ")));
    }
    throughout(Duration::from_millis(200), "each signal came once", || {
        reported(&run.stdout()).into_iter().skip(before).eq(FORWARDED.map(|(_, name)| name))
    });
}

/// S49
#[test]
fn a_signal_for_the_whole_process_group_arrives_once() {
    let place = Place::new();
    let mut run = in_a_script(&place);
    let (group, dlock) = (-run.pid(), dlock_in(&run));
    assert_each_arrives_once(&run, |signal| process::send(group, signal));
    // A signal for the group does not affect later ones for dlock alone; CONT is for a stopped command.
    for (signal, name) in FORWARDED.into_iter().filter(|(signal, _)| *signal != Signal::SIGCONT) {
        let so_far = run.stdout().len();
        process::send(dlock, signal);
        until(SOON, name, || run.stdout()[so_far..].contains(&format!("{name} ")));
    }
    place.write("leave", "");
    run.wait();
    run.marker().await_end();
}

/// S49
#[test]
fn a_signal_for_every_process_arrives_once() {
    for in_script in [true, false] {
        let place = Place::new();
        let run = match in_script {
            true => in_a_script(&place),
            false => {
                let leave = format!("leave:{}=7", place.arg("leave"));
                let mut run = place.run().probe(["signals", &leave]).spawn();
                run.await_ready();
                run
            }
        };
        if in_script {
            dlock_in(&run);
        }
        assert_each_arrives_once(&run, |signal| {
            let mut pids: Vec<i32> = run.marker().bearers().iter().map(|stat| stat.pid).collect();
            pids.sort_unstable();
            // The witness may have been replaced meanwhile.
            process::send_to_all(&pids, signal);
        });
        place.write("leave", "");
        let mut run = run;
        run.wait();
        run.marker().await_end();
    }
}

/// S49: `timeout` signals dlock, and then the process group that both are in.
#[test]
fn the_signal_of_timeout_arrives_once() {
    let place = Place::new();
    let run = place.run().probe(["signals", &format!("leave:{}=7", place.arg("leave"))]);
    let mut run = run.wrapped_by(["timeout", "-s", "INT", "1000"]).spawn();
    run.await_ready();
    dlock_in(&run);
    // That of its own timer.
    run.signal(Signal::SIGALRM);
    run.await_stdout("INT ");
    throughout(Duration::from_millis(300), "one SIGINT", || {
        reported(&run.stdout()).into_iter().filter(|name| *name == "INT").count() == 1
    });
    place.write("leave", "");
    assert_eq!(run.wait().exit, Exit::Code(124));
}

/// A command that would have died of the signal, and is alive, has not received it.
#[test]
fn a_signal_for_dlock_and_its_guard_but_not_the_command_is_forwarded() {
    let place = Place::new();
    let mut run = place.run().sh("echo ready; exec sleep 1000").spawn();
    run.await_ready();
    for pid in [run.pid(), run.guard()] {
        process::send(pid, Signal::SIGTERM);
    }
    assert_eq!(run.wait().outcome(), (Exit::by(Signal::SIGTERM), "ready\n", ""));
}

/// The witness holds no lock, and dies with dlock.
#[test]
fn a_killed_dlock_in_a_script_leaves_no_process() {
    let place = Place::new();
    let run = in_a_script(&place);
    process::send(dlock_in(&run), Signal::SIGKILL);
    until(SOON, "a free lock", || place.lock_is_free("x"));
    until(SOON, "the end of everybody", || run.marker().bearers().is_empty());
}

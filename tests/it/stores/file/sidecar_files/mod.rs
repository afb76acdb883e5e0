//! F38: changes of the file beside a lock file while the lock is in use. The lock file alone excludes foreign
//! programs; in its sidecar dlocks agree on everything else. Whatever happens to it: no client is admitted wrongly,
//! and none hangs.

mod damaged;
mod disk;
mod killed_writer;
mod lost;
mod rights;

use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::running::{Exit, Running};
use std::path::PathBuf;
use std::process::Stdio;

/// The sidecar of the lock `x`.
fn sidecar(place: &Place) -> PathBuf {
    place.locks().join("x.dlock")
}

/// A command that holds the lock until its standard input is closed.
fn until_stdin_closes(run: Dlock) -> Dlock {
    run.stdin(Stdio::piped()).sh("echo ready; exec cat")
}

/// A holder that keeps the lock until [`end`].
#[track_caller]
fn hold(run: Dlock) -> Running {
    let mut run = until_stdin_closes(run).spawn();
    run.await_ready();
    run
}

/// A command that records when it ran, so that overlaps are detected.
fn noted(place: &Place, run: Dlock) -> Dlock {
    run.arg("-v").probe(["hold", &place.arg("log"), "for", "5"])
}

/// A waiter that is at this queue position when this returns.
#[track_caller]
fn wait(place: &Place, run: Dlock, position: usize) -> Running {
    let mut run = noted(place, run.args(["--wait", "forever"])).spawn();
    run.await_stderr(&format!("waiting at position {position}\n"));
    run
}

/// Ends a holder, which must exit normally.
#[track_caller]
fn end(mut run: Running) {
    drop(run.take_stdin());
    let output = run.wait();
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
}

/// This many `noted` commands have run once each, without an overlap.
#[track_caller]
fn assert_one_at_a_time(place: &Place, count: usize) {
    let log = place.read("log");
    let started = log.lines().filter(|line| line.starts_with("start ")).count();
    assert!(started == count && !log.contains("overlap"), "{count} commands, one at a time: {log}");
}

/// Sends one request, which must have this result.
#[track_caller]
fn assert_run(run: Dlock, exit: i32, line: &str) {
    let output = run.sh("echo ran").output();
    let ran = if exit == 0 { "ran\n" } else { "" };
    assert_eq!(output.outcome(), (Exit::Code(exit), ran, line));
}

/// Sends one request, while the lock must be held.
#[track_caller]
fn assert_held(run: Dlock) {
    let output = run.sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(75), ""), "{}", output.stderr);
}

//! F38: what happens to the file beside a lock file while the lock is in use. The lock file alone keeps foreign programs
//! out; in its sidecar dlocks agree on everything else. Whatever becomes of that: nobody gets in who must not, and nobody
//! hangs.

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

/// A command that has the lock until its standard input is closed.
fn until_told(run: Dlock) -> Dlock {
    run.stdin(Stdio::piped()).sh("echo ready; exec cat")
}

/// One who has the lock until [`end`].
#[track_caller]
fn hold(run: Dlock) -> Running {
    let mut run = until_told(run).spawn();
    run.await_ready();
    run
}

/// A command that notes when it ran, so that two at a time are seen.
fn noted(place: &Place, run: Dlock) -> Dlock {
    run.arg("-v").probe(["hold", &place.arg("log"), "for", "5"])
}

/// One who waits, in this place of the line, when this returns.
#[track_caller]
fn wait(place: &Place, run: Dlock, position: usize) -> Running {
    let mut run = noted(place, run.args(["--wait", "forever"])).spawn();
    run.await_stderr(&format!("waiting at position {position}\n"));
    run
}

/// Lets a holder end, which he must do in peace.
#[track_caller]
fn end(mut run: Running) {
    drop(run.take_stdin());
    let output = run.wait();
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
}

/// Each of so many `noted` commands has run once, and none beside another.
#[track_caller]
fn assert_one_at_a_time(place: &Place, count: usize) {
    let log = place.read("log");
    let started = log.lines().filter(|line| line.starts_with("start ")).count();
    assert!(started == count && !log.contains("overlap"), "{count} commands, one at a time: {log}");
}

/// Asks once, which must come to this.
#[track_caller]
fn assert_run(run: Dlock, exit: i32, line: &str) {
    let output = run.sh("echo ran").output();
    let ran = if exit == 0 { "ran\n" } else { "" };
    assert_eq!(output.outcome(), (Exit::Code(exit), ran, line));
}

/// Asks once, and somebody must have the lock.
#[track_caller]
fn assert_held(run: Dlock) {
    let output = run.sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(75), ""), "{}", output.stderr);
}

//! Two dlocks of one host, on a directory.

use super::{LINE, MIN_HOLD, await_end_of_command, be_late};
use crate::support::SOON;
use crate::support::place::Place;
use crate::support::running::{Exit, Running};
use crate::support::wait::until;
use nix::sys::signal::Signal;

const JOB: &str = "echo ran >>ran; touch ended";

#[track_caller]
fn fire(place: &Place, options: &[&str]) {
    let run = place.run().name("minutely").args(LINE).args(options);
    assert_eq!(run.sh(JOB).output().outcome(), (Exit::Code(0), "", ""));
}

/// The first run, whose command has ended: a descriptor cannot keep the lock without its process, so dlock stays.
#[track_caller]
fn first(place: &Place) -> Running {
    // As under nohup(1).
    let run = place.run().ignoring(Signal::SIGHUP);
    let mut run = run.name("minutely").args(LINE).args(MIN_HOLD).sh(JOB).spawn();
    await_end_of_command(&run, place);
    be_late();
    run.assert_running();
    run
}

#[test]
fn a_late_dlock_does_not_repeat_a_short_job() {
    let place = Place::new();
    let mut run = first(&place);
    fire(&place, &MIN_HOLD);
    assert_eq!(place.read("ran"), "ran\n");
    assert!(!place.lock_is_free("minutely"), "flock(1) is kept out, too");
    run.signal(Signal::SIGHUP);
    be_late();
    run.assert_running();
    // After SIGTERM it exits with the status of its command, and other dlocks still respect min hold.
    run.signal(Signal::SIGTERM);
    assert_eq!(run.wait().outcome(), (Exit::Code(0), "", ""));
    fire(&place, &MIN_HOLD);
    assert_eq!(place.read("ran"), "ran\n");
}

#[test]
fn a_late_dlock_does_not_repeat_the_job_of_a_killed_one() {
    let place = Place::new();
    let mut run = first(&place);
    // dlock and its guard.
    run.marker().kill_all();
    assert_eq!(run.wait().exit, Exit::by(Signal::SIGKILL));
    fire(&place, &MIN_HOLD);
    assert_eq!(place.read("ran"), "ran\n");
}

#[test]
fn a_late_dlock_does_not_repeat_the_job_killed_with_its_dlock() {
    let place = Place::new();
    let run = place.run().name("minutely").args(LINE).args(MIN_HOLD);
    let mut run = run.sh("echo ran >>ran; sleep 1000").spawn();
    until(SOON, "the job", || place.read("ran") == "ran\n");
    run.marker().kill_all();
    run.wait();
    be_late();
    fire(&place, &MIN_HOLD);
    assert_eq!(place.read("ran"), "ran\n");
}

#[test]
fn without_min_hold_the_job_runs_twice() {
    let place = Place::new();
    fire(&place, &[]);
    be_late();
    fire(&place, &[]);
    assert_eq!(place.read("ran"), "ran\nran\n");
}

//! `flock -s` and `flock -x` together with sharing holders of a lock file, and their waiters.

use super::Flock;
use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::running::{Exit, Running};
use crate::support::wait::{throughout, until};
use std::process::Stdio;
use std::time::Duration;

const EXCLUSIVE: &[&str] = &["--exclusive"];
const SHARED: &[&str] = &["--shared"];
const SLOTS: &[&str] = &["--slots", "3"];

fn start(run: Dlock) -> Running {
    run.stdin(Stdio::piped()).sh("echo ready; exec cat").spawn()
}

/// A holder until its standard input is closed.
fn hold(place: &Place, mode: &[&str]) -> Running {
    let mut run = start(place.run().args(mode));
    run.await_ready();
    run
}

/// A waiter that is in the queue when this returns.
fn wait(place: &Place, mode: &[&str], position: usize) -> Running {
    let mut run = start(place.run().args(mode).args(["-v", "--wait", "forever"]));
    run.await_stderr(&format!("waiting at position {position}\n"));
    run
}

#[track_caller]
fn end(mut run: Running) {
    drop(run.take_stdin());
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stderr);
}

fn has_it(run: &Running) -> bool {
    run.stdout().contains("ready\n")
}

/// Whether `flock` with these options gets the lock at once.
fn flock_gets_it(place: &Place, options: &[&str]) -> bool {
    let options = [options, &["--nonblock", "--conflict-exit-code", "99"]].concat();
    match Flock::start(place, &options, "true").end() {
        Some(0) => true,
        Some(99) => false,
        other => panic!("flock ended with {other:?}"),
    }
}

/// Runs the command once, and returns whether it got the lock.
fn dlock_gets_it(place: &Place, mode: &[&str]) -> bool {
    let run = place.run().args(mode).sh("echo ran").output();
    match run.outcome() {
        (Exit::Code(0), "ran\n", "") => true,
        (Exit::Code(75), "", _) => false,
        other => panic!("{other:?}"),
    }
}

/// F49
#[test]
fn flock_waits_for_the_last_sharing_holder() {
    for mode in [SHARED, SLOTS] {
        let place = Place::new();
        let [first, second, third] = [(); 3].map(|()| hold(&place, mode));
        let ran = place.path("ran");
        let mut waiter = Flock::start(&place, &["--exclusive"], &format!("touch '{}'", ran.display()));
        for next in [first, third] {
            assert!(!flock_gets_it(&place, &["--exclusive"]), "{mode:?}");
            end(next);
        }
        throughout(Duration::from_millis(200), "flock waits", || {
            !ran.exists() && waiter.0.try_wait().unwrap().is_none()
        });
        end(second);
        assert!(waiter.0.wait().unwrap().success() && ran.exists());
        assert!(flock_gets_it(&place, &["--exclusive"]));
    }
}

/// F49: sharing clients share, whichever program they are.
#[test]
fn flock_shares_with_readers() {
    let place = Place::new();
    let reader = hold(&place, SHARED);
    assert!(flock_gets_it(&place, &["--shared"]));
    let flock = Flock::holding(&place, &["--shared"]);
    assert!(dlock_gets_it(&place, SHARED));
    assert!(!dlock_gets_it(&place, EXCLUSIVE));
    end(reader);
    assert!(dlock_gets_it(&place, SHARED));
    assert!(!dlock_gets_it(&place, EXCLUSIVE), "flock is still there");
    assert!(!flock_gets_it(&place, &["--exclusive"]));
    assert_eq!(flock.end(), Some(0));
    assert!(dlock_gets_it(&place, EXCLUSIVE));
}

/// F49
#[test]
fn an_exclusive_flock_excludes_sharing_clients() {
    let place = Place::new();
    let flock = Flock::holding(&place, &["--exclusive"]);
    for mode in [SHARED, SLOTS] {
        for (patience, end) in [("--no-wait", "not waiting, see --wait"), ("--wait=200ms", "gave up after ")]
        {
            let run = place.run().args(mode).arg(patience).command(["touch", "t"]).output();
            assert_eq!((run.exit, run.stdout.as_str()), (Exit::Code(75), ""));
            let line = format!("dlock: x is held by another program on {} (not a dlock); {end}", place.url());
            assert!(run.stderr.starts_with(&line), "{}", run.stderr);
        }
    }
    assert_eq!(flock.end(), Some(0));
    assert!(dlock_gets_it(&place, SHARED) && dlock_gets_it(&place, SLOTS));
    assert!(!place.path("t").exists());
}

/// F49: in order: two readers, the writer that came after them, the reader that came after it.
#[test]
fn the_end_of_flock_wakes_waiters_in_order() {
    let place = Place::new();
    let flock = Flock::holding(&place, &["--exclusive"]);
    let mut readers = [wait(&place, SHARED, 1), wait(&place, SHARED, 2)];
    let mut writer = wait(&place, EXCLUSIVE, 3);
    let mut last = wait(&place, SHARED, 4);
    throughout(Duration::from_millis(300), "all wait", || !readers.iter().any(has_it));
    assert_eq!(flock.end(), Some(0));
    readers.iter_mut().for_each(Running::await_ready);
    throughout(Duration::from_millis(300), "the writer waits", || !has_it(&writer) && !has_it(&last));
    readers.into_iter().for_each(end);
    writer.await_ready();
    throughout(Duration::from_millis(300), "the last reader waits", || !has_it(&last));
    end(writer);
    last.await_ready();
    end(last);
}

/// F49: as many as there are slots, and the next when one is released.
#[test]
fn all_slots_are_granted_when_flock_ends() {
    let place = Place::new();
    let flock = Flock::holding(&place, &["--exclusive"]);
    let mut waiters = [1, 2, 3, 4].map(|position| wait(&place, SLOTS, position));
    assert_eq!(flock.end(), Some(0));
    waiters[..3].iter_mut().for_each(Running::await_ready);
    throughout(Duration::from_millis(300), "one waits", || !has_it(&waiters[3]));
    assert!(!flock_gets_it(&place, &["--exclusive"]));
    let [first, second, third, mut fourth] = waiters;
    end(second);
    fourth.await_ready();
    [first, third, fourth].into_iter().for_each(end);
    assert!(flock_gets_it(&place, &["--exclusive"]));
}

/// F49: the kernel would admit every later reader beside a `flock -s` while a writer waits.
#[test]
fn later_readers_do_not_overtake_a_writer_waiting_for_a_shared_flock() {
    let place = Place::new();
    let flock = Flock::holding(&place, &["--shared"]);
    let mut writer = wait(&place, EXCLUSIVE, 1);
    assert!(!dlock_gets_it(&place, SHARED), "not even one who asks once");
    let mut reader = wait(&place, SHARED, 2);
    throughout(Duration::from_millis(700), "both wait", || !has_it(&writer) && !has_it(&reader));
    assert_eq!(flock.end(), Some(0));
    writer.await_ready();
    throughout(Duration::from_millis(300), "the reader waits", || !has_it(&reader));
    end(writer);
    reader.await_ready();
    end(reader);
    until(SOON, "a free lock", || place.lock_is_free("x"));
}

//! The same faults where the lock is a file of this host.

use super::shim::{Clocks, DAY, HOUR};
use crate::support::SOON;
use crate::support::place::Place;
use crate::support::running::{Exit, Running};
use crate::support::wait::{throughout, until};
use std::time::Duration;

/// A command that reports its signals, and whose dlock checks its lock every two seconds. It has a second to report a
/// signal after a loss.
fn witness(place: &Place) -> Running {
    let go = format!("leave:{}=5", place.arg("go"));
    let run = place.run().args(["--ttl", "6s"]);
    let inherited_lock = place.inherited_lock();
    let mut run = run.probe(["--inherited-lock", inherited_lock.path(), "signals", &go]).spawn();
    run.await_ready();
    run
}

/// The lock is gone: there need not be another holder yet, so the command gets SIGTERM.
#[track_caller]
fn assert_lost(place: &Place, run: Running) {
    let said = assert_stopped(place, run);
    assert!(said.starts_with("ready\nTERM "), "{said}");
}

/// There may be another holder already, so the command is killed at once.
#[track_caller]
fn assert_taken(place: &Place, run: Running) {
    assert_eq!(assert_stopped(place, run), "ready\n");
}

#[track_caller]
fn assert_stopped(place: &Place, mut run: Running) -> String {
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
    assert!(output.stderr.starts_with("dlock: x on file:///"), "{}", output.stderr);
    assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
    assert!(place.inherited_lock().is_free(), "somebody is left");
    output.stdout.clone()
}

/// The token of a run on this place.
fn token(place: &Place) -> u64 {
    let output = place.run().sh("echo \"$DLOCK_FENCING_TOKEN\"").output();
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
    output.stdout.trim().parse().unwrap()
}

/// F09
#[test]
fn an_unlinked_lock_file_ends_the_command_and_is_not_created_again() {
    let place = Place::new();
    let before = token(&place);
    let run = witness(&place);
    std::fs::remove_file(place.lock_file("x")).unwrap();
    assert_lost(&place, run);
    assert!(!place.lock_file("x").exists(), "the lock was made anew");
    assert!(token(&place) > before + 1);
}

/// F10
#[test]
fn a_replaced_lock_file_ends_the_command_and_is_not_touched() {
    let place = Place::new();
    let run = witness(&place);
    let theirs = place.write("theirs", "somebody else's");
    std::fs::rename(theirs, place.lock_file("x")).unwrap();
    assert_taken(&place, run);
    assert_eq!(std::fs::read_to_string(place.lock_file("x")).unwrap(), "somebody else's");
}

/// F10
#[test]
fn a_lock_file_that_becomes_a_link_or_a_directory_ends_the_command() {
    for directory in [false, true] {
        let place = Place::new();
        let run = witness(&place);
        let (lock, moved) = (place.lock_file("x"), place.path("moved"));
        if directory {
            std::fs::create_dir(&moved).unwrap();
        } else {
            std::os::unix::fs::symlink(&moved, &moved).unwrap();
        }
        // In one step: between two steps the lock would be gone.
        let exchange = nix::fcntl::RenameFlags::RENAME_EXCHANGE;
        nix::fcntl::renameat2(nix::fcntl::AT_FDCWD, &moved, nix::fcntl::AT_FDCWD, &lock, exchange).unwrap();
        assert_taken(&place, run);
    }
}

/// F09
#[test]
fn a_directory_of_locks_that_is_moved_away_ends_the_command() {
    let place = Place::new();
    let run = witness(&place);
    std::fs::rename(place.locks(), place.path("elsewhere")).unwrap();
    assert_lost(&place, run);
}

/// F09
#[test]
fn the_fencing_token_grows_over_a_lost_sidecar() {
    let place = Place::new();
    let before = token(&place);
    std::fs::remove_file(place.locks().join("x.dlock")).unwrap();
    assert!(token(&place) > before);
}

/// F18, F20: a lock without a lease does not depend on a clock.
#[test]
fn a_wall_clock_that_jumps_has_no_effect_on_files() {
    let place = Place::new();
    let clocks = Clocks::new(&place);
    let go = place.arg("go");
    let text =
        format!("echo ready; trap 'echo signal' TERM; until [ -e '{go}' ]; do sleep 0.05; done; exit 5");
    let mut run = clocks.of(place.run().args(["--ttl", "1s"])).sh(&text).spawn();
    run.await_ready();
    for seconds in [HOUR, -HOUR, DAY, -DAY, 0] {
        clocks.set_wall(seconds);
        clocks.tell_that_it_was_set();
        throughout(Duration::from_millis(500), "the lock is held", || !place.lock_is_free("x"));
        let output = clocks.of(place.run()).command(["true"]).output();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(75), ""), "{}", output.stderr);
    }
    place.write("go", "");
    assert_eq!(run.wait().outcome(), (Exit::Code(5), "ready\n", ""));
    until(SOON, "a free lock", || place.lock_is_free("x"));
}

/// F18
#[test]
fn the_fencing_token_of_files_grows_over_a_wall_clock_that_jumps_back() {
    let place = Place::new();
    let clocks = Clocks::new(&place);
    let mut last = 0;
    for seconds in [0, -HOUR, -DAY, HOUR, -DAY] {
        clocks.set_wall(seconds);
        let output = clocks.of(place.run()).sh("echo \"$DLOCK_FENCING_TOKEN\"").output();
        let token: u64 = output.stdout.trim().parse().unwrap();
        assert!(token > last, "{token} after {last}");
        last = token;
    }
}

//! A sidecar that can no longer be opened.

use super::{assert_held, assert_run, end, hold, noted, sidecar};
use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::running::{Exit, Running};
use crate::support::wait::until;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

/// A user other than root, to whom modes apply.
const USER: [&str; 4] = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"];

fn open_place() -> Place {
    let place = Place::new();
    for directory in [place.path("."), place.locks(), place.home()] {
        fs::set_permissions(directory, Permissions::from_mode(0o777)).unwrap();
    }
    place
}

fn run(place: &Place) -> Dlock {
    place.run().wrapped_by(USER)
}

fn set_mode(place: &Place, mode: u32) {
    fs::set_permissions(sidecar(place), Permissions::from_mode(mode)).unwrap();
}

/// The message of a run that finds the lock free, and its own sidecar inaccessible.
fn refusal(place: &Place) -> String {
    format!(
        "dlock: x on {}: cannot use {}: permission denied: it belongs to user 12345 (mode 0000); the command did not run\n",
        place.url(),
        sidecar(place).display()
    )
}

#[track_caller]
fn assert_ends_refused(place: &Place, mut waiter: Running) {
    let output = waiter.wait();
    let said = output.stderr.lines().last().unwrap_or_default().to_owned() + "\n";
    assert_eq!((output.exit, said.as_str()), (Exit::Code(77), refusal(place).as_str()), "{}", output.stderr);
}

/// F38
#[test]
fn an_unreadable_sidecar_grants_no_lock_and_ends_the_wait() {
    let place = open_place();
    let holder = hold(run(&place));
    let mut waiter = noted(&place, run(&place).args(["--wait", "forever"])).spawn();
    waiter.await_stderr("waiting at position 1\n");
    set_mode(&place, 0);
    assert_held(run(&place));
    end(holder);
    assert_ends_refused(&place, waiter);
    assert_run(run(&place), 77, &refusal(&place));
    assert!(place.lock_is_free("x"));
    set_mode(&place, 0o600);
    assert_run(run(&place), 0, "");
}

/// F38: the first waiter gets the kernel's lock, and cannot record that it has it.
#[test]
fn a_sidecar_made_unreadable_during_a_wait_for_flock_ends_the_wait() {
    let place = open_place();
    let flock = Flock::start(&place);
    until(SOON, "the lock of flock(1)", || place.lock_file("x").exists() && !place.lock_is_free("x"));
    let mut waiter = noted(&place, run(&place).args(["--wait", "forever"])).spawn();
    waiter.await_stderr("waiting at position 1\n");
    set_mode(&place, 0);
    flock.end();
    assert_ends_refused(&place, waiter);
    assert!(place.lock_is_free("x"));
    assert_eq!(place.read("log"), "");
}

/// Of the same user, who could not open root's files.
struct Flock(Child);

impl Flock {
    fn start(place: &Place) -> Self {
        let mut command = Command::new(USER[0]);
        command.args(&USER[1..]).arg("flock").arg(place.lock_file("x")).arg("cat").stdin(Stdio::piped());
        command.env(crate::support::process::Marker::VARIABLE, place.marker().value());
        Self(command.spawn().expect("setpriv and flock: install the Debian package util-linux"))
    }

    fn end(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Flock {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

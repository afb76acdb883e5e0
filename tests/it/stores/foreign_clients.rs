//! Programs other than dlock that take the same locks: each excludes the other, in both directions.

use crate::support::SOON;
use crate::support::place::Place;
use crate::support::probe;
use crate::support::process;
use crate::support::running::Exit;
use crate::support::wait::{throughout, until};
use nix::sys::signal::Signal;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A run that holds `x` until its standard input is closed.
macro_rules! holding {
    ($run:expr) => {{
        let mut run = $run.stdin(Stdio::piped()).sh("echo ready; exec cat").spawn();
        run.await_ready();
        run
    }};
}

/// `flock FILE ...`, which is killed when this value is dropped.
struct Flock(Child);

impl Flock {
    /// Locks the file and holds it until `end`.
    fn holding(place: &Place, options: &[&str]) -> Self {
        let ready = place.path("flock-has-it");
        let _ = std::fs::remove_file(&ready);
        let flock = Self::start(place, options, &format!("touch '{}'; exec cat", ready.display()));
        until(SOON, "the lock of flock(1)", || ready.exists());
        flock
    }

    /// Runs a text for the shell under `flock OPTIONS locks/x.lock`.
    fn start(place: &Place, options: &[&str], text: &str) -> Self {
        let mut command = Command::new("flock");
        command.args(options).arg(place.lock_file("x")).args(["sh", "-c", text]);
        command.env(process::Marker::VARIABLE, place.marker().value());
        Self(command.stdin(Stdio::piped()).spawn().expect("flock: install the Debian package util-linux"))
    }

    fn end(mut self) -> Option<i32> {
        drop(self.0.stdin.take());
        self.0.wait().unwrap().code()
    }
}

impl Drop for Flock {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// F49
#[test]
fn dlock_is_excluded_by_flock() {
    let place = Place::new();
    for options in [&[][..], &["--exclusive"], &["--shared"], &["--no-fork"]] {
        let flock = Flock::holding(&place, options);
        let refused = place.run().command(["touch", "t"]).output();
        let line = format!(
            "dlock: x is held by another program on {} (not a dlock); not waiting, see --wait\n",
            place.url()
        );
        assert_eq!(refused.outcome(), (Exit::Code(75), "", line.as_str()), "{options:?}");
        let mut waiter = place.run().args(["-v", "--wait", "forever"]).sh("echo ran").spawn();
        waiter.await_stderr("waiting");
        throughout(Duration::from_millis(100), "dlock waits", || waiter.poll().is_none());
        assert_eq!(flock.end(), Some(0));
        assert_eq!(waiter.wait().outcome().0, Exit::Code(0), "{options:?}");
        assert_eq!(waiter.stdout(), "ran\n");
    }
    assert!(!place.path("t").exists());
}

/// F49
#[test]
fn flock_is_excluded_by_dlock() {
    let place = Place::new();
    let mut run = holding!(place.run());
    for options in [&["--nonblock"][..], &["--nonblock", "--shared"], &["--timeout", "0.1"]] {
        assert_eq!(Flock::start(&place, options, "touch t").end(), Some(1), "{options:?}");
    }
    let ran = place.path("ran");
    let mut waiter = Flock::start(&place, &[], &format!("touch '{}'", ran.display()));
    throughout(Duration::from_millis(200), "flock waits", || {
        !ran.exists() && waiter.0.try_wait().unwrap().is_none()
    });
    drop(run.take_stdin());
    assert_eq!(run.wait().outcome(), (Exit::Code(0), "ready\n", ""));
    assert!(waiter.0.wait().unwrap().success() && ran.exists());
}

/// F49: dlock and its guard keep the file locked until the command is dead.
#[test]
fn flock_does_not_get_the_lock_of_a_killed_dlock_while_its_command_lives() {
    let place = Place::new();
    let inherited_lock = place.inherited_lock();
    let mut run = place.run().probe(["--inherited-lock", inherited_lock.path(), "ignore-term"]).spawn();
    run.await_ready();
    let mut command = Command::new("flock");
    command
        .arg(place.lock_file("x"))
        .args(probe::command(["next-holder", inherited_lock.path()]))
        .stdout(Stdio::piped());
    let next_holder = command.env(process::Marker::VARIABLE, place.marker().value()).spawn().unwrap();
    run.signal(Signal::SIGKILL);
    assert_eq!(run.wait().exit, Exit::by(Signal::SIGKILL));
    assert_eq!(String::from_utf8_lossy(&next_holder.wait_with_output().unwrap().stdout), "clean\n");
}

/// People lock the very script that they run.
#[test]
fn a_script_can_be_the_lock_file_and_its_directory_cannot() {
    let place = Place::new();
    place.script("locks/script", "#!/bin/sh\necho ran\n");
    let url = format!("{}?suffix=", place.url());
    let path = place.arg("locks/script");
    let run = place.run().backend(&url).name("script").command([&path]).output();
    assert_eq!(run.outcome(), (Exit::Code(0), "ran\n", ""));
    let inner = format!("'{}' run -b '{url}' script -- true; echo $?", crate::support::dlock::BINARY);
    let nested = Command::new("flock").arg(&path).args(["sh", "-c", &inner]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&nested.stdout), "75\n");
    // flock(1) also takes a directory; dlock takes only what cannot have been planted as a trap.
    std::fs::create_dir(place.path("locks/directory")).unwrap();
    let run = place.run().backend(&url).name("directory").command(["echo", "ran"]).output();
    assert_eq!((run.exit, run.stdout.as_str()), (Exit::Code(77), ""));
    assert!(run.stderr.contains("locks/directory: not a regular file"), "{}", run.stderr);
}

mod flock_modes;
pub(crate) mod redis_py;
mod shared;

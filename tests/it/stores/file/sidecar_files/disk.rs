//! A file system that is full, or has become read-only: a small one for one test only.

use super::{assert_held, assert_one_at_a_time, assert_run, end, hold, noted};
use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::place::{Place, flock_is_free};
use crate::support::process::Marker;
use crate::support::running::{Exit, Running};
use crate::support::wait::{throughout, until};
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A directory of locks on a tmpfs(5) in a mount namespace, which exists as long as the process in it.
struct Disk {
    place: Place,
    keeper: Child,
}

impl Disk {
    fn new(options: &str) -> Self {
        let place = Place::new();
        let text = format!(
            "mount -t tmpfs -o '{options}' none '{0}' && touch '{0}/mounted' && exec cat",
            place.locks().display()
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &text]).env(Marker::VARIABLE, place.marker().value());
        let keeper = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        let mut disk =
            Self { place, keeper: keeper.expect("unshare: install the Debian package util-linux") };
        until(SOON, "a tmpfs", || {
            assert!(disk.keeper.try_wait().unwrap().is_none(), "it takes root to mount a tmpfs");
            disk.path("mounted").exists()
        });
        fs::remove_file(disk.path("mounted")).unwrap();
        disk
    }

    /// A file on it, as it can be reached from outside.
    fn path(&self, name: &str) -> PathBuf {
        let locks = self.place.locks();
        let root = format!("/proc/{}/root{}", self.keeper.id(), locks.display());
        PathBuf::from(root).join(name)
    }

    fn run(&self) -> Dlock {
        let target = format!("--target={}", self.keeper.id());
        // A process that enters another mount namespace is at its root.
        let run = self.place.run().after_shell(&format!("cd '{}'", self.place.arg(".")));
        run.wrapped_by(["nsenter", target.as_str(), "--mount"])
    }

    /// `mount ARGS DIRECTORY` on it.
    #[track_caller]
    fn mount(&self, args: &[&str]) {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.keeper.id())).args(["--mount", "mount"]).args(args);
        assert!(command.arg(self.place.locks()).status().unwrap().success());
    }

    /// Uses up all remaining space.
    fn fill(&self) {
        let mut size = 0;
        while fs::write(self.path("fill"), vec![b'x'; size + 4096]).is_ok() {
            size += 4096;
        }
        fs::write(self.path("fill"), vec![b'x'; size]).unwrap();
    }

    /// The message of a run that cannot write the sidecar.
    fn refusal(&self, why: &str) -> String {
        format!(
            "dlock: x on {}: cannot use {}: {why}; the command did not run, see --retry\n",
            self.place.url(),
            self.place.locks().join("x.dlock").display()
        )
    }

    fn is_free(&self) -> bool {
        flock_is_free(&self.path("x.lock"))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

const FULL: &str = "no space left on device";
const READ_ONLY: &str = "read-only file system";

/// F38: a lock that cannot be recorded is not acquired, and `--retry` waits until it can.
#[test]
fn on_a_full_disk_no_lock_is_acquired_and_none_remains() {
    let disk = Disk::new("size=4k");
    disk.fill();
    for mode in [&["--exclusive"][..], &["--shared"], &["--slots", "3"]] {
        assert_run(disk.run().args(mode), 69, &disk.refusal(FULL));
        assert!(disk.is_free(), "{mode:?}");
    }
    let mut patient = disk.run().args(["--retry", "5m"]).sh("echo ran").spawn();
    throughout(Duration::from_millis(300), "it tries again", || patient.poll().is_none());
    fs::remove_file(disk.path("fill")).unwrap();
    let output = patient.wait();
    assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
    // The sidecar has the space that it needs now.
    disk.fill();
    assert_run(disk.run(), 0, "");
}

/// F38: no space for one more file.
#[test]
fn on_a_disk_without_free_inodes_no_lock_is_acquired() {
    let disk = Disk::new("nr_inodes=2");
    let line = format!(
        "dlock: x on {}: cannot use {}: {FULL}; the command did not run, see --retry\n",
        disk.place.url(),
        disk.place.locks().join("x.dlock").display()
    );
    assert_run(disk.run(), 69, &line);
    assert!(disk.is_free());
    disk.mount(&["-o", "remount,nr_inodes=3"]);
    assert_run(disk.run(), 0, "");
}

/// F38: the queue has become too long for the space. New waiters cannot join it; those in the queue
/// keep their positions, and the sidecar stays unchanged.
#[test]
fn a_queue_that_outgrows_the_disk_is_not_truncated() {
    let disk = Disk::new("size=4k");
    let holder = hold(disk.run());
    let run = || disk.run().args(["--note", &"n".repeat(500)]);
    let waiter = || noted(&disk.place, run().args(["--wait", "forever"])).spawn();
    let mut waiters: Vec<Running> = vec![waiter()];
    // The others may not find any.
    waiters[0].await_stderr("waiting at position");
    waiters.extend((1..12).map(|_| waiter()));
    // As many as fit join; then each new one finds the space left by the last.
    for _ in 0..10 {
        assert_held(run());
    }
    disk.mount(&["-o", "remount,size=1m"]);
    end(holder);
    for waiter in &mut waiters {
        let output = waiter.wait();
        assert_eq!(output.exit, Exit::Code(0), "{}", output.stderr);
    }
    assert_one_at_a_time(&disk.place, 12);
    assert_run(disk.run(), 0, "");
}

/// F38: a held lock stays held, and a free one cannot be acquired; a waiter continues when the file system is writable.
#[test]
fn on_a_disk_that_becomes_read_only_no_lock_is_granted() {
    let disk = Disk::new("size=1m");
    let holder = hold(disk.run());
    let mut waiter = noted(&disk.place, disk.run().args(["--wait", "forever"])).spawn();
    waiter.await_stderr("waiting at position 1\n");
    // Files open for writing stay so; no more can be opened like that. (The kernel refuses to make a file
    // system read-only while anything is, unless the disk itself has failed.)
    disk.mount(&["--bind", disk.place.locks().to_str().unwrap()]);
    disk.mount(&["-o", "remount,bind,ro"]);
    assert_held(disk.run());
    end(holder);
    assert_run(disk.run(), 69, &disk.refusal(READ_ONLY));
    throughout(Duration::from_millis(300), "it waits on", || waiter.poll().is_none());
    assert_eq!(disk.place.read("log"), "");
    disk.mount(&["-o", "remount,bind,rw"]);
    let output = waiter.wait();
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stderr);
    assert_one_at_a_time(&disk.place, 1);
    assert_run(disk.run(), 0, "");
}

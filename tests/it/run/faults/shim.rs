//! Wrong clocks for one program: a library that is preloaded into it, and the faults in a file.

use crate::support::dlock::Dlock;
use crate::support::place::Place;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const SOURCE: &str = include_str!("clock_shim.c");

/// One hour.
pub const HOUR: i64 = 3600;
/// One day.
pub const DAY: i64 = 24 * HOUR;

/// The clocks of the programs with this library.
pub struct Clocks {
    faults: File,
    faults_path: PathBuf,
    was_set: PathBuf,
}

impl Clocks {
    /// Correct ones, initially.
    pub fn new(place: &Place) -> Self {
        let faults_path = place.write("faults", "");
        let faults = File::options().write(true).open(&faults_path).expect("a file for the faults");
        faults.set_len(32).expect("room for the faults");
        let was_set = place.path("was-set");
        nix::unistd::mkfifo(&was_set, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        Self { faults, faults_path, was_set }
    }

    /// The variables that give a program these clocks.
    pub fn variables(&self) -> [(&'static str, &Path); 3] {
        [("LD_PRELOAD", library()), ("CLOCK_FAULTS", &self.faults_path), ("CLOCK_WAS_SET", &self.was_set)]
    }

    /// Gives a dlock these clocks; its command must remove them with `unset LD_PRELOAD`.
    pub fn of(&self, run: Dlock) -> Dlock {
        self.variables().into_iter().fold(run, |run, (name, value)| run.env(name, value))
    }

    /// Sets the wall clock wrong by this many seconds.
    pub fn set_wall(&self, seconds: i64) {
        self.set_wall_nanoseconds(seconds * 1_000_000_000);
    }

    /// Sets the wall clock wrong by this many nanoseconds.
    pub fn set_wall_nanoseconds(&self, nanoseconds: i64) {
        self.faults.write_all_at(&nanoseconds.to_ne_bytes(), 0).expect("a fault");
    }

    /// Notifies every program that watches for it that the wall clock was set.
    pub fn tell_that_it_was_set(&self) {
        let mut pipe = File::options().read(true).write(true).open(&self.was_set).expect("the pipe");
        pipe.write_all(b".").expect("a word");
    }

    /// Makes the clocks that cannot be set run at another rate, from now on: this many millionths too fast.
    pub fn set_rate(&self, millionths: i64) {
        use nix::time::{ClockId, clock_gettime};
        let now = |clock: ClockId| {
            let now = clock_gettime(clock).expect("a clock");
            now.tv_sec() * 1_000_000_000 + now.tv_nsec()
        };
        let values = [millionths, now(ClockId::CLOCK_BOOTTIME), now(ClockId::CLOCK_MONOTONIC)];
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        self.faults.write_all_at(&bytes, 8).expect("a fault");
    }
}

/// The library, compiled once.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        // Beside the test binary, in a directory that cargo cleans.
        let directory = std::env::current_exe().expect("our own path");
        let stem = directory.with_extension("clocks");
        let (source, library) = (stem.with_extension("c"), stem.with_extension("so"));
        std::fs::write(&source, SOURCE).expect("the source can be written");
        let fresh = library.with_extension(format!("so.{}", std::process::id()));
        let status = Command::new("cc")
            .args(["-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o"])
            .args([&fresh, &source])
            .status()
            .expect("cc is missing: install the Debian package gcc");
        assert!(status.success(), "the library of wrong clocks does not compile");
        std::fs::rename(&fresh, &library).expect("the library can be put in its place");
        library
    })
}

/// Checks the rig: a program with wrong clocks reads wrong times.
#[test]
fn a_wrong_wall_clock_is_believed() {
    let place = Place::new();
    let clocks = Clocks::new(&place);
    let date = || {
        let output = Command::new("date").arg("+%s").envs(clocks.variables()).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().parse::<i64>().unwrap()
    };
    let right = date();
    clocks.set_wall(DAY);
    assert!((DAY..DAY + 60).contains(&(date() - right)));
    clocks.set_wall(-DAY);
    assert!((-DAY..60 - DAY).contains(&(date() - right)));
}

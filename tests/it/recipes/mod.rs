//! Locks that the programs of others take in a way of their own (`?recipe=`): each excludes and wakes the other, both ways.
//!
//! Redisson is played by what it has a server do; the real one needs Java, and is tried elsewhere. python-redis-lock is the
//! real one.

mod cluster;
mod doctor;
mod matrix;
mod played;
mod python_redis_lock;
mod redisson;
mod redisson_told;

use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::redis::{Connection, Keyspace};
use crate::support::resp::Value;
use crate::support::running::Running;
use std::process::Stdio;

/// Part of a server, with a lock `x` that a recipe tells how to take.
struct Scene {
    space: Keyspace,
    place: Place,
    url: String,
    key: String,
}

impl Scene {
    fn of(recipe: &str) -> Self {
        let space = Keyspace::new();
        let before = if recipe == "python-redis-lock" { "lock:" } else { "" };
        Self::with_prefix(recipe, &format!("{before}{}", space.prefix()), space)
    }

    fn with_prefix(recipe: &str, prefix: &str, space: Keyspace) -> Self {
        let url = format!("redis://127.0.0.1:{}/0?recipe={recipe}&prefix={prefix}", space.port());
        let key = format!("{prefix}x");
        Self { space, place: Place::new(), url, key }
    }

    fn run(&self) -> Dlock {
        self.place.run().backend(&self.url)
    }

    /// A run with a short lease that holds `x` until its standard input is closed.
    #[track_caller]
    fn holding(&self, options: &[&str]) -> Running {
        let run = self.run().args(["--ttl", "3s"]).args(options).stdin(Stdio::piped());
        let mut run = run.sh("echo ready; exec cat").spawn();
        run.await_ready();
        run
    }

    /// A run that waits for `x`, and asks by itself only when the test is long over.
    #[track_caller]
    fn waiting(&self, options: &[&str]) -> Running {
        let run = self.run().args(["-v", "--ttl", "10m", "--wait", "forever"]).args(options);
        let mut run = run.sh("echo ran").spawn();
        run.await_stderr("waiting");
        run
    }

    fn client(&self) -> Connection {
        Connection::to(self.space.port()).unwrap()
    }

    fn command(&self, words: &[&str]) -> Value {
        self.space.command(words)
    }

    /// What is in the lock's key, whichever type it has.
    fn content(&self) -> Value {
        self.command(&["DUMP", &self.key])
    }
}

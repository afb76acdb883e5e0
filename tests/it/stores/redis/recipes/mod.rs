//! Locks that other programs take in their own way (`?recipe=`): each excludes and wakes the other, in both
//! directions.
//!
//! Redisson is simulated by its requests to a server; the real one needs Java, and is tested elsewhere.
//! python-redis-lock the real one.

mod cluster;
mod doctor;
mod frozen;
mod matrix;
mod python_redis_lock;
mod redisson;
mod redisson_notifications;
mod simulated_clients;

use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::redis::{Connection, Keyspace};
use crate::support::resp::Value;
use crate::support::running::Running;
use std::process::Stdio;

/// Part of a server, with a lock `x` that is acquired according to a recipe.
struct Fixture {
    space: Keyspace,
    place: Place,
    url: String,
    key: String,
}

impl Fixture {
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
        let run = self.run().args(["--ttl", "6s"]).args(options).stdin(Stdio::piped());
        let mut run = run.sh("echo ready; exec cat").spawn();
        run.await_ready();
        run
    }

    /// A run that waits for `x`, and does not poll before the test has ended.
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

    /// The content of the lock's key, of whichever type.
    fn content(&self) -> Value {
        self.command(&["DUMP", &self.key])
    }
}

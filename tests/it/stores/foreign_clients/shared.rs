//! Readers and holders of slots together with redis-py, which has neither: to it the lock is held until the last has
//! left.

use super::redis_py::Client;
use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::redis::{Keyspace, is_memory};
use crate::support::resp::Value;
use crate::support::running::{Exit, Running};
use crate::support::wait::{throughout, until};
use std::process::Stdio;
use std::time::Duration;

const SHARED: &[&str] = &["--shared"];
const SLOTS: &[&str] = &["--slots", "3"];

/// A waiter that does not poll within the test: its next poll is minutes away.
const PATIENT: &[&str] = &["-v", "--ttl", "10m", "--wait", "forever"];

struct Fixture {
    space: Keyspace,
    place: Place,
}

impl Fixture {
    fn new() -> Self {
        Self { space: Keyspace::new(), place: Place::new() }
    }

    fn run(&self, mode: &[&str]) -> Dlock {
        self.place.run().backend(self.space.url()).args(mode)
    }

    /// A holder until its standard input is closed.
    fn hold(&self, mode: &[&str]) -> Running {
        let mut run = start(self.run(mode).args(["--ttl", "6s"]));
        run.await_ready();
        run
    }

    /// A waiter that is in the queue when this returns.
    fn wait(&self, mode: &[&str], position: usize) -> Running {
        let mut run = start(self.run(mode).args(PATIENT));
        run.await_stderr(&format!("waiting at position {position}\n"));
        run
    }

    fn python(&self, timeout: &str) -> Client {
        Client::new(&self.place, &self.space, "x", timeout)
    }

    /// Only the permanent keys of dlock are left under the lock's name.
    #[track_caller]
    fn assert_left_clean(&self) {
        let key = self.space.key("x");
        let left = || self.space.command(&["KEYS", &format!("*{key}*")]).texts();
        until(SOON, "the last word of those who have gone", || left().iter().all(|key| is_memory(key)));
    }
}

fn start(run: Dlock) -> Running {
    run.stdin(Stdio::piped()).sh("echo ready; exec cat").spawn()
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

/// However the first of them, whose token was the lock's value, has left, and for longer than a lease.
fn redis_py_waits_for_the_last(mode: &[&str]) {
    let fixture = Fixture::new();
    let mut python = fixture.python("600");
    let [first, second, third] = [(); 3].map(|()| fixture.hold(mode));
    assert_eq!(python.ask("try"), "try False");
    end(first);
    assert_eq!(python.ask("wait 8"), "waiting");
    assert_eq!(python.answer(), "wait False");
    python.say("wait 60");
    assert_eq!(python.answer(), "waiting");
    end(third);
    throughout(Duration::from_millis(300), "redis-py waits", || python.is_silent());
    end(second);
    assert_eq!(python.answer(), "wait True");
    assert_eq!(fixture.run(mode).command(["true"]).output().exit, Exit::Code(75));
    assert_eq!(python.ask("release"), "release None");
    fixture.assert_left_clean();
}

/// F49
#[test]
fn redis_py_waits_for_the_last_reader() {
    redis_py_waits_for_the_last(SHARED);
}

/// F49
#[test]
fn redis_py_waits_for_the_last_slot() {
    redis_py_waits_for_the_last(SLOTS);
}

/// F49
#[test]
fn redis_py_excludes_sharing_clients() {
    let fixture = Fixture::new();
    for timeout in ["0", "600"] {
        let mut python = fixture.python(timeout);
        assert_eq!(python.ask("try"), "try True");
        let key = fixture.space.key("x");
        let before = fixture.space.command(&["GET", &key]);
        for mode in [SHARED, SLOTS] {
            for patience in ["--no-wait", "--wait=200ms"] {
                let refused = fixture.run(mode).arg(patience).command(["touch", "t"]).output();
                assert_eq!((refused.exit, refused.stdout.as_str()), (Exit::Code(75), ""));
                let beginning =
                    format!("dlock: x is held by another program on {} (not a dlock, ", fixture.space.url());
                assert!(refused.stderr.starts_with(&beginning), "{}", refused.stderr);
            }
        }
        assert_eq!(fixture.space.command(&["GET", &key]), before);
        assert_eq!(python.ask("owned"), "owned True");
        assert_eq!(python.ask("release"), "release None");
    }
    assert!(!fixture.place.path("t").exists());
}

/// F49: redis-py does not announce its release, and the waiters notice it at once, in order: two readers, the
/// writer that came after them, the reader that came after it.
#[test]
fn redis_py_wakes_waiters_in_order() {
    let fixture = Fixture::new();
    for timeout in ["0", "600"] {
        let mut python = fixture.python(timeout);
        assert_eq!(python.ask("try"), "try True");
        let mut readers = [fixture.wait(SHARED, 1), fixture.wait(SHARED, 2)];
        let mut writer = fixture.wait(&["--exclusive"], 3);
        let mut last = fixture.wait(SHARED, 4);
        throughout(Duration::from_millis(200), "all wait", || !readers.iter().any(has_it));
        assert_eq!(python.ask("release"), "release None");
        readers.iter_mut().for_each(Running::await_ready);
        throughout(Duration::from_millis(200), "the writer waits", || !has_it(&writer) && !has_it(&last));
        readers.into_iter().for_each(end);
        writer.await_ready();
        throughout(Duration::from_millis(200), "the last reader waits", || !has_it(&last));
        end(writer);
        last.await_ready();
        end(last);
        fixture.assert_left_clean();
    }
}

/// F49: as many as there are slots, and the next when one is released.
#[test]
fn all_slots_are_granted_when_redis_py_releases() {
    let fixture = Fixture::new();
    let mut python = fixture.python("600");
    assert_eq!(python.ask("try"), "try True");
    let mut waiters = [1, 2, 3, 4, 5].map(|position| fixture.wait(SLOTS, position));
    assert_eq!(python.ask("release"), "release None");
    waiters[..3].iter_mut().for_each(Running::await_ready);
    throughout(Duration::from_millis(200), "two wait", || !waiters[3..].iter().any(has_it));
    assert_eq!(python.ask("try"), "try False");
    let [first, second, third, mut fourth, mut fifth] = waiters;
    end(second);
    fourth.await_ready();
    throughout(Duration::from_millis(200), "one waits", || !has_it(&fifth));
    end(first);
    fifth.await_ready();
    [third, fourth, fifth].into_iter().for_each(end);
    assert_eq!(python.ask("try"), "try True");
    assert_eq!(python.ask("release"), "release None");
    fixture.assert_left_clean();
}

/// F49: a lease of redis-py's that ends by itself lets the same ones in.
#[test]
fn readers_are_granted_together_when_the_lease_of_redis_py_ends() {
    let fixture = Fixture::new();
    let mut python = fixture.python("1.5");
    assert_eq!(python.ask("try"), "try True");
    let mut readers = [(); 3].map(|()| start(fixture.run(SHARED).args(PATIENT)));
    readers.iter_mut().for_each(Running::await_ready);
    assert_eq!(python.ask("owned"), "owned False");
    assert_eq!(python.ask("release"), "release LockNotOwnedError");
    assert!(readers.iter_mut().all(|reader| reader.poll().is_none()), "they have it still");
    readers.into_iter().for_each(end);
    fixture.assert_left_clean();
}

/// F49, F10: redis-py's lock is not touched, and none of the former sharing holders continues.
#[test]
fn all_sharing_holders_stop_when_redis_py_takes_their_lock() {
    for mode in [SHARED, SLOTS] {
        let fixture = Fixture::new();
        let key = fixture.space.key("x");
        let mut python = fixture.python("600");
        let mut sharers = [(); 3].map(|()| fixture.hold(mode));
        fixture.space.command(&["DEL", &key]);
        assert_eq!(python.ask("try"), "try True");
        for sharer in &mut sharers {
            let output = sharer.wait();
            assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
        }
        assert_eq!(python.ask("owned"), "owned True");
        assert_eq!(fixture.space.command(&["EXISTS", &key]), Value::Int(1));
        assert_eq!(python.ask("release"), "release None");
    }
}

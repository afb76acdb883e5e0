//! The `Lock` of python-redis-lock, on the same key: its waiters pop from a list.

use super::Fixture;
use crate::stores::foreign_clients::redis_py::Client;
use crate::support::SOON;
use crate::support::redis::await_renewal;
use crate::support::resp::{self, Value};
use crate::support::running::Exit;
use crate::support::wait::{throughout, until};
use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Executes commands from standard input, line by line, and prints their results.
const SCRIPT: &str = r#"
import logging
import sys
import redis
import redis_lock
logging.disable()
port, name, expire = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]) or None
lock = redis_lock.Lock(redis.Redis(port=port), name, expire=expire)
for line in sys.stdin:
    word, *rest = line.split()
    if word == "try":
        result = lock.acquire(blocking=False)
    elif word == "wait":
        print("waiting", flush=True)
        result = lock.acquire(timeout=int(rest[0]))
    elif word == "owned":
        result = lock.get_owner_id() == lock.id
    else:
        try:
            result = {"release": lock.release, "reset": lock.reset, "extend": lambda: lock.extend(60)}[word]()
        except redis_lock.NotAcquired as error:
            result = type(error).__name__
    print(word, result, flush=True)
"#;

fn fixture() -> Fixture {
    Fixture::of("python-redis-lock")
}

fn signal(fixture: &Fixture) -> String {
    fixture.key.replacen("lock:", "lock-signal:", 1)
}

/// The library with the lock of a fixture, and a lease of this many seconds; 0 means none.
fn python(fixture: &Fixture, expire: &str) -> Client {
    let name = fixture.key.strip_prefix("lock:").unwrap();
    let arguments = [&fixture.space.port().to_string(), name, expire];
    Client::start(&fixture.place, "redis_lock", "python-redis-lock", SCRIPT, &arguments)
}

/// F49
#[test]
fn dlock_is_excluded_by_python_redis_lock() {
    let fixture = fixture();
    for expire in ["0", "600"] {
        let mut python = python(&fixture, expire);
        assert_eq!(python.ask("try"), "try True");
        let before = fixture.content();
        for options in [&["--exclusive"][..], &["--shared"], &["--slots", "3"], &["--wait", "200ms"]] {
            let refused = fixture.run().args(options).command(["touch", "t"]).output();
            assert_eq!((refused.exit, refused.stdout.as_str()), (Exit::Code(75), ""));
            let told = if expire == "0" {
                "(not a dlock, a key without expiry"
            } else {
                "(not a dlock, for another "
            };
            assert!(refused.stderr.contains(told), "{}", refused.stderr);
        }
        assert_eq!((fixture.content(), python.ask("owned").as_str()), (before, "owned True"));
        assert_eq!(python.ask("release"), "release None");
        assert_eq!(fixture.run().sh("echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""));
    }
    assert!(!fixture.place.path("t").exists());
}

/// F49: it sleeps for ten minutes unless it is notified.
#[test]
fn python_redis_lock_is_excluded_by_dlock_and_notified_of_its_end() {
    let fixture = fixture();
    let mut client = fixture.client();
    let mut python = python(&fixture, "600");
    let mut run = fixture.holding(&[]);
    assert_eq!(python.ask("try"), "try False");
    await_renewal(|| client.command(&["PTTL", &fixture.key]).int());
    python.say("wait 600");
    assert_eq!(python.answer(), "waiting");
    throughout(Duration::from_millis(200), "python-redis-lock waits", || python.is_silent());
    drop(run.take_stdin());
    assert_eq!(run.wait().outcome(), (Exit::Code(0), "ready\n", ""));
    assert_eq!(python.answer(), "wait True");
    assert_eq!(fixture.run().command(["true"]).output().exit, Exit::Code(75));
    assert_eq!(python.ask("release"), "release None");
}

/// Of all waiters for the list one is served, as when the library itself releases the lock.
#[test]
fn one_of_several_waiters_is_notified() {
    let fixture = fixture();
    let mut first = python(&fixture, "600");
    let mut second = python(&fixture, "600");
    let mut run = fixture.holding(&[]);
    for python in [&mut first, &mut second] {
        python.say("wait 600");
        assert_eq!(python.answer(), "waiting");
    }
    throughout(Duration::from_millis(100), "both wait", || first.is_silent() && second.is_silent());
    drop(run.take_stdin());
    assert_eq!(run.wait().exit, Exit::Code(0));
    until(SOON, "one of them", || !first.is_silent() || !second.is_silent());
    let (mut one, mut other) = if first.is_silent() { (second, first) } else { (first, second) };
    assert_eq!(one.answer(), "wait True");
    throughout(Duration::from_millis(200), "the other waits", || other.is_silent());
    assert_eq!(one.ask("release"), "release None");
    assert_eq!(other.answer(), "wait True");
    assert_eq!(other.ask("release"), "release None");
}

/// A waiter for the signal, as in the library.
struct ListWaiter(BufReader<TcpStream>);

impl ListWaiter {
    fn of(fixture: &Fixture) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", fixture.space.port())).unwrap();
        stream.write_all(&resp::encode(&["BLPOP", &signal(fixture), "0"])).unwrap();
        Self(BufReader::new(stream))
    }

    fn within(&mut self, time: Duration) -> Option<Value> {
        self.0.get_ref().set_read_timeout(Some(time)).unwrap();
        resp::read_value(&mut self.0).ok()
    }

    /// Asserts that nothing has arrived within the time.
    fn is_silent(&mut self) -> bool {
        self.within(Duration::from_millis(50)).is_none()
    }

    #[track_caller]
    fn assert_notified(mut self, fixture: &Fixture) {
        let told = self.within(SOON).expect("a signal").texts();
        assert_eq!(told, [signal(fixture), "1".to_owned()]);
        assert_eq!(fixture.command(&["EXISTS", &fixture.key]), Value::Int(0));
        assert_eq!(fixture.command(&["EXISTS", &signal(fixture)]), Value::Int(0), "there was one signal");
    }
}

/// However a hold ends, there is one signal, and not before.
#[test]
fn every_end_of_a_hold_is_signalled() {
    let fixture = fixture();
    let ask =
        |words: &[&str]| fixture.place.bare().arg(words[0]).args(["-b", &fixture.url]).args(&words[1..]);

    let popper = ListWaiter::of(&fixture);
    assert_eq!(fixture.run().command(["true"]).output().exit, Exit::Code(0));
    popper.assert_notified(&fixture);

    let mut popper = ListWaiter::of(&fixture);
    let mut runs = [fixture.holding(&["--shared"]), fixture.holding(&["--shared"])];
    drop(runs[0].take_stdin());
    assert_eq!(runs[0].wait().exit, Exit::Code(0));
    assert!(popper.is_silent());
    drop(runs[1].take_stdin());
    assert_eq!(runs[1].wait().exit, Exit::Code(0));
    popper.assert_notified(&fixture);

    let mut popper = ListWaiter::of(&fixture);
    let token = ask(&["acquire", "--ttl", "60s", "x"]).output().stdout;
    assert!(popper.is_silent());
    assert_eq!(ask(&["release", "x"]).env("DLOCK_TOKEN", token.trim_end()).output().exit, Exit::Code(0));
    popper.assert_notified(&fixture);

    let mut popper = ListWaiter::of(&fixture);
    assert_eq!(fixture.run().args(["--min-hold", "10m"]).command(["true"]).output().exit, Exit::Code(0));
    assert!(popper.is_silent());
    assert_eq!(ask(&["break", "--yes", "x"]).output().exit, Exit::Code(0));
    popper.assert_notified(&fixture);

    let popper = ListWaiter::of(&fixture);
    fixture.command(&["SET", &fixture.key, "somebody-elses", "PX", "60000"]);
    assert_eq!(ask(&["break", "--yes", "--force", "x"]).output().exit, Exit::Code(0));
    popper.assert_notified(&fixture);
}

/// A signal without a waiter must not wake one much later, which would find the lock held.
#[test]
fn a_signal_without_a_waiter_expires_after_a_second() {
    let fixture = fixture();
    fixture.command(&["RPUSH", &signal(&fixture), "1", "1"]);
    assert_eq!(fixture.run().command(["true"]).output().exit, Exit::Code(0));
    let left = fixture.command(&["PTTL", &signal(&fixture)]).int();
    assert!((-2..=1_000).contains(&left) && left != -1, "{left}");
    until(SOON, "the end of the signal", || fixture.command(&["EXISTS", &signal(&fixture)]) == Value::Int(0));
}

/// F49
#[test]
fn a_waiter_is_granted_the_lock_when_python_redis_lock_releases() {
    let fixture = fixture();
    for (expire, end) in [("600", "release"), ("0", "release"), ("600", "reset")] {
        let mut python = python(&fixture, expire);
        assert_eq!(python.ask("try"), "try True");
        let mut waiter = fixture.waiting(&[]);
        if expire != "0" {
            assert_eq!(python.ask("extend"), "extend None");
        }
        throughout(Duration::from_millis(100), "dlock waits", || waiter.poll().is_none());
        assert_eq!(python.ask(end), format!("{end} None"));
        assert_eq!(
            (waiter.wait().exit, waiter.stdout().as_str()),
            (Exit::Code(0), "ran\n"),
            "{expire} {end}"
        );
    }
}

/// F49
#[test]
fn a_waiter_is_granted_the_lock_when_the_lease_of_python_redis_lock_ends() {
    let fixture = fixture();
    let mut python = python(&fixture, "1");
    assert_eq!(python.ask("try"), "try True");
    let run = fixture.run().args(["--wait", "forever"]).sh("echo ran").output();
    assert_eq!(run.outcome(), (Exit::Code(0), "ran\n", ""));
    assert_eq!(python.ask("owned"), "owned False");
    assert_eq!(python.ask("release"), "release NotAcquired");
}

/// F49
#[test]
fn python_redis_lock_is_excluded_until_the_last_sharing_holder_has_left() {
    let fixture = fixture();
    let mut python = python(&fixture, "600");
    for options in [&["--shared"][..], &["--slots", "3"]] {
        let mut runs = [fixture.holding(options), fixture.holding(options)];
        for run in &mut runs {
            assert_eq!(python.ask("try"), "try False");
            drop(run.take_stdin());
            assert_eq!(run.wait().exit, Exit::Code(0));
        }
        assert_eq!(python.ask("try"), "try True");
        assert_eq!(python.ask("release"), "release None");
    }
}

/// F10, F49
#[test]
fn neither_touches_a_lock_lost_to_the_other() {
    let fixture = fixture();
    let mut python = python(&fixture, "600");
    assert_eq!(python.ask("try"), "try True");
    fixture.command(&["DEL", &fixture.key]);
    let mut run = fixture.holding(&[]);
    let held = fixture.content();
    assert_eq!(python.ask("release"), "release NotAcquired");
    assert_eq!(fixture.content(), held);

    fixture.command(&["DEL", &fixture.key]);
    until(SOON, "python-redis-lock to have it", || python.ask("try") == "try True");
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
    assert_eq!(python.ask("owned"), "owned True");
    assert_eq!(fixture.command(&["EXISTS", &signal(&fixture)]), Value::Int(0));
    assert_eq!(python.ask("release"), "release None");
}

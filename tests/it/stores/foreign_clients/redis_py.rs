//! The `Lock` of redis-py, on the same key.

use crate::support::SOON;
use crate::support::place::{Place, read};
use crate::support::process::Marker;
use crate::support::redis::Keyspace;
use crate::support::resp::Value;
use crate::support::running::Exit;
use crate::support::wait::{eventually, throughout, until};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

/// Executes commands from standard input, line by line, and prints their results.
const SCRIPT: &str = r#"
import sys
import redis
port, name, timeout = int(sys.argv[1]), sys.argv[2], float(sys.argv[3]) or None
lock = redis.Redis(port=port).lock(name, timeout=timeout)
for line in sys.stdin:
    word, *rest = line.split()
    if word == "try":
        result = lock.acquire(blocking=False)
    elif word == "wait":
        print("waiting", flush=True)
        result = lock.acquire(blocking=True, blocking_timeout=float(rest[0]))
    elif word == "owned":
        result = lock.owned()
    else:
        try:
            result = {"release": lock.release, "extend": lambda: lock.extend(60, replace_ttl=True)}[word]()
        except redis.exceptions.LockError as error:
            result = type(error).__name__
    print(word, result, flush=True)
"#;

/// The Python of the tests.
fn python() -> &'static PathBuf {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let installed = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/python/bin/python");
        match std::env::var_os("DLOCK_TEST_PYTHON") {
            Some(path) => PathBuf::from(path),
            None if installed.exists() => installed,
            None => PathBuf::from("python3"),
        }
    })
}

/// Fails if the Python of the tests has no such module.
#[track_caller]
fn require(module: &str, package: &str) {
    let import = Command::new(python()).args(["-c", &format!("import {module}")]).output();
    assert!(
        import.is_ok_and(|output| output.status.success()),
        "{} cannot import {module}: pip install {package}, and set DLOCK_TEST_PYTHON to an interpreter that has it",
        python().display()
    );
}

/// A library with one lock, driven by a script.
pub(crate) struct Client {
    child: Child,
    log: PathBuf,
    seen: usize,
}

impl Client {
    /// redis-py's lock of this name, with this lease in seconds; 0 is none.
    pub(crate) fn new(place: &Place, space: &Keyspace, name: &str, timeout: &str) -> Self {
        Self::start(place, "redis", "redis", SCRIPT, &[&space.port().to_string(), &space.key(name), timeout])
    }

    /// The input of a script that takes its lock with this module.
    pub(crate) fn start(
        place: &Place,
        module: &str,
        package: &str,
        script: &str,
        arguments: &[&str],
    ) -> Self {
        require(module, package);
        let log = place.path(&format!("python.{}", std::process::id()));
        let mut log =
            (0..).map(|number| log.with_extension(number.to_string())).find(|path| !path.exists()).unwrap();
        let file = std::fs::File::create(&log).unwrap();
        let mut command = Command::new(python());
        command.args(["-c", script]).args(arguments);
        command.env(Marker::VARIABLE, place.marker().value()).stdin(Stdio::piped()).stdout(file);
        let child = command.spawn().unwrap();
        log = log.canonicalize().unwrap();
        Self { child, log, seen: 0 }
    }

    /// Sends a command, and returns its result.
    pub(crate) fn ask(&mut self, word: &str) -> String {
        self.say(word);
        self.answer()
    }

    pub(crate) fn say(&mut self, word: &str) {
        self.child.stdin.as_mut().unwrap().write_all(format!("{word}\n").as_bytes()).unwrap();
    }

    /// The next line of output.
    pub(crate) fn answer(&mut self) -> String {
        let line = eventually(SOON, "an answer of redis-py", || {
            let text = read(&self.log);
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            whole.lines().nth(self.seen).map(str::to_owned)
        });
        self.seen += 1;
        line
    }

    pub(crate) fn is_silent(&self) -> bool {
        read(&self.log).lines().count() == self.seen
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn fixture() -> (Keyspace, Place) {
    (Keyspace::new(), Place::new())
}

/// F49
#[test]
fn dlock_is_excluded_by_redis_py() {
    let (space, place) = fixture();
    // Without a lease, as is redis-py's default, and with one.
    for timeout in ["0", "600"] {
        let mut python = Client::new(&place, &space, "x", timeout);
        assert_eq!(python.ask("try"), "try True");
        let value = space.command(&["GET", &space.key("x")]);
        let refused = place.run().backend(space.url()).command(["touch", "t"]).output();
        assert_eq!((refused.exit, refused.stdout.as_str()), (Exit::Code(75), ""));
        let told = match timeout {
            "0" => {
                "(not a dlock, a key without expiry, which stays until it is deleted); not waiting, see --wait\n"
            }
            _ => "(not a dlock, for another ",
        };
        let beginning = format!("dlock: x is held by another program on {} {told}", space.url());
        assert!(refused.stderr.starts_with(&beginning), "{}", refused.stderr);
        let gave_up =
            place.run().backend(space.url()).args(["--wait", "200ms"]).command(["touch", "t"]).output();
        assert_eq!(gave_up.exit, Exit::Code(75));
        assert_eq!(space.command(&["GET", &space.key("x")]), value, "untouched");
        assert_eq!(python.ask("owned"), "owned True");
        assert_eq!(python.ask("release"), "release None");
        let run = place.run().backend(space.url()).sh("echo ran").output();
        assert_eq!(run.outcome(), (Exit::Code(0), "ran\n", ""));
    }
    assert!(!place.path("t").exists());
}

/// F49
#[test]
fn a_waiter_is_granted_the_lock_when_redis_py_releases() {
    let (space, place) = fixture();
    let mut python = Client::new(&place, &space, "x", "600");
    assert_eq!(python.ask("try"), "try True");
    let mut waiter =
        place.run().backend(space.url()).args(["-v", "--wait", "forever"]).sh("echo ran").spawn();
    waiter.await_stderr("waiting");
    throughout(Duration::from_millis(200), "dlock waits", || waiter.poll().is_none());
    assert_eq!(python.ask("extend"), "extend True");
    throughout(Duration::from_millis(200), "dlock waits", || waiter.poll().is_none());
    assert_eq!(python.ask("release"), "release None");
    assert_eq!((waiter.wait().exit, waiter.stdout().as_str()), (Exit::Code(0), "ran\n"));
}

/// F49
#[test]
fn a_waiter_is_granted_the_lock_when_the_lease_of_redis_py_ends() {
    let (space, place) = fixture();
    let mut python = Client::new(&place, &space, "x", "0.5");
    assert_eq!(python.ask("try"), "try True");
    let run = place.run().backend(space.url()).args(["--wait", "forever"]).sh("echo ran").output();
    assert_eq!(run.outcome(), (Exit::Code(0), "ran\n", ""));
    assert_eq!(python.ask("owned"), "owned False");
    assert_eq!(python.ask("release"), "release LockNotOwnedError");
}

/// F49
#[test]
fn redis_py_is_excluded_by_dlock() {
    let (space, place) = fixture();
    let mut python = Client::new(&place, &space, "x", "600");
    let run = place.run().backend(space.url()).args(["--ttl", "6s"]).stdin(Stdio::piped());
    let mut run = run.sh("echo ready; exec cat").spawn();
    run.await_ready();
    assert_eq!(python.ask("try"), "try False");
    // For longer than a lease: it is renewed.
    assert_eq!(python.ask("wait 8"), "waiting");
    assert_eq!(python.answer(), "wait False");
    assert_eq!(python.ask("owned"), "owned False");
    run.assert_running();

    python.say("wait 30");
    assert_eq!(python.answer(), "waiting");
    throughout(Duration::from_millis(300), "redis-py waits", || python.is_silent());
    drop(run.take_stdin());
    assert_eq!(run.wait().outcome(), (Exit::Code(0), "ready\n", ""));
    assert_eq!(python.answer(), "wait True");
    let refused = place.run().backend(space.url()).command(["true"]).output();
    assert_eq!(refused.exit, Exit::Code(75));
    assert!(refused.stderr.contains("another program"), "the last dlock is not named: {}", refused.stderr);
    assert_eq!(python.ask("release"), "release None");
}

/// F49: no process holds the lock.
#[test]
fn redis_py_is_excluded_by_a_token_until_its_release() {
    let (space, place) = fixture();
    let mut python = Client::new(&place, &space, "x", "600");
    let url = space.url();
    let acquire = || place.bare().args(["acquire", "-b", &url, "--ttl", "60s", "x"]).output();
    let token = acquire().stdout.trim_end().to_owned();
    let with_token = |command: &str| {
        place.bare().args([command, "-b", &url, "x"]).env("DLOCK_TOKEN", &token).output().exit
    };
    assert_eq!(python.ask("try"), "try False");
    assert_eq!(with_token("renew"), Exit::Code(0));
    assert_eq!(python.ask("try"), "try False");
    python.say("wait 30");
    assert_eq!(python.answer(), "waiting");
    throughout(Duration::from_millis(200), "redis-py waits", || python.is_silent());
    assert_eq!(with_token("release"), Exit::Code(0));
    assert_eq!(python.answer(), "wait True");
    assert_eq!([with_token("check"), with_token("renew"), with_token("release")], [Exit::Code(76); 3]);
    assert_eq!(acquire().exit, Exit::Code(75));
    assert_eq!(python.ask("owned"), "owned True");
    assert_eq!(python.ask("release"), "release None");
}

/// F49: redis-py does not release or extend a dlock's lock, nor does a dlock touch that of redis-py.
#[test]
fn neither_touches_a_lock_lost_to_the_other() {
    let (space, place) = fixture();
    let key = space.key("x");
    let mut python = Client::new(&place, &space, "x", "600");
    assert_eq!(python.ask("try"), "try True");
    space.command(&["DEL", &key]);
    let run = place.run().backend(space.url()).args(["--ttl", "6s"]).stdin(Stdio::piped());
    let mut run = run.sh("echo ready; exec cat").spawn();
    run.await_ready();
    let held = space.command(&["GET", &key]);
    assert_eq!(python.ask("release"), "release LockNotOwnedError");
    assert_eq!(space.command(&["GET", &key]), held);

    let mut python = Client::new(&place, &space, "x", "600");
    space.command(&["DEL", &key]);
    // Whichever is quicker: dlock never takes a lost lock again, so in the end redis-py has it.
    until(SOON, "redis-py to have it", || python.ask("try") == "try True");
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
    assert_eq!(python.ask("owned"), "owned True");
    assert_eq!(space.command(&["EXISTS", &key]), Value::Int(1));
    assert_eq!(python.ask("release"), "release None");
}

/// An application's lock is taken by its exact key, with an empty prefix.
#[test]
fn the_exact_key_of_an_application_can_be_locked() {
    let (space, place) = fixture();
    let mut python = Client::new(&place, &space, "app:lock", "600");
    assert_eq!(python.ask("try"), "try True");
    let url = format!("redis://127.0.0.1:{}/0?prefix=", space.port());
    let run = || place.run().backend(&url).name(space.key("app:lock")).sh("echo ran").output();
    assert_eq!(run().exit, Exit::Code(75));
    assert_eq!(python.ask("release"), "release None");
    assert_eq!(run().outcome(), (Exit::Code(0), "ran\n", ""));
}

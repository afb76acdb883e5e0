//! Locks held by programs other than dlock, and other content of lock files and keys.

mod on_redis;

use super::{names, status, the_lock};
use crate::support::SOON;
use crate::support::running::Exit;
use crate::support::store::Store;
use crate::support::wait::until;
use serde_json::Value;
use std::process::{Child, Command, Stdio};

/// The only holder, of which only the rest of its lease is known.
fn stranger(expires: &str, immortal: bool) -> String {
    format!(
        r#"[{{"host":null,"pid":null,"user":null,"command":null,"note":null,"url":null,"phase":"unknown","slot":null,"acquired_at":null,"expires_in_ms":{expires},"immortal":{immortal},"fencing_token":null,"foreign":true,"waits_for":null}}]"#
    )
}

fn holders(store: &Store, name: &str) -> String {
    let output = status(store).args(["--json", name]).output();
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
    let from = output.stdout.find("\"holders\":").unwrap() + "\"holders\":".len();
    let to = output.stdout.find(",\"waiters\"").unwrap();
    output.stdout[from..to].to_owned()
}

/// `flock FILE`, which holds until this value is dropped.
struct Flock(Child);

impl Flock {
    fn new(store: &Store, options: &[&str]) -> Self {
        let ready = store.place.path("flock-has-it");
        let _ = std::fs::remove_file(&ready);
        let mut command = Command::new("flock");
        command.args(options).arg(store.place.lock_file("x"));
        command.args(["sh", "-c", "touch \"$1\"; exec cat", "sh"]).arg(&ready);
        let child =
            command.stdin(Stdio::piped()).spawn().expect("flock: install the Debian package util-linux");
        until(SOON, "the lock of flock(1)", || ready.exists());
        Self(child)
    }
}

impl Drop for Flock {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// F49
#[test]
fn flock_is_shown_when_its_lock_is_named() {
    let store = Store::file();
    for options in [&[][..], &["--shared"]] {
        let flock = Flock::new(&store, options);
        let lock = the_lock(&store, ["x"]);
        assert_eq!(
            (&lock["state"], &lock["mode"], &lock["slots"]),
            (&"held".into(), &Value::Null, &Value::Null)
        );
        assert_eq!(holders(&store, "x"), stranger("null", false));
        assert_eq!(status(&store).args(["--exit-code", "x"]).output().exit, Exit::Code(75));
        let table = status(&store).arg("x").output().stdout;
        let expected = format!(
            "{}\nLOCK  STATE          NOTE\nx     held, foreign  process {}, flock\n",
            store.url(),
            flock.0.id(),
        );
        assert_eq!(table, expected);
        assert_eq!(names(&store, []), [""; 0], "it is listed when it is named");
        drop(flock);
        assert_eq!(the_lock(&store, ["x"])["state"], "free");
    }
}

/// A non-blocking attempt on the lock never fails because of a concurrent status.
#[test]
fn status_never_makes_another_program_fail() {
    let store = Store::file();
    let script = "for i in $(seq 300); do flock -n \"$1\" true || echo failed; done";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(store.place.lock_file("x"));
    let mut loop_ = command.stdout(Stdio::piped()).spawn().unwrap();
    while loop_.try_wait().unwrap().is_none() {
        assert_eq!(status(&store).args(["--json", "x", "*"]).output().exit, Exit::Code(0));
    }
    assert_eq!(String::from_utf8_lossy(&loop_.wait_with_output().unwrap().stdout), "");
}

/// The same for a dlock that acquires the lock during a status.
#[test]
fn status_never_makes_another_dlock_fail() {
    for store in Store::each() {
        let mut watch = status(&store).args(["--json", "--watch=100ms", "x", "*"]).spawn();
        for _ in 0..30 {
            assert_eq!(
                store.run_with_ttl("30s").command(["true"]).output().outcome(),
                (Exit::Code(0), "", "")
            );
            assert_eq!(status(&store).arg("x").output().exit, Exit::Code(0));
        }
        watch.assert_running();
    }
}

//! `dlock freeze` and `dlock thaw`: command lines, signals, several names, and what is shown. What a freeze keeps out is
//! checked on every store.

use crate::support::SOON;
use crate::support::dlock::{BINARY, Dlock};
use crate::support::etcd::Etcd;
use crate::support::place::Place;
use crate::support::postgres::Postgres;
use crate::support::running::{Exit, Running};
use crate::support::wait::until;
use crate::support::zookeeper::ZooKeeper;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::io::Read;
use std::process::{Command, Stdio};

/// A dlock with these words, on the locks of the place.
fn dlock(place: &Place, line: &str) -> Dlock {
    place.bare().backend(place.url()).args(line.split(' '))
}

fn by() -> String {
    format!("{}@{}", dlock::identity::user(), dlock::identity::host())
}

/// What `status --json` says of a lock.
fn seen(place: &Place, name: &str) -> Value {
    let output = dlock(place, &format!("status --json {name}")).output();
    let all: Value = serde_json::from_str(&output.stdout).unwrap();
    all["locks"][0].clone()
}

fn is_frozen(place: &Place, name: &str) -> bool {
    seen(place, name)["freeze"].is_object()
}

/// A command that holds x until it is told to end.
fn holder(place: &Place) -> Running {
    let mut holder = place.run().sh("echo ready; while [ ! -e end ]; do sleep 0.02; done").spawn();
    holder.await_ready();
    holder
}

#[test]
fn wrong_usage_is_refused() {
    let place = Place::new();
    for (line, message) in [
        ("freeze x", "freeze: for how long? give --for DURATION or --forever"),
        ("freeze --forever", "freeze: which lock? dlock freeze NAME"),
        ("freeze --for 1h --forever x", "--for and --forever contradict each other: give one of them"),
        ("freeze --forever --now --wait 1s x", "--now and --wait contradict each other: give one of them"),
        ("freeze --for 0 x", "invalid value '0' for '--for <DURATION>': must be longer than zero"),
        (
            "freeze --for 9000h x",
            "invalid value '9000h' for '--for <DURATION>': longer than a year: give --forever",
        ),
        ("freeze --forever x*", "NAME 'x*': freeze takes an exact name, not a pattern (\\* is a literal *)"),
        ("thaw", "thaw: which lock? dlock thaw NAME"),
        ("thaw x?", "NAME 'x?': thaw takes an exact name, not a pattern (\\* is a literal *)"),
    ] {
        let output = dlock(&place, line).output();
        let message = format!("dlock: {message}\n");
        assert_eq!(output.outcome(), (Exit::Code(64), "", message.as_str()), "{line}");
    }
    assert!(!is_frozen(&place, "x"));
}

#[test]
fn a_repeated_name_counts_once() {
    let place = Place::new();
    let freeze = dlock(&place, "freeze --forever --now x y x").output();
    assert_eq!((freeze.exit, freeze.stdout.lines().count()), (Exit::Code(0), 2), "{freeze:?}");
    assert!(is_frozen(&place, "x") && is_frozen(&place, "y"));
    let thaw = dlock(&place, "thaw x x y").output();
    assert_eq!((thaw.exit, thaw.stdout.lines().count()), (Exit::Code(0), 2), "{thaw:?}");
    assert!(!is_frozen(&place, "x") && !is_frozen(&place, "y"));
}

/// On `file:`, other programs are not kept out, and that is said.
#[test]
fn a_freeze_is_shown_wherever_the_lock_is() {
    let place = Place::new();
    let freeze = dlock(&place, "freeze --for 2h --reason db\u{1b}[2J x").output();
    assert_eq!(freeze.exit, Exit::Code(0), "{freeze:?}");
    let line = format!("x is frozen by {} until ", by());
    assert!(
        freeze.stdout.starts_with(&line) && freeze.stdout.ends_with(" for 'db\\u{1b}[2J'\n"),
        "{freeze:?}"
    );
    let words =
        "dlock: a freeze does not keep out programs that lock the file themselves, such as flock(1)\n";
    assert_eq!(freeze.stderr, words);

    let status = dlock(&place, "status").output().stdout;
    let rows: Vec<Vec<&str>> = status.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
    let (user, host) = (dlock::identity::user(), dlock::identity::host());
    assert_eq!(rows[0][..4], ["x", "frozen", &host, &user], "{status}");
    assert!(status.ends_with("  db\\u{1b}[2J\n"), "{status}");
    let state = seen(&place, "x");
    assert_eq!((&state["state"], &state["freeze"]["by"]), (&"frozen".into(), &by().into()), "{state}");
    assert_eq!(state["freeze"]["reason"], "db\u{1b}[2J");
    assert_eq!(dlock(&place, "status --exit-code x").output().exit, Exit::Code(75));
    let metrics = dlock(&place, "status --prometheus x").output().stdout;
    assert!(metrics.contains("dlock_lock_frozen{name=\"x\"} 1\n"), "{metrics}");

    let report = place.arg("report");
    let run = place.run().args(["--report", &report]).sh("echo ran").output();
    assert_eq!((run.exit, run.stdout.as_str()), (Exit::Code(75), ""));
    let noted: Value = serde_json::from_str(&place.read("report")).unwrap();
    assert_eq!((&noted["outcome"], &noted["holder"]), (&"contended".into(), &Value::Null), "{noted}");
    assert!(noted["error"].as_str().unwrap().starts_with(&line), "{noted}");
    let history = dlock(&place, "history x").output().stdout;
    assert!(history.contains("contended") && history.contains(&format!("  frozen by {}", by())), "{history}");
    let quiet = place.run().args(["-q", "-E", "0"]).sh("echo ran").output();
    assert_eq!(quiet.outcome(), (Exit::Code(0), "", ""));
}

#[test]
fn a_signal_removes_the_freeze() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let place = Place::new();
        let mut holder = holder(&place);
        let mut freezing = dlock(&place, "freeze --forever y x").spawn();
        freezing.await_stdout("; waiting for its end\n");
        assert!(is_frozen(&place, "x") && is_frozen(&place, "y"));
        freezing.signal(signal);
        let frozen = freezing.wait();
        assert_eq!(frozen.exit, Exit::by(signal));
        assert!(!is_frozen(&place, "x") && !is_frozen(&place, "y"), "{signal}");
        for name in ["x", "y"] {
            assert!(frozen.stdout.contains(&format!("\n{name} is thawed\n")), "{}", frozen.stdout);
        }
        holder.assert_running();
        place.write("end", "");
        assert_eq!(holder.wait().exit, Exit::Code(0));
    }
}

#[test]
fn a_wait_that_is_over_keeps_the_freeze() {
    let place = Place::new();
    let mut holder = holder(&place);
    let over = dlock(&place, "freeze --forever --wait 200ms x").output();
    assert_eq!(over.exit, Exit::Code(75), "{over:?}");
    assert!(over.stderr.contains("dlock: x is still held by "), "{}", over.stderr);
    assert!(over.stderr.ends_with("; it stays frozen, see dlock thaw\n"), "{}", over.stderr);
    holder.assert_running();
    assert!(is_frozen(&place, "x"));
    assert_eq!(dlock(&place, "thaw x").output().exit, Exit::Code(0));
    let now = dlock(&place, "freeze --forever --now x").output();
    assert_eq!(now.exit, Exit::Code(0), "{now:?}");
    assert!(now.stdout.contains("\nx is still held by "), "{}", now.stdout);
    holder.assert_running();
    place.write("end", "");
    assert_eq!(holder.wait().exit, Exit::Code(0));
    assert_eq!(place.run().sh("echo ran").output().exit, Exit::Code(75));
}

#[test]
fn of_several_names_all_are_frozen_or_none() {
    let place = Place::new();
    assert_eq!(dlock(&place, "freeze --for 1h --reason first y").output().exit, Exit::Code(0));
    let refused = dlock(&place, "freeze --forever x y z").output();
    assert_eq!((refused.exit, refused.stdout.as_str()), (Exit::Code(75), ""), "{refused:?}");
    let line = format!("dlock: y is frozen by {} until ", by());
    assert!(refused.stderr.starts_with(&line), "{}", refused.stderr);
    assert!(
        refused.stderr.ends_with(" for 'first': nothing was changed; see dlock thaw\n"),
        "{}",
        refused.stderr
    );
    let frozen: Vec<&str> = ["x", "y", "z"].into_iter().filter(|name| is_frozen(&place, name)).collect();
    assert_eq!(frozen, ["y"]);
    assert_eq!(seen(&place, "y")["freeze"]["reason"], "first");
    let quiet = dlock(&place, "freeze -q --forever y").output();
    assert_eq!(quiet.outcome(), (Exit::Code(75), "", ""));
}

#[test]
fn a_thaw_by_another_ends_the_wait_for_the_holder() {
    let place = Place::new();
    let mut holder = holder(&place);
    let mut freezing = dlock(&place, "freeze --forever x y").spawn();
    freezing.await_stdout("; waiting for its end\n");
    assert_eq!(dlock(&place, "thaw x").output().exit, Exit::Code(0));
    let ended = freezing.wait();
    assert_eq!(ended.exit, Exit::Code(75), "{ended:?}");
    assert!(ended.stderr.ends_with("dlock: x is no longer frozen\n"), "{}", ended.stderr);
    assert!(!is_frozen(&place, "y"), "the other one is not left frozen");
    holder.assert_running();
    place.write("end", "");
    holder.wait();
}

/// With --fencing-token, it concerns that hold alone.
#[test]
fn a_break_ends_the_freeze_too() {
    let place = Place::new();
    assert_eq!(dlock(&place, "freeze --forever x").output().exit, Exit::Code(0));
    let other = dlock(&place, "break --yes --fencing-token 7 x").output();
    assert!(other.exit == Exit::Code(0) && is_frozen(&place, "x"), "{other:?}");
    let broken = dlock(&place, "break --yes x").output();
    let printed = format!("x is frozen by {}\nx on {} is thawed\n", by(), place.url());
    assert_eq!(broken.outcome(), (Exit::Code(0), printed.as_str(), ""));
    assert!(!is_frozen(&place, "x"));

    let mut holder = holder(&place);
    assert_eq!(dlock(&place, "freeze --forever --now x").output().exit, Exit::Code(0));
    let broken = dlock(&place, "break --yes x").output();
    assert_eq!(broken.exit, Exit::Code(0), "{broken:?}");
    assert!(broken.stdout.ends_with(&format!("x on {}: that hold has ended\n", place.url())), "{broken:?}");
    assert_eq!(holder.wait().exit, Exit::Code(76));
    assert_eq!(place.run().sh("echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""));
}

/// It keeps its place in the queue, and says what it waits for when that changes.
#[test]
fn a_waiting_run_says_who_has_frozen_the_lock() {
    let place = Place::new();
    let mut holder = holder(&place);
    let mut waiter = place.run().args(["-v", "--wait", "forever"]).sh("echo waiter").spawn();
    waiter.await_stderr("; waiting at position 1");
    assert_eq!(dlock(&place, "freeze --forever --now --reason move x").output().exit, Exit::Code(0));
    place.write("end", "");
    assert_eq!(holder.wait().exit, Exit::Code(0));
    waiter.await_stderr(&format!("dlock: x is frozen by {} for 'move'; waiting at position 1", by()));
    waiter.assert_running();
    assert_eq!(dlock(&place, "thaw x").output().exit, Exit::Code(0));
    assert_eq!((waiter.wait().exit, waiter.stdout().as_str()), (Exit::Code(0), "waiter\n"));
}

/// A dlock that does not know of freezes refuses what it finds; the number is the usual one again after that.
#[test]
fn a_frozen_lock_has_another_format() {
    let (postgres, etcd, zookeeper) = (Postgres::lent(), Etcd::lent(), ZooKeeper::lent());
    let beside = || {
        let keys = etcd.client().keys("dlock#beside/");
        keys.into_iter().map(|key| key.value).collect::<String>()
    };
    let node = || zookeeper.session().get("/dlock/dlock#beside/x").map(|(data, _)| data).unwrap_or_default();
    let row = || postgres.sql("SELECT entries FROM dlock_locks WHERE name = 'x'");
    let stored: [(String, &dyn Fn() -> String); 3] =
        [(postgres.url(), &row), (etcd.url(), &beside), (zookeeper.url(), &node)];
    for (url, text) in stored {
        let command = |words: &[&str]| Place::new().bare().args(words).args(["-b", &url]).output().exit;
        assert_eq!(command(&["run", "x", "-c", "true"]), Exit::Code(0), "{url}");
        assert_eq!(command(&["freeze", "--forever", "x"]), Exit::Code(0), "{url}");
        assert!(text().contains("\"format\":2"), "{url}: {}", text());
        assert_eq!(command(&["run", "x", "-c", "true"]), Exit::Code(75), "{url}");
        assert_eq!(command(&["thaw", "x"]), Exit::Code(0), "{url}");
        assert_eq!(command(&["run", "x", "-c", "true"]), Exit::Code(0), "{url}");
        assert!(!text().contains("\"format\":2"), "{url}: {}", text());
    }
}

/// Its clock says that the freeze has ended; etcd has no clock, but the key of the freeze is there. And one whose clock is
/// behind starts when the key is gone.
#[test]
fn on_etcd_the_key_of_the_freeze_counts_and_not_the_clock_of_a_host() {
    let etcd = Etcd::lent();
    let command = |words: &[&str]| Place::new().bare().args(words).args(["-b", &etcd.url()]).output();
    assert_eq!(command(&["freeze", "--for", "1h", "x"]).exit, Exit::Code(0));
    let metadata = "dlock#beside//dlock/x";
    let key = etcd.client().keys(metadata).remove(0);
    let mut ledger: Value = serde_json::from_str(&key.value).unwrap();
    let since = ledger["freeze"]["since"].as_u64().unwrap();
    let mut set_until = |until: u64| {
        ledger["freeze"]["until"] = until.into();
        etcd.client().put(metadata, &ledger.to_string(), 0);
    };
    set_until(since - 3_600_000);
    let run = command(&["run", "x", "-c", "echo ran"]);
    assert_eq!((run.exit, run.stdout.as_str()), (Exit::Code(75), ""), "{run:?}");
    assert!(run.stderr.starts_with("dlock: x is frozen by "), "{}", run.stderr);
    set_until(since + 7_200_000);
    assert!(etcd.client().delete("/dlock/x/dlock#frozen"));
    let run = command(&["run", "x", "-c", "echo ran"]);
    assert_eq!(run.outcome(), (Exit::Code(0), "ran\n", ""));
    until(SOON, "the end of what is stored of it", || {
        !etcd.client().keys(metadata).iter().any(|key| key.value.contains("freeze"))
    });
}

/// Unlike with --now, the holder has not ended.
#[test]
fn no_wait_at_all_is_not_now() {
    let place = Place::new();
    let mut holder = holder(&place);
    let over = dlock(&place, "freeze --forever --wait 0 x").output();
    assert_eq!(over.exit, Exit::Code(75), "{over:?}");
    assert!(is_frozen(&place, "x"));
    holder.assert_running();
    place.write("end", "");
    holder.wait();
}

#[test]
fn a_freeze_that_ends_before_the_holder_is_no_success() {
    let place = Place::new();
    let mut holder = holder(&place);
    let ended = dlock(&place, "freeze --for 500ms x").output();
    assert_eq!(ended.exit, Exit::Code(75), "{ended:?}");
    assert!(ended.stderr.ends_with("dlock: x is no longer frozen\n"), "{}", ended.stderr);
    holder.assert_running();
    place.write("end", "");
    holder.wait();
}

/// It would wait for itself.
#[test]
fn a_command_does_not_wait_for_the_hold_that_it_runs_in() {
    let place = Place::new();
    let inner = format!("'{BINARY}' freeze -b '{}' --for 1h x", place.url());
    let run = place.run().sh(&inner).output();
    assert_eq!(run.exit, Exit::Code(75), "{run:?}");
    assert!(run.stderr.contains("x is held by the dlock that runs this very command: "), "{}", run.stderr);
    assert!(!is_frozen(&place, "x"));
    let now = place.run().sh(&format!("{inner} --now")).output();
    assert_eq!(now.exit, Exit::Code(0), "{now:?}");
    assert!(is_frozen(&place, "x"));
}

#[test]
fn a_name_that_cannot_be_thawed_leaves_no_other_frozen() {
    let place = Place::new();
    assert_eq!(dlock(&place, "freeze --forever x y").output().exit, Exit::Code(0));
    std::fs::write(place.locks().join("x.dlock"), "garbage").unwrap();
    let thawed = dlock(&place, "thaw x y").output();
    assert_eq!(thawed.exit, Exit::Code(78), "{thawed:?}");
    assert!(thawed.stderr.starts_with("dlock: x on ") && thawed.stderr.lines().count() == 1, "{thawed:?}");
    assert!(!is_frozen(&place, "y"));
}

/// It waits for the end of the freeze, although it is the first of the clients.
#[test]
fn on_etcd_a_foreign_client_behind_a_freeze_is_no_holder() {
    let etcd = Etcd::lent();
    let command = |words: &[&str]| Place::new().bare().args(words).args(["-b", &etcd.url()]).output();
    assert_eq!(command(&["freeze", "--forever", "x"]).exit, Exit::Code(0));
    let (lease, _) = etcd.client().join("/dlock/x", 60);
    let state = || {
        let all: Value = serde_json::from_str(&command(&["status", "--json", "x"]).stdout).unwrap();
        let lock = &all["locks"][0];
        (
            lock["state"].clone(),
            lock["holders"].as_array().unwrap().len(),
            lock["waiters"].as_array().unwrap().len(),
        )
    };
    assert_eq!(state(), ("frozen".into(), 0, 1));
    assert_eq!(command(&["thaw", "x"]).exit, Exit::Code(0));
    assert_eq!(state(), ("held".into(), 1, 0));
    assert!(etcd.client().revoke(lease));
}

/// That of a freeze ends with it, whoever has ended it.
#[test]
fn on_etcd_no_lease_is_left() {
    let etcd = Etcd::lent();
    let command = |words: &[&str]| Place::new().bare().args(words).args(["-b", &etcd.url()]).output().exit;
    let before = etcd.client().leases().unwrap().len();
    for end in ["thaw", "break"] {
        assert_eq!(command(&["freeze", "--for", "1h", "x"]), Exit::Code(0));
        assert_eq!(etcd.client().leases().unwrap().len(), before + 1);
        let words: &[&str] = if end == "break" { &["break", "--yes", "x"] } else { &["thaw", "x"] };
        assert_eq!(command(words), Exit::Code(0));
        assert_eq!(etcd.client().leases().unwrap().len(), before, "{end}");
    }
}

/// The run that waits behind another program does not take its place while the lock is frozen.
#[test]
fn a_freeze_waits_for_another_program_and_not_for_the_runs_behind_it() {
    let place = Place::new();
    std::fs::create_dir_all(place.locks()).unwrap();
    let mut foreign = Command::new("flock");
    foreign.arg(place.lock_file("x")).args(["sh", "-c", "echo; cat"]);
    let mut foreign = foreign.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    foreign.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    let mut waiter = place.run().args(["-v", "--wait", "forever"]).sh("echo ran").spawn();
    waiter.await_stderr("waiting at position 1");
    let mut freeze = dlock(&place, "freeze --forever --wait forever x").spawn();
    until(SOON, "a frozen lock", || is_frozen(&place, "x"));
    drop(foreign.stdin.take());
    foreign.wait().unwrap();
    assert_eq!(freeze.wait().exit, Exit::Code(0), "{}", freeze.stderr());
    assert!(waiter.poll().is_none());
    assert_eq!(dlock(&place, "thaw x").output().exit, Exit::Code(0));
    assert_eq!(waiter.wait().stdout, "ran\n");
}

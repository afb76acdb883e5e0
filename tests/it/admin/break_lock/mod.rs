//! `dlock break`: the holder releases its lock by itself, and no other client gets it before.

mod confirmation;
mod dead_holders;
mod force;
mod foreign;
mod live_holders;
mod many_breaks;
mod min_hold;
mod races;
pub mod readme;
mod rights;
mod several_holders;
mod stopped_holders;
mod usage;

use crate::support::dlock::Dlock;
use crate::support::inherited_lock::InheritedLock;
use crate::support::resp::Value;
use crate::support::running::{Exit, Output, Running};
use crate::support::store::Store;

/// `dlock break` of the lock `x` of this store.
fn breaking(store: &Store) -> Dlock {
    breaking_of(store, "x")
}

/// `dlock break` of a lock of this store, without confirmation.
fn breaking_of(store: &Store, name: &str) -> Dlock {
    store.place.bare().args(["break", "--yes"]).args(["-b", store.url()]).name(name)
}

/// A run whose command prints the fencing token, reports that it is ready, and works until it is stopped.
#[track_caller]
fn working(run: Dlock) -> Running {
    let mut run = run.sh("echo token=$DLOCK_FENCING_TOKEN; echo ready; exec sleep 1000").spawn();
    run.await_ready();
    run
}

/// The fencing token of a run that is [`working`].
fn token_of(run: &Running) -> String {
    let stdout = run.stdout();
    let line = stdout.lines().find_map(|line| line.strip_prefix("token="));
    line.unwrap_or_else(|| panic!("{stdout}")).to_owned()
}

/// A run whose command is three processes in separate sessions, without parents, which ignore every signal.
#[track_caller]
fn stubborn(run: Dlock, inherited_lock: &InheritedLock) -> Running {
    let pids = run.place().arg("pids");
    let mut run = run.probe(["--inherited-lock", inherited_lock.path(), "tree", "3", &pids]).spawn();
    run.await_ready();
    run
}

/// A run whose command goes on after SIGTERM until it is [let go](let_go), so that its hold lasts until then.
#[track_caller]
fn lingering(run: Dlock, inherited_lock: &InheritedLock) -> Running {
    let rule = format!("leave:{}=0", run.place().arg("go"));
    let mut run = run.probe(["--inherited-lock", inherited_lock.path(), "signals", &rule]).spawn();
    run.await_ready();
    run
}

/// Ends the command of a run that is [`lingering`].
fn let_go(run: &Running) {
    run.place().write("go", "");
}

fn host() -> String {
    nix::unistd::gethostname().unwrap().into_string().unwrap()
}

fn user() -> String {
    nix::unistd::User::from_uid(nix::unistd::geteuid()).unwrap().unwrap().name
}

/// Asserts that the lock was released by its holder, without a message.
#[track_caller]
fn assert_ended(output: &Output) {
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""), "{}", output.stdout);
    assert!(output.stdout.ends_with(": that hold has ended\n"), "{}", output.stdout);
}

/// Asserts that the run was stopped because its lock `name` was broken.
#[track_caller]
fn assert_broken(store: &Store, name: &str, run: &mut Running) {
    let (user, host, url) = (user(), host(), store.url());
    let line =
        format!("dlock: {name} on {url}: the lock was broken by {user}@{host}; the command was stopped\n");
    let output = run.wait();
    assert_eq!((output.exit, output.stderr), (Exit::Code(76), line));
}

/// Asserts that the lock is not free, and that exactly this was reported.
#[track_caller]
fn assert_not_yet(output: &Output, said: &str) {
    assert_eq!(output.exit, Exit::Code(75), "{output:?}");
    let line = output.stderr.strip_prefix("dlock: ").unwrap_or_else(|| panic!("{output:?}"));
    assert_eq!(without_times(line), format!("{said}\n"));
}

/// A text without the parts that differ between runs: `for 12s`, `in 24s`, and the pid of a dlock.
fn without_times(text: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in text.split(' ') {
        let number = word.trim_end_matches(|c: char| ",;:)\n".contains(c));
        let end = &word[number.len()..];
        let is_time =
            number.starts_with(|c: char| c.is_ascii_digit()) && number.ends_with(|c: char| "smh".contains(c));
        match words.last().map(String::as_str) {
            Some("for" | "in" | "another" | "with" | "TIME,") if is_time => words.push(format!("TIME{end}")),
            // `1m 30s`
            Some("TIME") if is_time => *words.last_mut().unwrap() = format!("TIME{end}"),
            Some("(pid") => words.push(format!("PID{end}")),
            _ => words.push(word.to_owned()),
        }
    }
    words.join(" ")
}

/// Makes a holder appear to live on another host, so that it cannot be continued from here.
#[track_caller]
fn pretend_other_host(store: &Store) {
    let space = store.space();
    let members = space.command(&["KEYS", &format!("dlock#member:{{{}}}:*", space.key("x"))]).texts();
    let [member] = members.as_slice() else { panic!("one member: {members:?}") };
    let text = space.command(&["GET", member]).text();
    let said: serde_json::Value = serde_json::from_str(&text).unwrap();
    let moved = text.replace(said["identity"]["boot"].as_str().unwrap(), "another");
    assert_ne!(moved, text);
    assert_eq!(space.command(&["SET", member, &moved, "KEEPTTL"]), Value::Text("OK".into()));
}

//! `dlock status`: holders, waiters and history.

mod cost;
mod foreign;
mod history;
mod hostile;
mod listing;
mod output;
mod overdue;
mod prometheus;
mod refused;
mod stale;
mod watch;

use crate::support::dlock::Dlock;
use crate::support::running::{Exit, Running};
use crate::support::store::Store;
use serde_json::Value;
use std::process::Stdio;

/// `dlock status` on this store.
pub fn status(store: &Store) -> Dlock {
    store.place.bare().args(["status", "--backend", store.url()])
}

/// The one object that `dlock status --json` prints.
#[track_caller]
fn seen<const N: usize>(store: &Store, args: [&str; N]) -> Value {
    let output = status(store).arg("--json").args(args).output();
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
    parse(&output.stdout)
}

/// One JSON object on one line.
#[track_caller]
pub fn parse(text: &str) -> Value {
    assert!(text.ends_with('\n') && text.lines().count() == 1, "{text:?}");
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The only lock that `dlock status --json` shows.
#[track_caller]
fn the_lock<const N: usize>(store: &Store, args: [&str; N]) -> Value {
    let mut seen = seen(store, args);
    assert_eq!(seen["locks"].as_array().map(Vec::len), Some(1), "{seen}");
    seen["locks"][0].take()
}

/// The names of the locks that are shown.
#[track_caller]
fn names<const N: usize>(store: &Store, args: [&str; N]) -> Vec<String> {
    let seen = seen(store, args);
    let locks = seen["locks"].as_array().unwrap().iter();
    locks.map(|lock| lock["name"].as_str().unwrap().to_owned()).collect()
}

/// A run that holds its lock until its standard input is closed, and prints its fencing token.
#[track_caller]
pub fn holding(run: Dlock) -> Running {
    let mut run = run.stdin(Stdio::piped()).sh("echo $DLOCK_FENCING_TOKEN; echo ready; exec cat").spawn();
    run.await_ready();
    run
}

/// The fencing token that the command of such a run has.
fn fencing(run: &Running) -> u64 {
    run.stdout().lines().next().unwrap().parse().unwrap()
}

/// A run that waits for its lock for ever.
#[track_caller]
fn waiting(run: Dlock) -> Running {
    let mut run = run.args(["-v", "--wait", "forever"]).sh("true").spawn();
    run.await_stderr("waiting");
    run
}

fn host() -> String {
    nix::unistd::gethostname().unwrap().into_string().unwrap()
}

fn user() -> String {
    nix::unistd::User::from_uid(nix::unistd::geteuid()).unwrap().unwrap().name
}

/// The cells of a line of a table.
fn cells(line: &str) -> Vec<&str> {
    line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
}

//! `--any`: the first of several locks that becomes free.

use super::queue_of_runs::{assert_served_in_order, wall_clock, with_time};
use crate::stores::conformance::client::Client;
use crate::stores::conformance::rig::Rig;
use crate::support::SOON;
use crate::support::dlock::{BINARY, Dlock};
use crate::support::running::{Exit, Running};
use crate::support::wait::until;
use nix::sys::signal::Signal;
use std::process::Stdio;
use std::time::Duration;

/// `dlock run` on any one of these names.
fn run_on_any(rig: &dyn Rig, names: &str) -> Dlock {
    rig.run().no_name().args(["--any", names])
}

/// The same on this name alone.
fn run_on(rig: &dyn Rig, name: &str) -> Dlock {
    rig.run().name(name)
}

/// A run that says which lock it has, and holds it until its standard input is closed.
fn holding(run: Dlock) -> Running {
    run.args(["-v", "--wait", "forever"]).stdin(Stdio::piped()).sh("echo has $DLOCK_NAME; exec cat").spawn()
}

/// A run that has this lock, and holds it until its standard input is closed.
fn holder(rig: &dyn Rig, name: &str) -> Running {
    let mut run = holding(run_on(rig, name));
    run.await_stdout(&format!("has {name}\n"));
    run
}

/// Ends a run that holds a lock.
#[track_caller]
fn let_end(mut run: Running) {
    drop(run.take_stdin());
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stderr);
}

/// They are free, and nothing is left of anyone.
#[track_caller]
fn assert_no_traces(rig: &dyn Rig, names: &[&str]) {
    for name in names {
        assert_eq!(rig.traces(name), [""; 0], "{name}");
    }
}

pub async fn the_first_free_lock_is_taken(rig: &mut dyn Rig) {
    let x = holder(rig, "x");
    let mut run = holding(run_on_any(rig, "z,y,x"));
    // In the order of their bytes.
    run.await_stdout("has y\n");
    Client::new(rig, "y").refused().await;
    Client::new(rig, "z").acquire().await;
    for name in ["x", "y", "z"] {
        assert_eq!(rig.waiters(name), 0, "{name}");
    }
    let_end(run);
    Client::new(rig, "y").acquire().await;
    let_end(x);
}

pub async fn without_waiting_each_is_tried_once(rig: &mut dyn Rig) {
    let holders = ["x", "y"].map(|name| holder(rig, name));
    let output = run_on_any(rig, "x,y").sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(75), ""), "{}", output.stderr);
    let line = output.stderr.as_str();
    assert!(line.starts_with("dlock: none of x, y is free: x is held by "), "{line}");
    assert!(line.ends_with("; not waiting, see --wait\n") && line.lines().count() == 1, "{line}");
    assert_eq!((rig.waiters("x"), rig.waiters("y")), (0, 0));
    holders.into_iter().for_each(let_end);
    assert_no_traces(rig, &["x", "y"]);
}

pub async fn a_run_waits_in_all_queues_and_leaves_the_others(rig: &mut dyn Rig) {
    let [x, y] = ["x", "y"].map(|name| holder(rig, name));
    let mut run = holding(run_on_any(rig, "x,y"));
    run.await_stderr("dlock: none of x, y is free: x is held by ");
    assert_eq!((rig.waiters("x"), rig.waiters("y")), (1, 1));
    let_end(y);
    run.await_stdout("has y\n");
    assert_eq!((rig.waiters("x"), rig.waiters("y")), (0, 0), "before the command starts");
    let_end(run);
    let_end(x);
    assert_no_traces(rig, &["x", "y"]);
}

pub async fn an_earlier_waiter_for_one_of_them_is_served_first(rig: &mut dyn Rig) {
    let [x, y] = ["x", "y"].map(|name| holder(rig, name));
    let wait = |run: Dlock, what: &str| {
        let text = format!("echo {} >>log", with_time(what));
        let mut run = run.args(["-v", "--wait", "forever"]).sh(&text).spawn();
        run.await_stderr("; waiting at position ");
        run
    };
    let mut earlier = wait(run_on(rig, "y"), "earlier");
    let mut any = wait(run_on_any(rig, "x,y"), "any");
    let mut later = wait(run_on(rig, "y"), "later");
    assert_eq!((rig.waiters("x"), rig.waiters("y")), (1, 3));
    let released = wall_clock();
    let_end(y);
    for run in [&mut earlier, &mut any, &mut later] {
        let output = run.wait();
        assert_eq!(output.exit, Exit::Code(0), "{}", output.stderr);
    }
    assert_served_in_order(rig, &["earlier", "any", "later"], released);
    let_end(x);
    assert_no_traces(rig, &["x", "y"]);
}

/// The waiters behind it are served while it holds only one of them.
pub async fn of_two_released_in_the_same_instant_one_is_given_back(rig: &mut dyn Rig) {
    let mut both = rig.run().no_name().args(["x", "y"]).stdin(Stdio::piped());
    both = both.sh("echo ready; exec cat");
    let mut both = both.spawn();
    both.await_ready();
    let mut any = holding(run_on_any(rig, "x,y"));
    any.await_stderr("; waiting at position ");
    let [mut x, mut y] = ["x", "y"].map(|name| {
        let mut run = holding(run_on(rig, name));
        run.await_stderr("; waiting at position ");
        run
    });
    // Both notifications are there when it is continued.
    any.signal(Signal::SIGSTOP);
    drop(both.take_stdin());
    assert_eq!(both.wait().exit, Exit::Code(0));
    any.signal(Signal::SIGCONT);
    let has = |run: &Running| run.stdout().starts_with("has ");
    // It may have lost its turns meanwhile, on a busy machine.
    until(2 * SOON, "two holders of two locks", || {
        [&any, &x, &y].into_iter().filter(|run| has(run)).count() == 2
    });
    let waits = if has(&any) { usize::from(has(&x)) + 2 * usize::from(has(&y)) } else { 3 };
    match waits {
        // It has the one that the other does not have.
        1 => any.await_stdout("has y\n"),
        2 => any.await_stdout("has x\n"),
        _ => String::new(),
    };
    for run in [&mut any, &mut x, &mut y] {
        drop(run.take_stdin());
    }
    for run in [&mut any, &mut x, &mut y] {
        let output = run.wait_within(2 * SOON);
        assert_eq!(output.exit, Exit::Code(0), "{}", output.stderr);
    }
    assert_no_traces(rig, &["x", "y"]);
}

pub async fn a_wait_for_any_that_ends_leaves_no_trace(rig: &mut dyn Rig) {
    let holders = ["x", "y"].map(|name| holder(rig, name));
    let output = run_on_any(rig, "x,y").args(["--wait", "200ms"]).sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(75), ""));
    assert!(output.elapsed >= Duration::from_millis(200), "{:?}", output.elapsed);
    let line = output.stderr.as_str();
    assert!(line.starts_with("dlock: none of x, y is free: x is held by "), "{line}");
    assert!(line.contains("; gave up after ") && line.lines().count() == 1, "{line}");
    assert_eq!((rig.waiters("x"), rig.waiters("y")), (0, 0));
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut run = holding(run_on_any(rig, "x,y"));
        run.await_stderr("; waiting at position ");
        assert_eq!((rig.waiters("x"), rig.waiters("y")), (1, 1));
        run.signal(signal);
        assert_eq!(run.wait().outcome().0, Exit::by(signal));
        assert_eq!((rig.waiters("x"), rig.waiters("y")), (0, 0));
    }
    holders.into_iter().for_each(let_end);
    assert_no_traces(rig, &["x", "y"]);
}

/// Although another one is free, and comes first.
pub async fn a_nested_run_enters_the_lock_of_its_outer_run(rig: &mut dyn Rig) {
    let inner = format!("'{BINARY}' run -b '{}' --any x,y --", rig.backend());
    let output = run_on(rig, "y").sh(&format!("{inner} sh -c 'echo $DLOCK_NAME'")).output();
    assert_eq!(output.outcome(), (Exit::Code(0), "y\n", ""));
    assert_no_traces(rig, &["x", "y"]);
}

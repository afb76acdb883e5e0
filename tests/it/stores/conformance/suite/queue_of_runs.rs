//! The queue as seen by users of `dlock run`.

use super::exclusion::{holding, let_end};
use super::queue::A_MOMENT;
use crate::stores::conformance::client::Client;
use crate::stores::conformance::rig::Rig;
use crate::support::dlock::Dlock;
use crate::support::running::{Exit, Running};
use dlock::backend::{Attempt, CLAIM_WITHIN};
use nix::sys::signal::Signal;
use std::time::{Duration, Instant, SystemTime};

/// A run that waits at this queue position, and writes `what` into the log when it has the lock.
fn waiting_at(rig: &dyn Rig, place: usize, what: &str) -> Running {
    waiting_with_ttl(rig, "30s", place, what)
}

/// The same with a lease of this length.
pub fn waiting_with_ttl(rig: &dyn Rig, ttl: &str, place: usize, what: &str) -> Running {
    let mut run =
        rig.run().args(["-v", "--wait", "forever", "--ttl", ttl]).sh(&format!("echo {what} >>log")).spawn();
    run.await_stderr(&format!("; waiting at position {place}\n"));
    run
}

/// Milliseconds since 1970, as `date` counts them.
pub fn wall_clock() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis()
}

/// What a run writes into the log for [`assert_served_in_order`].
pub fn with_time(name: &str) -> String {
    format!("{name} $(date +%s%3N)")
}

/// Asserts that the runs with these names, which the log has with their times, were served in this order after a release
/// that was not before the given time. One that is too slow, on a busy machine, loses its turn and waits again, at the
/// end.
pub fn assert_served_in_order(rig: &dyn Rig, names: &[&str], released: u128) {
    let log = rig.place().read("log");
    let (mut line, mut free_since) = (names.to_vec(), released);
    let mut late: Vec<&str> = Vec::new();
    for entry in log.lines() {
        let (name, time) = entry.split_once(' ').unwrap_or_else(|| panic!("{log}"));
        let time: u128 = time.parse().unwrap_or_else(|_| panic!("{log}"));
        let ahead = line.iter().position(|next| *next == name).unwrap_or(line.len());
        let has_passed = time.saturating_sub(free_since) >= rig.turn_lasts().as_millis();
        assert!(ahead == 0 || has_passed && !rig.has_turns_by_order(), "{name} was too early in\n{log}");
        late.extend(line.drain(..ahead));
        if line.is_empty() {
            let place = late.iter().position(|next| *next == name);
            late.remove(place.unwrap_or_else(|| panic!("{name} in\n{log}")));
        } else {
            line.remove(0);
        }
        free_since = time;
    }
    assert!(line.is_empty() && late.is_empty(), "{line:?} and {late:?} are missing in\n{log}");
}

/// A run without waiting.
fn taking_now(rig: &dyn Rig) -> Dlock {
    rig.run().arg("--no-wait").sh("echo ran")
}

pub async fn runs_are_served_first_come_first_served(rig: &mut dyn Rig) {
    let holder = holding(rig);
    let names = ["first", "second", "third", "fourth", "fifth"];
    let waiting = |(before, name): (usize, &&str)| waiting_at(rig, before + 1, &with_time(name));
    let runs: Vec<Running> = names.iter().enumerate().map(waiting).collect();
    assert_eq!(rig.waiters("x"), names.len());
    let released = wall_clock();
    let_end(holder);
    for mut run in runs {
        assert_eq!(run.wait().exit, Exit::Code(0));
    }
    assert_served_in_order(rig, &names, released);
    assert_eq!(rig.traces("x"), [""; 0]);
}

/// A free but offered lock is not a reason to give up, as the offer may go unclaimed.
pub async fn a_run_without_waiting_gets_an_unclaimed_lock(rig: &mut dyn Rig) {
    let (mut holder, mut silent) = (Client::new(rig, "x"), Client::new(rig, "x"));
    holder.acquire().await;
    silent.queue().await;
    holder.release().await;
    let output = taking_now(rig).output();
    if rig.has_turns_by_order() {
        // It may be claimed as long as the lease of the waiter lasts.
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(75), ""));
        let why = " is free, but other waiters are ahead; not waiting, see --wait\n";
        return assert!(output.stderr.ends_with(why), "{}", output.stderr);
    }
    assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
}

pub async fn a_run_without_waiting_gives_up_when_the_turn_is_claimed(rig: &mut dyn Rig) {
    let (mut holder, mut called) = (Client::new(rig, "x"), Client::new(rig, "x").elsewhere());
    holder.acquire().await;
    called.queue().await;
    let released = Instant::now();
    holder.release().await;
    let mut run = taking_now(rig).spawn();
    // Time to find the offer; if that is too short, or much too long, the outcome is just as consistent.
    tokio::time::sleep(Duration::from_millis(150)).await;
    let claimed = called.wait_in_line().await;
    let (has_passed, took) = (rig.may_have_passed(released), released.elapsed());
    let output = run.wait();
    match claimed {
        // The run had the turn that had passed, and has ended.
        Attempt::Granted(_) if has_passed && output.exit == Exit::Code(0) => {
            assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
        }
        Attempt::Granted(_) => {
            assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(75), ""));
            let is_held = output.stderr.starts_with("dlock: x is held by elsewhere (pid ");
            // It does not wait longer for a claim where the turn does not pass.
            let is_late = rig.has_turns_by_order() && took >= CLAIM_WITHIN * 2;
            let why = " is free, but other waiters are ahead; not waiting, see --wait\n";
            let has_left = is_late && output.stderr.ends_with(why);
            assert!(is_held || has_left, "{}", output.stderr);
        }
        _ => assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", "")),
    }
}

/// F41
pub async fn a_killed_waiting_run_blocks_no_other(rig: &mut dyn Rig) {
    let mut holder = Client::new(rig, "x").elsewhere();
    holder.acquire().await;
    // Where its turn cannot be passed on, it ends with its lease.
    let (ttl, delay) = match rig.has_turns_by_order() {
        true => (rig.ttl(5), rig.end_of_lease(Duration::from_secs(5))),
        false => ("30s".to_owned(), rig.turn_passes()),
    };
    let mut head = waiting_with_ttl(rig, &ttl, 1, "killed");
    let mut next = waiting_at(rig, 2, "next");
    head.signal(Signal::SIGKILL);
    assert_eq!(head.wait().exit, Exit::by(Signal::SIGKILL));
    let released = Instant::now();
    holder.release().await;
    assert_eq!(next.wait().exit, Exit::Code(0));
    assert!(released.elapsed() < delay + A_MOMENT, "after {:?}", released.elapsed());
    assert_eq!(rig.place().read("log"), "next\n");
    assert_eq!(rig.traces("x"), [""; 0]);
}

pub async fn an_expired_wait_leaves_no_trace(rig: &mut dyn Rig) {
    let holder = holding(rig);
    let output = rig.run().args(["--wait", "200ms"]).sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(75), ""));
    assert!(output.elapsed >= Duration::from_millis(200), "{:?}", output.elapsed);
    let line = output.stderr.as_str();
    assert!(line.starts_with("dlock: x is held by ") && line.contains("; gave up after "), "{line}");
    assert_eq!((line.lines().count(), rig.waiters("x")), (1, 0), "{line}");
    let_end(holder);
    assert_eq!(rig.traces("x"), [""; 0]);
}

/// S05
pub async fn a_signal_ends_a_wait_and_leaves_no_trace(rig: &mut dyn Rig) {
    let mut holder = Client::new(rig, "x").elsewhere();
    holder.acquire().await;
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut run = waiting_at(rig, 1, "ran");
        run.signal(signal);
        assert_eq!(run.wait().exit, Exit::by(signal));
        assert_eq!(rig.waiters("x"), 0);
        assert_eq!(rig.place().read("log"), "");
    }
    holder.assert_held().await;
    holder.release().await;
    assert_eq!(rig.traces("x"), [""; 0]);
}

pub async fn a_run_waits_for_a_foreign_client(rig: &mut dyn Rig) {
    assert!(rig.foreign_lock("x", None));
    let mut first = waiting_at(rig, 1, &with_time("first"));
    let mut second = waiting_at(rig, 2, &with_time("second"));
    let released = wall_clock();
    rig.foreign_unlock("x");
    assert_eq!((first.wait().exit, second.wait().exit), (Exit::Code(0), Exit::Code(0)));
    assert_served_in_order(rig, &["first", "second"], released);
    assert!(rig.is_free_to_others("x"));
}

//! The queue as seen by users of `dlock run`.

use super::exclusion::{holding, let_end};
use super::queue::A_MOMENT;
use crate::stores::conformance::client::Client;
use crate::stores::conformance::rig::Rig;
use crate::support::dlock::Dlock;
use crate::support::running::{Exit, Running};
use dlock::backend::Attempt;
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

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

/// A run without waiting.
fn taking_now(rig: &dyn Rig) -> Dlock {
    rig.run().arg("--no-wait").sh("echo ran")
}

pub async fn runs_are_served_first_come_first_served(rig: &mut dyn Rig) {
    let holder = holding(rig);
    let names = ["first", "second", "third", "fourth", "fifth"];
    let runs: Vec<Running> =
        names.iter().enumerate().map(|(before, what)| waiting_at(rig, before + 1, what)).collect();
    assert_eq!(rig.waiters("x"), names.len());
    let_end(holder);
    for mut run in runs {
        assert_eq!(run.wait().exit, Exit::Code(0));
    }
    assert_eq!(rig.place().read("log").lines().collect::<Vec<_>>(), names);
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
    holder.release().await;
    let mut run = taking_now(rig).spawn();
    // Time to find the offer; if that is too short, or much too long, the outcome is just as consistent.
    tokio::time::sleep(Duration::from_millis(150)).await;
    let claimed = called.wait_in_line().await;
    let output = run.wait();
    match claimed {
        Attempt::Granted(_) => {
            assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(75), ""));
            assert!(output.stderr.starts_with("dlock: x is held by elsewhere (pid "), "{}", output.stderr);
        }
        _ => assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", "")),
    }
}

/// F41
pub async fn a_killed_waiting_run_blocks_no_other(rig: &mut dyn Rig) {
    let mut holder = Client::new(rig, "x").elsewhere();
    holder.acquire().await;
    // Where its turn cannot be passed on, it ends with its lease.
    let mut head = waiting_with_ttl(rig, "2s", 1, "killed");
    let delay =
        if rig.has_turns_by_order() { rig.end_of_lease(Duration::from_secs(2)) } else { Duration::ZERO };
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
    let mut first = waiting_at(rig, 1, "first");
    let mut second = waiting_at(rig, 2, "second");
    rig.foreign_unlock("x");
    assert_eq!((first.wait().exit, second.wait().exit), (Exit::Code(0), Exit::Code(0)));
    assert_eq!(rig.place().read("log"), "first\nsecond\n");
    assert!(rig.is_free_to_others("x"));
}

//! A waiter gets a signal while its store does not reply, and then loses its guard or its parked command.

use super::fixture::Queue;
use crate::support::SOON;
use crate::support::process;
use crate::support::proxy::{Proxy, Way};
use crate::support::redis::Redis;
use crate::support::running::{Exit, Running};
use crate::support::store::Store;
use crate::support::wait::until;
use nix::sys::signal::Signal;
use std::time::Duration;

/// Two seconds are promised; the rest is for a busy machine.
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// What happens to a waiter.
#[derive(Debug, Clone, Copy)]
enum Interruption {
    Term,
    KillGuard,
    StopGuard,
    KillCommand,
}
use Interruption::{KillCommand, KillGuard, StopGuard, Term};

/// A waiter whose first request is in flight, with its two other processes.
struct Target {
    run: Running,
    guard: i32,
    command: i32,
}

impl Target {
    /// Starts one behind a proxy that lets no reply through.
    fn behind(proxy: &Proxy, queue: &Queue) -> Self {
        let before = proxy.flights().len();
        let run = queue.passing(queue.behind(proxy.port()).run(), "target").spawn();
        until(SOON, "a question on its way", || proxy.flights().len() > before);
        let (guard, command) = (run.guard(), run.command());
        Self { run, guard, command }
    }

    fn interrupt(&self, interruption: Interruption) {
        match interruption {
            Term => {
                self.run.signal(Signal::SIGTERM);
                until(SOON, "dlock to read the signal", || {
                    let pending = process::signal_set(self.run.pid(), "ShdPnd");
                    pending.is_none_or(|pending| pending & (1 << (Signal::SIGTERM as u64 - 1)) == 0)
                });
            }
            KillGuard => process::send(self.guard, Signal::SIGKILL),
            StopGuard => process::send(self.guard, Signal::SIGSTOP),
            KillCommand => process::send(self.command, Signal::SIGKILL),
        }
    }

    /// Asserts that it ends, and that nothing of it is left. SIGTERM determines how, unless the loss of another process
    /// may have been noticed first.
    #[track_caller]
    fn assert_gone(mut self, interruptions: &[Interruption]) {
        let output = self.run.wait_within(GONE_WITHIN);
        let by_signal = output.exit == Exit::by(Signal::SIGTERM);
        let by_loss = output.exit == Exit::Code(70) && !matches!(interruptions[0], Term);
        assert!(by_signal || by_loss, "{interruptions:?}: {output:?}");
        self.run.marker().await_end();
    }
}

const INTERRUPTIONS: [&[Interruption]; 8] = [
    &[Term, KillGuard],
    &[Term, KillCommand],
    &[Term, StopGuard],
    &[Term, KillCommand, KillGuard],
    &[Term, StopGuard, KillCommand, KillGuard],
    &[KillGuard, Term],
    &[KillCommand, Term],
    &[StopGuard, KillGuard, Term],
];

#[test]
fn a_terminated_waiter_ends_whatever_happens_to_its_guard() {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.port());
    let queue = Queue::of(Store::on(&redis)).ttl("2s");
    proxy.hold(Way::Down);
    let twice: &[Interruption] = &[Term, KillGuard, Term];
    for interruptions in INTERRUPTIONS.into_iter().chain([twice]) {
        let target = Target::behind(&proxy, &queue);
        interruptions.iter().for_each(|interruption| target.interrupt(*interruption));
        target.assert_gone(interruptions);
    }
    // What its unanswered requests acquired ends with its lease.
    until(SOON, "the end of all leases", || !queue.store.is_held() && queue.pids().is_empty());
    assert_eq!(queue.order(), [""; 0]);
}

#[test]
fn a_grant_that_arrives_during_termination_is_released() {
    let redis = Redis::start();
    let queue = Queue::of(Store::on(&redis)).ttl("60s");
    // The server has the script cached, so the first request is the claim.
    assert_eq!(queue.store.run().command(["true"]).output().exit, Exit::Code(0));
    for interruptions in INTERRUPTIONS {
        let proxy = Proxy::to(redis.port());
        proxy.hold(Way::Down);
        let target = Target::behind(&proxy, &queue);
        until(SOON, "a grant on its way", || queue.store.is_held());
        interruptions.iter().for_each(|interruption| target.interrupt(*interruption));
        proxy.heal();
        target.assert_gone(interruptions);
        assert!(!queue.store.is_held(), "{interruptions:?}");
    }
    assert_eq!(queue.order(), [""; 0]);
    queue.assert_nothing_left();
}

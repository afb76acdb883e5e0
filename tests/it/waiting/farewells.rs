//! A waiter is told to end while its store does not answer, and then loses its guard or its parked command.

use super::scene::Line;
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
const GONE_WITHIN: Duration = Duration::from_secs(4);

/// What happens to a waiter.
#[derive(Debug, Clone, Copy)]
enum Blow {
    Term,
    KillGuard,
    StopGuard,
    KillCommand,
}
use Blow::{KillCommand, KillGuard, StopGuard, Term};

/// A waiter whose first question is on its way, with its two other processes.
struct Target {
    run: Running,
    guard: i32,
    command: i32,
}

impl Target {
    /// Starts one behind a proxy that lets no answer through.
    fn behind(proxy: &Proxy, line: &Line) -> Self {
        let before = proxy.flights().len();
        let run = line.passing(line.behind(proxy.port()).run(), "target").spawn();
        until(SOON, "a question on its way", || proxy.flights().len() > before);
        let (guard, command) = (run.guard(), run.command());
        Self { run, guard, command }
    }

    fn strike(&self, blow: Blow) {
        match blow {
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

    /// Asserts that it ends, and that nothing of it is left. SIGTERM decides how, unless the loss of another process may
    /// have been noticed first.
    #[track_caller]
    fn assert_gone(mut self, blows: &[Blow]) {
        let output = self.run.wait_within(GONE_WITHIN);
        let by_signal = output.exit == Exit::by(Signal::SIGTERM);
        let by_loss = output.exit == Exit::Code(70) && !matches!(blows[0], Term);
        assert!(by_signal || by_loss, "{blows:?}: {output:?}");
        until(SOON, "the end of both halves", || self.run.marker().bearers().is_empty());
    }
}

const BLOWS: [&[Blow]; 8] = [
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
fn one_told_to_end_is_gone_whatever_becomes_of_its_other_half() {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.port());
    let line = Line::of(Store::on(&redis)).ttl("2s");
    proxy.hold(Way::Down);
    let twice: &[Blow] = &[Term, KillGuard, Term];
    for blows in BLOWS.into_iter().chain([twice]) {
        let target = Target::behind(&proxy, &line);
        blows.iter().for_each(|blow| target.strike(*blow));
        target.assert_gone(blows);
    }
    // What its questions took, and nobody has heard of, ends with its lease.
    until(SOON, "the end of all leases", || !line.store.is_held() && line.pids().is_empty());
    assert_eq!(line.order(), [""; 0]);
}

#[test]
fn a_grant_that_arrives_after_the_farewell_has_begun_is_given_back() {
    let redis = Redis::start();
    let line = Line::of(Store::on(&redis)).ttl("60s");
    // The server knows the script, so the first question is the claim.
    assert_eq!(line.store.run().command(["true"]).output().exit, Exit::Code(0));
    for blows in BLOWS {
        let proxy = Proxy::to(redis.port());
        proxy.hold(Way::Down);
        let target = Target::behind(&proxy, &line);
        until(SOON, "a grant on its way", || line.store.is_held());
        blows.iter().for_each(|blow| target.strike(*blow));
        proxy.heal();
        target.assert_gone(blows);
        assert!(!line.store.is_held(), "{blows:?}");
    }
    assert_eq!(line.order(), [""; 0]);
    line.assert_nothing_left();
}

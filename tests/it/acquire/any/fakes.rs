//! Many locks that are granted in the same instant.

use crate::acquire::Patient;
use crate::stores::conformance::rig::on_one_thread;
use crate::support::SOON;
use dlock::backend::{
    Again, Attempt, Backend, Busy, Change, Ending, Intent, Loss, Release, Renewal, Reply, StoreError,
    TryReply,
};
use dlock::clock::{Alarm, Moment};
use dlock::lease::acquire::{Patience, Wait, WaitContext};
use dlock::lease::acquire_all::Lock;
use dlock::lease::acquire_any::acquire_any;
use dlock::lease::validity::Terms;
use dlock::lock::{Claim, Grant, LockName, Record, Token};
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// A store of one lock: busy for a claim that does not wait, and granted to the first one that does.
struct Fake {
    state: Rc<State>,
    script: Script,
}

/// What the store of a lock does beside that.
#[derive(Clone, Copy, Default)]
struct Script {
    /// How long a release takes.
    release: Duration,
    /// It grants the lock, but does not reply.
    hangs: bool,
    /// It grants nothing.
    denies: bool,
    /// The first renewal finds the lock lost.
    loses: bool,
    /// The first release fails.
    fails: bool,
}

/// The claims that hold a lock, and the numbers of requests.
#[derive(Default)]
struct State {
    holders: Cell<usize>,
    renewals: Cell<usize>,
    releases: Cell<usize>,
}

impl Backend for Fake {
    fn connect(&mut self) -> TryReply<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn try_acquire<'a>(&'a mut self, claim: &'a Claim, intent: Intent) -> TryReply<'a, Attempt> {
        let busy = Busy { again: Again::Within(SOON), ..Busy::default() };
        Box::pin(async move {
            if intent == Intent::TakeNow {
                return Ok(Attempt::Busy(busy));
            }
            if self.script.denies {
                return Err(StoreError::Denied("no".to_owned()));
            }
            self.state.holders.update(|holders| holders + 1);
            if self.script.hangs {
                std::future::pending::<()>().await;
            }
            Ok(Attempt::Granted(Grant { fencing: None, lease: Some(claim.ttl), slot: None, undated: None }))
        })
    }

    fn renew<'a>(&'a mut self, claim: &'a Claim, _: Duration) -> TryReply<'a, Renewal> {
        Box::pin(async {
            self.state.renewals.update(|renewals| renewals + 1);
            if self.script.loses && self.state.renewals.get() == 1 {
                self.state.holders.set(0);
                return Ok(Renewal::Lost(Loss::Gone));
            }
            Ok(Renewal::Held { lease: Some(claim.ttl), revoked: None })
        })
    }

    fn release<'a>(&'a mut self, _: &'a Claim, _: Duration, _: Ending<'a>) -> TryReply<'a, Release> {
        Box::pin(async {
            self.state.releases.update(|releases| releases + 1);
            if self.script.fails && self.state.releases.get() == 1 {
                return Err(StoreError::unreachable("down"));
            }
            tokio::time::sleep(self.script.release).await;
            self.state.holders.update(|holders| holders.saturating_sub(1));
            Ok(Release::Released)
        })
    }

    fn add_record<'a>(&'a mut self, _: &'a LockName, _: &'a Record) -> TryReply<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    fn changed(&mut self) -> Reply<'_, Change> {
        Box::pin(std::future::pending())
    }
}

/// So many that some of them are granted after the first one, although whether a waiter first sees its grant or the end of
/// the wait is a matter of chance.
const FAKES: usize = 40;

/// Longer than a lease.
const LONG: Duration = Duration::from_millis(1100);

/// How long dlock waits for a store after a signal.
const LEAVE_WITHIN: Duration = Duration::from_millis(1300);

/// Acquires one of the fakes, cancelled after this time, if there is one, with as long to leave as dlock has. Returns their
/// states and the number of the one that is held. Its lease has been extended to at least its length from now, within a
/// margin.
fn acquire_any_fake(scripts: &[Script], cancel_after: Option<Duration>) -> (Vec<Rc<State>>, Option<usize>) {
    let terms = Terms {
        ttl: Duration::from_secs(1),
        grace: Duration::from_millis(100),
        connect_timeout: Duration::from_secs(5),
    };
    let states: Vec<Rc<State>> = scripts.iter().map(|_| Rc::default()).collect();
    let lock = |(number, script): (usize, &Script)| {
        let name = LockName::new(&number.to_string()).unwrap();
        let claim = Claim::new(name, Token::random(), terms.ttl);
        Lock::new(claim, Box::new(Fake { state: Rc::clone(&states[number]), script: *script }))
    };
    let locks: Vec<Lock> = scripts.iter().enumerate().map(lock).collect();
    let held = on_one_thread(async {
        let limits = Patience { wait: Wait::Forever, retry: Duration::ZERO }.from(Moment::now());
        let alarm = Alarm::new().unwrap();
        let give_up = CancellationToken::new();
        let context = WaitContext {
            give_up: &give_up,
            check_held: &watch::Sender::new(()),
            alarm: &alarm,
            observer: &Patient,
        };
        let leave = async {
            match cancel_after {
                Some(after) => tokio::time::sleep(after).await,
                None => std::future::pending().await,
            }
            give_up.cancel();
            tokio::time::sleep(LEAVE_WITHIN).await;
        };
        let granted = tokio::select! {
            granted = acquire_any(&locks, &limits, &terms, &context) => granted.ok(),
            () = leave => None,
        };
        let (held, keepers) = granted?;
        drop(keepers);
        let index: usize = held.name().as_str().parse().unwrap();
        assert_eq!(states[index].holders.get(), 1);
        assert!(held.lease_state.validity.is_some_and(|validity| Moment::now() < validity.start_before));
        Some(index)
    });
    (states, held)
}

fn holders(states: &[Rc<State>]) -> usize {
    states.iter().map(|state| state.holders.get()).sum()
}

#[test]
fn what_is_granted_after_the_first_lock_is_given_back() {
    let (states, held) = acquire_any_fake(&[Script::default(); FAKES], None);
    assert!(held.is_some());
    assert_eq!(holders(&states), 1);
}

/// Leaving the queues may take longer than a lease.
#[test]
fn the_first_lock_is_renewed_while_the_others_are_given_back() {
    let began = Instant::now();
    let (states, held) = acquire_any_fake(&[Script { release: LONG, ..Script::default() }; FAKES], None);
    assert!(held.is_some());
    assert!(began.elapsed() >= LONG, "{:?}", began.elapsed());
    assert_eq!(holders(&states), 1);
    assert!(states.iter().any(|state| state.renewals.get() > 0));
}

/// dlock does not live long enough to release it once the others are given back.
#[test]
fn the_first_lock_is_given_back_at_once_if_a_signal_comes_meanwhile() {
    let script = Script { release: Duration::from_secs(2), ..Script::default() };
    let (states, held) = acquire_any_fake(&[script; FAKES], Some(Duration::from_millis(100)));
    assert_eq!(held, None);
    assert!(holders(&states) > 0);
    for state in states.iter().filter(|state| state.holders.get() > 0) {
        assert!(state.releases.get() > 0);
    }
}

/// The run goes on, and would keep the other lock until its lease ends.
#[test]
fn what_was_granted_without_a_reply_is_given_back() {
    for fails in [false, true] {
        let hangs = Script { hangs: true, fails, ..Script::default() };
        let (states, held) = acquire_any_fake(&[hangs, hangs, Script::default()], None);
        assert_eq!(held, Some(2));
        assert_eq!(holders(&states), 1, "{fails}");
    }
}

#[test]
fn a_lock_that_is_refused_after_another_was_granted_changes_nothing() {
    let mut scripts = [Script { denies: true, ..Script::default() }; FAKES];
    scripts[0] = Script::default();
    let (states, held) = acquire_any_fake(&scripts, None);
    assert_eq!(held, Some(0));
    assert_eq!(holders(&states), 1);
}

#[test]
fn a_lock_that_is_lost_while_the_others_are_given_back_is_replaced() {
    let (states, held) =
        acquire_any_fake(&[Script { release: LONG, loses: true, ..Script::default() }; FAKES], None);
    assert!(held.is_some());
    assert_eq!(holders(&states), 1);
}

//! Many locks that are granted in the same instant.

use crate::stores::conformance::rig::on_one_thread;
use crate::support::SOON;
use dlock::backend::{
    Again, Attempt, Backend, Busy, Change, Ending, Intent, Release, Renewal, Reply, TryReply,
};
use dlock::clock::{Alarm, Moment};
use dlock::lease::acquire::{Advice, Patience, Wait, WaitContext};
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
    /// The claims that hold it, and its renewals.
    state: Rc<State>,
    /// How long a release takes.
    release: Duration,
}

#[derive(Default)]
struct State {
    holders: Cell<usize>,
    renewals: Cell<usize>,
}

impl Backend for Fake {
    fn display(&self) -> &str {
        "fake:"
    }

    fn connect(&mut self) -> TryReply<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn try_acquire<'a>(&'a mut self, claim: &'a Claim, intent: Intent) -> TryReply<'a, Attempt> {
        let busy = Busy {
            holders: Vec::new(),
            more: 0,
            position: None,
            is_outside_queue: false,
            promised: false,
            again: Again::Within(SOON),
        };
        Box::pin(async move {
            if intent == Intent::TakeNow {
                return Ok(Attempt::Busy(busy));
            }
            self.state.holders.update(|holders| holders + 1);
            Ok(Attempt::Granted(Grant { fencing: None, lease: Some(claim.ttl), slot: None, undated: None }))
        })
    }

    fn renew<'a>(&'a mut self, claim: &'a Claim, _: Duration) -> TryReply<'a, Renewal> {
        Box::pin(async {
            self.state.renewals.update(|renewals| renewals + 1);
            Ok(Renewal::Held { lease: Some(claim.ttl), revoked: None })
        })
    }

    fn release<'a>(&'a mut self, _: &'a Claim, _: Duration, _: Ending<'a>) -> TryReply<'a, Release> {
        Box::pin(async {
            tokio::time::sleep(self.release).await;
            self.state.holders.update(|holders| holders - 1);
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

/// Acquires one of many fakes, all of which are granted in the same instant, and returns their states and how long that took.
/// The lease of the one that is held has been extended to at least its length from now, within a margin.
fn acquire_any_fake(release: Duration) -> (Vec<Rc<State>>, Duration) {
    let terms = Terms {
        ttl: Duration::from_secs(1),
        grace: Duration::from_millis(100),
        connect_timeout: Duration::from_secs(5),
    };
    let states: Vec<Rc<State>> = (0..FAKES).map(|_| Rc::default()).collect();
    let lock = |(number, state): (usize, &Rc<State>)| {
        let name = LockName::new(&number.to_string()).unwrap();
        let claim = Claim::new(name, Token::random(), terms.ttl);
        Lock::new(claim, Box::new(Fake { state: Rc::clone(state), release }))
    };
    let locks: Vec<Lock> = states.iter().enumerate().map(lock).collect();
    let began = Instant::now();
    on_one_thread(async {
        let limits = Patience { wait: Wait::Forever, retry: Duration::ZERO }.from(Moment::now());
        let alarm = Alarm::new().unwrap();
        let mut context = WaitContext {
            give_up: &CancellationToken::new(),
            check_held: &watch::Sender::new(()),
            alarm: &alarm,
            on_busy: &mut |_, _| Advice::Wait,
            on_refused: &mut |_, _| {},
            on_failure: &mut |_, _, _| {},
        };
        let Ok((held, keepers)) = acquire_any(&locks, &limits, &terms, &mut context).await else {
            panic!("none was granted")
        };
        drop(keepers);
        let index: usize = held.name().as_str().parse().unwrap();
        assert_eq!(states[index].holders.get(), 1);
        assert!(held.lease_state.validity.is_some_and(|validity| Moment::now() < validity.start_before));
    });
    (states, began.elapsed())
}

#[test]
fn what_is_granted_after_the_first_lock_is_given_back() {
    let (states, _) = acquire_any_fake(Duration::ZERO);
    assert_eq!(states.iter().map(|state| state.holders.get()).sum::<usize>(), 1);
}

/// Leaving the queues may take longer than a lease.
#[test]
fn the_first_lock_is_renewed_while_the_others_are_given_back() {
    let (states, took) = acquire_any_fake(Duration::from_millis(1100));
    assert!(took >= Duration::from_millis(1100), "{took:?}");
    assert_eq!(states.iter().map(|state| state.holders.get()).sum::<usize>(), 1);
    assert!(states.iter().any(|state| state.renewals.get() > 0));
}

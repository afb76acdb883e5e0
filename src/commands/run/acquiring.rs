//! The first phase: getting the lock, with the command parked and signals meaning dlock itself.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use tokio::sync::watch;

use super::Session;
use crate::backend::{Busy, Refusal};
use crate::child::signals::{self, WhileWaiting};
use crate::child::{Event, Supervisor, sys};
use crate::clock::{Alarm, Moment};
use crate::exit::{Failure, FailureKind};
use crate::identity::is_our_ancestor;
use crate::lease::acquire::{Advice, Surroundings, Wait};
use crate::lease::together::{Held, Keeping, Lock, Together, acquire_all, give_back};
use crate::lock::{Claim, Holder, LockName, Mode};
use crate::report::revoked;

/// How often those who watch are told that we still wait.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// What came of it.
pub(super) enum Acquired<'a> {
    /// The locks are ours.
    Granted(Vec<Held>, Keeping<'a>),
    /// They are not.
    Not(NotAcquired),
}

/// Why the locks are not ours.
pub(super) enum NotAcquired {
    /// Somebody else has one of them: who, if that is known, and what was said of it.
    Contended(Option<Box<Holder>>, String),
    /// A signal came first.
    Interrupted(i32),
    /// It has not been said yet.
    Failed(Failure),
}

/// Why we stopped trying.
enum Why {
    Signal(i32),
    Guard(String),
}

/// What was last found, to be told again.
#[derive(Default)]
struct Told {
    last: RefCell<Option<(LockName, Busy, Moment)>>,
    /// What was found waits for nobody but us.
    hopeless: Cell<bool>,
}

impl Told {
    /// Whether this is worth a line: the first time, and when the holder changes.
    fn is_new(&self, claim: &Claim, busy: &Busy) -> bool {
        let who = |busy: &Busy| busy.holders.first().map(|holder| holder.identity.clone());
        let last = self.last.borrow();
        last.as_ref().is_none_or(|(name, last, _)| *name != claim.name || who(last) != who(busy))
    }
}

impl<'a> Session<'a> {
    pub(super) async fn acquire(&'a self, locks: &'a [Lock], supervisor: &mut Supervisor) -> Acquired<'a> {
        let (give_up, given_up) = watch::channel(false);
        let begin = Moment::now();
        let plan = self.plan;
        let limits = plan.patience.from(begin);
        let store = plan.store.display();
        let told = Told::default();
        let waits = plan.patience.wait != Wait::No;
        let mut on_busy = |claim: &Claim, busy: &Busy| {
            let ancestor =
                busy.holders.iter().any(|holder| holder.identity.as_ref().is_some_and(is_our_ancestor));
            told.hopeless.set(ancestor);
            if ancestor {
                return Advice::Leave;
            }
            if waits && told.is_new(claim, busy) {
                self.reporter.waiting(&claim.name, store, busy);
            }
            *told.last.borrow_mut() = Some((claim.name.clone(), busy.clone(), Moment::now()));
            Advice::Wait
        };
        let mut around = Surroundings { give_up: given_up, alarm: &self.alarm, on_busy: &mut on_busy };
        let (outcome, ended_by) = {
            let attempt = acquire_all(locks, &limits, &plan.terms, &mut around);
            tokio::pin!(attempt);
            let mut ended_by = None;
            let tell = self.reporter.tells_waiting().then(Alarm::new).and_then(Result::ok);
            let mut tell_at = begin + TELL_EVERY;
            loop {
                tokio::select! {
                    // A signal that came before the grant was read counts: the command has not been started.
                    biased;
                    arrival = self.signals.next() => {
                        let signal = arrival.signal;
                        if signal == libc::SIGCHLD {
                            if let Some(Event::GuardLost(why)) = supervisor.guard_stopped() {
                                supervisor.kill_tree().await;
                                let _ = give_up.send(true);
                                break (attempt.await, Some(Why::Guard(why)));
                            }
                            continue;
                        }
                        match signals::while_waiting(signal) {
                            WhileWaiting::Stop if !signals::is_ignored(signal) => sys::raise_default(signal),
                            WhileWaiting::End if !signals::is_ignored(signal) => {
                                if ended_by.is_some() {
                                    return Acquired::Not(NotAcquired::Interrupted(signal));
                                }
                                ended_by = Some(Why::Signal(signal));
                                let _ = give_up.send(true);
                            }
                            _ => {}
                        }
                    }
                    outcome = &mut attempt => break (outcome, ended_by),
                    event = supervisor.next() => {
                        let why = match event {
                            Event::GuardLost(why) => why,
                            Event::Ended(_) | Event::Finished { .. } => "the waiting process of the command died".into(),
                            _ => continue,
                        };
                        supervisor.kill_tree().await;
                        let _ = give_up.send(true);
                        break (attempt.await, Some(Why::Guard(why)));
                    }
                    () = at(tell.as_ref(), tell_at) => {
                        tell_at = Moment::now() + TELL_EVERY;
                        if let Some((name, busy, seen)) = &*told.last.borrow() {
                            self.reporter.waiting(name, store, &older(busy, Moment::now() - *seen));
                        }
                    }
                }
            }
        };
        let why = match ended_by {
            None => return self.not_or_granted(outcome, begin, told.hopeless.get()),
            Some(why) => why,
        };
        if let Together::Granted(held, keeping) = outcome {
            // Granted in the very moment in which we were told to end: give it back.
            drop((held, keeping));
            give_back(locks).await;
        }
        Acquired::Not(match why {
            Why::Signal(signal) => NotAcquired::Interrupted(signal),
            Why::Guard(why) => NotAcquired::Failed(Failure::internal(why)),
        })
    }

    fn not_or_granted<'l>(&self, outcome: Together<'l>, begin: Moment, hopeless: bool) -> Acquired<'l> {
        let plan = self.plan;
        let store = plan.store.display();
        Acquired::Not(match outcome {
            Together::Granted(held, keeping) => return Acquired::Granted(held, keeping),
            Together::Contended(lock, busy) => {
                let name = &lock.claim.name;
                let line = if hopeless {
                    let line = format!(
                        "{name} is held by the dlock that runs this very command: waiting for it would never end, \
                         and DLOCK_HELD, which would let us in, was lost on the way here (sudo, env -i)"
                    );
                    self.reporter.warning(&line);
                    line
                } else {
                    let will_wait = plan.patience.wait != Wait::No;
                    self.reporter.contended(name, store, &busy, Moment::now() - begin, will_wait)
                };
                NotAcquired::Contended(busy.holders.into_iter().next().map(Box::new), line)
            }
            Together::Revoked(lock, revocation) => {
                let what = revoked(&lock.claim.name, store, &revocation);
                NotAcquired::Failed(Failure::new(
                    FailureKind::Lost,
                    format!("{what}; the command did not run"),
                ))
            }
            Together::Refused(lock, refusal) => NotAcquired::Failed(self.refused(&lock.claim, refusal)),
            Together::Failed(lock, error) => NotAcquired::Failed(self.failed(&lock.claim.name, &error)),
            Together::GivenUp => NotAcquired::Failed(Failure::internal("gave up without a reason")),
        })
    }

    /// Why a claim makes no sense as things are, and what to do.
    fn refused(&self, claim: &Claim, refusal: Refusal) -> Failure {
        let (name, store) = (&claim.name, self.plan.store.display());
        match refusal {
            Refusal::Slots(theirs) => {
                let ours = match claim.mode {
                    Mode::Slots(ours) => ours,
                    _ => 1,
                };
                Failure::usage(format!(
                    "{name} on {store}: --slots {ours}, but it is in use with {theirs} slots: give --slots {theirs}, or wait \
                     until nobody holds or awaits it"
                ))
            }
            Refusal::Inside(outer) => Failure::usage(format!(
                "{name} on {store}: cannot be taken {} here: this command runs under a hold of it that is {} and would \
                 wait for itself; take the outer one with --exclusive, or this one with the same mode",
                claim.mode.as_str(),
                outer.as_str()
            )),
            Refusal::OuterLost => Failure::new(
                FailureKind::Lost,
                format!(
                    "{name} on {store}: the lock that this command runs under (DLOCK_HELD) was lost; the command did \
                     not run"
                ),
            ),
        }
    }
}

/// What was found then, as it is so much later if nothing has changed.
fn older(busy: &Busy, by: Duration) -> Busy {
    let mut busy = busy.clone();
    for holder in &mut busy.holders {
        holder.age = holder.age.map(|age| age + by);
        holder.ended = holder.ended.map(|ended| ended + by);
        holder.remaining = holder.remaining.map(|rest| rest.saturating_sub(by));
    }
    busy
}

async fn at(alarm: Option<&Alarm>, moment: Moment) {
    match alarm {
        Some(alarm) => alarm.until(moment).await,
        None => std::future::pending().await,
    }
}

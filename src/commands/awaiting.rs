//! Waiting for locks: signals mean dlock itself meanwhile, and whoever watches is told now and then.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use tokio::sync::watch;

use crate::backend::Busy;
use crate::child::signals::{self, Source, WhileWaiting};
use crate::child::{Event, Supervisor, sys};
use crate::clock::{Alarm, Moment};
use crate::identity::is_our_ancestor;
use crate::lease::acquire::{Advice, Patience, Surroundings, Wait};
use crate::lease::together::{Lock, Together, acquire_all, give_back};
use crate::lease::validity::Terms;
use crate::lock::{Claim, LockName};
use crate::report::Reporter;

/// How often those who watch are told that we still wait.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// What waiting needs to know.
pub(super) struct Awaiting<'a> {
    pub(super) reporter: &'a Reporter,
    pub(super) signals: &'a Source,
    pub(super) alarm: &'a Alarm,
    /// The store's name in messages.
    pub(super) store: &'a str,
    pub(super) patience: Patience,
    pub(super) terms: &'a Terms,
}

/// What came of it, unless it was broken off.
pub(super) struct Awaited<'a> {
    pub(super) together: Together<'a>,
    /// Who holds the lock waits for nobody but us.
    pub(super) hopeless: bool,
    /// For how long we have tried.
    pub(super) waited: Duration,
}

/// Why we stopped trying. Nothing is ours then.
pub(super) enum BrokenOff {
    /// A signal that ends us.
    Signal(i32),
    /// Something happened to the process that guards the command.
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

impl<'a> Awaiting<'a> {
    /// Takes the locks, all or none, as far as patience goes. The `supervisor` of a command that is parked meanwhile is
    /// heard too.
    ///
    /// # Errors
    /// A signal or the guarding process ended it first; whatever was granted is given back.
    pub(super) async fn locks(
        &self,
        locks: &'a [Lock],
        mut supervisor: Option<&mut Supervisor>,
    ) -> Result<Awaited<'a>, BrokenOff> {
        let (give_up, given_up) = watch::channel(false);
        let look_again = watch::Sender::new(());
        let begin = Moment::now();
        let limits = self.patience.from(begin);
        let told = Told::default();
        let waits = self.patience.wait != Wait::No;
        let mut on_busy = |claim: &Claim, busy: &Busy| {
            let ancestor =
                busy.holders.iter().any(|holder| holder.identity.as_ref().is_some_and(is_our_ancestor));
            told.hopeless.set(ancestor);
            if ancestor {
                return Advice::Leave;
            }
            if waits && told.is_new(claim, busy) {
                self.reporter.waiting(&claim.name, self.store, busy);
            }
            *told.last.borrow_mut() = Some((claim.name.clone(), busy.clone(), Moment::now()));
            Advice::Wait
        };
        let mut around = Surroundings {
            give_up: given_up,
            look_again: look_again.subscribe(),
            alarm: self.alarm,
            on_busy: &mut on_busy,
        };
        let (together, ended_by) = {
            let attempt = acquire_all(locks, &limits, self.terms, &mut around);
            tokio::pin!(attempt);
            let mut ended_by = None;
            let tell = self.reporter.tells_waiting().then(Alarm::new).and_then(Result::ok);
            let mut tell_at = begin + TELL_EVERY;
            loop {
                tokio::select! {
                    // A signal that came before the grant was read counts: nobody has been told of the grant.
                    biased;
                    arrival = self.signals.next() => {
                        let signal = arrival.signal;
                        if signal == libc::SIGCHLD {
                            if let Some(supervisor) = &mut supervisor
                                && let Some(Event::GuardLost(why)) = supervisor.guard_stopped()
                            {
                                supervisor.kill_tree().await;
                                let _ = give_up.send(true);
                                break (attempt.await, Some(BrokenOff::Guard(why)));
                            }
                            continue;
                        }
                        if signal == libc::SIGCONT {
                            // Somebody may have revoked one of several locks that is ours already.
                            look_again.send_replace(());
                        }
                        match signals::while_waiting(signal) {
                            WhileWaiting::Stop if !signals::is_ignored(signal) => sys::raise_default(signal),
                            WhileWaiting::End if !signals::is_ignored(signal) => {
                                if ended_by.is_some() {
                                    return Err(BrokenOff::Signal(signal));
                                }
                                ended_by = Some(BrokenOff::Signal(signal));
                                let _ = give_up.send(true);
                            }
                            _ => {}
                        }
                    }
                    together = &mut attempt => break (together, ended_by),
                    event = next(&mut supervisor) => {
                        let why = match event {
                            Event::GuardLost(why) => why,
                            Event::Ended(_) | Event::Finished { .. } => "the waiting process of the command died".into(),
                            _ => continue,
                        };
                        if let Some(supervisor) = &mut supervisor {
                            supervisor.kill_tree().await;
                        }
                        let _ = give_up.send(true);
                        break (attempt.await, Some(BrokenOff::Guard(why)));
                    }
                    () = at(tell.as_ref(), tell_at) => {
                        tell_at = Moment::now() + TELL_EVERY;
                        if let Some((name, busy, seen)) = &*told.last.borrow() {
                            self.reporter.waiting(name, self.store, &older(busy, Moment::now() - *seen));
                        }
                    }
                }
            }
        };
        let Some(why) = ended_by else {
            return Ok(Awaited { together, hopeless: told.hopeless.get(), waited: Moment::now() - begin });
        };
        if let Together::Granted(held, keeping) = together {
            // Granted in the very moment in which we were told to end: give it back.
            drop((held, keeping));
            give_back(locks).await;
        }
        Err(why)
    }

    /// Says that somebody else holds the lock, and returns the line. `instead` is what to do about a holder that waits
    /// for nobody but us.
    pub(super) fn say_contended(
        &self,
        awaited: &Awaited<'_>,
        name: &LockName,
        busy: &Busy,
        instead: &str,
    ) -> String {
        if !awaited.hopeless {
            let will_wait = self.patience.wait != Wait::No;
            return self.reporter.contended(name, self.store, busy, awaited.waited, will_wait);
        }
        let line = format!(
            "{name} is held by the dlock that runs this very command: waiting for it would never end, and {instead}"
        );
        self.reporter.warning(&line);
        line
    }
}

/// What happens to a command that is parked, if there is one.
async fn next(supervisor: &mut Option<&mut Supervisor>) -> Event {
    match supervisor {
        Some(supervisor) => supervisor.next().await,
        None => std::future::pending().await,
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

//! Waiting for locks: signals mean dlock itself meanwhile, and whoever watches is told now and then.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use crate::backend::Busy;
use crate::child::signals::{self, Source, WhileWaiting};
use crate::child::{Event, Supervisor, sys};
use crate::clock::{Alarm, Moment};
use crate::identity::is_our_ancestor;
use crate::lease::acquire::{Advice, Patience, Wait, WaitContext};
use crate::lease::acquire_all::{AcquireAllOutcome, Lock, acquire_all, give_back};
use crate::lease::validity::Terms;
use crate::lease::wakeup::{Cancellation, Prompt};
use crate::lock::{Claim, LockName};
use crate::report::Reporter;

/// How often those who watch are told that we still wait.
const TELL_EVERY: Duration = Duration::from_secs(60);
/// Whatever the store and the guarding process do, we stop waiting for them this long after we were told to end. What
/// follows (a note in the history, the end of the guarding process) is bounded too: dlock is gone within 2 s.
const LEAVE_WITHIN: Duration = Duration::from_millis(1_300);

/// What waiting needs to know.
pub(super) struct LockWait<'a> {
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
    pub(super) together: AcquireAllOutcome<'a>,
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

    fn note(&self, claim: &Claim, busy: &Busy) {
        *self.last.borrow_mut() = Some((claim.name.clone(), busy.clone(), Moment::now()));
    }

    /// What was last found, as it is now if nothing has changed.
    fn again(&self) -> Option<(LockName, Busy)> {
        let last = self.last.borrow();
        last.as_ref().map(|(name, busy, seen)| (name.clone(), older(busy, Moment::now() - *seen)))
    }
}

/// Something to be driven to its end.
type Work<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// What an event means to a waiting dlock.
enum Heard {
    /// Nothing.
    Nothing,
    /// Locks that are ours already are to be checked.
    Look,
    /// The end of the wait.
    Over(BrokenOff),
}

/// The end of a wait that was broken off.
#[derive(Default)]
struct Leaving {
    /// Why we were told to end, the first time.
    why: Option<BrokenOff>,
    /// A signal has told us to.
    signalled: bool,
    by: Option<Instant>,
}

impl Leaving {
    fn because_of(&mut self, why: BrokenOff) {
        self.why.get_or_insert(why);
        self.by.get_or_insert_with(|| Instant::now() + LEAVE_WITHIN);
    }

    /// Resolves when we have to be gone, if we have to.
    async fn deadline(&self) {
        match self.by {
            Some(by) => sleep_until(by).await,
            None => std::future::pending().await,
        }
    }

    /// Does what is left to do, as far as there is time.
    async fn in_time(&self, work: impl Future<Output = ()>) {
        match self.by {
            Some(by) => drop(timeout_at(by, work).await),
            None => work.await,
        }
    }
}

impl<'a> LockWait<'a> {
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
        let (give_up, look_again) = (Cancellation::default(), Prompt::default());
        let begin = Moment::now();
        let limits = self.patience.from(begin);
        let told = Told::default();
        let waits = self.patience.wait != Wait::No;
        let mut on_busy = |claim: &Claim, busy: &Busy| {
            let is_ours = |identity| is_our_ancestor(identity, &claim.name);
            let ancestor = busy.holders.iter().any(|holder| holder.identity.as_ref().is_some_and(is_ours));
            told.hopeless.set(ancestor);
            if ancestor {
                return Advice::Leave;
            }
            if waits && told.is_new(claim, busy) {
                self.reporter.waiting(&claim.name, self.store, busy);
            }
            told.note(claim, busy);
            Advice::Wait
        };
        let mut around = WaitContext {
            give_up: &give_up,
            look_again: &look_again,
            alarm: self.alarm,
            on_busy: &mut on_busy,
        };
        let mut leaving = Leaving::default();
        let together = {
            let attempt = acquire_all(locks, &limits, self.terms, &mut around);
            tokio::pin!(attempt);
            let mut kill: Option<Work<'_>> = None;
            let tell = self.reporter.tells_waiting().then(Alarm::new).and_then(Result::ok);
            let mut tell_at = begin + TELL_EVERY;
            let together = loop {
                let event = tokio::select! {
                    // A signal that came before the grant was read counts: nobody has been told of the grant.
                    biased;
                    arrival = self.signals.next() => self.on_signal(arrival.signal, &mut supervisor, &mut leaving)?,
                    together = &mut attempt => break together,
                    event = next(&mut supervisor) => heard(event),
                    () = finished(&mut kill) => {
                        kill = None;
                        Heard::Nothing
                    }
                    () = leaving.deadline() => break AcquireAllOutcome::GivenUp,
                    () = at(tell.as_ref(), tell_at) => {
                        tell_at = Moment::now() + TELL_EVERY;
                        if let Some((name, busy)) = told.again() {
                            self.reporter.waiting(&name, self.store, &busy);
                        }
                        Heard::Nothing
                    }
                };
                match event {
                    Heard::Nothing => {}
                    Heard::Look => look_again.send(),
                    Heard::Over(why) => {
                        if matches!(why, BrokenOff::Guard(_)) {
                            kill = supervisor
                                .take()
                                .map(|supervisor| -> Work<'_> { Box::pin(supervisor.kill_tree()) });
                        }
                        leaving.because_of(why);
                        give_up.cancel();
                    }
                }
            };
            if let Some(kill) = kill {
                leaving.in_time(kill).await;
            }
            together
        };
        let Some(why) = leaving.why.take() else {
            return Ok(Awaited { together, hopeless: told.hopeless.get(), waited: Moment::now() - begin });
        };
        if let AcquireAllOutcome::Granted(held, keeping) = together {
            // Granted in the very moment in which we were told to end: give it back.
            drop((held, keeping));
            leaving.in_time(give_back(locks)).await;
        }
        Err(why)
    }

    /// What a signal means to a waiting dlock.
    ///
    /// # Errors
    /// It is the second one that ends us: whoever sends it does not want to wait for the store.
    fn on_signal(
        &self,
        signal: i32,
        supervisor: &mut Option<&mut Supervisor>,
        leaving: &mut Leaving,
    ) -> Result<Heard, BrokenOff> {
        if signal == libc::SIGCHLD {
            let guard = supervisor.as_mut().and_then(|supervisor| supervisor.guard_stopped());
            return Ok(guard.map_or(Heard::Nothing, heard));
        }
        if signal == libc::SIGCONT {
            // Somebody may have revoked one of several locks that is ours already.
            return Ok(Heard::Look);
        }
        if signals::is_ignored(signal) {
            return Ok(Heard::Nothing);
        }
        match signals::while_waiting(signal) {
            WhileWaiting::Stop if leaving.why.is_none() => sys::raise_default(signal),
            WhileWaiting::End if leaving.signalled => {
                return Err(leaving.why.take().unwrap_or(BrokenOff::Signal(signal)));
            }
            WhileWaiting::End => {
                leaving.signalled = true;
                return Ok(Heard::Over(BrokenOff::Signal(signal)));
            }
            _ => {}
        }
        Ok(Heard::Nothing)
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

/// What an event of the parked command means.
fn heard(event: Event) -> Heard {
    match event {
        Event::GuardLost(why) => Heard::Over(BrokenOff::Guard(why)),
        Event::Ended(_) | Event::Finished { .. } => {
            Heard::Over(BrokenOff::Guard("the waiting process of the command died".into()))
        }
        _ => Heard::Nothing,
    }
}

/// Drives what there is to drive, if there is something; it is not to be asked again after that.
async fn finished(work: &mut Option<Work<'_>>) {
    match work {
        Some(work) => work.await,
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

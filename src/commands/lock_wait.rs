//! Waiting for locks. Meanwhile signals apply to dlock itself, and progress is reported now and then. `run` and `acquire`
//! call it.
//!
//! What always holds: when it ends without the locks, none of them is held and no queue entry is left behind, as far as the
//! store could be told.

mod failure;

use std::pin::Pin;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::older_holder::OlderHolder;
use super::or_never;
use crate::backend::{Busy, Refusal, StoreError};
use crate::child::signals::{self, EndRequests, Source, WhileWaiting};
use crate::child::{Event, Supervisor, sys};
use crate::clock::{Alarm, Moment};
use crate::identity::is_our_ancestor;
use crate::lease::acquire::{Advice, NotGranted, Patience, Wait, WaitContext};
use crate::lease::acquire_all::{AllGranted, HeldLock, Lock, acquire_all, give_back};
use crate::lease::acquire_any::{NoneGranted, Wanted, acquire_any};
use crate::lease::validity::Terms;
use crate::lock::{Claim, LockName, Mode};
use crate::report::{Reporter, WaitLine};
use crate::settings::StoreTarget;

/// dlock stops waiting for the store and the guard process this long after the request to end. What follows
/// (a note in the history, the end of the guard process) is bounded too: dlock is gone within a second.
const LEAVE_WITHIN: Duration = Duration::from_millis(800);
/// Stores round leases to units of their own.
const ROUNDED: Duration = Duration::from_millis(10);

pub(super) struct LockWait<'a> {
    pub(super) reporter: &'a Reporter,
    pub(super) signals: &'a Source,
    pub(super) alarm: &'a Alarm,
    pub(super) target: &'a StoreTarget,
    pub(super) patience: Patience,
    pub(super) terms: &'a Terms,
    /// The lease was requested by the user, and is not the default.
    pub(super) is_ttl_chosen: bool,
    /// The holder is asked to end if it is one that the run supersedes.
    pub(super) supersedes_holder: bool,
    /// What follows if a lock is not granted, for the end of a message.
    pub(super) consequence: &'static str,
}

/// The end of a wait that was not interrupted.
pub(super) struct Awaited<'a> {
    pub(super) granted: AllGranted<'a>,
    /// All locks and their holders, if any one of them was wanted and none was free.
    pub(super) busy: Vec<(&'a Lock, Busy)>,
    /// The holder is an ancestor of this process, and waits for it to end.
    pub(super) holder_is_ancestor: bool,
    pub(super) waited: Duration,
}

/// Why the wait was interrupted. No lock is held then.
pub(super) enum Interruption {
    /// A signal that ends dlock.
    Signal(i32),
    Guard(String),
}

enum Reaction {
    Nothing,
    /// The locks that are already held are to be checked.
    CheckHeld,
    End(Interruption),
}

/// The end of an interrupted wait.
struct Leaving {
    why: Interruption,
    by: Instant,
}

impl<'a> LockWait<'a> {
    fn store(&self) -> &'a str {
        self.target.store.display()
    }

    fn warn_of_exposure(&self, line: &WaitLine<'_>) {
        if let Some(exposure) = self.target.exposure() {
            line.clear();
            self.reporter.warning(&exposure);
        }
    }

    /// Takes the locks, all or one of them as `wanted`, or none, as far as patience allows. Events of the `supervisor` of a
    /// parked command are handled meanwhile.
    ///
    /// # Errors
    /// A signal or a failure of the guard process ended the wait first; locks that were granted are released.
    pub(super) async fn locks(
        &self,
        locks: &'a [Lock],
        wanted: Wanted,
        mut supervisor: Option<&mut Supervisor>,
    ) -> Result<Awaited<'a>, Interruption> {
        let (give_up, check_held) = (CancellationToken::new(), watch::Sender::new(()));
        let begin = Moment::now();
        let limits = self.patience.from(begin);
        let waits = self.patience.wait != Wait::No;
        let alternatives = match wanted {
            Wanted::All => Vec::new(),
            Wanted::Any => locks.iter().map(|lock| lock.claim.name.clone()).collect(),
        };
        let line = WaitLine::new(self.reporter, self.store(), begin, limits.wait_until(), alternatives);
        let older_holder = OlderHolder::default();
        let mut on_busy = |claim: &Claim, busy: &Busy| {
            self.warn_of_exposure(&line);
            if is_held_by_ancestor(&claim.name, busy) {
                line.left(&claim.name);
                return Advice::Leave;
            }
            if self.supersedes_holder && busy.freeze.is_none() {
                older_holder.note(claim, busy);
            }
            match waits {
                true => line.busy(&claim.name, busy),
                false => line.replied(&claim.name),
            }
            Advice::Wait
        };
        let mut on_refused = |claim: &Claim, refusal: &Refusal| {
            self.warn_of_exposure(&line);
            if let (Refusal::Slots(theirs), Mode::Slots(ours)) = (refusal, claim.mode) {
                line.other_slots(&claim.name, ours, *theirs);
            }
        };
        let mut on_failure = |claim: &Claim, error: &StoreError, until: Option<Moment>| {
            self.warn_of_exposure(&line);
            line.failed(&claim.name, error, until);
        };
        let mut context = WaitContext {
            give_up: &give_up,
            check_held: &check_held,
            alarm: self.alarm,
            on_busy: &mut on_busy,
            on_refused: &mut on_refused,
            on_failure: &mut on_failure,
        };
        let mut leaving: Option<Leaving> = None;
        let mut requests = EndRequests::default();
        let mut all_busy = Vec::new();
        let granted = {
            let attempt = async {
                match wanted {
                    Wanted::All => acquire_all(locks, &limits, self.terms, &mut context).await,
                    Wanted::Any => match acquire_any(locks, &limits, self.terms, &mut context).await {
                        Ok((held, keepers)) => Ok((vec![held], keepers)),
                        Err(NoneGranted { lock, why, busy }) => {
                            all_busy = busy;
                            Err((lock, why))
                        }
                    },
                }
            };
            tokio::pin!(attempt);
            let mut revoking =
                self.supersedes_holder.then(|| Box::pin(older_holder.revoke_each(self.target)));
            let mut kill: Option<Pin<Box<dyn Future<Output = ()> + '_>>> = None;
            let report_alarm = self.reporter.reports_waiting().then(Alarm::new).and_then(Result::ok);
            let mut report_at = begin + line.interval();
            let granted = loop {
                let event = tokio::select! {
                    // A signal that came before the grant was read takes precedence: the grant has not been
                    // reported yet.
                    biased;
                    arrival = self.signals.next() => {
                        // dlock may be stopped or terminated now; and continued in the foreground or background.
                        line.clear();
                        let reaction = self.on_signal(arrival.signal, &mut supervisor, &mut leaving, &mut requests)?;
                        report_at = report_at.min(Moment::now() + line.interval());
                        reaction
                    }
                    granted = &mut attempt => break granted,
                    event = or_never(supervisor.as_mut().map(|supervisor| supervisor.next())) => reaction_to(event),
                    () = or_never(revoking.as_mut()) => Reaction::Nothing,
                    () = or_never(kill.as_mut()) => {
                        kill = None;
                        Reaction::Nothing
                    }
                    () = or_never(leaving.as_ref().map(|leaving| sleep_until(leaving.by))) => {
                        break Err((&locks[0], NotGranted::GivenUp));
                    }
                    () = or_never(report_alarm.as_ref().map(|alarm| alarm.until(report_at))) => {
                        report_at = Moment::now() + line.interval();
                        if leaving.is_none() {
                            line.update();
                        }
                        Reaction::Nothing
                    }
                };
                match event {
                    Reaction::Nothing => {}
                    Reaction::CheckHeld => check_held.send_replace(()),
                    Reaction::End(why) => {
                        let is_signal = matches!(why, Interruption::Signal(_));
                        if !is_signal && let Some(supervisor) = supervisor.take() {
                            kill = Some(Box::pin(supervisor.kill_tree(|_| {})));
                        }
                        let by = Instant::now() + LEAVE_WITHIN;
                        leaving.get_or_insert(Leaving { why, by });
                        give_up.cancel();
                    }
                }
            };
            if let (Some(kill), Some(leaving)) = (kill, &leaving) {
                let _ = timeout_at(leaving.by, kill).await;
            }
            granted
        };
        let Some(Leaving { why, by, .. }) = leaving else {
            let waited = Moment::now() - begin;
            if let Ok((held, _)) = &granted {
                held.iter().for_each(|held| line.replied(held.name()));
                drop(line);
                self.report_granted(held, waited);
            }
            let is_by_ancestor = |(lock, busy): &(&Lock, Busy)| is_held_by_ancestor(&lock.claim.name, busy);
            let holder_is_ancestor = match &granted {
                Err(_) if !all_busy.is_empty() => all_busy.iter().all(is_by_ancestor),
                Err((lock, NotGranted::Contended(busy))) => is_held_by_ancestor(&lock.claim.name, busy),
                _ => false,
            };
            return Ok(Awaited { granted, busy: all_busy, holder_is_ancestor, waited });
        };
        if let Ok((held, keepers)) = granted {
            // Granted at the same moment as the end was requested: release it.
            drop(keepers);
            let _ = timeout_at(by, give_back(held.iter().map(|held| held.lock))).await;
        }
        Err(why)
    }

    /// Reports that the locks were granted, and which of them have another lease than was requested.
    fn report_granted(&self, held: &[HeldLock<'_>], waited: Duration) {
        for (index, held) in held.iter().enumerate() {
            let claim = &held.lock.claim;
            self.reporter.granted(&claim.name, waited, held.grant.fencing);
            match held.grant.lease {
                // Once, although the server limits the leases of all of them. That the default is a little too long on
                // a server, or longer than that of the outer hold, is no reason for a warning at every run.
                Some(lease)
                    if index == 0
                        && claim.outer.is_empty()
                        && lease + ROUNDED < claim.ttl
                        && (self.is_ttl_chosen || lease < claim.ttl / 2) =>
                {
                    self.reporter.shorter_lease(&claim.name, self.store(), claim.ttl, lease);
                }
                Some(lease)
                    if lease + ROUNDED < claim.ttl || lease > claim.ttl.max(claim.min_hold) + ROUNDED =>
                {
                    self.reporter.other_lease(&claim.name, claim.ttl, lease);
                }
                _ => {}
            }
        }
    }

    /// What a signal means to a waiting dlock.
    ///
    /// # Errors
    /// It is the second terminating signal: its sender does not want to wait for the store.
    fn on_signal(
        &self,
        signal: i32,
        supervisor: &mut Option<&mut Supervisor>,
        leaving: &mut Option<Leaving>,
        requests: &mut EndRequests,
    ) -> Result<Reaction, Interruption> {
        if signal == libc::SIGCHLD {
            // Stopped with dlock's process group, before it had left that. The command does not run yet.
            if let Some(supervisor) = supervisor
                && supervisor.guard_stopped().is_some()
            {
                supervisor.continue_guard();
            }
            return Ok(Reaction::Nothing);
        }
        if signal == libc::SIGCONT {
            // One of several locks that are already held may have been revoked.
            return Ok(Reaction::CheckHeld);
        }
        if signals::is_ignored(signal) {
            return Ok(Reaction::Nothing);
        }
        match signals::while_waiting(signal) {
            WhileWaiting::Stop if leaving.is_none() => sys::raise_default(signal),
            WhileWaiting::End => {
                let is_second = requests.note();
                return match leaving.take_if(|_| is_second) {
                    Some(leaving) => Err(leaving.why),
                    None => Ok(Reaction::End(Interruption::Signal(signal))),
                };
            }
            _ => {}
        }
        Ok(Reaction::Nothing)
    }
}

fn is_held_by_ancestor(name: &LockName, busy: &Busy) -> bool {
    let is_ours = |identity| is_our_ancestor(identity, name);
    busy.holders.iter().any(|holder| holder.identity.as_ref().is_some_and(is_ours))
}

fn reaction_to(event: Event) -> Reaction {
    match event {
        Event::GuardLost(why) => Reaction::End(Interruption::Guard(why)),
        Event::Ended(_) | Event::Finished { .. } => {
            Reaction::End(Interruption::Guard("the waiting process of the command died".into()))
        }
        _ => Reaction::Nothing,
    }
}

//! The first phase: getting the lock, with the command parked and signals meaning dlock itself.

use std::time::Duration;

use tokio::sync::watch;

use super::Session;
use crate::backend::Backend;
use crate::child::signals::{self, WhileWaiting};
use crate::child::{Event, Supervisor, sys};
use crate::clock::Moment;
use crate::exit::{Exit, Failure};
use crate::lease::acquire::{Outcome, Wait, acquire};
use crate::lease::validity::Validity;
use crate::lock::{Claim, Grant, Holder};

/// How long a lock may take to be given back when we are told to end.
const FAREWELL: Duration = Duration::from_secs(1);

/// What came of it.
pub(super) enum Acquired {
    /// The lock is ours, until when if there is a lease.
    Granted(Grant, Option<Validity>),
    /// It is not; dlock ends like this.
    Not(Result<Exit, Failure>),
}

/// Why we stopped trying.
enum Why {
    Signal(i32),
    Guard(String),
}

impl Session<'_> {
    pub(super) async fn acquire(
        &self,
        backend: &mut dyn Backend,
        claim: &Claim,
        supervisor: &mut Supervisor,
    ) -> Acquired {
        let (give_up, mut given_up) = watch::channel(false);
        let begin = Moment::now();
        let plan = self.plan;
        let store = plan.store.display();
        let mut told: Option<Holder> = None;
        let mut on_busy = |holder: &Holder| {
            let new = told.as_ref().is_none_or(|told| told.identity != holder.identity);
            if new && plan.patience.wait != Wait::No {
                self.reporter.waiting(&plan.name, store, holder);
            }
            told = Some(holder.clone());
        };
        let (outcome, ended_by) = {
            let attempt =
                acquire(backend, claim, &plan.terms, plan.patience, &mut given_up, &self.alarm, &mut on_busy);
            tokio::pin!(attempt);
            let mut ended_by = None;
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
                                    return Acquired::Not(Ok(Exit::Signal(signal)));
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
                }
            }
        };
        match (ended_by, outcome) {
            (None, outcome) => self.not_or_granted(outcome, begin),
            (Some(why), outcome) => {
                if let Outcome::Granted { .. } = outcome {
                    // Granted in the very moment in which we were told to end: give it back.
                    let _ = tokio::time::timeout(plan.terms.connect_timeout.min(FAREWELL), async {
                        backend.connect().await?;
                        backend.release(claim).await
                    })
                    .await;
                }
                Acquired::Not(match why {
                    Why::Signal(signal) => Ok(Exit::Signal(signal)),
                    Why::Guard(why) => Err(Failure::internal(why)),
                })
            }
        }
    }

    fn not_or_granted(&self, outcome: Outcome, begin: Moment) -> Acquired {
        let plan = self.plan;
        match outcome {
            Outcome::Granted { grant, validity } => Acquired::Granted(grant, validity),
            Outcome::Contended(holder) => {
                let waited = Moment::now() - begin;
                let will_wait = plan.patience.wait != Wait::No;
                self.reporter.contended(&plan.name, plan.store.display(), &holder, waited, will_wait);
                Acquired::Not(Ok(Exit::Status(plan.conflict_exit_code)))
            }
            Outcome::Failed(error) => Acquired::Not(Err(self.failed(&error))),
            Outcome::GivenUp => Acquired::Not(Err(Failure::internal("gave up without a reason"))),
        }
    }
}

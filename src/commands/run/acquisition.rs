//! The first phase: acquiring the lock. Meanwhile the command is parked and signals apply to dlock itself.

use super::Run;
use crate::backend::Refusal;
use crate::child::Supervisor;
use crate::commands::lock_wait::{Awaited, Interruption, LockWait};
use crate::exit::{Failure, FailureKind};
use crate::lease::acquire_all::{AcquireAllOutcome, HeldLock, Keepers, Lock};
use crate::lock::{Claim, Holder, Mode};
use crate::report::revoked;

/// The result of the first phase.
pub(super) enum Acquired<'a> {
    /// The locks are held.
    Granted(Vec<HeldLock>, Keepers<'a>),
    /// The locks are not held.
    Not(NotAcquired),
}

/// Why the locks are not held.
pub(super) enum NotAcquired {
    /// Another client holds one of them: the holder, if known, and the message that was printed.
    Contended(Option<Box<Holder>>, String),
    /// One of them was already held, and was revoked with this reason.
    Revoked(Option<String>, Failure),
    /// A signal came first.
    Interrupted(i32),
    /// A failure that has not been reported yet.
    Failed(Failure),
}

impl<'a> Run<'a> {
    pub(super) async fn acquire(&'a self, locks: &'a [Lock], supervisor: &mut Supervisor) -> Acquired<'a> {
        let lock_wait = LockWait {
            reporter: self.reporter,
            signals: &self.signals,
            alarm: &self.alarm,
            store: self.plan.store.display(),
            patience: self.plan.settings.patience(),
            terms: &self.plan.terms,
        };
        match lock_wait.locks(locks, Some(supervisor)).await {
            Ok(awaited) => self.acquired(&lock_wait, awaited),
            Err(Interruption::Signal(signal)) => Acquired::Not(NotAcquired::Interrupted(signal)),
            Err(Interruption::Guard(why)) => Acquired::Not(NotAcquired::Failed(Failure::internal(why))),
        }
    }

    fn acquired<'l>(&self, lock_wait: &LockWait<'_>, awaited: Awaited<'l>) -> Acquired<'l> {
        let store = self.plan.store.display();
        Acquired::Not(match awaited.outcome {
            AcquireAllOutcome::Granted(held, keepers) => return Acquired::Granted(held, keepers),
            AcquireAllOutcome::Contended(lock, ref busy) => {
                let instead =
                    "DLOCK_HELD, which would allow nesting, was removed from the environment (sudo, env -i)";
                let line = lock_wait.report_contended(&awaited, &lock.claim.name, busy, instead);
                NotAcquired::Contended(busy.holders.first().cloned().map(Box::new), line)
            }
            AcquireAllOutcome::Revoked(lock, revocation) => {
                let what = revoked(&lock.claim.name, store, &revocation);
                let what = format!("{what}; the command did not run");
                NotAcquired::Revoked(revocation.reason, Failure::new(FailureKind::Lost, what))
            }
            AcquireAllOutcome::Refused(lock, refusal) => {
                NotAcquired::Failed(self.refused(&lock.claim, refusal))
            }
            AcquireAllOutcome::Failed(lock, error) => {
                NotAcquired::Failed(self.failed(&lock.claim.name, &error))
            }
            AcquireAllOutcome::GivenUp => NotAcquired::Failed(Failure::internal("gave up without a reason")),
        })
    }

    /// Returns the failure for a claim that the store refuses in the current state, with a remedy.
    fn refused(&self, claim: &Claim, refusal: Refusal) -> Failure {
        let (name, store) = (&claim.name, self.plan.store.display());
        match refusal {
            Refusal::Slots(theirs) => {
                let ours = match claim.mode {
                    Mode::Slots(ours) => ours,
                    _ => 1,
                };
                Failure::usage(format!(
                    "{name} on {store}: --slots {ours}, but it is in use with {theirs} slots: give --slots \
                    {theirs}, or wait until it has no holder and no waiter"
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

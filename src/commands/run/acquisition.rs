//! The first phase: acquiring the lock. Meanwhile the command is parked and signals apply to dlock itself.

use super::context::Run;
use crate::backend::Refusal;
use crate::child::Supervisor;
use crate::commands::lock_wait::{Interruption, LockWait};
use crate::exit::{Exit, Failure, FailureKind};
use crate::lease::acquire::NotGranted;
use crate::lease::acquire_all::{HeldLock, Keepers, Lock};
use crate::lock::{Claim, Mode};
use crate::report::{Outcome, RunReport, revoked};

impl<'a> Run<'a> {
    /// Takes the locks. `None` if they are not held for a reason that is in the report.
    ///
    /// # Errors
    /// A failure that has not been reported yet.
    pub(super) async fn acquire(
        &'a self,
        locks: &'a [Lock],
        supervisor: &mut Supervisor,
        report: &mut RunReport,
    ) -> Result<Option<(Vec<HeldLock>, Keepers<'a>)>, Failure> {
        let store = self.plan.target.store.display();
        let lock_wait = LockWait {
            reporter: self.reporter,
            signals: &self.signals,
            alarm: &self.alarm,
            store,
            patience: self.plan.settings.patience(),
            terms: &self.plan.terms,
        };
        let awaited = lock_wait.locks(locks, Some(supervisor)).await;
        report.stop_waiting();
        let awaited = match awaited {
            Ok(awaited) => awaited,
            Err(Interruption::Signal(signal)) => {
                report.outcome = Outcome::Interrupted;
                report.exit = Exit::Signal(signal);
                return Ok(None);
            }
            Err(Interruption::Guard(why)) => return Err(Failure::internal(why)),
        };
        match awaited.outcome {
            Ok(granted) => Ok(Some(granted)),
            Err((lock, NotGranted::Contended(ref busy))) => {
                let instead =
                    "DLOCK_HELD, which would allow nesting, was removed from the environment (sudo, env -i)";
                let line = lock_wait.report_contended(&awaited, &lock.claim.name, busy, instead);
                report.outcome = Outcome::Contended;
                report.exit = Exit::Status(self.plan.settings.conflict_exit_code());
                report.holder = busy.holders.first().cloned();
                report.error = Some(line);
                Ok(None)
            }
            Err((lock, NotGranted::Revoked(revocation))) => {
                let what = revoked(&lock.claim.name, store, &revocation);
                report.reason = revocation.reason;
                Err(Failure::new(FailureKind::Lost, format!("{what}; the command did not run")))
            }
            Err((lock, NotGranted::Refused(refusal))) => Err(self.refused(&lock.claim, refusal)),
            Err((lock, NotGranted::Failed(error))) => Err(self.failed(&lock.claim.name, &error)),
            Err((_, NotGranted::GivenUp)) => Err(Failure::internal("gave up without a reason")),
        }
    }

    /// Returns the failure for a claim that the store refuses in the current state, with a remedy.
    fn refused(&self, claim: &Claim, refusal: Refusal) -> Failure {
        let (name, store) = (&claim.name, self.plan.target.store.display());
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

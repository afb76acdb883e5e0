//! The first phase: acquiring the lock. Meanwhile the command is parked and signals apply to dlock itself.

use super::Run;
use crate::backend::Refusal;
use crate::child::Supervisor;
use crate::commands::lock_wait::{Interruption, LockWait};
use crate::exit::{Exit, Failure};
use crate::lease::acquire::{NotGranted, Wait};
use crate::lease::acquire_all::{HeldLock, Keepers, Lock};
use crate::lease::acquire_any::Wanted;
use crate::lock::LockName;
use crate::report::{Cause, Outcome, RunReport, frozen_by};
use crate::settings::Supersede;

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
    ) -> Result<Option<(Vec<HeldLock<'a>>, Keepers<'a>)>, Failure> {
        let lock_wait = self.lock_wait();
        let awaited = lock_wait.locks(locks, self.plan.wanted, Some(supervisor)).await;
        report.stop_waiting();
        crate::commands::warn_of_exposure(&self.plan.target, self.reporter);
        let awaited = match awaited {
            Ok(awaited) => awaited,
            Err(Interruption::Signal(signal)) => {
                report.outcome = Outcome::Interrupted;
                report.exit = Exit::Signal(signal);
                return Ok(None);
            }
            Err(Interruption::Guard(why)) => return Err(Failure::internal(why)),
        };
        match awaited.granted {
            Ok((held, keepers)) => {
                if self.plan.wanted == Wanted::Any {
                    self.settle_on(held[0].name(), locks, report);
                }
                Ok(Some((held, keepers)))
            }
            Err((lock, NotGranted::Contended(ref busy))) => {
                let instead = "DLOCK_HELD, which would allow nesting, was removed from the environment: keep it, as by \
                               sudo --preserve-env=DLOCK_HELD";
                let line = lock_wait.report_contended(&awaited, &lock.claim.name, busy, instead);
                self.was_contended(report, lock, line);
                report.holder = busy.holder().cloned();
                // Of several locks of which one was wanted, each has a cause of its own.
                report.cause = busy
                    .freeze
                    .as_ref()
                    .filter(|_| awaited.busy.is_empty())
                    .map(|freeze| Cause { lock: Some(lock.claim.name.clone()), text: frozen_by(freeze) });
                for (lock, busy) in &awaited.busy {
                    report.found(&lock.claim.name, busy);
                }
                Ok(None)
            }
            Err((lock, NotGranted::Refused(Refusal::Slots(theirs))))
                if lock_wait.patience.wait != Wait::No && !lock.claim.requires_outer_hold =>
            {
                let line = lock_wait.report_other_slots(&awaited, &lock.claim, theirs);
                self.was_contended(report, lock, line);
                Ok(None)
            }
            Err((lock, NotGranted::Refused(Refusal::Superseded(ref newer)))) => {
                let line = lock_wait.report_superseded(&awaited, &lock.claim, newer);
                self.was_contended(report, lock, line);
                Ok(None)
            }
            Err((lock, NotGranted::NotDue(done))) => {
                self.reporter.done(&lock.claim.name, &done);
                report.outcome = Outcome::Done;
                report.exit = Exit::SUCCESS;
                report.done = Some(done);
                Ok(None)
            }
            Err((lock, why)) => {
                if let NotGranted::Revoked(revocation) = &why {
                    report.reason = revocation.reason.clone();
                }
                report.cause = Some(Cause {
                    lock: Some(lock.claim.name.clone()),
                    text: lock_wait.cause(&lock.claim, &why),
                });
                Err(lock_wait.failure_after(awaited.waited, &lock.claim, why))
            }
        }
    }

    /// Puts into the report that another client keeps this run from the lock, as this line says.
    fn was_contended(&self, report: &mut RunReport, lock: &Lock, line: String) {
        report.outcome = Outcome::Contended;
        report.exit = Exit::Status(self.plan.settings.conflict_exit_code());
        report.held_lock = Some(lock.claim.name.clone());
        report.error = Some(line);
    }

    /// Goes on with the one of several locks that was granted. The connections for the others are closed: the command may
    /// run for hours.
    fn settle_on(&self, name: &LockName, locks: &[Lock], report: &mut RunReport) {
        report.took(name);
        self.reporter.set_subject(std::slice::from_ref(name), self.plan.target.store.display());
        for lock in locks.iter().filter(|lock| lock.claim.name != *name) {
            lock.close(self.plan.target.store.open());
        }
    }

    pub(super) fn lock_wait(&self) -> LockWait<'_> {
        LockWait {
            reporter: self.reporter,
            signals: &self.signals,
            alarm: &self.alarm,
            target: &self.plan.target,
            patience: self.plan.settings.patience(),
            terms: &self.plan.terms,
            is_ttl_chosen: self.plan.settings.ttl.is_some(),
            supersedes_holder: self
                .plan
                .settings
                .supersede
                .as_ref()
                .is_some_and(|known| known.value == Supersede::Running),
            consequence: "; the command did not run",
        }
    }
}

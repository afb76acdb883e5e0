//! What a run came to: for the report, for people, and as an exit status.

use super::Run;
use super::acquisition::NotAcquired;
use super::outcome::{RunOutcome, Stopped, describe};
use crate::backend::{Release, StoreError};
use crate::child::protocol::Ended;
use crate::clock::Moment;
use crate::duration::show;
use crate::exit::{self, Exit, Failure};
use crate::lease::acquire_all::HeldLock;
use crate::plan::program_failure;
use crate::report::{Outcome, RunReport, revoked};

impl Run<'_> {
    /// Notes why the locks are not ours.
    pub(super) fn not_acquired(&self, why: NotAcquired, report: &mut RunReport) -> Result<(), Failure> {
        match why {
            NotAcquired::Contended(holder, line) => {
                report.outcome = Outcome::Contended;
                report.exit = Exit::Status(self.plan.conflict_exit_code);
                report.holder = holder.map(|holder| *holder);
                report.error = Some(line);
            }
            NotAcquired::Revoked(reason, failure) => {
                report.reason = reason;
                return Err(failure);
            }
            NotAcquired::Interrupted(signal) => {
                report.outcome = Outcome::Interrupted;
                report.exit = Exit::Signal(signal);
            }
            NotAcquired::Failed(failure) => return Err(failure),
        }
        Ok(())
    }

    /// Notes what became of the command and of its time under the locks.
    pub(super) fn note_end(&self, held: &[HeldLock], end: &RunOutcome, report: &mut RunReport) {
        for ((lock, held), renewals) in report.locks.iter_mut().zip(held).zip(&end.renewals) {
            lock.fencing = held.grant.fencing;
            lock.renewals = renewals.clone();
        }
        report.command = end.ended;
        report.outcome = outcome(end);
        report.exit = self.exit(end);
        // For the history, which is written before anything is said.
        report.error = self.stopped_line(end);
        report.reason = match &end.stopped {
            Some(Stopped::Revoked(_, revocation)) => revocation.reason.clone(),
            _ => None,
        };
    }

    /// Says what there is to say in the end, in one line each, and returns why the command did not run to its end under
    /// the locks.
    pub(super) fn say_end(
        &self,
        end: &RunOutcome,
        released: Vec<Result<Release, StoreError>>,
    ) -> Option<String> {
        let mut error = end.loss_said.clone();
        let name = &self.plan.label();
        let store = self.plan.store.display();
        let of = |lock: usize| &self.plan.names[lock];
        if let Some(line) = self.stopped_line(end) {
            error = Some(self.say_error(line));
        }
        if let Some(Ended::NotExecuted(errno)) = end.ended {
            error = Some(self.say_error(self.plan.program.exec_failure(errno).to_string()));
        }
        if end.orphans_left && !self.plan.orphans_chosen {
            self.reporter.warning(&format!(
                "{name}: the command left background processes, which go on without the lock; see --orphans"
            ));
        }
        for (lock, released) in released.into_iter().enumerate() {
            let name = of(lock);
            match released {
                // A deadline means that the store does not answer, or that the lease is over: nothing more to say.
                Err(error) if !matches!(end.stopped, Some(Stopped::Deadline(_))) => {
                    let rest = end.lease_ends[lock]
                        .map(|ends| format!("; it ends by itself within {}", show(ends - Moment::now())));
                    let rest = rest.unwrap_or_default();
                    self.reporter
                        .warning(&format!("{name} on {store}: could not be released: {error}{rest}"));
                }
                Ok(Release::NotHeld) if end.stopped.is_none() && !end.lost[lock] => {
                    self.reporter
                        .warning(&format!("{name} on {store}: was not held any more when the command ended"));
                }
                _ => {}
            }
        }
        error
    }

    /// Why dlock stopped the command, in one line.
    fn stopped_line(&self, end: &RunOutcome) -> Option<String> {
        let name = &self.plan.label();
        let store = self.plan.store.display();
        let of = |lock: usize| &self.plan.names[lock];
        let what = match end.stopped.as_ref()? {
            Stopped::Lost(lock, loss) => {
                format!("{} on {store}: the lock was lost: {}", of(*lock), describe(*loss))
            }
            Stopped::Revoked(lock, revocation) => revoked(of(*lock), store, revocation),
            Stopped::Deadline(lock) => {
                let why = end.trouble[*lock].as_deref().unwrap_or("dlock was stopped, or too slow");
                format!("{} on {store}: the lock could not be renewed in time ({why})", of(*lock))
            }
            Stopped::MaxRuntime(limit) => format!("{name}: --max-runtime {} is over", show(*limit)),
            Stopped::Guard(why) if !end.ran => return Some(why.clone()),
            Stopped::Guard(why) => format!("{name}: {why}"),
        };
        let done = match end.not_permitted {
            true => "not all of its processes could be stopped",
            false => "the command was stopped",
        };
        Some(format!("{what}; {done}"))
    }

    fn say_error(&self, line: String) -> String {
        self.reporter.error(&line);
        line
    }

    fn exit(&self, end: &RunOutcome) -> Exit {
        match (&end.stopped, end.ended) {
            (Some(Stopped::Guard(_)), _) => Exit::Status(exit::INTERNAL),
            (Some(Stopped::Lost(..) | Stopped::Revoked(..) | Stopped::Deadline(_)), _) => {
                Exit::Status(exit::LOST)
            }
            (Some(Stopped::MaxRuntime(_)), _) => Exit::Status(exit::MAX_RUNTIME),
            (None, Some(Ended::Exited(status))) => Exit::Status(status as u8),
            (None, Some(Ended::Killed(signal))) => Exit::Signal(signal),
            (None, Some(Ended::NotExecuted(errno))) => {
                Exit::Status(program_failure(self.plan.program.exec_failure(errno)).status())
            }
            (None, None) => Exit::Status(exit::INTERNAL),
        }
    }
}

fn outcome(end: &RunOutcome) -> Outcome {
    match (&end.stopped, end.ended) {
        (Some(Stopped::Guard(_)), _) => Outcome::Internal,
        (Some(Stopped::Lost(..) | Stopped::Revoked(..) | Stopped::Deadline(_)), _) => Outcome::Lost,
        (Some(Stopped::MaxRuntime(_)), _) => Outcome::MaxRuntime,
        (None, Some(Ended::NotExecuted(_))) => Outcome::NotExecutable,
        (None, Some(Ended::Exited(_) | Ended::Killed(_))) if end.lost.contains(&true) => Outcome::Lost,
        (None, Some(Ended::Exited(_) | Ended::Killed(_))) => Outcome::Ran,
        (None, None) => Outcome::Internal,
    }
}

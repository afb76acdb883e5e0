//! What a run came to: for the report, for people, and as an exit status.

use super::Session;
use super::acquiring::NotAcquired;
use super::running::{End, Stopped, describe};
use crate::backend::{Release, StoreError};
use crate::child::protocol::Ended;
use crate::clock::Moment;
use crate::duration::show;
use crate::exit::{self, Exit, Failure};
use crate::lease::together::Held;
use crate::plan::program_failure;
use crate::report::{Outcome, RunReport, revoked};

impl Session<'_> {
    /// Notes why the locks are not ours.
    pub(super) fn not_acquired(&self, why: NotAcquired, report: &mut RunReport) -> Result<(), Failure> {
        match why {
            NotAcquired::Contended(holder, line) => {
                report.outcome = Outcome::Contended;
                report.exit = Exit::Status(self.plan.conflict_exit_code);
                report.holder = holder;
                report.error = Some(line);
            }
            NotAcquired::Interrupted(signal) => {
                report.outcome = Outcome::Interrupted;
                report.exit = Exit::Signal(signal);
            }
            NotAcquired::Failed(failure) => return Err(failure),
        }
        Ok(())
    }

    /// Notes what became of the locks that were ours, and of the command.
    pub(super) fn note_end(
        &self,
        held: &[Held],
        end: &End,
        released: &[Result<Release, StoreError>],
        report: &mut RunReport,
    ) {
        for ((lock, held), renewals) in report.locks.iter_mut().zip(held).zip(&end.renewals) {
            lock.fencing = held.grant.fencing;
            lock.renewals = renewals.clone();
        }
        report.command = end.ended;
        let given_back =
            |release: &Result<Release, _>| matches!(release, Ok(Release::Released | Release::Kept));
        report.released = Some(released.iter().all(given_back));
        report.outcome = outcome(end);
        report.exit = self.exit(end);
    }

    /// Says what there is to say in the end, in one line each, and returns why the command did not run to its end under
    /// the locks.
    pub(super) fn say_end(&self, end: &End, released: Vec<Result<Release, StoreError>>) -> Option<String> {
        let mut error = end.loss_said.clone();
        let name = &self.plan.label();
        let store = self.plan.store.display();
        let of = |lock: usize| &self.plan.names[lock];
        if let Some(stopped) = &end.stopped {
            let what = match stopped {
                Stopped::Lost(lock, loss) => {
                    format!("{} on {store}: the lock was lost: {}", of(*lock), describe(*loss))
                }
                Stopped::Revoked(lock, revocation) => revoked(of(*lock), store, revocation),
                Stopped::Deadline(lock) => {
                    let why = end.trouble[*lock].as_deref().unwrap_or("dlock was stopped, or too slow");
                    format!("{} on {store}: the lock could not be renewed in time ({why})", of(*lock))
                }
                Stopped::MaxRuntime(limit) => format!("{name}: --max-runtime {} is over", show(*limit)),
                Stopped::Guard(why) => format!("{name}: {why}"),
            };
            let done = match end.not_permitted {
                true => "not all of its processes could be stopped",
                false => "the command was stopped",
            };
            error = Some(self.say_error(format!("{what}; {done}")));
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

    fn say_error(&self, line: String) -> String {
        self.reporter.error(&line);
        line
    }

    fn exit(&self, end: &End) -> Exit {
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

fn outcome(end: &End) -> Outcome {
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

//! The result of a run: for the report, as messages, and as an exit status.

use super::Run;
use super::outcome::{RunOutcome, Stopped, Unguarded, describe, describe_briefly};
use crate::backend::{Release, StoreError};
use crate::child::protocol::Ended;
use crate::clock::Moment;
use crate::duration::{show, show_distance};
use crate::exit::{Exit, FailureKind};
use crate::lease::acquire_all::HeldLock;
use crate::report::{Cause, Outcome, RunReport, broken_by, revoked};
use crate::settings::program_failure;

impl Run<'_> {
    /// Records how the command ended and what happened to its locks.
    pub(super) fn note_outcome(&self, held: &[HeldLock], outcome: &RunOutcome, report: &mut RunReport) {
        for ((lock, held), outcome) in report.locks.iter_mut().zip(held).zip(&outcome.locks) {
            lock.fencing = held.grant.fencing;
            lock.renewals = outcome.renewals.clone();
        }
        report.command = outcome.ended;
        (report.outcome, report.exit) = self.end(outcome);
        // For the history, which is written before any message.
        report.cause = self.cause(outcome);
        report.reason = match &outcome.stopped {
            Some(Stopped::Revoked(_, revocation)) => revocation.reason.clone(),
            _ => None,
        };
    }

    /// Prints the final messages, one line each, and returns why the command did not run to its end under the
    /// locks.
    pub(super) fn report_outcome(
        &self,
        outcome: &RunOutcome,
        released: Vec<Result<Release, StoreError>>,
    ) -> Option<String> {
        let mut error = outcome.loss.as_ref().map(|(lock, loss)| self.loss_line(*lock, loss));
        let name = &self.plan.label();
        let store = self.plan.target.store.display();
        let of = |lock: usize| &self.plan.names[lock];
        if let Some(line) = self.stopped_line(outcome) {
            error = Some(self.report_error(outcome, line));
        }
        if let Some(Ended::NotExecuted(errno)) = outcome.ended {
            error = Some(self.report_error(outcome, self.plan.program.exec_failure(errno).to_string()));
        }
        if outcome.orphans_left && self.plan.settings.orphans.is_none() {
            self.reporter.warning(&format!(
                "{name}: the command left background processes, which continue without the lock; see --orphans"
            ));
        }
        for (lock, released) in released.into_iter().enumerate() {
            let name = of(lock);
            match released {
                // A deadline means that the store does not reply, or that the lease has expired: no further message.
                Err(error) if !matches!(outcome.stopped, Some(Stopped::Deadline(_))) => {
                    let success = match outcome.success {
                        Some(_) => ", nor its success be recorded",
                        None => "",
                    };
                    let rest = match outcome.locks[lock].lease_ends.map(|ends| ends - Moment::now()) {
                        None => String::new(),
                        // The store counts the lease from later on, and a new leader from its election.
                        Some(rest) if rest.as_millis() == 0 => "; it expires by itself".to_owned(),
                        Some(rest) => format!("; it expires within {}", show_distance(rest)),
                    };
                    self.reporter.warning(&format!(
                        "{name} on {store}: could not be released{success}: {error}{rest}"
                    ));
                }
                Ok(Release::NotHeld) if outcome.stopped.is_none() && !outcome.locks[lock].is_lost => {
                    self.reporter
                        .warning(&format!("{name} on {store}: was no longer held when the command ended"));
                }
                Ok(Release::Unrecorded(why)) => {
                    let line = format!("{name} on {store}: its success could not be recorded: {why}");
                    self.reporter.warning(&format!("{line}; it may run again before it is due"));
                }
                _ => {}
            }
        }
        error
    }

    /// Returns the same for the history of the locks.
    fn cause(&self, outcome: &RunOutcome) -> Option<Cause> {
        let about = |lock: usize, text| Some(Cause { lock: Some(self.plan.names[lock].clone()), text });
        let text = match (&outcome.stopped, &outcome.loss) {
            (Some(Stopped::Lost(lock, loss)), _) => return about(*lock, describe_briefly(*loss).to_owned()),
            (Some(Stopped::Revoked(lock, revocation)), _) => return about(*lock, broken_by(revocation)),
            (Some(Stopped::Deadline(lock)), _) => return about(*lock, not_renewed(trouble(outcome, *lock))),
            (Some(Stopped::MaxRuntime(limit)), _) => format!("--max-runtime {} was reached", show(*limit)),
            (Some(Stopped::Guard(why)), _) => why.clone(),
            (None, Some((lock, loss))) => {
                let loss = match loss {
                    Unguarded::Lost(loss) => describe_briefly(*loss).to_owned(),
                    Unguarded::Deadline(why) => not_renewed(why),
                };
                return about(*lock, format!("{loss}; the command went on"));
            }
            (None, None) => return None,
        };
        Some(Cause { lock: None, text })
    }

    /// Returns that a lock was lost under a command that goes on.
    pub(super) fn loss_line(&self, lock: usize, loss: &Unguarded) -> String {
        let (name, store) = (&self.plan.names[lock], self.plan.target.store.display());
        let what = match loss {
            Unguarded::Lost(loss) => format!("was lost: {}", describe(*loss)),
            Unguarded::Deadline(why) => format!("could not be renewed in time ({why})"),
        };
        format!("{name} on {store}: the lock {what}; the command goes on (--on-lost warn)")
    }

    /// Returns why dlock stopped the command, in one line.
    fn stopped_line(&self, outcome: &RunOutcome) -> Option<String> {
        let name = &self.plan.label();
        let store = self.plan.target.store.display();
        let of = |lock: usize| &self.plan.names[lock];
        let what = match outcome.stopped.as_ref()? {
            Stopped::Lost(lock, loss) => {
                format!("{} on {store}: the lock was lost: {}", of(*lock), describe(*loss))
            }
            Stopped::Revoked(lock, revocation) => revoked(of(*lock), store, revocation),
            Stopped::Deadline(lock) => {
                let why = trouble(outcome, *lock);
                format!("{} on {store}: the lock could not be renewed in time ({why})", of(*lock))
            }
            Stopped::MaxRuntime(limit) => format!("{name}: --max-runtime {} was reached", show(*limit)),
            Stopped::Guard(why) if !outcome.ran => return Some(why.clone()),
            Stopped::Guard(why) => format!("{name}: {why}"),
        };
        let done = match outcome.not_permitted {
            true => "not all of its processes could be stopped",
            false => "the command was stopped",
        };
        Some(format!("{what}; {done}"))
    }

    fn report_error(&self, outcome: &RunOutcome, line: String) -> String {
        let (outcome, exit) = self.end(outcome);
        self.reporter.error(outcome, exit, &line);
        line
    }

    fn end(&self, outcome: &RunOutcome) -> (Outcome, Exit) {
        let ran = match outcome.locks.iter().any(|lock| lock.is_lost) {
            true => Outcome::Lost,
            false => Outcome::Ran,
        };
        let failed = |kind: FailureKind| (kind.into(), kind.into());
        match (&outcome.stopped, outcome.ended) {
            (Some(Stopped::Guard(_)), _) | (None, None) => failed(FailureKind::Internal),
            (Some(Stopped::Lost(..) | Stopped::Revoked(..) | Stopped::Deadline(_)), _) => {
                failed(FailureKind::Lost)
            }
            (Some(Stopped::MaxRuntime(_)), _) => (Outcome::MaxRuntime, Exit::MAX_RUNTIME),
            (None, Some(Ended::Exited(status))) => (ran, Exit::Status(status as u8)),
            (None, Some(Ended::Killed(signal))) => (ran, Exit::Signal(signal)),
            (None, Some(Ended::NotExecuted(errno))) => {
                failed(program_failure(self.plan.program.exec_failure(errno)).kind)
            }
        }
    }
}

/// Returns why a lock was not renewed in time.
fn trouble(outcome: &RunOutcome, lock: usize) -> &str {
    outcome.locks[lock].trouble.as_deref().unwrap_or("dlock was stopped, or too slow")
}

fn not_renewed(why: &str) -> String {
    format!("not renewed in time ({why})")
}

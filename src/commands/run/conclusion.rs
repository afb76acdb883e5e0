//! The result of a run: for the report, as messages, and as an exit status.

use super::Run;
use super::supervised::{Stopped, Supervised, Unguarded, describe, describe_briefly};
use crate::backend::{Release, StoreError};
use crate::child::protocol::Ended;
use crate::clock::Moment;
use crate::duration::{show, show_distance};
use crate::exit::{Exit, FailureKind};
use crate::lease::acquire_all::HeldLock;
use crate::lock::LockName;
use crate::report::{Cause, Outcome, RunReport, broken_by, revoked};
use crate::settings::program_failure;

impl Run<'_> {
    /// Records how the command ended and what happened to its locks.
    pub(super) fn note_end(&self, held: &[HeldLock<'_>], supervised: &Supervised, report: &mut RunReport) {
        for ((lock, held), supervised) in report.locks.iter_mut().zip(held).zip(&supervised.locks) {
            lock.fencing = held.grant.fencing;
            lock.renewals = supervised.renewals.clone();
        }
        report.command = supervised.ended;
        (report.outcome, report.exit) = self.end(supervised);
        // For the history, which is written before any message.
        report.cause = self.cause(supervised);
        report.reason = match &supervised.stopped {
            Some(Stopped::Revoked(_, revocation)) => revocation.reason.clone(),
            _ => None,
        };
    }

    /// Prints the final messages, one line each, and returns why the command did not run to its end under the
    /// locks.
    pub(super) fn report_end(
        &self,
        supervised: &Supervised,
        released: Vec<Result<Release, StoreError>>,
    ) -> Option<String> {
        let of = |lock: usize| &supervised.locks[lock].name;
        let mut error = supervised.loss.as_ref().map(|(lock, loss)| self.loss_line(of(*lock), loss));
        let name = &supervised.label();
        let store = self.plan.target.store.display();
        if let Some(line) = self.stopped_line(supervised) {
            error = Some(self.report_error(supervised, line));
        }
        if let Some(Ended::NotExecuted(errno)) = supervised.ended {
            error = Some(self.report_error(supervised, self.plan.program.exec_failure(errno).to_string()));
        }
        if supervised.orphans_left && self.plan.settings.orphans.is_none() {
            self.reporter.warning(&format!(
                "{name}: the command left background processes, which continue without the lock; see --orphans"
            ));
        }
        for (lock, released) in released.into_iter().enumerate() {
            let name = of(lock);
            match released {
                // A deadline means that the store does not reply, or that the lease has expired: no further message.
                Err(error) if !matches!(supervised.stopped, Some(Stopped::Deadline(_))) => {
                    let success = match supervised.success {
                        Some(_) => ", nor its success be recorded",
                        None => "",
                    };
                    let rest = match supervised.locks[lock].lease_ends.map(|ends| ends - Moment::now()) {
                        None => String::new(),
                        // The store counts the lease from later on, and a new leader from its election.
                        Some(rest) if rest.as_millis() == 0 => "; it expires by itself".to_owned(),
                        Some(rest) => format!("; it expires within {}", show_distance(rest)),
                    };
                    self.reporter.warning(&format!(
                        "{name} on {store}: could not be released{success}: {error}{rest}"
                    ));
                }
                Ok(Release::NotHeld) if !supervised.is_reported_lost(lock) => {
                    self.reporter.warning(&format!(
                        "{name} on {store}: was no longer held when the command ended: another command may have \
                         run at the same time, see dlock history"
                    ));
                }
                Ok(Release::SuccessNotStored(why)) => {
                    let line = format!("{name} on {store}: its success could not be recorded: {why}");
                    self.reporter.warning(&format!("{line}; it may run again before it is due"));
                }
                _ => {}
            }
        }
        error
    }

    /// Returns the same for the history of the locks.
    fn cause(&self, supervised: &Supervised) -> Option<Cause> {
        let about = |lock: usize, text| Some(Cause { lock: Some(supervised.locks[lock].name.clone()), text });
        let text = match (&supervised.stopped, &supervised.loss) {
            (Some(Stopped::Lost(lock, loss)), _) => return about(*lock, describe_briefly(*loss).to_owned()),
            (Some(Stopped::Revoked(lock, revocation)), _) => return about(*lock, broken_by(revocation)),
            (Some(Stopped::Deadline(lock)), _) => {
                return about(*lock, not_renewed(trouble(supervised, *lock)));
            }
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
    pub(super) fn loss_line(&self, name: &LockName, loss: &Unguarded) -> String {
        let store = self.plan.target.store.display();
        let what = match loss {
            Unguarded::Lost(loss) => format!("was lost: {}", describe(*loss)),
            Unguarded::Deadline(why) => format!("could not be renewed in time ({why})"),
        };
        format!("{name} on {store}: the lock {what}; the command goes on (--on-lost warn)")
    }

    /// Returns why dlock stopped the command, in one line.
    fn stopped_line(&self, supervised: &Supervised) -> Option<String> {
        let name = &supervised.label();
        let store = self.plan.target.store.display();
        let of = |lock: usize| &supervised.locks[lock].name;
        let what = match supervised.stopped.as_ref()? {
            Stopped::Lost(lock, loss) => {
                format!("{} on {store}: the lock was lost: {}", of(*lock), describe(*loss))
            }
            Stopped::Revoked(lock, revocation) => revoked(of(*lock), store, revocation),
            Stopped::Deadline(lock) => {
                let why = trouble(supervised, *lock);
                format!("{} on {store}: the lock could not be renewed in time ({why})", of(*lock))
            }
            Stopped::MaxRuntime(limit) => format!("{name}: --max-runtime {} was reached", show(*limit)),
            Stopped::Guard(why) if !supervised.ran => return Some(why.clone()),
            Stopped::Guard(why) => format!("{name}: {why}"),
        };
        let done = match supervised.not_permitted {
            true => "not all of its processes could be stopped",
            false => "the command was stopped",
        };
        Some(format!("{what}; {done}"))
    }

    fn report_error(&self, supervised: &Supervised, line: String) -> String {
        let (outcome, exit) = self.end(supervised);
        self.reporter.error(outcome, exit, &line);
        line
    }

    fn end(&self, supervised: &Supervised) -> (Outcome, Exit) {
        let ran = match supervised.locks.iter().any(|lock| lock.is_lost) {
            true => Outcome::Lost,
            false => Outcome::Ran,
        };
        let failed = |kind: FailureKind| (kind.into(), kind.into());
        match (&supervised.stopped, supervised.ended) {
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
fn trouble(supervised: &Supervised, lock: usize) -> &str {
    supervised.locks[lock].trouble.as_deref().unwrap_or("dlock was stopped, or too slow")
}

fn not_renewed(why: &str) -> String {
    format!("not renewed in time ({why})")
}

//! Why the locks were not granted, as messages and as an exit status.

use std::time::Duration;

use super::{Awaited, LockWait};
use crate::backend::{Busy, Outlook, Refusal, StoreError};
use crate::duration::show_distance;
use crate::exit::{Failure, FailureKind};
use crate::lease::acquire::{NotGranted, Wait};
use crate::lock::{Claim, Identity, LockName, Mode, Success, UnknownFormat};
use crate::report::{broken_by, lock_error, superseded_by};

impl LockWait<'_> {
    /// Returns the same as [`LockWait::failure`] at the end of a wait, with its length if a store was retried.
    pub(in crate::commands) fn failure_after(
        &self,
        waited: Duration,
        claim: &Claim,
        why: NotGranted,
    ) -> Failure {
        let was_retried = self.retries() && matches!(why, NotGranted::Failed(StoreError::Unavailable { .. }));
        let failure = self.failure(claim, why);
        if !was_retried {
            return failure;
        }
        let message = format!("{}; gave up after {}", failure.message, show_distance(waited));
        Failure { message, ..failure }
    }

    /// Returns whether a store that cannot be reached is tried again.
    fn retries(&self) -> bool {
        self.patience.wait != Wait::No || !self.patience.retry.is_zero()
    }

    /// Returns the failure for a lock that was not granted for another reason than contention, with a remedy.
    pub(in crate::commands) fn failure(&self, claim: &Claim, why: NotGranted) -> Failure {
        let (name, store, consequence) = (&claim.name, self.store(), self.consequence);
        let cause = self.cause(claim, &why);
        let (kind, cause, end) = match why {
            NotGranted::Failed(error) => {
                let see_retry = match error.outlook() {
                    Outlook::Permanent => "",
                    _ if self.retries() => "",
                    _ if consequence.is_empty() => "; see --retry",
                    _ => ", see --retry",
                };
                return lock_error(name, store, &error, &format!("{consequence}{see_retry}"));
            }
            NotGranted::Revoked(_) => (FailureKind::Lost, format!("the lock was {cause}"), consequence),
            // The remedy says what to do, and nothing else can have happened.
            NotGranted::Refused(Refusal::Slots(_) | Refusal::Inside(_)) => (FailureKind::Usage, cause, ""),
            NotGranted::Refused(Refusal::Unsupported(_)) => (FailureKind::Usage, cause, consequence),
            NotGranted::Refused(Refusal::OuterLost) => (FailureKind::Lost, cause, consequence),
            NotGranted::Refused(Refusal::Success(_)) => (FailureKind::Config, cause, consequence),
            NotGranted::Refused(Refusal::Superseded(_))
            | NotGranted::Contended(_)
            | NotGranted::NotDue(_)
            | NotGranted::GivenUp => {
                return Failure::internal(cause);
            }
        };
        Failure::new(kind, format!("{name} on {store}: {cause}{end}"))
    }

    /// Returns why a lock was not granted, without its name and the store.
    pub(in crate::commands) fn cause(&self, claim: &Claim, why: &NotGranted) -> String {
        match why {
            NotGranted::Failed(error) => error.to_string(),
            NotGranted::Revoked(revocation) => broken_by(revocation),
            NotGranted::Refused(Refusal::Slots(theirs)) => format!(
                "--slots {}, but it is in use with {theirs} slots: give --slots {theirs}, or wait until it has no holder \
                 and no waiter",
                slots_of(claim)
            ),
            NotGranted::Refused(Refusal::Unsupported(why)) => why.clone(),
            NotGranted::Refused(Refusal::Inside(outer)) => format!(
                "cannot be taken {} here: this command runs under a hold of it that is {} and would wait for itself; take \
                 the outer one with --exclusive, or this one with the same mode",
                claim.mode.as_str(),
                outer.as_str()
            ),
            NotGranted::Refused(Refusal::OuterLost) => {
                "the lock that this command runs under (DLOCK_HELD) was lost".to_owned()
            }
            NotGranted::Refused(Refusal::Success(UnknownFormat(format))) => format!(
                "the record of its last success was stored by another version of dlock (format {format}, known: {}): use \
                 one version on all hosts",
                Success::FORMAT
            ),
            NotGranted::Refused(Refusal::Superseded(newer)) => superseded_by(newer),
            NotGranted::Contended(_) | NotGranted::NotDue(_) | NotGranted::GivenUp => {
                "gave up without a reason".to_owned()
            }
        }
    }

    /// Reports that the lock was in use with another number of slots until the wait ended, and returns the message.
    pub(in crate::commands) fn report_other_slots(
        &self,
        awaited: &Awaited<'_>,
        claim: &Claim,
        theirs: u32,
    ) -> String {
        let (name, store, waited) = (&claim.name, self.store(), show_distance(awaited.waited));
        let ours = slots_of(claim);
        let line = format!(
            "{name} on {store} is still in use with {theirs} slots, not {ours}; gave up after {waited}: wait longer, or give \
             --slots {theirs}"
        );
        self.reporter.held(Some(name), None, &line);
        line
    }

    /// Reports that a later run has superseded the claim, and returns the message.
    pub(in crate::commands) fn report_superseded(
        &self,
        awaited: &Awaited<'_>,
        claim: &Claim,
        newer: &Identity,
    ) -> String {
        let (name, waited) = (&claim.name, show_distance(awaited.waited));
        let line = format!("{name}: {} after waiting for {waited}", superseded_by(newer));
        self.reporter.held(Some(name), None, &line);
        line
    }

    /// Reports that other clients hold the lock, or each of those of which one was wanted, and returns the message.
    /// `instead` is the remedy for a holder that is an ancestor of this process.
    pub(in crate::commands) fn report_contended(
        &self,
        awaited: &Awaited<'_>,
        name: &LockName,
        busy: &Busy,
        instead: &str,
    ) -> String {
        if !awaited.holder_is_ancestor {
            let all = awaited.busy.iter().map(|(lock, busy)| (&lock.claim.name, busy));
            let found = match awaited.busy.is_empty() {
                true => vec![(name, busy)],
                false => all.collect(),
            };
            let will_wait = self.patience.wait != Wait::No;
            return self.reporter.contended(&found, self.store(), awaited.waited, will_wait);
        }
        let line = format!(
            "{name} is held by the dlock that runs this very command: waiting for it would never end, and {instead}"
        );
        self.reporter.held(Some(name), busy.holder(), &line);
        line
    }
}

fn slots_of(claim: &Claim) -> u32 {
    match claim.mode {
        Mode::Slots(slots) => slots,
        Mode::Exclusive | Mode::Shared => 1,
    }
}

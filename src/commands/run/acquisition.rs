//! The first phase: getting the lock, with the command parked and signals meaning dlock itself.

use super::Run;
use crate::backend::Refusal;
use crate::child::Supervisor;
use crate::commands::lock_wait::{Awaited, BrokenOff, LockWait};
use crate::exit::{Failure, FailureKind};
use crate::lease::acquire_all::{AcquireAllOutcome, HeldLock, Keepers, Lock};
use crate::lock::{Claim, Holder, Mode};
use crate::report::revoked;

/// What came of it.
pub(super) enum Acquired<'a> {
    /// The locks are ours.
    Granted(Vec<HeldLock>, Keepers<'a>),
    /// They are not.
    Not(NotAcquired),
}

/// Why the locks are not ours.
pub(super) enum NotAcquired {
    /// Somebody else has one of them: who, if that is known, and what was said of it.
    Contended(Option<Box<Holder>>, String),
    /// One of them was ours already, and somebody wanted it, with this reason.
    Revoked(Option<String>, Failure),
    /// A signal came first.
    Interrupted(i32),
    /// It has not been said yet.
    Failed(Failure),
}

impl<'a> Run<'a> {
    pub(super) async fn acquire(&'a self, locks: &'a [Lock], supervisor: &mut Supervisor) -> Acquired<'a> {
        let awaiting = LockWait {
            reporter: self.reporter,
            signals: &self.signals,
            alarm: &self.alarm,
            store: self.plan.store.display(),
            patience: self.plan.patience,
            terms: &self.plan.terms,
        };
        match awaiting.locks(locks, Some(supervisor)).await {
            Ok(awaited) => self.not_or_granted(&awaiting, awaited),
            Err(BrokenOff::Signal(signal)) => Acquired::Not(NotAcquired::Interrupted(signal)),
            Err(BrokenOff::Guard(why)) => Acquired::Not(NotAcquired::Failed(Failure::internal(why))),
        }
    }

    fn not_or_granted<'l>(&self, awaiting: &LockWait<'_>, awaited: Awaited<'l>) -> Acquired<'l> {
        let store = self.plan.store.display();
        Acquired::Not(match awaited.together {
            AcquireAllOutcome::Granted(held, keeping) => return Acquired::Granted(held, keeping),
            AcquireAllOutcome::Contended(lock, ref busy) => {
                let instead = "DLOCK_HELD, which would let us in, was lost on the way here (sudo, env -i)";
                let line = awaiting.say_contended(&awaited, &lock.claim.name, busy, instead);
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

    /// Why a claim makes no sense as things are, and what to do.
    fn refused(&self, claim: &Claim, refusal: Refusal) -> Failure {
        let (name, store) = (&claim.name, self.plan.store.display());
        match refusal {
            Refusal::Slots(theirs) => {
                let ours = match claim.mode {
                    Mode::Slots(ours) => ours,
                    _ => 1,
                };
                Failure::usage(format!(
                    "{name} on {store}: --slots {ours}, but it is in use with {theirs} slots: give --slots {theirs}, or wait \
                     until nobody holds or awaits it"
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

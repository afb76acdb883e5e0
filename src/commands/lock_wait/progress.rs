//! The progress of a wait: what the user is told of it, and the holder that is to end because of it.

use super::{LockWait, is_held_by_ancestor};
use crate::backend::{Busy, Refusal, StoreError};
use crate::clock::Moment;
use crate::commands::older_holder::OlderHolder;
use crate::lease::acquire::{Advice, Observer, Wait};
use crate::lock::{Claim, Mode};
use crate::report::WaitLine;

/// The progress of one wait.
pub(super) struct Progress<'a> {
    pub(super) wait: &'a LockWait<'a>,
    pub(super) line: WaitLine<'a>,
    pub(super) older_holder: OlderHolder,
}

impl Progress<'_> {
    fn warn_of_exposure(&self) {
        if let Some(exposure) = self.wait.target.exposure() {
            self.line.clear();
            self.wait.reporter.warning(&exposure);
        }
    }
}

impl Observer for Progress<'_> {
    fn busy(&self, claim: &Claim, busy: &Busy) -> Advice {
        self.warn_of_exposure();
        if is_held_by_ancestor(&claim.name, busy) {
            self.line.left(&claim.name);
            return Advice::Leave;
        }
        if self.wait.supersedes_holder && busy.freeze.is_none() {
            self.older_holder.note(claim, busy);
        }
        match self.wait.patience.wait {
            Wait::No => self.line.replied(&claim.name),
            Wait::For(_) | Wait::Forever => self.line.busy(&claim.name, busy),
        }
        Advice::Wait
    }

    fn refused(&self, claim: &Claim, refusal: &Refusal) {
        self.warn_of_exposure();
        if let (Refusal::Slots(theirs), Mode::Slots(ours)) = (refusal, claim.mode) {
            self.line.other_slots(&claim.name, ours, *theirs);
        }
    }

    fn failed(&self, claim: &Claim, error: &StoreError, until: Option<Moment>) {
        self.warn_of_exposure();
        self.line.failed(&claim.name, error, until);
    }
}

//! What the phases of a run share.

use crate::backend::StoreError;
use crate::child::signals::Source;
use crate::clock::Alarm;
use crate::exit::Failure;
use crate::lease::acquire::Wait;
use crate::lock::LockName;
use crate::report::{Reporter, store_failure};
use crate::settings::RunPlan;

pub(super) struct Run<'a> {
    pub(super) plan: &'a RunPlan,
    pub(super) reporter: &'a Reporter,
    pub(super) signals: Source,
    pub(super) alarm: Alarm,
}

impl Run<'_> {
    pub(super) fn failed(&self, name: &LockName, error: &StoreError) -> Failure {
        let can_retry =
            self.plan.settings.patience().retry.is_zero() && self.plan.settings.patience().wait == Wait::No;
        store_failure(name, self.plan.target.store.display(), error, can_retry)
    }
}

//! What the drivers of both shapes share.

use super::observed::Observed;
use super::value::Ledger;
use crate::backend::{Outlook, StoreError};
use crate::lock::{LockName, LockState};

/// How often a change is decided again after a conflict before it is reported as a transient failure.
pub(super) const MAX_CONFLICTS: usize = 100;

/// The `part` of a lock, such as its state, is changed too often by others.
pub fn busy(name: &LockName, part: &str) -> StoreError {
    let reason = format!("{name}: too many other clients change the {part} of this lock at the same time");
    StoreError::Unavailable { reason, maybe_applied: false, outlook: Outlook::Transient }
}

/// Returns the time of the last inspection in ms since 1970, and what `view` makes of each ledger.
pub(super) async fn states<O: Observed>(
    names: &[LockName],
    view: impl Fn(&LockName, &Ledger, &dyn Observed) -> LockState,
    mut load: impl AsyncFnMut(&LockName) -> Result<(Ledger, O), StoreError>,
) -> Result<(u64, Vec<LockState>), StoreError> {
    let (mut locks, mut now_ms) = (Vec::new(), 0);
    for name in names {
        locks.push(match load(name).await {
            Ok((ledger, observed)) => {
                now_ms = observed.now().wall / 1000;
                view(name, &ledger, &observed)
            }
            Err(unreadable @ StoreError::Config(_)) => {
                LockState { unknown: Some(unreadable.into()), ..LockState::free(name.clone()) }
            }
            Err(error) => return Err(error),
        });
    }
    Ok((now_ms, locks))
}
